"""Task models: parity of style electra, padding, initialization, layer-wise decay."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from electra_albert.model.task_model import TaskHead, TaskModel, depth_scales
from tests.model.twins import SHAPE, drawn, padded_batch
from tests.refusals import rows

SENTENCES = TaskHead("sequence", 5)
GROUPED = replace(SHAPE, num_hidden_groups=3, inner_group_num=2)


def make_task_model(head: TaskHead, config: Any = SHAPE) -> TaskModel:
    def make() -> TaskModel:
        model = TaskModel(config, head)
        model.initialize()
        return model

    return drawn(make)


def test_outputs_under_autocast_are_not_rounded() -> None:
    # Regression: in bfloat16, which has eight bits, a regression could not return 157.
    with torch.autocast("cpu", torch.bfloat16):
        outputs = make_task_model(SENTENCES)(*padded_batch()[:3])
    assert not torch.equal(outputs, outputs.bfloat16().float())


def test_new_heads_are_normal_with_zero_biases() -> None:
    model = TaskModel(replace(SHAPE, hidden_size=300, initializer_range=0.02), SENTENCES)
    torch.manual_seed(1)
    model.initialize()
    for layer in (model.output, model.pooler):
        assert not layer.bias.any()
        allowed = 4 / (2 * layer.weight.numel()) ** 0.5  # 4 standard errors
        assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=allowed)


# Parameters by their depth.
DEPTHS = """
0 | classifier.weight pooler.bias electra_classifier.weight qa_outputs.bias
1 | encoder.albert_layer_groups.2.albert_layers.1.ffn.weight
2 | encoder.albert_layer_groups.2.albert_layers.0.ffn.weight
3 | encoder.albert_layer_groups.1.albert_layers.1.ffn.weight
6 | encoder.albert_layer_groups.0.albert_layers.0.ffn.weight
7 | encoder.embedding_hidden_mapping_in.weight
8 | embeddings.word_embeddings.weight embeddings.LayerNorm.bias
"""
UNKNOWN = """
decoder.weight
encoder.albert_layer_groups.3.albert_layers.0.ffn.weight
encoder.albert_layer_groups.0.albert_layers.2.ffn.weight
"""


def test_learning_rates_decay_from_the_head_to_the_embeddings() -> None:
    for depth, names in rows(DEPTHS):
        expected = dict.fromkeys(names.split(), 0.8 ** int(depth))
        assert depth_scales(expected, GROUPED, 0.8) == expected
        assert {*depth_scales(expected, GROUPED, 1.0).values()} == {1.0}
    for unknown in UNKNOWN.split():
        with pytest.raises(ValueError, match=unknown):
            depth_scales([unknown], GROUPED, 0.8)


REFUSED = """
labels  | {"kind": "choice", "num_labels": 2}
tagging | {"kind": "tagging", "num_labels": 2}
bert    | {"kind": "sequence", "num_labels": 2, "style": "bert"}
dropout | {"kind": "sequence", "num_labels": 2, "dropout": 1.0}
"""


@pytest.mark.parametrize(("word", "options"), rows(REFUSED))
def test_impossible_head_is_refused(word: str, options: str) -> None:
    with pytest.raises(ValueError, match=word):
        TaskHead(**json.loads(options))
