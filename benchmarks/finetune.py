"""An epoch of fine-tuning compared with stock's Trainer: the same texts, encoder, batch size and
schedule.

Both are timed from the first batch to the end of the last update, without evaluation and
checkpoints.
"""

import csv
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from benchmarks.config import CPU_BATCH_SIZE, BenchConfig, bench_job, pretraining
from benchmarks.data_path import sample_sentences
from benchmarks.stock import ATTENTIONS, write_stock_model
from benchmarks.timing import OURS, STOCK, Record, compare, in_turns
from electra_albert.contracts import UserError
from electra_albert.training.distributed import World, start
from electra_albert.training.monitor import read_metrics

# STOCK has Trainer's defaults: random order, each batch padded to its longest example.
GROUPED = f"{STOCK}, grouped by length"
_SCORED_EXAMPLES, _TRIAL_UPDATES, _EPOCH_EVENTS = 16, 4, ("on_epoch_begin", "on_epoch_end")
_LEARNING_RATE, _WARMUP = 1e-4, 0.1


def measure_finetune(config: BenchConfig) -> Iterator[Record]:
    """Examples per second of our command and of stock's Trainer.

    Raises UserError if they compute different things.
    """
    from transformers.utils import logging as stock_logging

    stock_logging.set_verbosity_error()
    seeds = count(config.seed)
    world, settings = start(config.device), pretraining(config)
    asked, length = config.values("per_device_train_batch_size")[0], settings.corpus.max_seq_length
    size = CPU_BATCH_SIZE if asked == "auto" else int(asked)
    job = bench_job(config, settings, world, size, config.values("precision")[0])
    texts = sample_sentences(job, max(1, config.examples // size) * size, range(3, 61))
    with TemporaryDirectory(prefix="bench-") as name:
        comparison = FinetuneComparison(texts, Path(name), world, size, length, job.arithmetic)
        write_stock_model(
            job.config.model, job.prepared.tokenizer, comparison.folder / "start", config.seed
        )
        rows = [(text, ("even", "odd")[number % 2]) for number, text in enumerate(texts)]
        for file, part in (("train.csv", rows), ("dev.csv", rows[:_SCORED_EXAMPLES])):
            with (comparison.folder / file).open("w", encoding="utf-8", newline="") as table:
                csv.writer(table).writerows([("text", "label"), *part])
        comparison.train_ours(0, 2)  # its export fails unless the stock class computes the same
        trial = {
            kind: comparison.train_stock(0, STOCK, kind, _TRIAL_UPDATES) for kind in ATTENTIONS * 2
        }
        attention = min(trial, key=lambda kind: trial[kind])
        timings = {OURS: lambda: comparison.train_ours(next(seeds))}
        for way in (STOCK, GROUPED):
            timings[way] = partial(comparison.train_stock, config.seed, way, attention)
        seconds = in_turns(timings, config.repeats)
    preset = config.values("preset")[0]
    yield {
        "title": f"fine-tuning: preset {preset}, {job.arithmetic}, {len(texts):,} examples, "
        f"{size} x {length} at most, stock's attention {attention}",
        "unit": "examples/s",
        "results": compare(seconds, len(texts)),
    }


class FinetuneComparison(NamedTuple):
    """Texts with arbitrary labels, and the settings for fine-tuning a stock folder of random
    weights on them.
    """

    texts: list[str]
    folder: Path  # of all files
    world: World
    size: int  # examples per batch
    length: int
    arithmetic: str

    def train_ours(self, seed: int, max_steps: int | None = None) -> float:
        """Seconds of one epoch, or of max_steps updates, of our command; its log counts from the
        first batch.
        """
        from electra_albert.apps.finetune.main import main

        output = self.folder / f"ours-{seed}"
        files = {
            "train_file": "train.csv",
            "validation_file": "dev.csv",
            "output_dir": output.name,
            "model": "start",
        }
        options = (
            f"--max_steps {max_steps or len(self.texts) // self.size} "
            f"--per_device_train_batch_size {self.size} "
            f"--max_seq_length {self.length} --learning_rate {_LEARNING_RATE} --warmup_ratio "
            f"{_WARMUP} --seed {seed} "
            f"--precision {self.arithmetic} --device {self.world.device.type} --layer_decay "
            f"1 --logging_steps 1000000"
        )
        words = [f"--{name}={self.folder / file}" for name, file in files.items()] + options.split()
        with redirect_stdout(StringIO()):
            code = main(words)
        if code:
            raise UserError(f"our fine-tuning failed with exit code {code}")
        rows = read_metrics(output / f"seed-{seed}" / "metrics.jsonl")
        return float([row["elapsed_seconds"] for row in rows if row["phase"] == "train"][-1])

    def train_stock(self, seed: int, way: str, attention: str, max_steps: int = -1) -> float:
        """Seconds of one epoch, or of max_steps updates, of stock's Trainer."""
        import torch
        import transformers

        device, times = self.world.device, list[float]()

        def record_time(*_: Any, **__: Any) -> None:
            torch.cuda.synchronize() if device.type == "cuda" else None
            times.append(time.perf_counter())

        clock = type(
            "Clock", (transformers.TrainerCallback,), dict.fromkeys(_EPOCH_EVENTS, record_time)
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder / "start")
        columns = dict(tokenizer(self.texts, truncation=True, max_length=self.length))
        columns["labels"] = [number % 2 for number in range(len(self.texts))]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        arguments = transformers.TrainingArguments(
            output_dir=str(self.folder / "trainer"),
            per_device_train_batch_size=self.size,
            num_train_epochs=1,
            max_steps=max_steps,
            learning_rate=_LEARNING_RATE,
            warmup_steps=_WARMUP,  # below 1: a fraction of the updates
            train_sampling_strategy="group_by_length" if way == GROUPED else "random",
            bf16=self.arithmetic == "bf16",
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type == "cuda",
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        arguments._n_gpu = min(
            1, arguments.n_gpu
        )  # otherwise Trainer uses every GPU, with as many times the batch
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            self.folder / "start", attn_implementation=attention
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=cast(Any, rows), processing_class=tokenizer
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(clock)
        trainer.train()
        return times[1] - times[0]
