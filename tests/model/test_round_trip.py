"""Ours into a stock folder and back loses no bit, whatever the shape; the shapes of released models are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from electra_albert.config import ModelConfig
from electra_albert.hub.names import from_stock, to_stock
from electra_albert.hub.load import (
    TASK_FILE,
    ModelFiles,
    load_body,
    load_discriminator,
    load_generator,
    load_task_model,
    locate,
)
from electra_albert.hub.config import model_config, stock_config
from electra_albert.hub.weights import write_safetensors
from electra_albert.model.electra import masked_language_model
from tests.model.stock_models import config_of, make, save
from tests.model.test_relatives import CASES, ids, of_body, of_discriminator, of_generator
from tests.model.test_task_loading import write_fine_tuned
from tests.model.test_task_model import ALL_HEADS, make_task_model
from tests.model.twins import SHAPE, SPECIAL_IDS, make_body, make_masked_lm, make_pair, padded_batch

SHAPES = {
    "shared": SHAPE,
    "grouped": replace(SHAPE, num_hidden_groups=2),
    "inner-grouped": replace(SHAPE, num_hidden_groups=2, inner_group_num=2),
    "E = H": replace(SHAPE, embedding_size=SHAPE.hidden_size),
    "unshared": replace(SHAPE, num_hidden_groups=SHAPE.num_hidden_layers),
}
Making = tuple[Callable[[ModelConfig], nn.Module], Callable[[ModelFiles], nn.Module]]
KINDS: dict[str, Making] = {
    "generator": (lambda c: make_pair(c).generator, load_generator),
    "masked LM with sentence order": (lambda c: make_masked_lm(c), load_generator),
    "discriminator": (lambda c: make_pair(c).discriminator, load_discriminator),
    "discriminator with sentence order": (
        lambda c: make_pair(c, with_sentence_order=True).discriminator,
        load_discriminator,
    ),
    "encoder": (lambda c: make_body(c, with_pooler=False), load_body),
    "encoder with a pooler": (lambda c: make_body(c, with_pooler=True), load_body),
}


def assert_same_bits(found: nn.Module, wanted: nn.Module) -> None:
    """AssertionError unless a loaded model has these weights, and no part of it is in training mode."""
    assert not any(part.training for part in found.modules())
    state = wanted.state_dict()
    assert found.state_dict().keys() == state.keys()
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_going_into_a_stock_folder_and_back_changes_no_bit(kind: str, shape: str, tmp_path: Path) -> None:
    make_ours, load = KINDS[kind]
    model = make_ours(SHAPES[shape])
    write_safetensors(to_stock(model.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(stock_config(SHAPES[shape], "AlbertModel", SPECIAL_IDS)))
    assert_same_bits(load(locate(tmp_path, "generator")), model)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("head", ALL_HEADS)
def test_task_model_comes_back_from_a_folder_bit_for_bit(head: str, shape: str, tmp_path: Path) -> None:
    model = make_task_model(ALL_HEADS[head], SHAPES[shape])
    folder = write_fine_tuned(tmp_path, model)
    (folder / "config.json").write_text(json.dumps(stock_config(SHAPES[shape], model.architecture, SPECIAL_IDS)))
    assert (folder / TASK_FILE).is_file()
    assert_same_bits(load_task_model(locate(folder, "generator"))[0], model)


@pytest.mark.parametrize("case", [case for case in CASES if case[0] == "albert"], ids=ids)
def test_stock_albert_comes_out_as_it_came_in_bit_for_bit(case: tuple[str, str], tmp_path: Path) -> None:
    files = save(make(*case), tmp_path)
    wanted = {name.removeprefix("albert."): tensor for name, tensor in load_file(files.weights).items()}
    found = {name.removeprefix("albert."): t for name, t in to_stock(CASES[case][0](files).state_dict()).items()}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def albert(hidden_size: int, layers: int, heads: int, intermediate_size: int, **changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": 512,
        "initializer_range": 0.02,
        **changes,
    }


def relative(hidden_size: int, layers: int, heads: int, **changes: Any) -> dict[str, Any]:
    sizes = albert(hidden_size, layers, heads, 4 * hidden_size, vocab_size=30522, **changes)
    return sizes if "embedding_size" in changes else {k: v for k, v in sizes.items() if k != "embedding_size"}


RELEASED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "albert-base-v1": ("albert", "AlbertForPreTraining", albert(768, 12, 12, 3072, hidden_act="gelu")),
    "albert-base-v2": ("albert", "AlbertForPreTraining", albert(768, 12, 12, 3072)),
    "albert-large-v2": ("albert", "AlbertForPreTraining", albert(1024, 24, 16, 4096)),
    "albert-xlarge-v2": ("albert", "AlbertForPreTraining", albert(2048, 24, 16, 8192)),
    "bert-base": ("bert", "BertForPreTraining", relative(768, 12, 12)),
    "electra-small": ("electra", "ElectraForPreTraining", relative(256, 12, 4, embedding_size=128)),
    "electra-base": ("electra of one width", "ElectraForPreTraining", relative(768, 12, 12, embedding_size=768)),
}


def released_config(family: str, sizes: dict[str, Any]) -> Any:
    from transformers import ElectraConfig

    return ElectraConfig(**sizes) if family.startswith("electra") else type(config_of(family))(**sizes)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RELEASED)
def test_shape_of_a_released_model_is_read_with_parity(name: str, tmp_path: Path) -> None:
    family, stock_class, sizes = RELEASED[name]
    theirs = make(family, stock_class, released_config(family, sizes))
    files, batch = save(theirs, tmp_path), padded_batch()
    load = load_discriminator if stock_class == "ElectraForPreTraining" else load_generator
    ours = load(files)
    body = load_body(files)
    with torch.no_grad():
        wanted = theirs(batch.input_ids, batch.attention_mask.long(), batch.token_type_ids)
        outputs = of_discriminator if load is load_discriminator else of_generator
        logits = next(iter(outputs(ours, batch).values()))
        hidden = getattr(theirs, theirs.base_model_prefix)(
            batch.input_ids, batch.attention_mask.long(), batch.token_type_ids
        )
        torch.testing.assert_close(of_body(body, batch)["last_hidden_state"], hidden[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, wanted[0], rtol=1e-5, atol=1e-5)


def test_largest_released_shape_has_the_names_and_shapes_of_its_stock_class() -> None:
    from transformers import AlbertForPreTraining

    config = released_config("albert", albert(4096, 12, 64, 16384))
    with torch.device("meta"):
        theirs = AlbertForPreTraining(config)
        ours = masked_language_model(model_config(config.to_dict(), "config.json"), with_sentence_order=True)
    stored = {name: tensor for name, tensor in theirs.state_dict().items() if ".decoder." not in name}
    wanted = {name: tensor.shape for name, tensor in from_stock(stored).items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == wanted
    assert sum(shape.numel() for shape in wanted.values()) == theirs.num_parameters()
