"""From a path to the models that the inference calls ask: what a folder has the heads for, with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra_albert.apps.token_table import without_spare_rows
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.model.body import Body
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.loading import (
    CONFIG_FILE,
    ENCODER_FOLDERS,
    ModelFiles,
    Stored,
    body_of,
    discriminator_of,
    generator_of,
    locate,
    locate_encoder,
    read_stored,
)
from electra_albert.model.weight_files import WEIGHT_FILES

_WAY_OUT = "put the tokenizer it was trained with into its folder"


class Models(NamedTuple):
    """What a folder holds, on the device and in eval mode."""

    tokenizer: Any
    encoder: Body  # of the discriminator, where there is one
    generator: Generator | None
    discriminator: Discriminator | None


def read_models(path: Path, device: torch.device) -> Models:
    """The models that `path` means, and the tokenizer beside the encoder's weights.

    Weights that serve two of them are kept once. Raises UsageError and CheckpointError as `load_model` says.
    """
    files, mlm_files = _locate(path)
    stored = read_stored(files)
    mlm = stored if mlm_files == files else read_stored(mlm_files)
    tokenizer = load_tokenizer(files.tokenizer)
    tokenizer("")  # drops what its file says of truncation and padding, before threads share it

    def of_pieces(found: Stored) -> Stored:
        return without_spare_rows(found, len(tokenizer), files.tokenizer, _WAY_OUT)

    name, stored, mlm = str(files.weights), of_pieces(stored), of_pieces(mlm)
    encoder = body_of(stored, name)
    discriminator = discriminator_of(stored, name) if stored.has_detection_head else None
    generator = generator_of(mlm, str(mlm_files.weights)) if mlm.has_mlm_head else None
    for model, origin in ((discriminator, files), (generator, mlm_files)):
        if model is not None and origin == files:
            model.embeddings, model.encoder = encoder.embeddings, encoder.encoder
    for part in (encoder, discriminator, generator):
        if part is not None:
            part.to(device)
    return Models(tokenizer, encoder, generator, discriminator)


def _locate(path: Path) -> tuple[ModelFiles, ModelFiles]:
    """The files of the encoder, and those of the masked-token model, which may be the same."""
    _require_config(path, ENCODER_FOLDERS)
    files = locate_encoder(path)
    if not (path / "generator").is_dir():
        return files, files
    _require_config(path, ("generator",))
    return files, locate(path, "generator")


def _require_config(path: Path, inner: tuple[str, ...]) -> None:
    """UsageError where there are weights and no configuration beside them; of anything else `locate` tells.

    What that says of it names an option of LM_DEMO.py.
    """
    try:
        if path.is_dir():
            folder = next((path / name for name in inner if (path / name).is_dir()), path)
            has_weights = any((folder / name).is_file() for name in WEIGHT_FILES)
        else:
            folder, has_weights = path.parent, path.is_file()
        is_incomplete = has_weights and not (folder / CONFIG_FILE).is_file()
    except OSError:
        return
    if is_incomplete:
        raise UsageError(
            f"{path} is no whole model: {folder / CONFIG_FILE} does not exist; give the folder of a run or of a model"
        )
