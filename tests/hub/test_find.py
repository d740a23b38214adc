"""A path a user gives leads to the files of a model, or to one line that says which are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from electra_albert.contracts import UsageError
from electra_albert.hub.config import stock_config
from electra_albert.hub.load import ModelFiles, load_discriminator, load_generator, locate, locate_encoder
from electra_albert.hub.names import to_stock
from tests.model.twins import SHAPE, SPECIAL_IDS, make_pair, padded_batch

WEIGHTS = "model.safetensors"


def write_folder(folder: Path, kind: str = "generator") -> Path:
    """A stock folder without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(kind), folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(stock_config(SHAPE, "AlbertForMaskedLM", SPECIAL_IDS)))
    return folder


def weights(kind: str = "generator") -> dict[str, Tensor]:
    return to_stock(getattr(make_pair(SHAPE), kind).state_dict())


def logits(path: Path) -> Tensor:
    """Of the generator at `path` on the test batch."""
    model, batch = load_generator(locate(path, "generator")), padded_batch()
    return model.logits(model(batch.input_ids, batch.attention_mask, batch.token_type_ids))


def test_generator_and_discriminator_of_a_run_compute_what_was_saved(tmp_path: Path) -> None:
    write_folder(tmp_path / "generator")
    write_folder(tmp_path / "discriminator", "discriminator")
    pair, batch = make_pair(SHAPE), padded_batch()
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    # Float32: on some processors the address of a tensor decides the order of a product's additions.
    torch.testing.assert_close(logits(tmp_path), pair.generator.logits(pair.generator(*inputs)), rtol=1e-5, atol=1e-6)
    detector = load_discriminator(locate(tmp_path, "discriminator"))
    torch.testing.assert_close(detector(*inputs), pair.discriminator(*inputs), rtol=1e-5, atol=1e-6)


def test_pt_file_gives_the_same_model_flat_or_nested(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    expected = logits(folder)
    (folder / WEIGHTS).unlink()
    for content in (weights(), {"model": weights(), "step": 7}, {"state_dict": weights()}):
        torch.save(content, folder / "weights.pt")
        torch.testing.assert_close(logits(folder), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("folders", "found"),
    [
        (("generator", "discriminator", "model"), "discriminator"),
        (("generator", "model"), "generator"),
        (("",), ""),
    ],
    ids=["run", "run without a discriminator", "model"],
)
def test_encoder_of_a_run_is_the_discriminators_where_there_is_one(
    tmp_path: Path, folders: tuple[str, ...], found: str
) -> None:
    for name in folders:
        write_folder(tmp_path / name)
    folder = tmp_path / found
    for path in (tmp_path, folder / WEIGHTS):
        assert locate_encoder(path) == ModelFiles(folder / WEIGHTS, folder / "config.json", folder)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (None, "does not exist"),
        (("checkpoints",), "has not ended yet"),
        # Regression: of a run without a discriminator it was said that its training has not ended yet.
        (("checkpoints", "generator"), "but generator/"),
    ],
    ids=str,
)
def test_path_that_holds_no_model_is_refused_with_the_reason(
    tmp_path: Path, made: tuple[str, ...] | None, word: str
) -> None:
    for name in made or ():
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=word):
        locate(tmp_path if made is not None else tmp_path / "none", "discriminator")
