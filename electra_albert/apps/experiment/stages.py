"""What is done for each arm: the commands a user would type, run side by side, each of them once.

A stage that has ended well is not run again; one that was stopped goes on from where it was, since the commands do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.experiment.plan import Arm, Options, Plan
from electra_albert.apps.run_folder import write_whole
from electra_albert.contracts import STOPPED_BY_SIGNAL, UsageError

Say = Callable[[str], None]
_ROOT = Path(__file__).resolve().parents[3]  # of the checkout, where the scripts are
_RECORDS = "stages"
_END_OF_LOG = 4000  # characters that are looked at for what went wrong


@dataclass(frozen=True)
class Site:
    """What this machine adds to a plan: where its texts lie, where results go, how much runs at once."""

    output_dir: Path
    corpus: str
    tokenizer: str | None = None
    prepared_dir: str = "data/prepared"
    data_dir: str | None = None  # of the tasks
    texts: tuple[str, ...] = ()  # to be scored on
    pairs: str | None = None
    max_pairs: int | None = None
    jobs: int = 1
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)

    def run(self, arm: Arm, seed: int | None = None) -> Path:
        """The folder of an arm's pretraining, by default of the seed that is judged further: the first."""
        return self.output_dir / arm.folder_name / f"seed-{arm.seeds[0] if seed is None else seed}"


class Stage(NamedTuple):
    """One command and where it is noted that it has ended."""

    arm: str
    name: str
    command: list[str]  # without the interpreter
    folder: Path  # of the arm

    @property
    def record(self) -> Path:
        return self.folder / _RECORDS / f"{self.name}.json"

    @property
    def log(self) -> Path:
        return self.folder / _RECORDS / f"{self.name}.log"


class Ended(NamedTuple):
    """How a stage ended."""

    stage: Stage
    exit_code: int
    error: str  # the last line it said, where it failed


def pretraining_stages(plan: Plan, site: Site, arms: Sequence[Arm]) -> list[Stage]:
    """Pretraining of every arm that has one, with each of its seeds."""
    pretrained = [arm for arm in arms if arm.weights == "pretrained"]
    return [_pretraining(plan, site, arm, seed) for arm in pretrained for seed in arm.seeds]


def stock_stages(plan: Plan, site: Site, arms: Sequence[Arm]) -> list[Stage]:
    """Training of the stock composition, for the time that the pretraining of another arm took."""
    return [
        Stage(
            arm.name,
            "pretraining",
            [
                "-m",
                "electra_albert.apps.experiment.stock",
                *_words({"like": site.run(plan.arm(arm.like)), "output_dir": site.run(arm)}),
            ],
            site.output_dir / arm.folder_name,
        )
        for arm in arms
        if arm.weights == "stock" and arm.like is not None
    ]


def judging_stages(plan: Plan, site: Site, arms: Sequence[Arm]) -> list[Stage]:
    """Scores without fine-tuning, then fine-tuning on every task; of what is there to be judged by."""
    stages = []
    for arm in arms:
        model = site.run(plan.arm(arm.like) if arm.weights == "random" and arm.like else arm)
        folder = site.output_dir / arm.folder_name
        if (site.texts or site.pairs) and arm.weights != "random":
            stages.append(Stage(arm.name, "scores", _scoring(site, model, folder), folder))
        if site.data_dir is None:
            continue
        for task, options in plan.tasks.items():
            told = {
                "task": task,
                "data_dir": site.data_dir,
                "model": model,
                "output_dir": folder / task,
                "seeds": plan.task_seeds,
                **plan.task_options,
                **options,
            }
            if arm.weights == "random":
                told["from_scratch"] = True
            stages.append(Stage(arm.name, task, ["Finetuning.py", *_words(told)], folder))
    return stages


def _pretraining(plan: Plan, site: Site, arm: Arm, seed: int) -> Stage:
    options = {
        "corpus": site.corpus,
        "tokenizer": site.tokenizer,
        "prepared_dir": site.prepared_dir,
        **arm.options,
        "seed": seed,
        "output_dir": site.run(arm, seed),
    }
    options = {name: value for name, value in options.items() if value is not None}
    if plan.flops is not None:
        options["max_steps"] = steps_for(plan.flops, options)
    if plan.warmup_share is not None:
        options["warmup_steps"] = round(plan.warmup_share * int(options.get("max_steps", 0)))
    folder = site.output_dir / arm.folder_name
    return Stage(arm.name, f"pretraining-{seed}", ["Pretraining.py", *_words(options)], folder)


def steps_for(flops: float, options: Options) -> int:
    """The updates that so many operations pay for, counted from the shapes that the options give; 1 at least."""
    from electra_albert.apps.command_line import parse_pretraining
    from electra_albert.apps.estimate import step_flops
    from electra_albert.corpus.tokenizer import load_tokenizer

    _, config = parse_pretraining(_words({**options, "max_steps": 1}), "Pretraining.py")
    training, corpus = config.training, config.corpus
    vocab_size = len(load_tokenizer(Path(corpus.tokenizer))) if corpus.tokenizer else corpus.vocab_size
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
    return max(1, round(flops / step_flops(replace(config, model=replace(config.model, vocab_size=vocab_size)), rows)))


def _scoring(site: Site, model: Path, folder: Path) -> list[str]:
    words = ["-m", "electra_albert.apps.score", *_words({"model": model, "output": folder / "scores.json"})]
    words += ["--text", *site.texts] if site.texts else []
    words += ["--pairs", site.pairs] if site.pairs else []
    return words + (["--max_pairs", str(site.max_pairs)] if site.pairs and site.max_pairs else [])


def _words(options: Options) -> list[str]:
    """Options as they are typed."""
    told = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return [word for name, value in told.items() for word in (f"--{name}", value)]


def run_stages(stages: Sequence[Stage], site: Site, say: Say) -> list[Ended]:
    """Run what has not ended yet, `site.jobs` at once; returns how each has ended, in order.

    Raises UsageError where a stage was run before by another command. An interrupt is handed to the commands, which
    save what they have.
    """
    waiting = [stage for stage in stages if not _is_done(stage)]
    if waiting:
        say(f"{len(waiting)} of {len(stages)} to be run, {site.jobs} at once")
    with _Commands(site) as commands, ThreadPoolExecutor(site.jobs) as pool:
        try:
            return list(pool.map(lambda stage: _run(stage, commands, say), stages))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            commands.stop()
            raise


class _Commands:
    """Processes that end with this one: what stops it stops them."""

    def __init__(self, site: Site) -> None:
        threads = max(1, site.threads // site.jobs)
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._before: Any = None

    def __enter__(self) -> _Commands:
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def call(self, command: Sequence[str], log: Path) -> int:
        """Run a command of this checkout to its end, its output in `log`; returns the exit code."""
        script = [command[0]] if command[0] == "-m" else [str(_ROOT / command[0])]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *script, *command[1:]], stdout=output, stderr=output, env=self._environment
            )
            self._running.add(process)
            try:
                return process.wait()
            finally:
                self._running.discard(process)

    def stop(self) -> None:
        """Ask all that run to save and end, and wait for them."""
        for process in list(self._running):
            process.terminate()
        for process in list(self._running):
            process.wait()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _is_done(stage: Stage) -> bool:
    """Whether the stage has ended well; UsageError where that was by another command."""
    if not stage.record.is_file():
        return False
    before = json.loads(stage.record.read_text(encoding="utf-8"))["command"]
    if before != stage.command:
        changed = [word for word in stage.command if word not in before] or ["something"]
        raise UsageError(
            f"{stage.record} tells of another command ({changed[0]} is new); choose another --output_dir, or remove "
            f"{stage.folder} to make this arm anew"
        )
    return True


def _run(stage: Stage, commands: _Commands, say: Say) -> Ended:
    if _is_done(stage):
        return Ended(stage, 0, "")
    stage.record.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    code = commands.call(stage.command, stage.log)
    seconds = time.monotonic() - began
    if code == 0:
        record = {"command": stage.command, "seconds": seconds}
        write_whole(stage.record, json.dumps(record, indent=2) + "\n")
        say(f"{stage.arm}: {stage.name} done in {seconds / 60:.1f} min")
        return Ended(stage, 0, "")
    error = _last_line(stage.log)
    told = "stopped" if code == STOPPED_BY_SIGNAL else f"failed with exit code {code}"
    say(f"{stage.arm}: {stage.name} {told}: {error}; all it said is in {stage.log}")
    return Ended(stage, code, error)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace")[-_END_OF_LOG:].splitlines() if line]
    return lines[-1] if lines else "it said nothing"
