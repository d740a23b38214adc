"""Distributed training: process group, device, and collectives; all work with a single process too."""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from electra_albert.config import TrainingConfig
from electra_albert.contracts import STOPPED_BY_SIGNAL, RankLostError, UsageError, UserError
from electra_albert.keyed_random import Stream, bits
from electra_albert.training.signals import StopSignal

_ANSWER_SECONDS = 5  # for the other ranks, after a collective operation has failed
_PREPARE_TIMEOUT = timedelta(days=7)  # while the main rank prepares a corpus
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # constants of glibc's <malloc.h>


class World(NamedTuple):
    """Rank and device of this process."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def start(device: str, timeout_seconds: int = TrainingConfig.ddp_timeout) -> World:
    """Join torchrun's process group, if any. device: cpu, cuda, mps or auto; UsageError if it is not available.

    A rank that keeps the others waiting for longer than the timeout is lost, see `naming_lost_ranks`.
    """
    torchrun = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}  # its variables and their defaults
    rank, world_size, local_rank = (int(os.environ.get(name, value)) for name, value in torchrun.items())
    chosen = _device(device, local_rank, world_size)
    if chosen.type == "cpu":
        keep_freed_memory()
    if chosen.type == "cuda" and "OMP_NUM_THREADS" not in os.environ:  # set by a user or by torchrun
        torch.set_num_threads(1)  # operators on the host are small; threads would wait for others
    if world_size > 1:
        # Host tensors use gloo, with GPUs too: the all-reduce of the counts does not synchronise with the device.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return World(rank, world_size, local_rank, chosen)


def _device(device: str, local_rank: int, world_size: int) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "mps" or (device == "auto" and not gpus):
        if world_size == 1 and is_mps_usable():
            return torch.device("mps")
        if device == "mps":
            raise UsageError("--device mps needs one process and a Mac GPU that PyTorch supports; use --device cpu")
        device = "cpu"
    if device == "cpu":
        return torch.device(device)
    if local_rank >= gpus:
        found = f"no GPU for process {local_rank}, PyTorch finds {gpus}"
        raise UsageError(f"--device {device}: {found}; use --device cpu or fewer processes (torchrun --nproc_per_node)")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def is_mps_usable() -> bool:
    """Whether MPS is available and computes the CPU's random bits: some PyTorch versions shift int64 wrongly on MPS."""
    if not torch.backends.mps.is_available():
        return False
    indices = [torch.arange(1000, device=device) for device in ("mps", "cpu")]
    try:
        drawn = [bits(0, Stream.MASK, index, index) for index in indices]
        return torch.equal(*(torch.cat([one, one.topk(100, largest=False).indices]).cpu() for one in drawn))
    except (RuntimeError, TypeError):  # raised for a missing operator
        return False


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of mapping new pages at each step; returns whether it was possible."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))


def stop(world: World) -> None:
    """Leave the process group."""
    if world.world_size > 1:
        dist.destroy_process_group()


def leave(exit_code: int) -> int:
    """Return the exit code, or with several ranks end the process; the last call of a program."""
    if not dist.is_initialized():
        return exit_code
    # os._exit, because gloo threads that DDP keeps alive sometimes abort the shutdown of the interpreter.
    if exit_code in (0, STOPPED_BY_SIGNAL):  # after an error other ranks may wait for this one: destroying would hang
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


@contextmanager
def naming_lost_ranks(world: World, take_over: Callable[[], None]) -> Iterator[None]:
    """Raise RankLostError if a collective operation fails; `take_over` is called on the first rank that is left."""
    try:
        yield
    except RuntimeError as error:
        if world.world_size == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        with StopSignal():  # torchrun sends SIGTERM to the ranks that are left
            lost = _silent_ranks(world)
        who = f"{'rank' if len(lost) == 1 else 'ranks'} {', '.join(map(str, lost))}" if lost else "the connection"
        advice = "see its log, then run the same command again to resume from the last checkpoint"
        found = RankLostError(f"{who} of {world.world_size} ended or did not answer in --ddp_timeout; {advice}")
        found.is_first_left = {*range(world.rank)} <= {*lost}
        if found.is_first_left:
            take_over()
        raise found from error


def _silent_ranks(world: World) -> list[int]:
    """Ranks that do not write to the process group's store now, as all do that a failed operation has stopped."""
    silent, attempt, until = [], os.environ.get("TORCHELASTIC_RESTART_COUNT"), time.monotonic() + _ANSWER_SECONDS
    try:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=_ANSWER_SECONDS))  # type: ignore[attr-defined]
        store.set(f"answer of {world.rank} in attempt {attempt}", "")
    except RuntimeError:  # without torchrun the first rank has the store
        return [0]
    for rank in range(world.world_size):
        try:
            left = timedelta(seconds=max(0.1, until - time.monotonic()))
            store.wait([f"answer of {rank} in attempt {attempt}"], left)
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


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by those of the first rank, with several ranks."""
    for tensor in tensors:
        dist.broadcast(tensor, src=0)


def gather_objects(value: Any, world: World) -> list[Any]:
    """All-gathered values in the order of ranks. Values are pickled between the processes of one run."""
    if world.world_size == 1:
        return [value]
    values: list[Any] = [None] * world.world_size
    dist.all_gather_object(values, value)
    return values


@contextmanager
def main_first(world: World) -> Iterator[None]:
    """Run the block on the main rank first, then on the others; a UserError of the main rank is raised on all."""
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
