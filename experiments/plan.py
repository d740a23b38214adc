"""A plan on file, and the commands that it asks for: pretraining, stock's comparison, scores and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.pretrain.trial import step_flops
from electra_albert.contracts import UsageError
from electra_albert.corpus.mixture import strict_loader
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.objectives import spec_of

PRETRAINING = "pretraining-"  # and the seed: the stages that make weights
_RUNNERS = {"config", "resume", "dry_run"}  # options that no plan may hold
_PLACES = {"prepared_dir", "output_dir", "output", "model", "like"}  # no part of what is made
Options = dict[str, Any]


class Arm(NamedTuple):
    """One variant of an experiment; it has the options and seeds of the arm that it is like."""

    name: str
    seeds: list[int]  # the first is scored and fine-tuned
    options: Options  # of Pretraining.py
    weights: str  # pretrained, random or stock
    like: str | None


@dataclass(frozen=True)
class Plan:
    """The contents of a plan's file."""

    title: str
    arms: dict[str, Arm]
    flops: float | None = None  # of pretraining, the same for every arm; max_steps follows
    warmup_share: float | None = None  # of the updates; warmup_steps follows
    tasks: dict[str, Options] = field(default_factory=dict)  # of Finetuning.py, with options of their own
    task_options: Options = field(default_factory=dict)  # of every task
    task_seeds: int = 1


@dataclass(frozen=True)
class Site:
    """Options of the runner."""

    output_dir: str
    """A folder for all runs and the results."""
    corpus: str
    """The text of every arm, as for Pretraining.py."""
    tokenizer: str | None = None
    """A tokenizer for all arms, instead of training one."""
    prepared_dir: str = "data/prepared"
    """Where token stores are kept."""
    data_dir: str | None = None
    """Folder with the data of the tasks; without it none is trained."""
    pairs: str | None = None
    """Minimal pairs to score models on."""
    max_pairs: int | None = None
    """Score the first so many pairs of each set."""
    jobs: int = 1
    """Commands that run at once and share the cores."""
    text: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.jobs < 1 or (self.max_pairs or 1) < 1:
            raise UsageError("--jobs and --max_pairs must be at least 1")

    def folder(self, arm: str) -> Path:
        """The folder of an arm: its name without letters that a path should not hold."""
        return Path(self.output_dir, "".join(one if one.isalnum() or one in ".-+" else "-" for one in arm))


class Stage(NamedTuple):
    """One command; its log and its record are in `stages` of the arm's folder."""

    arm: str
    name: str
    module: list[str]  # what is called after `python -m`
    options: Options
    output: Path  # in the folder of the arm
    needs: Stage | None = None
    flops: float = 0.0  # of an update

    @property
    def record(self) -> Path:
        return self.output.parent / "stages" / f"{self.name}.json"

    @property
    def recipe(self) -> list[Any]:
        """All that decides what is made, as JSON: the options that name no place, and the recipe of the weights."""
        options = {name: value for name, value in self.options.items() if name not in _PLACES}
        return [self.module, options, self.needs.recipe if self.needs else None]


def read_plan(file: Path) -> Plan:
    """The plan in a YAML file; UsageError where it is none."""
    import yaml

    arms: dict[str, Arm] = {}
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), strict_loader())
        finetuning, shared = content.pop("finetuning", {}), content.pop("pretraining", {})
        seeds = content.pop("seeds", [42])
        for name, given in content.pop("arms").items():
            own = {"seeds": seeds, "weights": "pretrained", "like": None, **shared, **(given or {})}
            own_seeds, weights, like = (own.pop(key) for key in ("seeds", "weights", "like"))
            if like is not None:
                if weights not in ("random", "stock") or given.keys() != {"like", "weights"}:
                    raise ValueError(f"arm {name}: like takes weights: random or stock and no options")
                own_seeds, own = arms[like].seeds[: 1 if weights == "random" else None], arms[like].options
            elif weights != "pretrained":
                raise ValueError(f"arm {name}: weights {weights} need like: ARM")
            arms[name] = Arm(name, list(own_seeds), own, weights, like)
        tasks = {name: own or {} for name, own in finetuning.pop("tasks", {}).items()}
        options, task_seeds = finetuning.pop("options", {}), finetuning.pop("seeds", 1)
        rest = {"title": file.stem, **content, **finetuning}
        return Plan(arms=arms, tasks=tasks, task_options=options, task_seeds=task_seeds, **rest)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        message = " ".join(f"{type(error).__name__} {error}".split())
        raise UsageError(f"--plan {file} is not as docs/experiments.md has it: {message}") from None


def all_stages(plan: Plan, site: Site) -> list[Stage]:
    """The commands of every arm, each after the one that it needs; UsageError for wrong options."""
    folders = [site.folder(name) for name in plan.arms]
    if len({*folders, Path(site.output_dir)}) <= len(folders):
        raise UsageError("two arms would have the same folder, or one none of its own; name one of them otherwise")
    made, judged = dict[str, list[Stage]](), list[Stage]()
    for name, arm in plan.arms.items():
        if arm.weights == "pretrained":
            made[name] = [_pretraining(plan, site, arm, seed) for seed in arm.seeds]
        elif arm.weights == "stock":
            made[name] = [_stock(site.folder(name), name, like) for like in made[str(arm.like)]]
        judged += _judging(plan, site, arm, made[name if name in made else str(arm.like)][0])
    return sorted((stage for some in made.values() for stage in some), key=lambda stage: bool(stage.needs)) + judged


def _pretraining(plan: Plan, site: Site, arm: Arm, seed: int) -> Stage:
    output = site.folder(arm.name) / f"seed-{seed}"
    given: Options = {"corpus": site.corpus, **({"tokenizer": site.tokenizer} if site.tokenizer else {})}
    given |= {"prepared_dir": site.prepared_dir, "seed": seed, "output_dir": output}
    try:
        config = parse_pretraining(typed({**given, **arm.options}))[1]
        corpus, rows = config.corpus, config.training.per_device_train_batch_size
        tokens = len(load_tokenizer(Path(corpus.tokenizer))) if corpus.tokenizer else corpus.vocab_size
        sized = replace(config, model=replace(config.model, vocab_size=tokens))
        flops = step_flops(sized, rows * config.training.gradient_accumulation_steps)
        if plan.flops:
            given["max_steps"] = max(1, round(plan.flops / flops))
        if plan.warmup_share is not None:
            given["warmup_steps"] = round(plan.warmup_share * given.get("max_steps", config.training.max_steps))
        options = _together(given, arm.options)
        has_stock = any(other.weights == "stock" and other.like == arm.name for other in plan.arms.values())
        if has_stock and not (spec_of(config).has_stock_pair and config.training.gradient_accumulation_steps == 1):
            raise UsageError("weights: stock can be like rtd without gradient accumulation only")
    except UsageError as error:
        raise UsageError(f"arm {arm.name}: {error}") from None
    return Stage(arm.name, f"{PRETRAINING}{seed}", ["electra_albert", "pretrain"], options, output, None, flops)


def _stock(folder: Path, name: str, like: Stage) -> Stage:
    """Training of stock's composition for the time that another arm's run took."""
    output = folder / like.output.name
    return Stage(name, like.name, ["experiments.stock"], {"like": like.output, "output_dir": output}, output, like)


def _judging(plan: Plan, site: Site, arm: Arm, weights: Stage) -> Iterator[Stage]:
    """Scores without fine-tuning, then fine-tuning on every task, of the first seed."""
    folder = site.folder(arm.name)
    if (site.text or site.pairs) and arm.weights != "random":
        output = folder / "scores.json"
        given: Options = {"text": list(site.text), "pairs": site.pairs, "max_pairs": site.max_pairs}
        given = {name: value for name, value in given.items() if value} | {"model": weights.output, "output": output}
        yield Stage(arm.name, "scores", ["electra_albert", "score"], given, output, weights)
    for task, own in plan.tasks.items() if site.data_dir else ():
        given = {"task": task, "data_dir": site.data_dir, "model": weights.output, "output_dir": folder / task}
        given |= {"seeds": plan.task_seeds, "from_scratch": arm.weights == "random"}
        options = _together(given, {**plan.task_options, **own})
        yield Stage(arm.name, task, ["electra_albert", "finetune"], options, folder / task, weights)


def _together(given: Options, own: Options) -> Options:
    """Options given by the runner and those of the plan; UsageError where the plan has one that is the runner's."""
    for option in own.keys() & (given.keys() | _RUNNERS):
        raise UsageError(f"{option} is given by the runner; leave it out of the plan")
    return {**given, **own}


def typed(options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        words += [
            f"--{name}",
            *({"None": "null", "True": "true", "False": "false"}.get(str(v), str(v)) for v in values),
        ]
    return words
