"""TaskObjective: losses, counts, and invariances of the loss."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.model.task_model import TaskHead, TaskModel
from electra_albert.tasks.kinds import TaskObjective
from tests.objectives.test_static_shapes import ShapeTrace

SHAPE = ModelConfig(
    vocab_size=53,
    embedding_size=7,
    hidden_size=12,
    intermediate_size=17,
    num_hidden_layers=2,
    num_attention_heads=3,
    max_position_embeddings=32,
    initializer_range=0.3,
)
ROWS, LENGTH, CLASSES = 6, 11, 3
KINDS = {
    "sequence": torch.tensor([0, 2, 1, IGNORED_LABEL, 2, 0]),
    "regression": torch.tensor([0.5, 2.0, float(IGNORED_LABEL), 1.0, 5.0, 0.0]),
    "multi_label": (torch.arange(ROWS * CLASSES) % 4 < 2).double().view(ROWS, CLASSES),
    "choice": torch.tensor([1, 0]),
    "span": torch.tensor([[0, 0], [2, 4], [3, 3], [1, 2], [0, 0], [4, 4]]),
    "token": torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % CLASSES,
}
HEADS = {
    "regression": TaskHead("sequence", 1),
    "multi_label": TaskHead("sequence", CLASSES),
    "choice": TaskHead("choice", 1),
    "span": TaskHead("span", 2),
}
HEADS |= {kind: TaskHead(kind, CLASSES) for kind in ("sequence", "token")}


def make_objective(name: str, **options: Any) -> TaskObjective:
    torch.manual_seed(5)
    model = TaskModel(SHAPE, HEADS[name])
    model.initialize()
    return TaskObjective(model.double(), name, **options).eval()


def make_batch(name: str, padding: int = 0, shift: int = 0) -> Batch:
    """Sequences of which the last two are shorter, with `padding` extra columns."""
    lengths = torch.tensor([LENGTH] * 4 + [5] * 2)
    mask = torch.arange(LENGTH + padding) < lengths[:, None]
    ids = 5 + (torch.arange(ROWS * LENGTH) * 7919 + shift) % 48
    labels = KINDS[name]
    if name == "token":
        labels = F.pad(labels, (0, padding)).masked_fill(~mask, IGNORED_LABEL)
    return Batch(
        input_ids=F.pad(ids.view(ROWS, LENGTH), (0, padding)).masked_fill(~mask, 0),
        attention_mask=mask,
        token_type_ids=torch.zeros_like(mask, dtype=torch.int64),
        sentence_order_label=torch.full((ROWS,), IGNORED_LABEL),
        example_id=torch.arange(ROWS),
        labels=labels,
    )


def expected_loss(name: str, outputs: Tensor, batch: Batch) -> Tensor:
    """Reference implementation of the summed loss. outputs [B, ...]."""
    labels = KINDS[name]
    if name == "regression":
        return ((outputs[:, 0] - labels) ** 2).sum()
    if name == "multi_label":
        signs = 2 * labels - 1
        return -(signs * outputs).sigmoid().log().mean(1).sum()
    if name == "choice":
        outputs = outputs.view(2, 3)
    if name == "span":
        total = torch.zeros((), dtype=torch.float64)
        for row, ends in enumerate(labels):
            real = outputs[row][batch.attention_mask[row]].log_softmax(0)  # [length, 2]
            total -= (real[ends[0], 0] + real[ends[1], 1]) / 2
        return total
    remaining = batch.attention_mask if name == "token" else labels != IGNORED_LABEL
    return -outputs[remaining].log_softmax(-1).gather(1, labels[remaining][:, None]).sum()


@pytest.mark.parametrize("name", KINDS)
def test_the_step_of_every_kind_can_be_recorded(name: str) -> None:
    weights = {"class_weights": torch.ones(CLASSES).double()} if name == "sequence" else {}
    traces = []
    for shift in (0, 1):  # of all token ids
        objective = make_objective(name, **weights).train()
        batch = make_batch(name, shift=shift)
        with ShapeTrace() as trace:  # refuses values that are read and copies from the host
            terms = objective(batch)
            torch.stack([terms[name].sum for name in objective.weights]).sum().backward()
        traces.append(trace.steps)
    assert len(traces[0]) > 50
    assert traces[0] == traces[1]


@pytest.mark.parametrize("name", KINDS)
def test_loss_and_count_equal_their_definitions(name: str) -> None:
    objective, batch = make_objective(name), make_batch(name)
    (term_name,) = objective.weights
    term = objective(batch)[term_name]
    outputs = objective.model(*batch[:3])
    torch.testing.assert_close(term.sum, expected_loss(name, outputs, batch), rtol=1e-9, atol=0)
    assert objective.counts(batch) == {term_name: int(term.count)}
    assert int(term.count) == {"sequence": 5, "choice": 2, "token": 54}.get(name, ROWS)


@pytest.mark.parametrize("name", KINDS)
def test_padding_does_not_change_the_terms(name: str) -> None:
    objective = make_objective(name)
    close, wide = (objective(make_batch(name, padding)) for padding in (0, 7))
    for term_name, term in close.items():
        torch.testing.assert_close(wide[term_name].sum, term.sum, rtol=1e-12, atol=1e-12)
        assert int(wide[term_name].count) == int(term.count)


def test_class_weights_change_only_the_training_loss() -> None:
    weights = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    objective, batch = make_objective("sequence", class_weights=weights), make_batch("sequence")
    outputs = objective.outputs(batch)
    for weight in (None, weights):
        term = objective.terms(outputs, batch)["classification_loss"]
        assert term.count == 5
        expected = F.cross_entropy(outputs, KINDS["sequence"], weight, reduction="sum")
        torch.testing.assert_close(term.sum, expected)
        objective.train()
    assert "class_weights" not in objective.state_dict()
