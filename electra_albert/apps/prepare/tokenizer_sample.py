"""The sentences of a corpus that a tokenizer is trained on, or extended with: from all over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from electra_albert.apps.prepare.folder import CorpusFolder

if TYPE_CHECKING:
    from electra_albert.corpus.sources import Unit

SAMPLE_CHARACTERS = 20_000_000
_SAMPLED_PLACES = 256
_SMALLEST_SAMPLE_BYTES = 1 << 20


def sample_sentences(corpus: CorpusFolder) -> Iterator[str]:
    """Sentences from the beginnings of pieces all over the corpus, in a keyed order; all of a small one."""
    from electra_albert.corpus.sources import read_unit

    size = sum(path.stat().st_size for path in corpus.all_files())
    by_source = corpus.units(max(_SMALLEST_SAMPLE_BYTES, size // _SAMPLED_PLACES))
    units = [unit for units in by_source for unit in units]
    left = SAMPLE_CHARACTERS
    for place, unit in enumerate(_keyed_order(units, corpus.seed)):
        share = max(1, left // (len(units) - place))  # what a piece does not need is left to those behind it
        for sentence in (s for document in read_unit(unit, Counter()) for s in document.sentences):
            if share <= 0:
                break
            yield sentence
            share -= len(sentence)
            left -= len(sentence)


def _keyed_order(units: list[Unit], seed: int) -> list[Unit]:
    import torch

    from electra_albert.keyed_random import Stream, bits

    number = torch.arange(len(units))
    order = bits(seed, Stream.TOKENIZER_SAMPLE, number, torch.zeros_like(number)).argsort(stable=True)
    return [units[place] for place in order.tolist()]
