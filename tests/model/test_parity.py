"""Every head has the outputs and gradients of its stock class, for every sharing of layers and mask
(law 1).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.hub.onnx import Model, outputs
from electra_albert.keyed_random import Stream, bits, uniform
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.model import twins
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, L, assert_same_gradients, make_encoder, make_masked_lm

B, CHOICES, C = 6, 3, 5
# Wide enough for uneven attention, without hidden states becoming equal.
SHARED = replace(SHAPE, initializer_range=0.2)
VARIANTS = {
    "grouped": replace(SHARED, num_hidden_groups=3),
    "inner-grouped": replace(SHARED, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
    "unshared": replace(SHARED, num_hidden_groups=SHARED.num_hidden_layers),
    "one layer": replace(SHARED, num_hidden_layers=1),
    "E = H": replace(SHARED, embedding_size=SHARED.hidden_size),
    "gelu": replace(SHARED, hidden_act="gelu"),
    "relu": replace(SHARED, hidden_act="relu"),
    "epsilon": replace(SHARED, layer_norm_eps=0.01),
}
BASE_V2 = ModelConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
LENGTHS = (L, 8, 3, 11, 1, 6)


class Twins(NamedTuple):
    ours: Model
    stock: nn.Module


def task_twin(ours: TaskModel) -> nn.Module:
    config = twins.stock(ours.config, num_labels=ours.head.num_labels)
    return twins.load_twin(getattr(transformers, ours.head.architecture)(config), ours)


HEADS: dict[str, tuple[Callable[..., Model], Callable[..., nn.Module]]] = {
    "encoder with pooler": (partial(make_encoder, with_pooler=True), twins.encoder_twin),
    "encoder without pooler": (partial(make_encoder, with_pooler=False), twins.encoder_twin),
    "pretraining": (make_masked_lm, twins.masked_lm_twin),
    "masked lm": (partial(make_masked_lm, with_sentence_order=False), twins.masked_lm_twin),
    "discriminator": (
        lambda config: twins.make_pair(config).discriminator,
        twins.stock_discriminator,
    ),
    **{
        kind: (partial(make_task_model, TaskHead(kind, count)), task_twin)
        for kind, count in {"sequence": C, "choice": 1, "token": C, "span": 2}.items()
    },
}


def make_twins(
    head: str, config: ModelConfig = SHARED, dtype: torch.dtype = torch.float64
) -> Twins:
    """Our model and its stock class with the same weights."""
    make, twin = HEADS[head]
    ours = make(config)
    return Twins(ours.to(dtype), twin(ours).to(dtype))


def noise(part: int) -> Tensor:
    """Random int64 [B, L] of any size, the same in every call."""
    return bits(part, Stream.EXAMPLE, torch.arange(B)[:, None], torch.arange(L))


FULL = torch.ones(B, L, dtype=torch.bool)
# Not at the end.
HOLE = torch.zeros_like(FULL).index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(True))
RAGGED = (torch.arange(L) < torch.tensor(LENGTHS)[:, None]) & ~HOLE
MASKS = {"none given": None, "full": FULL, "one token per sequence": FULL & (torch.arange(L) == 0)}
TYPES = noise(1) % 2


def inputs(head: str, model: Model, mask: Tensor | None) -> dict[str, Tensor]:
    """Inputs under the stock names; for multiple choice [B / CHOICES, CHOICES, L]."""
    given = {"input_ids": 1 + noise(6) % (model.config.vocab_size - 1), "token_type_ids": TYPES}
    given |= {} if mask is None else {"attention_mask": mask}
    return {
        name: value.view(-1, CHOICES, L) if head == "choice" else value
        for name, value in given.items()
    }


def run_stock(head: str, pair: Twins, mask: Tensor | None) -> dict[str, Tensor]:
    """Outputs of the stock class under our names, with the last hidden states if any."""
    found = pair.stock(**inputs(head, pair.ours, mask), output_hidden_states=True)
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    given = {name.removeprefix("prediction_"): value for name, value in tensors.items()}
    states = found.get("hidden_states")
    return given if states is None else {**given, "last_hidden_state": states[-1]}


def run_ours(head: str, model: Model, mask: Tensor | None) -> dict[str, Tensor]:
    """Outputs of our model in the shapes of the stock class."""
    given = {name: value.flatten(0, -2) for name, value in inputs(head, model, mask).items()}
    mask = given.get("attention_mask", torch.ones(B, L, dtype=torch.bool))
    found = outputs(model, given["input_ids"], mask, given["token_type_ids"])
    return {**found, "logits": found["logits"].view(-1, CHOICES)} if head == "choice" else found


def loss_of(found: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Weighted sum of the heads' outputs, or of the last hidden states; every value has another
    weight.
    """
    heads = sorted(name for name in names if name != "last_hidden_state") or ["last_hidden_state"]
    numbers = torch.cat([found[name].flatten() for name in heads])
    position = torch.arange(len(numbers))
    return (numbers * (uniform(bits(7, Stream.EXAMPLE, position, position)) - 0.5)).sum()


def assert_same_everything(head: str, pair: Twins, mask: Tensor | None = RAGGED) -> None:
    """Assert that the outputs, and the gradients of loss_of, equal those of the stock class."""
    ours, theirs = run_ours(head, pair.ours, mask), run_stock(head, pair, mask)
    assert ours.keys() == theirs.keys() | {"last_hidden_state"}
    for name, value in theirs.items():
        twins.assert_same_outputs(ours[name], value)
    for found, model in ((ours, pair.ours), (theirs, pair.stock)):
        model.zero_grad()
        loss_of(found, theirs).backward()
    assert_same_gradients(twins.gradients(pair.ours), twins.gradients(pair.stock))


@pytest.mark.parametrize(
    ("head", "dtype"),
    [*((head, torch.float64) for head in HEADS), ("pretraining", torch.float32)],
    ids=str,
)
def test_head_equals_its_stock_class(head: str, dtype: torch.dtype) -> None:
    assert_same_everything(head, make_twins(head, dtype=dtype))


@pytest.mark.parametrize("head", ["pretraining", "discriminator"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_configuration_equals_stock(variant: str, head: str) -> None:
    assert_same_everything(head, make_twins(head, VARIANTS[variant]))


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_equals_stock(mask: str) -> None:
    assert_same_everything("pretraining", make_twins("pretraining"), MASKS[mask])


@pytest.mark.slow
def test_pretraining_model_equals_stock_at_the_shape_of_base_v2() -> None:
    assert_same_everything("pretraining", make_twins("pretraining", BASE_V2, torch.float32))


# Planted: the other GELU (a stock port shipped it), another epsilon, a missing layer. The
# comparison must detect them.
@pytest.mark.parametrize(
    "change", [{"hidden_act": "gelu"}, {"layer_norm_eps": 1e-5}, {"num_hidden_layers": 5}], ids=str
)
def test_comparison_rejects_a_stock_model_of_another_configuration(
    change: dict[str, object],
) -> None:
    ours = make_masked_lm(SHARED, with_sentence_order=False).double()
    with pytest.raises(AssertionError):
        assert_same_everything(
            "masked lm", Twins(ours, twins.masked_lm_twin(ours, **change).double())
        )


def test_comparison_of_gradients_rejects_a_detached_branch() -> None:
    # Planted: one matrix gets nine tenths of its gradient, as if one of many layers were detached.
    ours = make_twins("discriminator", dtype=torch.float32).ours
    loss_of(run_ours("discriminator", ours, RAGGED), ["logits"]).backward()
    right = twins.gradients(ours)
    name = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    with pytest.raises(AssertionError, match="ffn"):
        assert_same_gradients(right | {name: 0.9 * right[name]}, right)


def test_comparison_rejects_a_head_that_reads_the_last_position() -> None:
    pair = make_twins("pretraining")
    pair.ours.sentence_order.register_forward_pre_hook(lambda head, given: (given[0][:, -1:],))
    with pytest.raises(AssertionError):
        assert_same_everything("pretraining", pair)
