"""A stock file is read only where every tensor in it has its one place; what it trained is never dropped unseen."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub.huggingface import to_stock
from electra_albert.hub.loading import ModelFiles, load_body, load_generator, locate, read_stored
from electra_albert.hub.weight_files import read_tensors
from tests.model.stock_models import make, save
from tests.model.twins import SHAPE

ORDER_HEAD = (
    "albert.pooler.weight",
    "albert.pooler.bias",
    "sop_classifier.classifier.weight",
    "sop_classifier.classifier.bias",
)
BLOCK = "albert.encoder.albert_layer_groups.0.albert_layers.0."
HIDDEN = SHAPE.hidden_size


def change(files: ModelFiles, **tensors: Tensor | None) -> ModelFiles:
    """Add tensors to the file, or take out those that are None; names with __ for a point."""
    changed = load_file(str(files.weights)) | {name.replace("__", "."): t for name, t in tensors.items()}
    save_file({name: t for name, t in changed.items() if t is not None}, str(files.weights))
    return files


def hub_albert(folder: Path) -> ModelFiles:
    """As ALBERT lies on the hub: a masked language model with a trained pooler, and no classifier of the order."""
    files = save(make("albert", "AlbertForPreTraining"), folder)
    tensors = load_file(str(files.weights))
    save_file({name: t for name, t in tensors.items() if not name.startswith("sop_")}, str(files.weights))
    return files


def test_a_pooler_without_an_order_head_is_handed_on_to_the_bit(tmp_path: Path) -> None:
    # Regression: as a masked language model the hub's ALBERT lost its trained pooler.
    files = hub_albert(tmp_path)
    stored, written = load_file(str(files.weights)), to_stock(load_generator(files).state_dict())
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("lacking", ORDER_HEAD)
@pytest.mark.parametrize("load", [load_generator, load_body])
def test_half_an_order_head_is_refused(tmp_path: Path, load: Callable[[ModelFiles], Any], lacking: str) -> None:
    files = change(save(make("albert", "AlbertForPreTraining"), tmp_path), **{lacking: None})
    with pytest.raises(CheckpointError, match=lacking.removeprefix("albert.")):
        load(files)


STRAYS: Mapping[str, tuple[int, ...]] = {
    f"{BLOCK}attention.key.evil": (3,),
    f"{BLOCK}attention.qkv.weight": (3 * HIDDEN, HIDDEN),
    "albert.encoder.albert_layer_groups.9.albert_layers.0.attention.key.weight": (3, 3),
    "albert.embeddings.position_ids_secret": (3,),
    "predictions.decoder.evil": (3,),
    "classifier.evil": (3,),
    "sentence_order.classifier.bias": (2,),
}


@pytest.mark.parametrize("stray", STRAYS)
def test_a_tensor_without_a_place_is_refused_by_name(tmp_path: Path, stray: str) -> None:
    files = change(save(make("albert", "AlbertForMaskedLM"), tmp_path), **{stray: torch.zeros(STRAYS[stray])})
    with pytest.raises(CheckpointError, match=stray.removeprefix("albert.").replace(".", r"\.")):
        load_generator(files)


@pytest.mark.parametrize(
    ("family", "name", "twice"),
    [
        ("albert", "AlbertForMaskedLM", "encoder.embedding_hidden_mapping_in.bias"),
        ("albert", "AlbertForMaskedLM", "predictions.LayerNorm.gamma"),
        ("bert", "BertForMaskedLM", "encoder.albert_layer_groups.0.albert_layers.0.ffn.bias"),
        ("electra", "ElectraForMaskedLM", "cls.predictions.transform.dense.bias"),
    ],
)
def test_a_tensor_under_two_names_is_refused(tmp_path: Path, family: str, name: str, twice: str) -> None:
    # Regression: the last one read was taken, which was not always the one that stock takes.
    files = change(save(make(family, name), tmp_path), **{twice: torch.zeros(3)})
    with pytest.raises(CheckpointError, match="twice"):
        read_stored(files)


@pytest.mark.parametrize("family", ["bert", "electra of one width"])
def test_a_mapping_that_stock_does_not_apply_is_refused(tmp_path: Path, family: str) -> None:
    name = "BertModel" if family == "bert" else "ElectraModel"
    mapping = {f"embeddings_project.{part}": torch.zeros(HIDDEN) for part in ("weight", "bias")}
    files = change(save(make(family, name), tmp_path), **mapping)
    with pytest.raises(CheckpointError, match="does not apply"):
        load_body(files)


def test_tensors_that_share_one_storage_are_refused(tmp_path: Path) -> None:
    one = torch.zeros(1000)
    torch.save({f"tensor.{number}": one for number in range(50)}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="share what is stored"):
        read_tensors(tmp_path / "weights.pt")


def test_a_million_tensors_are_refused_before_they_are_read(tmp_path: Path) -> None:
    entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(entry % number for number in range(60_000)) + "}"
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    start = time.monotonic()
    with pytest.raises(CheckpointError, match="more than 50000 tensors"):
        read_tensors(file)
    assert time.monotonic() - start < 10  # of 24 s and more


def test_a_pipe_named_as_a_model_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="neither a folder nor a file"):
        locate(tmp_path / "model.safetensors", "generator")


def test_a_run_without_the_folder_asked_for_names_the_ones_it_has(tmp_path: Path) -> None:
    # Regression: of a run without a discriminator it was said that its training has not ended yet.
    for name in ("checkpoints", "generator"):
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="but generator/"):
        locate(tmp_path, "discriminator")
