"""Generator and discriminator in one half-precision file: what the two share stands in it once.

Names are stock ALBERT's without `albert.`: the tables and their LayerNorm as they are, all else behind the name of its
model. Each model's configuration lies beside the file in a folder of the model's name, the tokenizer beside the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.fill import same_tables
from electra_albert.hub.weights import WEIGHT_FILES, read_tensors, write_safetensors

PAIR_FILE = "pair.safetensors"
PARTS = ("generator", "discriminator")
_SHARED = "embeddings."
_HEADS = ("generator.predictions.", "discriminator.discriminator_predictions.")
_OF_THE_TABLES = (  # what the embeddings, tables and LayerNorm, are built of
    "vocab_size",
    "embedding_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
_OWN = {  # what may stand behind the name of each model
    "generator": ("encoder.", "pooler.", "predictions.", "sop_classifier."),
    "discriminator": ("encoder.", "pooler.", "discriminator_predictions.", "sop_classifier."),
}


class PairPlace(NamedTuple):
    """Where one model of a pair lies."""

    folder: Path
    part: str  # which of the two


def is_pair(weights: Path) -> bool:
    """Whether a file of weights is by its name one of a pair: no other may hold half precision."""
    return weights.name == PAIR_FILE


def find_part(path: Path, wanted: Sequence[str]) -> PairPlace | None:
    """The model of a pair that `path` means: the folder, the file, or the folder of one of the two configurations.

    Of folder and file the first of `wanted` that a pair has; None where `path` is no pair or has none of them.
    """
    if is_pair(path) and path.is_file():
        folder, parts = path.parent, wanted
    elif (path / PAIR_FILE).is_file():
        folder, parts = path, wanted
    elif path.is_dir() and not _holds_weights(path) and (place := _inside(path)) is not None:
        return place
    else:
        return None
    part = next((name for name in parts if name in PARTS), None)
    return None if part is None else PairPlace(folder, part)


def holds_pair(path: Path) -> bool:
    """Whether `path` is the file of a pair or the folder that holds it."""
    return (is_pair(path) and path.is_file()) or (path / PAIR_FILE).is_file()


def pair_at(folder: Path) -> Path | None:
    """The folder of the pair that is there, or that `folder` is a configuration's folder of; None where neither is."""
    if (folder / PAIR_FILE).exists():
        return folder
    place = _inside(folder)
    return None if place is None else place.folder


def _inside(folder: Path) -> PairPlace | None:
    """The pair whose configuration's folder `folder` is, by the name that is given, or the one that stands for it."""
    for place in (folder, folder.absolute(), folder.resolve()):  # `.` has no name of its own, a link has another
        if place.name in PARTS and (place.parent / PAIR_FILE).is_file():
            return PairPlace(place.parent, place.name)
    return None


def _holds_weights(folder: Path) -> bool:
    return any((folder / name).exists() for name in WEIGHT_FILES)


def join(generator: Mapping[str, Tensor], discriminator: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """The float16 tensors of a pair. Given are float32 ones under stock ALBERT's names without `albert.`.

    Raises CheckpointError, which calls the pair `origin`, where the two have tables of their own, or float16, whose
    largest number is 65504, cannot hold a weight.
    """
    if not same_tables(generator, discriminator):
        raise CheckpointError(
            f"{origin}: generator and discriminator have tables of their own, and a pair stores one; export each alone"
        )
    joined: dict[str, Tensor] = {}
    for part, tensors in zip(PARTS, (generator, discriminator), strict=True):
        for name, tensor in tensors.items():
            joined[name if name.startswith(_SHARED) else f"{part}.{name}"] = tensor.half()
    for name, tensor in joined.items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{origin}: {name} holds a number that is not finite in half precision; export it as float32"
            )
    return joined


def require_one_table(one: ModelConfig, other: ModelConfig, origin: str) -> None:
    """CheckpointError, which calls the pair `origin`, where the two configurations read shared tables differently."""
    for name in _OF_THE_TABLES:
        if getattr(one, name) != getattr(other, name):
            raise CheckpointError(
                f"{origin}: generator and discriminator share their tables, but {name} is {getattr(one, name)} in one "
                f"configuration and {getattr(other, name)} in the other; mend the one that is wrong"
            )


def write_pair(tensors: dict[str, Tensor], file: Path) -> None:
    """Write what `join` gave, with a hash by which `read_pair` sees a damaged file; same tensors, same bytes."""
    write_safetensors(tensors, file)


def read_pair(file: Path) -> dict[str, Tensor]:
    """The tensors of a pair as they are named in it, float32 on the CPU.

    Raises CheckpointError where it is damaged, holds anything but finite float16, lacks a model, its head or the table,
    or has a name that no pair has.
    """
    tensors = read_tensors(file, torch.float16)
    for name, tensor in tensors.items():
        part, _, own = name.partition(".")
        if not name.startswith(_SHARED) and not own.startswith(_OWN.get(part, ("\n",))):
            raise CheckpointError(f"{file} holds {name}, which no pair of generator and discriminator has")
        if tensor.dtype != torch.float16:
            raise CheckpointError(f"{file}: {name} holds whole numbers, which no trained weight is; fetch it again")
    for beginning in (_SHARED, *(f"{part}.encoder." for part in PARTS), *_HEADS):
        if not any(name.startswith(beginning) for name in tensors):
            raise CheckpointError(f"{file} has no {beginning}*: it is no whole pair of generator and discriminator")
    return {name: tensor.float() for name, tensor in tensors.items()}


def part_of(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """One model's tensors, the shared ones among them, without its name before them; all of them where `part` is ""."""
    if not part:
        return dict(tensors)
    own = {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}
    return {**own, **{name: tensor for name, tensor in tensors.items() if name.startswith(_SHARED)}}
