"""Mask some tokens of a text, let the generator rewrite them, and ask the discriminator about every token.

Dimensions: B batch, L length, M masked, V vocab, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra_albert.apps.fill_mask import check_length
from electra_albert.apps.splice import Line, Rewritten, compose, spans_of
from electra_albert.corpus.tokenizer import describe_pieces
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.objectives.masking import SpecialIds, choose_targets, maskable, sample

BATCH_TOKENS = 4096  # padding included; what bounds memory is the masked ones' scores of the whole vocabulary
BLOCK_LINES, BLOCK_CHARACTERS = 512, 1 << 20  # read together, so that rows of similar length can be batched


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


class _Row(NamedTuple):
    """Tokens of one line that the models read at once."""

    line: int  # its place among the lines
    first: int  # its first token's place in the line
    ids: list[int]  # without special tokens around them
    example_id: int  # keys the draws
    is_filled: bool


def rewrite(rewriter: Rewriter, lines: Sequence[tuple[int, str]], batch_tokens: int = BATCH_TOKENS) -> list[Rewritten]:
    """Rewrite numbered lines. The number keys the draws, so a line's outcome does not depend on the others.

    A line that holds the mask token has it filled by the best guess; DataError where such a line is too long to be read
    at once. Other lines may be of any length: a longer one is read in parts.
    """
    texts = [_encode(rewriter, number, text) for number, text in lines]
    rows = [row for index, line in enumerate(texts) for row in _cut(rewriter, index, line)]
    for batch in _batches(rows, batch_tokens):
        after, is_chosen, probabilities = (result.tolist() for result in _rewrite_rows(rewriter, batch))
        for place, row in enumerate(batch):
            line, inside = texts[row.line], slice(1, 1 + len(row.ids))  # without [CLS], [SEP] and padding
            where = slice(row.first, row.first + len(row.ids))
            line.after[where] = after[place][inside]
            line.is_chosen[where] = is_chosen[place][inside]
            line.probabilities[where] = probabilities[place][inside]
    return [compose(rewriter.tokenizer, line) for line in texts]


def rewrite_stream(rewriter: Rewriter, lines: Iterable[str]) -> Iterator[tuple[str, Rewritten | None]]:
    """Each line as it is to be written, and its rewriting, None for a blank one; in order and in bounded memory.

    Lines come and go with their endings.
    """
    for block in _blocks(lines):
        bare = [(number, line.rstrip("\r\n")) for number, line in block if line.strip()]
        done = iter(rewrite(rewriter, bare))
        for _, line in block:
            result = next(done) if line.strip() else None
            yield (line if result is None else result.sequence + line[len(result.original) :]), result


def _blocks(lines: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Lines with their numbers from 1, some at a time."""
    block: list[tuple[int, str]] = []
    characters = 0
    for number, line in enumerate(lines, 1):
        block.append((number, line))
        characters += len(line)
        if len(block) == BLOCK_LINES or characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    yield block


def _encode(rewriter: Rewriter, number: int, text: str) -> Line:
    tokenizer = rewriter.tokenizer
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = list(encoded["input_ids"])
    is_filled = tokenizer.mask_token_id in ids
    if is_filled:
        check_length(text, len(ids) + 2, rewriter.longest)
    pieces = describe_pieces(tokenizer, ids)
    spans = spans_of(text, pieces, encoded["offset_mapping"])
    return Line(number, text, ids, pieces, spans, is_filled, list(ids), [False] * len(ids), [math.nan] * len(ids))


def _cut(rewriter: Rewriter, index: int, line: Line) -> Iterator[_Row]:
    """The line in rows of as many tokens as the models read, cut before a word where there is one."""
    room, count, first = rewriter.longest - 2, len(line.ids), 0
    while first < count:
        end = min(first + room, count)
        if end < count:
            end = next((place for place in range(end, first, -1) if line.pieces[place].starts_word), end)
        yield _Row(index, first, line.ids[first:end], (line.number << 32) + first, line.is_filled)
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
