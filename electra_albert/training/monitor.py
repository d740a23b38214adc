"""Metrics of a run: metrics.jsonl, samples.jsonl, the progress bar, and trackers (--report_to), each by its package."""

import importlib.util
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from tqdm import tqdm

from electra_albert.contracts import LOG, Metrics, Term, UsageError
from electra_albert.files import is_of_kind, parse_json, write_text
from electra_albert.training import run_log
from electra_albert.training.distributed import World, gather_objects, sum_over_ranks

EVALUATION_PREFIX = "eval_"
_TRAINING, _EVALUATION = "train", "eval"  # phases
_ROW = {"step": int}
CLOCK = ("elapsed_seconds", "time")  # the keys that depend on the time of writing
_METRICS, _SAMPLES, _BAR = "metrics.jsonl", "samples.jsonl", "the progress bar"
PROJECT = "electra-albert"  # in online trackers
_ID_FILE = "tracker_id"  # in the run's folder: the run's identity in online trackers, also after a resume
_LINE_WIDTH, _BAR_WIDTH, _GAP = 100, 46, "  "  # characters of a line, and of the metrics after the bar
_BAR_FORMAT = "{percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{remaining} left, {rate_fmt}{postfix}]"
_SHORT_NAMES = {
    "discriminator_auc": "AUC",
    "tokens_per_second": "tokens/s",
    "skipped_steps": "skipped",
}  # shown after the losses
_FILE_ONLY = ("step", "tokens", "epoch", "masked_tokens", "data_wait", "learning_rate", "grad_norm")
_SPEED = ("tokens", "epoch", "tokens_per_second", "data_wait")  # trackers get them with training metrics only


def read_rows(path: Path, kind: Mapping[str, Any] = _ROW) -> list[dict[str, Any]]:
    """The rows of this kind in a file of JSON lines, in order; none if there is no file."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError):
            rows.append(parse_json(line, kind))
    return rows


def read_metrics(path: Path) -> list[Metrics]:
    """The rows of metrics.jsonl in order; None instead of a metric that is not a finite number."""
    texts = {"phase": str | None, CLOCK[-1]: str | None}
    rows = read_rows(path, _ROW | texts)
    for row in rows:
        numbers = [name for name, value in row.items() if is_of_kind(value, float)]
        row.update(dict.fromkeys(row.keys() - {*texts, *numbers}))
    return rows


def cut_metrics(path: Path, step: int, *, is_evaluated: bool) -> list[Metrics]:
    """Remove the rows after `step` (and its evaluation, unless is_evaluated) from a file of rows; returns the rest."""
    rows = [
        (row, row.get("phase") == _EVALUATION or any(key.startswith(EVALUATION_PREFIX) for key in row))
        for row in read_rows(path)
    ]
    kept = [row for row, is_evaluation in rows if (row["step"], is_evaluation) <= (step, is_evaluated)]
    if path.exists():
        if lost := len(path.read_bytes().splitlines()) - len(rows):
            LOG.warning(f"{path}: removing {lost} incomplete lines")
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
    return kept


class Tally:
    """Accumulates sums and counts of terms on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._float = device, torch.float32 if device.type == "mps" else torch.float64  # MPS has none
        self._start([])

    def _start(self, names: list[str]) -> None:
        self._names, count = names, len(names)
        self._sums = torch.zeros(count, dtype=self._float, device=self._device)
        self._counts = torch.zeros(count, dtype=torch.int64, device=self._device)

    def clear(self) -> None:
        """Set all sums to 0, in place, for CUDA graphs."""
        self._sums.zero_()
        self._counts.zero_()

    def add(self, terms: Mapping[str, Term], is_kept: Tensor) -> None:
        """Add the terms of one step, unless is_kept, bool [], is false: the step was skipped."""
        if not self._names:
            self._start(list(terms))
        sums, counts = (torch.stack(each) for each in zip(*(terms[name] for name in self._names), strict=True))
        self._sums += torch.where(is_kept, sums.to(self._float), 0.0)
        self._counts += torch.where(is_kept, counts, 0)

    def take(self, world: World) -> dict[str, tuple[float, int]]:
        """(sum, count) of each term over all ranks; resets them and synchronises with the device."""
        sums, counts = (sum_over_ranks(tensor, world).tolist() for tensor in (self._sums, self._counts))
        self.clear()
        return dict(zip(self._names, zip(sums, counts, strict=True), strict=True))

    def state(self, world: World) -> dict[str, Any]:
        """The state for a checkpoint, bitwise exact: each rank's own sums, since the order of additions matters."""
        mine = ([value.hex() for value in self._sums.tolist()], self._counts.tolist())
        return {"names": self._names, "ranks": gather_objects(mine, world)}

    def restore(self, state: Mapping[str, Any], world: World) -> None:
        """Load the state of a checkpoint; if the number of ranks has changed, the first rank gets all sums."""
        if state["names"] != self._names:
            self._start(list(state["names"]))
        self.clear()
        ranks, is_same = state["ranks"], len(state["ranks"]) == world.world_size
        for sums, counts in [ranks[world.rank]] if is_same else ranks if world.is_main else ():
            self._sums += torch.tensor([float.fromhex(value) for value in sums], dtype=self._float).to(self._device)
            self._counts += torch.tensor(counts, dtype=torch.int64).to(self._device)


def means_of(totals: Mapping[str, tuple[float, int]], weights: Mapping[str, float]) -> Metrics:
    """`loss`, the weighted sum of the losses, and the mean of each (sum, count); None for a count of 0."""
    means: Metrics = {name: total / count if count else None for name, (total, count) in totals.items()}
    losses = [weight * means[name] for name, weight in weights.items() if means[name] is not None]
    return {"loss": sum(losses) if losses else None, **means}


class Monitor(AbstractContextManager["Monitor"]):
    """Writes metrics to metrics.jsonl, trackers and the progress bar, on the main rank; OSErrors only warn once.

    report_to: names of trackers, separated by commas, or none. settings: those that trackers show with the run.
    alarms: warnings for a row of metrics.
    """

    def __init__(
        self,
        folder: Path,
        max_steps: int,
        report_to: str = "tensorboard",
        *,
        is_main: bool = True,
        settings: Mapping[str, Any] | None = None,
        alarms: Callable[[Metrics], list[str]] = lambda row: [],
    ) -> None:
        self._folder, self.max_steps, self._is_main, self._alarms = folder, max_steps, is_main, alarms
        self._trackers, self._settings = [name for name in report_to.split(",") if name != "none"], settings or {}
        self._open: dict[str, Any] = {}  # the trackers and the progress bar
        self._failed: set[str] = set()
        self._started = (0, 0.0)  # step and time of the start
        self._seconds_before = 0.0  # elapsed before this resume

    def __exit__(self, *_: object) -> None:
        for name in self._open:
            with self._reporting(name) as output:
                output.close()

    def start(self, step: int, *, is_evaluated: bool = True) -> None:
        """Open the outputs after `step` and remove later rows, as `cut_metrics` does."""
        if not self._is_main:
            return
        self._started = (step, time.monotonic())
        with self._reporting(_METRICS):
            self._folder.mkdir(parents=True, exist_ok=True)
            for row in cut_metrics(self._folder / _METRICS, step, is_evaluated=is_evaluated)[-1:]:
                if is_of_kind(row, {CLOCK[0]: float}):
                    self._seconds_before = row[CLOCK[0]]
        with self._reporting(_SAMPLES):
            cut_metrics(self._folder / _SAMPLES, step, is_evaluated=is_evaluated)
        for name in self._trackers:
            with self._reporting(name):
                self._open[name] = open_tracker(name, self._folder, step, self._settings)
        if run_log.is_interactive():
            outputs = {"file": run_log.console(), "bar_format": _BAR_FORMAT, "dynamic_ncols": True}
            self._open[_BAR] = tqdm(total=self.max_steps, initial=step, smoothing=0.05, unit=" steps", **outputs)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[Any]:
        """Yield the output of this name, None if it is not open; an OSError in the block becomes one warning."""
        try:
            yield self._open.get(name)
        except OSError as error:
            if name not in self._failed:
                self._failed.add(name)
                LOG.warning(f"cannot write {name} ({error.strerror or error}); training continues with incomplete logs")

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of the run, without the time between a stop and its resume."""
        return self._seconds_before + time.monotonic() - self._started[1]

    def tick(self) -> None:
        """Advance the progress bar by one step."""
        with self._reporting(_BAR) as bar:
            if bar is not None:
                bar.total = self.max_steps
                bar.update(1)

    def row(self, row: Metrics) -> None:
        """Write and log one row of training metrics."""
        self._write(row, _TRAINING)
        (first, started), step = self._started, row["step"]
        seconds = round((time.monotonic() - started) / max(1, step - first) * (self.max_steps - step))
        if _BAR in self._open:
            self._open[_BAR].set_postfix_str(_readable(row, _BAR_WIDTH), refresh=False)
        extra = {"is_file_only": True} if _BAR in self._open else None
        start, end = f"step {step}/{self.max_steps}{_GAP}", f"{_GAP}{timedelta(seconds=seconds)} left"
        LOG.info(f"{start}{_readable(row, _LINE_WIDTH - len(start + end))}{end}", extra=extra)

    def evaluation(self, position: Metrics, metrics: Metrics) -> None:
        """Write and log one row of evaluation metrics (names without prefix) at `position` (step, tokens, epoch)."""
        named = {f"{EVALUATION_PREFIX}{name}": value for name, value in metrics.items()}
        self._write(position | named, _EVALUATION)
        start = f"step {position['step']}/{self.max_steps}{_GAP}held out: "
        LOG.info(f"{start}{_readable(metrics, _LINE_WIDTH - len(start))}")

    def samples(self, step: int, lines: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
        """Write the sample predictions of an evaluation: lines to log.txt and trackers, records to samples.jsonl."""
        run_log.log_to_file("\n".join(lines))
        rows = [json.dumps({"step": step, "phase": _EVALUATION, **record}) for record in records]
        with self._reporting(_SAMPLES):
            _append(self._folder / _SAMPLES, rows)
        for tracker in self._trackers:
            with self._reporting(tracker) as output:
                if output is not None:
                    output.text("samples/predictions", "\n".join(f"- {line}" for line in lines), step)

    def _write(self, row: Metrics, phase: str) -> None:
        if not self._is_main:
            return
        bad = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        for name in bad:
            LOG.warning(f"{name} is {row[name]} at step {row['step']}; {_METRICS} has null instead")
        row = row | dict.fromkeys(bad)
        for message in self._alarms(row):
            LOG.warning(message)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        clock = dict(zip(CLOCK, (self.elapsed_seconds, now), strict=True))
        line = json.dumps({**row, "phase": phase, **clock})  # floats are exact: json writes their repr
        with self._reporting(_METRICS):
            _append(self._folder / _METRICS, [line])
        scalars = {}
        for name, value in row.items():
            is_speed = name in _SPEED
            if value is not None and name != "step" and not (is_speed and phase == _EVALUATION):
                scalars[f"{'perf' if is_speed else phase}/{name.removeprefix(EVALUATION_PREFIX)}"] = value
        for tracker in self._trackers:
            with self._reporting(tracker) as output:
                if output is not None:
                    output.write(scalars, row["step"])


def _append(path: Path, lines: Sequence[str]) -> None:
    """Append lines to a file, after a line break if a full disk has cut its last line."""
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            lines = [*([""] if file.read(1) != b"\n" else []), *lines]
        file.write("".join(f"{line}\n" for line in lines).encode())


def _readable(row: Metrics, width: int) -> str:
    """The metrics of a row that fit into `width` characters, losses first; metrics.jsonl has all."""
    losses = [name for name in row if name.endswith("loss") and name != "unigram_loss"]
    parts = []
    for name in dict.fromkeys((*losses[:3], *_SHORT_NAMES, *losses, *row)):
        if name in row and name not in _FILE_ONLY and "/" not in name:
            value = row[name]
            form = "" if not isinstance(value, float) else ",.0f" if abs(value) >= 1000 else ".4g"
            label = _SHORT_NAMES.get(name, name.removesuffix("_loss"))
            part = f"{label} {'-' if value is None else format(value, form)}"
            width -= len(part) + len(_GAP)
            if width < -len(_GAP):
                break
            parts.append(part)
    return _GAP.join(parts)


def check_trackers(report_to: str) -> None:
    """Raise UsageError unless the packages of all trackers are installed."""
    for name in report_to.split(","):
        if name not in ("none", "tensorboard") and importlib.util.find_spec(name) is None:
            raise UsageError(f"--report_to {name} needs its package; run: pip install {name}")


def open_tracker(name: str, folder: Path, step: int, settings: Mapping[str, Any]) -> "_TensorBoard | _Online":
    """The tracker for a run that continues after `step`. Raises UsageError if it cannot start."""
    if name == "tensorboard":
        return _TensorBoard(folder / name, step)
    try:
        return _Online(importlib.import_module(name), folder, settings)
    except Exception as error:  # whatever the package raises, without login or network for example
        raise UsageError(f"--report_to {name}: {error}; leave it out, or set up {name}") from error


class _TensorBoard:
    """Event files, written at once: the thread of SummaryWriter ends for good when the disk is full."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder, self._hidden_from = folder, step + 1  # rows of an interrupted run from this step on
        self._file: BinaryIO | None = None

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        now, events = time.time(), list[Event]()
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / f"events.out.tfevents.{now:.6f}").open("xb")
            start = SessionLog(status=SessionLog.START)
            events = [Event(file_version="brain.Event:2", wall_time=now)]
            events += [Event(session_log=start, step=min(self._hidden_from, step), wall_time=now)]
        file, self._file = self._file, None  # after an error: nothing can follow an incomplete record in its file
        for event in (*events, Event(step=step, wall_time=now, **content)):
            RecordWriter(file).write(event.SerializeToString())
        file.flush()
        self._file, self._hidden_from = file, step + 1

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics by name."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, summary=Summary(value=[Summary.Value(tag=k, simple_value=v) for k, v in metrics.items()]))

    def text(self, name: str, text: str, step: int) -> None:
        """Write Markdown text."""
        from torch.utils.tensorboard import summary

        self._add(step, summary=summary.text(name, text))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Online:
    """wandb or trackio, whose interfaces agree. Their errors during training become OSError."""

    def __init__(self, package: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        if not (file := folder / _ID_FILE).is_file():
            write_text(file, secrets.token_hex(4))
        identity = file.read_text(encoding="utf-8", errors="replace")
        # trackio resumes a run by its name, wandb by its id.
        own: dict[str, Any] = {"id": identity, "dir": str(folder)} if package.__name__ == "wandb" else {}
        name = f"{'-'.join(folder.resolve().parts[-2:])}-{identity}"
        self._run = package.init(project=PROJECT, name=name, config=dict(settings), resume="allow", **own)

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        with _as_os_error():
            self._run.log(dict(metrics), step=step)

    def text(self, name: str, text: str, step: int) -> None:
        """Neither shows Markdown."""

    def close(self) -> None:
        with _as_os_error():
            self._run.finish()


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the package raises, if its server does not answer for example
        raise OSError(str(error)) from error
