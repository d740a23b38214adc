"""Generator and discriminator of a run as one folder in half precision, small enough to come with a checkout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.export.checks import probe, relative_difference, require_same
from electra_albert.apps.export.folder import CARD, is_anothers, special_ids
from electra_albert.apps.export.source import (
    left_aside,
    refuse_other_models,
    refuse_source,
    require_rows,
    require_stock,
    say_left_aside,
)
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import fingerprint, load_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.apps.export.pair_card import Told
    from electra_albert.hub.load import ModelFiles
    from electra_albert.model.electra import Discriminator, Generator

SUMS = "SHA256SUMS"
ROUNDING_TOLERANCE = 0.01  # float16 moves a weight by 2**-11 of itself at most; this leaves room for many to add up
_CHECKED_ROWS, _CHECKED_LENGTH = 4, 128
_MASKED_EVERY = 7  # of the tokens of the fixed rows: the share that a generator is trained on


class Pair(NamedTuple):
    """Generator and discriminator on the CPU, in eval mode."""

    generator: Generator
    discriminator: Discriminator


class Change(NamedTuple):
    """By how much rounding the weights moved what the models give on the fixed rows, at most."""

    logits: float  # of masked tokens, as a share of the largest
    probability: float  # of having been replaced


class Written(NamedTuple):
    """What came of the pair."""

    change: Change
    size_bytes: int  # of the file of weights


def export_pair(source: Path, folder: Path, told: Told) -> Written:
    """Write the pair that `source`, a run or a folder with generator/ and discriminator/, holds; returns the rounding.

    `told` is what the card says beside what is found. Raises UsageError where there are not two models or the folder
    cannot be written, CheckpointError where they cannot be stored as one or rounding changes what they give.
    """
    from electra_albert.apps.export.pair_card import pair_card, say_left_out
    from electra_albert.hub.pair_file import PAIR_FILE

    files = _locate_both(source)
    refuse_source(folder, *files)
    require_stock(*files)
    refuse_other_models(folder)
    models, tokenizer = _read(source, files)
    say_left_out(source)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
            beside = Path(name)
            rounded = _write_models(beside, models, tokenizer, str(source))
            change = _measure(models, rounded, tokenizer.mask_token_id, folder)
            size_bytes = (beside / PAIR_FILE).stat().st_size
            card = pair_card(folder.resolve().name, models, source, told, size_bytes)
            if is_anothers(folder / CARD):
                card = (folder / CARD).read_bytes().decode("utf-8", errors="surrogateescape")
                print(f"notice: {folder / CARD} was not written here, or changed since; it stays", file=sys.stderr)
            (beside / CARD).write_bytes(card.encode("utf-8", errors="surrogateescape"))
            (beside / SUMS).write_text(_sums(beside), encoding="utf-8")
            _put_in_place(beside, folder)
    except OSError as error:
        raise UsageError(f"cannot write the pair into {folder} ({error.strerror or error}); make room") from None
    return Written(change, size_bytes)


def _locate_both(source: Path) -> list[ModelFiles]:
    """The files of generator and discriminator; UsageError where the two are not there."""
    from electra_albert.hub.load import locate

    if (source / "generator").is_dir() and not (source / "discriminator").is_dir():
        raise UsageError(
            f"{source} has a generator and no discriminator, as the objectives mlm and mlm_sop train none; export it "
            "alone by --kind generator"
        )
    files = [locate(source, "generator"), locate(source, "discriminator")]
    if files[0] == files[1]:
        raise UsageError(f"{source} is one model; name the folder that holds generator/ and discriminator/")
    return files


def _read(source: Path, files: list[ModelFiles]) -> tuple[Pair, Any]:
    """The models, and the one tokenizer they were trained with."""
    from electra_albert.hub.load import discriminator_of, generator_of, read_each

    tokenizers = [load_tokenizer(each.tokenizer) for each in files]
    if fingerprint(tokenizers[0]) != fingerprint(tokenizers[1]):
        raise CheckpointError(f"{source}: generator and discriminator have different tokenizers; export each alone")
    stored = read_each(files)
    pair = Pair(generator_of(stored[0], str(files[0].weights)), discriminator_of(stored[1], str(files[1].weights)))
    for held, each in zip(stored, files, strict=True):
        require_rows(len(tokenizers[0]), held.config.vocab_size, each)
    aside = {*left_aside(stored[0], pair.generator), *left_aside(stored[1], pair.discriminator)}
    say_left_aside(sorted(aside), "pair")
    return pair, tokenizers[0]


def _write_models(beside: Path, models: Pair, tokenizer: Any, origin: str) -> Pair:
    """Write tokenizer, configurations and weights, and read them again, which must give the rounded weights."""
    from electra_albert.apps.export.models import generator_architecture
    from electra_albert.hub.config import stock_config
    from electra_albert.hub.load import CONFIG_FILE, discriminator_of, generator_of, locate, read_each
    from electra_albert.hub.pair_file import PAIR_FILE, PARTS, join, require_one_table, write_pair

    shapes = (models.generator.config, models.discriminator.config)
    save_tokenizer(tokenizer, beside, min(shape.max_position_embeddings for shape in shapes))
    architectures = (generator_architecture(models.generator), "AlbertModel")
    for part, shape, architecture in zip(PARTS, shapes, architectures, strict=True):
        config = stock_config(shape, architecture, special_ids(tokenizer))
        (beside / part).mkdir()
        (beside / part / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = [_plain_names(model) for model in models]
    joined = join(tensors[0], tensors[1], origin)
    require_one_table(*shapes, origin)
    write_pair(joined, beside / PAIR_FILE)
    written = read_each([locate(beside, "generator"), locate(beside, "discriminator")])
    for wanted, found in zip(tensors, written, strict=True):
        rounded = {name: tensor.half().float() for name, tensor in wanted.items()}
        require_same(rounded, found.tensors, beside.parent)
    return Pair(generator_of(written[0], PAIR_FILE), discriminator_of(written[1], PAIR_FILE))


def _plain_names(model: Generator | Discriminator) -> dict[str, Tensor]:
    """The weights under stock ALBERT's names without `albert.`."""
    from electra_albert.hub.names import to_stock

    return {name.removeprefix("albert."): tensor for name, tensor in to_stock(model.state_dict()).items()}


def _measure(models: Pair, rounded: Pair, mask_id: int, folder: Path) -> Change:
    """The change of what both models give on fixed rows; CheckpointError where that is more than the tolerance.

    The generator reads the rows with [MASK] in some places and is asked there, the discriminator without.
    """
    import torch

    length = min(_CHECKED_LENGTH, *(model.config.max_position_embeddings for model in models))
    ids, mask, segments = probe(models.discriminator.config, _CHECKED_ROWS, length)
    takes_part = mask.bool()
    is_masked = takes_part & (torch.arange(length) % _MASKED_EVERY == 1)
    masked_ids = ids.masked_fill(is_masked, mask_id)
    logits, probabilities = [], []
    with torch.no_grad():
        for generator, discriminator in (models, rounded):
            hidden_states = generator(masked_ids, takes_part, segments)
            logits.append(generator.logits(hidden_states[is_masked]))
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
    from electra_albert.hub.pair_file import PAIR_FILE

    for file in sorted(_files_in(beside), key=lambda file: file.name == PAIR_FILE):
        (folder / file).parent.mkdir(exist_ok=True)
        os.replace(beside / file, folder / file)
