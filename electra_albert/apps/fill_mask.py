"""What the generator would write at each [MASK], and what the discriminator makes of each token.

Dimensions: B batch, L length, V vocab.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer import Piece, describe_pieces
from electra_albert.model.electra import Discriminator, Generator

Proposal = dict[str, Any]  # score, token, token_str, sequence: as the fill-mask pipeline gives them


class Verdict(NamedTuple):
    """One token as the discriminator sees it."""

    piece: Piece
    probability: float  # of having been replaced


def encode(text: str, tokenizer: Any, longest: int) -> torch.Tensor:
    """Ids [1, L] of one text with its special tokens; DataError where it is longer than the model reads."""
    ids = torch.tensor([tokenizer(text, verbose=False)["input_ids"]])
    check_length(text, ids.shape[1], longest)
    return ids


def check_length(text: str, tokens: int, longest: int) -> None:
    """DataError where a text of so many tokens, special ones included, is longer than the model reads."""
    if tokens > longest:
        raise DataError(f"{shorten(text)!r} is {tokens} tokens long, the model reads {longest}; shorten it")


def fill_masks(generator: Generator, tokenizer: Any, text: str, top_k: int) -> list[list[Proposal]]:
    """The `top_k` likeliest tokens at each [MASK] of `text`, each mask on its own; scores are probabilities.

    Raises DataError where there is no mask or the text is too long.
    """
    ids = encode(text, tokenizer, generator.config.max_position_embeddings)
    masks = (ids[0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
    if not masks:
        raise DataError(f"{shorten(text)!r} holds no {tokenizer.mask_token}; write {tokenizer.mask_token} for a word")
    with torch.no_grad():
        seen = ids.to(generator.predictions.bias.device)
        hidden_states = generator(seen, torch.ones_like(seen, dtype=torch.bool), torch.zeros_like(seen))
        scores = generator.logits(hidden_states[0, masks]).softmax(-1)  # [masks, V]
    values, tokens = scores.topk(min(top_k, scores.shape[-1]))
    return [
        [
            _proposal(ids[0], position, token, value, tokenizer, is_only_mask=len(masks) == 1)
            for value, token in zip(row_values, row_tokens, strict=True)
        ]
        for position, row_values, row_tokens in zip(masks, values.tolist(), tokens.tolist(), strict=True)
    ]


def _proposal(
    ids: torch.Tensor, position: int, token: int, score: float, tokenizer: Any, *, is_only_mask: bool
) -> Proposal:
    filled = ids.clone()
    filled[position] = token
    filled = filled[filled != tokenizer.pad_token_id]
    # With further masks in the sentence the special tokens stay, as in the pipeline, or those masks would be lost.
    sequence = tokenizer.decode(filled.tolist(), skip_special_tokens=is_only_mask)
    return {"score": score, "token": token, "token_str": tokenizer.decode([token]), "sequence": sequence}


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


def shorten(text: str, longest: int = 60) -> str:
    """The beginning of a text, for a message."""
    clean = printable(text)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
