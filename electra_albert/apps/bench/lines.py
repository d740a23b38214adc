"""A corpus as a user of transformers has it: one example a line, and what every smaller measurement begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, cast

from electra_albert.apps.bench.config import BenchConfig, rows_of
from electra_albert.config import CorpusConfig, PretrainConfig

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.contracts import Arithmetic
    from electra_albert.corpus.sources import Unit
    from electra_albert.training.distributed import World

MOST_LINES = 20_000
_PLACES = 256  # of a corpus, that lines are taken from
_SMALLEST_PIECE_BYTES = 1 << 20
_ONE_LINE_EACH = ("sentences", "documents")  # kinds of text whose sentences stand on lines of their own


def sample_lines(corpus: CorpusConfig, seed: int) -> list[str]:
    """Lines from all over a corpus: of plain text as they stand there, of documentation a sentence, else a record."""
    from electra_albert.apps.prepare.folder import open_corpus

    found = open_corpus(corpus, seed)
    size = sum(path.stat().st_size for path in found.all_files())
    by_source = found.units(max(_SMALLEST_PIECE_BYTES, size // _PLACES))
    units = [unit for units in by_source for unit in units]
    share = max(1, MOST_LINES // max(1, len(units)))
    return [line for unit in units for line in islice(_lines(unit), share)]


def _lines(unit: Unit) -> Iterator[str]:
    from electra_albert.corpus.sources import Unit, read_unit

    for span in unit.spans:
        # Read as sentences, the lines of paragraphs are left whole.
        whole = span._replace(kind="sentences") if span.kind == "paragraphs" else span
        for document in read_unit(Unit((whole,), unit.reading), Counter()):
            if whole.kind in _ONE_LINE_EACH:
                yield from document.sentences
            else:
                yield " ".join(document.sentences)


def make_bench_job(config: BenchConfig, settings: PretrainConfig) -> tuple[World, Job]:
    """What Pretraining.py would train with: the pair's first weights, and batches of the rows asked for first."""
    from electra_albert.apps.pretrain.job import make_job
    from electra_albert.training.distributed import start

    world = start(config.device)
    training = replace(
        settings.training,
        seed=config.seed,
        per_device_train_batch_size=rows_of(config, world.device.type, settings.corpus.max_seq_length)[0],
        gradient_accumulation_steps=1,
        precision=cast("Arithmetic", config.precisions[0]),
    )
    run = replace(settings.run, objective="rtd", torch_compile="none", init_from=None)
    return world, make_job(replace(settings, training=training, run=run), world)
