"""What a run's folder says of the run: its settings, command, environment, and a model card.

A run is only continued by the settings it was started with; what may change is listed here.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.config import BUILT_IN_CORPUS, GROUPS, CorpusConfig, PretrainConfig, as_settings
from electra_albert.contracts import NOT_YAML, CheckpointError, Metrics, UsageError, UserError
from electra_albert.files import name_beside
from electra_albert.objectives import spec_of
from electra_albert.training.run_log import LOG_FILE

if TYPE_CHECKING:
    from electra_albert.hub.card import Facts

CONFIG, COMMAND, ENVIRONMENT, CARD = "config.yaml", "command.txt", "environment.json", "README.md"
# Settings that say how long and where to run, not what is trained. The batch is compared as a whole.
# What lies there, and what is made of it, is compared by fingerprint.
_PLACES = frozenset(
    {
        "output_dir",
        "corpus",
        "encoding",
        "tokenizer",
        "extend_vocab_to",
        "do_lower_case",
        "keep_accents",
        "split_digit_comma",
    }
)
MAY_CHANGE = _PLACES | frozenset(
    {
        "arithmetic",
        "resume",
        "dry_run",
        "language",
        "license",
        "device",
        "prepared_dir",
        "preprocessing_num_workers",
        "gradient_checkpointing",  # which changes no bit
        "torch_compile",  # which changes the last ones, and what dropout draws
        "compilation",
        "logging_steps",
        "eval_steps",
        "eval_examples",
        "save_steps",
        "save_total_limit",
        "per_device_eval_batch_size",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_steps",
    }
)
_TEXT = frozenset({"store", "tokenizer_fingerprint", "rows_taken_of_sources"})  # what is read, by its fingerprints
_WRITTEN = (CONFIG, COMMAND, CARD, "tokenizer", "generator", "discriminator", "metrics.jsonl", LOG_FILE)
_INHERITED = ("objective", "max_seq_length")
GLOBAL_BATCH = "global_batch_size"
_LONGEST_SECONDS = 30
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def run_settings(
    preset: str, config: PretrainConfig, world_size: int, arithmetic: str, found: Mapping[str, Any]
) -> dict[str, Any]:
    """What each checkpoint and environment.json record, and what a later start is compared with."""
    training = config.training
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps * world_size
    return {"preset": preset, **as_settings(config), GLOBAL_BATCH: rows, "arithmetic": arithmetic, **found}


def recorded_settings(folder: Path) -> dict[str, Any]:
    """The settings the folder's run was last started with; empty where it holds none that can be read."""
    try:
        content = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    recorded = content.get("settings") if isinstance(content, dict) else None
    return recorded if isinstance(recorded, dict) else {}


def read_options(file: Path, told: str) -> dict[str, Any]:
    """The options in a YAML file; UsageError, which calls the file `told`, where it cannot be read or holds none."""
    import yaml

    try:
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{told} cannot be read ({reason}); check the path") from None
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise UsageError(f"{told} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict):
        raise UsageError(f"{told} holds no options; write one `name: value` a line")
    return options


def shape_options(run: Path) -> dict[str, Any]:
    """Preset, objective, row length and groups of options in the config.yaml of `run`."""
    if not run.exists():
        raise UsageError(f"--init_from {run} does not exist; name a folder here, a hub model is fetched first")
    if not (run / CONFIG).is_file():
        raise UsageError(
            f"--init_from {run}: it holds neither a run ({CONFIG}) nor a stock model (config.json); name one of the two"
        )
    options = read_options(run / CONFIG, f"--init_from {run}: its {CONFIG}")
    return {
        name: value
        for name, value in options.items()
        if name in ("preset", *_INHERITED, *GROUPS) or isinstance(value, dict)
    }


def compare_settings(
    recorded: Mapping[str, Any], settings: Mapping[str, Any], origin: Path, may_change: Set[str] = MAY_CHANGE
) -> list[str]:
    """The differences that are allowed between what `origin` was made with and what is asked for now, in words.

    Raises CheckpointError where a setting differs that decides what is trained: any that is not in `may_change`.
    """
    before, now = _flatten(recorded), _flatten(settings)
    usual = _flatten(as_settings(PretrainConfig()))  # of options that came after the record
    before |= {name: usual[name] for name in now.keys() & usual.keys() - before.keys()}
    changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    fixed = [name for name in changed if name not in may_change]
    if fixed:
        texts = _TEXT.intersection(fixed) if "store" in now else set()  # else of fine-tuning
        differences = _text_differences(before, now) if texts else []
        differences += [f"{name} {before.get(name)} then, {now.get(name)} now" for name in fixed if name not in texts]
        raise _other_settings(str(origin), differences)
    return [f"{name}: {before.get(name)} before, {now.get(name)} now" for name in changed if name not in _PLACES]


def require_same_text(recorded: Mapping[str, Any], corpus: CorpusConfig, key: str) -> None:
    """Raise CheckpointError unless `key`, of the corpus and how it is read, is that of the store in the settings."""
    if not str(recorded.get("store")).startswith(f"{key}-"):
        raise _other_settings("the run to be resumed", _text_differences(recorded, asdict(corpus)))


def _text_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Why another text is read, or the same one otherwise, by the options that name it."""
    corpus = now["corpus"]
    differences = [f"another corpus ({before.get('corpus')} then, {corpus} now)"] * (before.get("corpus") != corpus)
    for name in sorted(_PLACES - {"output_dir", "corpus"}):
        if name in before and before[name] != now[name]:
            differences.append(f"{name} {before[name]} then, {now[name]} now")
    return differences or [f"what {corpus} holds, its weights, or how this version reads it, has changed since"]


def _other_settings(origin: str, differences: Sequence[str]) -> CheckpointError:
    listed = ", ".join(differences[:3]) + (f" and {len(differences) - 3} more" if len(differences) > 3 else "")
    way_out = "choose another --output_dir or the same settings"
    return CheckpointError(f"{origin} was made with other settings ({listed}); {way_out}")


def check_is_ours(folder: Path) -> None:
    """UsageError where the folder holds what a run would overwrite and was not made by one."""
    if (folder / ENVIRONMENT).is_file() or (folder / "checkpoints").is_dir():
        return
    taken = [name for name in _WRITTEN if (folder / name).exists()]
    if taken:
        raise UsageError(f"{folder} is no run's folder and holds {taken[0]}, which a run writes; choose another")


def describe_run(
    folder: Path, preset: str, config: PretrainConfig, command: Sequence[str], settings: dict[str, Any]
) -> None:
    """Write environment.json, config.yaml, which --config takes again, and command.txt, each at one stroke.

    `command` is what was typed behind `python`.
    """
    import yaml

    options = {"preset": preset, **as_settings(config)}
    options["model"] = {name: value for name, value in options["model"].items() if name != "vocab_size"}
    for switch in ("dry_run", "resume"):
        options.pop(switch)
    if config.run.init_from is not None:
        options["tokenizer"] = str(folder / "tokenizer")  # its own, which stays when the other run goes
    record = {**environment(), "sources": _sources(config.corpus), "settings": settings}
    # First: check_is_ours recognises a run by this file, wherever the process is killed.
    write_whole(folder / ENVIRONMENT, json.dumps(record, indent=2) + "\n")
    write_whole(folder / CONFIG, yaml.safe_dump(options, sort_keys=False))
    write_whole(folder / COMMAND, shlex.join(["python", *command]) + "\n")


def _sources(corpus: CorpusConfig) -> list[dict[str, Any]]:
    """What a list of sources holds now; nothing of another corpus, or where only what was prepared of it is left."""
    from electra_albert.corpus.mixture import read_sources

    try:
        sources = read_sources(corpus.corpus, corpus.text_column)
    except UserError:
        return []
    listed = [] if [source.corpus for source in sources] == [corpus.corpus] else sources
    return [{"corpus": source.corpus, "weight": source.weight} for source in listed]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what goes wrong in writing into a UsageError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        is_refused = isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EROFS
        way_out = "choose another --output_dir" if is_refused else "make room, and run the same command again"
        raise UsageError(f"cannot write into {folder} ({reason}); {way_out}") from None


def write_whole(file: Path, text: str) -> None:
    """Write a text file at one stroke: beside, then renamed into place."""
    beside = name_beside(file)
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)


def run_facts(config: PretrainConfig, metrics: Metrics, steps: int) -> Facts:
    """What the cards of a run say of it: what was trained on what, and how well it does on held-out text."""
    from electra_albert.data_files import hub_name
    from electra_albert.hub.card import Facts

    corpus, origin = config.corpus.corpus, config.run.init_from
    base = None if origin is None else Path(origin).name
    hub = None if Path(corpus).exists() else hub_name(corpus)
    name = corpus if hub or "://" in corpus else Path(corpus).name  # of a machine's folders only the last name
    lines = [
        f"Pretrained by {spec_of(config).learned_from} on the corpus `{name}` "
        f"for {steps} steps{'' if base is None else f', beginning with the weights of `{base}`'}.",
        "",
        "| held-out text | value |",
        "| --- | --- |",
        *(
            f"| {name.replace('_', ' ')} | {'-' if value is None else f'{value:.4f}'} |"
            for name, value in metrics.items()
            if not isinstance(value, int)
        ),
    ]
    fields = {
        "language": config.run.language or ("en" if corpus == BUILT_IN_CORPUS else None),
        "license": config.run.license,
        "datasets": [hub[0]] if hub else None,
        "base_model": base,
    }
    return Facts(fields, "\n".join(lines))


def write_card(folder: Path, command: str, config: PretrainConfig, facts: Facts) -> None:
    """Write the model card: training data, scores on held-out text, and how to load the models."""
    from electra_albert.hub import card
    from electra_albert.model.attention import stock_computes

    spec, is_stock = spec_of(config), stock_computes(config.model)
    library = "transformers" if is_stock else None
    fields = {"library_name": library, "pipeline_tag": "fill-mask", "tags": ["albert", "electra"], **facts.fields}
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
    """The commit of the checkout `root`, marked where files differ from it; None where it is none, as if installed."""
    if not (root / ".git").exists():  # what git would find there is another project's
        return None
    return first_line("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def first_line(*command: str) -> str | None:
    """The first line that a program prints, or None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LONGEST_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            flat[name] = value
    return flat
