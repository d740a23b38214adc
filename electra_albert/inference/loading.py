"""From a path to the models that the inference calls ask: what a folder has the heads for, with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.hub.find import is_checkpoint
from electra_albert.hub.load import (
    ModelFiles,
    Stored,
    body_of,
    discriminator_of,
    generator_of,
    locate,
    locate_encoder,
    read_each,
)
from electra_albert.inference.tasks import FineTuned, fine_tuned_of
from electra_albert.inference.token_table import without_spare_rows
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Body

_WAY_OUT = "put the tokenizer it was trained with into its folder"


class Models(NamedTuple):
    """What a folder holds, on the device and in eval mode."""

    tokenizer: Any
    encoder: Body  # of the discriminator, where there is one
    generator: Generator | None
    discriminator: Discriminator | None
    task: FineTuned | str  # or why there is none


def read_models(path: Path, device: torch.device) -> Models:
    """The models that `path` means, and the tokenizer beside the encoder's weights.

    Weights that serve two of them are kept once. Raises UsageError and CheckpointError as `load_model` says.
    """
    files, mlm_files = _locate(path)
    stored, *others = read_each([files] if mlm_files == files else [files, mlm_files])
    mlm = others[0] if others else stored
    tokenizer = load_tokenizer(files.tokenizer)
    tokenizer("")  # drops what its file says of truncation and padding, before threads share it

    def of_pieces(found: Stored) -> Stored:
        return without_spare_rows(found, len(tokenizer), files.tokenizer, _WAY_OUT)

    name, stored, mlm = str(files.weights), of_pieces(stored), of_pieces(mlm)
    encoder = body_of(stored, name)
    discriminator = discriminator_of(stored, name) if stored.has_detection_head else None
    generator = generator_of(mlm, str(mlm_files.weights)) if mlm.has_mlm_head else None
    for model, origin in ((discriminator, files), (generator, mlm_files)):
        if model is not None and origin.weights == files.weights:
            model.embeddings = encoder.embeddings
            if origin.part == files.part:
                model.encoder = encoder.encoder
    task = fine_tuned_of(stored, files, tokenizer, encoder)
    for part in (encoder, discriminator, generator, None if isinstance(task, str) else task.model):
        if part is not None:
            part.to(device)
    return Models(tokenizer, encoder, generator, discriminator, task)


def _locate(path: Path) -> tuple[ModelFiles, ModelFiles]:
    """The files of the encoder, and those of the masked-token model, which may be the same."""
    files = locate_encoder(path)
    if (path / "generator").is_dir() or is_checkpoint(path):
        return files, locate(path, "generator")
    return files, files
