"""The training loop of pretraining and fine-tuning."""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from electra_albert.contracts import LOG, Batch, Metrics, StepBatches, UsageError
from electra_albert.training import checkpoint, distributed, graphs, monitor
from electra_albert.training.optimizer import learning_rate
from electra_albert.training.step import (
    GRADIENT_NORM,
    RunSettings,
    StepCounts,
    TrainingStep,
    autocast,
    count_step,
)

# Evaluates at a step; returns metrics by name without prefix, or None if a signal stopped it.
Evaluate = Callable[[int], Metrics | None]


class Outcome(NamedTuple):
    """Result of `train`."""

    step: int  # finished steps
    is_stopped: bool  # by a signal, after saving
    metrics: Metrics  # of the last evaluation, by name without prefix


def train(
    objective: nn.Module,
    batches: StepBatches,
    evaluate: Evaluate,
    run: RunSettings,
    training_step: TrainingStep | None = None,
) -> Outcome:
    """Train a contracts.Objective on its device until max_steps, a callback or a signal ends it.

    training_step: that of the objective, if an earlier run has recorded it. Raises DivergedError
    for non-finite numbers, UsageError if the last checkpoint cannot be written.
    """
    loop = _Loop(objective, batches, evaluate, run, training_step or TrainingStep(objective, run))
    with ExitStack() as stack:
        stack.enter_context(graphs.own_stream(run.world.device))
        loop.begin()
        stream = batches.steps(loop.step + 1)
        if isinstance(stream, Generator):
            stack.callback(stream.close)
        while loop.step < loop.run.config.max_steps and not loop.should_stop:
            asked_at = time.monotonic()
            micro_batches = next(stream)
            loop.seconds_waited += time.monotonic() - asked_at
            counts = count_step(loop.objective, micro_batches, run)
            if counts.is_stopping:
                loop.save(is_last=True)
                LOG.info(
                    f"stopped by a signal after step {loop.step}; "
                    "run the same command again to resume"
                )
                loop.is_stopped = True
                break
            loop.take_step(micro_batches, counts)
            loop.log_save_evaluate()
    return Outcome(loop.step, loop.is_stopped, loop.metrics)


@dataclass
class _Loop:
    """The state of a run between two steps."""

    objective: Any  # a contracts.Objective
    batches: StepBatches
    evaluate: Evaluate
    run: RunSettings
    training_step: TrainingStep
    step: int = 0
    tokens: int = 0
    saved_step: int = 0  # the initial weights need no checkpoint
    metrics: Metrics = field(default_factory=dict)
    is_stopped: bool = False  # by a signal, at a step or in an evaluation
    should_stop: bool = False
    seconds_waited: float = 0.0  # for data, since the last log
    logged_tokens: int = 0  # at the last log
    logged_time: float = 0.0  # of the last log; later saves and evaluations add their time
    training_seconds: float = 0.0  # up to the last log, without saves and evaluations

    def begin(self) -> None:
        """Load the checkpoint, if any, prepare several ranks, and evaluate if that is due."""
        run = self.run
        if run.resume_from is not None:
            self._resume(run.resume_from)
        if run.world.is_main:
            checkpoint.tidy(run.checkpoints, self.step)
        # A step is saved before it is evaluated, so its evaluation is repeated.
        is_due = self._is_due(run.config.eval_steps) if self.step else run.eval_on_start
        is_due = is_due or run.plan is not None  # which needs the time of an evaluation
        run.monitor.start(self.step, is_evaluated=not is_due)
        self.objective.train()
        self.training_step.distribute()
        if is_due:
            self._score()
        self.logged_tokens = self.tokens
        self.logged_time = time.monotonic()

    def _resume(self, path: Path) -> None:
        training_step = self.training_step
        state = checkpoint.load_checkpoint(path, self.objective, training_step.optimizer)
        self.step = state["step"]
        self.tokens = state["tokens"]
        training_step.guard.restore(state["skipped"])
        training_step.loss_scale.restore(state["loss_scale"], path)
        training_step.tally.restore(state["tally"], self.run.world)
        if path.parent.resolve() == self.run.checkpoints.resolve():
            self.saved_step = self.step
        LOG.info(f"resuming from {path} after step {self.step}")

    def _is_due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.run.config.max_steps

    def take_step(self, micro_batches: list[Batch], counts: StepCounts) -> None:
        """Perform one step; a non-finite gradient is skipped on the device, but counts as a step.

        Only the check before the first step waits for the GPU.
        """
        training_step = self.training_step
        step = self.step + 1
        if not training_step.is_checked:
            training_step.check(micro_batches[0], step)
        training_step.accumulate(micro_batches, counts.terms, step)
        training_step.finish()
        self.step = step
        self.tokens += counts.tokens

    def log_save_evaluate(self) -> None:
        """Log, save and evaluate if it is due; a plan updates max_steps after the log."""
        run = self.run
        config = run.config
        if self.step == 1 or self._is_due(config.logging_steps):
            self._log()
        self.training_step.guard.watch(self.step)
        if run.plan is not None and self.step % config.logging_steps == 0:
            planned = run.plan(self.step, self.training_seconds)
            max_steps = max(self.step, distributed.gather_objects(planned, run.world)[0])
            run.monitor.max_steps = max_steps
            config = replace(config, max_steps=max_steps)
            self.run = self.training_step.run = replace(run, config=config)
        run.monitor.tick()
        started = time.monotonic()
        if self._is_due(config.save_steps):
            self.save(is_last=self.step == config.max_steps)
        if self._is_due(config.eval_steps):
            self._score()
        self.logged_time += time.monotonic() - started

    def _position(self) -> Metrics:
        return {"step": self.step, "tokens": self.tokens, "epoch": self.batches.epoch(self.step)}

    def _log(self) -> None:
        """Log the means since the last log, over the steps that were not skipped."""
        run = self.run
        training_step = self.training_step
        means = monitor.means_of(training_step.tally.take(run.world), self.objective.weights)
        now = time.monotonic()
        seconds = now - self.logged_time
        self.training_seconds += seconds
        norm = means.pop(GRADIENT_NORM)
        row = {
            **self._position(),
            **means,
            "learning_rate": learning_rate(self.step, run.config),
            GRADIENT_NORM: norm,
            "tokens_per_second": (self.tokens - self.logged_tokens) / seconds,
            "data_wait": self.seconds_waited / seconds,
        }
        skipped_steps = training_step.guard.state()[0]
        if skipped_steps:
            row["skipped_steps"] = skipped_steps
        run.monitor.row({**row, **training_step.loss_scale.metrics()})
        self.logged_tokens = self.tokens
        self.logged_time = time.monotonic()
        self.seconds_waited = 0.0
        training_step.guard.check(self.step)

    def _score(self) -> None:
        """Evaluate and log, unless a signal stopped the evaluation."""
        self.objective.eval()
        with torch.no_grad(), autocast(self.run.world.device, self.run.arithmetic):
            metrics = self.evaluate(self.step)
        self.objective.train()
        self.is_stopped = metrics is None
        if metrics is not None:
            self.metrics = metrics
            self.run.monitor.evaluation(self._position(), metrics)
            is_ended = distributed.gather_objects(self.run.monitor.is_ended, self.run.world)[0]
            if is_ended:
                self.save(is_last=True)
            self.should_stop = is_ended or self.run.should_stop()

    def save(self, *, is_last: bool) -> None:
        """Save a checkpoint. A failure is a warning, for the last one an error."""
        if self.step == self.saved_step:
            return
        run = self.run
        training_step = self.training_step
        training_step.guard.check(self.step)
        checkpoint.check_finite(self.objective, training_step.optimizer)
        state = {
            **self._position(),
            "skipped": training_step.guard.state(),
            "loss_scale": training_step.loss_scale.state(),
            "tally": training_step.tally.state(run.world),
            "world_size": run.world.world_size,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
            "training": asdict(run.config),
            "settings": dict(run.settings),
        }
        failure = ""
        if run.world.is_main:
            try:
                checkpoint.save_checkpoint(
                    run.checkpoints,
                    self.objective,
                    training_step.optimizer,
                    state,
                    run.config.save_total_limit,
                    run.config.save_milestones,
                )
            except OSError as error:
                failure = (
                    f"cannot write the checkpoint of step {self.step} into {run.checkpoints}: "
                    f"{error}; older checkpoints are kept"
                )
        failure = distributed.gather_objects(failure, run.world)[0]
        if not failure:
            self.saved_step = self.step
        elif is_last:
            raise UsageError(f"{failure}: free disk space, then resume")
        else:
            LOG.warning(f"{failure}, training continues")
