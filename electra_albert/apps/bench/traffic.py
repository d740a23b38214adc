"""Bytes that the kernels of a step must read and write, each on its own, nothing fused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# They make a tensor without writing what is in it.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# They put something else where a tensor was, without reading it.
_OVERWRITING = {"copy_", "exponential_", "fill_", "normal_", "random_", "uniform_", "zero_"}
# They write to these arguments only where a loss scale is taken off, which here none is.
_READ_ONLY = {"_fused_adamw_": "grads", "_fused_adam_": "grads"}
# They take of a tensor its shape and type only.
_MADE_LIKE = re.compile(r".*_like|new_.*")
# They read of their source only what they give.
_PICKING = {"embedding", "gather", "index", "index_select"}


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of what every operation inside the context reads and writes on one kind of device.

    Each distinct tensor counts once as read and once as written; a view moves nothing. What is expanded is read from
    where it is stored.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.bytes = 0
        self._device_type = device_type

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.bytes += self._traffic(func, args, kwargs, result)
        return result

    def _traffic(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        name = func.overloadpacket.__name__
        arguments = [*zip(func._schema.arguments, args, strict=False)]
        arguments += [(known, kwargs[known.name]) for known in func._schema.arguments if known.name in kwargs]
        taken = self._distinct(value for _, value in arguments)
        changed = self._distinct(value for known, value in arguments if _is_written(name, known))
        storages = {tensor.untyped_storage().data_ptr() for tensor in taken.values()}
        made = self._distinct([result])
        fresh = {key: t for key, t in made.items() if t.untyped_storage().data_ptr() not in storages}
        if name in _UNWRITTEN or not (fresh or changed or not made):
            return 0
        written = sum(map(_stored_bytes, fresh.values())) + sum(map(_stored_bytes, changed.values()))
        if _MADE_LIKE.fullmatch(name):
            taken = {}
        if name in _OVERWRITING:
            taken = {key: tensor for key, tensor in taken.items() if key not in changed}
        read = sum(map(_stored_bytes, taken.values()))
        if name in _PICKING:
            source = next(iter(self._distinct(args[:1]).values()), None)
            if source is not None:
                read += min(0, written - _stored_bytes(source))
        return read + written

    def _distinct(self, values: Iterable[Any]) -> dict[tuple[Any, ...], Tensor]:
        found = {}
        for tensor in _tensors(values):
            if tensor.device.type == self._device_type and tensor.numel():
                found[tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype] = tensor
        return found


def _is_written(operation: str, argument: Any) -> bool:
    is_marked = argument.alias_info is not None and argument.alias_info.is_write
    return is_marked and argument.name != _READ_ONLY.get(operation)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _stored_bytes(tensor: Tensor) -> int:
    """Bytes of the distinct places that a tensor's elements lie in."""
    places = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places *= size if stride else 1
    return places * tensor.element_size()


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages that lie behind some tensors."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
