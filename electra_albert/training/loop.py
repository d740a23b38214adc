"""The training loop of pretraining and fine-tuning."""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import asdict, replace
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
    """Train `objective`, a contracts.Objective on the run's device, until max_steps, early stopping or a stop signal.

    training_step: that of the objective, if an earlier run has recorded it. Raises DivergedError for non-finite
    numbers, UsageError if the last checkpoint cannot be written.
    """
    loop = _Loop(objective, batches, evaluate, run, training_step)
    with ExitStack() as stack:
        stack.enter_context(graphs.own_stream(run.world.device))
        loop.begin()
        stream = batches.steps(loop.step + 1)
        if isinstance(stream, Generator):
            stack.callback(stream.close)
        while loop.step < loop.last_step and not loop.should_stop:
            asked = time.monotonic()
            micro_batches = next(stream)
            loop.seconds_waited += time.monotonic() - asked
            counts = count_step(loop.objective, micro_batches, run)
            if counts.is_stopping:
                loop.save(is_last=True)
                LOG.info(f"stopped by a signal after step {loop.step}; run the same command again to resume")
                return Outcome(loop.step, True, loop.metrics)
            loop.update(micro_batches, counts)
            loop.log_save_evaluate()
    return Outcome(loop.step, loop.is_evaluation_cut_short, loop.metrics)


class _Loop:
    """The state of a run between two steps."""

    def __init__(
        self,
        objective: Any,  # a contracts.Objective
        batches: StepBatches,
        evaluate: Evaluate,
        run: RunSettings,
        training_step: TrainingStep | None = None,
    ) -> None:
        self.objective = objective
        self.step = 0
        self.last_step = run.config.max_steps
        self.metrics: Metrics = {}
        self.is_evaluation_cut_short = False
        self.should_stop = False
        self._batches = batches
        self._evaluate = evaluate
        self._run = run
        self._training_step = training_step or TrainingStep(objective, run)
        self._tokens = 0
        self._saved_step = 0  # the initial weights need no checkpoint
        self.seconds_waited = 0.0  # for data, since the last log
        self._logged_tokens, self._logged_time = 0, 0.0  # at the last log; later saves and evaluations add their time
        self._training_seconds = 0.0  # up to the last log, without saves and evaluations

    def begin(self) -> None:
        """Load the checkpoint, if any, prepare several ranks, and evaluate if that is due."""
        run, path = self._run, self._run.resume_from
        training_step = self._training_step
        if path is not None:
            state = checkpoint.load_checkpoint(path, self.objective, training_step.optimizer)
            self.step, self._tokens = state["step"], state["tokens"]
            training_step.guard.restore(state["skipped"])
            training_step.loss_scale.restore(state["loss_scale"], path)
            training_step.tally.restore(state["tally"], run.world)
            if path.parent.resolve() == run.checkpoints.resolve():
                self._saved_step = self.step
            LOG.info(f"resuming from {path} after step {self.step}")
        if run.world.is_main:
            checkpoint.tidy(run.checkpoints, self.step)
        # A step is saved before it is evaluated, so its evaluation is repeated. A plan needs the time of one.
        is_saved_first = self.step > 0 and self._is_due(run.config.eval_steps)
        is_due = is_saved_first or run.plan is not None or (self.step == 0 and run.eval_on_start)
        run.monitor.start(self.step, is_evaluated=not is_due)
        self.objective.train()
        training_step.distribute()
        if is_due:
            self._score()
        self._logged_tokens, self._logged_time = self._tokens, time.monotonic()

    def _is_due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self._run.config.max_steps

    def update(self, micro_batches: list[Batch], counts: StepCounts) -> None:
        """Perform one step, or skip it on the device if the gradient is not finite. Never synchronises with the GPU."""
        step = self.step + 1
        training_step = self._training_step
        if not training_step.is_checked:
            training_step.check(micro_batches[0], step)
        training_step.accumulate(micro_batches, training_step.scales(counts.terms), step)
        training_step.finish()
        self.step, self._tokens = step, self._tokens + counts.tokens

    def log_save_evaluate(self) -> None:
        """Log, save and evaluate if it is due; if the run has a plan, update max_steps after the log."""
        run, config = self._run, self._run.config
        if self.step == 1 or self._is_due(config.logging_steps):
            self._log()
        self._training_step.guard.watch(self.step)
        if run.plan is not None and self.step % config.logging_steps == 0:
            planned = run.plan(self.step, self._training_seconds)
            self.last_step = max(self.step, distributed.gather_objects(planned, run.world)[0])
            run.monitor.max_steps = self.last_step
            config = replace(config, max_steps=self.last_step)
            self._run = self._training_step.run = replace(run, config=config)
        run.monitor.tick()
        if self._is_due(config.save_steps):
            self.save(is_last=self.step == config.max_steps)
        if self._is_due(config.eval_steps):
            self._score()

    def _position(self) -> Metrics:
        return {"step": self.step, "tokens": self._tokens, "epoch": self._batches.epoch(self.step)}

    def _log(self) -> None:
        """Log the means since the last log, over the steps that were not skipped."""
        run = self._run
        training_step = self._training_step
        means = monitor.means_of(training_step.tally.take(run.world), self.objective.weights)
        seconds, tokens = time.monotonic() - self._logged_time, self._tokens - self._logged_tokens
        self._training_seconds += seconds
        pace = {"tokens_per_second": tokens / seconds, "data_wait": self.seconds_waited / seconds}
        norm, lr = means.pop(GRADIENT_NORM), learning_rate(self.step, run.config)
        row = {**means, "learning_rate": lr, GRADIENT_NORM: norm, **pace}
        skipped = {"skipped_steps": count} if (count := training_step.guard.state()[0]) else {}
        run.monitor.row({**self._position(), **row, **skipped, **training_step.loss_scale.metrics()})
        self._logged_tokens, self._logged_time, self.seconds_waited = self._tokens, time.monotonic(), 0.0
        training_step.guard.check(self.step)

    def _score(self) -> None:
        """Evaluate and log, unless a signal stopped the evaluation."""
        started = time.monotonic()
        self.objective.eval()
        with torch.no_grad(), autocast(self._run.world.device, self._run.arithmetic):
            metrics = self._evaluate(self.step)
        self.objective.train()
        self.is_evaluation_cut_short = metrics is None
        if metrics is not None:
            self.metrics = metrics
            self._run.monitor.evaluation(self._position(), metrics)
            self.should_stop = self._run.should_stop()
        self._logged_time += time.monotonic() - started

    def save(self, *, is_last: bool) -> None:
        """Save a checkpoint. A failure is a warning, and the next save tries again; for the last one it is an error."""
        run, started = self._run, time.monotonic()
        training_step = self._training_step
        if self.step == self._saved_step:
            return
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
                limits = run.config.save_total_limit, run.config.save_milestones
                checkpoint.save_checkpoint(run.checkpoints, self.objective, training_step.optimizer, state, *limits)
            except OSError as error:
                failure = f"cannot write the checkpoint of step {self.step} into {run.checkpoints}: {error}"
        failure = distributed.gather_objects(failure, run.world)[0]
        self._logged_time += time.monotonic() - started
        if not failure:
            self._saved_step = self.step
        elif is_last:
            raise UsageError(f"{failure}; older checkpoints are kept: free disk space and run the same command again")
        else:
            LOG.warning(f"{failure}; older checkpoints are kept, training continues")
