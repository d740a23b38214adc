"""A toy objective and toy batches for tests of the training loop.

Dimensions: B batch, L length, V vocab, D hidden; all different primes.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import IGNORED_LABEL, Batch, Metrics, Term
from electra_albert.keyed_random import Stream, bits
from electra_albert.training.distributed import World
from electra_albert.training.loop import Outcome, train
from electra_albert.training.monitor import Monitor
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import RunSettings
from tests.apps.tiny_run import untimed_rows

V, L, D = 11, 7, 5
SEED = 3
ALONE = World(0, 1, torch.device("cpu"))

_INTERVALS = {
    "max_steps": 8,
    "warmup_steps": 3,
    "logging_steps": 3,
    "eval_steps": 4,
    "save_steps": 2,
}
CONFIG = TrainingConfig(
    **_INTERVALS, per_device_train_batch_size=4, learning_rate=0.03, save_total_limit=100, seed=SEED
)


class ToyObjective(nn.Module):
    """Two losses, the second often with count 0, and a metric; tied embeddings, dropout and keyed
    noise.
    """

    def __init__(
        self, dropout: float = 0.2, dtype: torch.dtype = torch.float32, hidden: int = D
    ) -> None:
        super().__init__()
        self.weights = {"token_loss": 1.0, "order_loss": 2.5}
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            self.table = nn.Embedding(V, hidden, dtype=dtype)
            self.norm = nn.LayerNorm(hidden, dtype=dtype)
            self.order = nn.Linear(hidden, 2, dtype=dtype)
            self.decoder = nn.Linear(hidden, V, dtype=dtype)
        self.decoder.weight = self.table.weight
        self.dropout = nn.Dropout(dropout)

    def counts(self, batch: Batch) -> dict[str, int]:
        order = batch.sentence_order_label != IGNORED_LABEL
        return {"token_loss": int(batch.attention_mask.sum()), "order_loss": int(order.sum())}

    def forward(self, batch: Batch) -> dict[str, Term]:
        noise = bits(SEED, Stream.SAMPLE_TOKEN, batch.example_id, batch.example_id) % V  # [B]
        input_ids, label = (
            torch.cat((noise[:, None], batch.input_ids[:, 1:]), 1),
            batch.sentence_order_label,
        )
        hidden = self.norm(self.dropout(self.table(input_ids)))  # [B, L, D]
        logits = self.decoder(hidden)  # [B, L, V]
        target, token_count = (3 * batch.input_ids + 1) % V, batch.attention_mask.sum()
        nats = (
            cross_entropy(logits.transpose(1, 2), target, reduction="none") * batch.attention_mask
        )
        right = ((logits.argmax(-1) == target) & batch.attention_mask).sum()
        order = cross_entropy(
            self.order(hidden[:, 0]), label, ignore_index=IGNORED_LABEL, reduction="sum"
        )
        return {
            "token_loss": Term(nats.sum(), token_count),
            "order_loss": Term(order, (label != IGNORED_LABEL).sum()),
            "token_accuracy": Term(right.to(nats.dtype), token_count),
        }


class Breaking(ToyObjective):
    """Planted: a loss that is infinite, with finite gradients, at the given steps of CONFIG's
    batches.
    """

    def __init__(self, steps: tuple[int, ...]) -> None:
        super().__init__()
        self.steps = torch.tensor(steps)
        self.batch_size = CONFIG.per_device_train_batch_size * CONFIG.gradient_accumulation_steps

    def forward(self, batch: Batch) -> dict[str, Term]:
        terms = super().forward(batch)
        step = batch.example_id[0] // self.batch_size + 1
        broken = torch.where((self.steps == step).any(), torch.inf, 0.0)
        return {
            **terms,
            "token_loss": Term(terms["token_loss"].sum + broken, terms["token_loss"].count),
        }


class ToyBatches:
    """Examples keyed by their index in the run, of different lengths; order labels are rare."""

    def __init__(
        self,
        config: TrainingConfig,
        world: World = ALONE,
        before: Callable[[int], None] | None = None,
    ):
        self._world, self._before, self._size = world, before, config.per_device_train_batch_size
        self._global = self._size * config.gradient_accumulation_steps * world.world_size

    def examples(self, index: Tensor) -> Batch:
        position = torch.arange(L)
        drawn = bits(SEED, Stream.ORDER, index[:, None], position)  # [B, L]
        length = 1 + bits(SEED, Stream.SHORT_EXAMPLE, index, torch.tensor(0)) % L  # [B]
        label = bits(SEED, Stream.SWAP, index, torch.tensor(0)) % 6
        return Batch(
            input_ids=drawn % V,
            attention_mask=position < length[:, None],
            token_type_ids=torch.zeros_like(drawn),
            sentence_order_label=torch.where(label < 2, label, IGNORED_LABEL),
            example_id=index,
        )

    def steps(self, first_step: int) -> Iterator[list[Batch]]:
        for step in count(first_step):
            if self._before is not None:
                self._before(step)
            share = self._global // self._world.world_size
            mine = torch.arange(share) + (step - 1) * self._global + self._world.rank * share
            yield [self.examples(index) for index in mine.split(self._size)]

    def epoch(self, step: int) -> float:
        return step * self._global / 100


def run_toy(
    folder: Path,
    config: TrainingConfig = CONFIG,
    *,
    objective: nn.Module | None = None,
    world: World = ALONE,
    before: Callable[[int], None] | None = None,
    evaluate: Callable[[int], Metrics | None] | None = None,
    stop: StopSignal | None = None,
    **more: Any,
) -> tuple[Outcome, ToyObjective]:
    """Train a toy in `folder`, with `more` fields of RunSettings; returns the outcome and the
    objective.
    """
    model = ToyObjective() if objective is None else objective
    with Monitor(folder, config.max_steps, is_main=world.is_main) as monitor:
        run = RunSettings(folder, config, world, monitor, stop or StopSignal(), **more)
        outcome = train(
            model, ToyBatches(config, world, before), evaluate or held_out(model, config), run
        )
    return outcome, model


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of all weights."""
    return hashlib.sha256(
        b"".join(value.numpy().tobytes() for value in module.state_dict().values())
    ).hexdigest()


def at_steps(actions: Mapping[int, Callable[[], object]]) -> Callable[[int], None]:
    """A callback for ToyBatches' `before` that calls the action of a step, if any."""
    return lambda step: actions.get(step, bool)() and None


def training_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of training metrics."""
    return [row for row in untimed_rows(folder) if "loss" in row]


def gradient_of(model: nn.Module) -> Tensor:
    """Every parameter's gradient in one vector."""
    return torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    )


def held_out(objective: nn.Module, config: TrainingConfig) -> Callable[[int], Metrics]:
    """An evaluation on examples that training does not reach."""
    batch = ToyBatches(replace(config, gradient_accumulation_steps=1)).examples(
        torch.arange(10**6, 10**6 + 13)
    )

    def evaluate(step: int) -> Metrics:
        terms = objective(batch)
        return {name: float(term.sum) / int(term.count) for name, term in terms.items()}

    return evaluate
