"""Names to and from stock checkpoints lose nothing; what has no counterpart here is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.load import load_body, load_discriminator, load_generator, read_stored
from electra_albert.hub.names import for_order_head, from_native, from_stock, to_native, to_stock
from tests.hub.stock_models import make, save
from tests.model.twins import SHAPE, make_masked_lm, make_pair, masked_lm_twin, pretraining_twin, stock

CONFIG = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0."
HIDDEN = SHAPE.hidden_size


def assert_same_tensors(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def back(stock_state: dict[str, Tensor]) -> dict[str, Tensor]:
    return from_stock(stock_state, "albert", CONFIG, "file").tensors


@pytest.mark.parametrize("kind", ["generator", "discriminator"])
def test_going_to_stock_or_native_names_and_back_changes_no_bit(kind: str) -> None:
    model = getattr(make_pair(CONFIG, with_sentence_order=True), kind)
    state = dict(model.state_dict())
    for found in (back(to_stock(state)), from_native(to_native(state)).tensors):
        assert_same_tensors(for_order_head(found) if model.sentence_order is not None else found, state)


def test_coming_from_stock_and_going_back_changes_no_bit_of_what_is_used() -> None:
    from transformers import AlbertForPreTraining

    stock_state = AlbertForPreTraining(stock(CONFIG)).state_dict()
    wanted = {name: tensor for name, tensor in stock_state.items() if not name.startswith("predictions.decoder.")}
    assert len(stock_state) - len(wanted) == 2
    assert_same_tensors(to_stock(back(stock_state)), wanted)


def test_check_of_the_round_trip_rejects_swapped_projections() -> None:
    # Planted: key and value change places on the way out.
    state = dict(make_pair(CONFIG).generator.state_dict())
    swap = {"key": "value", "value": "key"}
    wrong = {".".join(swap.get(part, part) for part in name.split(".")): t for name, t in to_stock(state).items()}
    with pytest.raises(AssertionError, match="qkv"):
        assert_same_tensors(back(wrong), state)


def test_stock_names_are_exactly_those_of_the_stock_classes() -> None:
    generator, with_order = make_pair(CONFIG).generator, make_masked_lm(CONFIG)
    for model, twin in ((generator, masked_lm_twin(generator)), (with_order, pretraining_twin(with_order))):
        assert to_stock(model.state_dict()).keys() == {name for name, _ in twin.named_parameters()}


def test_decoder_of_the_loaded_stock_model_is_its_table() -> None:
    twin: Any = masked_lm_twin(make_pair(CONFIG).generator)
    assert twin.predictions.decoder.weight.data_ptr() == twin.albert.embeddings.word_embeddings.weight.data_ptr()


def test_exported_tensors_are_float32_and_share_no_memory() -> None:
    exported = to_stock(make_pair(CONFIG).generator.bfloat16().state_dict())
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert len({tensor.untyped_storage().data_ptr() for tensor in exported.values()}) == len(exported)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (f"{BLOCK}attention.key.evil", (3,)),
        (f"{BLOCK}attention.qkv.weight", (3 * HIDDEN, HIDDEN)),
        ("albert.encoder.albert_layer_groups.9.albert_layers.0.attention.key.weight", (3, 3)),
        ("albert.embeddings.position_ids_secret", (3,)),
        ("predictions.decoder.evil", (3,)),
        ("sentence_order.classifier.bias", (2,)),
        ("lm_head.weight", (2,)),
        ("encoder.embedding_hidden_mapping_in.bias", (HIDDEN,)),
    ],
)
def test_tensor_without_a_place_or_under_two_names_is_refused_by_name(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    files = save(make("albert", "AlbertForMaskedLM"), tmp_path)
    save_file({**load_file(files.weights), name: torch.zeros(shape)}, files.weights)
    with pytest.raises(CheckpointError, match=name.removeprefix("albert.").replace(".", r"\.")):
        load_generator(files)


@pytest.mark.parametrize(
    "lacking", ["albert.pooler.bias", "sop_classifier.classifier.weight", f"{BLOCK}attention.value.bias"]
)
def test_half_a_head_and_half_a_projection_are_refused(tmp_path: Path, lacking: str) -> None:
    files = save(make("albert", "AlbertForPreTraining"), tmp_path)
    save_file({name: t for name, t in load_file(files.weights).items() if name != lacking}, files.weights)
    with pytest.raises(CheckpointError, match="has "):
        load_generator(files)


def test_a_mapping_that_stock_does_not_apply_is_refused(tmp_path: Path) -> None:
    files = save(make("bert", "BertModel"), tmp_path)
    save_file({**load_file(files.weights), "embeddings_project.bias": torch.zeros(HIDDEN)}, files.weights)
    with pytest.raises(CheckpointError, match="does not apply"):
        load_body(files)


def test_head_of_another_kind_is_left_aside(tmp_path: Path) -> None:
    pair = make_pair(SHAPE)
    files = save(make("albert", "AlbertForMaskedLM"), tmp_path)
    head = pair.discriminator.discriminator_predictions.state_dict(prefix="discriminator_predictions.")
    wanted = load_generator(files).state_dict()
    save_file({**load_file(files.weights), **head}, files.weights)
    assert_same_tensors(dict(load_generator(files).state_dict()), dict(wanted))
    assert load_discriminator(files).discriminator_predictions.dense.weight.equal(
        pair.discriminator.discriminator_predictions.dense.weight
    )
    assert read_stored(files).left_aside == []


def test_false_width_of_a_relative_takes_no_memory(tmp_path: Path) -> None:
    # Regression: the identity of the width that config.json gives, here four terabytes, was made before it was checked.
    files = save(make("bert", "BertModel"), tmp_path)
    contents = json.loads(files.config.read_text()) | {"hidden_size": 1 << 20, "num_attention_heads": 1}
    files.config.write_text(json.dumps(contents))
    with pytest.raises(CheckpointError, match="has no encoder"):
        load_body(files)
