"""What the contenders of a fine-tuning contest are given alike: a task's rows, a model's weights, and the settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.bench.config import AUTO_ROWS, BenchConfig, length_of
from electra_albert.config import ModelConfig, TrainingConfig
from electra_albert.contracts import Arithmetic, DataError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from electra_albert.contracts import Batch
    from electra_albert.model.task_model import TaskModel
    from electra_albert.tasks.examples import TaskData
    from electra_albert.tasks.rows import Rows
    from electra_albert.training.distributed import World

LOG = logging.getLogger(__name__)

Predict = Callable[["Batch"], "Tensor"]  # a batch on the device to logits [B, C]


class Trained(NamedTuple):
    """What came of one pass."""

    seconds: float  # from asking for the first batch to the end of the last update
    other_seconds: float  # that the loop took before and after these
    padding: float  # the share of the places computed in training that were padding
    predict: Predict


Pass = Callable[[int], Trained]  # from a seed


@dataclass(frozen=True)
class Contest:
    """One pass over a task's rows."""

    tokenizer: Any
    labels: tuple[str, ...]
    train: Rows
    dev: Rows
    model: TaskModel  # on the CPU, with the weights each pass begins with
    training: TrainingConfig
    world: World
    arithmetic: Arithmetic
    max_seq_length: int


def make_contest(config: BenchConfig, shape: ModelConfig) -> Contest:
    """The task's rows, cut so that every batch is full, and the model with the weights to begin with."""
    import torch

    from electra_albert.apps.bench.machine import arithmetics_of
    from electra_albert.hub.load import build_task_model, locate_encoder, read_config
    from electra_albert.model.task_model import TaskHead
    from electra_albert.tasks.recipes import recipe
    from electra_albert.training.distributed import start

    world = start(config.device)
    data = _read(config)
    files = locate_encoder(Path(config.model)) if config.model else None
    tokenizer = _tokenizer(config, data, files.tokenizer if files else None)
    train, dev = _encode(config, data, tokenizer)
    size, length = _batch_size(config), length_of(config)
    steps = train.unit_count // size
    if files is None:
        shape = replace(shape, vocab_size=max(config.vocab_size, len(tokenizer)))
    else:
        shape = replace(read_config(files), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    if shape.max_position_embeddings < length:
        raise UsageError(f"--max_seq_length {length} exceeds {shape.max_position_embeddings} positions")
    torch.manual_seed(config.seed)
    model, _ = build_task_model(shape, TaskHead("sequence", len(data.labels)), files)
    published = recipe("electra", config.task or "custom", shape)
    training = TrainingConfig(
        max_steps=steps,
        per_device_train_batch_size=size,
        learning_rate=published["learning_rate"],
        warmup_steps=round(published["warmup_ratio"] * steps),
        lr_scheduler_type="linear",
        logging_steps=steps,  # of these three only what belongs to the last update
        save_steps=steps,
        eval_steps=steps,
    )
    arithmetic = arithmetics_of(config, world.device)[0]
    return Contest(tokenizer, data.labels, train, dev, model, training, world, arithmetic, length)


def _batch_size(config: BenchConfig) -> int:
    return config.rows[0] if config.rows else AUTO_ROWS


def _read(config: BenchConfig) -> TaskData:
    """Examples of a task with classes; by default of the one made from the documentation."""
    from electra_albert.apps.finetune.docs_task import write_docs_task
    from electra_albert.finetuning_config import DataConfig
    from electra_albert.tasks.reading import read_data
    from electra_albert.tasks.registry import find_task

    task = find_task(config.task or "custom")
    if task.kind != "sequence" or task.is_regression:
        raise UsageError(f"--task {task.name} has no classes of sentences; bench takes one that has, such as sst2")
    if config.task is None:
        train, dev = map(str, write_docs_task(Path(config.prepared_dir)))
        files = DataConfig(train_file=train, validation_file=dev)
    elif config.data_dir:
        files = DataConfig(data_dir=config.data_dir)
    else:
        raise UsageError(f"--task {config.task} needs --data_dir, the folder of its files")
    wanted = replace(files, task=task.name, max_train_examples=config.examples)
    return read_data(task, wanted, needs_test=False, seed=config.seed)


def _tokenizer(config: BenchConfig, data: TaskData, of_model: Path | None) -> Any:
    from electra_albert.corpus.tokenizer import load_tokenizer, train_tokenizer

    if of_model is not None or config.tokenizer:
        return load_tokenizer(of_model or Path(str(config.tokenizer)))
    LOG.info(f"training a tokenizer of at most {config.vocab_size:,} pieces on the task's texts, which is not timed")
    texts = (text for example in data.train for text in (example.text, example.text_pair) if text)
    return train_tokenizer(texts, config.vocab_size, do_lower_case=True)


def _encode(config: BenchConfig, data: TaskData, tokenizer: Any) -> tuple[Rows, Rows]:
    """Rows to train on, as many as fill whole batches, and rows to score on."""
    from electra_albert.tasks.encoding import EncodePlan, TextEncoder
    from electra_albert.tasks.kinds import KINDS

    batch = _batch_size(config)
    kept = data.train[: len(data.train) // batch * batch]
    if not kept:
        raise DataError(f"the task gives {len(data.train)} examples, a step takes {batch}; lower the batch size")
    plan = EncodePlan(length_of(config), 1, 1, has_null_answer=False, is_regression=False, double_unordered=False)
    name, dev = next(iter(data.evaluation.items()))
    train, scored = (
        KINDS["sequence"].encode(
            examples, TextEncoder(tokenizer), data.labels, plan, data.report, is_training=False, where=where
        )
        for where, examples in (("train", kept), (name, dev))
    )
    return train, scored


@contextmanager
def padding_of(model: nn.Module) -> Iterator[Callable[[], float]]:
    """Watch the masks a model is called with: a function that gives the share of places in them that are padding.

    The masks are the second argument, or the one named attention_mask. Nothing waits for the device until it is asked.
    """
    masks: list[tuple[int, Tensor]] = []

    def watch(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named["attention_mask"] if named else args[1]
        masks.append((mask.numel(), mask.sum()))

    handle = model.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        yield lambda: 1 - sum(int(tokens) for _, tokens in masks) / sum(places for places, _ in masks)
    finally:
        handle.remove()
