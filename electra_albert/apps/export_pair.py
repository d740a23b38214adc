"""Generator and discriminator of a run as one folder in half precision, small enough to come with a checkout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.export_checks import probe, relative_difference
from electra_albert.apps.export_folder import CARD, is_anothers, special_ids
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.model.electra import Discriminator, Generator
    from electra_albert.model.loading import ModelFiles

SUMS = "SHA256SUMS"
ROUNDING_TOLERANCE = 0.01  # float16 moves a weight by 2**-11 of itself at most; this leaves room for many to add up
_CHECKED_ROWS, _CHECKED_LENGTH = 4, 128
_ARCHITECTURES = {"generator": "AlbertForMaskedLM", "discriminator": "AlbertModel"}
_WITH_ORDER = "AlbertForPreTraining"  # of a generator that has a sentence-order head


class Pair(NamedTuple):
    """Generator and discriminator on the CPU, in eval mode."""

    generator: Generator
    discriminator: Discriminator


class Change(NamedTuple):
    """By how much rounding the weights moved what the models give, at most."""

    logits: float  # of masked tokens, as a share of the largest
    probability: float  # of having been replaced


def export_pair(source: Path, folder: Path, scores: str) -> Change:
    """Write the pair that `source`, a run or a folder with generator/ and discriminator/, holds; returns the rounding.

    `scores` is Markdown for the card. Raises UsageError where there are not two models or the folder cannot be
    written, CheckpointError where they cannot be stored as one or rounding changes what they give.
    """
    from electra_albert.apps.pair_card import pair_card
    from electra_albert.model.pair_file import PAIR_FILE

    files, models, tokenizer = _read(source)
    refuse_other_models(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
            beside = Path(name)
            rounded = _write_models(beside, files, models, tokenizer)
            change = _measure(models, rounded, folder)
            card = pair_card(folder.name, models, source, scores, (beside / PAIR_FILE).stat().st_size)
            if is_anothers(folder / CARD):
                card = (folder / CARD).read_bytes().decode("utf-8", errors="surrogateescape")
                print(f"notice: {folder / CARD} was not written here, or changed since; it stays", file=sys.stderr)
            (beside / CARD).write_bytes(card.encode("utf-8", errors="surrogateescape"))
            (beside / SUMS).write_text(_sums(beside), encoding="utf-8")
            _put_in_place(beside, folder)
    except OSError as error:
        raise UsageError(f"cannot write the pair into {folder} ({error.strerror or error}); make room") from None
    return change


def _read(source: Path) -> tuple[list[ModelFiles], Pair, Any]:
    """The files of both models, the models, and the one tokenizer they were trained with."""
    from electra_albert.model.loading import discriminator_of, generator_of, locate, read_each

    files = [locate(source, "generator"), locate(source, "discriminator")]
    if files[0] == files[1]:
        raise UsageError(f"{source} is one model; name the folder that holds generator/ and discriminator/")
    tokenizers = [load_tokenizer(each.tokenizer) for each in files]
    if fingerprint(tokenizers[0]) != fingerprint(tokenizers[1]):
        raise CheckpointError(f"{source}: generator and discriminator have different tokenizers; export each alone")
    of_generator, of_discriminator = read_each(files)
    left_aside = sorted({*of_generator.left_aside, *of_discriminator.left_aside})
    if left_aside:
        print(f"notice: left aside, as a pair has no place for it: {', '.join(left_aside)}", file=sys.stderr)
    pair = Pair(
        generator_of(of_generator, str(files[0].weights)), discriminator_of(of_discriminator, str(files[1].weights))
    )
    pieces, rows = len(tokenizers[0]), of_generator.config.vocab_size
    if pieces > rows:
        raise CheckpointError(
            f"the tokenizer in {files[0].tokenizer} has {pieces} pieces, the model {rows}; "
            "put the tokenizer it was trained with into its folder"
        )
    return files, pair, tokenizers[0]


def refuse_other_models(folder: Path) -> None:
    """UsageError where weights lie in the folder that would be taken for those of the pair, or the other way round."""
    from electra_albert.model.weight_files import WEIGHT_FILES

    places = (folder, *(folder / part for part in _ARCHITECTURES))
    found = next((place / name for place in places for name in WEIGHT_FILES if (place / name).exists()), None)
    if found is not None:
        raise UsageError(f"{found} is of another model; choose another --output_dir for the pair")


def _write_models(beside: Path, files: list[ModelFiles], models: Pair, tokenizer: Any) -> Pair:
    """Write tokenizer, configurations and weights, and read them again, which must give the rounded weights."""
    import torch

    from electra_albert.model.loading import CONFIG_FILE, discriminator_of, generator_of, locate, read_each
    from electra_albert.model.pair_file import PAIR_FILE, join, write_pair
    from electra_albert.model.stock_config import stock_config

    save_tokenizer(tokenizer, beside, min(model.config.max_position_embeddings for model in models))
    for part, model in models._asdict().items():
        order = part == "generator" and model.sentence_order is not None
        config = stock_config(model.config, _WITH_ORDER if order else _ARCHITECTURES[part], special_ids(tokenizer))
        (beside / part).mkdir()
        (beside / part / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = [_plain_names(model) for model in models]
    write_pair(join(tensors[0], tensors[1], str(files[0].weights.parent.parent)), beside / PAIR_FILE)
    written = read_each([locate(beside, "generator"), locate(beside, "discriminator")])
    for wanted, found in zip(tensors, written, strict=True):
        other = sorted(wanted.keys() ^ found.tensors.keys())
        other = other or [name for name in wanted if not torch.equal(wanted[name].half().float(), found.tensors[name])]
        if other:
            raise CheckpointError(f"{beside.parent} is not written: {other[0]} is read otherwise than it was saved")
    return Pair(generator_of(written[0], PAIR_FILE), discriminator_of(written[1], PAIR_FILE))


def _plain_names(model: Generator | Discriminator) -> dict[str, Tensor]:
    """The weights under stock ALBERT's names without `albert.`."""
    from electra_albert.model.huggingface import to_stock

    return {name.removeprefix("albert."): tensor for name, tensor in to_stock(model.state_dict()).items()}


def _measure(models: Pair, rounded: Pair, folder: Path) -> Change:
    """The change of what both models give on fixed rows; CheckpointError where that is more than the tolerance."""
    import torch

    length = min(_CHECKED_LENGTH, *(model.config.max_position_embeddings for model in models))
    ids, mask, segments = probe(models.discriminator.config, _CHECKED_ROWS, length)
    takes_part = mask.bool()
    logits, probabilities = [], []
    with torch.no_grad():
        for generator, discriminator in (models, rounded):
            hidden_states = generator(ids, takes_part, segments)
            logits.append(generator.logits(hidden_states[takes_part]))
            probabilities.append(discriminator(ids, takes_part, segments)[takes_part].sigmoid())
    change = Change(relative_difference(*logits), float((probabilities[0] - probabilities[1]).abs().max()))
    if not max(change) <= ROUNDING_TOLERANCE:
        raise CheckpointError(
            f"{folder} is not written: half precision moves masked-token logits by {change.logits:.1e} of the largest "
            f"and detection probabilities by {change.probability:.1e}; export float32 folders"
        )
    return change


def _files_in(folder: Path) -> Iterator[Path]:
    """The files below a folder, relative to it, in the order of their names."""
    yield from sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _sums(folder: Path) -> str:
    """A line for each file below the folder, as `sha256sum -c` reads them."""
    from electra_albert.training.checkpoint import sha256

    return "".join(f"{sha256(folder / file)}  {file.as_posix()}\n" for file in _files_in(folder))


def _put_in_place(beside: Path, folder: Path) -> None:
    """Move what was written, the weights last."""
    from electra_albert.model.pair_file import PAIR_FILE

    for file in sorted(_files_in(beside), key=lambda file: file.name == PAIR_FILE):
        (folder / file).parent.mkdir(exist_ok=True)
        os.replace(beside / file, folder / file)
