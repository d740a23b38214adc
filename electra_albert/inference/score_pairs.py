"""How often a model holds the good sentence of a minimal pair for the better one, as BLiMP asks.

Dimensions: B batch, L length.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.data_files.finding import is_there
from electra_albert.data_files.tables import open_table
from electra_albert.inference.fill_mask import check_length
from electra_albert.inference.rows import PaddedRows, batches, encode_all, pad, read_rows
from electra_albert.tasks.read_rules import as_text

if TYPE_CHECKING:
    from electra_albert.inference.model import InferenceModel
    from electra_albert.model.electra import Discriminator

LOG = logging.getLogger(__name__)

LIKELIHOOD, DETECTION = "likelihood", "detection"  # the two ways of scoring a sentence
_SUFFIX = ".jsonl"
_SENTENCES = ("sentence_good", "sentence_bad")
_COLUMNS = (*_SENTENCES, "UID", "linguistics_term")


class Pair(NamedTuple):
    """Two sentences that differ in one thing."""

    good: str
    bad: str
    place: str  # file and line


class PairSet(NamedTuple):
    """The pairs that test one thing."""

    name: str
    term: str  # of linguistics, that the set belongs to; empty where none is told
    pairs: list[Pair]


class Outcome(NamedTuple):
    """The pairs of a set, scored in one way."""

    correct: int  # the good sentence scores higher
    ties: int  # both score the same, which is not correct


class SetScore(NamedTuple):
    """One set, scored in every way that the model has a head for."""

    name: str
    term: str
    pairs: int
    outcomes: dict[str, Outcome]

    def accuracy(self, way: str) -> float:
        return self.outcomes[way].correct / self.pairs


class PairScores(NamedTuple):
    """All sets; every set counts the same, however many pairs it has."""

    sets: list[SetScore]

    @property
    def ways(self) -> list[str]:
        return list(self.sets[0].outcomes)

    @property
    def pairs(self) -> int:
        return sum(one.pairs for one in self.sets)

    def accuracy(self, way: str) -> float:
        return fmean(one.accuracy(way) for one in self.sets)

    def standard_error(self, way: str) -> float:
        """Of the mean over the sets, by the binomial law of each: how far it would move with other pairs."""
        variances = [one.accuracy(way) * (1 - one.accuracy(way)) / one.pairs for one in self.sets]
        return math.sqrt(math.fsum(variances)) / len(self.sets)

    def of_terms(self, way: str) -> dict[str, float]:
        """The mean over the sets of each linguistics term."""
        terms = sorted({one.term for one in self.sets if one.term})
        return {term: fmean(one.accuracy(way) for one in self.sets if one.term == term) for term in terms}


def ways_of(model: InferenceModel) -> list[str]:
    """The ways of scoring a sentence that the model has the heads for."""
    heads = {LIKELIHOOD: model.generator, DETECTION: model.discriminator}
    return [way for way, head in heads.items() if head is not None]


def score_pairs(model: InferenceModel, path: Path, max_pairs: int | None = None) -> PairScores:
    """The share of pairs whose good sentence scores higher, by each head the model has; a tie is not correct.

    likelihood is the pseudo-log-likelihood, each token masked in turn. detection is the sum over the tokens of
    log(1 - P(replaced)). path is a file of BLiMP's form or a folder of them; of each set the first `max_pairs` pairs
    are taken, or all. `say` is told of each set. Raises UsageError where the model has neither head or there are no
    such files, DataError for what they hold.
    """
    ways = ways_of(model)
    if not ways:
        raise UsageError(
            "pairs are scored by a masked-token or a detection head, and this model has neither; load a pretrained one"
        )
    if max_pairs is not None and max_pairs < 1:
        raise UsageError(f"max_pairs={max_pairs} must be at least 1")
    scored: dict[str, SetScore] = {}
    for file in pair_files(path):
        for found in read_pairs(file):
            if found.name in scored:
                raise DataError(f"{file}: there is a set {found.name!r} in another file too; name each set once")
            chosen = found._replace(pairs=found.pairs[:max_pairs])
            score = scored[found.name] = _score_set(model, chosen, ways)
            LOG.info(f"{score.name}: " + ", ".join(f"{way} {100 * score.accuracy(way):.1f}" for way in ways))
    return PairScores(list(scored.values()))


# Reading.


def pair_files(path: Path) -> list[Path]:
    """The file, or the .jsonl files in the folder, by name. Raises UsageError where there is none."""
    if not is_there(path, "pairs"):
        raise UsageError(f"--pairs {path}: no such file or folder; check the path")
    if not path.is_dir():
        if path.suffix != _SUFFIX:
            raise UsageError(f"--pairs {path}: pairs are read from {_SUFFIX} files; unpack or convert it")
        return [path]
    files = sorted(file for file in path.glob(f"*{_SUFFIX}") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise UsageError(f"--pairs {path}: the folder holds no {_SUFFIX} file; name the one that does")
    return files


def read_pairs(file: Path) -> list[PairSet]:
    """The sets of a file, named by their UID, or by the file where a line has none.

    Raises DataError naming the line that holds no pair, or that counts its set to another term than the lines before.
    """
    table = open_table(file)
    sets: dict[str, PairSet] = {}
    for row in table.rows([table.find((column,)) for column in _COLUMNS]):
        good, bad, name, term = (
            as_text(cell, row.place, column).strip() for cell, column in zip(row.cells, _COLUMNS, strict=True)
        )
        for text, column in zip((good, bad), _SENTENCES, strict=True):
            if not text:
                raise DataError(f"{row.place}: no {column!r}; give each line a {' and a '.join(_SENTENCES)}")
        found = sets.setdefault(name or file.stem, PairSet(name or file.stem, term, []))
        if term != found.term:
            raise DataError(f"{row.place}: set {found.name!r} is of {found.term!r} and of {term!r}; give it one term")
        found.pairs.append(Pair(good, bad, row.place))
    return list(sets.values())


# Scoring.


def _score_set(model: InferenceModel, found: PairSet, ways: Sequence[str]) -> SetScore:
    texts = [text for pair in found.pairs for text in (pair.good, pair.bad)]
    seen = [tuple(encoding.ids) for encoding in encode_all(model.tokenizer, texts)]
    longest = min(part.config.max_position_embeddings for part in (model.generator, model.discriminator) if part)
    for index, (text, ids) in enumerate(zip(texts, seen, strict=True)):
        try:
            check_length(text, len(ids), longest)
        except DataError as error:
            raise DataError(f"{found.pairs[index // 2].place}: {error}") from None
    distinct = dict(zip(seen, texts, strict=True))  # so that sentences of the same tokens tie, to the last bit
    outcomes = {}
    for way in ways:
        scores = _SCORES[way](model, list(distinct.values()))
        if not all(map(math.isfinite, scores)):
            raise CheckpointError(
                f"{found.name}: the model's scores are not finite; its training diverged: take another"
            )
        by_ids = dict(zip(distinct, scores, strict=True))
        outcomes[way] = compare([by_ids[ids] for ids in seen[::2]], [by_ids[ids] for ids in seen[1::2]])
    return SetScore(found.name, found.term, len(found.pairs), outcomes)


def compare(good: Sequence[float], bad: Sequence[float]) -> Outcome:
    """How many of the good sentences score higher than the bad one beside them, and how many the same."""
    scores = list(zip(good, bad, strict=True))
    return Outcome(sum(one > other for one, other in scores), sum(one == other for one, other in scores))


def _likelihoods(model: InferenceModel, texts: list[str]) -> list[float]:
    return model.pseudo_log_likelihood(texts)


def originality(model: InferenceModel, texts: list[str]) -> list[float]:
    """Of each text the sum over its tokens of log(1 - P(replaced)), in nats. Raises as the model's own calls do."""
    discriminator = model.discriminator
    assert discriminator is not None
    rows = read_rows(model.tokenizer, texts, discriminator.config, texts)
    found: dict[int, float] = {}
    for chosen in batches([len(row.ids) for row in rows], model.batch_tokens):
        padded = pad([rows[index] for index in chosen], model.tokenizer.pad_token_id, model.device)
        is_text = torch.zeros(padded.input_ids.shape, dtype=torch.bool)  # [B, L]
        for place, index in enumerate(chosen):
            is_text[place, rows[index].text_places] = True
        found |= zip(chosen, _log_originality(discriminator, padded, is_text).tolist(), strict=True)
    return [found[index] for index in range(len(rows))]


@torch.inference_mode()
def _log_originality(discriminator: Discriminator, rows: PaddedRows, is_text: Tensor) -> Tensor:
    """Of each row the sum over its text of log(1 - P(replaced)): float64 [B]. is_text bool [B, L]."""
    logits = discriminator(*rows).float()  # [B, L]
    nats = F.logsigmoid(-logits).double()  # log(1 - p) would be log 0 where p rounds to 1
    return nats.masked_fill(~is_text.to(nats.device), 0).sum(-1)


_SCORES = {LIKELIHOOD: _likelihoods, DETECTION: originality}
