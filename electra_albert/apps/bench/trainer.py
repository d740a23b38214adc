"""Stock's side of the fine-tuning contest: transformers' Trainer on the stock class with our weights and rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.bench.config import ATTENTIONS, STOCK
from electra_albert.apps.bench.contest import Contest, Pass, Predict, Trained, padding_of
from electra_albert.apps.bench.timing import now
from electra_albert.hub.save import quiet_transformers, save_model

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.contracts import Batch
    from electra_albert.tasks.rows import Rows

LOG = logging.getLogger(__name__)

# STOCK itself is Trainer's defaults: rows in random order, each batch padded to its longest.
GROUPED = "stock, grouped"  # the same with train_sampling_strategy group_by_length
PADDED = "stock, padded"  # every row padded to max_seq_length, as run_glue.py does
_TRIAL_STEPS = 4


class Stock(NamedTuple):
    """Trainer in each of its ways of making batches."""

    passes: dict[str, Pass]
    attention: str


class _Way(NamedTuple):
    """How a Trainer makes its batches."""

    rows: list[dict[str, Any]]
    sampling: str = "random"


@contextmanager
def stock_contenders(contest: Contest, attention: str) -> Iterator[Stock]:
    """Trainers on the exported model, whose logits are seen to be ours first. `attention` is auto, sdpa or eager."""
    plain = plain_rows(contest.train)
    ways = {
        STOCK: _Way(plain),
        GROUPED: _Way(plain, "group_by_length"),
        PADDED: _Way([_padded(row, contest.train.pad_id, contest.max_seq_length) for row in plain]),
    }
    with TemporaryDirectory(prefix="bench-") as name, quiet_transformers():
        folder = Path(name)
        save_model(contest.model, contest.tokenizer, folder / "model", {"labels": list(contest.labels)})
        seconds = {}
        for kind in ATTENTIONS if attention == "auto" else (attention,):
            _train(contest, ways[STOCK], folder, kind, 0, steps=1)  # warm
            seconds[kind] = _train(contest, ways[STOCK], folder, kind, 0, steps=_TRIAL_STEPS).seconds
        fastest = min(seconds, key=lambda kind: seconds[kind])
        LOG.info(f"stock's attention: {fastest}")

        def make_pass(way: _Way) -> Pass:
            return lambda seed: _train(contest, way, folder, fastest, seed)

        yield Stock({name: make_pass(way) for name, way in ways.items()}, fastest)


def plain_rows(rows: Rows) -> list[dict[str, Any]]:
    """The rows as a tokenizer of transformers gives them, with their labels."""
    if rows.labels is None:
        raise ValueError("rows without labels cannot be trained on")
    found = []
    for number, (start, end) in enumerate(zip(rows.starts[:-1], rows.starts[1:], strict=True)):
        length, first = int(end - start), int(rows.first_lengths[number])
        found.append(
            {
                "input_ids": rows.ids[start:end].tolist(),
                "token_type_ids": [0] * first + [1] * (length - first),
                "attention_mask": [1] * length,
                "labels": int(rows.labels[number]),
            }
        )
    return found


def _padded(row: dict[str, Any], pad_id: int, width: int) -> dict[str, Any]:
    missing = width - len(row["input_ids"])
    fillers = {"input_ids": pad_id, "token_type_ids": 0, "attention_mask": 0}
    return {**row, **{name: row[name] + [filler] * missing for name, filler in fillers.items()}}


def _train(contest: Contest, way: _Way, folder: Path, attention: str, seed: int, steps: int | None = None) -> Trained:
    """One pass of a Trainer, or some steps of it."""
    from transformers import AutoModelForSequenceClassification, PrinterCallback, Trainer, TrainerCallback

    device = contest.world.device
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            times.append(now(device))

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            times.append(now(device))

    model = AutoModelForSequenceClassification.from_pretrained(
        str(folder / "model"), local_files_only=True, attn_implementation=attention
    )
    trainer = Trainer(
        model,
        _arguments(contest, folder, way.sampling, seed, steps),
        train_dataset=way.rows,
        processing_class=contest.tokenizer,
        callbacks=[Clock()],
    )
    trainer.remove_callback(PrinterCallback)
    with padding_of(model) as padding:
        called = now(device)
        trainer.train()
        taken, seconds = now(device) - called, times[1] - times[0]
    return Trained(seconds, taken - seconds, padding(), _predictor(model, contest))


def _arguments(contest: Contest, folder: Path, sampling: str, seed: int, steps: int | None) -> Any:
    """Trainer's own defaults but for what the contest sets alike for all, and nothing written."""
    from transformers import TrainingArguments

    training, is_cpu = contest.training, contest.world.device.type == "cpu"
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=training.per_device_train_batch_size,
        num_train_epochs=1,
        max_steps=steps or training.max_steps,
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        lr_scheduler_type="linear",
        weight_decay=training.weight_decay,
        adam_epsilon=training.adam_epsilon,
        max_grad_norm=training.max_grad_norm,
        train_sampling_strategy=sampling,
        bf16=contest.arithmetic == "bf16",
        use_cpu=is_cpu,
        dataloader_pin_memory=not is_cpu,
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    # Else Trainer would put the model on every GPU it finds and take as many times the rows; ours takes one GPU.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _predictor(model: Any, contest: Contest) -> Predict:
    import torch

    from electra_albert.training.step import autocast

    def predict(batch: Batch) -> Tensor:
        with torch.no_grad(), autocast(contest.world.device, contest.arithmetic):
            rows = {"attention_mask": batch.attention_mask.long(), "token_type_ids": batch.token_type_ids}
            return model.eval()(input_ids=batch.input_ids, **rows).logits.float()

    return predict
