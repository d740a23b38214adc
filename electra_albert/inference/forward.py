"""What the models say of padded rows, as numbers: guesses at masks, vectors, probabilities, likelihoods.

Dimensions: B batch, L length, M masked, V vocab, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from electra_albert.inference.fill_mask import Guess, likeliest
from electra_albert.inference.rows import PaddedRows
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import Body

_MASKS_AT_ONCE = 512  # bounds the memory that scores of the whole vocabulary take


@torch.inference_mode()
def guess(
    generator: Generator, rows: PaddedRows, mask_id: int, top_k: int, allowed: Tensor | None
) -> list[list[Guess]]:
    """The likeliest tokens at every mask of the rows, row by row. allowed int64, the only tokens to take, or None."""
    hidden_states = generator(*rows)  # [B, L, D]
    here = allowed if allowed is None else allowed.to(hidden_states.device)
    masked = hidden_states[rows.input_ids == mask_id]  # [M, D]
    return [found for logits in _logits(generator, masked) for found in likeliest(logits, top_k, here)]


@torch.inference_mode()
def log_likelihoods(generator: Generator, rows: PaddedRows, places: Tensor, mask_id: int) -> list[float]:
    """Of each row log P(the token at its place | all others), in nats. places int64 [B]."""
    row, place = torch.arange(len(places), device=rows.input_ids.device), places.to(rows.input_ids.device)
    answers = rows.input_ids[row, place]  # [B]
    asked = rows._replace(input_ids=rows.input_ids.index_put((row, place), torch.tensor(mask_id, device=place.device)))
    masked = generator(*asked)[row, place]  # [B, D]
    nats = [
        F.cross_entropy(logits.float(), some, reduction="none")  # [M]
        for logits, some in zip(_logits(generator, masked), answers.split(_MASKS_AT_ONCE), strict=True)
    ]
    return (-torch.cat(nats)).tolist()


def _logits(generator: Generator, masked: Tensor) -> Iterator[Tensor]:
    """Scores of every token [M, V], some masks at a time. masked any float [M, D]."""
    return (generator.logits(part) for part in masked.split(_MASKS_AT_ONCE))


@torch.inference_mode()
def vectors(encoder: Body, rows: PaddedRows, *, with_pooler: bool) -> tuple[Tensor, Tensor | None]:
    """Hidden states float32 [B, L, D] and, where asked for, the pooler's float32 [B, D]; on the CPU.

    They are tensors of inference mode: only a copy made outside can be trained on.
    """
    hidden_states = encoder(*rows)
    pooled = encoder.pooled(hidden_states).float().cpu() if with_pooler else None
    return hidden_states.float().cpu(), pooled


@torch.inference_mode()
def replacement_probabilities(discriminator: Discriminator, rows: PaddedRows) -> list[list[float]]:
    """The probability [B, L] that each token, padding included, was replaced."""
    probabilities: list[list[float]] = discriminator(*rows).float().sigmoid().tolist()
    return probabilities
