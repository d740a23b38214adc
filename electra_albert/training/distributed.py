"""One process or many: which it is, its device, and the few things that processes agree on."""

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from electra_albert.contracts import STOPPED_BY_SIGNAL, UsageError, UserError
from electra_albert.keyed_random import Stream, bits

_STEP_TIMEOUT = timedelta(minutes=30)  # a rank that is silent for so long is taken for dead
_PREPARE_TIMEOUT = timedelta(days=7)  # others wait so long while the main rank prepares a corpus
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of <malloc.h>, where they are part of the interface


class World(NamedTuple):
    """This process among those that train together."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def start(device: str) -> World:
    """Join torchrun's processes, if any; device: cpu, cuda, mps or auto, else UsageError, as where it is not there."""
    torchrun = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}  # its variables, and their values without it
    rank, world_size, local_rank = (int(os.environ.get(name, value)) for name, value in torchrun.items())
    chosen = _device(device, local_rank, world_size)
    if chosen.type == "cpu":
        keep_freed_memory()
    if world_size > 1:
        # Host tensors go through gloo on a GPU too: what all ranks must know each step costs no wait for the device.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_STEP_TIMEOUT)
    return World(rank, world_size, local_rank, chosen)


def _device(device: str, local_rank: int, world_size: int) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "mps" or (device == "auto" and not gpus):
        if world_size == 1 and is_mps_usable():
            return torch.device("mps")
        if device == "mps":
            raise UsageError("--device mps takes one process on a Mac whose GPU PyTorch can use; use --device cpu")
        device = "cpu"
    if device == "cpu":
        return torch.device(device)
    if local_rank >= gpus:
        found = f"process {local_rank} has no GPU, PyTorch finds {gpus} here"
        raise UsageError(
            f"--device {device}: {found}; use --device cpu, or as few processes (torchrun --nproc_per_node)"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def is_mps_usable() -> bool:
    """Whether PyTorch has a Mac's GPU and draws there what it draws on the CPU: some versions shift int64 wrongly."""
    if not torch.backends.mps.is_available():
        return False
    indices = [torch.arange(1000, device=device) for device in ("mps", "cpu")]
    try:
        drawn = [bits(0, Stream.MASK, index, index) for index in indices]
        return torch.equal(*(torch.cat([one, one.topk(100, largest=False).indices]).cpu() for one in drawn))
    except (RuntimeError, TypeError):  # how an operator that is not there is reported
        return False


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensor, whether it could: else each step has its pages mapped again."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, -1))


def stop(world: World) -> None:
    """Leave the other processes."""
    if world.world_size > 1:
        dist.destroy_process_group()


def leave(exit_code: int) -> int:
    """The last call of a program: its exit code, or, where `start` has joined other ranks, the end of the process."""
    if not dist.is_initialized():
        return exit_code
    # DDP keeps gloo's threads alive, and an interpreter that is torn down under them aborts now and then.
    if exit_code in (0, STOPPED_BY_SIGNAL):  # else others may be waiting for this rank, and leaving in turn would hang
        dist.destroy_process_group()
    elif dist.get_rank():
        time.sleep(5)  # torchrun ends all with the first that leaves: first the main rank reports
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def sum_over_ranks(tensor: Tensor, world: World) -> Tensor:
    """The sum of every rank's tensor, on every rank, on the tensor's own device; the argument is left as it was."""
    if world.world_size == 1:
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_objects(value: Any, world: World) -> list[Any]:
    """Every rank's value, in the order of ranks, on every rank. Values are pickled between processes of one run."""
    if world.world_size == 1:
        return [value]
    values: list[Any] = [None] * world.world_size
    dist.all_gather_object(values, value)
    return values


@contextmanager
def main_first(world: World) -> Iterator[None]:
    """Run the block on the main rank, which prepares, then on the others; its UserError is raised on all of them."""
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
