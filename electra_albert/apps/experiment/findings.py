"""What the folders of an experiment hold once its commands have ended, as numbers: losses, scores, results of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import parse_pretraining
from electra_albert.apps.experiment.plan import Arm, Plan
from electra_albert.apps.experiment.records import PRETRAINING, Record, Stage, asked_for, read_object, records_of
from electra_albert.apps.experiment.stages import TASK_RESULTS, Site, judged_weights, task_stage
from electra_albert.apps.pretrain.estimate import step_flops
from electra_albert.apps.run_folder import CONFIG, ENVIRONMENT, recorded_settings
from electra_albert.contracts import CheckpointError, Metrics
from electra_albert.training.monitor import read_metrics

if TYPE_CHECKING:
    from electra_albert.config import PretrainConfig

_EVALUATED = "eval_"
_SCORES = "scores"


class Pretrained(NamedTuple):
    """One pretraining run, as far as it has come."""

    seed: int
    rows: list[Metrics]  # of metrics.jsonl
    flops: float  # of all its updates
    is_finished: bool = True  # with exit code 0
    threads: int | None = None  # that it was given; None where that was not noted
    jobs: int | None = None  # commands that ran beside one another

    @property
    def final(self) -> Metrics:
        """The last scores on held-out text, names without their prefix; empty where there are none yet."""
        evaluated = [row for row in self.rows if any(name.startswith(_EVALUATED) for name in row)]
        return {name.removeprefix(_EVALUATED): value for name, value in evaluated[-1].items()} if evaluated else {}

    @property
    def updates(self) -> int:
        return updates_of(self.rows)

    @property
    def tokens(self) -> int:
        return int(max((row.get("tokens") or 0 for row in self.rows), default=0))

    @property
    def seconds(self) -> float:
        """Time in updates, by the log's rates; what evaluating and saving took is not in it."""
        return training_seconds(self.rows)


class Findings(NamedTuple):
    """Everything found of one arm."""

    arm: Arm
    runs: list[Pretrained]
    tasks: dict[str, tuple[float, ...]]  # the deciding metric of each, fractions, by seed
    task_metrics: dict[str, str]  # its name
    collapsed: dict[str, list[int]]  # seeds that gave one answer to everything, of the tasks that have any
    scores: dict[str, Any]  # of apps.score
    failures: list[str]  # what did not end well, and what was left out for it


def updates_of(rows: Sequence[Metrics]) -> int:
    """The updates that a metrics file tells of."""
    return int(max((row["step"] or 0 for row in rows), default=0))


def training_seconds(rows: Sequence[Metrics]) -> float:
    """The time that the updates of a metrics file took: non-pad tokens of each row by its rate."""
    total, before = 0.0, 0.0
    for row in rows:
        rate, tokens = row.get("tokens_per_second"), row.get("tokens")
        if rate and tokens:
            total += (tokens - before) / rate
            before = tokens
    return total


def find(plan: Plan, site: Site, stages: Sequence[Stage]) -> list[Findings]:
    """What is there of every arm of the plan, in its order; stages are those of all phases."""
    return [_find(plan, site, arm, stages) for arm in plan.arms]


def _find(plan: Plan, site: Site, arm: Arm, stages: Sequence[Stage]) -> Findings:
    folder, noted = site.folder(arm), records_of(site.folder(arm))
    mine, weights = [stage for stage in stages if stage.arm == arm.name], judged_weights(plan, arm, stages)
    others = _others(noted, [*mine, *_tasks_not_asked_for(plan, site, arm, noted, mine, weights)], weights)
    records = {name: record for name, record in noted.items() if name not in others}
    done = {name for name, record in records.items() if record.is_done}
    read = {task: _read(folder / task / TASK_RESULTS) for task in plan.tasks if task in done}
    results = {task: found for task, found in read.items() if found}
    runs = []
    if arm.weights != "random":
        seeds = [seed for seed in arm.seeds if f"{PRETRAINING}{seed}" not in others]
        found = [_pretrained(site, arm, seed, records.get(f"{PRETRAINING}{seed}")) for seed in seeds]
        runs = [run for run in found if run is not None]
    return Findings(
        arm,
        runs,
        {task: tuple(found["metrics"][found["main_metric"]]["values"]) for task, found in results.items()},
        {task: found["main_metric"] for task, found in results.items()},
        {task: seeds for task, found in results.items() if (seeds := found["collapsed_seeds"])},
        _read(folder / "scores.json") if _SCORES in done else {},
        _failures(noted, mine, others),
    )


def _tasks_not_asked_for(
    plan: Plan, site: Site, arm: Arm, noted: Mapping[str, Record], asked: Sequence[Stage], weights: Stage
) -> list[Stage]:
    """The plan's tasks that were trained before, by a call with --data_dir, as that call would train them now."""
    names = (plan.tasks.keys() & noted.keys()) - {stage.name for stage in asked}
    data = {name: asked_for(noted[name].command).get("--data_dir") for name in names}
    return [task_stage(plan, replace(site, data_dir=data[name]), arm, name, weights) for name in names]


def _others(noted: Mapping[str, Record], stages: Sequence[Stage], weights: Stage) -> dict[str, str]:
    """What does not tell of the plan as it is now, and what it tells of; also what this call has no stage for."""
    by_name = {stage.name: stage for stage in stages}
    others = {name: by_name[name].other_than(record) for name, record in noted.items() if name in by_name}
    for name, record in noted.items():
        if name not in by_name and not name.startswith(PRETRAINING) and record.made_of != weights.made_by:
            others[name] = f"another {weights.told}"
    return {name: other for name, other in others.items() if other}


def _failures(records: Mapping[str, Record], stages: Sequence[Stage], others: Mapping[str, str]) -> list[str]:
    """What did not end well or does not hold any more, and what could not begin because of such a thing."""
    troubles = {name: f"tells of {others[name]}" if name in others else "" for name in records}
    troubles |= {name: record.tell() for name, record in records.items() if not record.is_done}
    troubles |= {stage.name: stage.trouble() for stage in stages if stage.name in records}
    told = [f"{name} {trouble}" for name, trouble in troubles.items() if trouble]
    held: dict[str, list[str]] = {}
    for stage in stages:
        if stage.name not in records and stage.needs is not None and (trouble := stage.needs.trouble()):
            held.setdefault(f"{stage.needs.told} {trouble}", []).append(stage.name)
    return told + [f"not run: {', '.join(names)}, since {reason}" for reason, names in held.items()]


def _pretrained(site: Site, arm: Arm, seed: int, record: Record | None) -> Pretrained | None:
    run = site.run(arm, seed)
    rows = read_metrics(run / "metrics.jsonl")
    if not rows:
        return None
    flops = updates_of(rows) * flops_of_an_update(run, is_stock=arm.weights == "stock")
    if record is None:
        return Pretrained(seed, rows, flops, is_finished=False)
    return Pretrained(seed, rows, flops, record.is_done, record.threads, record.jobs)


def flops_of_an_update(run: Path, *, is_stock: bool) -> int:
    """Operations of one update of the run in that folder, counted from its shapes."""
    settings = recorded_settings(run)
    if not settings or not (run / CONFIG).is_file():
        raise CheckpointError(
            f"{run} lacks {CONFIG} or {ENVIRONMENT}, or what they hold; remove it to have it made anew"
        )
    _, config = parse_pretraining(["--config", str(run / CONFIG), "--output_dir", str(run)], "Pretraining.py")
    vocab_size = int(settings["model"]["vocab_size"])  # the tokenizer's
    training, config = config.training, replace(config, model=replace(config.model, vocab_size=vocab_size))
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
    return step_flops(config, rows) + (rows * stock_surplus(config) if is_stock else 0)


def stock_surplus(config: PretrainConfig) -> int:
    """Operations a row that stock makes beside ours: it scores the vocabulary at all positions, not at masked ones."""
    from electra_albert.model.flops import TRAINING_PASSES, mlm_head_flops
    from electra_albert.objectives.masking import slots

    generator, length = config.rtd.generator(config.model), config.corpus.max_seq_length
    masked = slots(length, config.rtd.mask_rate)
    return TRAINING_PASSES * (mlm_head_flops(generator, length) - mlm_head_flops(generator, masked))


def _read(file: Path) -> dict[str, Any]:
    """A JSON object on file; empty where there is none."""
    if not file.is_file():
        return {}
    return read_object(file)


def as_record(plan: Plan, site: Site, found: Sequence[Findings]) -> dict[str, Any]:
    """What was found as JSON holds it: of every arm its options, last scores and results, each seed's."""
    return {
        "title": plan.title,
        "jobs": site.jobs,  # of the call that wrote this; each run tells its own
        "arms": {
            each.arm.name: {
                "weights": each.arm.weights,
                "like": each.arm.like,
                "options": each.arm.options,
                "pretraining": [_run_record(run) for run in each.runs],
                "tasks": {task: {each.task_metrics[task]: list(values)} for task, values in each.tasks.items()},
                "collapsed_seeds": each.collapsed,
                "scores": each.scores,
                "failures": each.failures,
            }
            for each in found
        },
    }


def _run_record(run: Pretrained) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "is_finished": run.is_finished,
        "updates": run.updates,
        "tokens": run.tokens,
        "flops": run.flops,
        "seconds": run.seconds,
        "threads": run.threads,
        "jobs": run.jobs,
        "held_out": run.final,
    }
