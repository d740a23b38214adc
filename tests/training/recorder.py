"""A recorder for tests on the CPU: it replays the operators of a function on the memory they had.

A CUDA graph does so too. Unlike there, memory of the function stays allocated between replays.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from electra_albert.training.graphs import Action

# Operators whose output shape depends on values, or that copy a value to the host.
_NAMES = (
    "_local_scalar_dense is_nonzero equal nonzero masked_select unique _unique2 bincount "
    "repeat_interleave.Tensor"
)
READS_VALUES = tuple(f"aten::{name}" for name in _NAMES.split())


class _Record(TorchDispatchMode):
    """Records every operator with its arguments and results.

    AssertionError at one that reads a value or makes a tensor of a list.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Mapping[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not func.name().startswith(READS_VALUES), f"{func.name()} reads values"
        assert not func.name().startswith("aten::lift_fresh"), f"{func.name()} copies from the host"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class ReplayingRecorder:
    """Records functions, and counts how often each of them was replayed."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def __call__(self, function: Action) -> Action:
        with _Record() as record:
            function()
        index = len(self.replays)
        self.replays.append(0)

        @torch.no_grad()
        def replay() -> None:
            self.replays[index] += 1
            for func, args, kwargs, result in record.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return replay
