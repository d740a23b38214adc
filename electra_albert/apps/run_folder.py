"""The files of a run's folder: settings, command, environment, model card. A run resumes only by its own settings."""

from __future__ import annotations

import errno
import logging
import os
import platform
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.config import BUILT_IN_CORPUS, CorpusConfig, PretrainConfig, as_settings
from electra_albert.contracts import NOT_YAML, CheckpointError, Metrics, UsageError, UserError
from electra_albert.files import read_json, write_json, write_text
from electra_albert.objectives import spec_of
from electra_albert.training.run_log import LOG_FILE

if TYPE_CHECKING:
    from electra_albert.hub.card import Facts
    from electra_albert.training.step import RunSettings

LOG = logging.getLogger(__name__)

CONFIG, COMMAND, ENVIRONMENT, CARD = "config.yaml", "command.txt", "environment.json", "README.md"
WARMUP = "generator_warmup"  # folder of a new generator's own run
GLOBAL_BATCH = "global_batch_size"
# Options that name the text and its tokenizer, whose contents are compared by fingerprint, and the folder.
_PATHS = {"output_dir", "corpus", "encoding", "tokenizer", "extend_vocab_to"}
_PATHS |= {"do_lower_case", "keep_accents", "split_digit_comma"}
# Settings that do not decide what is trained. The batch is compared as a whole. Compiling changes the last bits.
MAY_CHANGE = _PATHS | {"arithmetic", "resume", "dry_run", "language", "license", "device", "prepared_dir"}
MAY_CHANGE |= {"preprocessing_num_workers", "gradient_checkpointing", "torch_compile", "compilation", "max_steps"}
MAY_CHANGE |= {"logging_steps", "eval_steps", "eval_examples", "save_steps", "save_total_limit"}
MAY_CHANGE |= {"per_device_eval_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"}
_TEXT = {"store", "tokenizer_fingerprint", "rows_taken_of_sources"}
_WRITTEN = (CONFIG, COMMAND, CARD, "tokenizer", "generator", "discriminator", "metrics.jsonl", LOG_FILE)
_GIT_SECONDS = 30
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
Begun = tuple[Path, dict[str, Any], Set[str]]  # the checkpoint that is resumed, its state, settings that may change


def find_begun(folder: Path, found: Path | None) -> Begun | None:
    """The checkpoint `found` of the run in `folder`, else the newest of its generator's warm-up."""
    from electra_albert.training.checkpoint import find_checkpoint, read_state

    if found is not None:
        return found, read_state(found), MAY_CHANGE
    warmup = find_checkpoint(folder / WARMUP / "checkpoints", "auto")
    # The warm-up's schedule depends on the run's length.
    return None if warmup is None else (warmup, read_state(warmup), MAY_CHANGE - {"max_steps"})


def check_settings(begun: Begun, preset: str, config: PretrainConfig, world_size: int) -> None:
    """Compare the options with those of the run that is resumed, before the corpus is read.

    Raises CheckpointError where one differs that decides what is trained, UsageError where the run ends before it.
    """
    (found, state, may_change), steps = begun, config.training.max_steps
    if "max_steps" in may_change and state["step"] > steps:
        raise UsageError(f"{found} is beyond --max_steps {steps}; raise it or choose another --output_dir")
    settings = run_settings(preset, config, world_size, "unknown")
    recorded = {name: value for name, value in state["settings"].items() if name in settings}
    settings["model"]["vocab_size"] = recorded.get("model", {}).get("vocab_size")  # the tokenizer's, found later
    compare_settings(recorded, settings, found, may_change)


def log_changes(begun: Begun, run: RunSettings) -> None:
    """Log what differs from when the run was begun; CheckpointError where that decides what is trained."""
    import torch

    found, state, may_change = begun
    for change in compare_settings(state["settings"], run.settings, found, may_change):
        LOG.info(f"changed since the run began: {change}")
    now = {"world_size": run.world.world_size, "threads": torch.get_num_threads(), "torch": torch.__version__}
    for name, value in now.items():
        if state[name] != value:
            LOG.info(f"{name} was {state[name]} and is {value}: numbers may differ in their last bits from here on")


def run_settings(preset: str, config: PretrainConfig, world_size: int, arithmetic: str, **found: Any) -> dict[str, Any]:
    """Settings that checkpoints and environment.json record, and that a later start is compared with."""
    training = config.training
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps * world_size
    return {"preset": preset, **as_settings(config), GLOBAL_BATCH: rows, "arithmetic": arithmetic, **found}


def recorded_settings(folder: Path) -> dict[str, Any]:
    """The settings of the folder's last start; empty where there are none that can be read."""
    with suppress(OSError):
        if isinstance(recorded := read_json(folder / ENVIRONMENT).get("settings"), dict):
            return recorded
    return {}


def read_evaluations(folder: Path) -> list[Metrics]:
    """The evaluation rows of a run's metrics.jsonl, oldest first, names without their prefix."""
    from electra_albert.training.monitor import CLOCK, EVALUATION_PREFIX, read_metrics

    return [
        {name.removeprefix(EVALUATION_PREFIX): value for name, value in row.items() if name not in ("phase", *CLOCK)}
        for row in read_metrics(folder / "metrics.jsonl")
        if any(name.startswith(EVALUATION_PREFIX) for name in row)
    ]


def read_options(file: Path, name: str) -> dict[str, Any]:
    """The options in a YAML file; UsageError, which calls the file `name`, where it cannot be read or holds none."""
    import yaml

    try:
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read ({getattr(error, 'strerror', error)}); check the path") from None
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise UsageError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict):
        raise UsageError(f"{name} holds no options; write one `name: value` a line")
    return options


def compare_settings(
    recorded: Mapping[str, Any], settings: Mapping[str, Any], origin: Path, may_change: Set[str] = MAY_CHANGE
) -> list[str]:
    """The allowed differences between the settings that `origin` was made with and those of now, in words.

    Raises CheckpointError where a setting differs that decides what is trained: any that is not in `may_change`.
    """
    before, now = _flatten(recorded), _flatten(settings)
    usual = _flatten(as_settings(PretrainConfig()))  # of options that came after the record
    before |= {name: usual[name] for name in now.keys() & usual.keys() - before.keys()}
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    if fixed := [name for name in changed if name not in may_change]:
        texts = _TEXT.intersection(fixed) if "store" in now else set()  # else of fine-tuning
        differences = _text_differences(before, now) if texts else []
        differences += [f"{name} {before.get(name)} then, {now.get(name)} now" for name in fixed if name not in texts]
        raise _other_settings(origin, differences)
    return [f"{name}: {before.get(name)} before, {now.get(name)} now" for name in changed if name not in _PATHS]


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    groups = {f"{name}.": value for name, value in settings.items() if isinstance(value, dict)}
    flat = {name: value for name, value in settings.items() if f"{name}." not in groups}
    return flat | {group + name: value for group, options in groups.items() for name, value in options.items()}


def require_same_text(recorded: Mapping[str, Any], corpus: CorpusConfig, key: str) -> None:
    """Raise CheckpointError unless `key`, of the corpus and how it is read, is that of the store in the settings."""
    if not str(recorded.get("store")).startswith(f"{key}-"):
        raise _other_settings("the run to be resumed", _text_differences(recorded, asdict(corpus)))


def _text_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why another text is read, or the same one otherwise, by the options that name it."""
    corpus = now["corpus"]
    differences = [f"another corpus ({before.get('corpus')} then, {corpus} now)"] * (before.get("corpus") != corpus)
    changed = [name for name in sorted(_PATHS - {"output_dir", "corpus"}) if before.get(name, now[name]) != now[name]]
    differences += [f"{name} {before[name]} then, {now[name]} now" for name in changed]
    return differences or [f"the contents of {corpus}, its weights, or how this version reads it changed since"]


def _other_settings(origin: Path | str, differences: Sequence[str]) -> CheckpointError:
    listed = ", ".join(differences[:3]) + (f" and {len(differences) - 3} more" if len(differences) > 3 else "")
    way_out = "choose another --output_dir or the same settings"
    return CheckpointError(f"{origin} was made with other settings ({listed}); {way_out}")


def check_is_ours(folder: Path) -> None:
    """UsageError where the folder holds files that a run would overwrite and was not made by one."""
    if (folder / ENVIRONMENT).is_file() or (folder / "checkpoints").is_dir():
        return
    if taken := [name for name in _WRITTEN if (folder / name).exists()]:
        raise UsageError(f"{folder} is no run's folder and holds {taken[0]}, which a run writes; choose another")


def describe_run(
    folder: Path, preset: str, config: PretrainConfig, command: Sequence[str], settings: Mapping[str, Any]
) -> None:
    """Write environment.json, config.yaml, which --config reads, and command.txt with `command`, each atomically."""
    import yaml

    options = {"preset": preset, **as_settings(config)}
    for group, name in ((options["model"], "vocab_size"), (options, "dry_run"), (options, "resume")):
        del group[name]
    if config.run.init_from is not None:
        options["tokenizer"] = str(folder / "tokenizer")  # its own, which stays when the other run goes
    # First: check_is_ours recognises a run by this file, wherever the process is killed.
    record = {**environment(), "sources": _sources(config.corpus), "settings": dict(settings)}
    write_json(folder / ENVIRONMENT, record)
    write_text(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
    write_text(folder / COMMAND, shlex.join(["python", *command]) + "\n")


def _sources(corpus: CorpusConfig) -> list[dict[str, Any]]:
    """The sources that a list has now; none of another corpus, or where only what was prepared of it is left."""
    from electra_albert.corpus.mixture import read_sources

    sources = []
    with suppress(UserError):
        sources = read_sources(corpus.corpus, corpus.text_column)
    is_list = [source.corpus for source in sources] != [corpus.corpus]
    return [{"corpus": source.corpus, "weight": source.weight} for source in sources if is_list]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of writing into UsageError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        is_refused = getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS)
        way_out = "choose another --output_dir" if is_refused else "make room, and run the same command again"
        raise UsageError(f"cannot write into {folder} ({reason}); {way_out}") from None


def run_facts(config: PretrainConfig, metrics: Metrics, steps: int) -> Facts:
    """The part of a run's model cards on its training data and its scores on held-out text."""
    from electra_albert.data_files import hub_name
    from electra_albert.hub.card import Facts

    corpus, base = config.corpus.corpus, config.run.init_from and Path(config.run.init_from).name
    hub = None if Path(corpus).exists() else hub_name(corpus)
    name = corpus if hub or "://" in corpus else Path(corpus).name  # of a machine's folders only the last name
    begun = f", beginning with the weights of `{base}`" if base else ""
    lines = [f"Pretrained by {spec_of(config).description} on the corpus `{name}` for {steps} steps{begun}.", ""]
    lines += ["| held-out text | value |", "| --- | --- |"]
    values = ((name.replace("_", " "), value) for name, value in metrics.items() if not isinstance(value, int))
    lines += [f"| {name} | {'-' if value is None else f'{value:.4f}'} |" for name, value in values]
    language = config.run.language or ("en" if corpus == BUILT_IN_CORPUS else None)
    fields = {"language": language, "license": config.run.license, "datasets": [hub[0]] if hub else None}
    return Facts({**fields, "base_model": base}, "\n".join(lines))


def write_card(folder: Path, command: str, config: PretrainConfig, facts: Facts) -> None:
    """Write the model card: training data, scores on held-out text, and how to load the models."""
    from electra_albert.hub import card
    from electra_albert.model.attention import stock_computes

    spec, is_stock = spec_of(config), stock_computes(config.model)
    fields = {"pipeline_tag": "fill-mask", "tags": ["albert", "electra"], **facts.fields}
    fields["library_name"] = "transformers" if is_stock else None
    text = f"An ALBERT encoder: {card.describe_shape(config.model)}.\n\n{facts.text}"
    encoder = "discriminator" if spec.has_discriminator else "generator"
    pooler = "" if spec.has_sentence_order else ", add_pooling_layer=False"  # which no objective trains
    code = f"""from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER", subfolder="generator")
generator = AutoModelForMaskedLM.from_pretrained("THIS_FOLDER", subfolder="generator")
encoder = AutoModel.from_pretrained("THIS_FOLDER", subfolder="{encoder}"{pooler})"""
    card.write_card(folder, card.Facts(fields, text), code if is_stock else card.OWN_CODE, command)


def environment() -> dict[str, Any]:
    """Code and machine that the numbers of a run depend on; the GPU where this process uses one."""
    from importlib.metadata import version

    import torch

    from electra_albert.apps.machine import processor

    return {
        "commit": commit(Path(__file__).parents[2]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name() if torch.cuda.is_initialized() else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def commit(root: Path) -> str | None:
    """The commit of the checkout `root`, marked where files differ from it; None without one, as if installed."""
    if not (root / ".git").exists():  # what git would find there is another project's
        return None
    command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
