"""Every head gives the outputs of its stock twin and their gradients, whatever is shared or masked (law 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.hub.outputs import Model, outputs
from electra_albert.keyed_random import Stream, bits, uniform
from electra_albert.model.heads import SentenceOrderHead
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.model.test_task_model import make_task_model
from tests.model.twins import (
    SHAPE,
    L,
    assert_same_gradients,
    assert_same_outputs,
    body_twin,
    draw_vectors_apart,
    gradients,
    load_twin,
    make_body,
    make_masked_lm,
    make_pair,
    masked_lm_twin,
    pretraining_twin,
    stock,
    stock_detector,
)

ROWS, CHOICES, C = 6, 3, 5
SHARED = replace(SHAPE, initializer_range=0.2)  # at which no attention is even, and yet tokens do not grow alike
VARIANTS = {
    "grouped": replace(SHARED, num_hidden_groups=3),
    "inner-grouped": replace(SHARED, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
    "unshared": replace(SHARED, num_hidden_groups=SHARED.num_hidden_layers),
    "one layer": replace(SHARED, num_hidden_layers=1),
    "E = H": replace(SHARED, embedding_size=SHARED.hidden_size),
    "gelu": replace(SHARED, hidden_act="gelu"),
    "relu": replace(SHARED, hidden_act="relu"),
}
BASE_V2 = ModelConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
LENGTHS = (L, 8, 3, 11, 1, 6)


class Twins(NamedTuple):
    ours: Model
    stock: nn.Module

    def to(self, dtype: torch.dtype) -> Twins:
        return Twins(self.ours.to(dtype), self.stock.to(dtype))


Make = Callable[[ModelConfig], Model]
Twin = Callable[[Any], nn.Module]


def task(kind: str, num_labels: int) -> tuple[Make, Twin]:
    return lambda config: make_task_model(TaskHead(kind, num_labels), config), task_twin


def task_twin(ours: TaskModel) -> nn.Module:
    return load_twin(
        getattr(transformers, ours.head.architecture)(stock(ours.config, num_labels=ours.head.num_labels)), ours
    )


HEADS: dict[str, tuple[Make, Twin]] = {
    "body with pooler": (partial(make_body, with_pooler=True), body_twin),
    "body without pooler": (partial(make_body, with_pooler=False), body_twin),
    "pretraining": (partial(make_masked_lm, with_sentence_order=True), pretraining_twin),
    "masked lm": (partial(make_masked_lm, with_sentence_order=False), masked_lm_twin),
    "detector": (lambda config: make_pair(config).discriminator, stock_detector),
    "sequence": task("sequence", C),
    "choice": task("choice", 1),
    "token": task("token", C),
    "span": task("span", 2),
}


def make_twins(head: str, config: ModelConfig, dtype: torch.dtype) -> Twins:
    """Ours and the stock class on the same weights."""
    make, twin = HEADS[head]
    ours = make(config)
    draw_vectors_apart(ours)
    return Twins(ours, twin(ours)).to(dtype)


def noise(part: int, *shape: int) -> Tensor:
    """Int64 numbers of any size, the same in every call."""
    row, place = torch.arange(shape[0]), torch.arange(torch.Size(shape[1:]).numel())
    return bits(part, Stream.EXAMPLE, row[:, None], place).view(shape)


def make_masks() -> dict[str, Tensor | None]:
    """Masks [ROWS, L] by name; the ragged one has a hole too, in an example that continues after it."""
    place = torch.arange(L)
    ragged = (place < torch.tensor(LENGTHS)[:, None]) & ~((place == 5) & (torch.arange(ROWS) == 3)[:, None])
    full = torch.ones(ROWS, L, dtype=torch.bool)
    return {"none given": None, "full": full, "ragged": ragged, "one token a row": full & (place == 0)}


MASKS = make_masks()
TYPES = noise(1, ROWS, L) % 2


def inputs(head: str, model: Model, mask: Tensor | None) -> dict[str, Tensor]:
    """Under the stock names; rows of multiple choice stand in threes."""
    given = {"input_ids": 1 + noise(6, ROWS, L) % (model.config.vocab_size - 1), "token_type_ids": TYPES}
    given |= {} if mask is None else {"attention_mask": mask}
    return {name: rows.view(-1, CHOICES, L) if head == "choice" else rows for name, rows in given.items()}


def run_stock(head: str, twins: Twins, mask: Tensor | None) -> dict[str, Tensor]:
    """The outputs of the stock class under our names, with the last hidden state where it is among them."""
    found = twins.stock(**inputs(head, twins.ours, mask), output_hidden_states=True)
    renamed = {"prediction_logits": "logits"}
    given = {renamed.get(name, name): value for name, value in found.items() if isinstance(value, Tensor)}
    states = found.get("hidden_states")
    return given if states is None else {**given, "last_hidden_state": states[-1]}


def run_ours(head: str, model: Model, mask: Tensor | None) -> dict[str, Tensor]:
    """The outputs of our model in the shapes of the stock class."""
    given = {name: rows.flatten(0, -2) for name, rows in inputs(head, model, mask).items()}
    mask = given.get("attention_mask", torch.ones(ROWS, L, dtype=torch.bool))
    found = outputs(model, given["input_ids"], mask, given["token_type_ids"])
    return {**found, "logits": found["logits"].view(-1, CHOICES)} if head == "choice" else found


def loss_of(found: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """A sum of the heads' outputs, or of an encoder's own, that weighs every number differently."""
    heads = sorted(name for name in names if name != "last_hidden_state") or ["last_hidden_state"]
    numbers = torch.cat([found[name].flatten() for name in heads])
    position = torch.arange(len(numbers))
    return (numbers * (uniform(bits(7, Stream.EXAMPLE, position, position)) - 0.5)).sum()


def own_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Gradients under the names of our modules, but for poolers, which are called after the body in both."""
    plain = {name.removeprefix("electra."): gradient for name, gradient in gradients(module).items()}
    return {name.replace("sentence_order.pooler.", "pooler."): gradient for name, gradient in plain.items()}


def assert_same_everything(head: str, twins: Twins, mask: Tensor | None) -> None:
    """AssertionError unless the outputs and the gradients of a sum of them are the stock class's."""
    ours, theirs = run_ours(head, twins.ours, mask), run_stock(head, twins, mask)
    assert ours.keys() == theirs.keys() | {"last_hidden_state"}
    for name, value in theirs.items():
        assert_same_outputs(ours[name], value)
    for found, model in ((ours, twins.ours), (theirs, twins.stock)):
        model.zero_grad()
        loss_of(found, theirs).backward()
    assert_same_gradients(own_gradients(twins.ours), own_gradients(twins.stock))


@pytest.mark.parametrize("config", [SHARED, VARIANTS["unshared"]], ids=["shared", "unshared"])
def test_tokens_of_the_compared_models_differ(config: ModelConfig) -> None:
    # Were they alike, a token put in another's place would go unseen, and softmax over places would have no gradient.
    states = run_ours("masked lm", make_twins("masked lm", config, torch.float32).ours, None)["last_hidden_state"]
    assert states.std((0, 1)).mean() > 0.05 * states.std()


@pytest.mark.parametrize(
    ("head", "dtype"),
    [
        *((head, torch.float64) for head in HEADS),
        *((head, torch.float32) for head in ("pretraining", "detector", "span")),
    ],
    ids=str,
)
def test_head_equals_its_stock_class(head: str, dtype: torch.dtype) -> None:
    assert_same_everything(head, make_twins(head, SHARED, dtype), MASKS["ragged"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_shape_is_computed_as_in_stock(variant: str) -> None:
    assert_same_everything("pretraining", make_twins("pretraining", VARIANTS[variant], torch.float64), MASKS["ragged"])


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "ragged"])
def test_mask_is_read_as_in_stock(mask: str) -> None:
    assert_same_everything("pretraining", make_twins("pretraining", SHARED, torch.float64), MASKS[mask])


@pytest.mark.slow
def test_pretraining_model_equals_stock_at_the_shape_of_base_v2() -> None:
    assert_same_everything("pretraining", make_twins("pretraining", BASE_V2, torch.float32), MASKS["ragged"])


def test_ids_in_the_padding_change_no_real_token() -> None:
    ours, mask = make_twins("detector", SHARED, torch.float64).ours, MASKS["ragged"]
    given = inputs("detector", ours, mask)
    noisy = given | {"input_ids": torch.where(mask, given["input_ids"], 7)}
    plain, other = (outputs(ours, **each)["logits"] for each in (given, noisy))
    assert torch.equal(plain[mask], other[mask])


# Planted: the other GELU (a stock port shipped that), another epsilon, a layer too few: the size of fault that the
# comparison is for must not be lost in its tolerance.
@pytest.mark.parametrize(
    "change", [{"hidden_act": "gelu"}, {"layer_norm_eps": 1e-5}, {"num_hidden_layers": 5}], ids=str
)
def test_comparison_rejects_a_twin_of_another_shape(change: dict[str, object]) -> None:
    ours = make_masked_lm(SHARED, with_sentence_order=False).double()
    with pytest.raises(AssertionError):
        assert_same_everything("masked lm", Twins(ours, masked_lm_twin(ours, **change).double()), MASKS["ragged"])


def test_comparison_of_gradients_rejects_a_detached_branch() -> None:
    # Planted: one matrix gets nine tenths of its gradient, as when one of many layers is detached.
    ours = make_twins("detector", SHARED, torch.float32).ours
    loss_of(run_ours("detector", ours, MASKS["ragged"]), ["logits"]).backward()
    right = gradients(ours)
    name = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    with pytest.raises(AssertionError, match="ffn"):
        assert_same_gradients(right | {name: 0.9 * right[name]}, right)


class AtTheEnd(SentenceOrderHead):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states[:, -1:])


def test_comparison_rejects_a_head_that_reads_the_last_position() -> None:
    twins = make_twins("pretraining", SHARED, torch.float64)
    planted = make_masked_lm(SHARED)
    planted.sentence_order = AtTheEnd(SHARED)
    planted.load_state_dict(twins.ours.state_dict())
    with pytest.raises(AssertionError):
        assert_same_everything("pretraining", Twins(planted.double(), twins.stock), MASKS["ragged"])
