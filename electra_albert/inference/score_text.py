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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.contracts import Batch, CheckpointError, DataError, UsageError
from electra_albert.corpus.batches import eval_batches
from electra_albert.corpus.examples import SHORTEST_ROW, Rows, build_table
from electra_albert.corpus.parts import PartPlan, finished_parts, token_dtype, write_parts
from electra_albert.corpus.sources import Reading, Unit, find_files, plan_units, read_unit
from electra_albert.corpus.store import TokenStream
from electra_albert.corpus.tokenizer import fingerprint, special_ids
from electra_albert.corpus.word_encoder import encoder_settings
from electra_albert.data_files.finding import is_there
from electra_albert.objectives.evaluation import Unigram
from electra_albert.objectives.masking import SpecialIds, maskable

if TYPE_CHECKING:
    from electra_albert.inference.model import InferenceModel
    from electra_albert.model.electra import Generator

ROUNDS = 7  # one token in seven is masked at a time: 14.3 %, close to the rate of most pretraining
USUAL_LENGTH = 128
_ROW_SEED = 0  # rows are cut alike for every model of the same tokenizer, whatever it was trained with
_MASKS_AT_ONCE = 1024  # bounds the memory that scores of the whole vocabulary take


class Sums(NamedTuple):
    """What some predictions cost, and how many were right."""

    nats: float
    unknown_nats: float  # of these, where the unknown token was to be predicted
    correct: int  # top guess right
    tokens: int

    def plus(self, other: Sums) -> Sums:
        return Sums(
            self.nats + other.nats,
            self.unknown_nats + other.unknown_nats,
            self.correct + other.correct,
            self.tokens + other.tokens,
        )


class TextScore(NamedTuple):
    """The sums over a text, and the means that follow from them."""

    file: Path
    max_seq_length: int
    rows: int
    tokens: int  # each of which was predicted once, unknown ones included
    words: int  # between white space
    unknown_tokens: int
    nats: float
    unknown_nats: float  # of these, where the unknown token was to be predicted, which no model here is trained to do
    correct: int  # top guess right
    unigram_entropy: float  # nats a token, by how often each token stands in this very text

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def nats_per_known_token(self) -> float | None:
        """Without the unknown tokens; None where there is no other."""
        known = self.tokens - self.unknown_tokens
        return (self.nats - self.unknown_nats) / known if known else None

    @property
    def accuracy(self) -> float:
        return self.correct / self.tokens

    @property
    def nats_per_word(self) -> float:
        return self.nats / self.words

    @property
    def pseudo_perplexity(self) -> float | None:
        """exp(nats a word); None where that is beyond what a float holds."""
        return math.exp(self.nats_per_word) if self.nats_per_word < math.log(sys.float_info.max) else None


class _Laid(NamedTuple):
    """A text as rows, and what was counted while it was read."""

    rows: Rows
    words: int
    unknown_tokens: int


def score_text(
    model: InferenceModel, file: Path, max_seq_length: int | None = None, text_column: str = "text"
) -> TextScore:
    """Predict every token of a text once, one in ROUNDS of a row at a time, all of these shown as [MASK].

    `file` is one that --corpus takes. Its rows are as in training ([CLS] A [SEP] B [SEP], none swapped), of
    `max_seq_length` tokens, by default USUAL_LENGTH or what the model reads; a model of one segment gets one. Nothing
    is drawn for the masks, and no two of them are neighbours. Words are those of the text whatever the tokenizer, so
    nats a word and `pseudo_perplexity` compare models of different tokenizers. It is not the pseudo-perplexity of
    Salazar et al. 2020, which masks one token at a time and is lower; nor a perplexity, as both sides are seen.

    The unknown token is predicted like any other, though pretraining here never masks it: what that costs is told
    apart, in `unknown_nats`.

    Raises UsageError where the model has no masked-token head, the length does not suit it or there is no such file,
    DataError for what the file holds.
    """
    if model.generator is None:
        raise UsageError("a text is scored by a masked-token head, and this model has none; load a run or a generator")
    length = row_length(model, max_seq_length)
    require_file(file)
    with TemporaryDirectory(prefix="score-") as scratch:
        laid = _lay_out(model, file, Path(scratch), length, text_column)
        found = _predict_all(model, model.generator, laid.rows)
        if not math.isfinite(found.nats):
            raise CheckpointError(
                f"{file}: the model's scores are not finite numbers; its training diverged: take another"
            )
        tokens = laid.rows.stream.tokens
        counts = np.bincount(tokens, minlength=len(model.tokenizer))
        return TextScore(
            file=file,
            max_seq_length=length,
            rows=laid.rows.table.count,
            tokens=len(tokens),
            words=laid.words,
            unknown_tokens=laid.unknown_tokens,
            nats=found.nats,
            unknown_nats=found.unknown_nats,
            correct=found.correct,
            unigram_entropy=Unigram.from_counts(counts, ()).entropy,
        )


def row_length(model: InferenceModel, wanted: int | None) -> int:
    """Tokens of a row: as wanted, or the usual; UsageError where the model does not read so many, or no row fits."""
    longest = (model.generator or model.encoder).config.max_position_embeddings
    length = min(USUAL_LENGTH, longest) if wanted is None else wanted
    if not SHORTEST_ROW <= length <= longest:
        raise UsageError(f"max_seq_length={length} must be from {SHORTEST_ROW} to the model's {longest} positions")
    return length


def require_file(file: Path) -> None:
    """UsageError unless there is such a file."""
    if not is_there(file, "text"):
        raise UsageError(f"--text {file}: no such file; check the path")
    if not file.is_file():
        raise UsageError(f"--text {file}: no file; name the files of a folder one by one")


# The rows.


def _lay_out(model: InferenceModel, file: Path, scratch: Path, length: int, text_column: str) -> _Laid:
    """The text's rows, memory-mapped from files in `scratch`."""
    tokenizer, dtype = model.tokenizer, token_dtype(len(model.tokenizer))
    try:
        files = find_files(str(file), Counter())
    except DataError as error:
        raise DataError(str(error).removeprefix("--corpus ")) from None
    units = plan_units(files, Reading(text_column), unit_bytes=sys.maxsize)  # one, so that one part is the text
    plan = PartPlan(units, encoder_settings(tokenizer), scratch, fingerprint(tokenizer), dtype)
    write_parts(plan, range(len(units)), 1)
    parts = finished_parts(plan)
    if not parts or not parts[0].statistics["written"]["tokens"]:
        raise DataError(f"{file}: there is no text in it; give a file with sentences")
    (part,) = parts
    stream = TokenStream(
        np.memmap(part.path("tokens"), dtype, "r"),
        np.memmap(part.path("sentence_ends"), "<i8", "r"),
        np.memmap(part.path("document_ends"), "<i8", "r"),
    )
    rows = Rows(stream, build_table(stream, length, _ROW_SEED, scratch), length, _ROW_SEED, special_ids(tokenizer))
    return _Laid(rows, _count_words(units), part.statistics["written"]["unknown_tokens"])


def _count_words(units: list[Unit]) -> int:
    documents = (document for unit in units for document in read_unit(unit, Counter()))
    return sum(len(sentence.split()) for document in documents for sentence in document.sentences)


# The predictions.


def mask_rounds(is_text: Tensor) -> Iterator[Tensor]:
    """Which tokens are masked in each round, bool [B, L]: every ROUNDS-th of a row's text. is_text bool [B, L]."""
    nth = is_text.cumsum(-1) - 1  # [B, L]
    for number in range(ROUNDS):
        yield is_text & (nth % ROUNDS == number)


def _predict_all(model: InferenceModel, generator: Generator, rows: Rows) -> Sums:
    special = rows.special
    borders = SpecialIds(special.mask, (special.cls, special.sep, special.pad))  # an unknown token is predicted
    size = max(1, model.batch_tokens // rows.max_seq_length)
    found = Sums(0.0, 0.0, 0, 0)
    for batch in eval_batches(rows, rows.table.count, size):
        found = found.plus(predict_batch(generator, batch.to(model.device), borders, special.unk))
    assert found.tokens == len(rows.stream.tokens), "a token was not predicted, or twice"
    return found


@torch.inference_mode()
def predict_batch(generator: Generator, batch: Batch, special: SpecialIds, unknown: int | None) -> Sums:
    """Predict all tokens of some rows but those of `special.never_masked`; `unknown` is the id of the unknown token."""
    segments = batch.token_type_ids.clamp(max=generator.config.type_vocab_size - 1)
    device = batch.input_ids.device
    nats, unknown_nats = torch.zeros(2, dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    is_text = maskable(batch.input_ids, batch.attention_mask, special)
    for is_masked in mask_rounds(is_text):
        shown = batch.input_ids.masked_fill(is_masked, special.mask)
        masked = generator(shown, batch.attention_mask, segments)[is_masked]  # [M, D]
        labels = batch.input_ids[is_masked]  # [M]
        for states, answers in zip(masked.split(_MASKS_AT_ONCE), labels.split(_MASKS_AT_ONCE), strict=True):
            logits = generator.logits(states).float()  # [M, V]
            cost = F.cross_entropy(logits, answers, reduction="none").double()  # [M]
            nats = nats + cost.sum()
            unknown_nats = unknown_nats + cost.masked_fill(answers != (-1 if unknown is None else unknown), 0).sum()
            correct = correct + (logits.argmax(-1) == answers).sum()
    return Sums(float(nats), float(unknown_nats), int(correct), int(is_text.sum()))
