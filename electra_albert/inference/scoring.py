"""Scores of a pretrained model on new text and on minimal pairs. Dimensions: B batch, L length, M masked, D hidden."""

import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from electra_albert.contracts import Batch, CheckpointError, DataError, SpecialIds, UsageError
from electra_albert.corpus.examples import SHORTEST_EXAMPLE, PackedExamples, build_table, eval_batches
from electra_albert.corpus.sources import ReadOptions, plan_units, read_unit
from electra_albert.corpus.store import TokenStream
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.corpus.tokenizer import special_ids
from electra_albert.data_files.finding import find_files
from electra_albert.data_files.tables import open_table
from electra_albert.inference import engine
from electra_albert.inference.model import InferenceModel
from electra_albert.inference.rewrite import MASKS_AT_ONCE, masked_logits
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import maskable
from electra_albert.tasks.read_rules import as_text

LOG = logging.getLogger(__name__)

Pair = tuple[str, str, str]  # a good and a bad sentence that differ in one thing, and their file and line
ROUNDS = 7  # one token in seven is masked at a time: 14.3 %, close to the rate of most pretraining
USUAL_LENGTH = 128
_ROW_SEED = 0  # sequences are cut alike for every model of the same tokenizer, whatever it was trained with
_SENTENCES = ("sentence_good", "sentence_bad")
_NOT_FINITE = "{}: the model's scores are not finite; its training diverged: take another"


def score_text(
    model: InferenceModel, file: Path, max_seq_length: int | None = None, text_column: str = "text"
) -> dict[str, Any]:
    """Sums and means of predicting every token of a text once, every ROUNDS-th of a sequence replaced by [MASK].

    `file` is one that --corpus takes; sequences are as in training, of `max_seq_length` tokens, by default USUAL_LENGTH
    or what the model reads. Nats a word and `pseudo_perplexity` compare models of different tokenizers; the latter is
    not that of Salazar et al. 2020, which masks one token at a time and is lower.
    Raises UsageError where the model has no masked-token head, the length does not suit it or there is no such file.
    """
    generator, special = model.masked_token_model("the score of a text"), special_ids(model.tokenizer)
    longest = generator.config.max_position_embeddings
    length = min(USUAL_LENGTH, longest) if max_seq_length is None else max_seq_length
    if not SHORTEST_EXAMPLE <= length <= longest:
        raise UsageError(f"max_seq_length={length} must be from {SHORTEST_EXAMPLE} to the model's {longest} positions")
    require_file(file)
    stream, words = _tokenize(model.tokenizer, file, text_column)
    sums, tokens = torch.zeros(4, dtype=torch.float64), len(stream.tokens)
    with TemporaryDirectory(prefix="score-") as scratch:
        rows = PackedExamples(stream, build_table(stream, length, _ROW_SEED, Path(scratch)), length, _ROW_SEED, special)
        row_count = rows.table.count
        for batch in eval_batches(rows, row_count, max(1, model.batch_tokens // length)):
            sums += predict_batch(generator, batch.to(model.device), special)
    nats, unknown_nats, correct, predicted = sums.tolist()
    if not math.isfinite(nats):
        raise CheckpointError(_NOT_FINITE.format(file))
    assert predicted == tokens, "a token was not predicted, or twice"
    share = np.unique(stream.tokens, return_counts=True)[1] / tokens
    unknown = 0 if special.unk is None else int((stream.tokens == special.unk).sum())
    # Words are between white space; no model here is trained to predict an unknown token.
    sizes = {"file": str(file), "max_seq_length": length, "rows": row_count, "tokens": tokens, "words": words}
    totals = {"unknown_tokens": unknown, "nats": nats, "unknown_nats": unknown_nats, "correct": int(correct)}
    return {
        **sizes,
        **totals,
        "unigram_entropy": float(-(share * np.log(share)).sum()),  # nats a token, by the frequencies in this very text
        "nats_per_token": nats / tokens,
        "nats_per_known_token": (nats - unknown_nats) / (tokens - unknown) if tokens > unknown else None,
        "accuracy": correct / tokens,
        "nats_per_word": nats / words,
        # exp(nats a word), unless that is beyond what a float holds
        "pseudo_perplexity": math.exp(nats / words) if nats / words < math.log(sys.float_info.max) else None,
    }


def require_file(file: Path) -> None:
    """UsageError unless there is such a file."""
    if not os.path.isfile(file):  # not a method of the path, which raises for a name that is too long
        raise UsageError(f"--text {file}: no such file; name the files of a folder one by one")


def _tokenize(tokenizer: Any, file: Path, text_column: str) -> tuple[TokenStream, int]:
    """The tokens of a text with the ends of its sentences and documents, and the number of its words."""
    try:
        files = find_files(str(file), Counter())
    except DataError as error:
        raise DataError(str(error).removeprefix("--corpus ")) from None
    encoder, total, words = TextEncoder(tokenizer), 0, 0
    tokens, sentence_lengths, document_ends = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], set[int]()
    for document in (
        each for unit in plan_units(files, ReadOptions(text_column)) for each in read_unit(unit, Counter())
    ):
        ids, lengths, _ = encoder.encode_counted(document.sentences)
        tokens.append(ids)
        total += len(ids)
        sentence_lengths.append(lengths[lengths > 0])
        words += sum(len(sentence.split()) for sentence in document.sentences)
        if not document.continues:
            document_ends.add(total)
    if not total:
        raise DataError(f"{file}: there is no text in it; give a file with sentences")
    ends = np.array(sorted(document_ends - {0}))
    return TokenStream(np.concatenate(tokens), np.concatenate(sentence_lengths).cumsum(), ends), words


@torch.inference_mode()
def predict_batch(generator: Generator, batch: Batch, special: SpecialIds) -> Tensor:
    """Nats of all tokens, those of unknown ones, right predictions, and tokens of a batch: float64 [4] on the CPU."""
    segments = batch.token_type_ids.clamp(max=generator.config.type_vocab_size - 1)  # a model may know but one
    borders = special._replace(never_masked=(special.cls, special.sep, special.pad))  # an unknown token is predicted
    is_text = maskable(batch.input_ids, batch.attention_mask, borders)
    round_of = (is_text.cumsum(-1) - 1) % ROUNDS  # [B, L]
    sums = torch.zeros(4, dtype=torch.float64)
    for number in range(ROUNDS):
        is_masked = is_text & (round_of == number)  # [B, L]
        masked_ids = batch.input_ids.masked_fill(is_masked, special.mask)
        masked = generator(masked_ids, batch.attention_mask, segments)[is_masked]  # [M, D]
        labels = batch.input_ids[is_masked].split(MASKS_AT_ONCE)
        for logits, answers in zip(masked_logits(generator, masked), labels, strict=True):
            nats = cross_entropy(logits, answers, reduction="none").cpu().double()  # [M]
            is_unknown, is_right = answers.cpu() == special.unk, (logits.argmax(-1) == answers).cpu()
            sums += torch.stack([nats.sum(), nats[is_unknown].sum(), is_right.sum(), torch.tensor(len(nats))])
    return sums


def score_pairs(model: InferenceModel, path: Path, max_pairs: int | None = None) -> dict[str, dict[str, Any]]:
    """The share of pairs whose good sentence scores higher, as `summarize` gives it, by each head; ties are wrong.

    likelihood is the pseudo-log-likelihood, detection the sum over the tokens of log(1 - P(replaced)). path is a file
    of BLiMP's form or a folder of them; of each set the first `max_pairs` pairs are taken, or all.
    Raises UsageError where the model has neither head or there are no such files.
    """
    ways = {"likelihood": model.pseudo_log_likelihood} if model.generator is not None else {}
    ways |= {"detection": partial(originality, model)} if model.discriminator is not None else {}
    if not ways:
        raise UsageError("pairs need a masked-token or a detection head, and this model has neither; take another")
    found: dict[str, dict[str, Any]] = {way: {} for way in ways}
    for file in pair_files(path):
        for name, (term, all_pairs) in read_pairs(file).items():
            if any(name in sets for sets in found.values()):
                raise DataError(f"{file}: there is a set {name!r} in another file too; name each set once")
            pairs = all_pairs[:max_pairs]
            seen = _tokenize_pairs(model, pairs)
            # Scored once each, so that sentences of the same tokens tie, to the last bit.
            distinct = dict(zip(seen, (text for pair in pairs for text in pair[:2]), strict=True))
            for way, score in ways.items():
                scores = dict(zip(distinct, score([*distinct.values()]), strict=True))
                if not all(map(math.isfinite, scores.values())):
                    raise CheckpointError(_NOT_FINITE.format(name))
                differences = [scores[good] - scores[bad] for good, bad in zip(seen[::2], seen[1::2], strict=True)]
                correct, ties = sum(value > 0 for value in differences), differences.count(0)
                counts = {"pairs": len(pairs), "accuracy": correct / len(pairs), "correct": correct, "ties": ties}
                found[way][name] = {"term": term, **counts}
            shares = (f"{way} {sets[name]['accuracy']:.1%}" for way, sets in found.items())
            LOG.info(f"{name}: {', '.join(shares)}")
    return {way: summarize(sets) for way, sets in found.items()}


def summarize(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over all sets, its standard error by their binomial laws, and the mean over those of each term."""
    variances = [one["accuracy"] * (1 - one["accuracy"]) / one["pairs"] for one in sets.values()]
    terms = sorted({one["term"] for one in sets.values()} - {""})
    return {
        "mean": fmean(one["accuracy"] for one in sets.values()),
        "standard_error": math.sqrt(math.fsum(variances)) / len(sets),
        "pairs": sum(one["pairs"] for one in sets.values()),
        "terms": {term: fmean(one["accuracy"] for one in sets.values() if one["term"] == term) for term in terms},
        "sets": dict(sets),
    }


def pair_files(path: Path) -> list[Path]:
    """The file, or the .jsonl files in the folder, by name. Raises UsageError where there is none."""
    files = sorted(path.glob("[!.]*.jsonl")) if os.path.isdir(path) else [path]
    if not files or files[0].suffix != ".jsonl" or not os.path.exists(files[0]):
        raise UsageError(f"--pairs {path}: there is no .jsonl file; name one, or a folder of them")
    return files


def read_pairs(file: Path) -> dict[str, tuple[str, list[Pair]]]:
    """The linguistics term and the pairs of each set, by UID or else the file's name; DataError for a damaged line."""
    table, columns = open_table(file), (*_SENTENCES, "UID", "linguistics_term")
    sets: dict[str, tuple[str, list[Pair]]] = {}
    for row in table.rows([table.find((column,)) for column in columns]):
        cells = zip(row.cells, columns, strict=True)
        good, bad, name, term = (as_text(cell, row.location, column).strip() for cell, column in cells)
        if not (good and bad):
            raise DataError(f"{row.location}: no {_SENTENCES[bool(good)]!r}; give each line {' and '.join(_SENTENCES)}")
        first_term, pairs = sets.setdefault(name or file.stem, (term, []))
        if term != first_term:
            raise DataError(f"{row.location}: set {name!r} is of {first_term!r} and of {term!r}; give it one term")
        pairs.append((good, bad, row.location))
    return sets


def _tokenize_pairs(model: InferenceModel, pairs: Sequence[Pair]) -> list[tuple[int, ...]]:
    """The token ids of each sentence, the good one of a pair first; DataError for one that is too long."""
    longest = min(part.config.max_position_embeddings for part in (model.generator, model.discriminator) if part)
    texts = [(text, place) for good, bad, place in pairs for text in (good, bad)]
    seen = [tuple(encoding.ids) for encoding in engine.encode_all(model.tokenizer, [text for text, _ in texts])]
    for ids, (text, place) in zip(seen, texts, strict=True):
        if len(ids) > longest:
            raise DataError(f"{place}: {engine.quote(text, 0)} {engine.too_long(len(ids), longest)}")
    return seen


def originality(model: InferenceModel, texts: list[str]) -> list[float]:
    """Of each text the sum over its tokens of log(1 - P(replaced)), in nats; of a model with a discriminator."""
    sequences = model.encode(texts, model.encoder, truncate=False)
    found = zip(sequences, model.detect(sequences), strict=True)
    # Not by the probability, which rounds to 1.
    return [float(logsigmoid(-logits[sequence.text_positions]).double().sum()) for sequence, logits in found]
