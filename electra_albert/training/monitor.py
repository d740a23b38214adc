"""Metrics of a run: metrics.jsonl, samples.jsonl, the progress bar, and trackers (--report_to)."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from electra_albert.contracts import LOG, NO_CALLBACKS, Callbacks, Metrics, Term
from electra_albert.files import is_of_kind, parse_json, write_text
from electra_albert.training import run_log
from electra_albert.training.distributed import World, gather_objects, sum_over_ranks

EVALUATION_PREFIX = "eval_"
# Phases.
_TRAINING = "train"
_EVALUATION = "eval"
_ROW = {"step": int}
CLOCK = ("elapsed_seconds", "time")  # the keys that depend on the time of writing
# Outputs, in addition to the trackers.
_METRICS = "metrics.jsonl"
_SAMPLES = "samples.jsonl"
_BAR = "the progress bar"
_LINE_WIDTH = 100  # characters
_BAR_WIDTH = 46  # of the metrics after the bar
_GAP = "  "
_BAR_FORMAT = (
    "{percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{remaining} left, {rate_fmt}{postfix}]"
)
# Shown after the losses.
_SHORT_NAMES = {
    "discriminator_auc": "AUC",
    "tokens_per_second": "tokens/s",
    "skipped_steps": "skipped",
}
_FILE_ONLY = ("step", "tokens", "epoch", "masked_tokens", "data_wait", "learning_rate", "grad_norm")
# For trackers, with training metrics only.
_SPEED = ("tokens", "epoch", "tokens_per_second", "data_wait")


def read_rows(path: Path, kind: Mapping[str, Any] = _ROW) -> list[dict[str, Any]]:
    """The rows of this kind in a file of JSON lines, in order; none if there is no file."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    rows = []
    for line in text.splitlines():
        with suppress(ValueError):
            rows.append(parse_json(line, kind))
    return rows


def read_metrics(path: Path) -> list[Metrics]:
    """The rows of metrics.jsonl in order; None instead of a metric that is not a finite number."""
    texts = {"phase": str | None, "time": str | None}
    rows = read_rows(path, _ROW | texts)
    for row in rows:
        for name in row.keys() - texts.keys():
            if not is_of_kind(row[name], float):
                row[name] = None
    return rows


def cut_metrics(path: Path, step: int, *, is_evaluated: bool) -> list[Metrics]:
    """Remove the rows after `step`, and its evaluation unless is_evaluated; returns the others."""
    rows = read_rows(path)
    earlier = []
    for row in rows:
        position = (row["step"], row.get("phase") == _EVALUATION)
        if position <= (step, is_evaluated):
            earlier.append(row)
    if path.exists():
        lines = path.read_bytes().splitlines()
        lost = len(lines) - len(rows)
        if lost:
            LOG.warning(f"{path}: removing {lost} incomplete lines")
        write_text(path, "".join(json.dumps(row) + "\n" for row in earlier))
    return earlier


class Tally:
    """Accumulates sums and counts of terms on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._float = torch.float64
        if device.type == "mps":  # has no float64
            self._float = torch.float32
        self._start([])

    def _start(self, names: list[str]) -> None:
        self._names = names
        self._sums = torch.zeros(len(names), dtype=self._float, device=self._device)
        self._counts = torch.zeros(len(names), dtype=torch.int64, device=self._device)

    def clear(self) -> None:
        """Set all sums to 0, in place, for CUDA graphs."""
        self._sums.zero_()
        self._counts.zero_()

    def add(self, terms: Mapping[str, Term], is_kept: Tensor) -> None:
        """Add the terms of one step, unless is_kept, bool [], is false: the step was skipped."""
        if not self._names:
            self._start(list(terms))
        sums = torch.stack([terms[name].sum for name in self._names])
        counts = torch.stack([terms[name].count for name in self._names])
        self._sums += torch.where(is_kept, sums.to(self._float), 0.0)
        self._counts += torch.where(is_kept, counts, 0)

    def take(self, world: World) -> dict[str, tuple[float, int]]:
        """(sum, count) of each term over all ranks, then 0; synchronises with the device."""
        sums = sum_over_ranks(self._sums, world).tolist()
        counts = sum_over_ranks(self._counts, world).tolist()
        self.clear()
        totals = zip(sums, counts, strict=True)
        return dict(zip(self._names, totals, strict=True))

    def state(self, world: World) -> dict[str, Any]:
        """The state for a checkpoint: each rank's sums, bitwise: their order matters."""
        sums = [value.hex() for value in self._sums.tolist()]
        ranks = gather_objects((sums, self._counts.tolist()), world)
        return {"names": self._names, "ranks": ranks}

    def restore(self, state: Mapping[str, Any], world: World) -> None:
        """Load a checkpoint's state; if the number of ranks differs, the first gets all sums."""
        if state["names"] != self._names:
            self._start(list(state["names"]))
        self.clear()
        ranks = state["ranks"]
        if len(ranks) == world.world_size:
            ranks = [ranks[world.rank]]
        elif not world.is_main:
            ranks = []
        for sums, counts in ranks:
            values = [float.fromhex(value) for value in sums]
            self._sums += self._sums.new_tensor(values)
            self._counts += self._counts.new_tensor(counts)


def means_of(totals: Mapping[str, tuple[float, int]], weights: Mapping[str, float]) -> Metrics:
    """`loss`, the weighted sum of the losses, and the mean of each (sum, count).

    A mean is None for a count of 0, and so is a loss without means.
    """
    means: Metrics = {"loss": None}
    for name, (total, count) in totals.items():
        means[name] = total / count if count else None
    losses = [weights[name] * means[name] for name in weights if means[name] is not None]
    if losses:
        means["loss"] = sum(losses)
    return means


@dataclass(eq=False)
class Monitor(AbstractContextManager["Monitor"]):
    """Writes metrics to metrics.jsonl, trackers and the progress bar, on the main rank.

    report_to: names of trackers, separated by commas, or none. settings: those that trackers show
    with the run. alarms: warnings for a row of metrics. An OSError only warns, once an output.
    """

    folder: Path
    max_steps: int
    report_to: str = "tensorboard"
    _: KW_ONLY
    is_main: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    alarms: Callable[[Metrics], list[str]] = lambda row: []
    callbacks: Callbacks = NO_CALLBACKS
    is_ended: bool = False  # by a callback

    def __post_init__(self) -> None:
        self._trackers: dict[str, Any] = {}
        self._bar = tqdm(disable=True)
        self._failed: set[str] = set()
        self._first_step = 0
        self._started = 0.0
        self._seconds_before = 0.0  # elapsed before this resume

    def __exit__(self, *_: object) -> None:
        for name, output in {**self._trackers, _BAR: self._bar}.items():
            with self._reporting(name):
                output.close()

    def start(self, step: int, *, is_evaluated: bool = True) -> None:
        """Open the outputs after `step` and remove later rows, as `cut_metrics` does."""
        from electra_albert.training.trackers import open_tracker

        if not self.is_main:
            return
        self._first_step = step
        self._started = time.monotonic()
        with self._reporting(_METRICS):
            self.folder.mkdir(parents=True, exist_ok=True)
            rows = cut_metrics(self.folder / _METRICS, step, is_evaluated=is_evaluated)
            if rows and is_of_kind(rows[-1], {"elapsed_seconds": float}):
                self._seconds_before = rows[-1]["elapsed_seconds"]
        with self._reporting(_SAMPLES):
            cut_metrics(self.folder / _SAMPLES, step, is_evaluated=is_evaluated)
        for name in self.report_to.split(","):
            with self._reporting(name):
                if name != "none":
                    self._trackers[name] = open_tracker(name, self.folder, step, self.settings)
        is_hidden = None  # unless a terminal shows it
        if run_log.is_notebook():
            is_hidden = False
        self._bar = tqdm(
            total=self.max_steps,
            initial=step,
            smoothing=0.05,
            unit=" steps",
            file=run_log.console(),
            bar_format=_BAR_FORMAT,
            dynamic_ncols=True,
            disable=is_hidden,
        )

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        """An OSError in the block becomes one warning for each output."""
        try:
            yield
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                LOG.warning(
                    f"cannot write {name} ({error.strerror or error}); "
                    "training continues with incomplete logs"
                )

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of the run, without the time between a stop and its resume."""
        return self._seconds_before + time.monotonic() - self._started

    def tick(self) -> None:
        """Advance the progress bar by one step."""
        with self._reporting(_BAR):
            self._bar.total = self.max_steps
            self._bar.update()

    def row(self, row: Metrics) -> None:
        """Write and log one row of training metrics."""
        self._write(row, _TRAINING)
        step = row["step"]
        seconds = time.monotonic() - self._started
        step_seconds = seconds / max(1, step - self._first_step)
        seconds_left = round(step_seconds * (self.max_steps - step))
        left = timedelta(seconds=seconds_left)
        self._bar.set_postfix_str(_readable(row, _BAR_WIDTH), refresh=False)
        start = f"step {step}/{self.max_steps}{_GAP}"
        end = f"{_GAP}{left} left"
        text = _readable(row, _LINE_WIDTH - len(start + end))
        destination = None
        if not self._bar.disable:
            destination = run_log.FILE_ONLY
        LOG.info(f"{start}{text}{end}", extra=destination)

    def evaluation(self, position: Metrics, metrics: Metrics) -> None:
        """Write and log metrics, without prefix, at `position` (step, tokens, epoch)."""
        named = {f"{EVALUATION_PREFIX}{name}": value for name, value in metrics.items()}
        self._write(position | named, _EVALUATION)
        start = f"step {position['step']}/{self.max_steps}{_GAP}held out: "
        LOG.info(f"{start}{_readable(metrics, _LINE_WIDTH - len(start))}")

    def samples(
        self, step: int, lines: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the sample predictions of an evaluation.

        Lines go to log.txt and trackers, records to samples.jsonl.
        """
        run_log.log_to_file("\n".join(lines))
        rows = [{"step": step, "phase": _EVALUATION, **record} for record in records]
        with self._reporting(_SAMPLES):
            _append(self.folder / _SAMPLES, rows)
        text = "\n".join(f"- {line}" for line in lines)
        for name, tracker in self._trackers.items():
            with self._reporting(name):
                tracker.text("samples/predictions", text, step)

    def _write(self, row: Metrics, phase: str) -> None:
        if not self.is_main:
            return
        row = dict(row)
        scalars = {}
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                LOG.warning(f"{name} is {value} at step {row['step']}; {_METRICS} has null instead")
                row[name] = None
            elif value is None or name == "step":
                continue
            elif name not in _SPEED:
                scalars[f"{phase}/{name.removeprefix(EVALUATION_PREFIX)}"] = value
            elif phase == _TRAINING:
                scalars[f"perf/{name}"] = value
        for message in self.alarms(row):
            LOG.warning(message)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        row |= {"phase": phase, "elapsed_seconds": self.elapsed_seconds, "time": now}
        with self._reporting(_METRICS):
            _append(self.folder / _METRICS, [row])
        for name, tracker in self._trackers.items():
            with self._reporting(name):
                tracker.write(scalars, row["step"])
        if phase == _TRAINING and self.callbacks.on_step is not None:
            self.callbacks.on_step(row)
        elif phase == _EVALUATION and self.callbacks.on_evaluation is not None:
            answer = self.callbacks.on_evaluation(row)
            self.is_ended = isinstance(answer, bool | np.bool_) and bool(answer)


def _append(path: Path, rows: Sequence[Metrics]) -> None:
    """Append rows to a file, after a line break if a full disk has cut its last line."""
    text = "".join(json.dumps(row) + "\n" for row in rows)  # floats as their repr: exact
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                text = "\n" + text
        file.write(text.encode())


def _readable(row: Metrics, width: int) -> str:
    """The metrics of a row that fit into `width` characters, losses first; the file has all."""
    losses = [name for name in row if name.endswith("loss") and name != "unigram_loss"]
    parts = []
    by_importance = (*losses[:3], *_SHORT_NAMES, *losses, *row)
    for name in dict.fromkeys(by_importance):
        if name not in row or name in _FILE_ONLY or "/" in name:
            continue
        label = _SHORT_NAMES.get(name, name.removesuffix("_loss"))
        part = f"{label} {_number(row[name])}"
        width -= len(part) + len(_GAP)
        if width < -len(_GAP):
            break
        parts.append(part)
    return _GAP.join(parts)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
