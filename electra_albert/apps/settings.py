"""The settings of a run as they are recorded, and their comparison when it is resumed."""

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.run_folder import ENVIRONMENT, WARMUP
from electra_albert.config.checks import names_of
from electra_albert.config.pretraining import (
    FLAT,
    REMOVED,
    CorpusConfig,
    PretrainConfig,
    as_settings,
)
from electra_albert.contracts import LOG, CheckpointError, UsageError, redacted
from electra_albert.files import read_json

if TYPE_CHECKING:
    from electra_albert.training.step import RunSettings

GLOBAL_BATCH = "global_batch_size"  # recorded next to its factors, which may change
MAY_CHANGE = names_of("free by_content per_call", *FLAT.values())
_BY_CONTENT = names_of("by_content", *FLAT.values())
_CONTENTS = {"store", "tokenizer_fingerprint", "rows_taken_of_sources"}
# May always differ: what the machine decides, and log_gradient_norms, an option that is gone.
_NOT_COMPARED = {"arithmetic", "compilation", "is_recorded", "log_gradient_norms"}
_SETTINGS = {"settings": {GLOBAL_BATCH: int | None}}


class ResumePoint(NamedTuple):
    """The checkpoint to resume, its state, and the settings that may change."""

    checkpoint: Path
    state: dict[str, Any]
    may_change: Set[str]


def find_resume_point(folder: Path, checkpoint: Path | None, resume: str) -> ResumePoint | None:
    """The checkpoint of the run in `folder`, else the newest one of its generator warm-up.

    Raises UsageError if `resume` is `never` and there is a warm-up.
    """
    from electra_albert.training.checkpoint import find_checkpoint, read_state

    if checkpoint is not None:
        return ResumePoint(checkpoint, read_state(checkpoint), MAY_CHANGE)
    if resume != "never":
        resume = "auto"
    warmup = find_checkpoint(folder / WARMUP / "checkpoints", resume)
    if warmup is None:
        return None
    # Its schedule depends on the run's length; "training" is its own, not the run's.
    return ResumePoint(warmup, read_state(warmup) | {"training": {}}, MAY_CHANGE - {"max_steps"})


def check_settings(
    resume_point: ResumePoint, preset: str, config: PretrainConfig, world_size: int
) -> None:
    """Compare the options with those of the resumed run, before the corpus is read.

    Raises CheckpointError for a changed setting that affects the result, UsageError if max_steps
    is already exceeded.
    """
    checkpoint, state, may_change = resume_point
    if "max_steps" in may_change and state["step"] > config.training.max_steps:
        limits = {
            "flops": config.run.flops,
            "budget": config.run.budget,
            "max_steps": config.training.max_steps,
        }
        option = next(name for name, limit in limits.items() if limit)
        raise UsageError(
            f"{checkpoint} exceeds --{option} {limits[option]}; "
            "raise it or choose another --output_dir"
        )
    settings = run_settings(preset, config, world_size)
    recorded = {}
    for name, value in state["settings"].items():
        if name in settings or name in REMOVED:
            recorded[name] = value
    # Known only after the training of the tokenizer.
    settings["model"]["vocab_size"] = recorded.get("model", {}).get("vocab_size")
    compare_settings(recorded, settings, checkpoint, may_change)


def log_changes(resume_point: ResumePoint, run: "RunSettings") -> None:
    """Log settings that changed since the run began.

    Raises CheckpointError if one of them affects the result.
    """
    import torch

    checkpoint, state, may_change = resume_point
    for change in compare_settings(state["settings"], run.settings, checkpoint, may_change):
        LOG.info(f"changed since the run began: {change}")
    now = {
        "world_size": run.world.world_size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    for name, value in now.items():
        before = state.get(name, value)
        if before != value:
            LOG.info(
                f"{name} was {before}, is now {value}: "
                "results may differ in the last bits from here on"
            )


def run_settings(
    preset: str, config: PretrainConfig, world_size: int, **facts: Any
) -> dict[str, Any]:
    """Settings that checkpoints and environment.json record, for the comparison on resume."""
    return {
        "preset": preset,
        **redacted(as_settings(config)),
        GLOBAL_BATCH: config.training.step_examples * world_size,
        **facts,
    }


def recorded_settings(folder: Path) -> dict[str, Any]:
    """Settings that environment.json records; empty if it cannot be read."""
    with suppress(OSError):
        return dict(read_json(folder / ENVIRONMENT, _SETTINGS).get("settings", {}))
    return {}


def compare_settings(
    recorded: Mapping[str, Any],
    settings: Mapping[str, Any],
    origin: Path,
    may_change: Set[str] = MAY_CHANGE,
) -> list[str]:
    """Describe the allowed differences between the recorded settings of `origin` and the new ones.

    Raises CheckpointError for a difference that affects the result.
    """
    before = flatten(redacted(recorded))
    now = flatten(settings)
    defaults = flatten(as_settings(PretrainConfig()))  # for options that are newer than the record
    defaults["is_recorded"] = False
    for name in now.keys() & defaults.keys():
        before.setdefault(name, defaults[name])
    for name in sorted((before.keys() & REMOVED.keys()) - _NOT_COMPARED):
        removed = REMOVED[name]
        if removed.had_effect(before[name]):
            option = f"{name} {before[name]}"
            raise CheckpointError(
                f"{origin} was made with {option}, which is gone: {removed.reason}"
            )
    names = (before.keys() | now.keys()) - REMOVED.keys()
    changed = [name for name in sorted(names) if before.get(name) != now.get(name)]
    fixed = [name for name in changed if name not in may_change | _NOT_COMPARED]
    if fixed:
        differences: list[str] = []
        if "store" in now and not _CONTENTS.isdisjoint(fixed):  # fine-tuning has no store
            differences = _text_differences(before, now)
            fixed = [name for name in fixed if name not in _CONTENTS]
        differences += [_change(name, before, now) for name in fixed]
        raise _other_settings(origin, differences)
    return [_change(name, before, now) for name in changed if name not in _BY_CONTENT]


def _change(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return f"{name}: {before.get(name)} before, {now.get(name)} now"


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with dotted names for those of a group."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            for option, setting in value.items():
                flat[f"{name}.{option}"] = setting
        else:
            flat[name] = value
    return flat


def require_same_text(recorded: Mapping[str, Any], corpus: CorpusConfig, key: str) -> None:
    """Raise CheckpointError unless the corpus key is that of the record.

    The key covers the text and the options for reading it.
    """
    if not str(recorded.get("store")).startswith(f"{key}-"):
        raise _other_settings("the run to resume", _text_differences(recorded, asdict(corpus)))


def _text_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Reasons why the text differs: changed options that name or read it, else changed contents."""
    names = ["corpus", *sorted(_BY_CONTENT - {"corpus", "output_dir"})]
    changed = [name for name in names if before.get(name, now[name]) != now[name]]
    if changed:
        return [_change(name, before, now) for name in changed]
    contents = f"the contents of {now['corpus']}, its weights, or how this version reads it"
    return [f"{contents} have changed"]


def _other_settings(origin: Path | str, differences: Sequence[str]) -> CheckpointError:
    listed = "; ".join(differences[:3])
    if len(differences) > 3:
        listed += f" and {len(differences) - 3} more"
    return CheckpointError(
        f"{origin} was made with different settings ({listed}); "
        "choose another --output_dir or the same settings"
    )
