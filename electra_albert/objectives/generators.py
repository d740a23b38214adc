"""Replacements of the selected tokens: drawn uniformly, or sampled from a generator that is trained or fixed.

Dimensions: B batch, L length, K = masking.max_targets, V vocab, E embedding.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from electra_albert.config import RtdConfig
from electra_albert.model.electra import Electra
from electra_albert.model.encoder import Embeddings
from electra_albert.objectives.masking import Targets


class Corruption(NamedTuple):
    """A masked batch with its replacements."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: Targets
    is_masked: Tensor  # [B, K] bool, targets replaced by [MASK]
    logits: Tensor | None  # [B, K, V], of the generator at the targets, if there is one
    corrupted_ids: Tensor  # [B, L] int64, the input of the discriminator
    is_replaced: Tensor  # [B, L] bool, the labels of the discriminator
    is_kept: Tensor  # [B, K] bool, targets that stay [MASK] in corrupted_ids
    is_classified: Tensor  # [B, L] bool, all tokens except padding and those that stay [MASK]
    added: tuple[Tensor, ...] = ()  # to the embeddings of the discriminator


def share_layers(electra: Electra) -> None:
    """Make the generator's encoder the first layers of the discriminator's, of which it has the configuration."""
    encoder, whole = (model.encoder for model in (electra.generator, electra.discriminator) if model is not None)
    encoder.embedding_hidden_mapping_in = whole.embedding_hidden_mapping_in
    encoder.albert_layer_groups = whole.albert_layer_groups[: len(encoder.albert_layer_groups)]


def temperature_at(options: RtdConfig, step: Tensor | None, max_steps: int) -> float | Tensor:
    """Sampling temperature at a step, int64 [], from 1 to max_steps, float32 []; without a step that of evaluations.

    Paper: Fast-ELECTRA (Dong et al. 2023), T(u) = 1 + (T0 - 1) exp(-u / τ) after the fraction u of the run.
    """
    start, end = options.temperature, options.temperature_end
    if step is None or end is None:
        return start if end is None else end
    progress = (step - 1).clamp(0, max_steps - 1).float() / max(1, max_steps - 1)
    return end + (start - end) * torch.exp(-progress / options.temperature_decay)


def sampling_logits(logits: Tensor, targets: Targets, rtd: RtdConfig, step: Tensor | None, max_steps: int) -> Tensor:
    """Logits of the distribution of the replacements, from those of the generator; both float32 [B, K, V]."""
    temperature = temperature_at(rtd, step, max_steps)
    is_one = not isinstance(temperature, Tensor) and temperature == 1  # comparing a tensor would synchronise
    scaled = logits if is_one else logits / temperature
    return scaled.scatter(2, targets.labels[:, :, None], -math.inf) if rtd.exclude_original else scaled


def straight_through(
    logits: Tensor, input_ids: Tensor, targets: Targets, is_sampled: Tensor, embeddings: Embeddings
) -> Tensor:
    """Zeros [B, L, E] to add to the discriminator's embeddings, with the gradient of the expected embeddings.

    logits float32 [B, K, V], input_ids int64 [B, L], is_sampled bool [B, K]. Paper: Jang et al. 2017 section 2.2.
    """
    table = embeddings.table.detach()  # [V, E]
    # Differs from Jang et al.: a softmax without Gumbel noise, whose gradient has less variance; no noise for V tokens.
    share = logits.softmax(-1).to(table.dtype)  # [B, K, V]
    added = (share - share.detach()) @ table * is_sampled[:, :, None]  # [B, K, E]
    everywhere = added.new_zeros(*input_ids.shape, added.shape[-1])
    return everywhere.scatter(1, targets.positions[:, :, None].expand_as(added), added)  # [B, L, E]
