"""The data path compared with stock's tools: text to a token store in MB/s, training batches in
examples/s.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import timeit
from typing import Any, cast

from benchmarks.config import BenchConfig, bench_job, pretraining
from benchmarks.timing import OURS, STOCK, Record, compare, in_turns, seconds_per_call
from electra_albert.apps.pretrain.job import Job
from electra_albert.contracts import DataError
from electra_albert.corpus.folder import open_corpus
from electra_albert.corpus.prepare import prepare
from electra_albert.training.distributed import start

_EXAMPLES_PER_TIMING = 16_384
_STOCK_EXAMPLES = 4096  # in the data set of stock's loader
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def measure_store(config: BenchConfig) -> Iterator[Record]:
    """MB of text per second to a token store, with one process and with one per core; the tokenizer
    is not timed.

    stock: load_dataset, the same tokenizer and run_mlm.py's split into examples, with one process,
    on text files.
    """
    corpus = pretraining(config).corpus
    prepared = prepare(corpus, config.seed)
    names, number = count(), os.cpu_count() or 1
    files = [path for some in open_corpus(corpus, config.seed).files for path in some]
    with TemporaryDirectory(prefix="bench-") as folder:

        def ours(workers: int) -> None:
            tokenizer_dir, prepared_dir = str(prepared.tokenizer_dir), f"{folder}/{next(names)}"
            own = replace(
                corpus,
                tokenizer=tokenizer_dir,
                prepared_dir=prepared_dir,
                preprocessing_num_workers=workers,
            )
            prepare(own, config.seed)

        def stock() -> None:
            stock_examples(
                files, prepared.tokenizer, corpus.max_seq_length, Path(folder, str(next(names)))
            )

        timings = {OURS: partial(timeit, partial(ours, 1), number=1)}
        if number > 1:
            timings[f"{OURS}, {number} processes"] = partial(
                timeit, partial(ours, number), number=1
            )
        if all(".txt" in file.suffixes for file in files):  # others are not compared
            timings[STOCK] = partial(timeit, stock, number=1)
        seconds = in_turns(timings, config.repeats)
    megabytes = prepared.store.statistics["read"]["bytes"] / 1e6
    baseline = STOCK if STOCK in timings else OURS
    yield {
        "title": (
            f"token store of {megabytes:,.1f} MB of text, {config.corpus}, vocabulary "
            f"{len(prepared.tokenizer):,}"
        ),
        "unit": "MB/s",
        "baseline": baseline,
        "results": compare(seconds, megabytes, baseline),
    }


def stock_examples(files: list[Path], tokenizer: Any, length: int, cache: Path) -> Any:
    """Text files tokenized line by line, joined and split into examples of `length` tokens, as
    run_mlm.py does.
    """
    import datasets

    datasets.disable_progress_bars()
    lines = datasets.load_dataset(
        "text", data_files=list(map(str, files)), cache_dir=str(cache), split="train"
    )

    def encode(rows: dict[str, list[str]]) -> dict[str, Any]:
        return {"input_ids": tokenizer(rows["text"], return_special_tokens_mask=True)["input_ids"]}

    def cut(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        ids = list(chain.from_iterable(rows["input_ids"]))
        return {
            "input_ids": [ids[end - length : end] for end in range(length, len(ids) + 1, length)]
        }

    return lines.map(encode, batched=True, remove_columns=["text"]).map(cut, batched=True)


def measure_batches(config: BenchConfig) -> Iterator[Record]:
    """Examples per second in the loop's training batches, compared with DataLoader and
    transformers' collator.
    """
    world = start(config.device)
    settings = pretraining(config)
    length = settings.corpus.max_seq_length
    size = config.batch_sizes(world.device.type, length)[0]
    job = bench_job(config, settings, world, size, "fp32")
    loaders = {OURS: job.batches.steps(1), STOCK: stock_batches(job, size)}
    number = -(-_EXAMPLES_PER_TIMING // size)
    timings = {
        name: partial(seconds_per_call, partial(next, batches), number)
        for name, batches in loaders.items()
    }
    yield {
        "title": f"training batches: preset {config.values('preset')[0]}, {size} x {length}",
        "unit": "examples/s",
        "results": compare(in_turns(timings, config.repeats), size),
    }


def stock_batches(job: Job, size: int) -> Any:
    """Endless batches of the job's examples from DataLoader and DataCollatorWithPadding."""
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding

    names = ("input_ids", "attention_mask", "token_type_ids")
    examples = [
        {name: getattr(batch, name)[row, batch.attention_mask[row]].tolist() for name in names}
        for batch in (
            job.batches.micro_batches(step)[0] for step in range(1, max(2, _STOCK_EXAMPLES // size))
        )
        for row in range(size)
    ]
    collate = DataCollatorWithPadding(
        job.prepared.tokenizer, "max_length", job.config.corpus.max_seq_length
    )
    loader = DataLoader(cast(Any, examples), size, shuffle=True, drop_last=True, collate_fn=collate)
    return chain.from_iterable(loader for _ in count())


def sample_sentences(job: Job, number: int, words: range) -> list[str]:
    """`number` sentences of `words` words, decoded from the job's batches; repeated if there are
    too few.
    """
    found: dict[str, None] = {}
    for step in range(1, 200):
        ids = job.batches.micro_batches(step)[0].input_ids
        for text in job.prepared.tokenizer.batch_decode(ids, skip_special_tokens=True):
            found |= dict.fromkeys(
                one for one in _SENTENCE_END.split(text)[1:-1] if len(one.split()) in words
            )
        if len(found) >= number:
            break
    if not found:
        raise DataError(
            f"no sentence of the corpus has {words[0]} to {words[-1]} words; name another --corpus"
        )
    return list(islice(chain.from_iterable(found for _ in count()), number))
