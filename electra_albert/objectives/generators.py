"""Replacements of the selected tokens, sampled from a generator that is trained or fixed.

Dimensions: B batch, L length, K = masking.max_targets, V vocab.
"""

from typing import NamedTuple

from torch import Tensor

from electra_albert.model.electra import Electra
from electra_albert.objectives.masking import Targets


class Corruption(NamedTuple):
    """A masked batch with its replacements."""

    masked_ids: Tensor  # [B, L] int64, the input of the generator
    targets: Targets
    is_masked: Tensor  # [B, K] bool, targets replaced by [MASK]
    logits: Tensor  # [B, K, V], of the generator at the targets
    corrupted_ids: Tensor  # [B, L] int64, the input of the discriminator
    is_replaced: Tensor  # [B, L] bool, the labels of the discriminator
    is_kept: Tensor  # [B, K] bool, targets that stay [MASK] in corrupted_ids
    is_classified: Tensor  # [B, L] bool, all tokens except padding and those that stay [MASK]


def share_layers(electra: Electra) -> None:
    """Make the generator's encoder the first layers of the discriminator's, of which it has the configuration."""
    encoder, whole = (model.encoder for model in (electra.generator, electra.discriminator) if model is not None)
    encoder.embedding_hidden_mapping_in = whole.embedding_hidden_mapping_in
    encoder.albert_layer_groups = whole.albert_layer_groups[: len(encoder.albert_layer_groups)]
