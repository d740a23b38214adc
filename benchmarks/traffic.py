"""Bytes that operators read and write, counted when they are called or by the compiler."""

import logging
import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that do not read the tensor that they change.
_FILLING = {"zero_", "_foreach_zero_", "fill_", "copy_", "exponential_"}


class ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums, over all operators, the distinct tensors on a device that are read, and those written.

    Views and allocations count nothing, nor does the inside of compiled code: see `compiled_bytes`.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._device = device

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether compiled code stays compiled while the mode is active."""
        return True

    def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = operator(*args, **kwargs)
        name = operator.overloadpacket.__name__
        if "empty" in name or _is_in_compiled_code():
            return results
        schema = operator._schema.arguments
        values = {**dict(zip([argument.name for argument in schema], args, strict=False)), **kwargs}
        read = dict[Any, int]()
        changed = dict[Any, int]()
        for argument in schema:
            sizes = self._sizes(values.get(argument.name))
            is_changed = argument.alias_info is not None and argument.alias_info.is_write
            if is_changed:
                changed |= sizes
            if not is_changed or not (argument.kwarg_only or name in _FILLING):
                read |= sizes
        written = changed | self._sizes(results)
        is_view = not changed and {key[0] for key in written} <= {key[0] for key in read}
        if not (is_view and written):
            self.bytes += sum(read.values()) + sum(written.values())
        return results

    def _sizes(self, values: Any) -> dict[Any, int]:
        """Bytes by tensor, named by storage and layout; a dimension of stride 0 has one element."""
        sizes = dict[Any, int]()
        for tensor in tree_leaves(values):
            if isinstance(tensor, Tensor) and tensor.device.type == self._device.type:
                layout = tuple(zip(tensor.shape, tensor.stride(), strict=True))
                key = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), layout
                lengths = [length for length, stride in layout if stride or not length]
                sizes[key] = tensor.itemsize * math.prod(lengths)
        return sizes


def _is_in_compiled_code() -> bool:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folder = cache_dir()  # of the code that the compiler has written
    frame = sys._getframe().f_back
    while frame is not None and not frame.f_code.co_filename.startswith(folder):
        frame = frame.f_back
    return frame is not None


def count_compiled_bytes() -> None:
    """Let the compiler count bytes in this process, which it does only for a log."""
    from torch._inductor import compile_fx

    compile_fx.inductor_metrics_log.setLevel(logging.INFO)
    compile_fx.inductor_metrics_log.propagate = False
    torch.compiler.config.cache_key_tag = "benchmarks"  # cache entries of others lack counts


def compiled_bytes() -> int:
    """Bytes that all graphs read and write that were compiled so far, or loaded from a cache."""
    from torch._inductor import metrics

    return metrics.num_bytes_accessed
