"""Generator and discriminator always share their embeddings, and every parameter is trained exactly
once (law 6).
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from electra_albert.model.electra import Electra
from electra_albert.training.optimizer import check_gradients, check_groups, parameter_groups
from tests.model.twins import SHAPE, make_pair, padded_batch

INPUTS = padded_batch()[:3]
SHARED = {f"{name}_embeddings.weight" for name in ("word", "position", "token_type")}
SHARED |= {"LayerNorm.weight", "LayerNorm.bias"}


def assert_tied(pair: Electra) -> None:
    """Assert that both models use the same storage for embeddings, and that the decoder is the word
    embeddings.
    """
    models = (pair.generator, pair.discriminator)
    shared = [storages(model.embeddings) for model in models]
    assert shared[0] == shared[1]
    assert shared[0].keys() == SHARED
    private = [{*storages(model.encoder).values()} for model in models]
    assert private[0].isdisjoint(private[1])
    hidden_states = torch.ones(1, SHAPE.hidden_size)
    with torch.no_grad():
        before = pair.generator.logits(hidden_states)
        pair.discriminator.embeddings.word_embeddings.weight[7] += 1.0
        changed = (pair.generator.logits(hidden_states) != before).nonzero()[:, 1].tolist()
    assert changed == [7], "the decoder is not tied"


def storages(module: nn.Module) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in module.named_parameters()}


def loaded(pair: Electra, assign: bool) -> Electra:
    pair.load_state_dict(make_pair(SHAPE, seed=9).state_dict(), assign=assign)
    return pair


def moved_through_meta(pair: Electra) -> Electra:
    with torch.device("meta"):
        empty = Electra(SHAPE, SHAPE)
    return loaded(empty.to_empty(device="cpu"), assign=False)


TREATMENTS: dict[str, Callable[[Electra], Electra]] = {
    "assigned": lambda pair: loaded(pair, assign=True),
    "bfloat16 and back": lambda pair: pair.bfloat16().float(),
    "copied": copy.deepcopy,
    "loaded after meta": moved_through_meta,
}


def assert_all_are_trained_once(pair: Electra) -> None:
    check_groups(pair, parameter_groups(pair, 0.01))
    generator, discriminator = pair.generator, pair.discriminator
    loss = generator.logits(generator(*INPUTS)).logsumexp(-1).sum() + discriminator(*INPUTS).sum()
    loss.backward()
    check_gradients(pair)


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_embeddings_stay_shared_and_every_parameter_is_trained_once(treatment: str) -> None:
    pair = TREATMENTS[treatment](make_pair(SHAPE))
    assert_tied(pair)
    assert_all_are_trained_once(pair)


def test_checks_reject_an_untrained_pooler_and_missing_or_repeated_parameters() -> None:
    pair = make_pair(SHAPE)
    twice = [*pair.generator.parameters(), *pair.discriminator.parameters()]
    with pytest.raises(ValueError, match="2 times"):
        check_groups(pair, [{"params": twice}])
    with pytest.raises(ValueError, match="0 times"):
        check_groups(pair, parameter_groups(pair, 0.01)[:1])
    pair.discriminator.pooler = nn.Linear(SHAPE.hidden_size, SHAPE.hidden_size)
    with pytest.raises(ValueError, match="pooler"):
        assert_all_are_trained_once(pair)
