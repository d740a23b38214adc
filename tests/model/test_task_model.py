"""A task's model computes what its stock twin does, whatever the padding; its learning rates fall with depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from electra_albert.contracts import Batch
from electra_albert.hub.names import to_stock
from electra_albert.model.task_model import TaskHead, TaskModel, depth_scales
from tests.model.twins import (
    SHAPE,
    B,
    L,
    assert_same_gradients,
    assert_same_outputs,
    gradients,
    load_twin,
    padded_batch,
    stock,
)

HEADS = {
    "sequence": TaskHead("sequence", 5),
    "regression": TaskHead("sequence", 1),
    "choice": TaskHead("choice", 1),
    "span": TaskHead("span", 2),
    "token": TaskHead("token", 7),
    "token, style electra": TaskHead("token", 7, "electra"),
}
ELECTRA_HEADS = {"sequence": TaskHead("sequence", 5, "electra"), "choice": TaskHead("choice", 1, "electra")}
ALL_HEADS = HEADS | {f"{name}, no pooler": head for name, head in ELECTRA_HEADS.items()}
TWO_HEADS = [HEADS["sequence"], HEADS["token, style electra"]]
GROUPED = replace(SHAPE, num_hidden_groups=3, inner_group_num=2)


def make_task_model(head: TaskHead, config: Any = SHAPE, seed: int = 5) -> TaskModel:
    """In eval mode, every parameter drawn, so that none is hidden by a zero or a one."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TaskModel(config, head).eval()
        model.initialize()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, mean=0.5, std=0.2)
    return model


def inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.input_ids, batch.attention_mask, batch.token_type_ids


def stock_outputs(twin: nn.Module, head: TaskHead, batch: Batch) -> Tensor:
    """What the stock class gives, in the shape of ours."""
    rows = [tensor[None] if head.kind == "choice" else tensor for tensor in inputs(batch)]
    found = twin(input_ids=rows[0], attention_mask=rows[1], token_type_ids=rows[2])
    if head.kind == "span":
        return torch.stack([found.start_logits, found.end_logits], dim=-1)  # [B, L, 2]
    return found.logits.view(B, 1) if head.kind == "choice" else found.logits


def weighted(outputs: Tensor, mask: Tensor) -> Tensor:
    """A loss to which every output but those at padding adds with a weight of its own."""
    weight = torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).view(outputs.shape)
    return (outputs * weight * (mask[:, :, None] if outputs.ndim == 3 else 1)).sum()


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_outputs_and_gradients_equal_the_stock_classs(head: TaskHead) -> None:
    ours, batch = make_task_model(head).double(), padded_batch()
    config = stock(SHAPE, num_labels=head.num_labels, classifier_dropout_prob=head.dropout)
    twin = load_twin(getattr(transformers, ours.architecture)(config).double(), ours)
    outputs, wanted = ours(*inputs(batch)), stock_outputs(twin, head, batch)
    assert_same_outputs(outputs[0], wanted)
    weighted(outputs[0], batch.attention_mask).backward()
    weighted(wanted, batch.attention_mask).backward()
    found = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert found.keys() == dict(ours.named_parameters()).keys()
    theirs = {name.removeprefix("sentence_order."): gradient for name, gradient in gradients(twin).items()}
    assert_same_gradients(found, theirs)


@pytest.mark.parametrize("head", ELECTRA_HEADS.values(), ids=ELECTRA_HEADS)
def test_electra_style_puts_one_linear_layer_on_the_stock_encoders_first_token(head: TaskHead) -> None:
    ours, batch = make_task_model(head).double(), padded_batch()
    twin = transformers.AlbertModel(stock(SHAPE), add_pooling_layer=False).double()
    body = {name: tensor for name, tensor in to_stock(ours.state_dict()).items() if name.startswith("albert.")}
    twin.load_state_dict({name.removeprefix("albert."): tensor for name, tensor in body.items()})
    hidden_states = twin.eval()(*inputs(batch)).last_hidden_state
    assert_same_outputs(ours(*inputs(batch))[0], hidden_states[:, 0] @ ours.output.weight.T + ours.output.bias)


@pytest.mark.parametrize("head", TWO_HEADS, ids=["row", "token"])
def test_padding_does_not_change_outputs(head: TaskHead) -> None:
    ours, batch = make_task_model(head).double(), padded_batch()
    outputs = ours(*inputs(batch))[0]
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        alone = ours(*(tensor[row : row + 1, :length] for tensor in inputs(batch)))[0, 0]
        together = outputs[row] if head.kind in ("sequence", "choice") else outputs[row, :length]
        assert_same_outputs(together, alone)


@pytest.mark.parametrize("head", TWO_HEADS, ids=["row", "token"])
def test_outputs_have_their_shape_and_are_float32_under_autocast(head: TaskHead) -> None:
    ours, batch = make_task_model(head), padded_batch()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = ours(*inputs(batch), samples=2)
    shape = (2, B) if head.kind in ("sequence", "choice") else (2, B, L)
    assert outputs.shape == (*shape, head.num_labels)
    assert outputs.dtype == torch.float32


@pytest.mark.parametrize("head", TWO_HEADS, ids=["row", "token"])
def test_dropout_samples_differ_in_training_only(head: TaskHead) -> None:
    ours, batch = make_task_model(replace(head, dropout=0.5), replace(SHAPE, hidden_dropout_prob=0.0)), padded_batch()
    once = ours(*inputs(batch))
    torch.testing.assert_close(ours(*inputs(batch), samples=3), once.expand(3, *once.shape[1:]))
    drawn = ours.train()(*inputs(batch), samples=3)
    assert not any(torch.allclose(drawn[first], drawn[second], atol=1e-4) for first, second in ((0, 1), (0, 2), (1, 2)))


def test_mean_over_dropout_samples_is_the_output_without_dropout() -> None:
    # At p = 0.5 a sample's standard deviation is the norm of weight · feature; 4.5 standard errors are allowed.
    ours, batch, samples = make_task_model(replace(HEADS["token"], dropout=0.5)).double(), padded_batch(), 4000
    undropped = ours(*inputs(batch))[0]
    spread = (ours.encode(*inputs(batch)).square() @ ours.output.weight.square().T).sqrt()  # [B, L, C]
    ours.dropout.train()
    torch.manual_seed(3)
    mean = ours(*inputs(batch), samples=samples).mean(0)
    assert ((mean - undropped).abs() <= 4.5 * spread / samples**0.5).all()


@pytest.mark.parametrize("head", TWO_HEADS, ids=["row", "token"])
def test_new_heads_are_normal_with_zero_biases(head: TaskHead) -> None:
    config = replace(SHAPE, hidden_size=300, initializer_range=0.02)
    model = TaskModel(config, replace(head, num_labels=head.num_labels))
    torch.manual_seed(1)
    model.initialize()
    for layer in (model.output, *([model.pooler] if model.pooler is not None else [])):
        assert not layer.bias.any()
        # 4 standard errors of a standard deviation of so many numbers
        assert abs(float(layer.weight.detach().std()) / 0.02 - 1) < 4 / (2 * layer.weight.numel()) ** 0.5


@pytest.mark.parametrize("head", TWO_HEADS, ids=["row", "token"])
@pytest.mark.parametrize("config", [SHAPE, GROUPED], ids=["one block", "six blocks"])
def test_every_parameter_has_one_learning_rate_and_depth_counts_sets_of_parameters(head: TaskHead, config: Any) -> None:
    names = [name for name, _ in TaskModel(config, head).named_parameters()]
    scales = depth_scales(names, config, 0.5)
    assert list(scales) == names
    blocks = config.num_hidden_groups * config.inner_group_num
    assert {*scales.values()} == {0.5**depth for depth in range(blocks + 3)}


def test_learning_rates_fall_from_the_head_to_the_embeddings() -> None:
    block = "encoder.albert_layer_groups.{}.albert_layers.{}.ffn.weight".format
    depths = {
        "classifier.weight": 0,
        "pooler.bias": 0,
        "electra_classifier.weight": 0,
        "qa_outputs.bias": 0,
        block(2, 1): 1,
        block(2, 0): 2,
        block(1, 1): 3,
        block(0, 1): 5,
        block(0, 0): 6,
        "encoder.embedding_hidden_mapping_in.weight": 7,
        "embeddings.word_embeddings.weight": 8,
        "embeddings.LayerNorm.bias": 8,
    }
    assert depth_scales(depths, GROUPED, 0.8) == {name: 0.8**depth for name, depth in depths.items()}
    assert {*depth_scales(depths, GROUPED, 1.0).values()} == {1.0}


@pytest.mark.parametrize(
    "name", ["encoder.albert_layer_groups.3.albert_layers.0.ffn.weight", "encoder.norm.weight", "head.weight", ""]
)
def test_name_that_stands_nowhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no parameter of a task model"):
        depth_scales([name], GROUPED, 0.8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("choice", 2), "2 labels"),
        (("span", 3), "3 labels"),
        (("sequence", 0), "0 labels"),
        (("tagging", 2), "tagging"),
        (("sequence", 2, "bert"), "neither albert nor electra"),
        (("sequence", 2, "albert", 1.0), "must lie in"),
    ],
)
def test_head_that_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskHead(*arguments)
