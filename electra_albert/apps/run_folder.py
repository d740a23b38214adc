"""The files of a run's folder: settings, command, environment and metrics."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from electra_albert.config.pretraining import REMOVED, CorpusConfig, PretrainConfig, as_settings
from electra_albert.contracts import Metrics, UsageError, UserError, redacted
from electra_albert.data_files import NOT_YAML
from electra_albert.files import strict_loader, write_json, write_text
from electra_albert.training.run_log import LOG_FILE

CONFIG = "config.yaml"
COMMAND = "command.txt"
ENVIRONMENT = "environment.json"
CARD = "README.md"
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
REPORT = "report.html"
WARMUP = "generator_warmup"  # folder of a new generator's warm-up run
_WRITTEN = (
    *(CONFIG, COMMAND, CARD, METRICS, SAMPLES, REPORT, LOG_FILE),
    *("tokenizer", "generator", "discriminator"),
)
_GIT_SECONDS = 30
_MAX_DEPTH = 100  # of brackets in YAML
_OPENING = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)
_FOLDERS = re.compile(r'((?:^|[=",])(?:file:/*)?)/(?:[^",]*/)?(?=[^/",])')  # of an absolute path
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def read_evaluations(folder: Path) -> list[Metrics]:
    """The evaluation rows of a run's metrics.jsonl, oldest first, without the names' prefix."""
    from electra_albert.training.monitor import CLOCK, EVALUATION_PREFIX, read_metrics

    evaluations = []
    for row in read_metrics(folder / METRICS):
        if any(name.startswith(EVALUATION_PREFIX) for name in row):
            evaluations.append(
                {
                    name.removeprefix(EVALUATION_PREFIX): value
                    for name, value in row.items()
                    if name not in ("phase", *CLOCK)
                }
            )
    return evaluations


def read_options(file: Path, name: str) -> dict[str, Any]:
    """The options in a YAML file without unused removed ones.

    Raises UsageError, with `name`, for an invalid file.
    """
    return without_removed(read_yaml(file, name))


def read_yaml(file: Path, name: str) -> dict[str, Any]:
    """The options in a YAML file. Raises UsageError, with `name`, for an invalid file."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise UsageError(f"{name} is not a regular file; copy its text into a file first")
    try:
        text = file.read_text(encoding="utf-8")
        _refuse_costly(text)
        options = yaml.load(text, strict_loader())
        _refuse_costly(options)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise UsageError(f"{name} cannot be read ({reason}); check the path") from None
    except (yaml.YAMLError, *NOT_YAML) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} is not valid YAML: {reason}") from None
    if not isinstance(options, dict):
        raise UsageError(f"{name} contains no options; write one `name: value` per line")
    return options


def without_removed(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options without removed ones that had no effect; the command line refuses the others."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        removed = REMOVED.get(f"{prefix}{name}")
        if removed is None or removed.had_effect(value):
            is_group = isinstance(value, dict) and not prefix
            result[name] = without_removed(value, f"{name}.") if is_group else value
    return result


def _refuse_costly(value: object) -> None:
    """Raise YAMLError for text, also inside a value, with aliases or deep nesting.

    Aliases multiply values, and scanning takes a time quadratic in the depth.
    """
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            _refuse_costly(entry)
    if not isinstance(value, str):
        return
    kinds = set[type]()
    depth = 0
    with suppress(yaml.YAMLError):  # of the text itself: safe_load describes it
        for token in yaml.scan(value):
            kinds.add(type(token))
            depth += isinstance(token, _OPENING)
            depth -= isinstance(token, _CLOSING)
            if depth > _MAX_DEPTH:
                break
    if depth > _MAX_DEPTH or {yaml.AnchorToken, yaml.AliasToken} <= kinds:
        raise yaml.YAMLError("aliases such as *name and deep nesting are not supported")


def check_is_ours(folder: Path) -> None:
    """Raise UsageError unless the folder is a run's, or has no files that a run overwrites."""
    if (folder / ENVIRONMENT).is_file() or (folder / "checkpoints").is_dir():
        return
    for name in _WRITTEN:
        if (folder / name).exists():
            raise UsageError(
                f"{folder} is not a run's folder, and {name} would be overwritten; choose another"
            )


def config_options(config: PretrainConfig) -> dict[str, Any]:
    """The options of a configuration, as --config reads them."""
    options = without_removed(as_settings(config))
    del options["model"]["vocab_size"]
    return options


def write_run_record(
    folder: Path,
    preset: str,
    config: PretrainConfig,
    command: Sequence[str],
    record: Mapping[str, Any],
) -> None:
    """Write environment.json with `record`, config.yaml (for --config) and command.txt."""
    options = {"preset": preset, **redacted(config_options(config))}
    del options["dry_run"]
    del options["resume"]
    if config.run.init_from is not None:  # the run's own copy, in case the other run is deleted
        options["tokenizer"] = str(folder / "tokenizer")
    # Written first: check_is_ours recognizes a run by this file, wherever the process is killed.
    sources = redacted(_sources(config.corpus))
    write_json(folder / ENVIRONMENT, {**environment(), "sources": sources, **record})
    write_text(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
    write_text(folder / COMMAND, format_command(command) + "\n")


def _sources(corpus: CorpusConfig) -> list[dict[str, Any]]:
    """Sources and weights of a YAML list of sources; empty for other corpora and without a list."""
    from electra_albert.corpus.mixture import read_sources

    with suppress(UserError):
        sources = read_sources(corpus.corpus, corpus.text_column)
        if [source.corpus for source in sources] != [corpus.corpus]:
            return [{"corpus": source.corpus, "weight": source.weight} for source in sources]
    return []


def format_command(words: Sequence[str], *, is_public: bool = False) -> str:
    """The command for a shell, without credentials; if public, without folders of this machine."""
    words = [redacted(word) for word in words]
    if is_public:
        words = [without_folders(word) for word in words]
    return shlex.join(words)


def next_command(*words: str) -> str:
    """A line with a command that works without activating the environment."""
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return f"next: {shlex.join([python, '-m', 'electra_albert', *words])}"


def without_folders(word: str) -> str:
    """The word of a command, in which absolute paths are only the names at their ends."""
    return _FOLDERS.sub(r"\1", word)


def environment() -> dict[str, Any]:
    """Code version, packages and processor that a run's numbers depend on."""
    import torch

    from electra_albert.apps.machine import processor

    uses_gpu: Callable[[], bool] = torch.cuda.is_initialized
    return {
        "commit": commit(Path(__file__).parents[2]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name() if uses_gpu() else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def commit(root: Path) -> str | None:
    """The commit of a checkout, with -dirty if files differ from it; None outside a checkout."""
    if not (root / ".git").exists():  # git would search the parent folders and find another project
        return None
    command = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
