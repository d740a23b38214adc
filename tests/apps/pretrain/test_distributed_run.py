"""Laws 2 and 3 in whole runs: two ranks, gradient accumulation and one big batch give the same
training.
"""

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil
import pytest
import torch

from electra_albert.apps.pretrain import main as pretrain
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.corpus.examples import PackedExamples, TrainBatches
from electra_albert.corpus.prepare import prepare
from electra_albert.tokenization.tokenizer import special_ids
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, Ended, english, finish, rows, start, succeed
from tests.corpus.test_parts import wait_until

LOSS_TOLERANCE = 1e-5  # float32 sums in another order; no dropout
STEPS = 24  # enough to contain short examples, so that token counts differ between micro-batches
SEED = 42


@pytest.fixture
def one_batch(finished: Finished, tmp_path: Path) -> list[dict[str, float]]:
    """One process, one batch of 8 per step."""
    return train(finished, tmp_path / "one", "--per_device_train_batch_size", 8)


LOSSES = ("loss", "generator_loss", "discriminator_loss", "eval_loss", "eval_generator_loss")


def settings(finished: Finished, folder: Path, *more: object) -> list[str]:
    shared = ("--max_steps", STEPS, "--logging_steps", 1, "--eval_steps", STEPS)
    shared += ("--save_steps", STEPS // 2, "--average_checkpoints", 2)  # evaluated on all ranks
    return finished.options(folder, *shared, *more)


def train(finished: Finished, folder: Path, *more: object) -> list[dict[str, float]]:
    succeed(pretrain.main, *settings(finished, folder, *more))
    return rows(folder)


def on_ranks(argv: list[str], folder: Path, count: int = 2) -> Ended:
    """Run the script under torchrun."""
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        count,
        "Pretraining.py",
    )
    return finish(start([*torchrun, *argv], folder))


def max_difference(
    one: list[dict[str, float]], other: list[dict[str, float]], names: Sequence[str] = LOSSES
) -> float:
    """The largest relative difference of the losses in two logs of the same steps."""
    assert [row["step"] for row in one] == [row["step"] for row in other]
    pairs = [
        (a[name], b[name]) for a, b in zip(one, other, strict=True) for name in names if a.get(name)
    ]
    return max(abs(a - b) / abs(a) for a, b in pairs)


NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)


@pytest.mark.parametrize(
    ("compiled", "tolerance"),
    [
        ("none", LOSS_TOLERANCE),
        pytest.param("blocks", 1e-4, marks=[pytest.mark.slow, NEEDS_COMPILER]),
    ],  # fused sums in a block
)
def test_two_ranks_have_the_losses_of_one_big_batch(
    finished: Finished,
    one_batch: list[dict[str, float]],
    tmp_path: Path,
    compiled: str,
    tolerance: float,
) -> None:
    argv = settings(
        finished, tmp_path / "two", "--per_device_train_batch_size", 4, "--torch_compile", compiled
    )
    ended = on_ranks(argv, tmp_path)
    assert ended.code == 0, ended.err
    two = rows(tmp_path / "two")
    assert max_difference(one_batch, two) < tolerance
    assert [row["tokens"] for row in two] == [row["tokens"] for row in one_batch]
    assert ended.out.count("written to") == 1


def test_eight_ranks_have_the_losses_of_one_big_batch(finished: Finished, tmp_path: Path) -> None:
    (corpus := tmp_path / "tales.txt").write_text(english(1_000))
    shared = (
        "--corpus",
        corpus,
        "--prepared_dir",
        tmp_path / "prepared",
        "--max_steps",
        6,
        "--eval_steps",
        6,
    )
    one = train(finished, tmp_path / "one", *shared, "--per_device_train_batch_size", 8)
    argv = settings(finished, tmp_path / "eight", *shared, "--per_device_train_batch_size", 1)
    ended = on_ranks(argv, tmp_path, 8)
    assert ended.code == 0, ended.err
    assert max_difference(one, rows(tmp_path / "eight")) < LOSS_TOLERANCE


def test_a_node_adds_its_examples_to_every_step_and_can_be_lost(
    finished: Finished, tmp_path: Path
) -> None:
    """Two nodes with one process each, of which one is killed and returns, equal one process with
    two micro-batches.
    """
    folder, long = tmp_path / "two", ("--max_steps", 100, "--eval_steps", 100, "--save_steps", 20)
    argv = settings(
        finished, folder, *long, "--per_device_train_batch_size", 8, "--ddp_timeout", 20
    )

    def start_nodes() -> list["subprocess.Popen[str]"]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torchrun = [
            "-m",
            "torch.distributed.run",
            "--nnodes",
            2,
            "--nproc_per_node",
            1,
            "--rdzv_backend",
            "c10d",
        ]
        torchrun += [
            "--rdzv_endpoint",
            f"127.0.0.1:{port}",
            "--rdzv_id",
            port,
            "--local_addr",
            "127.0.0.1",
        ]
        return [start([*torchrun, "Pretraining.py", *argv], tmp_path) for _ in range(2)]

    nodes = start_nodes()
    wait_until(lambda: (folder / "checkpoints" / "step-0000020").exists(), 120)
    for process in [*psutil.Process(nodes[1].pid).children(recursive=True), nodes[1]]:
        process.kill()
    finish(nodes[1])
    assert finish(nodes[0]).code != 0
    assert "rank 1 of 2 ended or did not answer" in (folder / "log.txt").read_text()
    for ended in map(finish, start_nodes()):
        assert ended.code == 0, ended.err
    alone = train(
        finished,
        tmp_path / "one",
        *long,
        "--per_device_train_batch_size",
        8,
        "--gradient_accumulation_steps",
        2,
    )
    assert max_difference(alone, rows(folder)) < LOSS_TOLERANCE
    assert [row["tokens"] for row in rows(folder)] == [row["tokens"] for row in alone]


def test_accumulation_has_the_losses_of_one_big_batch(
    finished: Finished, one_batch: list[dict[str, float]], tmp_path: Path
) -> None:
    # Single examples differ most.
    split = ("--per_device_train_batch_size", 1, "--gradient_accumulation_steps", 8)
    found = train(finished, tmp_path, *split)
    assert max_difference(one_batch, found) < LOSS_TOLERANCE
    assert [row["tokens"] for row in found] == [row["tokens"] for row in one_batch]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--corpus", "blank.txt", "no text"), ("--output_dir", "mine", "README.md")],
)
def test_two_ranks_print_an_error_once(
    finished: Finished, tmp_path: Path, option: str, value: object, words: str
) -> None:
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    ended = on_ranks(settings(finished, tmp_path / "two", option, value), tmp_path)
    (error,) = (line for line in ended.err.splitlines() if line.startswith("error:"))
    assert words in error
    assert re.search(r"exitcode\s*: [23]\b", ended.err), ended.err
    assert not re.search(rf'File "{ROOT}/(electra_albert|Pretraining.py)', ended.err + ended.out)
    assert not (tmp_path / "two" / "checkpoints").exists()
    assert (tmp_path / "mine" / "README.md").read_text() == "mine"


@pytest.fixture
def batches(finished: Finished) -> Callable[..., TrainBatches]:
    """The run's batches as a function of the split."""
    paths = {"corpus": str(finished.corpus), "prepared_dir": str(finished.prepared)}
    prepared = prepare(CorpusConfig(**paths, vocab_size=300, max_seq_length=32), SEED)
    packed = PackedExamples(
        prepared.store.train, prepared.train_table, 32, SEED, special_ids(prepared.tokenizer)
    )
    return lambda *split: TrainBatches(packed, prepared.order, *split)


def examples(shares: Iterable[TrainBatches], step: int) -> list[tuple[int, ...]]:
    """Example ids of one step over all shares, with their tokens and segments, sorted by id."""
    taken = [batch for share in shares for batch in share.micro_batches(step)]
    parts = [
        torch.cat([batch.example_id[:, None], batch.input_ids, batch.token_type_ids], dim=1)
        for batch in taken
    ]
    return sorted(map(tuple, torch.cat(parts).tolist()))


@pytest.mark.parametrize("step", [1, 80])
def test_a_step_has_the_same_examples_for_every_split(
    batches: Callable[..., TrainBatches], step: int
) -> None:
    """In the first epoch and later."""
    whole = examples([batches(8)], step)
    assert len({example[0] for example in whole}) == 8
    assert examples([batches(4, 2)], step) == whole
    assert examples([batches(4, 1, rank, 2) for rank in range(2)], step) == whole
    assert examples([batches(2, 2, rank, 2) for rank in range(2)], step) == whole
    # The planted fault: both ranks train on the examples of rank 0.
    assert examples([batches(4, 1, 0, 2) for _ in range(2)], step) != whole
