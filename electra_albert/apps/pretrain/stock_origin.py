"""A stock folder whose weights a run begins with (--init_from): what it gives, and what has to be built anew."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.run_folder import CONFIG
from electra_albert.config import RtdConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.config import ModelConfig
    from electra_albert.corpus.tokenizer import Tokenizer
    from electra_albert.hub.loading import ModelFiles, Stored
    from electra_albert.model.electra import Discriminator, Generator
    from electra_albert.objectives.registry import PretrainingObjective

LOG = logging.getLogger(__name__)

_STOCK_CONFIG, _FOLDERS = "config.json", ("discriminator", "generator", "model")
OPTION_SAYS_SO = "leave out the option that says so"
_ORDER = ("sentence_order.pooler", "sentence_order.classifier")
_NOT_OF_THE_SHAPE = ("vocab_size", "initialization", "initializer_range")  # the tokenizer's; of weights that are drawn


class StockFiles(NamedTuple):
    """The models of a stock folder."""

    encoder: ModelFiles
    generator: ModelFiles | None  # a masked language model of its own beside the encoder


class StockModel(NamedTuple):
    """One model of a stock folder, under our names and for the run's own vocabulary."""

    config: ModelConfig  # as the folder says it
    state: dict[str, Tensor]


class StockWeights(NamedTuple):
    """What a run takes over of a stock folder."""

    name: str  # of the folder, in messages
    encoder: StockModel
    generator: StockModel | None
    left_aside: list[str]
    new_pieces: int
    unused_rows: int  # of its token table, behind the pieces of its tokenizer


def is_stock(folder: Path) -> bool:
    """Whether the folder is no run of ours to go on from, but holds a model all the same; a checkpoint does."""
    from electra_albert.hub.run_checkpoint import is_checkpoint

    is_run = (folder / CONFIG).exists() or (folder / "checkpoints").exists()
    has_model = any((folder / name / _STOCK_CONFIG).is_file() for name in (".", *_FOLDERS))
    return not is_run and (has_model or is_checkpoint(folder))


def find_files(folder: Path) -> StockFiles:
    """The encoder in the folder, and the generator where the two lie side by side. Raises UsageError."""
    from electra_albert.hub.loading import locate, locate_encoder

    encoder = locate_encoder(folder)
    if encoder.part:  # of a file that holds both
        return StockFiles(encoder, locate(encoder.weights, "generator") if encoder.part == "discriminator" else None)
    place, beside = encoder.weights.parent, encoder.weights.absolute().parent.parent / "generator"
    is_pair = place.absolute().name == "discriminator" and beside.is_dir()
    return StockFiles(encoder, locate(beside, "generator") if is_pair else None)


def stock_options(folder: Path) -> dict[str, Any]:
    """Options of a run that begins with the folder's weights: their shapes and tokenizer, and the preset of their size.

    Rows are as long as that preset's, or as the model can read. Raises UsageError or CheckpointError where the folder
    holds no model that can be read.
    """
    from electra_albert.hub.loading import read_config

    files = find_files(folder)
    shape = read_config(files.encoder)
    narrower = [name for name, preset in PRESETS.items() if preset.model.hidden_size <= shape.hidden_size]
    preset, positions = narrower[-1] if narrower else "tiny", shape.max_position_embeddings
    model = {name: value for name, value in asdict(shape).items() if name not in _NOT_OF_THE_SHAPE}
    # What a preset says of the generator is for weights that begin at random.
    rtd: dict[str, Any] = {"generator_layers": None, "generator_rate": RtdConfig.generator_rate}
    options: dict[str, Any] = {"preset": preset, "model": model, "tokenizer": str(files.encoder.tokenizer), "rtd": rtd}
    if positions < max(sizes.corpus.max_seq_length for sizes in PRESETS.values()):
        options["max_seq_length"] = min(PRESETS[preset].corpus.max_seq_length, positions)
    if files.generator is not None:
        generator = read_config(files.generator)
        rtd["generator_size"] = generator.hidden_size / shape.hidden_size
        if generator.num_hidden_layers != shape.num_hidden_layers:
            rtd["generator_layers"] = generator.num_hidden_layers
    return options


def read_weights(folder: Path, tokenizer: Tokenizer) -> StockWeights:
    """Read the folder's models for a run with `tokenizer`, which is the folder's own or that one with more pieces.

    Raises UsageError where it is another tokenizer, CheckpointError where the files cannot be read or generator and
    encoder have tables of their own.
    """
    from electra_albert.corpus.tokenizer import load_tokenizer
    from electra_albert.hub.adoption import resize_vocabulary, same_tables
    from electra_albert.hub.huggingface import from_stock

    files = find_files(folder)
    own = load_tokenizer(files.encoder.tokenizer)
    new = new_pieces(own, tokenizer, folder)
    stored = _read([part for part in files if part is not None])
    vocabulary = stored[0].config.vocab_size
    if vocabulary < len(own):
        raise CheckpointError(f"{folder}: its tokenizer has {len(own)} pieces, its token table {vocabulary} rows")
    models = [StockModel(part.config, resize_vocabulary(from_stock(part.tensors), len(own), new)) for part in stored]
    if len(models) > 1 and not same_tables(*(model.state for model in models)):
        raise CheckpointError(
            f"{folder}: generator and discriminator have tables of their own; move one of the two elsewhere"
        )
    left_aside = [name for part in stored for name in part.left_aside]
    generator = models[1] if len(models) > 1 else None
    return StockWeights(str(folder), models[0], generator, left_aside, len(new), vocabulary - len(own))


def _read(models: list[ModelFiles]) -> list[Stored]:
    """What the files hold, after each encoder is seen to have the sizes that they say: a run makes what they say."""
    from electra_albert.hub.loading import body_of, read_each

    stored = read_each(models)
    for files, part in zip(models, stored, strict=True):
        body_of(part, str(files.weights))
    return stored


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


def begin_with_stock(weights: StockWeights, objective: PretrainingObjective) -> bool:
    """Copy the weights into what will be trained, and say what is new; whether a generator has still to be trained.

    The encoder becomes the discriminator where there is one. Where its own head predicts masked tokens and the
    generator is just as large, it becomes the generator too. Raises CheckpointError where shapes differ, or what does
    not show in them.
    """
    new, unused = _take(objective.discriminator or objective.generator, weights.encoder, weights.name)
    lacks_generator = False
    if objective.discriminator is None:
        unused += ["generator"] if weights.generator is not None else []
    else:
        source = weights.generator
        if source is None and _is_as_large(objective) and "predictions.bias" in weights.encoder.state:
            source = weights.encoder
            unused.remove("predictions")
        lacks_generator = source is None
        new += ["generator"] if source is None else _take_generator(objective, source, weights.name)
    LOG.info(f"beginning with the weights of {weights.name}; {_told(new, unused, weights)}")
    LOG.info("the optimiser, the schedule and the order of rows start at step 1")
    return lacks_generator


def _take_generator(objective: PretrainingObjective, source: StockModel, name: str) -> list[str]:
    """As _take, of the generator: its heads are the discriminator's, scaled by rtd.generator_size."""
    way_out = "begin with the discriminator's folder alone, put elsewhere, and a generator is built for it"
    return _take(objective.generator, source, f"the generator in {name}", way_out)[0]


def _take(
    model: Generator | Discriminator, source: StockModel, name: str, way_out: str = OPTION_SAYS_SO
) -> tuple[list[str], list[str]]:
    """Copy what fits; the parts of the model that are new, and those of the source that it has no use for."""
    from electra_albert.hub.adoption import adopt, require_same_computation

    require_same_computation(model.config, asdict(source.config), name, way_out)
    new = adopt(model, source.state, name)
    used = {part for part, _ in model.named_children()} - set(new)
    unused = dict.fromkeys(part for part in (key.split(".")[0] for key in source.state) if part not in used)
    is_pooler = "sentence_order.classifier.weight" not in source.state  # the body's, which is a part of that head here
    return new, ["pooler" if part == "sentence_order" and is_pooler else part for part in unused]


def _is_as_large(objective: PretrainingObjective) -> bool:
    assert objective.discriminator is not None
    return objective.generator.config == objective.discriminator.config


def _told(new: list[str], unused: list[str], weights: StockWeights) -> str:
    """What did not come from the folder, and what was not taken from it."""
    told = [f"new: {', '.join(_in_words(new))}" if new else "nothing is new"]
    if weights.new_pieces:
        told.append(f"{weights.new_pieces:,} new pieces begin as the mean of those they were written as")
    if weights.unused_rows:
        told.append(f"{weights.unused_rows} rows of its token table belong to no piece and are left out")
    left_aside = [*_in_words(unused), *weights.left_aside]
    if left_aside:
        told.append(f"left aside: {', '.join(left_aside)}")
    return "; ".join(told)


def _in_words(parts: list[str]) -> list[str]:
    """Parts as they are told; the two layers of a sentence-order head as one where both are meant."""
    whole = [part.split(".")[0] if {*_ORDER} <= {*parts} else part for part in parts]
    return [part.replace("_", " ").replace(".", " ") for part in dict.fromkeys(whole)]
