"""Task models: parity of style electra, padding, initialization, layer-wise decay."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from electra_albert.contracts import Batch
from electra_albert.model.task_model import TaskHead, TaskModel, depth_scales
from tests.model.twins import SHAPE, drawn, padded_batch

SENTENCES = TaskHead("sequence", 5)
GROUPED = replace(SHAPE, num_hidden_groups=3, inner_group_num=2)


def make_task_model(head: TaskHead, config: Any = SHAPE, seed: int = 5) -> TaskModel:
    def make() -> TaskModel:
        model = TaskModel(config, head)
        model.initialize()
        return model

    return drawn(make, seed)


def inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.input_ids, batch.attention_mask, batch.token_type_ids


def test_outputs_under_autocast_are_not_rounded() -> None:
    # Regression: in bfloat16, which has eight bits, a regression could not return 157.
    with torch.autocast("cpu", torch.bfloat16):
        outputs = make_task_model(SENTENCES)(*inputs(padded_batch()))
    assert not torch.equal(outputs, outputs.bfloat16().float())


def test_new_heads_are_normal_with_zero_biases() -> None:
    model = TaskModel(replace(SHAPE, hidden_size=300, initializer_range=0.02), SENTENCES)
    torch.manual_seed(1)
    model.initialize()
    for layer in (model.output, model.pooler):
        assert not layer.bias.any()
        # 4 standard errors of the standard deviation
        assert (
            abs(float(layer.weight.detach().std()) / 0.02 - 1)
            < 4 / (2 * layer.weight.numel()) ** 0.5
        )


def test_learning_rates_decay_from_the_head_to_the_embeddings() -> None:
    block = "encoder.albert_layer_groups.{}.albert_layers.{}.ffn.weight".format
    depths = dict.fromkeys(
        ("classifier.weight", "pooler.bias", "electra_classifier.weight", "qa_outputs.bias"), 0
    )
    depths |= {block(2, 1): 1, block(2, 0): 2, block(1, 1): 3, block(0, 1): 5, block(0, 0): 6}
    depths |= {"encoder.embedding_hidden_mapping_in.weight": 7}
    depths |= {"embeddings.word_embeddings.weight": 8, "embeddings.LayerNorm.bias": 8}
    assert depth_scales(depths, GROUPED, 0.8) == {
        name: 0.8**depth for name, depth in depths.items()
    }
    assert {*depth_scales(depths, GROUPED, 1.0).values()} == {1.0}
    for unknown in ("decoder.weight", block(3, 0), block(0, 2)):
        with pytest.raises(ValueError, match=unknown):
            depth_scales([unknown], GROUPED, 0.8)


def test_impossible_head_is_refused() -> None:
    for arguments in (
        ("choice", 2),
        ("tagging", 2),
        ("sequence", 2, "bert"),
        ("sequence", 2, "albert", 1.0),
    ):
        with pytest.raises(ValueError, match=r"labels|tagging|bert|dropout"):
            TaskHead(*arguments)  # type: ignore[arg-type]
