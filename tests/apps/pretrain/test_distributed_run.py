"""Laws 2 and 3 in whole runs: two ranks, gradient accumulation and one big batch give the same
training.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from electra_albert.apps.pretrain import main as pretrain
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, Ended, english, finish, options, rows, start, succeed
from tests.corpus.test_parts import wait_until
from tests.training.test_distributed import free_port

LOSS_TOLERANCE = 1e-5  # float32 sums in another order; no dropout
STEPS = 12
# Long enough for examples with whole sentences to swap, and to contain short ones, so that token
# counts differ between micro-batches.
SETTINGS = (
    f"--objective rtd_sop --max_seq_length 64 --max_steps {STEPS} --eval_steps {STEPS} "
    f"--save_steps {STEPS // 2} --logging_steps 1"
)
LOSSES = ("loss", "generator_loss", "discriminator_loss", "sop_loss", "eval_loss")
NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)


def bound_tales(finished: Finished) -> Path:
    """The tales, joined to documents of ten, so that examples have whole sentences to swap."""
    corpus = finished.folder.parent / "bound-tales.txt"
    tales = finished.corpus.read_text(encoding="utf-8").split("\n\n")
    bound = "\n\n".join("\n".join(tales[start : start + 10]) for start in range(0, len(tales), 10))
    if not corpus.exists() or corpus.read_text(encoding="utf-8") != bound:
        corpus.write_text(bound, encoding="utf-8")
    return corpus


def settings(finished: Finished, folder: Path, more: str) -> list[str]:
    return options(bound_tales(finished), finished.prepared, folder, *f"{SETTINGS} {more}".split())


def train(finished: Finished, folder: Path, more: str) -> list[dict[str, float]]:
    succeed(pretrain.main, *settings(finished, folder, more))
    return rows(folder)


def on_ranks(
    argv: list[str], folder: Path, count: int = 2, script: object = "Pretraining.py"
) -> Ended:
    """Run the script under torchrun."""
    torchrun = f"-m torch.distributed.run --standalone --nproc_per_node {count} {script}"
    return finish(start([*torchrun.split(), *argv], folder))


def max_difference(
    one: list[dict[str, float]], other: list[dict[str, float]], names: Sequence[str] = LOSSES
) -> float:
    """The largest relative difference of the losses in two logs of the same steps."""
    assert [row["step"] for row in one] == [row["step"] for row in other]
    pairs = [
        (a[name], b[name]) for a, b in zip(one, other, strict=True) for name in names if a.get(name)
    ]
    return max(abs(a - b) / abs(a) for a, b in pairs)


@pytest.mark.parametrize(
    ("more", "tolerance"),
    [
        ("--per_device_train_batch_size 4", LOSS_TOLERANCE),
        pytest.param(  # fused sums
            "--per_device_train_batch_size 4 --torch_compile step",
            1e-4,
            marks=[pytest.mark.slow, NEEDS_COMPILER],
        ),
    ],
)
def test_ranks_and_accumulation_have_the_losses_of_one_big_batch(
    finished: Finished, tmp_path: Path, more: str, tolerance: float
) -> None:
    """A rank or micro-batch often has no example with a sentence order; the loss must still be that
    of the batch.
    """
    one = train(finished, tmp_path / "one", "--per_device_train_batch_size 8")
    assert sum(row.get("sop_loss") is not None for row in one) > STEPS / 2
    split = "--per_device_train_batch_size 1 --gradient_accumulation_steps 8"
    parts = train(finished, tmp_path / "parts", split)
    ended = on_ranks(settings(finished, tmp_path / "ranks", more), tmp_path)
    assert ended.code == 0, ended.err
    assert ended.out.count("written to") == 1
    for other, bound in ((parts, LOSS_TOLERANCE), (rows(tmp_path / "ranks"), tolerance)):
        assert max_difference(one, other) < bound
        assert [row["tokens"] for row in other] == [row["tokens"] for row in one]


@pytest.mark.slow
def test_eight_ranks_have_the_losses_of_one_big_batch(finished: Finished, tmp_path: Path) -> None:
    corpus = tmp_path / "tales.txt"
    corpus.write_text(english(1_000))
    shared = (
        f"--corpus {corpus} --prepared_dir {tmp_path / 'prepared'} --max_steps 6 --eval_steps 6"
    )
    one = train(finished, tmp_path / "one", f"{shared} --per_device_train_batch_size 8")
    argv = settings(finished, tmp_path / "eight", f"{shared} --per_device_train_batch_size 1")
    ended = on_ranks(argv, tmp_path, 8)
    assert ended.code == 0, ended.err
    assert max_difference(one, rows(tmp_path / "eight")) < LOSS_TOLERANCE


@pytest.mark.slow
def test_a_node_adds_its_examples_to_every_step_and_can_be_lost(
    finished: Finished, tmp_path: Path
) -> None:
    """Two nodes with one process each, of which one is killed and returns, equal one process with
    two micro-batches.
    """
    folder = tmp_path / "two"
    long = "--max_steps 100 --eval_steps 100 --save_steps 20 --per_device_train_batch_size 8"
    argv = settings(finished, folder, f"{long} --ddp_timeout 20")

    def start_nodes() -> list["subprocess.Popen[str]"]:
        port = free_port()
        torchrun = (
            "-m torch.distributed.run --nnodes 2 --nproc_per_node 1 --rdzv_backend c10d "
            f"--rdzv_endpoint 127.0.0.1:{port} --rdzv_id {port} --local_addr 127.0.0.1"
        )
        command = [*torchrun.split(), "Pretraining.py", *argv]
        return [start(command, tmp_path) for _ in range(2)]

    nodes = start_nodes()
    wait_until(lambda: (folder / "checkpoints" / "step-0000020").exists(), 120)
    for process in [*psutil.Process(nodes[1].pid).children(recursive=True), nodes[1]]:
        process.kill()
    finish(nodes[1])
    assert finish(nodes[0]).code != 0
    assert "rank 1 of 2 ended or did not answer" in (folder / "log.txt").read_text()
    for ended in map(finish, start_nodes()):
        assert ended.code == 0, ended.err
    alone = train(finished, tmp_path / "one", f"{long} --gradient_accumulation_steps 2")
    assert max_difference(alone, rows(folder)) < LOSS_TOLERANCE
    assert [row["tokens"] for row in rows(folder)] == [row["tokens"] for row in alone]


CALLS = """import sys, electra_albert as ea
for name in ("first", "second"):
    run = ea.pretrain(output_dir=name, corpus=sys.argv[1], vocab_size=300, objective="mlm",
        model={"num_hidden_layers": 1}, device="cpu", max_steps=2)
    print(run.metrics["loss"])
"""


def test_a_process_of_several_ranks_can_make_several_calls(
    finished: Finished, tmp_path: Path
) -> None:
    """Regression: the second call could not connect."""
    (tmp_path / "calls.py").write_text(CALLS)
    ended = on_ranks([str(finished.corpus)], tmp_path, script=tmp_path / "calls.py")
    assert ended.code == 0, ended.err
    assert len({*ended.out.splitlines()}) == 1 < len(ended.out.splitlines())


def test_two_ranks_print_an_error_once(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n\n")
    argv = settings(finished, tmp_path / "two", "--corpus blank.txt")
    ended = on_ranks(argv, tmp_path)
    (error,) = (line for line in ended.err.splitlines() if line.startswith("error:"))
    assert "no text" in error
    assert re.search(r"exitcode\s*: 3\b", ended.err), ended.err
    assert not re.search(rf'File "{ROOT}/(electra_albert|Pretraining.py)', ended.err + ended.out)
    assert not (tmp_path / "two" / "checkpoints").exists()
