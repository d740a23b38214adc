"""What the generator would write at each [MASK], and what the discriminator makes of each token.

Dimensions: L length, M masked, V vocab.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from electra_albert.apps.demo.files import MASK
from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer import Piece, describe_pieces
from electra_albert.model.electra import Discriminator, Generator

Proposal = dict[str, Any]  # score, token, token_str, sequence: as the fill-mask pipeline gives them
Guess = tuple[float, int]  # probability and token
WORD_MARKS = ("", "▁", "Ġ")  # pieces that say that a word begins and nothing else


class Verdict(NamedTuple):
    """One token as the discriminator sees it."""

    piece: Piece
    probability: float  # of having been replaced


class Filled(NamedTuple):
    """A text with masks, and what the generator would write at them."""

    proposals: list[list[Proposal]]  # of each mask, the likeliest first
    ids: torch.Tensor  # [1, L], as the text would be cut with each mask filled by the likeliest token that is text


def with_own_mask(text: str, tokenizer: Any) -> str:
    """The text with the tokenizer's own mask for every [MASK], which some tokenizers write otherwise."""
    return text.replace(MASK, tokenizer.mask_token)


def has_mask(text: str, tokenizer: Any) -> bool:
    """Whether a mask is written in the text, by either name."""
    return tokenizer.mask_token in with_own_mask(text, tokenizer)


def encode(text: str, tokenizer: Any, longest: int) -> torch.Tensor:
    """Ids [1, L] of one text with its special tokens; DataError where it has no mask or the model reads less."""
    ids = torch.tensor([tokenizer(with_own_mask(text, tokenizer), verbose=False)["input_ids"]])
    if tokenizer.mask_token_id not in ids:
        raise DataError(f"{shorten(text)!r} holds no {MASK}; write {MASK} for a word")
    check_length(text, ids.shape[1], longest)
    return ids


def check_length(text: str, tokens: int, longest: int) -> None:
    """DataError where a text of so many tokens, special ones included, is longer than the model reads."""
    if tokens > longest:
        raise DataError(f"{shorten(text)!r} is {tokens} tokens long, the model reads {longest}; shorten it")


@contextmanager
def naming_line(number: int) -> Iterator[None]:
    """Put the line's number before what a DataError says."""
    try:
        yield
    except DataError as error:
        raise DataError(f"line {number}: {error}") from None


def fill_masks(generator: Generator, tokenizer: Any, text: str, top_k: int) -> list[list[Proposal]]:
    """The `top_k` likeliest tokens at each [MASK] of `text`, each mask on its own; scores are probabilities.

    Raises DataError where there is no mask or the text is too long.
    """
    ids = encode(text, tokenizer, generator.config.max_position_embeddings)
    return fill(generator, tokenizer, text, ids, top_k).proposals


def fill(generator: Generator, tokenizer: Any, text: str, ids: torch.Tensor, top_k: int) -> Filled:
    """The `top_k` likeliest tokens at each mask, and the row with the masks filled.

    ids int64 [1, L], those of the text as `encode` gives them, with one mask or more. A special token may be proposed,
    as in the fill-mask pipeline, but is not filled in: it is no text.
    """
    is_mask = ids == tokenizer.mask_token_id
    with torch.no_grad():
        seen = ids.to(generator.predictions.bias.device)
        hidden_states = generator(seen, torch.ones_like(seen, dtype=torch.bool), torch.zeros_like(seen))
        logits = generator.logits(hidden_states[is_mask.to(seen.device)])  # [M, V]
    guesses = likeliest(logits, top_k)
    logits[:, tokenizer.all_special_ids] = -math.inf
    filled = ids.clone()
    filled[is_mask] = logits.argmax(-1).to(ids.device)
    proposals = propose(tokenizer, ids[0].tolist(), guesses)
    return Filled(proposals, filled[~_is_mark_behind_mask(text, ids, is_mask, tokenizer)][None])


def _is_mark_behind_mask(text: str, ids: torch.Tensor, is_mask: torch.Tensor, tokenizer: Any) -> torch.Tensor:
    """Where the mark of a word stands behind a mask though the text has no space there, as in "[MASK].": bool [1, L].

    Behind a mask the tokenizer begins a new word; behind a word it would not, so a filled text has no such mark.
    """
    marks = tokenizer.convert_tokens_to_ids([mark for mark in WORD_MARKS if mark])
    known = torch.tensor([mark for mark in marks if mark != tokenizer.unk_token_id], dtype=ids.dtype)
    behind = with_own_mask(text, tokenizer).split(tokenizer.mask_token)[1:]
    is_close = torch.tensor([not part[:1].isspace() for part in behind])
    follows = torch.zeros_like(is_mask).masked_scatter(is_mask, is_close).roll(1)
    return follows & torch.isin(ids, known)


def likeliest(logits: torch.Tensor, top_k: int, allowed: torch.Tensor | None = None) -> list[list[Guess]]:
    """The `top_k` likeliest tokens at each mask. logits any float [M, V]; allowed int64, the only tokens to take.

    The probabilities are those among all tokens, whichever are allowed.
    """
    probabilities = logits.softmax(-1)  # [M, V]
    if allowed is not None:
        probabilities = probabilities[:, allowed]
    values, tokens = probabilities.topk(min(top_k, probabilities.shape[-1]))
    if allowed is not None:
        tokens = allowed[tokens]
    return [list(zip(*row, strict=True)) for row in zip(values.tolist(), tokens.tolist(), strict=True)]


def propose(tokenizer: Any, ids: list[int], guesses: list[list[Guess]]) -> list[list[Proposal]]:
    """The guesses at each mask of one row, written as the fill-mask pipeline writes them. ids: the row, unpadded."""
    mask_id, pad_id = tokenizer.mask_token_id, tokenizer.pad_token_id  # slow to look up
    masks = [position for position, token in enumerate(ids) if token == mask_id]
    # With further masks in the sentence the special tokens stay, as in the pipeline, or those masks would be lost.
    is_only_mask = len(masks) == 1

    def write(position: int, score: float, token: int) -> Proposal:
        filled = [*ids[:position], token, *ids[position + 1 :]]
        kept = [number for number in filled if number != pad_id]
        sequence = tokenizer.decode(kept, skip_special_tokens=is_only_mask)
        return {"score": score, "token": token, "token_str": tokenizer.decode([token]), "sequence": sequence}

    return [[write(position, *guess) for guess in row] for position, row in zip(masks, guesses, strict=True)]


def judge(discriminator: Discriminator, tokenizer: Any, ids: torch.Tensor) -> list[Verdict]:
    """The discriminator's verdict on each token of one row, special tokens left out. ids int64 [1, L]."""
    with torch.no_grad():
        logits = discriminator(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    pieces = describe_pieces(tokenizer, ids[0].tolist())
    special = set(tokenizer.all_special_ids)
    return [
        Verdict(piece, probability)
        for piece, token, probability in zip(pieces, ids[0].tolist(), logits[0].sigmoid().tolist(), strict=True)
        if token not in special
    ]


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor or set colours of a terminal."""
    return "".join(character if character.isprintable() else "�" for character in text)


def shown(text: str) -> str:
    """A token as people write it, without the space before it; one that marks a word's beginning and no more is ␣."""
    bare = text.strip()
    return "␣" if bare in WORD_MARKS else printable(bare)


def shorten(text: str, longest: int = 60) -> str:
    """The beginning of a text, for a message."""
    clean = printable(text)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
