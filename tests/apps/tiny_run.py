"""A tiny run for many tests: text, options, and calls of the commands in this process or as
scripts.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.command_line import run_app
from electra_albert.training.monitor import CLOCK

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "data" / "models" / "english-h256-l4"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
STEPS = 20
_TIMEOUT_SECONDS = 240
_UNWANTED = "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT PYTHONUNBUFFERED NO_COLOR"

_ANIMALS = (
    "cat dog horse fox owl hen goat bear mouse swan crow wolf frog trout bee otter donkey heron "
    "beetle rabbit"
)
_PLACES = (
    "river garden market station harbour forest bridge village tower kitchen field library "
    "meadow castle cellar"
)
_DEEDS = (
    "crossed watched left reached described forgot painted searched guarded avoided visited "
    "admired entered feared"
)
_KINDS = (
    "old quiet small bright hungry clever tired famous lonely patient stubborn gentle narrow "
    "ancient silent noisy"
)
_THINGS = (
    "lamp key letter basket ladder mirror candle blanket hammer bottle map ribbon coin drum "
    "kettle saddle whistle"
)
_TIMES = (
    "today, at noon, in winter, before dawn, after the storm, every summer, once again, last week"
)


class Ended(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def english(documents: int, seed: int = 1) -> str:
    """Generated English: one sentence per line, a blank line between documents, reproducible by
    seed.
    """
    draw = random.Random(seed)
    animals, places, deeds, kinds, things = (
        words.split() for words in (_ANIMALS, _PLACES, _DEEDS, _KINDS, _THINGS)
    )
    times = _TIMES.split(", ")

    def sentence() -> str:
        first = draw.choice(("The", "One", "Every", "Some"))
        subject = f"{first} {draw.choice(kinds)} {draw.choice(animals)}"
        clause = f"{subject} {draw.choice(deeds)} the {draw.choice(kinds)} {draw.choice(places)}"
        forms = (
            f"{clause} {draw.choice(times)}.",
            f"{clause}, but the {draw.choice(animals)} kept a {draw.choice(things)}.",
            f"{clause} with {draw.randint(2, 9)} {draw.choice(animals)}s and a "
            f"{draw.choice(things)}.",
            f"{subject} found the {draw.choice(things)} near a {draw.choice(places)}.",
        )
        return draw.choice(forms)

    def document() -> str:
        return "\n".join(sentence() for _ in range(draw.randint(3, 5)))

    return "\n\n".join(document() for _ in range(documents)) + "\n"


TRAINING: dict[str, object] = {
    "max_steps": STEPS,
    "warmup_steps": 5,
    "learning_rate": 0.002,
    "logging_steps": 5,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "precision": "fp32",
    "device": "cpu",
    "preprocessing_num_workers": 1,
    "eval_steps": 10,
    "eval_examples": 16,
    "save_steps": 10,
}
_RTD = {
    "rtd.mask_rate": 0.15,
    "rtd.generator_size": 0.5,
    "rtd.generator_rate": 1.0,
    "rtd.embedding_sharing": "full",
}
_SHAPE = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "embedding_size": 16,
    "initialization": "normal",
    "zero_init_outputs": "false",
}


def flip_last_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def as_argv(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def options(corpus: Path, prepared: Path, output: Path | None, *more: object) -> list[str]:
    """Options of a run that takes seconds; `more` comes last and takes precedence."""
    sizes: dict[str, object] = (
        {} if {"--init_from", "--tokenizer"} & {*more} else {"vocab_size": 300}
    )
    sizes |= {"max_seq_length": 32, **{f"model.{name}": value for name, value in _SHAPE.items()}}
    sizes |= {"optimizer": "adamw", **TRAINING}
    objective = str(more[more.index("--objective") + 1]) if "--objective" in more else "rtd"
    if objective.startswith(("rtd", "electric")):  # the others refuse what they ignore
        is_trained = (
            "--rtd.generator" not in more or more[more.index("--rtd.generator") + 1] == "shared"
        )
        sizes |= {
            name: value for name, value in _RTD.items() if is_trained or name == "rtd.mask_rate"
        }
    argv = ["--corpus", str(corpus), "--prepared_dir", str(prepared), *as_argv(sizes)]
    return argv + (["--output_dir", str(output)] if output else []) + [str(text) for text in more]


def environment() -> dict[str, str]:
    """Environment with one thread and no hub, without variables that a user's shell lacks."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED.split()}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def start(command: Sequence[object], folder: Path) -> subprocess.Popen[str]:
    """Start Python with `command` (a script of the checkout or -m module) in `folder`, with
    captured output.
    """
    argv = [str(ROOT / text) if text.endswith(".py") else text for text in map(str, command)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=folder,
        env=environment(),
        stdout=pipe,
        stderr=pipe,
        text=True,
        encoding="utf-8",
    )


def finish(process: subprocess.Popen[str]) -> Ended:
    try:
        out, err = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its ranks
        raise
    return Ended(process.returncode, out, err)


def interrupt(command: Sequence[object], log: Path, count: int, number: signal.Signals) -> Ended:
    """Start Python with `command` and send it a signal after a number of rows of a log."""
    process = start(command, log.parents[2])
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= count):
        time.sleep(0.002)
    process.send_signal(number)
    return finish(process)


def call(main: Callable[[Sequence[str]], int], *argv: object) -> Ended:
    """Run an app in this process; errors become exit codes, as in its script."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_app(main, [str(word) for word in argv])
    return Ended(code, out.getvalue(), err.getvalue())


def succeed(main: Callable[[Sequence[str]], int], *argv: object) -> Ended:
    """Run an app in this process and assert exit code 0."""
    ended = call(main, *argv)
    assert ended.code == 0, ended.err
    return ended


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its content."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(file.relative_to(folder)): sha256(file) for file in files}


def rows(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def copy_as_learned(run: Path, target: Path) -> Path:
    """Copy a run and append an evaluation that is clearly above the baselines."""
    shutil.copytree(run, target, copy_function=shutil.copyfile)
    last = rows(run)[-1] | {"eval_generator_accuracy": 1.0, "eval_discriminator_auc": 1.0}
    last |= {"eval_discriminator_average_precision": 1.0, "eval_most_frequent_accuracy": 0.1}
    with (target / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(last) + "\n")
    return target


def untimed_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without times."""
    timed = ("tokens_per_second", "data_wait", *CLOCK)
    return [{name: value for name, value in row.items() if name not in timed} for row in rows(run)]


def outcome(run: Path, step: int = STEPS) -> tuple[list[str], list[dict[str, Any]]]:
    """Hashes of weights and optimizer state, and all rows without times: equal for reproducible
    runs.
    """
    checkpoint = run / "checkpoints" / f"step-{step:07d}"
    files = (checkpoint / "model.safetensors", checkpoint / "optimizer.safetensors")
    return [sha256(file) for file in files], untimed_rows(run)


def assert_refused(ended: Ended, code: int, *words: str) -> None:
    """Assert the exit code, exactly one error line, which is the last line and contains `words`,
    and no traceback.
    """
    lines = ended.err.splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    assert (ended.code, len(errors), lines[-1:]) == (code, 1, errors), ended.err
    assert "Traceback" not in ended.err + ended.out
    for word in words:
        assert word in errors[0], f"{word!r} is not in {errors[0]!r}"
