"""Hostile and damaged models through whole commands: one line, exit code 4, nothing run, bounded time and memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps import demo, export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, Ended, assert_refused, call, environment
from tests.apps.tiny_tasks import cola
from tests.corpus.tokenizer_kinds import edit
from tests.hub.hostile_files import PICKLES, safetensors_bytes

SECONDS = 120.0
ADDRESS_SPACE_BYTES = 6 << 30  # what torch alone reserves is a third of it
WEIGHTS = "model.safetensors"
COMMANDS = ("demo", "export", "pretrain", "finetune")
Harm = Callable[[Path], object]  # of a model's folder


def in_config(**values: object) -> Harm:
    return lambda model: edit(model / "config.json", lambda content: content.update(values))


def as_pickle(name: str) -> Harm:
    def harm(model: Path) -> None:
        (model / WEIGHTS).unlink()
        (model / "pytorch_model.bin").write_bytes(PICKLES[name](model / "canary"))

    return harm


def flip_a_bit(model: Path) -> None:
    whole = bytearray((model / WEIGHTS).read_bytes())
    whole[-4] ^= 1
    (model / WEIGHTS).write_bytes(bytes(whole))


def grow_text(model: Path) -> None:
    """A normaliser that makes eight letters of every a, four times over."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 8}
    bomb = {"type": "Sequence", "normalizers": [step] * 4}
    edit(model / "tokenizer.json", lambda content: content.update(normalizer=bomb))
    edit(model / "tokenizer_config.json", lambda config: config.update(tokenizer_class="PreTrainedTokenizerFast"))


HARM: dict[str, tuple[Harm, str]] = {
    "flipped bit": (flip_a_bit, WEIGHTS),
    "code in a pickle": (as_pickle("code"), "pytorch_model.bin"),
    "code in config.json": (in_config(auto_map={"AutoModel": "evil.Model"}), "auto_map"),
    "colours in config.json": (in_config(model_type="\x1b[31m\nalbert"), "type"),
    "tokenizer that makes text grow": (grow_text, "tokenizer"),
}


@pytest.fixture
def model(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the generator's folder, to damage."""
    return shutil.copytree(finished.folder / "generator", tmp_path / "model")


def run(command: str, finished: Finished, model: Path, folder: Path) -> Ended:
    """A command on the model's folder, as a user types it."""
    (folder / "sentences.txt").write_text("The quiet [MASK] left.\n")
    if command == "demo":
        return call(demo.main, "--gen", model, "--input", folder / "sentences.txt")
    if command == "export":
        return call(export.main, "--model", model, "--output_dir", folder / "out")
    if command == "finetune":
        return call(finetune.main, *cola(folder / "tasks").options(model, folder / "tuned", "--max_steps", 1))
    start = ("--corpus", finished.corpus, "--init_from", model, "--output_dir", folder / "run", "--device", "cpu")
    return call(pretrain.main, *start, "--prepared_dir", folder / "made", "--max_steps", 1)


@pytest.mark.parametrize(
    ("name", "command"),
    [*((name, "demo") for name in HARM), *(("code in a pickle", command) for command in COMMANDS[1:])],
)
def test_bad_model_is_refused_by_every_command(
    finished: Finished, model: Path, tmp_path: Path, name: str, command: str
) -> None:
    harm, word = HARM[name]
    harm(model)
    ended = run(command, finished, model, tmp_path)
    assert_refused(ended, 4, word)
    assert all(line.isprintable() for line in ended.err.splitlines())
    assert not (model / "canary").exists()
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.glob("tuned/seed-*"), *tmp_path.glob("run/checkpoints/*")]


USAGE: dict[str, tuple[Harm, str]] = {
    "no folder": (shutil.rmtree, "does not exist"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
    "no configuration": (lambda model: (model / "config.json").unlink(), "--config FILE"),
    "a run that has not ended": (
        lambda model: [(model / WEIGHTS).unlink(), (model / "checkpoints").mkdir()],
        "training has not ended yet",
    ),
}


@pytest.mark.parametrize("name", USAGE)
def test_path_without_a_whole_model_is_refused(finished: Finished, model: Path, tmp_path: Path, name: str) -> None:
    harm, word = USAGE[name]
    harm(model)
    assert_refused(run("demo", finished, model, tmp_path), 2, word)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"The owl.\n\nThe [MASK] " + b"quiet owl " * 40 + b"left.\n", "line 3"),
        ("The [MASK] left.\n".encode("utf-16"), "is not UTF-8"),
    ],
    ids=["too long", "UTF-16"],
)
def test_a_sentence_that_cannot_be_filled_is_refused(
    finished: Finished, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "sentences.txt").write_bytes(content)
    ended = call(demo.main, "--gen", finished.folder, "--input", tmp_path / "sentences.txt")
    assert_refused(ended, 3, words)


def claim_terabytes(model: Path) -> None:
    (model / WEIGHTS).write_bytes(safetensors_bytes({}, b" " * 64, length=(100 << 20) - 1))


BOUNDED: dict[str, tuple[Harm, int]] = {
    "a table of terabytes": (in_config(vocab_size=2**31 - 1, embedding_size=1 << 20), 4),
    "a header of 100 MB": (claim_terabytes, 4),
}


def bounded(script: str, *argv: object) -> Ended:
    """A script as a user starts it, its address space bounded."""
    code = (
        "import resource, runpy, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE_BYTES}, {ADDRESS_SPACE_BYTES}))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / script), *map(str, argv)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=SECONDS)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
def test_script_refuses_within_bounded_memory(model: Path, tmp_path: Path, name: str) -> None:
    harm, code = BOUNDED[name]
    harm(model)
    (tmp_path / "sentences.txt").write_text("The quiet [MASK] left.\n")
    ended = bounded("LM_DEMO.py", "--gen", model, "--input", tmp_path / "sentences.txt")
    assert ended.code == code, ended.err
    assert not code or len(ended.err.splitlines()) == 1
