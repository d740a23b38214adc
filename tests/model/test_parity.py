"""Every head gives the outputs, the loss and the gradients of its stock twin, whatever is shared or masked (law 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import IGNORED_LABEL
from electra_albert.hub.outputs import Labels, Model, outputs
from electra_albert.keyed_random import Stream, bits, uniform
from electra_albert.model.heads import SentenceOrderHead
from electra_albert.model.task_model import TaskHead, TaskModel
from electra_albert.presets import PRESETS
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
# The wider presets differ from large in numbers only; their weights alone would take a test past its second and memory.
WIDTHS = {
    name: replace(
        PRESETS[name].model, vocab_size=53, max_position_embeddings=17, num_hidden_layers=2, num_hidden_groups=1
    )
    for name in ("tiny", "small", "base", "large")
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
        getattr(transformers, ours.architecture)(stock(ours.config, num_labels=ours.head.num_labels)), ours
    )


HEADS: dict[str, tuple[Make, Twin]] = {
    "body with pooler": (partial(make_body, with_pooler=True), body_twin),
    "body without pooler": (partial(make_body, with_pooler=False), body_twin),
    "pretraining": (partial(make_masked_lm, with_sentence_order=True), pretraining_twin),
    "masked lm": (partial(make_masked_lm, with_sentence_order=False), masked_lm_twin),
    "detector": (lambda config: make_pair(config).discriminator, stock_detector),
    "classes": task("sequence", C),
    "claims": task("sequence", C),
    "number": task("sequence", 1),
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
    """By name, [ROWS, L]; the ragged one has a hole too, in a row that goes on after it."""
    place = torch.arange(L)
    ragged = (place < torch.tensor(LENGTHS)[:, None]) & ~((place == 5) & (torch.arange(ROWS) == 3)[:, None])
    full = torch.ones(ROWS, L, dtype=torch.bool)
    return {"none given": None, "full": full, "ragged": ragged, "one token a row": full & (place == 0)}


MASKS = make_masks()
TYPES = noise(1, ROWS, L) % 2
TOKEN_LABELS = torch.where(noise(2, ROWS, L) % 3 == 0, noise(3, ROWS, L) % C, IGNORED_LABEL)
ORDER = torch.tensor([0, 1, 1, IGNORED_LABEL, 0, 1])
# Of the spans some begin or end outside of the row, as where an answer is cut off.
LABELS = {
    "pretraining": Labels(TOKEN_LABELS, ORDER),
    "masked lm": Labels(TOKEN_LABELS),
    "detector": Labels(noise(4, ROWS, L) % 2),
    "classes": Labels(torch.tensor([4, 0, IGNORED_LABEL, 2, 2, 1])),
    "claims": Labels((noise(5, ROWS, C) % 2).float()),
    "number": Labels(torch.tensor([0.5, -2.0, 3.0, 0.0, 1.25, 4.0])),
    "choice": Labels(torch.tensor([2, 0])),
    "token": Labels(TOKEN_LABELS),
    "span": Labels(
        start_positions=torch.tensor([0, 3, L, 5, -1, 2]), end_positions=torch.tensor([L - 1, L + 4, 3, 7, 0, 2])
    ),
}


def inputs(head: str, model: Model, mask: Tensor | None) -> dict[str, Tensor]:
    """Under the stock names; rows of multiple choice stand in threes."""
    given = {"input_ids": 1 + noise(6, ROWS, L) % (model.config.vocab_size - 1), "token_type_ids": TYPES}
    given |= {} if mask is None else {"attention_mask": mask}
    return {name: rows.view(-1, CHOICES, L) if head == "choice" else rows for name, rows in given.items()}


def run_stock(head: str, twins: Twins, mask: Tensor | None) -> dict[str, Any]:
    """What the stock class gives, under our names."""
    given = {name: value for name, value in LABELS.get(head, Labels())._asdict().items() if value is not None}
    found = twins.stock(**inputs(head, twins.ours, mask), **given, output_hidden_states=True, output_attentions=True)
    return {"logits" if name == "prediction_logits" else name: value for name, value in found.items()}


def run_ours(head: str, model: Model, mask: Tensor | None) -> dict[str, Any]:
    """What our model gives."""
    asked = {"output_hidden_states": True, "output_attentions": True}
    found = outputs(model, **inputs(head, model, mask), labels=LABELS.get(head), **asked)
    return {name: value for name, value in found._asdict().items() if value is not None}


def loss_of(found: Mapping[str, Any]) -> Tensor:
    """The model's own; of an encoder alone, one that weighs every number of its outputs differently."""
    if found.get("loss") is not None:
        return found["loss"]
    parts = [found[name] for name in ("last_hidden_state", "pooler_output") if found.get(name) is not None]
    numbers = torch.cat([part.flatten() for part in parts])
    place = torch.arange(len(numbers))
    return (numbers * (uniform(bits(7, Stream.EXAMPLE, place, place)) - 0.5)).sum()


def own_gradients(module: nn.Module) -> dict[str, Tensor]:
    """Gradients under the names of our modules, but for poolers, which are called after the body in both."""
    plain = {name.removeprefix("electra."): gradient for name, gradient in gradients(module).items()}
    return {name.replace("sentence_order.pooler.", "pooler."): gradient for name, gradient in plain.items()}


def vanishing(ours: Model) -> set[str]:
    """Whose gradient is zero in exact arithmetic: what moves all options, or all places, alike moves no softmax."""
    if not isinstance(ours, TaskModel) or ours.head.kind not in ("choice", "span"):
        return set()
    names = {f"{ours.head.output_name}.bias"}
    if ours.head.kind == "span" and ours.config.num_hidden_groups == ours.config.num_hidden_layers:
        last = ours.config.num_hidden_groups - 1
        names.add(f"encoder.albert_layer_groups.{last}.albert_layers.0.full_layer_layer_norm.bias")
    return names


def assert_same_values(name: str, ours: Any, stock_value: Any) -> None:
    """AssertionError unless one output, or each of several, is the stock class's."""
    if isinstance(stock_value, tuple):
        for tensor, stock_tensor in zip(ours, stock_value, strict=True):
            assert_same_outputs(tensor, stock_tensor)
    elif name == "loss":  # stock binary cross-entropies round theirs to the float32 of their labels
        assert_same_outputs(ours.to(stock_value.dtype), stock_value)
    else:
        assert_same_outputs(ours, stock_value)


def assert_same_everything(head: str, twins: Twins, mask: Tensor | None) -> None:
    """AssertionError unless outputs, loss and gradients of the loss are the stock class's."""
    ours, theirs = run_ours(head, twins.ours, mask), run_stock(head, twins, mask)
    assert ours.keys() == theirs.keys() | {"last_hidden_state"}
    for name, value in theirs.items():
        assert_same_values(name, ours[name], value)
    twins.ours.zero_grad()
    twins.stock.zero_grad()
    loss_of(ours).backward()
    loss_of(theirs).backward()
    found, wanted = own_gradients(twins.ours), own_gradients(twins.stock)
    whole = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    for name in vanishing(twins.ours):
        rounding = 10 * torch.finfo(whole.dtype).eps * whole.clamp(min=1)  # they are sums of shares of 1
        assert found.pop(name).norm() <= rounding
        assert wanted.pop(name).norm() <= rounding
    assert_same_gradients(found, wanted)


@pytest.mark.parametrize("config", [SHARED, *VARIANTS.values()], ids=["shared", *VARIANTS])
def test_tokens_of_the_compared_models_differ(config: ModelConfig) -> None:
    # Were they alike, a token put in another's place would go unseen, and softmax over places would have no gradient.
    states = run_ours("masked lm", make_twins("masked lm", config, torch.float32).ours, None)["last_hidden_state"]
    assert states.std((0, 1)).mean() > 0.05 * states.std()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_head_equals_its_stock_class(head: str, dtype: torch.dtype) -> None:
    assert_same_everything(head, make_twins(head, SHARED, dtype), MASKS["ragged"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_shape_is_computed_as_in_stock(variant: str) -> None:
    assert_same_everything("pretraining", make_twins("pretraining", VARIANTS[variant], torch.float64), MASKS["ragged"])


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "ragged"])
def test_mask_is_read_as_in_stock(mask: str) -> None:
    assert_same_everything("pretraining", make_twins("pretraining", SHARED, torch.float64), MASKS[mask])


@pytest.mark.parametrize("preset", WIDTHS)
def test_model_of_a_presets_width_equals_stock(preset: str) -> None:
    config = replace(WIDTHS[preset], initializer_range=0.02)
    assert_same_everything("masked lm", make_twins("masked lm", config, torch.float32), MASKS["ragged"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_pretraining_model_equals_stock_at_the_shape_of_base_v2(dtype: torch.dtype) -> None:
    assert_same_everything("pretraining", make_twins("pretraining", BASE_V2, dtype), MASKS["ragged"])


@pytest.mark.parametrize("head", ["masked lm", "detector"])
def test_ids_in_the_padding_change_no_real_token(head: str) -> None:
    ours, mask = make_twins(head, SHARED, torch.float64).ours, MASKS["ragged"]
    given = inputs(head, ours, mask)
    noisy = given | {"input_ids": torch.where(mask, given["input_ids"], 7)}
    plain, other = (outputs(ours, **each).logits for each in (given, noisy))
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_comparison_of_gradients_rejects_a_detached_branch(dtype: torch.dtype) -> None:
    # Planted: one matrix gets nine tenths of its gradient, as when one of many passes is detached.
    ours = make_twins("detector", SHARED, dtype).ours
    loss_of(run_ours("detector", ours, MASKS["ragged"])).backward()
    right = gradients(ours)
    name = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    with pytest.raises(AssertionError, match="ffn"):
        assert_same_gradients(right | {name: 0.9 * right[name]}, right)


class WithoutTanh(SentenceOrderHead):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.classifier(self.pooler(hidden_states[:, 0]))


class AtTheEnd(SentenceOrderHead):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states[:, -1:])


# Planted: a head without its tanh, and one that reads the last position.
@pytest.mark.parametrize("fault", [WithoutTanh, AtTheEnd])
def test_comparison_rejects_a_head(fault: type[SentenceOrderHead]) -> None:
    twins = make_twins("pretraining", SHARED, torch.float64)
    planted = make_masked_lm(SHARED)
    planted.sentence_order = fault(SHARED)
    planted.load_state_dict(twins.ours.state_dict())
    with pytest.raises(AssertionError):
        assert_same_everything("pretraining", Twins(planted.double(), twins.stock), MASKS["ragged"])


FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "states without the first": ("hidden_states", lambda states: states[1:]),
    "first state before the mapping": ("hidden_states", lambda states: (states[1], *states[1:])),
    "attention of keys": ("attentions", lambda layers: tuple(layer.transpose(2, 3) for layer in layers)),
    "one layer's attention everywhere": ("attentions", lambda layers: (layers[0],) * len(layers)),
    "start and end exchanged": ("start_logits", lambda logits: logits.flip(1)),
    "loss of one more row": ("loss", lambda loss: loss * 5 / 6),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_comparison_rejects(fault: str) -> None:
    name, change = FAULTS[fault]
    twins = make_twins("span", VARIANTS["inner-grouped"], torch.float32)
    ours, theirs = (run_ours("span", twins.ours, MASKS["ragged"]), run_stock("span", twins, MASKS["ragged"]))
    assert_same_values(name, ours[name], theirs[name])
    with pytest.raises((AssertionError, ValueError)):
        assert_same_values(name, change(ours[name]), theirs[name])
