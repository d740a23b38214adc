"""Options, weights and text that a run takes from the model of --init_from."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from electra_albert.apps.pretrain.initial_weights import (
    Origin,
    describe_growth,
    find_models,
    read_weights,
)
from electra_albert.apps.run_folder import CONFIG, read_options, without_removed
from electra_albert.apps.settings import recorded_settings
from electra_albert.config.model import READ_LENGTHS
from electra_albert.config.objectives import RtdConfig
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import BUILT_IN_CORPUS, GROUPS, PretrainConfig
from electra_albert.contracts import LOG, CheckpointError, DataError, UsageError
from electra_albert.corpus.datatrove import DOCUMENTS_FILE
from electra_albert.corpus.examples import PackedExamples
from electra_albert.corpus.folder import with_tokenizer
from electra_albert.corpus.mixture import read_sources
from electra_albert.corpus.prepare import Prepared, find_store, prepare
from electra_albert.corpus.rows import build_table
from electra_albert.data_files.finding import find_files
from electra_albert.files import load_manifest, sha256
from electra_albert.hub import load
from electra_albert.hub.find import CONFIG_FILE, ENCODER_FOLDERS, is_checkpoint
from electra_albert.hub.formats import TABLE
from electra_albert.hub.weights import all_files
from electra_albert.objectives import spec_of
from electra_albert.tokenization.tokenizer import Tokenizer, fingerprint, load_tokenizer
from electra_albert.training.checkpoint import (
    MANIFEST,
    MODEL,
    find_checkpoint,
    find_problem,
    list_checkpoints,
    read_state,
)
from electra_albert.training.distributed import World, gather_objects, main_first

_EXTEND = "to extend its vocabulary use --init_from {run}/discriminator or {run}/generator"
# Settings that identify a run's held-out examples.
_OLD_TEXT = ("prepared_dir", "store", "max_seq_length", "seed")
# The vocabulary is the tokenizer's, the others are for random weights only.
_NOT_INHERITED = ("vocab_size", "initialization", "initializer_range", "zero_init_outputs")
_INHERITED = ("preset", "objective", "max_seq_length", *GROUPS)


def inherited_options(source: Path, output_dir: Path) -> dict[str, Any]:
    """Preset, objective, architecture and tokenizer of `source`.

    Those of a resumed run are in its checkpoint.
    """
    for _, checkpoint in reversed(list_checkpoints(output_dir / "checkpoints")):
        if find_problem(checkpoint):
            continue
        settings = read_state(checkpoint)["settings"]
        if settings.get("init_from") == str(source):
            options = _inheritable(settings["origin"]["options"])
            return {**options, "tokenizer": str(output_dir / "tokenizer")}
    if _is_stock(source):
        return _stock_options(source)
    return {**_run_options(source), "tokenizer": f"{source}/tokenizer"}


def _inheritable(options: dict[str, Any]) -> dict[str, Any]:
    """The recorded options that exist, with the number of positions."""
    positions = options["model"]["max_position_embeddings"]
    options = without_removed(options)
    options["model"]["max_position_embeddings"] = positions
    options["model"].pop("vocab_size", None)
    return options


def _run_options(run: Path) -> dict[str, Any]:
    if not (run / CONFIG).is_file():
        problem = "does not exist"
        if run.exists():
            problem = f"is neither a run ({CONFIG}) nor a stock model (config.json)"
        raise UsageError(
            f"--init_from {run} {problem}; name a local folder, and download a hub model first"
        )
    checkpoint = find_checkpoint(run / "checkpoints", "auto")
    if checkpoint is None:
        options = read_options(run / CONFIG, f"--init_from {run}: its {CONFIG}")
    else:  # whose hashes were compared
        options = _inheritable(read_state(checkpoint)["settings"])
    inherited = {}
    for name, value in options.items():
        is_group = isinstance(value, dict) and name != "origin"
        if is_group or name in _INHERITED:
            inherited[name] = value
    return inherited


def _stock_options(folder: Path) -> dict[str, Any]:
    """Architecture and tokenizer of a folder's models, and the preset of their size."""
    encoder, *generators = find_models(folder)
    shape = load.read_config(encoder)
    preset = "tiny"
    for name, sizes in PRESETS.items():
        if sizes.model.hidden_size <= shape.hidden_size:
            preset = name
    # A preset's settings of the generator are for random initial weights.
    rtd: dict[str, Any] = {"generator_layers": None, "generator_rate": RtdConfig.generator_rate}
    for files in generators:
        generator = load.read_config(files)
        tensors = [load.read_stored(model).tensors for model in (encoder, files)]
        if TABLE in load.different_embeddings(*tensors):
            rtd["embedding_sharing"] = "disentangled"
        rtd["generator_size"] = generator.hidden_size / shape.hidden_size
        if generator.num_hidden_layers != shape.num_hidden_layers:
            rtd["generator_layers"] = generator.num_hidden_layers
    model = asdict(shape)
    for name in _NOT_INHERITED:
        del model[name]
    return {
        "preset": preset,
        "model": model,
        "tokenizer": str(encoder.tokenizer),
        "rtd": rtd,
        "max_seq_length": min(
            PRESETS[preset].corpus.max_seq_length,
            shape.max_position_embeddings // READ_LENGTHS[shape.block],
        ),
    }


def _is_stock(folder: Path) -> bool:
    """Whether the folder contains a model or is a checkpoint, and is not a run of ours."""
    is_run = (folder / CONFIG).exists() or (folder / "checkpoints").exists()
    has_model = any((folder / name / CONFIG_FILE).is_file() for name in (".", *ENCODER_FOLDERS))
    return not is_run and (has_model or is_checkpoint(folder))


def require_possible(config: PretrainConfig) -> None:
    """Refuse, before the preparation, what cannot become the model of the run, and its old text.

    Raises UsageError, CheckpointError or DataError.
    """
    if config.run.init_from is None:
        return
    path = Path(config.run.init_from)
    folder = path
    if not _is_stock(path):
        folder = _newest_checkpoint(path)
        if config.corpus.extend_vocab_to is not None:
            raise CheckpointError(
                f"--init_from {path}: a run keeps its tokenizer; {_EXTEND.format(run=path)}"
            )
    source = load.read_config(find_models(folder)[0])
    wanted = replace(config.model, vocab_size=source.vocab_size)
    describe_growth(source, wanted, f"--init_from {path}")
    if config.run.old_corpus is not None:
        with _old_corpus_errors(config.run.old_corpus):
            for text in read_sources(config.run.old_corpus, config.corpus.text_column):
                folder = Path(text.corpus)
                if folder != Path(BUILT_IN_CORPUS) and not (folder / DOCUMENTS_FILE).is_file():
                    find_files(text.corpus, Counter(), config.corpus.encoding)


def _newest_checkpoint(run: Path) -> Path:
    checkpoint = find_checkpoint(run / "checkpoints", "auto")
    if checkpoint is None:
        raise UsageError(f"--init_from {run}: it has no checkpoint; name a trained run")
    return checkpoint


def find_origin(
    config: PretrainConfig,
    recorded: Mapping[str, Any] | None,
    prepared: Prepared,
    like: PackedExamples,
    world: World,
) -> Origin | None:
    """Initial weights, equal on all ranks, and the old text packed like `like`.

    recorded: settings of a resumed run. None for random weights. Raises UsageError or
    CheckpointError.
    """
    if recorded is not None:
        record = recorded.get("origin")
        if not isinstance(record, dict):
            return None
        return _with_old_text(Origin(record), like, world)
    if config.run.init_from is None:
        return None
    path = Path(config.run.init_from)
    if _is_stock(path):
        with main_first(world):
            origin = _find_stock(path, config, prepared.tokenizer)
    else:
        origin = _find_run(path, config, prepared.tokenizer, world)
    if config.run.old_corpus is not None:
        origin.record.update(_prepare_old_text(config, prepared.tokenizer_dir, world))
    return _with_old_text(origin, like, world)


def _find_stock(path: Path, config: PretrainConfig, tokenizer: Tokenizer) -> Origin:
    """The models of a folder, which may be those of a run of ours or one of its checkpoints."""
    weights = read_weights(path, tokenizer, config.rtd)
    files = [file for model in find_models(path) for file in all_files(model.weights)]
    run = path.absolute().parent
    if run.name == "checkpoints":
        run = run.parent
    settings = recorded_settings(run)
    _compare_held_out(settings, config)
    record = {
        "step": None,
        "weights": " ".join(map(sha256, files)),
        "options": _stock_options(path),
        **{name: settings.get(name) for name in _OLD_TEXT},
    }
    return Origin(record, stock=weights)


def _find_run(run: Path, config: PretrainConfig, tokenizer: Tokenizer, world: World) -> Origin:
    """The newest complete checkpoint of `run`, the same on all ranks."""
    with main_first(world):
        newest = _newest_checkpoint(run)
        settings = read_state(newest)["settings"]
        _require_same_kind(run, settings, config)
        _compare_held_out(settings, config)
        if fingerprint(load_tokenizer(run / "tokenizer")) != fingerprint(tokenizer):
            raise CheckpointError(
                f"--init_from {run}: it was trained with another tokenizer; "
                f"remove --tokenizer and options that change it; {_EXTEND.format(run=run)}"
            )
    checkpoint: Path = gather_objects(newest, world)[0]
    with main_first(world):
        record = {
            "step": read_state(checkpoint)["step"],
            "weights": load_manifest(checkpoint / MANIFEST)["files"][MODEL].sha256,
            **{name: settings.get(name) for name in _OLD_TEXT},
            "options": _run_options(run),
        }
    return Origin(record, checkpoint)


def _compare_held_out(settings: Mapping[str, Any], config: PretrainConfig) -> None:
    """Warn if the other run was trained on text that is held out here."""
    seed = settings.get("seed")
    if settings.get("corpus") == config.corpus.corpus and seed != config.training.seed:
        LOG.warning(
            "held-out text was partly training text of the initial weights, so its scores are too "
            f"good; --seed {seed} holds out the same text"
        )


def _require_same_kind(run: Path, settings: Mapping[str, Any], config: PretrainConfig) -> None:
    """Raise CheckpointError unless objective and kind of generator are those of the other run."""
    problem = ""
    trained = settings.get("objective")
    kind = (settings.get("rtd") or {}).get("generator", RtdConfig.generator)
    groups = config.model.num_hidden_groups
    old_groups = (settings.get("model") or {}).get("num_hidden_groups", groups)
    shares_layers = kind == "shared" and spec_of(config).has_discriminator
    if trained != config.run.objective:
        problem = f"it was trained with objective {trained}; remove --objective"
    elif kind != config.rtd.generator:
        problem = f"its rtd.generator is {kind}; remove yours, or name {run}/discriminator"
    elif shares_layers and old_groups < groups:
        problem = f"its models share their layers; to add groups name {run}/discriminator"
    if problem:
        raise CheckpointError(f"--init_from {run}: {problem}")


@contextmanager
def _old_corpus_errors(old: str) -> Iterator[None]:
    try:
        yield
    except (DataError, UsageError) as error:
        raise type(error)(f"--old_corpus {old}: {error}") from None


def _prepare_old_text(config: PretrainConfig, tokenizer_dir: Path, world: World) -> dict[str, Any]:
    """Prepare --old_corpus with the run's tokenizer.

    Returns the settings that identify its examples.
    """
    old = str(config.run.old_corpus)
    corpus = replace(with_tokenizer(config.corpus, tokenizer_dir), corpus=old)
    seed = config.training.seed
    with main_first(world), _old_corpus_errors(old):
        LOG.info(f"preparing the old text {old}")
        store = prepare(corpus, seed).store
    return {
        "prepared_dir": corpus.prepared_dir,
        "store": store.fingerprint,
        "max_seq_length": corpus.max_seq_length,
        "seed": seed,
        "side": "train",
    }


def _with_old_text(origin: Origin, like: PackedExamples, world: World) -> Origin:
    """The origin with examples of its text, packed like `like`, if every process gets some."""
    record = origin.record
    if record.get("store") is None:
        LOG.info(
            "notice: forgetting of the text of these weights is measured only with --old_corpus"
        )
        return origin
    held_out = None
    with suppress(OSError, ValueError, TypeError):
        store = find_store(Path(str(record["prepared_dir"])), str(record["store"]))
        if store:
            length = int(record["max_seq_length"])
            seed = int(record["seed"])
            split = store.validation
            if record.get("side") == "train":
                split = store.train
            table = build_table(split, length, seed)
            held_out = replace(like, split=split, table=table, max_seq_length=length, seed=seed)
    is_enough = held_out is not None and held_out.table.count >= world.world_size
    if all(gather_objects(is_enough, world)):  # all processes score it, or none
        return origin._replace(held_out=held_out)
    LOG.info(
        f"notice: the token store of the old text is not in {record['prepared_dir']}, "
        "or too few of its examples are held out; forgetting is not measured"
    )
    return origin
