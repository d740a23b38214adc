"""Every head has the outputs and gradients of its stock class, for every sharing of layers and mask
(law 1).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

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
from tests.model.twins import (
    SHAPE,
    L,
    assert_same_gradients,
    make_encoder,
    make_masked_lm,
    make_pair,
)

B, CHOICES, C = 6, 3, 5
# Wide enough for uneven attention, without hidden states becoming equal.
SHARED = replace(SHAPE, initializer_range=0.2)
VARIANTS = {
    "grouped": {"num_hidden_groups": 3},
    "inner-grouped": {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "unshared": {"num_hidden_groups": SHARED.num_hidden_layers},
    "one layer": {"num_hidden_layers": 1},
    "E = H": {"embedding_size": SHARED.hidden_size},
    "gelu": {"hidden_act": "gelu"},
    "relu": {"hidden_act": "relu"},
    "epsilon": {"layer_norm_eps": 0.01},
}
LENGTHS = (L, 8, 3, 11, 1, 6)


def task_twin(ours: TaskModel) -> nn.Module:
    config = twins.stock(ours.config, num_labels=ours.head.num_labels)
    return twins.load_twin(getattr(transformers, ours.head.architecture)(config), ours)


HEADS: dict[str, tuple[Callable[..., Model], Callable[..., nn.Module]]] = {
    "encoder with pooler": (partial(make_encoder, with_pooler=True), twins.encoder_twin),
    "encoder without pooler": (partial(make_encoder, with_pooler=False), twins.encoder_twin),
    "pretraining": (make_masked_lm, twins.masked_lm_twin),
    "masked lm": (partial(make_masked_lm, with_sentence_order=False), twins.masked_lm_twin),
    "discriminator": (lambda shape: make_pair(shape).discriminator, twins.stock_discriminator),
}
for kind, count in {"sequence": C, "choice": 1, "token": C, "span": 2}.items():
    HEADS[kind] = (partial(make_task_model, TaskHead(kind, count)), task_twin)


def make_twins(head: str, config: ModelConfig = SHARED, dtype: torch.dtype = torch.float64) -> Any:
    """Our model and its stock class with the same weights."""
    make, twin = HEADS[head]
    ours = make(config)
    return ours.to(dtype), twin(ours).to(dtype)


def noise(part: int) -> Tensor:
    """Random int64 [B, L] of any size, the same in every call."""
    return bits(part, Stream.EXAMPLE, torch.arange(B)[:, None], torch.arange(L))


FULL = torch.ones(B, L, dtype=torch.bool)
# Not at the end.
HOLE = torch.zeros_like(FULL).index_put((torch.tensor(3), torch.tensor(5)), torch.tensor(True))
RAGGED = (torch.arange(L) < torch.tensor(LENGTHS)[:, None]) & ~HOLE
MASKS = {"none given": None, "full": FULL, "one token per sequence": FULL & (torch.arange(L) == 0)}


def inputs(head: str, mask: Tensor | None) -> dict[str, Tensor]:
    """Inputs under the stock names; for multiple choice [B / CHOICES, CHOICES, L]."""
    values = {"input_ids": 1 + noise(6) % (SHARED.vocab_size - 1), "token_type_ids": noise(1) % 2}
    if mask is not None:
        values["attention_mask"] = mask
    shape = (-1, CHOICES, L) if head == "choice" else (-1, L)
    return {name: value.view(shape) for name, value in values.items()}


def run_stock(head: str, model: nn.Module, mask: Tensor | None) -> dict[str, Tensor]:
    """Outputs of the stock class under our names, with the last hidden states if any."""
    actual = model(**inputs(head, mask), output_hidden_states=True)
    tensors = {name.removeprefix("prediction_"): value for name, value in actual.items()}
    if "hidden_states" in tensors:
        tensors["last_hidden_state"] = tensors.pop("hidden_states")[-1]
    return tensors


def run_ours(head: str, model: Model, mask: Tensor | None) -> dict[str, Tensor]:
    """Outputs of our model in the shapes of the stock class."""
    actual = outputs(model, **inputs("", FULL if mask is None else mask))
    if head == "choice":
        actual["logits"] = actual["logits"].view(-1, CHOICES)
    return actual


def loss_of(results: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Weighted sum of the heads' outputs, or of the last hidden states; every value has another
    weight.
    """
    heads = sorted({*names} - {"last_hidden_state"}) or ["last_hidden_state"]
    numbers = torch.cat([results[name].flatten() for name in heads])
    position = torch.arange(len(numbers))
    return (numbers * (uniform(bits(7, Stream.EXAMPLE, position, position)) - 0.5)).sum()


def assert_same_everything(
    head: str, mask: Tensor | None = RAGGED, config: ModelConfig = SHARED, **options: Any
) -> None:
    """Assert that the outputs, and the gradients of loss_of, equal those of the stock class."""
    model, stock = make_twins(head, config, **options)
    ours, theirs = run_ours(head, model, mask), run_stock(head, stock, mask)
    assert ours.keys() == theirs.keys() | {"last_hidden_state"}
    for name, value in theirs.items():
        twins.assert_same_outputs(ours[name], value)
    for results in (ours, theirs):
        loss_of(results, theirs).backward()
    assert_same_gradients(twins.gradients(model), twins.gradients(stock))


@pytest.mark.parametrize("head", HEADS)
def test_head_equals_its_stock_class(head: str) -> None:
    assert_same_everything(head)


def test_pretraining_model_in_float32_equals_stock() -> None:
    assert_same_everything("pretraining", dtype=torch.float32)


@pytest.mark.parametrize("head", ["pretraining", "discriminator"])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_configuration_equals_stock(changes: dict[str, Any], head: str) -> None:
    assert_same_everything(head, config=replace(SHARED, **changes))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_mask_equals_stock(mask: Tensor | None) -> None:
    assert_same_everything("pretraining", mask)
