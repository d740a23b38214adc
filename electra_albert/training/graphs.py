"""CUDA graphs: the kernels of a training step are recorded once and then launched together.

A recorded function may use only tensors that stay in place: weights, gradients, optimizer state,
sums, and inputs into which the values of each step are copied first. Its Python code runs only
until it has been recorded.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from electra_albert.contracts import Batch, UsageError

WARM_CALLS = 3  # before a function is recorded: compilation, tuning, memory that stays allocated
Action = Callable[[], object]
Recorder = Callable[[Action], Action]  # runs a function once and returns what runs it again


class CudaRecorder:
    """Records functions on the current stream, as CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Action) -> Action:
        """Run a function once; returns what runs its kernels again.

        Raises UsageError for a function that cannot be recorded.
        """
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        try:
            # Other threads pin batches meanwhile, which the mode "global" forbids.
            with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            cause = error.__context__ or error  # the end of a capture that has failed fails too
            raise UsageError(
                "the training step cannot be recorded in CUDA graphs "
                f"({str(cause).splitlines()[0]}); set --cuda_graphs false"
            ) from error
        graph.replay()
        return graph.replay


class Graphs:
    """Functions by key: called WARM_CALLS times, then recorded and replayed.

    Without a recorder they are always called.
    """

    def __init__(self, record: Recorder | None) -> None:
        self._record = record
        self._calls = Counter[Hashable]()
        self._replays = dict[Hashable, Action]()
        self._batches = dict[torch.Size, Batch]()

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        """The batch on the device; with a recorder in memory for all batches of its shape."""
        if self._record is None:
            return batch.to(device)
        shape = batch.input_ids.shape
        if shape not in self._batches:
            self._batches[shape] = batch.map(lambda field: torch.empty_like(field, device=device))
        placed = self._batches[shape]
        for target, value in zip(placed, batch, strict=True):
            if target is not None and value is not None:
                target.copy_(value, non_blocking=True)
        return placed

    def run(self, key: Hashable, function: Action) -> None:
        """Call, record or replay a function, the same one for a key each time."""
        if key in self._replays:
            self._replays[key]()
        elif self._record is None or self._calls[key] < WARM_CALLS:
            self._calls[key] += 1
            function()
        else:
            self._replays[key] = self._record(function)


_stream_of = cache(torch.cuda.Stream)  # one for all runs, whose recorded functions can share memory


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the block on a stream that can be recorded, as CUDA's default stream cannot.

    Gradients are accumulated on the stream of their first backward pass, so all of them must be on
    this one. No effect on other devices.
    """
    if device.type == "cuda":
        outer = torch.cuda.current_stream(device)
        stream = _stream_of(device)
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)
    else:
        yield
