"""Variables of Google's TensorFlow 1 checkpoints become stock tensors that compute what Google's code computes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.model.electra import Generator
from electra_albert.model.encoder import Embeddings
from electra_albert.model.huggingface import load_state
from electra_albert.model.tensorflow_names import find_variables, stock_tensors, tensorflow_config
from tests.model.tensorflow_checkpoint import (
    ENCODER,
    made_variables,
    plain_forward,
    published_shapes,
    with_optimizer,
)
from tests.model.twins import SHAPE, padded_batch, stock

SHAPES = {
    "base": SHAPE,
    "grouped": replace(SHAPE, num_hidden_groups=3),
    "inner groups": replace(SHAPE, num_hidden_groups=2, inner_group_num=3),
    "E equals D": replace(SHAPE, embedding_size=SHAPE.hidden_size),
}
# The file in each of the released archives of base, v1 and v2 alike but for the two dropouts.
BASE_FILE = {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "embedding_size": 128,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_hidden_groups": 1,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": 30000,
}
BLOCK = f"{ENCODER}/group_0/inner_group_0"


@pytest.fixture(params=SHAPES)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return SHAPES[request.param]


def test_our_model_computes_what_googles_code_computes(config: ModelConfig) -> None:
    variables, batch = made_variables(config), padded_batch(config)
    model = Generator(config, Embeddings(config), with_sentence_order=True)
    load_state(model, stock_tensors(variables, config, "made"), "made")
    model = model.eval().double()
    with torch.no_grad():
        hidden_states = model(*batch[:3])
        ours = model.logits(hidden_states), model.sentence_order(hidden_states)
    for found, wanted in zip(ours, plain_forward(variables, config, batch), strict=True):
        assert np.abs(found.numpy() - wanted).max() <= 1e-9 * np.abs(wanted).max()


def test_stock_model_takes_every_tensor_and_computes_what_googles_code_computes(config: ModelConfig) -> None:
    from transformers import AlbertForPreTraining

    variables, batch = made_variables(config), padded_batch(config)
    model = AlbertForPreTraining(stock(config))
    missing, unexpected = model.load_state_dict(stock_tensors(variables, config, "made"), strict=False)
    assert set(missing) == {"predictions.decoder.weight", "predictions.decoder.bias"}  # both tied
    assert unexpected == []
    with torch.no_grad():
        ids, mask, segments = batch[:3]
        found = model.eval().double()(input_ids=ids, attention_mask=mask.long(), token_type_ids=segments)
    tokens, order = plain_forward(variables, config, batch)
    assert np.abs(found.prediction_logits.numpy() - tokens).max() <= 1e-9 * np.abs(tokens).max()
    assert np.abs(found.sop_logits.numpy() - order).max() <= 1e-9 * np.abs(order).max()


def test_kernels_are_transposed_and_nothing_else_is(config: ModelConfig) -> None:
    variables = made_variables(config)
    found = stock_tensors(variables, config, "made")
    places = find_variables({name: values.shape for name, values in variables.items()}, config, "made")
    assert {name for name, place in places.items() if place.is_kernel} == {
        n for n in variables if n.endswith("/kernel")
    }
    for name, values in variables.items():
        wanted = values.T if name.endswith("/kernel") else values
        assert torch.equal(found[places[name].stock_name], torch.from_numpy(np.ascontiguousarray(wanted))), name
        assert found[places[name].stock_name].dtype == torch.float32


def test_where_the_widths_are_equal_the_mapping_is_the_identity() -> None:
    config = SHAPES["E equals D"]
    found = stock_tensors(made_variables(config), config, "made")
    mapping = "albert.encoder.embedding_hidden_mapping_in"
    assert torch.equal(found[f"{mapping}.weight"], torch.eye(config.hidden_size))
    assert torch.equal(found[f"{mapping}.bias"], torch.zeros(config.hidden_size))


@pytest.mark.parametrize("prefix", ["", "module/"], ids=["plain", "hub"])
def test_optimizer_and_hub_prefix_change_nothing(prefix: str) -> None:
    variables = made_variables(SHAPE)
    plain = stock_tensors(variables, SHAPE, "made")
    dressed = {f"{prefix}{name}": values for name, values in with_optimizer(variables).items()}
    found = stock_tensors(dressed, SHAPE, "made")
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize("head", ["cls/seq_relationship", "bert/pooler"])
def test_a_missing_sentence_order_head_is_no_fault(head: str) -> None:
    variables = {name: values for name, values in made_variables(SHAPE).items() if not name.startswith(head)}
    found = stock_tensors(variables, SHAPE, "made")
    assert len(found) == len(variables)
    assert not any(name.startswith(("sop_classifier.", "albert.pooler.")[head == "bert/pooler"]) for name in found)


def test_base_has_the_published_number_of_parameters() -> None:
    config = tensorflow_config(BASE_FILE, "albert_config.json")
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in published_shapes(config).items()}
    found = stock_tensors(zeros, config, "made")
    assert sum(tensor.numel() for tensor in found.values()) == 11_813_810
    assert math.prod(found["albert.embeddings.word_embeddings.weight"].shape) == 3_840_000


def test_the_released_configuration_means_the_tanh_gelu_of_base() -> None:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    wanted = ModelConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    assert tensorflow_config(BASE_FILE, "file") == wanted
    assert tensorflow_config(BASE_FILE | dropout, "file") == replace(wanted, **dropout)


BERT_FILE = {name: value for name, value in BASE_FILE.items() if name not in ("embedding_size", "num_hidden_groups")}


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (BERT_FILE, "no embedding_size"),
        (BERT_FILE | {"embedding_size": 128}, "no num_hidden_groups"),
        ({}, "no vocab_size"),
        (BASE_FILE | {"model_type": "bert"}, "type 'bert'"),
        (BASE_FILE | {"hidden_act": "swish"}, "hidden_act='swish'"),
        (BASE_FILE | {"hidden_act": ["gelu"]}, "hidden_act="),
        (BASE_FILE | {"net_structure_type": 1}, "net_structure_type=1"),
        (BASE_FILE | {"layers_to_keep": [3]}, "layers_to_keep"),
        (BASE_FILE | {"hidden_size": "768"}, "hidden_size='768'"),
        (BASE_FILE | {"hidden_size": 10**30}, "hidden_size"),
        (BASE_FILE | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (BASE_FILE | {"num_hidden_groups": 0}, "num_hidden_groups"),
        (BASE_FILE | {"num_hidden_layers": 44, "num_hidden_groups": 22}, "rounds a layer"),
    ],
)
def test_a_configuration_that_is_none_is_refused(contents: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        tensorflow_config(contents, "albert_config.json")
    assert "albert_config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hidden_act", "model_type", "net_structure_type", "layers_to_keep"])
@pytest.mark.parametrize(
    "value", ["x" * 100_000, "\x1b[31mred\nlines", ["y" * 100_000]], ids=["long", "colours", "list"]
)
def test_values_of_a_configuration_are_told_briefly_and_as_they_can_be_shown(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{name}|type ") as caught:
        tensorflow_config(BASE_FILE | {name: value}, "albert_config.json")
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["x" * 100_000, "\x1b[31mred\nlines"], ids=["long", "colours"])
@pytest.mark.parametrize("prefixes", [("",), ("", "module/")], ids=["unknown", "twice"])
def test_names_of_variables_are_told_briefly_and_as_they_can_be_shown(name: str, prefixes: tuple[str, ...]) -> None:
    shapes = {f"{prefix}{name}": (1,) for prefix in prefixes}
    with pytest.raises(CheckpointError, match="holds ") as caught:
        find_variables({**published_shapes(SHAPE), **shapes}, SHAPE, "made")
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def changed(**changes: Any) -> dict[str, np.ndarray]:
    """Variables of base with some put in, or left out where the value is None."""
    variables = made_variables(SHAPE)
    for name, values in changes.items():
        variables.pop(name) if values is None else variables.update({name: values})
    return variables


FFN = f"{BLOCK}/ffn_1/intermediate/dense/kernel"
KEY = f"{BLOCK}/attention_1/self/key/kernel"
KERNEL = np.ones((SHAPE.hidden_size, SHAPE.intermediate_size), np.float32)
NOT_A_NUMBER, HUGE = KERNEL.copy(), KERNEL.astype(np.float64)
NOT_A_NUMBER[2, 3] = np.nan
HUGE[1, 1] = 1e300


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({FFN: None}, f"no {FFN}"),
        ({"cls/predictions/output_bias": None}, "no cls/predictions/output_bias"),
        ({"bert/pooler/dense/bias": None}, "no bert/pooler/dense/bias"),
        ({"output_weights": np.ones((3, 21))}, "holds output_weights"),
        ({"bert/embeddings/layer_normalization/beta": np.ones(11)}, "holds bert/embeddings/layer_normalization/beta"),
        ({FFN.replace("group_0", "group_1", 1): KERNEL}, "holds .*/group_1/"),
        ({FFN.replace("inner_group_0", "inner_group_00"): KERNEL}, "holds .*/inner_group_00/"),
        ({f"module/{FFN}": KERNEL}, "holds both"),
        ({FFN: KERNEL.T}, r"dense/kernel in made has shape \[37, 21\], its configuration says \[21, 37\]"),
        ({KEY: KERNEL}, "key/kernel in made has shape"),
        ({"bert/embeddings/word_embeddings": np.ones(53)}, "word_embeddings in made has shape"),
        ({FFN: NOT_A_NUMBER}, "not finite"),
        ({FFN: HUGE}, "not finite"),
        ({FFN: KERNEL.astype(np.int32)}, "of type int32"),
        ({FFN: KERNEL.astype(object)}, "of type object"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_checkpoint_of_another_model_is_refused_by_the_name_of_the_variable(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        stock_tensors(changed(**changes), SHAPE, "made")
    assert "\n" not in str(caught.value)


def test_a_configuration_of_a_million_blocks_is_refused_before_they_are_made() -> None:
    config = replace(SHAPE, num_hidden_layers=1024, num_hidden_groups=1024, inner_group_num=1024)
    with pytest.raises(CheckpointError, match="1048576 blocks"):
        stock_tensors(made_variables(SHAPE), config, "made")
