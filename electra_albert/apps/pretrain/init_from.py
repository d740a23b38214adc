"""Initial weights from another run or a stock folder (--init_from), and the text they were trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.apps.run_folder import CONFIG, read_options, without_removed
from electra_albert.apps.settings import recorded_settings
from electra_albert.config import BUILT_IN_CORPUS, GROUPS, ModelConfig, PretrainConfig, RtdConfig
from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.corpus.examples import PackedExamples
from electra_albert.corpus.folder import with_tokenizer
from electra_albert.corpus.mixture import read_sources
from electra_albert.corpus.prepare import Prepared, find_store, prepare
from electra_albert.corpus.rows import build_table
from electra_albert.data_files.finding import find_files
from electra_albert.files import load_manifest, sha256
from electra_albert.hub import load
from electra_albert.hub.find import (
    CONFIG_FILE,
    ENCODER_FOLDERS,
    ModelFiles,
    is_checkpoint,
    locate,
)
from electra_albert.hub.formats import TABLE
from electra_albert.hub.load import Stored, require_same_computation
from electra_albert.hub.weights import all_files, digest
from electra_albert.model import growth
from electra_albert.model.electra import Discriminator
from electra_albert.model.encoder import Backbone, EncoderModel
from electra_albert.objectives import spec_of
from electra_albert.objectives.rtd import PretrainingModule
from electra_albert.presets import PRESETS
from electra_albert.tokenization.tokenizer import Tokenizer, fingerprint, load_tokenizer
from electra_albert.training.checkpoint import (
    MANIFEST,
    MODEL,
    find_checkpoint,
    find_problem,
    list_checkpoints,
    load_checkpoint,
    read_state,
)
from electra_albert.training.distributed import World, gather_objects, main_first

_EXTEND = "to extend its vocabulary use --init_from {run}/discriminator or {run}/generator"
_OPTION = "correct or remove the option that changes it"
_OLD_TEXT = ("prepared_dir", "store", "max_seq_length", "seed")  # settings that identify a run's held-out examples
# The vocabulary is the tokenizer's, the others are for random weights only.
_NOT_INHERITED = ("vocab_size", "initialization", "initializer_range", "zero_init_outputs")
_INHERITED = ("preset", "objective", "max_seq_length", *GROUPS)


class Origin(NamedTuple):
    """The source of a run's initial weights; without checkpoint and stock if the run has its own checkpoint."""

    record: dict[str, Any]  # saved in the new run's checkpoints
    checkpoint: Path | None = None  # of another run
    stock: tuple[Stored, ...] = ()  # the encoder, and the generator next to it, if any
    held_out: PackedExamples | None = None  # of the text they were trained on, if its store still exists


def inherited_options(source: Path, output_dir: Path) -> dict[str, Any]:
    """Preset, objective, architecture and tokenizer of `source`; of a resumed run, those in its checkpoint."""
    for _, checkpoint in reversed(list_checkpoints(output_dir / "checkpoints")):
        settings = {} if find_problem(checkpoint) else read_state(checkpoint)["settings"]
        if settings.get("init_from") == str(source):
            options = _inheritable(settings["origin"]["options"])
            return {**options, "tokenizer": str(output_dir / "tokenizer")}
    return _stock_options(source) if _is_stock(source) else {**_run_options(source), "tokenizer": f"{source}/tokenizer"}


def _inheritable(options: dict[str, Any]) -> dict[str, Any]:
    """The recorded options that exist, with the number of positions."""
    positions = options["model"]["max_position_embeddings"]
    options = without_removed(options)
    options["model"]["max_position_embeddings"] = positions
    options["model"].pop("vocab_size", None)
    return options


def _run_options(run: Path) -> dict[str, Any]:
    if not (run / CONFIG).is_file():
        problem = f"is neither a run ({CONFIG}) nor a stock model (config.json)" if run.exists() else "does not exist"
        raise UsageError(f"--init_from {run} {problem}; name a local folder, and download a hub model first")
    checkpoint = find_checkpoint(run / "checkpoints", "auto")
    if checkpoint is None:
        options = read_options(run / CONFIG, f"--init_from {run}: its {CONFIG}")
    else:  # whose hashes were compared
        settings = read_state(checkpoint)["settings"]
        options = _inheritable(settings)
    groups = {key for key, value in options.items() if isinstance(value, dict)} - {"origin"}
    return {key: options[key] for key in options if key in groups.union(_INHERITED)}


def _stock_options(folder: Path) -> dict[str, Any]:
    """Architecture and tokenizer of a folder's models, the preset of their size, and a sequence length they support."""
    encoder, *others = _find_models(folder)
    shape = load.read_config(encoder)
    narrower = [name for name, preset in PRESETS.items() if preset.model.hidden_size <= shape.hidden_size]
    preset, positions = ["tiny", *narrower][-1], shape.max_position_embeddings
    model = {name: value for name, value in asdict(shape).items() if name not in _NOT_INHERITED}
    # A preset's settings of the generator are for random initial weights.
    rtd: dict[str, Any] = {"generator_layers": None, "generator_rate": RtdConfig.generator_rate}
    options: dict[str, Any] = {"preset": preset, "model": model, "tokenizer": str(encoder.tokenizer), "rtd": rtd}
    options["max_seq_length"] = min(PRESETS[preset].corpus.max_seq_length, positions)
    for files, generator in zip(others, map(load.read_config, others), strict=True):
        if TABLE in load.different_embeddings(load.read_stored(encoder).tensors, load.read_stored(files).tensors):
            rtd["embedding_sharing"] = "disentangled"
        rtd["generator_size"] = generator.hidden_size / shape.hidden_size
        if generator.num_hidden_layers != shape.num_hidden_layers:
            rtd["generator_layers"] = generator.num_hidden_layers
    return options


def _is_stock(folder: Path) -> bool:
    """Whether the folder contains a model or is a checkpoint, and is not a run of ours."""
    is_run = (folder / CONFIG).exists() or (folder / "checkpoints").exists()
    has_model = any((folder / name / CONFIG_FILE).is_file() for name in (".", *ENCODER_FOLDERS))
    return not is_run and (has_model or is_checkpoint(folder))


def _find_models(folder: Path) -> list[ModelFiles]:
    """The encoder in a folder, and for a discriminator the generator next to it, if any. Raises UsageError."""
    encoder = locate(folder)
    parent = encoder.weights.absolute().parent
    if encoder.part == "discriminator":  # of a checkpoint, with or without a generator
        return list(dict.fromkeys((encoder, locate(encoder.weights, "any"))))
    if parent.name == "discriminator" and parent.with_name("generator").is_dir():
        return [encoder, locate(parent.with_name("generator"), "generator")]
    return [encoder]


def find_origin(
    config: PretrainConfig, recorded: Mapping[str, Any] | None, prepared: Prepared, like: PackedExamples, world: World
) -> Origin | None:
    """Initial weights, equal on all ranks, and the old text packed like `like`; None for random weights.

    recorded: settings of a resumed run. Raises UsageError or CheckpointError.
    """
    if recorded is not None:
        record = recorded.get("origin")
        return _with_old_text(Origin(dict(record)), like, world) if isinstance(record, dict) else None
    if config.run.init_from is None:
        return None
    path = Path(config.run.init_from)
    if _is_stock(path):
        with main_first(world):
            weights = _read_weights(path, prepared.tokenizer, config.rtd)
            hashes = [sha256(file) for part in _find_models(path) for file in all_files(part.weights)]
            record = {"step": None, "weights": " ".join(hashes), "options": _stock_options(path)}
            run = path.absolute().parent  # a run of ours, if the folder is its model or checkpoint
            settings = recorded_settings(run.parent if run.name == "checkpoints" else run)
        origin = Origin(record | {name: settings.get(name) for name in _OLD_TEXT}, stock=weights)
    else:
        origin = _find_run(path, config, prepared.tokenizer, world)
    if config.run.old_corpus is not None:
        origin.record.update(_prepare_old_text(config, prepared.tokenizer_dir, world))
    return _with_old_text(origin, like, world)


def _find_run(run: Path, config: PretrainConfig, tokenizer: Tokenizer, world: World) -> Origin:
    """The newest complete checkpoint of `run`."""
    name = f"--init_from {run}"
    with main_first(world):
        found = find_checkpoint(run / "checkpoints", "auto")
        if found is None:
            raise UsageError(f"{name}: it has no checkpoint; name a trained run")
        settings = read_state(found)["settings"]
        if (trained := settings.get("objective")) != config.run.objective:
            raise CheckpointError(f"{name}: it was trained with objective {trained}; remove --objective")
        if (kind := (settings.get("rtd") or {}).get("generator", RtdConfig.generator)) != config.rtd.generator:
            raise CheckpointError(f"{name}: its rtd.generator is {kind}; remove yours, or name {run}/discriminator")
        groups = (settings.get("model") or {}).get("num_hidden_groups", config.model.num_hidden_groups)
        if kind == "shared" and spec_of(config).has_discriminator and groups < config.model.num_hidden_groups:
            raise CheckpointError(f"{name}: its models share their layers; to add groups name {run}/discriminator")
        if fingerprint(load_tokenizer(run / "tokenizer")) != fingerprint(tokenizer):
            raise CheckpointError(
                f"{name}: it was trained with another tokenizer; remove --tokenizer and options that change it; "
                f"{_EXTEND.format(run=run)}"
            )
    checkpoint: Path = gather_objects(found, world)[0]
    with main_first(world):
        weights = load_manifest(checkpoint / MANIFEST)["files"][MODEL]
        record = {"step": read_state(checkpoint)["step"], "weights": weights.sha256}
    return Origin(record | {key: settings.get(key) for key in _OLD_TEXT} | {"options": _run_options(run)}, checkpoint)


def _read_weights(folder: Path, tokenizer: Tokenizer, rtd: RtdConfig) -> tuple[Stored, ...]:
    """The folder's models for a run with `tokenizer`, the folder's own or an extension of it."""
    files = _find_models(folder)
    own = load_tokenizer(files[0].tokenizer)
    size, tokens = len(own), tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    if own.convert_ids_to_tokens(range(size)) != tokens[:size]:
        advice = "remove --tokenizer; to extend its vocabulary use --extend_vocab_to"
        raise UsageError(f"--init_from {folder}: its embeddings belong to its own tokenizer; {advice}")
    new = [[token.id for token in own.backend_tokenizer.model.tokenize(text)] for text in tokens[size:]]
    models = [load.read_stored(each) for each in files]
    for stored in models:
        load.build(stored, EncoderModel)  # refuses weights that do not match the configuration
    rows = models[0].config.vocab_size
    if rows < size:
        raise CheckpointError(f"{folder}: its tokenizer has {size} tokens, but its embedding table has {rows} rows")
    models = [stored._replace(tensors=load.resize_vocabulary(stored.tensors, size, new)) for stored in models]
    own = {TABLE} if rtd.embedding_sharing == "disentangled" else set()
    if len(models) > 1 and load.different_embeddings(*(stored.tensors for stored in models)) - own:
        advice = "use --rtd.embedding_sharing disentangled, or move one to another folder"
        raise CheckpointError(f"{folder}: the two models do not share their embeddings; {advice}")
    layers, *others = ({key: value for key, value in one.tensors.items() if "encoder." in key} for one in models)
    if rtd.generator == "shared" and any(digest(layers | other) != digest(layers) for other in others):
        raise CheckpointError(f"{folder}: the two models do not share their layers; use --rtd.generator own")
    if new:
        LOG.info(f"{len(new):,} new tokens are initialized with the mean embedding of their former subwords")
    if rows > size:
        LOG.info(f"{rows - size} rows of the embedding table in {folder} belong to no token and are dropped")
    return tuple(models)


def initialize_weights(origin: Origin, name: str, objective: PretrainingModule, seed: int) -> bool:
    """Copy the weights of `name` into the objective. Returns whether its generator is new and must be trained.

    A stock encoder becomes the discriminator, if any. With a masked-token head it becomes a generator of its size too.
    """
    if origin.checkpoint is None and not origin.stock:
        return False
    LOG.info("optimizer, learning rate schedule and example order start at step 1")
    if origin.checkpoint is not None:
        load_checkpoint(
            origin.checkpoint, objective, None, partial(_grow_run, origin.checkpoint, name, objective, seed)
        )
        LOG.info(f"initial weights: {name} after step {origin.record['step']:,}")
        return False
    encoder, generators, discriminator = origin.stock[0], [*origin.stock[1:]], objective.discriminator
    generator: Any = objective.generator  # None if none is trained
    new, unused = _copy_tensors(discriminator or generator, encoder, name, seed)
    unused += [head for stored in origin.stock for head in stored.unsupported_heads]
    if discriminator is None or generator is None:
        unused += ["generator"] * len(generators)
    else:
        if not generators and "predictions" in unused and generator.config == discriminator.config:
            generators = [encoder]
            unused.remove("predictions")
        advice = "to get a new generator instead, copy the discriminator's folder elsewhere and name the copy"
        for stored in generators:  # its heads are the discriminator's, scaled by rtd.generator_size
            new += _copy_tensors(generator, stored, f"{name}'s generator", seed, advice)[0]
        new += [] if generators else ["generator"]
        table, base = (model.embeddings.word_embeddings.weight for model in (discriminator, generator))
        if table is not base:  # disentangled: a table was copied, its differences from the base are trained
            with torch.no_grad():
                base.copy_(base if generators else table)
                table -= base
    LOG.info(f"initial weights: {name}; randomly initialized: {', '.join(new) or 'nothing'}")
    if unused:
        LOG.info(f"not used: {', '.join(unused)}")
    return not (discriminator is None or generator is None or generators)


def _grow_run(
    checkpoint: Path, name: str, objective: PretrainingModule, seed: int, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, grown to the sizes of the objective's models."""
    for part, model in (("discriminator", objective.discriminator), ("generator", objective.generator)):
        if model is not None:
            start = next(f"{path}." for path, module in objective.named_modules() if module is model)
            own = {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}
            source = load.read_config(locate(checkpoint, part))
            grown = _grow(own, source, model.config, f"{name}'s {part}", seed)
            tensors = tensors | {start + key: tensor for key, tensor in grown.items()}
    return tensors


def _grow(
    tensors: Mapping[str, Tensor], source: ModelConfig, config: ModelConfig, name: str, seed: int, advice: str = _OPTION
) -> dict[str, Tensor]:
    """The tensors of a source model, grown to `config` and logged. CheckpointError if it cannot compute the same."""
    changes = _describe_growth(source, config, name, advice)
    if changes:
        LOG.info(f"{name} grows: {changes}")
    return growth.grow(tensors, source, config, seed)


def _describe_growth(source: ModelConfig, config: ModelConfig, name: str, advice: str) -> str:
    """The changes of a growth, if any. Raises CheckpointError if the grown model cannot compute the same."""
    require_same_computation(config, source, name, advice)
    try:
        return growth.describe(source, config)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}; {advice}") from None


def _copy_tensors(
    model: Backbone, source: Stored, name: str, seed: int, advice: str = _OPTION
) -> tuple[list[str], list[str]]:
    """Copy the tensors that match, grown to the model's size. Returns the model's new and the source's unused parts."""
    tensors = _grow(source.tensors, source.config, model.config, name, seed, advice)
    if isinstance(model, Discriminator) and model.has_energies != source.has_energies:
        tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith("discriminator_predictions.")}
    new = load.load_partial(model, tensors, name)
    used = {part for part, _ in model.named_children()} - set(new)
    if "sentence_order" in used and "sentence_order.pooler" not in new:
        used.add("pooler")
    return new, [part for part in dict.fromkeys(key.split(".")[0] for key in source.tensors) if part not in used]


def require_possible(config: PretrainConfig) -> None:
    """Raise UsageError or CheckpointError, before preparation, if --init_from cannot become the model of the run."""
    if config.run.init_from is None:
        return
    path = Path(config.run.init_from)
    name = f"--init_from {path}"
    folder = path if _is_stock(path) else find_checkpoint(path / "checkpoints", "auto")
    if folder is None:
        raise UsageError(f"{name}: it has no checkpoint; name a trained run")
    if folder != path and config.corpus.extend_vocab_to is not None:
        raise CheckpointError(f"{name}: a run keeps its tokenizer; {_EXTEND.format(run=path)}")
    source = load.read_config(_find_models(folder)[0])
    wanted = replace(config.model, vocab_size=source.vocab_size)
    _describe_growth(source, wanted, name, _OPTION)


def require_old_corpus(config: PretrainConfig) -> None:
    """Raise UsageError or DataError if --old_corpus is not readable text."""
    old, corpus = config.run.old_corpus, config.corpus
    with _old_corpus_errors(old):
        for source in read_sources(old, corpus.text_column) if old else ():
            if source.corpus != BUILT_IN_CORPUS:
                find_files(source.corpus, Counter(), corpus.encoding)


@contextmanager
def _old_corpus_errors(old: str | None) -> Iterator[None]:
    try:
        yield
    except (DataError, UsageError) as error:
        raise type(error)(f"--old_corpus {old}: {error}") from None


def _prepare_old_text(config: PretrainConfig, tokenizer_dir: Path, world: World) -> dict[str, Any]:
    """Prepare --old_corpus with the run's tokenizer. Returns the settings that identify its examples."""
    old, corpus, seed = str(config.run.old_corpus), config.corpus, config.training.seed
    with main_first(world), _old_corpus_errors(old):
        LOG.info(f"preparing the old text {old}")
        store = prepare(replace(with_tokenizer(corpus, tokenizer_dir), corpus=old), seed).store
    found = (corpus.prepared_dir, store.fingerprint, corpus.max_seq_length, seed, "train")
    return dict(zip((*_OLD_TEXT, "side"), found, strict=True))


def _with_old_text(origin: Origin, like: PackedExamples, world: World) -> Origin:
    """The origin with held-out examples of its text, packed like `like`, if every process gets some."""
    record, held_out = origin.record, None
    if record.get("store") is None:
        LOG.info("notice: forgetting of the text of these weights is measured only with --old_corpus")
        return origin
    with suppress(OSError, ValueError, TypeError):
        if store := find_store(Path(str(record["prepared_dir"])), str(record["store"])):
            length, seed = int(record["max_seq_length"]), int(record["seed"])
            split = store.train if record.get("side") == "train" else store.validation
            table = build_table(split, length, seed)
            held_out = replace(like, split=split, table=table, max_seq_length=length, seed=seed)
    is_enough = held_out is not None and held_out.table.count >= world.world_size
    if all(gather_objects(is_enough, world)):  # all processes score it, or none
        return origin._replace(held_out=held_out)
    problem = f"is no longer in {record['prepared_dir']}, or too few of its examples are held out"
    LOG.info(f"notice: the token store of the old text {problem}; forgetting is not measured")
    return origin
