"""Attention kinds by sequence length: a forward and backward pass against softmax attention, and
what it keeps.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.config import BenchConfig
from benchmarks.timing import Record, compare, in_turns, seconds_per_call
from electra_albert.config.presets import PRESETS
from electra_albert.model.attention import ATTENTION, make_mixing
from electra_albert.training.distributed import start

_LENGTHS, _CALLS = (512, 1024, 2048, 4096, 8192), 3


def measure_attention(config: BenchConfig) -> Iterator[Record]:
    """One sequence per length, float32, default options.

    MB kept: tensors saved for the backward pass.
    """
    device, preset = start(config.device).device, config.values("preset")[0]
    shape = PRESETS[preset].model
    for length in _LENGTHS:
        sizes = (1, shape.num_attention_heads, length, shape.head_size)
        inputs = [torch.randn(sizes, device=device, requires_grad=True) for _ in range(3)]
        shapes = {
            kind: replace(shape, attention=kind, max_position_embeddings=length)
            for kind in ATTENTION
        }
        calls = {
            kind: partial(_run, make_mixing(one).to(device), inputs) for kind, one in shapes.items()
        }
        timings = {kind: partial(seconds_per_call, call, _CALLS) for kind, call in calls.items()}
        results = compare(in_turns(timings, config.repeats), length, "softmax")
        for kind, call in calls.items():
            results[kind]["MB kept"] = _saved_bytes(call) / 1e6
        title = f"attention: preset {preset}, {length} tokens"
        columns = {"MB kept": ".1f"}
        yield {
            "title": title,
            "unit": "tokens/s",
            "baseline": "softmax",
            "results": results,
            "columns": columns,
        }


def _run(mixing: nn.Module, inputs: list[Tensor]) -> None:
    mask = torch.ones(1, inputs[0].shape[2], dtype=torch.bool, device=inputs[0].device)
    torch.autograd.grad(mixing(*inputs, mask).sum(), inputs)


def _saved_bytes(call: Callable[[], None]) -> int:
    storages: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        call()
    return sum(storages.values())
