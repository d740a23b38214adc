"""Process group, device, and collectives; all work with a single process too."""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import STOPPED_BY_SIGNAL, RankLostError, UsageError, UserError
from electra_albert.training.signals import StopSignal

_ANSWER_SECONDS = 5  # for the other ranks, after a collective operation has failed
_PREPARE_TIMEOUT = timedelta(days=7)  # while the main rank prepares a corpus
# Constants of glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


class World(NamedTuple):
    """Rank and device of this process."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def start(device: str, timeout_seconds: int = TrainingConfig.ddp_timeout) -> World:
    """Join torchrun's process group, if any; later calls of the process use the same group.

    device: cpu, cuda, mps or auto. A rank that keeps the others waiting for longer than the timeout
    is lost, see `naming_lost_ranks`. Raises UsageError if the device is not available.
    """
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    chosen = _device(device, local_rank, world_size)
    backend = "gloo"
    if chosen.type == "cpu":
        keep_freed_memory()
        # Products with denormal numbers are slow, 1.7 times in a step of modern blocks.
        torch.set_flush_denormal(True)
    elif chosen.type == "cuda":
        # Host tensors use gloo: the all-reduce of the counts does not synchronise with the device.
        backend = "cpu:gloo,cuda:nccl"
        if "OMP_NUM_THREADS" not in os.environ:  # set by a user or by torchrun
            torch.set_num_threads(1)  # operators on the host are small; threads would wait
    # Gloo would connect a second group to the addresses of the first.
    if world_size > 1 and not dist.is_initialized():
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return World(rank, world_size, chosen)


def _device(device: str, local_rank: int, world_size: int) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "mps":  # auto does not take it, as this has not run on a Mac yet
        if world_size == 1 and torch.backends.mps.is_available():
            return torch.device(device)
        raise UsageError(
            "--device mps needs one process and a Mac GPU that PyTorch supports; use --device cpu"
        )
    if device == "cpu" or (device == "auto" and not gpus):
        return torch.device("cpu")
    if local_rank >= gpus:
        raise UsageError(
            f"--device {device}: no GPU for process {local_rank}, PyTorch finds {gpus}; "
            "use --device cpu or fewer processes (torchrun --nproc_per_node)"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of mapping new pages at each step; whether it could."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # only glibc has it, and Windows no CDLL(None)
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def leave(exit_code: int) -> int:
    """Return the exit code, or with several ranks end the process; the last call of a program."""
    if not dist.is_initialized():
        return exit_code
    # After an error other ranks may wait for this one, and destroying would hang.
    if exit_code in (0, STOPPED_BY_SIGNAL):
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Gloo threads that DDP keeps alive sometimes abort the shutdown of the interpreter.
    os._exit(exit_code)


@contextmanager
def naming_lost_ranks(world: World, take_over: Callable[[], None]) -> Iterator[None]:
    """Raise RankLostError if a collective operation fails.

    `take_over` is called on the first rank that is left.
    """
    try:
        yield
    except RuntimeError as error:
        is_of_collective = isinstance(error, dist.DistError) or "gloo" in str(error)
        if world.world_size == 1 or not is_of_collective:
            raise
        with StopSignal():  # torchrun sends SIGTERM to the ranks that are left
            lost = _silent_ranks(world)
        who = f"rank {' and '.join(map(str, lost))}" if lost else "the connection"
        loss = RankLostError(
            f"{who} of {world.world_size} ended or did not answer in --ddp_timeout; "
            "see its log, then run the same command again to resume from the last checkpoint"
        )
        loss.is_first_left = lost[: world.rank] == [*range(world.rank)]
        if loss.is_first_left:
            take_over()
        raise loss from error


def _silent_ranks(world: World) -> list[int]:
    """Ranks that do not write to torchrun's store, as all do that a failed operation stopped."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    keys = [f"answer of {rank} in attempt {attempt}" for rank in range(world.world_size)]
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=_ANSWER_SECONDS),
        )
        store.set(keys[world.rank], "")
    except RuntimeError:  # without torchrun the first rank has the store
        return [0]
    silent = []
    for rank, key in enumerate(keys):
        left = max(0.1, deadline - time.monotonic())
        try:
            store.wait([key], timedelta(seconds=left))
        except RuntimeError:
            silent.append(rank)
    return silent


def sum_over_ranks(tensor: Tensor, world: World) -> Tensor:
    """All-reduced sum of a tensor, on its own device; the argument does not change."""
    if world.world_size == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_objects(value: Any, world: World) -> list[Any]:
    """All-gathered values in the order of ranks, pickled between the processes of one run."""
    if world.world_size == 1:
        return [value]
    values: list[Any] = [None] * world.world_size
    dist.all_gather_object(values, value)
    return values


@contextmanager
def main_first(world: World) -> Iterator[None]:
    """Run the block on the main rank first, then on the others.

    A UserError of the main rank is raised on all.
    """
    if world.world_size == 1:
        yield
        return
    patient = dist.new_group(backend="gloo", timeout=_PREPARE_TIMEOUT)
    outcome: list[UserError | None] = [None]
    if world.is_main:
        try:
            yield
        except UserError as error:
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0, group=patient)
    if not world.is_main and outcome[0] is None:
        yield
    dist.destroy_process_group(patient)
    if outcome[0] is not None:
        raise outcome[0]
