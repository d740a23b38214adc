"""Operations of the matrix products in one forward pass over one row: a multiply and an add are two.

Softmax, LayerNorm, activations and table look-ups are left out, as is usual: they move memory, they hardly compute.
"""

from __future__ import annotations

from electra_albert.config import ModelConfig
from electra_albert.model.attention import ATTENTION

# Forward and backward, which makes two products of the same size: the gradient of either factor. Passes that gradient
# checkpointing repeats are not counted.
TRAINING_PASSES = 3


def encoder_flops(config: ModelConfig, length: int) -> int:
    """The mapping E to D, and every pass through every block; padding is computed like any other token."""
    blocks = config.num_hidden_layers * config.inner_group_num
    return 2 * length * config.embedding_size * config.hidden_size + blocks * _block_flops(config, length)


def _block_flops(config: ModelConfig, length: int) -> int:
    hidden = config.hidden_size
    projections = 2 * length * hidden * 4 * hidden  # query, key, value and output
    feed_forward = 2 * 2 * length * hidden * config.intermediate_size
    return projections + int(ATTENTION[config.attention].flops(config, length)) + feed_forward


def mlm_head_flops(config: ModelConfig, predicted: int) -> int:
    """Logits of the whole vocabulary at `predicted` positions."""
    return 2 * predicted * config.embedding_size * (config.hidden_size + config.vocab_size)


def rtd_head_flops(config: ModelConfig, length: int) -> int:
    """One logit per token."""
    return 2 * length * config.hidden_size * (config.hidden_size + 1)


def sentence_order_head_flops(config: ModelConfig) -> int:
    """Two logits per row."""
    return 2 * config.hidden_size * (config.hidden_size + 2)
