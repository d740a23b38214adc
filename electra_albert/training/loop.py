"""The training loop of pretraining and fine-tuning."""

import time
from collections.abc import Callable, Generator
from dataclasses import asdict, replace
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from electra_albert.contracts import LOG, Batch, Metrics, Objective, StepBatches, Term, UsageError
from electra_albert.training import checkpoint, distributed, guards, monitor, optimizer
from electra_albert.training.step import (
    RunSettings,
    StepCounts,
    autocast,
    backward,
    count_step,
    gradient_norms,
    term_scales,
)

GRADIENT_NORM = "grad_norm"

# Evaluates at a step; returns metrics by name without prefix, or None if a signal stopped it.
Evaluate = Callable[[int], Metrics | None]


class Outcome(NamedTuple):
    """Result of `train`."""

    step: int  # finished steps
    is_stopped: bool  # by a signal, after saving
    metrics: Metrics  # of the last evaluation, by name without prefix


def train(objective: nn.Module, batches: StepBatches, evaluate: Evaluate, run: RunSettings) -> Outcome:
    """Train `objective`, a contracts.Objective on the run's device, until max_steps, early stopping or a stop signal.

    Raises DivergedError for non-finite numbers, UsageError if the last checkpoint cannot be written.
    """
    loop = _Loop(objective, batches, evaluate, run)
    loop.begin()
    stream = batches.steps(loop.step + 1)
    try:
        while loop.step < loop.last_step and not loop.should_stop:
            asked = time.monotonic()
            micro_batches = next(stream)
            loop.seconds_waited += time.monotonic() - asked
            counts = count_step(loop.objective, micro_batches, loop.step + 1, run)
            if counts.is_stopping:
                loop.save(is_last=True)
                LOG.info(f"stopped by a signal after step {loop.step}; run the same command again to resume")
                return Outcome(loop.step, True, loop.metrics)
            loop.update(micro_batches, counts)
            loop.log_save_evaluate()
    finally:
        if isinstance(stream, Generator):
            stream.close()
    return Outcome(loop.step, loop.is_evaluation_cut_short, loop.metrics)


class _Loop:
    """The state of a run between two steps."""

    def __init__(self, objective: nn.Module, batches: StepBatches, evaluate: Evaluate, run: RunSettings) -> None:
        self.module, self.objective = objective, cast(Objective, objective)
        self.step, self.last_step = 0, run.config.max_steps
        self.metrics: Metrics = {}
        self.is_evaluation_cut_short = self.should_stop = False
        self._batches, self._evaluate, self._run = batches, evaluate, run
        self._model: nn.Module = objective
        self._optimizer = optimizer.build_optimizer(objective, run.config, run.lr_multipliers)
        self._guard = guards.UpdateGuard(run.world.device)
        self._loss_scale = guards.LossScale(run.world.device, run.arithmetic)
        self._tally = monitor.Tally(run.world.device)
        self._term_norms: Metrics = {}  # of the step that is logged next
        self._tokens = 0
        self._is_first_update = True
        self._saved_step = 0  # the initial weights need no checkpoint
        self.seconds_waited = 0.0  # for data, since the last log
        self._logged_tokens, self._logged_time = 0, 0.0  # at the last log; later saves and evaluations add their time

    def begin(self) -> None:
        """Load the checkpoint, if there is one, wrap the model in DDP, and evaluate if that is due."""
        run, path = self._run, self._run.resume_from
        if path is not None:
            state = checkpoint.load_checkpoint(path, self.module, self._optimizer)
            self.step, self._tokens = state["step"], state["tokens"]
            self._guard = guards.UpdateGuard(run.world.device, state["skipped"])
            self._loss_scale.restore(state["loss_scale"], path)
            self._tally.restore(state["tally"], run.world)
            if path.parent.resolve() == run.checkpoints.resolve():
                self._saved_step = self.step
            LOG.info(f"resuming from {path} after step {self.step}")
        if run.world.is_main:
            checkpoint.tidy(run.checkpoints, self.step)
        # A step is saved before it is evaluated, so its evaluation is repeated.
        is_due = self._is_due(run.config.eval_steps) if self.step else run.eval_on_start
        run.monitor.start(self.step, is_evaluated=not is_due)
        self.module.train()
        if run.world.world_size > 1:
            self._model = DistributedDataParallel(self.module, gradient_as_bucket_view=True)
        if is_due:
            self._score()
        self._logged_tokens, self._logged_time = self._tokens, time.monotonic()

    def _is_due(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self._run.config.max_steps

    def _check_objective(self, batch: Batch, step: int) -> None:
        """Raise ValueError if a parameter gets no gradient, or if counts on the host and the device differ."""
        # Also makes a resume exact: DDP reorders its gradient buckets, and thus sums, after its first backward pass.
        terms = backward(self._model, [batch], dict.fromkeys(self.objective.weights, 0.0), step, self._run)
        optimizer.check_gradients(self.module)
        for name, count in self.objective.counts(batch, step).items():
            if count != (found := int(terms[name].count)):
                raise ValueError(f"{name} has count {found}, but counts() on the host returned {count}")
        self._optimizer.zero_grad(set_to_none=True)

    def update(self, micro_batches: list[Batch], counts: StepCounts) -> None:
        """Perform one step, or skip it on the device if the gradient is not finite. Never synchronises with the GPU."""
        config, world, step = self._run.config, self._run.world, self.step + 1
        if self._is_first_update:
            self._check_objective(micro_batches[0], step)
            self._is_first_update = False
        if config.log_gradient_norms and (step in (1, config.max_steps) or step % config.logging_steps == 0):
            scale = self._loss_scale.current()
            self._term_norms = gradient_norms(self.module, micro_batches[0], step, self._run, scale)
        scales = term_scales(self.objective.weights, counts.terms, world.world_size)
        terms = backward(self._model, micro_batches, scales, step, self._run, self._loss_scale.current())
        self._loss_scale.unscale_(self._optimizer)
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), config.max_grad_norm)
        is_finite = self._guard.observe(norm, self._loss_scale.update_scale())
        for group in self._optimizer.param_groups:
            group["lr"] = optimizer.learning_rate(step, config) * group["lr_multiplier"]
        # The optimizer reads this attribute on the device; at 1 it changes no weight, moment or counter.
        self._optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        terms[GRADIENT_NORM] = Term(norm.detach(), torch.ones((), dtype=torch.int64, device=world.device))
        self._tally.add(terms, is_finite)
        self.step, self._tokens = step, self._tokens + counts.tokens

    def log_save_evaluate(self) -> None:
        """Log, save and evaluate if it is due; if the run has a plan, update max_steps after the log."""
        run, config = self._run, self._run.config
        if self.step == 1 or self._is_due(config.logging_steps):
            self._log()
        if run.plan is not None and self.step % config.logging_steps == 0:
            self.last_step = run.monitor.max_steps = max(
                self.step, distributed.gather_objects(run.plan(self.step), run.world)[0]
            )
            self._run = replace(run, config=(config := replace(config, max_steps=self.last_step)))
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
        means = monitor.means_of(self._tally.take(run.world), self.objective.weights)
        seconds, tokens = time.monotonic() - self._logged_time, self._tokens - self._logged_tokens
        pace = {"tokens_per_second": tokens / seconds, "data_wait": self.seconds_waited / seconds}
        distributed.log_straggler(self._model, run.world)
        norm, lr = means.pop(GRADIENT_NORM), optimizer.learning_rate(self.step, run.config)
        parts = {name: float(value) for name, value in self._term_norms.items()}
        row = {**means, "learning_rate": lr, GRADIENT_NORM: norm, **parts, **pace}
        skipped = {"skipped_steps": count} if (count := self._guard.state()[0]) else {}
        run.monitor.row({**self._position(), **row, **skipped, **self._loss_scale.metrics()})
        self._logged_tokens, self._logged_time, self.seconds_waited = self._tokens, time.monotonic(), 0.0
        self._guard.check(self.step)

    def _score(self) -> None:
        """Evaluate and log, unless a signal stopped the evaluation."""
        started = time.monotonic()
        self.module.eval()
        with torch.no_grad(), autocast(self._run.world.device, self._run.arithmetic):
            metrics = self._evaluate(self.step)
        self.module.train()
        self.is_evaluation_cut_short = metrics is None
        if metrics is not None:
            self.metrics = metrics
            self._run.monitor.evaluation(self._position(), metrics)
            self.should_stop = self._run.should_stop()
        self._logged_time += time.monotonic() - started

    def save(self, *, is_last: bool) -> None:
        """Save a checkpoint. A failure is a warning, and the next save tries again; for the last one it is an error."""
        run, started = self._run, time.monotonic()
        if self.step == self._saved_step:
            return
        self._guard.check(self.step)
        checkpoint.check_finite(self.module, self._optimizer)
        state = {
            **self._position(),
            "skipped": self._guard.state(),
            "loss_scale": self._loss_scale.state(),
            "tally": self._tally.state(run.world),
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
                checkpoint.save_checkpoint(run.checkpoints, self.module, self._optimizer, state, *limits)
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
