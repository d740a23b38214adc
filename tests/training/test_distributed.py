"""Collectives of a single process, devices, and a helper that runs several ranks."""

import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from electra_albert.contracts import UsageError
from electra_albert.training import distributed
from tests.budgets import ROOT
from tests.training.toy import ALONE


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start_ranks(world_size: int, folder: Path, program: str) -> list[subprocess.Popen[bytes]]:
    """Start a program of faults.py on several ranks as torchrun would."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared = {**os.environ, **address, "WORLD_SIZE": str(world_size)}
    command = [sys.executable, "-m", "tests.training.faults", "rank", str(folder), program]
    each = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]
    return [subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE) for own in each]


def run_ranks(world_size: int, folder: Path, program: str) -> str:
    """Run a program of faults.py on several ranks; returns the main rank's stdout."""
    processes = start_ranks(world_size, folder, program)
    outputs = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * world_size
    return outputs[0]


def test_collectives_of_a_single_process_return_its_own_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert distributed.start("cpu") == ALONE
    assert distributed.leave(5) == 5
    tensor = torch.tensor([1, 2])
    with distributed.main_first(ALONE):
        assert distributed.sum_over_ranks(tensor, ALONE) is tensor
    assert distributed.gather_objects("a", ALONE) == ["a"]
    assert distributed.keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


@pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU to take"
)
def test_a_missing_gpu_is_a_usage_error() -> None:
    for device in ("cuda", "mps"):
        with pytest.raises(UsageError, match="--device cpu"):
            distributed.start(device)
    assert distributed.start("auto").device.type == "cpu"


def test_a_lost_rank_is_named(tmp_path: Path) -> None:
    started = [
        (lost, start_ranks(ranks, tmp_path / lost, program))
        for program, lost, ranks in (("kill", "first", 2), ("hang", "last", 3))
    ]
    for lost, processes in started:
        left = processes[1:] if lost == "first" else processes[:-1]
        said = [process.communicate(timeout=120)[0].decode() for process in left]
        for process in processes:
            process.kill()
        assert {process.returncode for process in left} == {6}
        ranks = len(processes)
        line = f"error: rank {0 if lost == 'first' else 2} of {ranks} ended"
        assert [text.count(line) for text in said] == [1, 0][: ranks - 1]
        # The loop of docs/cluster.md reads it.
        last = (tmp_path / lost / "log.txt").read_text().splitlines()[-1]
        assert line in last
        assert "run the same command again" in last
