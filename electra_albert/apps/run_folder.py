"""The files of a run's folder: settings, command, environment, model card; and the check of settings on resume."""

import errno
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from safetensors import SafetensorError

from electra_albert.config import REMOVED, CorpusConfig, PretrainConfig, as_settings
from electra_albert.contracts import Metrics, UsageError, UserError, redacted
from electra_albert.data_files import NOT_YAML
from electra_albert.files import write_json, write_text
from electra_albert.training.run_log import LOG_FILE

if TYPE_CHECKING:
    pass

CONFIG, COMMAND, ENVIRONMENT, CARD = "config.yaml", "command.txt", "environment.json", "README.md"
METRICS, SAMPLES, REPORT = "metrics.jsonl", "samples.jsonl", "report.html"
WARMUP = "generator_warmup"  # folder of a new generator's warm-up run
_WRITTEN = (CONFIG, COMMAND, CARD, "tokenizer", "generator", "discriminator", METRICS, SAMPLES, REPORT, LOG_FILE)
_GIT_SECONDS = 30
_MAX_DEPTH = 100  # of brackets in YAML
_FOLDERS = re.compile(r'((?:^|[=",])(?:file:/*)?)/(?:[^",]*/)?(?=[^/",])')  # of an absolute path
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def read_evaluations(folder: Path) -> list[Metrics]:
    """The evaluation rows of a run's metrics.jsonl, oldest first, with the prefix removed from the names."""
    from electra_albert.training.monitor import CLOCK, EVALUATION_PREFIX, read_metrics

    return [
        {name.removeprefix(EVALUATION_PREFIX): value for name, value in row.items() if name not in ("phase", *CLOCK)}
        for row in read_metrics(folder / METRICS)
        if any(name.startswith(EVALUATION_PREFIX) for name in row)
    ]


def read_options(file: Path, name: str) -> dict[str, Any]:
    """The options in a YAML file without unused removed ones. UsageError, with `name`, for an invalid file."""
    return without_removed(read_yaml(file, name))


def read_yaml(file: Path, name: str) -> dict[str, Any]:
    """The content of a YAML file of options. Raises UsageError for an invalid file, called `name` in the message."""
    if os.path.exists(file) and not os.path.isfile(file):
        raise UsageError(f"{name} is not a regular file; copy its text into a file first")
    try:
        text = file.read_text(encoding="utf-8")
        if _is_costly(text) or _is_costly(options := yaml.safe_load(text)):
            raise yaml.YAMLError("aliases such as *name and deep nesting are not supported")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read ({getattr(error, 'strerror', error)}); check the path") from None
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise UsageError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict):
        raise UsageError(f"{name} contains no options; write one `name: value` per line")
    return options


def without_removed(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options without removed ones that had no effect; the command line refuses the others by name."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        removed = REMOVED.get(f"{prefix}{name}")
        if removed is None or removed.unused not in (..., value):
            result[name] = without_removed(value, f"{name}.") if isinstance(value, dict) and not prefix else value
    return result


def _is_costly(value: object) -> bool:
    """Whether YAML text, or such text inside a value, has aliases, which multiply values, or is nested deeply."""
    if isinstance(value, dict | list):
        return any(map(_is_costly, value.values() if isinstance(value, dict) else value))
    kinds, depth = set[type](), 0
    try:
        for token in yaml.scan(value) if isinstance(value, str) else ():
            kinds.add(type(token))
            depth += isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken)
            depth -= isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken)
            if depth > _MAX_DEPTH:  # scanning takes a time quadratic in the depth
                return True
    except yaml.YAMLError:
        return False
    return {yaml.AnchorToken, yaml.AliasToken} <= kinds


def check_is_ours(folder: Path) -> None:
    """Raise UsageError if the folder is not a run's and contains files that a run would overwrite."""
    if (folder / ENVIRONMENT).is_file() or (folder / "checkpoints").is_dir():
        return
    if taken := [name for name in _WRITTEN if (folder / name).exists()]:
        raise UsageError(f"{folder} is not a run's folder, and {taken[0]} would be overwritten; choose another")


def write_run_record(
    folder: Path, preset: str, config: PretrainConfig, command: Sequence[str], record: Mapping[str, Any]
) -> None:
    """Write environment.json with `record`, config.yaml (for --config) and command.txt (`command`), each atomically."""
    options = {"preset": preset, **without_removed(redacted(as_settings(config)))}
    for group, name in ((options["model"], "vocab_size"), (options, "dry_run"), (options, "resume")):
        del group[name]
    if config.run.init_from is not None:
        options["tokenizer"] = str(folder / "tokenizer")  # the run's own copy, in case the other run is deleted
    # Written first: check_is_ours recognizes a run by this file, wherever the process is killed.
    sources = redacted(_sources(config.corpus))
    write_json(folder / ENVIRONMENT, {**environment(), "sources": sources, **record})
    write_text(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
    write_text(folder / COMMAND, format_command(command) + "\n")


def _sources(corpus: CorpusConfig) -> list[dict[str, Any]]:
    """Sources and weights of a YAML list of sources; empty for other corpora and for a list that no longer exists."""
    from electra_albert.corpus.mixture import read_sources

    sources = []
    with suppress(UserError):
        sources = read_sources(corpus.corpus, corpus.text_column)
    is_list = [source.corpus for source in sources] != [corpus.corpus]
    return [{"corpus": source.corpus, "weight": source.weight} for source in sources if is_list]


def format_command(words: Sequence[str], *, is_public: bool = False) -> str:
    """The command for a shell, without credentials; if public, without folders of this machine."""
    shown = [redacted(word) for word in words]
    return shlex.join(map(without_folders, shown) if is_public else shown)


def without_folders(word: str) -> str:
    """The word of a command, in which absolute paths are only the names at their ends."""
    return _FOLDERS.sub(r"\1", word)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors while writing into UsageError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        is_refused = getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS)
        advice = "choose another --output_dir" if is_refused else "free disk space, then run the same command again"
        raise UsageError(f"cannot write into {folder} ({reason}); {advice}") from None


def environment() -> dict[str, Any]:
    """Code version, packages and processor (the GPU if this process uses one) that a run's numbers depend on."""
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
    """The commit of the checkout `root`, with -dirty if files differ from it; None outside a checkout."""
    if not (root / ".git").exists():  # git would search the parent folders and find another project
        return None
    command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
