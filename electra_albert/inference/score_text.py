"""How well a model predicts the masked tokens of a text it has not seen, every token of it once.

Dimensions: B batch, L length, M masked, V vocab, D hidden.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from electra_albert.contracts import Batch, CheckpointError, DataError, UsageError
from electra_albert.corpus.batches import eval_batches
from electra_albert.corpus.examples import SHORTEST_ROW, Rows, build_table
from electra_albert.corpus.sources import Reading, find_files, plan_units, read_unit
from electra_albert.corpus.store import TokenStream
from electra_albert.corpus.tokenizer import special_ids
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from electra_albert.data_files.finding import is_there
from electra_albert.inference.model import InferenceModel
from electra_albert.inference.rewrite import MASKS_AT_ONCE, masked_logits
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import SpecialIds, maskable

ROUNDS = 7  # one token in seven is masked at a time: 14.3 %, close to the rate of most pretraining
USUAL_LENGTH = 128
_ROW_SEED = 0  # sequences are cut alike for every model of the same tokenizer, whatever it was trained with


class TextScore(NamedTuple):
    """The sums over a text, and the means that follow from them."""

    file: str
    max_seq_length: int
    rows: int
    tokens: int  # each of which was predicted once, unknown ones included
    words: int  # between white space
    unknown_tokens: int
    nats: float
    unknown_nats: float  # of these, where the unknown token was to be predicted, which no model here is trained to do
    correct: int  # the likeliest token is right
    unigram_entropy: float  # nats a token, by the frequencies of the tokens in this very text
    nats_per_token: float
    nats_per_known_token: float | None  # None where all tokens are unknown
    accuracy: float
    nats_per_word: float
    pseudo_perplexity: float | None  # exp(nats a word); None where that is beyond what a float holds


def score_text(
    model: InferenceModel, file: Path, max_seq_length: int | None = None, text_column: str = "text"
) -> TextScore:
    """Predict every token of a text once, every ROUNDS-th of a sequence at a time, all of these replaced by [MASK].

    `file` is one that --corpus takes. Its sequences are as in training ([CLS] A [SEP] B [SEP], none swapped), of
    `max_seq_length` tokens, by default USUAL_LENGTH or what the model reads. Words are those of the text whatever the
    tokenizer, so that nats a word and `pseudo_perplexity` compare models of different tokenizers. It is not the
    pseudo-perplexity of Salazar et al. 2020, which masks one token at a time and is lower.

    Raises UsageError where the model has no masked-token head, the length does not suit it or there is no such file,
    DataError for what the file holds.
    """
    generator, special = model.masked_token_model("score_text"), special_ids(model.tokenizer)
    longest = generator.config.max_position_embeddings
    length = min(USUAL_LENGTH, longest) if max_seq_length is None else max_seq_length
    if not SHORTEST_ROW <= length <= longest:
        raise UsageError(f"max_seq_length={length} must be from {SHORTEST_ROW} to the model's {longest} positions")
    require_file(file)
    stream, words = _tokenize(model.tokenizer, file, text_column)
    with TemporaryDirectory(prefix="score-") as scratch:
        rows = Rows(stream, build_table(stream, length, _ROW_SEED, Path(scratch)), length, _ROW_SEED, special)
        borders = SpecialIds(special.mask, (special.cls, special.sep, special.pad))  # an unknown token is predicted
        sums = torch.zeros(4, dtype=torch.float64)
        for batch in eval_batches(rows, rows.table.count, max(1, model.batch_tokens // length)):
            sums += predict_batch(generator, batch.to(model.device), borders, special.unk)
        row_count = rows.table.count
    nats, unknown_nats, correct, predicted = sums.tolist()
    if not math.isfinite(nats):
        raise CheckpointError(f"{file}: the model's scores are not finite; its training diverged: take another")
    assert predicted == len(stream.tokens), "a token was not predicted, or twice"
    tokens, share = len(stream.tokens), np.unique(stream.tokens, return_counts=True)[1] / len(stream.tokens)
    unknown = 0 if special.unk is None else int((stream.tokens == special.unk).sum())
    return TextScore(
        *(str(file), length, row_count, tokens, words, unknown, nats, unknown_nats, int(correct)),
        unigram_entropy=float(-(share * np.log(share)).sum()),
        nats_per_token=nats / tokens,
        nats_per_known_token=(nats - unknown_nats) / (tokens - unknown) if tokens > unknown else None,
        accuracy=correct / tokens,
        nats_per_word=nats / words,
        pseudo_perplexity=math.exp(nats / words) if nats / words < math.log(sys.float_info.max) else None,
    )


def require_file(file: Path) -> None:
    """UsageError unless there is such a file."""
    if not is_there(file, "text") or not file.is_file():
        raise UsageError(f"--text {file}: no such file; name the files of a folder one by one")


def _tokenize(tokenizer: Any, file: Path, text_column: str) -> tuple[TokenStream, int]:
    """The tokens of a text with the ends of its sentences and documents, and the number of its words."""
    try:
        files = find_files(str(file), Counter())
    except DataError as error:
        raise DataError(str(error).removeprefix("--corpus ")) from None
    encoder, total, words = TextEncoder(encoder_settings(tokenizer)), 0, 0
    tokens, sentence_ends, document_ends = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], [0]
    for unit in plan_units(files, Reading(text_column)):
        for document in read_unit(unit, Counter()):
            ids, lengths = encoder.encode(document.sentences)
            tokens.append(ids)
            sentence_ends.append(total + lengths.cumsum()[lengths > 0])
            total += len(ids)
            words += sum(len(sentence.split()) for sentence in document.sentences)
            if not document.continues and total > document_ends[-1]:
                document_ends.append(total)
    if not total:
        raise DataError(f"{file}: there is no text in it; give a file with sentences")
    return TokenStream(np.concatenate(tokens), np.concatenate(sentence_ends), np.array(document_ends[1:])), words


def mask_rounds(is_text: Tensor) -> Iterator[Tensor]:
    """Which tokens are masked in each round, bool [B, L]: every ROUNDS-th of a sequence's text. is_text bool [B, L]."""
    nth = is_text.cumsum(-1) - 1  # [B, L]
    for number in range(ROUNDS):
        yield is_text & (nth % ROUNDS == number)


@torch.inference_mode()
def predict_batch(generator: Generator, batch: Batch, special: SpecialIds, unknown: int | None) -> Tensor:
    """Predict all tokens of a batch but those of `special.never_masked`; `unknown` is the id of the unknown token.

    Returns float64 [4] on the CPU: nats, those of unknown tokens, right predictions, tokens.
    """
    segments = batch.token_type_ids.clamp(max=generator.config.type_vocab_size - 1)  # a model may know but one
    is_text = maskable(batch.input_ids, batch.attention_mask, special)
    sums = torch.zeros(4, dtype=torch.float64)
    for is_masked in mask_rounds(is_text):
        masked_ids = batch.input_ids.masked_fill(is_masked, special.mask)
        masked = generator(masked_ids, batch.attention_mask, segments)[is_masked]  # [M, D]
        labels = batch.input_ids[is_masked].split(MASKS_AT_ONCE)
        for logits, answers in zip(masked_logits(generator, masked), labels, strict=True):
            nats = cross_entropy(logits, answers, reduction="none").cpu().double()  # [M]
            is_unknown, is_right = answers.cpu() == unknown, (logits.argmax(-1) == answers).cpu()
            sums += torch.stack([nats.sum(), nats[is_unknown].sum(), is_right.sum(), torch.tensor(len(nats))])
    return sums
