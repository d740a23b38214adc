"""The memory that a training step takes, counted from shapes: nothing of it is allocated or computed.

The run's own objective makes a step on tensors that have a shape but no content, on any machine, for any preset; what
is alive is followed storage by storage. Scratch memory inside a kernel and what an allocator rounds up are not seen.
Dimensions: B batch, L length, D hidden, N heads, H head size.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from electra_albert.contracts import IGNORED_LABEL, Arithmetic, Batch
from electra_albert.model.attention import SelfAttention, SoftmaxMixing
from electra_albert.model.encoder import set_gradient_checkpointing
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.registry import PretrainingObjective, make_objective
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal
from electra_albert.training.lamb import Lamb
from electra_albert.training.monitor import Monitor
from electra_albert.training.optimizer import parameter_groups
from electra_albert.training.settings import RunSettings
from electra_albert.training.step import backward

if TYPE_CHECKING:
    from collections.abc import Callable

    from electra_albert.config import PretrainConfig, TrainingConfig

# Which tokens are special decides nothing here.
_SPECIAL = SpecialIds(mask=4, never_masked=(0, 1, 2, 3, 4))


class MemoryEstimate(NamedTuple):
    """Bytes. The first four add up to the peak."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # all that the peak takes beside the three that stay: kept for the backward pass, or on the way
    peak: int


class LiveBytes(TorchDispatchMode):
    """Follows the storages of all tensors that operations inside it make: bytes alive now, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak = 0, 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()  # a storage keeps its object, and so its id, while it lives
        if key in self._alive:
            return
        self._alive.add(key)
        weakref.finalize(storage, self._forget, key, size).atexit = False
        self.now += size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def step_memory(config: PretrainConfig, arithmetic: Arithmetic, device_type: str) -> MemoryEstimate:
    """What one update of one process takes at most on a device of that type, cpu or cuda; torch.compile left aside.

    config.model.vocab_size is taken as it stands: the tokenizer's.
    """
    return follow_step(config, arithmetic, FakeTensorMode(), is_on_gpu=device_type == "cuda")


def follow_step(
    config: PretrainConfig, arithmetic: Arithmetic, tensors: AbstractContextManager[Any], *, is_on_gpu: bool
) -> MemoryEstimate:
    """Make one update on the CPU and follow what is alive; `tensors` decides whether tensors have content."""
    training = config.training
    run = trial_run(training, World(0, 1, 0, torch.device("cpu")), arithmetic)
    with torch.random.fork_rng(devices=()), tensors, LiveBytes() as live:
        objective = make_objective(config, _SPECIAL)
        if is_on_gpu:
            _compute_as_on_gpu(objective)
        if training.gradient_checkpointing:
            set_gradient_checkpointing(objective)
        weights = live.now
        update = _updater(objective, training)
        optimizer = live.now - weights
        micro_batches = [_full_batch(config) for _ in range(min(2, training.gradient_accumulation_steps))]
        backward(objective, micro_batches, dict.fromkeys(objective.weights, 1.0), 1, run)
        gradients = sum(parameter.grad.nbytes for parameter in objective.parameters() if parameter.grad is not None)
        nn.utils.clip_grad_norm_(objective.parameters(), training.max_grad_norm)
        update()
    return MemoryEstimate(weights, gradients, optimizer, live.peak - weights - gradients - optimizer, live.peak)


def trial_run(training: TrainingConfig, world: World, arithmetic: Arithmetic) -> RunSettings:
    """What the loop's pieces are handed for updates that belong to no run: nothing is shown, saved or stopped."""
    return RunSettings(
        Path(), training, world, Monitor(Path(), training.max_steps, is_main=False), StopSignal(), arithmetic
    )


def _full_batch(config: PretrainConfig) -> Batch:
    """Rows without padding and without meaning."""
    rows, length = config.training.per_device_train_batch_size, config.corpus.max_seq_length
    return Batch(
        input_ids=torch.full((rows, length), len(_SPECIAL.never_masked)),
        attention_mask=torch.ones(rows, length, dtype=torch.bool),
        token_type_ids=torch.zeros(rows, length, dtype=torch.int64),
        sentence_order_label=torch.full((rows,), IGNORED_LABEL),
        example_id=torch.arange(rows),
    )


def _updater(objective: PretrainingObjective, training: TrainingConfig) -> Callable[[], object]:
    """The optimiser's state, as build_optimizer makes it, held by a function that makes the update.

    build_optimizer itself tells parameters apart by their address, and tensors without content have none.
    """
    groups = parameter_groups(objective, training.weight_decay)
    state = {
        parameter: {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        for group in groups
        for parameter in group["params"]
    }
    if training.optimizer != "lamb":
        return lambda: len(state)  # the fused update of AdamW writes where it reads
    optimizer = Lamb(groups, lr=training.learning_rate)
    optimizer.state.update(state)
    return optimizer.step


class _FusedMixing(nn.Module):
    """Attention in the shapes of the kernel that keeps no scores, which a GPU takes where there is a mask."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q, k, v any float [B, N, L, H], mask bool [B, L]; returns [B, N, L, H]."""
        batch, heads, length, _ = q.shape
        bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -torch.inf)  # [B, L]
        spread = bias[:, None, None, :].expand(batch, heads, length, length)
        mixed, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, spread, True, self.dropout)
        return mixed


def _compute_as_on_gpu(objective: PretrainingObjective) -> None:
    """Change the two places where a GPU's step has other shapes or types than a CPU's; no tensor on a GPU is needed.

    PyTorch built without CUDA cannot make one for autograd, not even one without content.
    """
    for part in list(objective.modules()):
        if isinstance(part, SelfAttention) and isinstance(part.mixing, SoftmaxMixing):
            part.mixing = _FusedMixing(part.mixing.dropout)
        elif isinstance(part, nn.LayerNorm):  # autocast on a GPU hands it float32
            part.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
