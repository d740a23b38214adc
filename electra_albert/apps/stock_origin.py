"""A stock folder whose weights a run begins with (--init_from): what it gives, and what has to be built anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.corpus.tokenizer import Tokenizer
    from electra_albert.model.loading import ModelFiles
    from electra_albert.objectives.pretraining import PretrainingObjective

_STOCK_CONFIG, _FOLDERS = "config.json", ("discriminator", "generator", "model")
_NOT_OF_THE_SHAPE = ("vocab_size", "initialization")  # the tokenizer's, and of weights that are drawn


class StockFiles(NamedTuple):
    """The models of a stock folder."""

    encoder: ModelFiles
    generator: ModelFiles | None  # a masked language model of its own beside the encoder


class StockWeights(NamedTuple):
    """What a run takes over of a stock folder, under our names and for the run's own vocabulary."""

    name: str  # of the folder, in messages
    encoder: dict[str, Tensor]
    generator: dict[str, Tensor] | None
    left_aside: list[str]
    new_pieces: int
    unused_rows: int  # of its token table, behind the pieces of its tokenizer


def is_stock(folder: Path) -> bool:
    """Whether the folder is no run of ours to go on from, but holds a model all the same."""
    from electra_albert.apps.run_folder import CONFIG

    is_run = (folder / CONFIG).exists() or (folder / "checkpoints").exists()
    return not is_run and any((folder / name / _STOCK_CONFIG).is_file() for name in (".", *_FOLDERS))


def find_files(folder: Path) -> StockFiles:
    """The encoder in the folder, and the generator where the two lie side by side. Raises UsageError."""
    from electra_albert.model.loading import locate, locate_encoder

    encoder = locate_encoder(folder)
    place, beside = encoder.weights.parent, encoder.weights.absolute().parent.parent / "generator"
    is_pair = place.absolute().name == "discriminator" and beside.is_dir()
    return StockFiles(encoder, locate(beside, "generator") if is_pair else None)


def stock_options(folder: Path) -> dict[str, Any]:
    """Options of a run that begins with the folder's weights: their shape and tokenizer, and the preset of their size.

    Raises UsageError or CheckpointError where the folder holds no model that can be read.
    """
    from electra_albert.model.loading import read_config

    files = find_files(folder).encoder
    shape = asdict(read_config(files.config))
    narrower = [name for name, preset in PRESETS.items() if preset.model.hidden_size <= shape["hidden_size"]]
    model = {name: value for name, value in shape.items() if name not in _NOT_OF_THE_SHAPE}
    return {"preset": narrower[-1] if narrower else "tiny", "model": model, "tokenizer": str(files.tokenizer)}


def read_weights(folder: Path, tokenizer: Tokenizer) -> StockWeights:
    """Read the folder's models for a run with `tokenizer`, which is the folder's own or that one with more pieces.

    Raises UsageError where it is another tokenizer, CheckpointError where the files cannot be read or generator and
    encoder have tables of their own.
    """
    from electra_albert.corpus.tokenizer import load_tokenizer
    from electra_albert.model.adoption import resize_vocabulary, same_tables
    from electra_albert.model.huggingface import from_stock
    from electra_albert.model.loading import read_stored

    files = find_files(folder)
    own = load_tokenizer(files.encoder.tokenizer)
    new = new_pieces(own, tokenizer, folder)
    stored = [read_stored(part) for part in files if part is not None]
    vocabulary = stored[0].config.vocab_size
    if vocabulary < len(own):
        raise CheckpointError(f"{folder}: its tokenizer has {len(own)} pieces, its token table {vocabulary} rows")
    states = [resize_vocabulary(from_stock(part.tensors), len(own), new) for part in stored]
    if len(states) > 1 and not same_tables(*states):
        raise CheckpointError(f"{folder}: generator and discriminator have tables of their own; name one of the two")
    left_aside = [name for part in stored for name in part.left_aside]
    generator = states[1] if len(states) > 1 else None
    return StockWeights(str(folder), states[0], generator, left_aside, len(new), vocabulary - len(own))


def new_pieces(own: Tokenizer, tokenizer: Tokenizer, folder: Path) -> list[list[int]]:
    """What each piece that `tokenizer` has and `own` lacks is written as in `own`'s pieces, by id.

    Raises UsageError where the pieces of `own` are not the first ones of `tokenizer`.
    """
    shared = range(len(own))
    if len(tokenizer) < len(own) or own.convert_ids_to_tokens(shared) != tokenizer.convert_ids_to_tokens(shared):
        raise UsageError(
            f"--init_from {folder}: its token table belongs to its own tokenizer; leave out --tokenizer, and extend "
            "its vocabulary by --extend_vocab_to"
        )
    added = tokenizer.convert_ids_to_tokens(range(len(own), len(tokenizer)))
    return [[token.id for token in own.backend_tokenizer.model.tokenize(piece)] for piece in added]


def begin_with_stock(weights: StockWeights, objective: PretrainingObjective, say: Callable[[str], None]) -> bool:
    """Copy the weights into what will be trained, and say what is new; whether a generator has still to be trained.

    The encoder becomes the discriminator where there is one. Where its own head predicts masked tokens and the
    generator is just as large, it becomes the generator too. Raises CheckpointError where shapes differ.
    """
    from electra_albert.model.adoption import adopt

    new = adopt(objective.discriminator or objective.generator, weights.encoder, weights.name)
    lacks_generator = False
    if objective.discriminator is not None:
        source = weights.generator
        if source is None and _is_as_large(objective) and "predictions.bias" in weights.encoder:
            source = weights.encoder
        lacks_generator = source is None
        new += ["generator"] if source is None else adopt(objective.generator, source, weights.name)
    say(f"beginning with the weights of {weights.name}; {_told(new, weights)}")
    say("the optimiser, the schedule and the order of rows start at step 1")
    return lacks_generator


def _is_as_large(objective: PretrainingObjective) -> bool:
    assert objective.discriminator is not None
    return objective.generator.config == objective.discriminator.config


def _told(new: list[str], weights: StockWeights) -> str:
    """What did not come from the folder, and what was not taken from it."""
    told = [f"new: {', '.join(name.replace('_', ' ') for name in new)}" if new else "nothing is new"]
    if weights.new_pieces:
        told.append(f"{weights.new_pieces:,} new pieces begin as the mean of those they were written as")
    if weights.unused_rows:
        told.append(f"{weights.unused_rows} rows of its token table belong to no piece and are left out")
    if weights.left_aside:
        told.append(f"left aside: {', '.join(weights.left_aside)}")
    return "; ".join(told)
