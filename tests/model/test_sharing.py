"""Generator and discriminator read one table, whatever is done to them, and every parameter is trained once (law 6)."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from electra_albert.model.electra import Electra
from electra_albert.model.heads import SentenceOrderHead
from electra_albert.training.optimizer import check_gradients, check_groups, parameter_groups
from tests.model.twins import SHAPE, make_pair, padded_batch

SHARED = {
    "word_embeddings.weight",
    "position_embeddings.weight",
    "token_type_embeddings.weight",
    "LayerNorm.weight",
    "LayerNorm.bias",
}


def assert_tied(pair: Electra) -> None:
    """AssertionError unless both models read the same storage, and the decoder reads the table too."""
    one, other = (dict(model.embeddings.named_parameters()) for model in (pair.generator, pair.discriminator))
    assert one.keys() == other.keys() == SHARED
    for name in SHARED:
        assert one[name].data_ptr() == other[name].data_ptr(), f"{name} is not shared"
    private = [dict(model.encoder.named_parameters()) for model in (pair.generator, pair.discriminator)]
    assert not {p.data_ptr() for p in private[0].values()} & {p.data_ptr() for p in private[1].values()}
    assert_decoder_is_the_table(pair)


def assert_decoder_is_the_table(pair: Electra) -> None:
    """AssertionError unless a change to a token's row of the discriminator's table changes its logit, and only its."""
    hidden_states = torch.ones(1, SHAPE.hidden_size, dtype=pair.generator.predictions.bias.dtype)
    with torch.no_grad():
        before = pair.generator.logits(hidden_states)
        row = pair.discriminator.embeddings.word_embeddings.weight[7]
        kept = row.clone()
        row.add_(1.0)
        changed = (pair.generator.logits(hidden_states) != before).nonzero()[:, 1].tolist()
        row.copy_(kept)
    assert changed == [7], "the decoder is not the table"


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
    "filled after meta": moved_through_meta,
}


def loss(pair: Electra) -> Tensor:
    batch = padded_batch()
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    total = pair.generator.logits(pair.generator(*inputs)).logsumexp(-1).sum() + pair.discriminator(*inputs).sum()
    order = pair.discriminator.sentence_order
    return total if order is None else total + order(pair.discriminator.encode(*inputs)).logsumexp(-1).sum()


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_tables_are_shared_and_every_parameter_is_trained_once_the_pair_is(treatment: str) -> None:
    pair = TREATMENTS[treatment](make_pair(SHAPE))
    assert_tied(pair)
    check_groups(pair, parameter_groups(pair, 0.01))
    loss(pair).backward()
    check_gradients(pair)


def test_sentence_order_head_stands_on_the_discriminator_alone_and_gets_its_gradients() -> None:
    pair = make_pair(SHAPE, with_sentence_order=True)
    assert_tied(pair)
    assert pair.generator.sentence_order is None
    assert isinstance(pair.discriminator.sentence_order, SentenceOrderHead)
    check_groups(pair, parameter_groups(pair, 0.01))
    loss(pair).backward()
    check_gradients(pair)


def test_shared_table_gets_the_sum_of_both_gradients() -> None:
    def table_gradient(terms: Callable[[Electra], Tensor]) -> Tensor:
        pair = make_pair(SHAPE).double()
        terms(pair).backward()
        gradient = pair.generator.embeddings.word_embeddings.weight.grad
        assert gradient is not None
        return gradient

    batch = padded_batch()
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    generator = table_gradient(lambda pair: pair.generator.logits(pair.generator(*inputs)).logsumexp(-1).sum())
    discriminator = table_gradient(lambda pair: pair.discriminator(*inputs).sum())
    torch.testing.assert_close(table_gradient(loss), generator + discriminator, rtol=1e-12, atol=1e-12)


def test_check_of_ties_rejects_equal_tables_in_two_places() -> None:
    # Planted: a copy, as left behind by code that resizes or reloads one of the models.
    pair = make_pair(SHAPE)
    pair.discriminator.embeddings = copy.deepcopy(pair.discriminator.embeddings)
    with pytest.raises(AssertionError, match="is not shared"):
        assert_tied(pair)


def test_checks_reject_a_pooler_that_nothing_trains_and_a_parameter_left_out_or_twice() -> None:
    # Planted: a pooler beside replaced-token detection; groups made from a generator that was already used up; a list
    # of both models' parameters, which names the shared table twice.
    pair = make_pair(SHAPE)
    both = [*pair.generator.parameters(), *pair.discriminator.parameters()]
    with pytest.raises(ValueError, match="2 times"):
        check_groups(pair, [{"params": both}])
    with pytest.raises(ValueError, match="0 times"):
        check_groups(pair, parameter_groups(pair, 0.01)[:1])
    pair.discriminator.pooler = nn.Linear(SHAPE.hidden_size, SHAPE.hidden_size)
    loss(pair).backward()
    with pytest.raises(ValueError, match="pooler"):
        check_gradients(pair)
