"""A plan on file: the arms of an experiment, what each is pretrained with, and how all of them are judged.

title: Which rate for shared blocks
pretraining: {preset: small, max_steps: 1000, warmup_steps: 100}
arms:
  rate 5e-4: {learning_rate: 5.0e-4}
  rate 1e-3: {learning_rate: 1.0e-3, seeds: [42, 43, 44]}
  random: {like: rate 1e-3, weights: random}
finetuning: {seeds: 3, tasks: {cola: {num_train_epochs: 3}}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from electra_albert.apps.run_folder import read_options
from electra_albert.contracts import UsageError
from electra_albert.corpus.mixture import strict_loader

Weights = Literal["pretrained", "random", "stock"]
_KINDS = ("pretrained", "random", "stock")
_OF_A_PLAN = ("title", "pretraining", "flops", "warmup_share", "seeds", "arms", "finetuning")
_OF_AN_ARM = ("seeds", "like", "weights")  # what an arm says beside the options of its pretraining
_OF_FINETUNING = ("seeds", "tasks", "options")
_TOLD_BY_THE_RUNNER = ("corpus", "tokenizer", "prepared_dir", "output_dir", "seed", "config", "resume", "dry_run")
_TOLD_OF_TASKS = ("task", "data_dir", "model", "output_dir", "seeds", "from_scratch", "resume", "config", "dry_run")
_LONGEST_NAME = 100  # bytes of a folder's name
_RESULTS = ("results.md", "results.json", "curves.png", "run.lock")  # what lies beside the arms
_SEED = 42
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """One contender of an experiment."""

    name: str
    options: dict[str, Any]  # of Pretraining.py; where it is like another arm, the other's
    seeds: tuple[int, ...] = (_SEED,)  # the first is scored and fine-tuned
    weights: Weights = "pretrained"
    like: str | None = None  # the arm whose shape, tokenizer and, for stock, wall-clock time this one takes

    @property
    def folder_name(self) -> str:
        """The name with what a folder's name should not hold replaced."""
        return "".join(letter if letter.isalnum() or letter in ".-+" else "-" for letter in self.name)

    @property
    def shape(self) -> dict[str, Any]:
        """What decides the shape of its model: the preset and the options of the model."""
        return {name: value for name, value in self.options.items() if name.split(".")[0] in ("preset", "model")}


@dataclass(frozen=True)
class Plan:
    """Everything an experiment is told by its file."""

    title: str
    arms: tuple[Arm, ...]
    flops: float | None = None  # of pretraining, the same for every arm; max_steps follows
    warmup_share: float | None = None  # of the updates; warmup_steps follows
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)  # of Finetuning.py, with options of their own
    task_options: dict[str, Any] = field(default_factory=dict)  # of every task
    task_seeds: int = 1

    def arm(self, name: str) -> Arm:
        """The arm of that name; UsageError where there is none."""
        found = next((arm for arm in self.arms if arm.name == name), None)
        if found is None:
            raise UsageError(f"the plan has no arm {name!r}; it has {', '.join(arm.name for arm in self.arms)}")
        return found


def read_plan(file: Path) -> Plan:
    """The plan in a YAML file. Raises UsageError, which says what to change, where it is none."""
    told = f"--plan {file}"
    content = _read(file)
    _refuse_unknown(content, _OF_A_PLAN, told)
    finetuning = _mapping(content.get("finetuning", {}), f"{told}: finetuning")
    _refuse_unknown(finetuning, _OF_FINETUNING, f"{told}: finetuning")
    tasks = _mapping(finetuning.get("tasks", {}), f"{told}: finetuning.tasks")
    plan = Plan(
        title=str(content.get("title", file.stem)),
        arms=_arms(content, told),
        flops=_number(content.get("flops"), f"{told}: flops"),
        warmup_share=_number(content.get("warmup_share"), f"{told}: warmup_share"),
        tasks={str(name): _mapping_or_none(options, f"{told}: {name}") for name, options in tasks.items()},
        task_options=_mapping(finetuning.get("options", {}), f"{told}: finetuning.options"),
        task_seeds=_seed_count(finetuning.get("seeds", 1), told),
    )
    _check(plan, told)
    return replace(plan, arms=tuple(_completed(plan, arm) for arm in plan.arms))


def _read(file: Path, told: str) -> dict[str, Any]:
    import yaml

    content = read_options(file, told)
    try:
        yaml.load(file.read_text(encoding="utf-8"), strict_loader())
    except yaml.YAMLError as error:
        raise UsageError(f"{told}: {' '.join(str(error).split())}; leave out one of the two") from None
    return content


def _completed(plan: Plan, arm: Arm) -> Arm:
    """The arm with what it takes from the one it is like: the options, and the seeds, of which random has the first."""
    if arm.like is None:
        return arm
    like = plan.arm(arm.like)
    return replace(arm, options=like.options, seeds=like.seeds[:1] if arm.weights == "random" else like.seeds)


def _arms(content: Options, told: str) -> tuple[Arm, ...]:
    shared = _mapping(content.get("pretraining", {}), f"{told}: pretraining")
    seeds = _seeds(content.get("seeds", [_SEED]), f"{told}: seeds")
    arms = []
    for name, given in _mapping(content.get("arms", {}), f"{told}: arms").items():
        own = _mapping_or_none(given, f"{told}: arm {name}")
        kind = own.get("weights", "pretrained")
        if kind not in _KINDS:
            raise UsageError(f"{told}: arm {name}: weights: {kind} is none of {', '.join(_KINDS)}")
        like = own.get("like")
        options = {key: value for key, value in own.items() if key not in _OF_AN_ARM}
        arms.append(
            Arm(
                name=str(name),
                options={**shared, **options},
                seeds=_seeds(own["seeds"], f"{told}: arm {name}: seeds") if "seeds" in own else seeds,
                weights=kind,
                like=None if like is None else str(like),
            )
        )
        if kind != "pretrained" and (like is None or options):
            raise UsageError(f"{told}: arm {name}: weights: {kind} takes `like: ARM` and no options of its own")
        if kind != "pretrained" and "seeds" in own:
            raise UsageError(f"{told}: arm {name}: it takes the seeds of the arm that it is like; leave out seeds")
        if kind == "pretrained" and like is not None:
            raise UsageError(f"{told}: arm {name}: like goes with weights: random or stock")
    return tuple(arms)


def _check(plan: Plan, told: str) -> None:
    if not plan.arms:
        raise UsageError(f"{told} has no arms; name one at least, with the options in which it differs")
    _check_names(plan, told)
    for arm in plan.arms:
        _check_arm(plan, arm, f"{told}: arm {arm.name}")
    _refuse_told_of_tasks(plan.task_options, f"{told}: finetuning.options")
    for task, options in plan.tasks.items():
        _refuse_told_of_tasks(options, f"{told}: {task}")
    if plan.warmup_share is not None and not 0 <= plan.warmup_share < 1:
        raise UsageError(f"{told}: warmup_share {plan.warmup_share} must lie in [0, 1)")
    if plan.flops is not None and not 0 < plan.flops < math.inf:
        raise UsageError(f"{told}: flops {plan.flops} must be above 0")


def _check_names(plan: Plan, told: str) -> None:
    """UsageError unless every arm has a folder of its own, beside the others and beside the results."""
    names = [arm.folder_name for arm in plan.arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"{told}: two arms would be kept as {twice}; name one of them otherwise")
    for arm, name in zip(plan.arms, names, strict=True):
        if not name.strip(".") or name in _RESULTS or len(name.encode()) > _LONGEST_NAME:
            raise UsageError(
                f"{told}: an arm cannot be called {arm.name[:60]!r}, since its folder is called after it; a name has "
                f"1 to {_LONGEST_NAME} letters"
            )


def _check_arm(plan: Plan, arm: Arm, told: str) -> None:
    fixed = [name for name in arm.options if name in _TOLD_BY_THE_RUNNER]
    if fixed:
        raise UsageError(f"{told}: {fixed[0]} is given on the command line, or by the runner")
    if plan.flops is not None and "max_steps" in arm.options:
        raise UsageError(f"{told}: flops gives max_steps; leave out one of the two")
    if plan.warmup_share is not None and "warmup_steps" in arm.options:
        raise UsageError(f"{told}: warmup_share gives warmup_steps; leave out one of the two")
    if arm.like is not None and plan.arm(arm.like).weights != "pretrained":
        raise UsageError(f"{told}: like {arm.like}, which is not pretrained itself")


def _refuse_told_of_tasks(options: Options, told: str) -> None:
    fixed = [name for name in options if name in _TOLD_OF_TASKS]
    if fixed:
        raise UsageError(f"{told}: {fixed[0]} is said by the runner, of the plan or the command line; leave it out")


def _mapping_or_none(value: object, told: str) -> dict[str, Any]:
    return {} if value is None else _mapping(value, told)


def _mapping(value: object, told: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{told}: {str(value)[:60]!r} is no mapping; write one `name: value` a line")
    return value


def _seeds(value: object, told: str) -> tuple[int, ...]:
    is_list = isinstance(value, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in value)
    if not isinstance(value, list) or not value or not is_list or len(set(value)) < len(value):
        raise UsageError(f"{told}: {value!r} is no list of different whole numbers; write such as [42, 43]")
    return tuple(value)


def _seed_count(value: object, told: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{told}: finetuning.seeds: {value!r} is no number of seeds, 1 or more")
    return value


def _number(value: object, told: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{told}: {value!r} is no number; YAML wants 1.0e+15, with a point and a sign")
    return float(value)


def _refuse_unknown(content: Options, known: tuple[str, ...], told: str) -> None:
    unknown = [name for name in content if name not in known]
    if unknown:
        raise UsageError(f"{told}: {unknown[0]!r} is none of {', '.join(known)}")
