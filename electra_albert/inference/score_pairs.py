"""How often a model prefers the good sentence of a minimal pair to the bad one, as BLiMP asks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from torch.nn.functional import logsigmoid

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.data_files.finding import is_there
from electra_albert.data_files.tables import open_table
from electra_albert.inference import engine
from electra_albert.inference.model import InferenceModel
from electra_albert.tasks.read_rules import as_text

LOG = logging.getLogger(__name__)

_SUFFIX = ".jsonl"
_SENTENCES = ("sentence_good", "sentence_bad")


class Pair(NamedTuple):
    """Two sentences that differ in one thing."""

    good: str
    bad: str
    place: str  # file and line


def score_pairs(model: InferenceModel, path: Path, max_pairs: int | None = None) -> dict[str, dict[str, Any]]:
    """The share of pairs whose good sentence scores higher, by each head the model has; a tie is not correct.

    likelihood is the pseudo-log-likelihood, detection the sum over the tokens of log(1 - P(replaced)). path is a file
    of BLiMP's form or a folder of them; of each set the first `max_pairs` pairs are taken, or all. Returns for each way
    of scoring what `summarize` does. Raises UsageError where the model has neither head or there are no such files.
    """
    heads = {"likelihood": model.generator, "detection": model.discriminator}
    found: dict[str, dict[str, Any]] = {way: {} for way, head in heads.items() if head is not None}
    if not found:
        raise UsageError("pairs need a masked-token or a detection head, and this model has neither; take another")
    for file in pair_files(path):
        for name, (term, all_pairs) in read_pairs(file).items():
            if any(name in sets for sets in found.values()):
                raise DataError(f"{file}: there is a set {name!r} in another file too; name each set once")
            pairs = all_pairs[:max_pairs]
            for way, (correct, ties) in _outcomes(model, name, pairs, list(found)).items():
                counts = {"pairs": len(pairs), "accuracy": correct / len(pairs), "correct": correct, "ties": ties}
                found[way][name] = {"term": term, **counts}
            shares = (f"{way} {sets[name]['accuracy']:.1%}" for way, sets in found.items())
            LOG.info(f"{name}: {', '.join(shares)}")
    return {way: summarize(sets) for way, sets in found.items()}


def summarize(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over the sets and over those of each linguistics term; a set counts the same whatever its size.

    The standard error is by the binomial law of each set: how far the mean would move with other pairs.
    """
    shares = {name: one["accuracy"] for name, one in sets.items()}
    variances = [shares[name] * (1 - shares[name]) / one["pairs"] for name, one in sets.items()]
    terms = sorted({one["term"] for one in sets.values() if one["term"]})
    return {
        "mean": fmean(shares.values()),
        "standard_error": math.sqrt(math.fsum(variances)) / len(sets),
        "pairs": sum(one["pairs"] for one in sets.values()),
        "terms": {term: fmean(shares[name] for name, one in sets.items() if one["term"] == term) for term in terms},
        "sets": dict(sets),
    }


def pair_files(path: Path) -> list[Path]:
    """The file, or the .jsonl files in the folder, by name. Raises UsageError where there is none."""
    files = [path] if is_there(path, "pairs") else []
    files = sorted(path.glob(f"[!.]*{_SUFFIX}")) if files and path.is_dir() else files
    if not files or files[0].suffix != _SUFFIX:
        raise UsageError(f"--pairs {path}: there is no {_SUFFIX} file; name one, or a folder of them")
    return files


def read_pairs(file: Path) -> dict[str, tuple[str, list[Pair]]]:
    """The linguistics term and the pairs of each set of a file, by its UID, or by the file where a line has none.

    Raises DataError naming the line that holds no pair, or that counts its set to another term than the lines before.
    """
    table, columns = open_table(file), (*_SENTENCES, "UID", "linguistics_term")
    sets: dict[str, tuple[str, list[Pair]]] = {}
    for row in table.rows([table.find((column,)) for column in columns]):
        cells = zip(row.cells, columns, strict=True)
        good, bad, name, term = (as_text(cell, row.place, column).strip() for cell, column in cells)
        if not (good and bad):
            raise DataError(f"{row.place}: no {_SENTENCES[bool(good)]!r}; give each line {' and '.join(_SENTENCES)}")
        first_term, pairs = sets.setdefault(name or file.stem, (term, []))
        if term != first_term:
            raise DataError(f"{row.place}: set {name!r} is of {first_term!r} and of {term!r}; give it one term")
        pairs.append(Pair(good, bad, row.place))
    return sets


def _outcomes(
    model: InferenceModel, name: str, pairs: Sequence[Pair], ways: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """How many of the good sentences score higher than the bad one in each way, and how many the same."""
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    seen = [tuple(encoding.ids) for encoding in engine.encode_all(model.tokenizer, texts)]
    longest = min(part.config.max_position_embeddings for part in (model.generator, model.discriminator) if part)
    for index, ids in enumerate(seen):
        if len(ids) > longest:
            text = f"{pairs[index // 2].place}: {engine.quote(texts[index], 0)}"
            raise DataError(f"{text} {engine.too_long(len(ids), longest)}")
    distinct = dict(zip(seen, texts, strict=True))  # so that sentences of the same tokens tie, to the last bit
    found = {}
    for way in ways:
        some = [*distinct.values()]
        scores = originality(model, some) if way == "detection" else model.pseudo_log_likelihood(some)
        if not all(map(math.isfinite, scores)):
            raise CheckpointError(f"{name}: the model's scores are not finite; its training diverged: take another")
        by_ids = dict(zip(distinct, scores, strict=True))
        differences = [by_ids[good] - by_ids[bad] for good, bad in zip(seen[::2], seen[1::2], strict=True)]
        found[way] = sum(value > 0 for value in differences), sum(value == 0 for value in differences)
    return found


def originality(model: InferenceModel, texts: list[str]) -> list[float]:
    """Of each text the sum over its tokens of log(1 - P(replaced)), in nats; of a model with a discriminator."""
    sequences = engine.encode(model.tokenizer, texts, model.encoder.config, texts)
    found = zip(sequences, model.detect(sequences), strict=True)
    # Not by the probability, which rounds to 1.
    return [float(logsigmoid(-logits[sequence.text_positions]).double().sum()) for sequence, logits in found]
