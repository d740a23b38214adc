"""The weights a run begins with (--init_from), of another run or a stock folder, and the text they were trained on."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.prepare import Prepared, find_store, prepare, with_tokenizer
from electra_albert.apps.run_folder import CONFIG, read_options, recorded_settings
from electra_albert.config import BUILT_IN_CORPUS, GROUPS, PretrainConfig, RtdConfig
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.examples import PackedExamples, build_table
from electra_albert.corpus.mixture import read_sources
from electra_albert.corpus.tokenizer import Tokenizer, fingerprint, load_tokenizer
from electra_albert.data_files.finding import find_files
from electra_albert.files import sha256
from electra_albert.hub import load
from electra_albert.hub.find import CONFIG_FILE, ENCODER_FOLDERS, ModelFiles, is_checkpoint, locate
from electra_albert.hub.load import Stored, require_same_computation
from electra_albert.hub.weights import all_files
from electra_albert.model.encoder import Backbone, EncoderModel
from electra_albert.objectives.rtd import PretrainingObjective
from electra_albert.presets import PRESETS
from electra_albert.training.checkpoint import MANIFEST, MODEL, find_checkpoint, load_checkpoint, read_state
from electra_albert.training.distributed import World, gather_objects, main_first

LOG = logging.getLogger(__name__)

_OPTION = "leave out the option that changes it"
_OLD_TEXT = ("prepared_dir", "store", "max_seq_length", "seed")  # settings that identify the rows a run was scored on
_NOT_OF_THE_SHAPE = ("vocab_size", "initialization", "initializer_range")  # the tokenizer's; of weights that are drawn
_INHERITED = ("preset", "objective", "max_seq_length", *GROUPS)


class Origin(NamedTuple):
    """The source of a run's first weights; neither checkpoint nor stock where the run has a checkpoint of its own."""

    record: dict[str, Any]  # kept in the new run's checkpoints
    checkpoint: Path | None = None  # of another run
    stock: tuple[Stored, ...] = ()  # the encoder, and the generator next to it, if any
    held_out: PackedExamples | None = None  # of the text it was trained on, where that is still prepared


def inherited_options(source: Path, output_dir: Path) -> dict[str, Any]:
    """Preset, objective, shape and tokenizer that come with the weights of `source`, or that a checkpoint recorded."""
    for file in sorted(output_dir.glob("checkpoints/step-*/state.json"), reverse=True):
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))["settings"]
            if settings["init_from"] == str(source):
                return {**settings["origin"]["options"], "tokenizer": str(output_dir / "tokenizer")}
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return _stock_options(source) if _is_stock(source) else {**_run_options(source), "tokenizer": f"{source}/tokenizer"}


def _run_options(run: Path) -> dict[str, Any]:
    if not (run / CONFIG).is_file():
        problem = (
            f"holds neither a run ({CONFIG}) nor a stock model (config.json)" if run.exists() else "does not exist"
        )
        raise UsageError(f"--init_from {run} {problem}; name a folder here, a hub model is fetched first")
    options = read_options(run / CONFIG, f"--init_from {run}: its {CONFIG}")
    return {key: value for key, value in options.items() if key in _INHERITED or isinstance(value, dict)}


def _stock_options(folder: Path) -> dict[str, Any]:
    """The shapes and the tokenizer of the models in a folder, the preset of their size, and a length they can read."""
    encoder, *others = _find_models(folder)
    shape = load.read_config(encoder)
    narrower = [name for name, preset in PRESETS.items() if preset.model.hidden_size <= shape.hidden_size]
    preset, positions = ["tiny", *narrower][-1], shape.max_position_embeddings
    model = {name: value for name, value in asdict(shape).items() if name not in _NOT_OF_THE_SHAPE}
    # A preset's settings of the generator are for weights that begin at random.
    rtd = {"generator_layers": None, "generator_rate": RtdConfig.generator_rate}
    options: dict[str, Any] = {"preset": preset, "model": model, "tokenizer": str(encoder.tokenizer), "rtd": rtd}
    if positions < max(sizes.corpus.max_seq_length for sizes in PRESETS.values()):
        options["max_seq_length"] = min(PRESETS[preset].corpus.max_seq_length, positions)
    for generator in map(load.read_config, others):
        rtd["generator_size"] = generator.hidden_size / shape.hidden_size
        if generator.num_hidden_layers != shape.num_hidden_layers:
            rtd["generator_layers"] = generator.num_hidden_layers
    return options


def _is_stock(folder: Path) -> bool:
    """Whether the folder is no run of ours, but holds a model or is a checkpoint."""
    is_run = (folder / CONFIG).exists() or (folder / "checkpoints").exists()
    has_model = any((folder / name / CONFIG_FILE).is_file() for name in (".", *ENCODER_FOLDERS))
    return not is_run and (has_model or is_checkpoint(folder))


def _find_models(folder: Path) -> list[ModelFiles]:
    """The encoder in a folder, and the generator where it is a discriminator next to one. Raises UsageError."""
    encoder = locate(folder)
    parent = encoder.weights.absolute().parent
    if encoder.part == "discriminator":  # of a checkpoint
        return [encoder, locate(encoder.weights, "generator")]
    if parent.name == "discriminator" and parent.with_name("generator").is_dir():
        return [encoder, locate(parent.with_name("generator"), "generator")]
    return [encoder]


def find_origin(
    config: PretrainConfig,
    recorded: Mapping[str, Any] | None,
    prepared: Prepared,
    held_out: PackedExamples,
    world: World,
) -> Origin | None:
    """The first weights, the same on all ranks, and the old text laid out as `held_out`; None for random weights.

    `recorded` are the settings of a run that is resumed. Raises UsageError or CheckpointError.
    """
    if recorded is not None:
        record = recorded.get("origin")
        return _with_old_text(Origin(dict(record)), held_out, world) if isinstance(record, dict) else None
    if config.run.init_from is None:
        return None
    path = Path(config.run.init_from)
    if _is_stock(path):
        with main_first(world):
            weights = _read_weights(path, prepared.tokenizer)
            hashes = [sha256(file) for part in _find_models(path) for file in all_files(part.weights)]
            record = {"step": None, "weights": " ".join(hashes), "options": _stock_options(path)}
            run = path.absolute().parent  # of ours, where the folder is in a run's or is a run's checkpoint
            settings = recorded_settings(run.parent if run.name == "checkpoints" else run)
        origin = Origin(record | {name: settings.get(name) for name in _OLD_TEXT}, stock=weights)
    else:
        origin = _find_run(path, config, prepared.tokenizer, world)
    if config.run.old_corpus is not None:
        origin.record.update(_prepare_old_text(config, prepared.tokenizer_dir, world))
    return _with_old_text(origin, held_out, world)


def _find_run(run: Path, config: PretrainConfig, tokenizer: Tokenizer, world: World) -> Origin:
    """The newest whole checkpoint of `run`."""
    name = f"--init_from {run}"
    with main_first(world):
        found = find_checkpoint(run / "checkpoints", "auto")
        if found is None:
            raise UsageError(f"{name}: it holds no checkpoint to begin with; name a run that was trained")
        settings = recorded_settings(run)
        trained, known = settings.get("objective"), settings.get("model")
        if trained != config.run.objective:
            raise CheckpointError(f"{name}: it was trained with objective {trained}; leave out --objective")
        require_same_computation(config.model, known if isinstance(known, dict) else {}, name, _OPTION)
        if fingerprint(load_tokenizer(run / "tokenizer")) != fingerprint(tokenizer):
            raise CheckpointError(
                f"{name}: it was trained with another tokenizer; leave out --tokenizer and what changes it; to extend "
                f"its vocabulary begin with {run}/discriminator or generator"
            )
    checkpoint: Path = gather_objects(found, world)[0]
    with main_first(world):
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        record = {"step": read_state(checkpoint)["step"], "weights": manifest["files"][MODEL]["sha256"]}
    return Origin(record | {key: settings.get(key) for key in _OLD_TEXT} | {"options": _run_options(run)}, checkpoint)


def _read_weights(folder: Path, tokenizer: Tokenizer) -> tuple[Stored, ...]:
    """The folder's models for a run with `tokenizer`, which is the folder's own or that one with more tokens."""
    files = _find_models(folder)
    own = load_tokenizer(files[0].tokenizer)
    size, tokens = len(own), tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if own.convert_ids_to_tokens(range(size)) != tokens[:size]:
        way_out = "leave out --tokenizer, and extend its vocabulary by --extend_vocab_to"
        raise UsageError(f"--init_from {folder}: its token table belongs to its own tokenizer; {way_out}")
    new = [[token.id for token in own.backend_tokenizer.model.tokenize(text)] for text in tokens[size:]]
    models = [load.read_stored(each) for each in files]
    for stored in models:
        load.build(stored, EncoderModel)  # refuses weights that are not those of the configuration
    rows = models[0].config.vocab_size
    if rows < size:
        raise CheckpointError(f"{folder}: its tokenizer has {size} tokens, its token table {rows} rows")
    models = [stored._replace(tensors=load.resize_vocabulary(stored.tensors, size, new)) for stored in models]
    if len(models) > 1 and not load.have_equal_embeddings(*(stored.tensors for stored in models)):
        raise CheckpointError(f"{folder}: the two models have tables of their own; move one elsewhere")
    if new:
        LOG.info(f"{len(new):,} new tokens begin as the mean of those they were split into")
    if rows > size:
        LOG.info(f"{rows - size} rows of the token table in {folder} belong to no token and are left out")
    return tuple(models)


def begin_with(origin: Origin, name: str, objective: PretrainingObjective) -> bool:
    """Copy the weights of `name` into the objective; whether its generator is new and has to be trained.

    A stock encoder becomes the discriminator, if any, and a generator of its size where it predicts masked tokens.
    """
    if origin.checkpoint is None and not origin.stock:
        return False
    LOG.info("the optimiser, the schedule and the order of examples start at step 1")
    if origin.checkpoint is not None:
        load_checkpoint(origin.checkpoint, objective, None)
        LOG.info(f"beginning with the weights of {name} after step {origin.record['step']:,}")
        return False
    encoder, generators, discriminator = origin.stock[0], [*origin.stock[1:]], objective.discriminator
    new, unused = _take(discriminator or objective.generator, encoder, name)
    unused += [head for stored in origin.stock for head in stored.unsupported_heads]
    if discriminator is None:
        unused += ["generator"] * len(generators)
    else:
        if not generators and "predictions" in unused and objective.generator.config == discriminator.config:
            generators = [encoder]
            unused.remove("predictions")
        way_out = "begin with the discriminator's folder alone, put elsewhere, and a generator is built for it"
        for generator in generators:  # its heads are the discriminator's, scaled by rtd.generator_size
            new += _take(objective.generator, generator, f"{name}'s generator", way_out)[0]
        new += [] if generators else ["generator"]
    LOG.info(f"beginning with the weights of {name}; new: {', '.join(new) or 'nothing'}")
    if unused:
        LOG.info(f"left out: {', '.join(unused)}")
    return discriminator is not None and not generators


def _take(model: Backbone, source: Stored, name: str, way_out: str = _OPTION) -> tuple[list[str], list[str]]:
    """Copy the tensors that fit; the parts of the model that are new, and those of the source that are not used."""
    require_same_computation(model.config, asdict(source.config), name, way_out)
    new = load.load_partial(model, source.tensors, name)
    used = {part for part, _ in model.named_children()} - set(new)
    if "sentence_order" in used and "sentence_order.pooler" not in new:
        used.add("pooler")
    return new, [part for part in dict.fromkeys(key.split(".")[0] for key in source.tensors) if part not in used]


def require_old_corpus(config: PretrainConfig) -> None:
    """Raise UsageError or DataError where --old_corpus names no text."""
    old, corpus = config.run.old_corpus, config.corpus
    with _naming(old):
        for source in read_sources(old, corpus.text_column) if old else ():
            if source.corpus != BUILT_IN_CORPUS:
                find_files(source.corpus, Counter(), corpus.encoding)


@contextmanager
def _naming(old: str | None) -> Iterator[None]:
    try:
        yield
    except (DataError, UsageError) as error:
        raise type(error)(f"--old_corpus {old}: {error}") from None


def _prepare_old_text(config: PretrainConfig, tokenizer_dir: Path, world: World) -> dict[str, Any]:
    """Prepare --old_corpus with the run's tokenizer; the settings that identify its rows."""
    old, corpus, seed = str(config.run.old_corpus), config.corpus, config.training.seed
    with main_first(world), _naming(old):
        LOG.info(f"preparing the old text {old}")
        store = prepare(replace(with_tokenizer(corpus, tokenizer_dir), corpus=old), seed).store
    found = (corpus.prepared_dir, store.fingerprint, corpus.max_seq_length, seed, "train")
    return dict(zip((*_OLD_TEXT, "side"), found, strict=True))


def _with_old_text(origin: Origin, like: PackedExamples, world: World) -> Origin:
    """The origin with the rows its weights were scored on, laid out as `like`, where all processes have some."""
    record, held_out = origin.record, None
    if record.get("store") is None:
        LOG.info("notice: what is forgotten of the text these weights know is measured only with an --old_corpus")
        return origin
    with suppress(OSError, ValueError, TypeError):
        if store := find_store(Path(str(record["prepared_dir"])), str(record["store"])):
            length, seed, side = int(record["max_seq_length"]), int(record["seed"]), record.get("side", "validation")
            stream = store.train if side == "train" else store.validation
            table = build_table(stream, length, seed, store.folder / str(side))
            held_out = replace(like, stream=stream, table=table, max_seq_length=length, seed=seed)
    is_enough = held_out is not None and held_out.table.count >= world.world_size
    if all(gather_objects(is_enough, world)):  # all processes score it, or none
        return origin._replace(held_out=held_out)
    problem = f"is no longer prepared in {record['prepared_dir']}, or too little is held out"
    LOG.info(f"notice: the old text {problem}; what is forgotten of it is not measured")
    return origin
