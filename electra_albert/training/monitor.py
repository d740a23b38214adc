"""The record of a run: metrics.jsonl, TensorBoard, and progress on the terminal."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from electra_albert.contracts import Metrics, Term
from electra_albert.files import write_text
from electra_albert.training.distributed import World, gather_objects, sum_over_ranks
from electra_albert.training.run_log import log_shown

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG = logging.getLogger(__name__)

EVALUATION_PREFIX = "eval_"
CLOCK = ("elapsed_seconds", "time")  # the keys of a row that depend on when it was written
_POSITION = ("step", "tokens", "epoch")
_PERFORMANCE = ("tokens", "epoch", "tokens_per_second")


def read_metrics(path: Path) -> list[Metrics]:
    """The rows of a metrics file in order, none where there is no file; torn lines are passed over."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def cut_metrics(path: Path, step: int, *, is_evaluated: bool) -> list[Metrics]:
    """Cut a metrics file back to `step`, whose own evaluation stays where is_evaluated; returns the rows that stay."""
    kept = []
    for row in read_metrics(path):
        is_evaluation = any(key.startswith(EVALUATION_PREFIX) for key in row)
        if row["step"] < step or (row["step"] == step and (is_evaluated or not is_evaluation)):
            kept.append(row)
    if path.exists():
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
    return kept


class Tally:
    """Sums and counts of terms since the last row, kept on the device until they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._float = torch.float32 if device.type == "mps" else torch.float64  # which a Mac's GPU has not
        self._start([])

    def _start(self, names: list[str]) -> None:
        self._names = names
        self._sums = torch.zeros(len(names), dtype=self._float, device=self._device)
        self._counts = torch.zeros(len(names), dtype=torch.int64, device=self._device)

    def add(self, terms: Mapping[str, Term], is_kept: Tensor) -> None:
        """Add the terms of one update; one that was skipped, bool is_kept [], adds nothing."""
        if not self._names:
            self._start(list(terms))
        sums = torch.stack([terms[name].sum for name in self._names]).to(self._float)
        counts = torch.stack([terms[name].count for name in self._names])
        self._sums += torch.where(is_kept, sums, 0.0)
        self._counts += torch.where(is_kept, counts, 0)

    def take(self, world: World) -> dict[str, tuple[float, int]]:
        """(sum, count) of each term over all ranks, and start again from nothing; waits for the device."""
        sums = sum_over_ranks(self._sums, world).tolist()
        counts = sum_over_ranks(self._counts, world).tolist()
        totals = dict(zip(self._names, zip(sums, counts, strict=True), strict=True))
        self._start(self._names)
        return totals

    def state(self, world: World) -> dict[str, Any]:
        """The part of a checkpoint, exact to the bit: each rank's sums apart, since the order of additions matters."""
        mine = ([value.hex() for value in self._sums.tolist()], self._counts.tolist())
        return {"names": self._names, "ranks": gather_objects(mine, world)}

    def restore(self, state: Mapping[str, Any], world: World) -> None:
        """Continue from a checkpoint; where the number of ranks has changed, the first one takes over all sums."""
        self._start(list(state["names"]))
        ranks = state["ranks"]
        mine = ranks[world.rank : world.rank + 1]
        if len(ranks) != world.world_size:
            mine = ranks if world.is_main else []
        for sums, counts in mine:
            self._sums += torch.tensor([float.fromhex(value) for value in sums], dtype=self._float).to(self._device)
            self._counts += torch.tensor(counts, dtype=torch.int64).to(self._device)


def weighted_sum(weights: Mapping[str, float], means: Mapping[str, float | None]) -> float | None:
    """The total loss of a row: each weighted term's mean times its weight; None where no term counted anything."""
    losses = [weight * value for name, weight in weights.items() if (value := means[name]) is not None]
    return sum(losses) if losses else None


def mean(total: float, count: int) -> float | None:
    """Sum by count; None, in JSON null, where nothing was counted."""
    return total / count if count else None


class Monitor:
    """Writes rows to metrics.jsonl and TensorBoard and shows progress, on the main rank; failing is one warning."""

    def __init__(self, folder: Path, max_steps: int, *, is_main: bool = True) -> None:
        self._folder = folder
        self._max_steps = max_steps
        self._is_main = is_main
        self._bar: Any = None
        self._rows: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._failed: set[str] = set()
        self._started = (0, 0.0)  # step and time of the start, for the time left
        self._seconds_before = 0.0  # trained in the runs that this one resumes

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for what, sink in (
            ("the progress bar", self._bar),
            ("metrics.jsonl", self._rows),
            ("tensorboard", self._board),
        ):
            if sink is not None:
                self._try(what, sink.close)

    def start(self, step: int, *, is_evaluated: bool = True) -> None:
        """Begin after `step` updates: rows after it are cut, and its evaluation too unless it stays: is_evaluated."""
        if not self._is_main:
            return
        self._started = (step, time.monotonic())
        self._try("metrics.jsonl", lambda: self._open_rows(step, is_evaluated))
        self._try("tensorboard", lambda: self._open_board(step))
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._max_steps, initial=step, unit="step", dynamic_ncols=True, smoothing=0.05)

    def _open_rows(self, step: int, is_evaluated: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "metrics.jsonl"
        for row in cut_metrics(path, step, is_evaluated=is_evaluated)[-1:]:
            self._seconds_before = float(row.get("elapsed_seconds") or 0.0)
        self._rows = path.open("a", encoding="utf-8")

    def _open_board(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self._folder / "tensorboard"), purge_step=step + 1)

    def _try(self, what: str, action: Callable[[], object]) -> None:
        """Do one piece of logging; the training matters more than its log."""
        try:
            action()
        except OSError as error:
            if what not in self._failed:
                self._failed.add(what)
                LOG.warning(f"cannot write {what} ({error.strerror or error}); training continues, logs have gaps")

    def tick(self) -> None:
        """Count one update."""
        if self._bar is not None:
            self._try("the progress bar", lambda: self._bar.update(1))

    def row(self, row: Metrics) -> None:
        """Write one row of training metrics and show it."""
        self._write(row, "train")
        line = f"step {row['step']}/{self._max_steps}  {_readable(row)}  {self._time_left(row['step'])} left"
        if self._bar is not None:
            self._bar.set_postfix_str(_readable(row), refresh=False)
            log_shown(line)
        else:
            LOG.info(line)

    def evaluation(self, position: Metrics, metrics: Metrics) -> None:
        """Write one row of evaluation metrics, named without prefix, made at `position` (step, tokens, epoch)."""
        row = {**position, **{f"{EVALUATION_PREFIX}{name}": value for name, value in metrics.items()}}
        self._write(row, "eval")
        LOG.info(f"step {row['step']}/{self._max_steps}  held out: {_readable(metrics)}")

    def text(self, step: int, name: str, text: str) -> None:
        """Write a text, in Markdown, to TensorBoard under samples/."""
        board = self._board
        if board is not None:
            self._try("tensorboard", lambda: board.add_text(f"samples/{name}", text, step))

    def _write(self, row: Metrics, phase: str) -> None:
        if not self._is_main:
            return
        clean = {name: self._finite(name, value, row["step"]) for name, value in row.items()}
        seconds = self._seconds_before + time.monotonic() - self._started[1]
        clock = dict(zip(CLOCK, (seconds, datetime.now(UTC).isoformat(timespec="milliseconds")), strict=True))
        self._try("metrics.jsonl", lambda: self._write_row({**clean, "phase": phase, **clock}))
        self._try("tensorboard", lambda: self._write_board(clean, phase))

    def _finite(self, name: str, value: Any, step: int) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            LOG.warning(f"{name} at step {step} is {value}; its row has null")
            return None
        return value

    def _write_row(self, row: Metrics) -> None:
        if self._rows is not None:
            self._rows.write(json.dumps(row) + "\n")  # floats by repr: they read back exactly
            self._rows.flush()

    def _write_board(self, row: Metrics, folder: str) -> None:
        if self._board is None:
            return
        for name, value in row.items():
            if name == "step" or value is None or (folder == "eval" and name in _POSITION):
                continue
            tag = f"perf/{name}" if name in _PERFORMANCE else f"{folder}/{name.removeprefix(EVALUATION_PREFIX)}"
            self._board.add_scalar(tag, value, row["step"])
        self._board.flush()

    def _time_left(self, step: int) -> str:
        first, started = self._started
        seconds = round((time.monotonic() - started) / max(1, step - first) * (self._max_steps - step))
        return str(timedelta(seconds=seconds))


def _readable(row: Metrics) -> str:
    """The numbers of a row on one line, without counts and without those of single sources."""
    shown = {name: row[name] for name in row if name not in ("step", "tokens", "masked_tokens") and "/" not in name}
    return "  ".join(f"{name} {_short(value)}" for name, value in shown.items())


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
