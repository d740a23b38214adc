"""Scores of a pretrained model on text and minimal pairs. B batch, L length, M masked, D hidden."""

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from electra_albert.contracts import LOG, Batch, CheckpointError, DataError, SpecialIds, UsageError
from electra_albert.corpus import sources
from electra_albert.corpus.examples import PackedExamples, eval_batches
from electra_albert.corpus.rows import MIN_LENGTH, Split, TokenStream, build_table
from electra_albert.data_files import finding, tables
from electra_albert.inference import engine
from electra_albert.inference.model import InferenceModel
from electra_albert.inference.rewrite import masked_logits
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import maskable
from electra_albert.tasks.read_rules import as_text
from electra_albert.tokenization import text_encoder
from electra_albert.tokenization.tokenizer import special_ids

# Acceptable and unacceptable sentence of a minimal pair, and its file and line.
Pair = tuple[str, str, str]
Scores = dict[str, Any]  # by name
_Ids = tuple[int, ...]  # of the tokens of a sentence
# Linguistics term, sentences by their ids, and the ids of each pair.
PairSet = tuple[str, dict[_Ids, str], list[tuple[_Ids, _Ids]]]
ROUNDS = 7  # of masking every 7th token: 14.3 %, close to the usual mask rate
DEFAULT_LENGTH = 128
_EXAMPLE_SEED = 0  # the same examples for all models with the same tokenizer
_SENTENCES = ("sentence_good", "sentence_bad")
_NOT_FINITE = "{}: the model's scores are not finite, so its training diverged; take another model"


def score_text(
    model: InferenceModel, file: Path, max_seq_length: int | None = None, text_column: str = "text"
) -> Scores:
    """Score a text by masked language modelling: predict each token once, one in ROUNDS masked.

    `file` has a format of --corpus and is split into examples as in training, of at most
    DEFAULT_LENGTH tokens unless max_seq_length is given. Returns sums and means by name, in nats.
    `nats_per_word` and its exponential, `pseudo_perplexity`, compare models with different
    tokenizers; words are separated by white space. Salazar et al. 2020 mask one token at a time,
    which gives lower values. Unknown tokens are counted separately: pretraining does not predict
    them. Raises UsageError without a masked-token head or file, and for an unsupported length.
    """
    generator = model.masked_token_model("scoring a text")
    special = special_ids(model.tokenizer)
    longest = generator.config.max_position_embeddings
    if max_seq_length is None:
        max_seq_length = min(DEFAULT_LENGTH, longest)
    if not MIN_LENGTH <= max_seq_length <= longest:
        raise UsageError(
            f"max_seq_length={max_seq_length} must be from {MIN_LENGTH} to {longest}, "
            "the model's maximum"
        )
    require_file(file)
    stream, words = _tokenize(model.tokenizer, file, text_column)
    sums = torch.zeros(4, dtype=torch.float64)
    with TemporaryDirectory(prefix="score-") as scratch:
        split = Split(Path(scratch), len(model.tokenizer), [0], [stream], [0])
        table = build_table(split, max_seq_length, _EXAMPLE_SEED)
        examples = PackedExamples(split, table, max_seq_length, _EXAMPLE_SEED, special)
        batch_size = max(1, model.batch_tokens // max_seq_length)
        for batch in eval_batches(examples, table.count, batch_size):
            sums += predict_batch(generator, batch.to(model.device), special)
    if not sums.isfinite().all():
        raise CheckpointError(_NOT_FINITE.format(file))
    scores = _as_scores(sums.tolist(), stream.tokens, words, special.unk)
    return {"file": str(file), "max_seq_length": max_seq_length, "rows": table.count, **scores}


def _as_scores(sums: list[float], ids: np.ndarray, words: int, unknown_id: int | None) -> Scores:
    """Sums and means by name, from the result of predict_batch and the text's tokens and words."""
    nats, unknown_nats, correct, predicted = sums
    tokens = len(ids)
    assert predicted == tokens, "not every token was predicted once"
    unknown = int((ids == unknown_id).sum())  # 0 without an unknown token
    per_known_token = None
    if unknown < tokens:
        per_known_token = (nats - unknown_nats) / (tokens - unknown)
    per_word = nats / words
    perplexity = None
    if per_word < math.log(sys.float_info.max):  # else exp overflows
        perplexity = math.exp(per_word)
    share = np.unique(ids, return_counts=True)[1] / tokens  # of each token of the vocabulary
    return {
        "tokens": tokens,
        "words": words,
        "unknown_tokens": unknown,
        "nats": nats,
        "unknown_nats": unknown_nats,
        "correct": int(correct),
        # Nats per token, of this text's own frequencies.
        "unigram_entropy": float(-(share * np.log(share)).sum()),
        "nats_per_token": nats / tokens,
        "nats_per_known_token": per_known_token,
        "accuracy": correct / tokens,
        "nats_per_word": per_word,
        "pseudo_perplexity": perplexity,
    }


def require_file(file: Path) -> None:
    """Raise UsageError unless the file exists."""
    if not os.path.isfile(file):  # unlike Path.is_file, no error for a name that is too long
        raise UsageError(f"--text {file}: no such file; name the files of a folder one by one")


def _tokenize(tokenizer: Any, file: Path, text_column: str) -> tuple[TokenStream, int]:
    """Tokens of a text, with the ends of its sentences and documents, and its number of words."""
    try:
        files = finding.find_files(str(file), Counter())
    except DataError as error:
        message = str(error).replace("set --encoding cp1252, else ", "")
        raise DataError(message.removeprefix("--corpus ")) from None
    encoder = text_encoder.TextEncoder(tokenizer)
    sentences: list[text_encoder.Ids] = []  # those that have a token
    ends = []  # of documents, in sentences
    words = 0
    for unit in sources.plan_units(files, sources.ReadOptions(text_column)):
        for document in sources.read_unit(unit, Counter()):
            sentences += filter(len, encoder.encode(document.sentences))
            words += len(" ".join(document.sentences).split())
            if sentences and not document.continues:
                ends.append(len(sentences))
    if not sentences:
        raise DataError(f"{file} contains no text; give a file with sentences")
    sentence_ends = np.cumsum(list(map(len, sentences)))
    document_ends = sentence_ends[np.unique(ends) - 1]
    return TokenStream(np.concatenate(sentences), sentence_ends, document_ends), words


@torch.inference_mode()
def predict_batch(generator: Generator, batch: Batch, special: SpecialIds) -> Tensor:
    """Sums over the tokens of a batch, float64 [4] on the CPU.

    They are: nats, nats of unknown tokens, correct predictions, tokens. With 3 rounds instead of
    ROUNDS, the text "a b c d e" would be read as

        [MASK] b c [MASK] e
        a [MASK] c d [MASK]
        a b [MASK] d e
    """
    # A model may have only one segment.
    segments = batch.token_type_ids.clamp(max=generator.config.type_vocab_size - 1)
    # Unknown tokens are predicted.
    borders = special._replace(never_masked=(special.cls, special.sep, special.pad))
    is_text = maskable(batch.input_ids, batch.attention_mask, borders)
    round_of = (is_text.cumsum(-1) - 1) % ROUNDS  # [B, L]
    sums = torch.zeros(4, dtype=torch.float64)
    for number in range(ROUNDS):
        is_masked = is_text & (round_of == number)  # [B, L]
        masked_ids = batch.input_ids.masked_fill(is_masked, special.mask)
        masked = generator(masked_ids, batch.attention_mask, segments)[is_masked]  # [M, D]
        labels = batch.input_ids[is_masked]  # [M]
        for logits, targets in masked_logits(generator, masked, labels):
            nats = cross_entropy(logits, targets, reduction="none").cpu().double()  # [M]
            unknown_nats = nats[targets.cpu() == special.unk]
            correct = (logits.argmax(-1) == targets).sum().cpu()
            tokens = torch.tensor(len(nats))
            sums += torch.stack([nats.sum(), unknown_nats.sum(), correct, tokens])
    return sums


def score_pairs(
    model: InferenceModel, path: Path, max_pairs: int | None = None, *, is_logged: bool = True
) -> dict[str, Scores]:
    """Accuracy on minimal pairs: the share of pairs whose acceptable sentence scores higher.

    A tie counts as wrong. Returns `summarize` for each head of the model: "likelihood" scores by
    pseudo-log-likelihood, "detection" by the sum over tokens of log(1 - P(replaced)). `path` is a
    .jsonl file as in BLiMP or a folder of them; `max_pairs` limits the pairs of each set;
    is_logged: log a line for each set. Raises UsageError for a model without either head or a
    missing file, DataError as read_sets.
    """
    scorers = {}
    if model.generator or model.energies:
        scorers["likelihood"] = model.pseudo_log_likelihood
    if model.discriminator:
        scorers["detection"] = partial(original_log_probability, model)
    if not scorers:
        raise UsageError("pairs need a model with a masked-token or a detection head; take another")
    models = (model.generator, model.detector)
    longest = min(part.config.max_position_embeddings for part in models if part)
    results: dict[str, Scores] = {head: {} for head in scorers}
    sets = read_sets(path, model.tokenizer, longest, max_pairs)
    for name, (term, texts, pairs) in sets.items():
        shares = []
        for head, score in scorers.items():
            # Each token sequence is scored once: sentences with the same tokens tie exactly.
            values = score([*texts.values()])
            scores = dict(zip(texts, values, strict=True))
            if not all(map(math.isfinite, scores.values())):
                raise CheckpointError(_NOT_FINITE.format(name))
            differences = [scores[good] - scores[bad] for good, bad in pairs]
            correct = sum(difference > 0 for difference in differences)
            accuracy = correct / len(pairs)
            results[head][name] = {
                "term": term,
                "pairs": len(pairs),
                "accuracy": accuracy,
                "correct": correct,
                "ties": differences.count(0),
            }
            shares.append(f"{head} {accuracy:.1%}")
        if is_logged:
            LOG.info(f"{name}: {', '.join(shares)}")
    return {head: summarize(result) for head, result in results.items()}


def summarize(sets: Mapping[str, Scores]) -> Scores:
    """Mean accuracy over sets, its standard error and the mean for each linguistics term.

    The error is binomial in each set.
    """
    variances = []
    by_term: dict[str, list[float]] = {}
    for scores in sets.values():
        accuracy = scores["accuracy"]
        variances.append(accuracy * (1 - accuracy) / scores["pairs"])
        by_term.setdefault(scores["term"], []).append(accuracy)
    return {
        "mean": fmean(chain(*by_term.values())),
        "standard_error": math.sqrt(math.fsum(variances)) / len(sets),
        "pairs": sum(scores["pairs"] for scores in sets.values()),
        "terms": {term: fmean(by_term[term]) for term in sorted(by_term) if term},
        "sets": dict(sets),
    }


def read_sets(
    path: Path, tokenizer: Any, longest: int, max_pairs: int | None = None
) -> dict[str, PairSet]:
    """The sets of minimal pairs by name.

    Raises UsageError for a missing file, and DataError for damaged lines, a set that is in two
    files, and sentences of more than `longest` tokens.
    """
    sets = {}
    for file in pair_files(path):
        for name, (term, pairs) in read_pairs(file).items():
            if name in sets:
                raise DataError(
                    f"{file}: set {name!r} is also in another file; give each set another name"
                )
            sets[name] = term, *_tokenize_pairs(tokenizer, longest, pairs[:max_pairs])
    return sets


def pair_files(path: Path) -> list[Path]:
    """The file, or the .jsonl files in the folder by name. Raises UsageError if there is none."""
    files = sorted(path.glob("[!.]*.jsonl")) if os.path.isdir(path) else [path]
    if not files or files[0].suffix != ".jsonl" or not os.path.exists(files[0]):
        raise UsageError(
            f"{path}: no .jsonl file of minimal pairs found; name one, or a folder of them"
        )
    return files


def read_pairs(file: Path) -> dict[str, tuple[str, list[Pair]]]:
    """Linguistics term and pairs of each set, named by UID or else by the file.

    Raises DataError for a damaged line.
    """
    table = tables.open_table(file)
    columns = (*_SENTENCES, "UID", "linguistics_term")
    sets: dict[str, tuple[str, list[Pair]]] = {}
    names = [table.find((column,)) for column in columns]
    for row in table.rows(names):
        cells = zip(row.cells, columns, strict=True)
        texts = (as_text(cell, row.location, column).strip() for cell, column in cells)
        good, bad, name, term = texts
        if not good or not bad:
            missing = "sentence_bad" if good else "sentence_good"
            raise DataError(
                f"{row.location}: no {missing!r}; give each line {' and '.join(_SENTENCES)}"
            )
        first_term, pairs = sets.setdefault(name or file.stem, (term, []))
        if term != first_term:
            raise DataError(
                f"{row.location}: set {name!r} has terms {first_term!r} and {term!r}; give it one"
            )
        pairs.append((good, bad, row.location))
    return sets


def _tokenize_pairs(
    tokenizer: Any, longest: int, pairs: Sequence[Pair]
) -> tuple[dict[_Ids, str], list[tuple[_Ids, _Ids]]]:
    """Sentences by their token ids, and the ids of each pair. DataError if one is too long."""
    sentences = list(chain.from_iterable(pair[:2] for pair in pairs))
    encodings = tokenizer.backend_tokenizer.encode_batch(sentences)
    all_ids = []
    for index, encoding in enumerate(encodings):
        ids = tuple(encoding.ids)
        if len(ids) > longest:
            location = pairs[index // 2][2]
            text = engine.quote(sentences[index], 0)
            raise DataError(f"{location}: {text} {engine.too_long(len(ids), longest)}")
        all_ids.append(ids)
    texts = dict(zip(all_ids, sentences, strict=True))
    return texts, list(zip(all_ids[::2], all_ids[1::2], strict=True))


def original_log_probability(model: InferenceModel, texts: list[str]) -> list[float]:
    """Sum over the tokens of each text of log(1 - P(replaced)), in nats. Needs a discriminator."""
    sequences = model.encode(texts, model.encoder, truncate=False)
    sums = []
    for sequence, logits in zip(sequences, model.detect(sequences), strict=True):
        # From logits, since a probability close to 1 would be rounded to 1.
        log_probabilities = logsigmoid(-logits[sequence.text_positions])
        sums.append(float(log_probabilities.double().sum()))
    return sums
