"""The length of a run from --budget (time) or --flops."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from electra_albert.apps.pretrain import trial
from electra_albert.apps.pretrain.job import Job
from electra_albert.config import BUILT_IN_CORPUS, PretrainConfig
from electra_albert.contracts import LOG, Metrics, UsageError
from electra_albert.presets import PRESETS
from electra_albert.training.distributed import World, gather_objects
from electra_albert.training.loop import Evaluate
from electra_albert.training.monitor import Monitor

_PLANNED = ("max_steps", "warmup_steps", "logging_steps", "eval_steps", "save_steps", "save_milestones")
_SHARES = {"warmup_steps": 0.05, "logging_steps": 0.02, "eval_steps": 0.125}  # of max_steps, at most
_SAVE_SHARE = 0.0625
_RECENT = 0.75  # of the time so far, after which the speed is expected to stay as it is
_FEW_STEPS = 1000
# Training tokens up to which a preset and a vocabulary suit a text, and the epochs after which it is learned.
_SUGGESTED = ((1e6, "tiny", 4000), (5e7, "tiny", 8000), (5e9, "small", 30000), (math.inf, "base", 30000))
_EPOCHS, _MANY_EPOCHS = 10, 40


def suggestion(job: Job) -> list[str]:
    """Preset, vocabulary and steps that suit the amount of text, unless it is the built-in one; see docs/corpus.md."""
    config, tokens = job.config, job.prepared.store.train.token_count
    if config.corpus.corpus == BUILT_IN_CORPUS or job.origin is not None:
        return []
    preset, vocab_size = next((preset, size) for most, preset, size in _SUGGESTED if tokens <= most)
    shape = PRESETS[preset]
    training, length = shape.training, shape.corpus.max_seq_length
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
    steps = _EPOCHS * tokens / (batch * length)
    steps = min(steps, training.max_steps) if preset != "tiny" else steps
    words = f"--preset {preset} --vocab_size {vocab_size} --max_steps {max(100, int(float(f'{steps:.2g}')))}"
    lines = [f"usual for {tokens:,} tokens of text: {words}, or --budget with the time you have"]
    if (epochs := job.batches.epoch(config.training.max_steps)) > _MANY_EPOCHS:
        lines.append(f"notice: {epochs:.0f} epochs are many; watch whether the held-out losses rise")
    return lines


def recorded_plan(config: PretrainConfig, state: Mapping[str, Any], world_size: int) -> PretrainConfig:
    """The configuration of a resumed run with its recorded plan, longer if --budget or --flops is larger now.

    It has the recorded number of positions too: older runs have more than their sequences need.

    Raises UsageError if the run was planned otherwise.
    """
    run, recorded = config.run, state["settings"]
    positions = max(config.corpus.max_seq_length, recorded["model"]["max_position_embeddings"])
    config = replace(config, model=replace(config.model, max_position_embeddings=positions))
    if run.flops is None and run.budget is None:
        return config
    before = replace(run, budget=recorded.get("budget"), flops=recorded.get("flops"))
    if (before.budget is None, before.flops is None) != (run.budget is None, run.flops is None):
        asked, given = ("--budget" if run.budget else "--flops"), ("--budget" if before.budget else "--flops")
        was = "neither budget nor FLOPs" if before.budget is None and before.flops is None else given
        raise UsageError(f"{asked}: the run began with {was}; give the same, or another --output_dir")
    plan = recorded | state.get("training", {})  # that of a checkpoint is newer
    values = {name: plan[name] for name in _PLANNED if name in plan}
    values |= {name: min(values[name], getattr(config.training, name)) for name in _SHARES}
    if config.training.save_steps < values["save_steps"]:
        LOG.info(f"notice: checkpoints stay {values['save_steps']} steps apart, as planned")
    if run.flops is None:
        values["max_steps"] = max(1, round(values["max_steps"] * run.budget_seconds / before.budget_seconds))
    elif run.flops != before.flops:
        whole = replace(config, model=replace(config.model, vocab_size=recorded["model"]["vocab_size"]))
        values["max_steps"] = max(1, trial.steps_for(trial.flops_per_step(whole, world_size), run.flops))
    return replace(config, training=replace(config.training, **values))


def planned(job: Job, world: World) -> Job:
    """The job with max_steps, warmup and intervals that follow from --budget or --flops, if one of them is given.

    Raises UsageError for a budget of less than one step, or of fewer steps than another option needs.
    """
    config, training, run = job.config, job.config.training, job.config.run
    if run.flops is None and run.budget is None:
        return job
    if run.flops is not None:
        per_step, given = trial.flops_per_step(config, world.world_size), f"{run.flops:g} FLOPs"
        steps = trial.steps_for(per_step, run.flops)
    else:
        steps, given = int(run.budget_seconds / _seconds_per_step(job, world)), f"{run.budget}"
    if steps < 1:
        raise UsageError(f"{given} is less than one step takes; raise it or choose a smaller preset")
    values = {name: min(getattr(training, name), max(1, math.ceil(share * steps))) for name, share in _SHARES.items()}
    milestone = _SAVE_SHARE * steps
    saves = math.ceil(milestone / training.save_steps)  # until the first milestone
    save_steps = max(1, round(milestone / saves))
    values |= {"max_steps": steps, "save_steps": save_steps, "save_milestones": save_steps * saves}
    LOG.info(f"plan for {given}: {steps:,} steps instead of --max_steps, {values['warmup_steps']:,} of them warmup")
    if steps < _FEW_STEPS:
        LOG.info("notice: few steps; choose a smaller preset or --per_device_train_batch_size, or a larger budget")
    job.objective.max_steps = steps
    try:
        return job._replace(config=replace(config, training=replace(training, **values)))
    except ValueError as error:
        raise UsageError(f"{given}: {error}") from None


def _seconds_per_step(job: Job, world: World) -> float:
    """Seconds of a step on the slowest process; the weights stay as they are."""
    before = {name: tensor.clone() for name, tensor in job.objective.state_dict().items()}
    seconds, _ = trial.time_parts(job, world)
    job.objective.load_state_dict(before)
    return float(max(gather_objects(seconds, world)))


class Pace:
    """max_steps of a run that ends after `seconds`, from its recent speed; called with the step at each log."""

    def __init__(self, seconds: float, monitor: Monitor) -> None:
        self._seconds, self._monitor = seconds, monitor
        self._marks: list[tuple[float, int]] = []  # elapsed seconds and step
        self._evaluation_seconds = 0.0  # of the last evaluation, and so of the one after the last step

    def timed(self, evaluate: Evaluate) -> Evaluate:
        """The evaluation function, with its time taken."""

        def timed(step: int) -> Metrics | None:
            started = self._monitor.elapsed_seconds
            metrics = evaluate(step)
            self._evaluation_seconds = self._monitor.elapsed_seconds - started
            return metrics

        return timed

    def __call__(self, step: int) -> int:
        now = self._monitor.elapsed_seconds
        self._marks.append((now, step))
        if not (earlier := self._marks[:-1]):
            return self._monitor.max_steps  # one mark has no speed
        then, first = next((mark for mark in earlier if mark[0] >= _RECENT * now), earlier[-1])
        left = self._seconds - now - self._evaluation_seconds
        return step + max(0, int(left * (step - first) / (now - then)))
