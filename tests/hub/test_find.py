"""A path a user gives leads to the files of a model, or to one line that says which are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from electra_albert.contracts import UsageError
from electra_albert.hub.config import stock_config
from electra_albert.hub.load import ModelFiles, load_discriminator, load_generator, locate, locate_encoder
from electra_albert.hub.names import to_stock
from tests.model.twins import SHAPE, SPECIAL_IDS, make_pair

WEIGHTS = "model.safetensors"


def write_folder(folder: Path, kind: str = "generator") -> Path:
    """A stock folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(kind), folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(stock_config(SHAPE, "AlbertForMaskedLM", SPECIAL_IDS)))
    return folder


def weights(kind: str = "generator") -> dict[str, Tensor]:
    return to_stock(getattr(make_pair(SHAPE), kind).state_dict())


def assert_same(model: nn.Module, wanted: nn.Module) -> None:
    found = model.state_dict()
    assert found.keys() == wanted.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.state_dict().items())


def test_generator_and_discriminator_of_a_run_are_what_was_saved(tmp_path: Path) -> None:
    write_folder(tmp_path / "generator")
    write_folder(tmp_path / "discriminator", "discriminator")
    assert_same(load_generator(locate(tmp_path, "generator")), make_pair(SHAPE).generator)
    assert_same(load_discriminator(locate(tmp_path, "discriminator")), make_pair(SHAPE).discriminator)


def test_pt_file_gives_the_same_model_flat_or_nested(tmp_path: Path) -> None:
    (write_folder(tmp_path) / WEIGHTS).unlink()
    for content in (weights(), {"model": weights(), "step": 7}, {"state_dict": weights()}):
        torch.save(content, tmp_path / "weights.pt")
        assert_same(load_generator(locate(tmp_path, "generator")), make_pair(SHAPE).generator)


def test_encoder_of_a_run_is_the_discriminators_where_there_is_one(tmp_path: Path) -> None:
    for name in ("", "model", "generator", "discriminator"):
        folder = write_folder(tmp_path / name)
        for path in (tmp_path, folder / WEIGHTS):
            assert locate_encoder(path) == ModelFiles(folder / WEIGHTS, folder / "config.json", folder)
        (tmp_path / WEIGHTS).unlink(missing_ok=True)


def test_path_that_holds_no_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        locate(tmp_path / "none", "discriminator")
    # Regression: of a run without a discriminator it was said that its training has not ended yet.
    for made, word in (("checkpoints", "has not ended yet"), ("generator", "but generator/")):
        (tmp_path / made).mkdir()
        with pytest.raises(UsageError, match=word):
            locate(tmp_path, "discriminator")
