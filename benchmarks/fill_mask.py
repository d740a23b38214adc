"""Filling masks compared with transformers' pipeline, on one stock folder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.config import CPU_BATCH_SIZE, BenchConfig, bench_job, pretraining
from benchmarks.data_path import sample_sentences
from benchmarks.stock import write_stock_model
from benchmarks.timing import LOG, OURS, STOCK, Record, compare, in_turns, seconds_per_call
from electra_albert.contracts import UserError
from electra_albert.training.distributed import start

SENTENCES, TOP_K = 32, 5
SCORE_TOLERANCE = 1e-3  # relative, in float32: rounding errors of a logit and of the softmax's sum
# With a preset's small initial weights all scores are near chance, and different models would look
# equal.
_WIDE_WEIGHTS = 0.1


def measure_fill_mask(config: BenchConfig) -> Iterator[Record]:
    """Sentences per second, one by one and in one call.

    Raises UserError if the predictions differ.
    """
    from transformers import pipeline

    from electra_albert.inference.model import load_model

    world = start(config.device)
    job = bench_job(config, pretraining(config, objective="rtd"), world, CPU_BATCH_SIZE, "fp32")
    tokenizer = job.prepared.tokenizer
    assert job.objective.generator is not None
    shape = replace(job.objective.generator.config, vocab_size=len(tokenizer))
    words = [text.split() for text in sample_sentences(job, SENTENCES, range(5, 41))]
    sentences = [" ".join([*text[:-3], tokenizer.mask_token, *text[-2:]]) for text in words]
    with TemporaryDirectory(prefix="bench-") as folder:
        write_stock_model(
            shape, tokenizer, Path(folder), config.seed, initializer_range=_WIDE_WEIGHTS
        )
        ours = load_model(folder, str(world.device))
        fill: Any = pipeline("fill-mask", model=folder, device=world.device, top_k=TOP_K)
        check_same_predictions(ours.fill_mask(sentences, TOP_K), fill(sentences))
        LOG.info(f"ours and the pipeline give the same predictions for {SENTENCES} sentences")
        for asked in (sentences[:1], sentences):
            calls: dict[str, Callable[[], object]] = {
                OURS: partial(ours.fill_mask, asked, TOP_K),
                STOCK: partial(fill, asked),
                f"{STOCK}, batch_size={SENTENCES}": partial(fill, asked, batch_size=SENTENCES),
            }
            number = SENTENCES // len(asked)
            timings = {
                name: partial(seconds_per_call, call, number) for name, call in calls.items()
            }
            yield {
                "title": (
                    f"fill-mask: {len(asked)} at once, preset {config.values('preset')[0]}, "
                    f"fp32, top {TOP_K}"
                ),
                "unit": "sentences/s",
                "results": compare(in_turns(timings, config.repeats), len(asked)),
            }


def check_same_predictions(ours: Sequence[Any], stock: Sequence[Any]) -> None:
    """Raise UserError unless both predict the same tokens for each sentence, up to the order of
    ties.
    """
    for mine, theirs in zip(ours, stock, strict=True):
        known = {prediction["token"]: prediction for prediction in theirs}
        last = min(prediction["score"] for prediction in theirs)
        for found in mine:
            other = known.get(
                found["token"], {**found, "score": last}
            )  # or one that is tied with the last
            is_near = abs(found["score"] - other["score"]) <= SCORE_TOLERANCE * other["score"]
            if len(mine) != len(theirs) or not is_near or found["sequence"] != other["sequence"]:
                raise UserError(
                    f"ours and the pipeline give different predictions: {found} (ours), "
                    f"{other} (stock)"
                )
