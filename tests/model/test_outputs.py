"""What `outputs` gives follows from what is asked: nothing is guessed, and asking for more changes no number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_albert.hub.losses import detection_loss, sequence_loss, span_loss
from electra_albert.hub.outputs import Labels, Model, Outputs, outputs
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, B, L, make_body, make_masked_lm, make_pair, padded_batch

BATCH = padded_batch()
INPUTS = (BATCH.input_ids, BATCH.attention_mask, BATCH.token_type_ids)
GROUPED = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
ASKED = {"output_hidden_states": True, "output_attentions": True}


def make_models() -> dict[str, Model]:
    heads = {
        "sequence": TaskHead("sequence", 5),
        "no pooler": TaskHead("sequence", 5, "electra"),
        "choice": TaskHead("choice", 1),
        "span": TaskHead("span", 2),
        "token": TaskHead("token", 7),
    }
    pair = make_pair(GROUPED, with_sentence_order=True)
    return {
        "body": make_body(GROUPED, with_pooler=False),
        "pooled": make_body(GROUPED, with_pooler=True),
        "generator": make_masked_lm(GROUPED, with_sentence_order=False),
        "pretraining": make_masked_lm(GROUPED),
        "detector": pair.discriminator,
        **{name: make_task_model(head, GROUPED) for name, head in heads.items()},
    }


MODELS = make_models()


def inputs(name: str) -> tuple[Tensor, ...]:
    """One question of three options for multiple choice, three rows for everything else."""
    return tuple(tensor[None] for tensor in INPUTS) if name == "choice" else INPUTS


def assert_identical(found: Outputs, expected: Outputs) -> None:
    for name, value, wanted in zip(Outputs._fields, found, expected, strict=True):
        pair = zip(value, wanted, strict=True) if isinstance(wanted, tuple) else [(value, wanted)]
        for tensor, other in pair:
            assert (tensor is None) == (other is None), name
            assert tensor is None or torch.equal(tensor, other), name


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_models_own_forward_to_the_bit(name: str) -> None:
    model, found = MODELS[name], outputs(MODELS[name], *inputs(name))
    if isinstance(model, TaskModel):
        own = model(*INPUTS)[0]
        parts = {"span": lambda: torch.stack([found.start_logits, found.end_logits], -1)}
        given = parts.get(name, lambda: found.logits)().view(own.shape)
    elif name in ("generator", "pretraining"):
        own, given = model.logits(model(*INPUTS)), found.logits
    else:
        own, given = model(*INPUTS), found.logits if name == "detector" else found.last_hidden_state
    assert torch.equal(given, own)


@pytest.mark.parametrize("name", MODELS)
def test_asking_for_states_and_attentions_changes_nothing_else(name: str) -> None:
    plain, asked = outputs(MODELS[name], *inputs(name)), outputs(MODELS[name], *inputs(name), **ASKED)
    assert plain.hidden_states is None
    assert plain.attentions is None
    assert_identical(asked._replace(hidden_states=None, attentions=None), plain)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_given_that_the_model_has_no_head_for(name: str) -> None:
    given = {field for field, value in outputs(MODELS[name], *inputs(name))._asdict().items() if value is not None}
    own = {"body": set(), "pooled": {"pooler_output"}, "span": {"start_logits", "end_logits"}}
    own |= {"pretraining": {"logits", "sop_logits"}, "detector": {"logits", "sop_logits"}}
    assert given == {"last_hidden_state"} | own.get(name, {"logits"})


def test_states_are_the_mapped_embeddings_and_every_blocks_attentions_one_a_block() -> None:
    found = outputs(MODELS["body"], *INPUTS, **ASKED)
    runs = GROUPED.num_hidden_layers * GROUPED.inner_group_num
    assert found.hidden_states is not None
    assert found.attentions is not None
    assert (len(found.hidden_states), len(found.attentions)) == (runs + 1, runs)
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
    assert {state.shape for state in found.hidden_states} == {(B, L, SHAPE.hidden_size)}
    assert {layer.shape for layer in found.attentions} == {(B, SHAPE.num_attention_heads, L, L)}


def test_attention_sums_to_one_over_attended_tokens_and_is_zero_elsewhere() -> None:
    found = outputs(MODELS["body"], *INPUTS, output_attentions=True)
    assert found.hidden_states is None
    for layer in found.attentions or ():
        torch.testing.assert_close(layer.sum(-1), torch.ones_like(layer[..., 0]))
        assert not layer.masked_select(~BATCH.attention_mask[:, None, None, :]).any()


@pytest.mark.parametrize("name", MODELS)
def test_mask_and_types_left_out_are_all_ones_and_all_zeros(name: str) -> None:
    ids = inputs(name)[0]
    assert_identical(
        outputs(MODELS[name], ids), outputs(MODELS[name], ids, torch.ones_like(ids), torch.zeros_like(ids))
    )


def test_mask_of_zeros_and_ones_is_one_of_truth_values() -> None:
    ids, mask, types = INPUTS
    assert_identical(outputs(MODELS["generator"], ids, mask.long(), types), outputs(MODELS["generator"], *INPUTS))


def test_options_of_multiple_choice_stand_in_rows_of_their_question() -> None:
    ids = BATCH.input_ids.repeat(2, 1).view(2, 3, L)
    found = outputs(MODELS["choice"], ids)
    alone = torch.stack([outputs(MODELS["choice"], ids[:1, option : option + 1]).logits[0, 0] for option in range(3)])
    torch.testing.assert_close(found.logits, alone.expand(2, 3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_labels_of_whole_numbers_are_classes_and_others_claims_of_each_class(dtype: torch.dtype) -> None:
    logits = torch.linspace(-2, 3, 12).view(3, 4)
    classes = torch.tensor([2, 0, 3])
    picked = logits.log_softmax(-1)[torch.arange(3), classes]
    torch.testing.assert_close(sequence_loss(logits, classes.to(dtype)), -picked.mean())
    claims = torch.zeros(3, 4).scatter(1, classes[:, None], 1.0)
    each = torch.where(claims.bool(), logits.sigmoid(), 1 - logits.sigmoid()).log()
    torch.testing.assert_close(sequence_loss(logits, claims), -each.mean())
    torch.testing.assert_close(sequence_loss(logits, claims.bool()), -each.mean())


@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_one_column_is_a_number_to_be_met_whatever_the_labels_are(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits = torch.tensor([[1.0], [2.0], [4.0]], requires_grad=True)
    loss = sequence_loss(logits, torch.tensor([1, 0, 1]).to(dtype).view(shape))
    loss.backward()
    assert float(loss.detach()) == pytest.approx((0 + 4 + 9) / 3)
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0], [4 / 3], [2.0]]))


def test_detection_counts_attended_tokens_only() -> None:
    logits, labels = torch.tensor([[0.5, -1.0, 30.0]]), torch.tensor([[1, 0, 0]])
    mask = torch.tensor([[True, True, False]])
    wanted = -(torch.tensor(0.5).sigmoid().log() + torch.tensor(1.0).sigmoid().log()) / 2
    torch.testing.assert_close(detection_loss(logits, labels, mask), wanted)


def test_span_that_ends_outside_the_row_counts_by_its_start_alone() -> None:
    logits = torch.linspace(-1, 1, 2 * 5).view(2, 5)
    inside = span_loss(logits, logits, torch.tensor([1, 2]), torch.tensor([3, 4]))
    first_end = -logits.log_softmax(-1)[0, 3]
    starts = -(logits.log_softmax(-1)[0, 1] + logits.log_softmax(-1)[1, 2]) / 2
    torch.testing.assert_close(
        span_loss(logits, logits, torch.tensor([[1], [2]]), torch.tensor([[3], [9]])), (starts + first_end) / 2
    )
    both_ends = (first_end - logits.log_softmax(-1)[1, 4]) / 2
    torch.testing.assert_close(inside, (starts + both_ends) / 2)


ROW = torch.zeros(B, dtype=torch.int64)
REFUSED: dict[str, tuple[str, Labels, str]] = {
    "of an encoder": ("body", Labels(ROW), "has no loss"),
    "of tokens without order": (
        "pretraining",
        Labels(BATCH.input_ids),
        "are labels and sentence_order_label; given",
    ),
    "of order for a detector": ("detector", Labels(sentence_order_label=ROW), "given: sentence_order_label"),
    "of a start alone": ("span", Labels(start_positions=ROW), "start_positions and end_positions; given: start"),
    "of places for classes": ("sequence", Labels(ROW, None, ROW, ROW), "are labels; given: labels and start_positions"),
    "of nothing": ("token", Labels(), "given: none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_labels_that_are_not_the_models_are_refused(case: str) -> None:
    name, labels, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        outputs(MODELS[name], *inputs(name), labels=labels)


SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "options without a question": ("choice", {"input_ids": BATCH.input_ids}, "have 3 dimensions, not 2"),
    "one row without a batch": ("token", {"input_ids": BATCH.input_ids[0]}, "have 2 dimensions, not 1"),
    "mask of other rows": ("body", {"input_ids": BATCH.input_ids, "attention_mask": INPUTS[1].T}, "shape of input_ids"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_inputs_of_another_shape_are_refused(case: str) -> None:
    name, given, message = SHAPES[case]
    with pytest.raises(ValueError, match=message):
        outputs(MODELS[name], **given)


@pytest.mark.parametrize("labels", [torch.zeros(B, 4), torch.zeros(B + 1, 5)], ids=["classes", "rows"])
def test_claims_of_other_classes_or_rows_are_refused(labels: Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit logits"):
        outputs(MODELS["sequence"], *INPUTS, labels=Labels(labels))
