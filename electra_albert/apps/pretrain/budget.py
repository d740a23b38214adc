"""The length of a run from --budget (time) or --flops."""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from electra_albert.apps.pretrain import trial
from electra_albert.apps.pretrain.job import Job
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import BUILT_IN_CORPUS, PretrainConfig, RunConfig
from electra_albert.contracts import LOG, Metrics, UsageError
from electra_albert.training.distributed import World, gather_objects
from electra_albert.training.loop import Evaluate
from electra_albert.training.monitor import Monitor

# Settings that follow from the length of the run, and their shares of max_steps, at most.
_SHARES = {"warmup_steps": 0.05, "logging_steps": 0.02, "eval_steps": 0.125}
_PLANNED = ("max_steps", *_SHARES, "save_steps", "save_milestones")
_SAVE_SHARE = 0.0625
_RECENT = 0.75  # of the time so far, after which the speed is expected to stay as it is
_FEW_STEPS = 1000
# Training tokens up to which a preset and a vocabulary suit a text.
_SUGGESTED = (
    (1e6, "tiny", 4000),
    (5e7, "tiny", 8000),
    (5e9, "small", 30000),
    (math.inf, "base", 30000),
)
_EPOCHS = 10  # after which a text is learned
MANY_EPOCHS = 40


def suggestion(job: Job) -> list[str]:
    """Preset, vocabulary and steps that suit the amount of text; see docs/corpus.md.

    Nothing for the built-in text and for continued pretraining.
    """
    config = job.config
    tokens = job.prepared.store.train.token_count
    if config.corpus.corpus == BUILT_IN_CORPUS or job.origin is not None:
        return []
    _, preset, vocab_size = next(row for row in _SUGGESTED if tokens <= row[0])
    training = PRESETS[preset].training
    batch_tokens = training.step_examples * PRESETS[preset].corpus.max_seq_length
    steps = _EPOCHS * tokens / batch_tokens
    rounded = max(100, int(float(f"{steps:.2g}")))
    if preset != "tiny":
        rounded = min(rounded, training.max_steps)
    lines = [
        f"usual for {tokens:,} tokens of text: --preset {preset} --vocab_size {vocab_size} "
        f"--max_steps {rounded} --warmup_steps {min(training.warmup_steps, rounded // 20)}"
    ]
    epochs = job.batches.epoch(config.training.max_steps)
    if epochs > MANY_EPOCHS:
        lines.append(
            f"notice: {epochs:.0f} epochs are many; watch whether the held-out losses rise"
        )
    return lines


def recorded_plan(
    config: PretrainConfig, state: Mapping[str, Any], world_size: int
) -> PretrainConfig:
    """The configuration of a resumed run with its recorded plan.

    It is longer if --budget or --flops is larger now. It has the recorded number of positions too:
    older runs have more than their sequences need. Raises UsageError if the run was planned
    otherwise.
    """
    recorded = state["settings"]
    positions = recorded["model"]["max_position_embeddings"]
    positions = max(config.corpus.max_seq_length, positions)
    config = replace(config, model=replace(config.model, max_position_embeddings=positions))
    run = config.run
    if run.flops is None and run.budget is None:
        return config
    before = replace(run, budget=recorded.get("budget"), flops=recorded.get("flops"))
    kind = _kind_of_plan(run)
    if _kind_of_plan(before) != kind:
        raise UsageError(
            f"{kind}: the run began with {_kind_of_plan(before)}; "
            "give the same, or another --output_dir"
        )
    plan = recorded | state.get("training", {})  # that of a checkpoint is newer
    values = {name: plan[name] for name in _PLANNED if name in plan}
    for name in _SHARES:
        values[name] = min(values[name], getattr(config.training, name))
    if config.training.save_steps < values["save_steps"]:
        LOG.info(f"notice: checkpoints stay {values['save_steps']} steps apart, as planned")
    if run.flops is None:
        longer = run.budget_seconds / before.budget_seconds
        values["max_steps"] = max(1, round(values["max_steps"] * longer))
    elif run.flops != before.flops:
        shape = replace(config.model, vocab_size=recorded["model"]["vocab_size"])
        per_step = trial.flops_per_step(replace(config, model=shape), world_size)
        values["max_steps"] = max(1, round(run.flops / per_step))
    return replace(config, training=replace(config.training, **values))


def _kind_of_plan(run: RunConfig) -> str:
    if run.budget is not None:
        return "--budget"
    if run.flops is not None:
        return "--flops"
    return "neither budget nor FLOPs"


def planned(job: Job, world: World) -> Job:
    """The job with max_steps, warmup and intervals that follow from --budget or --flops, if given.

    Raises UsageError for a budget too small for one step, or of too many.
    """
    config = job.config
    run = config.run
    training = config.training
    if run.flops is not None:
        steps = round(run.flops / trial.flops_per_step(config, world.world_size))
        amount = f"{run.flops:g} FLOPs"
    elif run.budget is not None:
        step_seconds, evaluation_seconds = _measured_seconds(job, world)
        seconds = run.budget_seconds - evaluation_seconds  # of the evaluation before the first step
        # Evaluations come every eval_steps, or every such share of the run if that is more often.
        overhead = evaluation_seconds / (training.eval_steps * step_seconds)
        training_seconds = min(
            seconds - evaluation_seconds / _SHARES["eval_steps"],
            seconds / (1 + overhead),
        )
        steps = int(training_seconds / step_seconds)
        amount = run.budget
    else:
        return job
    if steps < 1:
        problem = f"{amount} is too little for a step and the evaluations"
        raise UsageError(f"{problem}; raise it or choose a smaller preset")
    values: dict[str, Any] = {"max_steps": steps}
    for name, share in _SHARES.items():
        most = max(1, math.ceil(share * steps))
        values[name] = min(getattr(training, name), most)
    milestone = _SAVE_SHARE * steps
    saves = math.ceil(milestone / training.save_steps)  # until the first milestone
    values["save_steps"] = max(1, round(milestone / saves))
    values["save_milestones"] = values["save_steps"] * saves
    warmup = f"{values['warmup_steps']:,} of them warmup"
    LOG.info(f"plan for {amount}: {steps:,} steps instead of --max_steps, {warmup}")
    if steps < _FEW_STEPS:
        advice = "choose a smaller preset or --per_device_train_batch_size, or a larger budget"
        LOG.info(f"notice: few steps; {advice}")
    try:
        return job._replace(config=replace(config, training=replace(training, **values)))
    except ValueError as error:
        raise UsageError(f"{amount}: {error}") from None


def _measured_seconds(job: Job, world: World) -> tuple[float, float]:
    """Seconds of a step and of an evaluation on the slowest process; the weights stay the same."""
    LOG.info("timing a few steps for --budget …")
    before = deepcopy(job.objective.state_dict())
    step_seconds, example_seconds = trial.time_parts(job, world)
    job.objective.load_state_dict(before)
    evaluation_seconds = example_seconds * trial.scored_examples(job, world)
    measured = gather_objects((step_seconds, evaluation_seconds), world)
    of_steps, of_evaluations = zip(*measured, strict=True)
    return max(of_steps), max(of_evaluations)


@dataclass
class Pace:
    """max_steps of a run that ends after `seconds`, from its recent speed; called at each log.

    It reserves time for the evaluations that are left, and for saves what they took so far.
    """

    seconds: float
    eval_steps: int
    monitor: Monitor
    marks: list[tuple[float, int]] = field(default_factory=list)  # seconds of training and step
    evaluation_seconds: float = 0.0  # of the last evaluation
    evaluated_seconds: float = 0.0  # of all evaluations
    seconds_before_training: float = 0.0

    def timed(self, evaluate: Evaluate) -> Evaluate:
        """The evaluation function, with its time taken."""

        def timed(step: int) -> Metrics | None:
            started = self.monitor.elapsed_seconds
            metrics = evaluate(step)
            self.evaluation_seconds = self.monitor.elapsed_seconds - started
            self.evaluated_seconds += self.evaluation_seconds
            return metrics

        return timed

    def __call__(self, step: int, training_seconds: float) -> int:
        elapsed = self.monitor.elapsed_seconds
        # Of saving; in the first call, before the training.
        other_seconds = elapsed - training_seconds - self.evaluated_seconds
        other_seconds -= self.seconds_before_training
        self.marks.append((training_seconds, step))
        earlier = self.marks[:-1]
        if not earlier:
            self.seconds_before_training = other_seconds
            return self.monitor.max_steps  # one mark has no speed
        recent = (mark for mark in earlier if mark[0] >= _RECENT * training_seconds)
        mark_seconds, mark_step = next(recent, earlier[-1])
        step_seconds = (training_seconds - mark_seconds) / (step - mark_step)
        step_seconds += other_seconds / (step - earlier[0][1])
        step_seconds += self.evaluation_seconds / self.eval_steps
        # Each future step pays for its share of an evaluation. Still to pay: the last evaluation,
        # and the shares of the steps since the previous one.
        unpaid = 1 + step / self.eval_steps - (step - 1) // self.eval_steps
        left = self.seconds - elapsed - unpaid * self.evaluation_seconds
        return step + max(0, int(left / step_seconds))
