"""Names to and from stock checkpoints lose nothing; what has no counterpart here is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.load import load_body, load_generator
from electra_albert.hub.names import for_order_head, from_native, from_stock, to_native, to_stock
from tests.hub.stock_models import make, save
from tests.model.twins import SHAPE, make_pair

CONFIG = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
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


def test_check_of_the_round_trip_rejects_swapped_projections() -> None:
    # Planted: key and value change places on the way out.
    state = dict(make_pair(CONFIG).generator.state_dict())
    swap = {"key": "value", "value": "key"}
    wrong = {".".join(swap.get(part, part) for part in name.split(".")): t for name, t in to_stock(state).items()}
    with pytest.raises(AssertionError, match="qkv"):
        assert_same_tensors(back(wrong), state)


def test_tensor_of_no_module_or_under_two_names_is_refused_by_name(tmp_path: Path) -> None:
    files = save(make("albert", "AlbertForMaskedLM"), tmp_path)
    sound, group = load_file(files.weights), "encoder.albert_layer_groups.{}.albert_layers.0.attention.{}".format
    for name, size in (
        (group(0, "key.evil"), 3),
        (group(0, "qkv.bias"), 3 * HIDDEN),
        (group(9, "key.bias"), HIDDEN),
        ("lm_head.weight", 2),
        ("encoder.embedding_hidden_mapping_in.bias", HIDDEN),
    ):
        prefix = "" if name.startswith(("lm_head", "encoder.embedding")) else "albert."
        save_file({**sound, prefix + name: torch.zeros(size)}, files.weights)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            load_generator(files)


def test_false_width_of_a_relative_takes_no_memory(tmp_path: Path) -> None:
    # Regression: the identity of the width that config.json gives, here four terabytes, was made before it was checked.
    files = save(make("bert", "BertModel"), tmp_path)
    contents = json.loads(files.config.read_text()) | {"hidden_size": 1 << 20, "num_attention_heads": 1}
    files.config.write_text(json.dumps(contents))
    with pytest.raises(CheckpointError, match="has no encoder"):
        load_body(files)
