"""Scores of a pretrained model on text and on minimal pairs. Dimensions: B batch, L length, M masked, D hidden."""

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

from electra_albert.contracts import LOG, Batch, CheckpointError, DataError, SpecialIds, UsageError
from electra_albert.corpus import sources, text_encoder
from electra_albert.corpus.examples import PackedExamples, eval_batches
from electra_albert.corpus.rows import MIN_LENGTH, Split, TokenStream, build_table
from electra_albert.corpus.tokenizer import special_ids
from electra_albert.data_files import finding, tables
from electra_albert.inference import engine, rewrite
from electra_albert.inference.model import InferenceModel
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import maskable
from electra_albert.tasks.read_rules import as_text

Pair = tuple[str, str, str]  # acceptable and unacceptable sentence of a minimal pair, and its file and line
PairSet = tuple[str, list[Pair], list[tuple[int, ...]]]  # linguistics term, pairs, token ids of their sentences
ROUNDS = 7  # of masking every 7th token: 14.3 %, close to the usual mask rate
DEFAULT_LENGTH = 128
_EXAMPLE_SEED = 0  # the same examples for all models with the same tokenizer
_SENTENCES = ("sentence_good", "sentence_bad")
_NOT_FINITE = "{}: the model's scores are not finite, so its training diverged; take another model"


def score_text(
    model: InferenceModel, file: Path, max_seq_length: int | None = None, text_column: str = "text"
) -> dict[str, Any]:
    """Score a text by masked language modelling: predict every token once, with one in ROUNDS replaced by [MASK].

    `file` has a format of --corpus and is split into examples as in training, of at most DEFAULT_LENGTH tokens unless
    max_seq_length is given. Returns sums and means by name, in nats. `nats_per_word` and its exponential,
    `pseudo_perplexity`, compare models with different tokenizers; Salazar et al. 2020 mask one token at a time, which
    gives lower values. Raises UsageError without a masked-token head or file, and for an unsupported length.
    """
    generator, special = model.masked_token_model("scoring a text"), special_ids(model.tokenizer)
    longest = generator.config.max_position_embeddings
    length = min(DEFAULT_LENGTH, longest) if max_seq_length is None else max_seq_length
    if not MIN_LENGTH <= length <= longest:
        raise UsageError(f"max_seq_length={length} must be from {MIN_LENGTH} to {longest}, the model's maximum")
    require_file(file)
    stream, words = _tokenize(model.tokenizer, file, text_column)
    sums, tokens = torch.zeros(4, dtype=torch.float64), len(stream.tokens)
    with TemporaryDirectory(prefix="score-") as scratch:
        split = Split(Path(scratch), len(model.tokenizer), [0], [stream], [0])
        table = build_table(split, length, _EXAMPLE_SEED)
        examples, count = PackedExamples(split, table, length, _EXAMPLE_SEED, special), table.count
        for batch in eval_batches(examples, count, max(1, model.batch_tokens // length)):
            sums += predict_batch(generator, batch.to(model.device), special)
    nats, unknown_nats, correct, predicted = sums.tolist()
    if not math.isfinite(nats):
        raise CheckpointError(_NOT_FINITE.format(file))
    assert predicted == tokens, "not every token was predicted once"
    share = np.unique(stream.tokens, return_counts=True)[1] / tokens
    unknown = 0 if special.unk is None else int((stream.tokens == special.unk).sum())
    # Words are separated by white space. Unknown tokens are counted separately: pretraining does not predict them.
    found = {"file": str(file), "max_seq_length": length, "rows": count, "tokens": tokens, "words": words}
    found |= {"unknown_tokens": unknown, "nats": nats, "unknown_nats": unknown_nats, "correct": int(correct)}
    return {
        **found,
        "unigram_entropy": float(-(share * np.log(share)).sum()),  # nats per token, of this text's own frequencies
        "nats_per_token": nats / tokens,
        "nats_per_known_token": (nats - unknown_nats) / (tokens - unknown) if tokens > unknown else None,
        "accuracy": correct / tokens,
        "nats_per_word": nats / words,
        # None if exp overflows
        "pseudo_perplexity": math.exp(nats / words) if nats / words < math.log(sys.float_info.max) else None,
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
        raise DataError(str(error).removeprefix("--corpus ")) from None
    encoder, total, words = text_encoder.TextEncoder(tokenizer), 0, 0
    tokens, sentence_lengths, document_ends = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], set[int]()
    units = sources.plan_units(files, sources.ReadOptions(text_column))
    for document in (document for unit in units for document in sources.read_unit(unit, Counter())):
        ids, lengths, _ = encoder.encode_counted(document.sentences)
        tokens.append(ids)
        total += len(ids)
        sentence_lengths.append(lengths[lengths > 0])
        words += sum(len(sentence.split()) for sentence in document.sentences)
        if not document.continues:
            document_ends.add(total)
    if not total:
        raise DataError(f"{file} contains no text; give a file with sentences")
    ends = np.array(sorted(document_ends - {0}))
    return TokenStream(np.concatenate(tokens), np.concatenate(sentence_lengths).cumsum(), ends), words


@torch.inference_mode()
def predict_batch(generator: Generator, batch: Batch, special: SpecialIds) -> Tensor:
    """Sums over the tokens of a batch: nats, nats of unknown tokens, correct predictions, tokens; float64 [4], CPU."""
    segments = batch.token_type_ids.clamp(max=generator.config.type_vocab_size - 1)  # a model may have only one segment
    borders = special._replace(never_masked=(special.cls, special.sep, special.pad))  # unknown tokens are predicted
    is_text = maskable(batch.input_ids, batch.attention_mask, borders)
    round_of = (is_text.cumsum(-1) - 1) % ROUNDS  # [B, L]
    sums = torch.zeros(4, dtype=torch.float64)
    for number in range(ROUNDS):
        is_masked = is_text & (round_of == number)  # [B, L]
        masked_ids = batch.input_ids.masked_fill(is_masked, special.mask)
        masked = generator(masked_ids, batch.attention_mask, segments)[is_masked]  # [M, D]
        labels = torch.split(batch.input_ids[is_masked], rewrite.MASKS_AT_ONCE)
        for logits, targets in zip(rewrite.masked_logits(generator, masked), labels, strict=True):
            nats = cross_entropy(logits, targets, reduction="none").cpu().double()  # [M]
            is_unknown, is_correct = targets.cpu() == special.unk, (logits.argmax(-1) == targets).cpu()
            sums += torch.stack([nats.sum(), nats[is_unknown].sum(), is_correct.sum(), torch.tensor(len(nats))])
    return sums


def score_pairs(
    model: InferenceModel, path: Path, max_pairs: int | None = None, *, is_logged: bool = True
) -> dict[str, dict[str, Any]]:
    """Accuracy on minimal pairs, the share of pairs whose acceptable sentence scores higher; a tie counts as wrong.

    Returns `summarize` for each head of the model: "likelihood" scores by pseudo-log-likelihood, "detection" by the sum
    over tokens of log(1 - P(replaced)). `path` is a .jsonl file as in BLiMP or a folder of them; `max_pairs` limits the
    pairs of each set; is_logged: log a line for each set. Raises UsageError for a model without either head or a
    missing file, DataError as read_sets.
    """
    models = model.generator, model.discriminator, model.energies
    has_likelihood = model.generator is not None or model.energies is not None
    scorers = {"likelihood": model.pseudo_log_likelihood} if has_likelihood else {}
    scorers |= {"detection": partial(original_log_probability, model)} if model.discriminator is not None else {}
    if not scorers:
        raise UsageError("pairs need a masked-token or a detection head, and this model has neither; take another")
    found: dict[str, dict[str, Any]] = {head: {} for head in scorers}
    longest = min(part.config.max_position_embeddings for part in models if part)
    for name, (term, pairs, ids) in read_sets(path, model.tokenizer, longest, max_pairs).items():
        # Each token sequence is scored once, so that sentences with the same tokens tie exactly.
        distinct = dict(zip(ids, (text for pair in pairs for text in pair[:2]), strict=True))
        for head, score in scorers.items():
            scores = dict(zip(distinct, score([*distinct.values()]), strict=True))
            if not all(map(math.isfinite, scores.values())):
                raise CheckpointError(_NOT_FINITE.format(name))
            differences = [scores[good] - scores[bad] for good, bad in zip(ids[::2], ids[1::2], strict=True)]
            correct, ties = sum(value > 0 for value in differences), differences.count(0)
            counts = {"pairs": len(pairs), "accuracy": correct / len(pairs), "correct": correct, "ties": ties}
            found[head][name] = {"term": term, **counts}
        if is_logged:
            shares = (f"{head} {sets[name]['accuracy']:.1%}" for head, sets in found.items())
            LOG.info(f"{name}: {', '.join(shares)}")
    return {head: summarize(sets) for head, sets in found.items()}


def summarize(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean accuracy over sets, its standard error (binomial in each set), and the mean for each linguistics term."""
    variances = [one["accuracy"] * (1 - one["accuracy"]) / one["pairs"] for one in sets.values()]
    terms = sorted({one["term"] for one in sets.values()} - {""})
    return {
        "mean": fmean(one["accuracy"] for one in sets.values()),
        "standard_error": math.sqrt(math.fsum(variances)) / len(sets),
        "pairs": sum(one["pairs"] for one in sets.values()),
        "terms": {term: fmean(one["accuracy"] for one in sets.values() if one["term"] == term) for term in terms},
        "sets": dict(sets),
    }


def read_sets(path: Path, tokenizer: Any, longest: int, max_pairs: int | None = None) -> dict[str, PairSet]:
    """The sets of minimal pairs by name. Raises UsageError for a missing file, and DataError for damaged lines, a set
    that is in two files, and sentences of more than `longest` tokens.
    """
    found: dict[str, PairSet] = {}
    for file in pair_files(path):
        for name, (term, all_pairs) in read_pairs(file).items():
            if name in found:
                raise DataError(f"{file}: set {name!r} is also in another file; give each set another name")
            pairs = all_pairs[:max_pairs]
            found[name] = term, pairs, _tokenize_pairs(tokenizer, longest, pairs)
    return found


def pair_files(path: Path) -> list[Path]:
    """The file, or the .jsonl files in the folder in the order of their names. Raises UsageError if there is none."""
    files = sorted(path.glob("[!.]*.jsonl")) if os.path.isdir(path) else [path]
    if not files or files[0].suffix != ".jsonl" or not os.path.exists(files[0]):
        raise UsageError(f"{path}: no .jsonl file of minimal pairs found; name one, or a folder of them")
    return files


def read_pairs(file: Path) -> dict[str, tuple[str, list[Pair]]]:
    """Linguistics term and pairs of each set, named by UID or else by the file. Raises DataError for a damaged line."""
    table, columns = tables.open_table(file), (*_SENTENCES, "UID", "linguistics_term")
    sets: dict[str, tuple[str, list[Pair]]] = {}
    for row in table.rows([table.find((column,)) for column in columns]):
        cells = zip(row.cells, columns, strict=True)
        good, bad, name, term = (as_text(cell, row.location, column).strip() for cell, column in cells)
        if not (good and bad):
            raise DataError(f"{row.location}: no {_SENTENCES[bool(good)]!r}; give each line {' and '.join(_SENTENCES)}")
        first_term, pairs = sets.setdefault(name or file.stem, (term, []))
        if term != first_term:
            raise DataError(f"{row.location}: set {name!r} has terms {first_term!r} and {term!r}; give it one")
        pairs.append((good, bad, row.location))
    return sets


def _tokenize_pairs(tokenizer: Any, longest: int, pairs: Sequence[Pair]) -> list[tuple[int, ...]]:
    """Token ids of each sentence, the acceptable one of a pair first. Raises DataError for one that is too long."""
    texts = [(text, line) for good, bad, line in pairs for text in (good, bad)]
    found = [tuple(encoding.ids) for encoding in tokenizer.backend_tokenizer.encode_batch([text for text, _ in texts])]
    for ids, (text, line) in zip(found, texts, strict=True):
        if len(ids) > longest:
            raise DataError(f"{line}: {engine.quote(text, 0)} {engine.too_long(len(ids), longest)}")
    return found


def original_log_probability(model: InferenceModel, texts: list[str]) -> list[float]:
    """Sum over the tokens of each text of log(1 - P(replaced)), in nats. Needs a discriminator."""
    sequences = model.encode(texts, model.encoder, truncate=False)
    found = zip(sequences, model.detect(sequences), strict=True)
    # From logits, since a probability close to 1 would be rounded to 1.
    return [float(logsigmoid(-logits[sequence.text_positions]).double().sum()) for sequence, logits in found]
