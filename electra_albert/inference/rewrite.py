"""Mask some tokens of a text, let the generator rewrite them, and ask the discriminator about every token.

Dimensions: B batch, L length, M masked, V vocab, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.apps.demo.files import MASK
from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer import describe_pieces
from electra_albert.inference.fill_mask import check_length, has_mask, naming_line, shorten, with_own_mask
from electra_albert.inference.splice import Line, Rewritten, compose, spans_of
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.objectives.masking import SpecialIds, choose_targets, maskable, sample

BATCH_TOKENS = 4096  # padding included; what bounds memory is the masked ones' scores of the whole vocabulary
BLOCK_LINES, BLOCK_CHARACTERS = 512, 1 << 18  # read together, so that rows of similar length can be batched
LONGEST_PART = 1 << 16  # characters that are tokenised at once: a line may be of any length, memory may not


class Rewriter(NamedTuple):
    """The models, and how tokens are chosen and drawn."""

    generator: Generator
    discriminator: Discriminator | None
    tokenizer: Any
    mask_rate: float
    temperature: float
    seed: int

    @property
    def longest(self) -> int:
        """Tokens that both models can read, special ones included."""
        models = [model for model in (self.generator, self.discriminator) if model is not None]
        return min(model.config.max_position_embeddings for model in models)


class Part(NamedTuple):
    """A line, or some characters of a very long one."""

    number: int  # the line's
    text: str
    start: int = 0  # its first character's place in the line
    ending: str = ""  # what ends the line, and is not read
    is_last: bool = True  # of its line


class _Row(NamedTuple):
    """Tokens of one line that the models read at once."""

    line: int  # its place among the lines, or the parts of them
    first: int  # its first token's place in the line, or the part of it
    ids: list[int]  # without special tokens around them
    example_id: int  # keys the draws
    is_filled: bool


def rewrite(rewriter: Rewriter, lines: Sequence[tuple[int, str]], batch_tokens: int = BATCH_TOKENS) -> list[Rewritten]:
    """Rewrite numbered lines. The number keys the draws, so a line's outcome does not depend on the others.

    A line that holds a mask has it filled by the best guess; DataError where such a line is too long to be read at
    once. Other lines may be longer than the models read.
    """
    return _rewrite_parts(rewriter, [Part(number, text) for number, text in lines], batch_tokens)


def rewrite_stream(rewriter: Rewriter, lines: Iterable[str]) -> Iterator[tuple[str, Rewritten | None, bool]]:
    """Each line as it is to be written, its rewriting, None for a blank one, and True; in order.

    A very long line comes in parts, True with its last. Lines come and go with their endings. Memory is bounded but for
    the text of the longest line; DataError where that holds a mask.
    """
    for block in _blocks(rewriter, lines):
        done = iter(_rewrite_parts(rewriter, [part for part in block if not _is_blank(part)], BATCH_TOKENS))
        for part in block:
            result = None if _is_blank(part) else next(done)
            yield (part.text if result is None else result.sequence) + part.ending, result, part.is_last


def _is_blank(part: Part) -> bool:
    """Whether a whole line is blank; a blank part of a line with text is rewritten with the rest."""
    return not part.start and part.is_last and not part.text.strip()


def _blocks(rewriter: Rewriter, lines: Iterable[str]) -> Iterator[list[Part]]:
    """Lines and parts of lines, some at a time."""
    block: list[Part] = []
    characters = 0
    for number, line in enumerate(lines, 1):
        for part in _parts(rewriter, number, line):
            block.append(part)
            characters += len(part.text)
            if len(block) == BLOCK_LINES or characters >= BLOCK_CHARACTERS:
                yield block
                block, characters = [], 0
    yield block


def _parts(rewriter: Rewriter, number: int, line: str) -> Iterator[Part]:
    """The line, or parts of it that are not too long, cut before a space where there is one."""
    text = line.rstrip("\r\n")
    ending, start = line[len(text) :], 0
    if not text.strip():
        yield Part(number, text, ending=ending)
        return
    if len(text) > LONGEST_PART and has_mask(text, rewriter.tokenizer):
        raise DataError(
            f"line {number}: {shorten(text)!r} holds a {MASK} and is {len(text)} characters long, "
            f"the model reads {rewriter.longest} tokens; shorten it"
        )
    while len(text) - start > LONGEST_PART:
        space = text.rfind(" ", start + 1, start + LONGEST_PART + 1)
        end = space if space > 0 else start + LONGEST_PART
        yield Part(number, text[start:end], start, is_last=False)
        start = end
    yield Part(number, text[start:], start, ending)


def _rewrite_parts(rewriter: Rewriter, parts: Sequence[Part], batch_tokens: int) -> list[Rewritten]:
    """Rewrite lines and parts of lines, in batches of rows of similar length."""
    texts = [_encode(rewriter, part) for part in parts]
    rows = [row for index, line in enumerate(texts) for row in _cut(rewriter, index, parts[index], line)]
    for batch in _batches(rows, batch_tokens):
        after, is_chosen, probabilities = (result.tolist() for result in _rewrite_rows(rewriter, batch))
        for place, row in enumerate(batch):
            line, inside = texts[row.line], slice(1, 1 + len(row.ids))  # without [CLS], [SEP] and padding
            where = slice(row.first, row.first + len(row.ids))
            line.after[where] = after[place][inside]
            line.is_chosen[where] = is_chosen[place][inside]
            line.probabilities[where] = probabilities[place][inside]
    return [compose(rewriter.tokenizer, line) for line in texts]


def _encode(rewriter: Rewriter, part: Part) -> Line:
    tokenizer = rewriter.tokenizer
    text = with_own_mask(part.text, tokenizer)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = list(encoded["input_ids"])
    is_filled = tokenizer.mask_token_id in ids
    if is_filled:
        with naming_line(part.number):
            check_length(part.text, len(ids) + 2, rewriter.longest)
    pieces = describe_pieces(tokenizer, ids)
    spans = spans_of(text, pieces, encoded["offset_mapping"])
    return Line(text, ids, pieces, spans, is_filled, list(ids), [False] * len(ids), [math.nan] * len(ids))


def _cut(rewriter: Rewriter, index: int, part: Part, line: Line) -> Iterator[_Row]:
    """The line in rows of as many tokens as the models read, cut before a word where there is one."""
    room, count, first = rewriter.longest - 2, len(line.ids), 0
    key = (part.number << 32) + part.start
    while first < count:
        end = min(first + room, count)
        if end < count:
            end = next((place for place in range(end, first, -1) if line.pieces[place].starts_word), end)
        yield _Row(index, first, line.ids[first:end], key + first, line.is_filled)
        first = end


def _batches(rows: list[_Row], batch_tokens: int) -> Iterator[list[_Row]]:
    """Rows of similar length together, no more than `batch_tokens` a batch, but one row at least."""
    batch: list[_Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if batch and (len(batch) + 1) * (len(row.ids) + 2) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@torch.no_grad()
def _rewrite_rows(rewriter: Rewriter, rows: list[_Row]) -> tuple[Tensor, Tensor, Tensor]:
    """The ids afterwards int64 [B, L], which were chosen bool [B, L], probability of a replacement float [B, L]."""
    tokenizer, generator = rewriter.tokenizer, rewriter.generator
    encoded = [torch.tensor([tokenizer.cls_token_id, *row.ids, tokenizer.sep_token_id]) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True, padding_value=tokenizer.pad_token_id)  # [B, L]
    is_real = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in encoded])[:, None]  # [B, L]
    segments = torch.zeros_like(ids)
    example_id, is_filled = (
        torch.tensor([row.example_id for row in rows]),
        torch.tensor([row.is_filled for row in rows]),
    )
    is_chosen = _choose(rewriter, ids, is_real, example_id)
    is_chosen = torch.where(is_filled[:, None], ids == tokenizer.mask_token_id, is_chosen)
    hidden_states = generator(ids.masked_fill(is_chosen, tokenizer.mask_token_id), is_real, segments)  # [B, L, D]
    row, position = is_chosen.nonzero(as_tuple=True)  # [M]
    logits = generator.logits(hidden_states[row, position])  # [M, V]
    logits[:, tokenizer.all_special_ids] = -math.inf  # differs from pretraining: a reader is shown text only
    drawn = sample(logits, rewriter.temperature, rewriter.seed, example_id[row], position)
    after = ids.index_put((row, position), torch.where(is_filled[row], logits.argmax(-1), drawn))
    if rewriter.discriminator is None:
        return after, is_chosen, torch.full(ids.shape, math.nan)
    return after, is_chosen, rewriter.discriminator(after, is_real, segments).sigmoid()


def _choose(rewriter: Rewriter, ids: Tensor, is_real: Tensor, example_id: Tensor) -> Tensor:
    """The tokens to mask, by pretraining's own rules. ids int64 [B, L], is_real bool [B, L]; returns bool [B, L]."""
    tokenizer = rewriter.tokenizer
    special = SpecialIds(tokenizer.mask_token_id, tuple(tokenizer.all_special_ids))
    targets = choose_targets(ids, maskable(ids, is_real, special), rewriter.mask_rate, rewriter.seed, example_id)
    return torch.zeros_like(is_real).scatter(1, targets.positions, targets.weight > 0)
