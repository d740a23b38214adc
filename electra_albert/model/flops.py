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
    hidden, blocks = config.hidden_size, config.num_hidden_layers * config.inner_group_num
    layers = 4 * hidden + 2 * config.intermediate_size  # query, key, value and output; feed-forward
    block = 2 * length * hidden * layers + int(ATTENTION[config.attention].flops(config, length))
    return 2 * length * config.embedding_size * hidden + blocks * block


def mlm_head_flops(config: ModelConfig, predicted: int) -> int:
    """Logits of the whole vocabulary at `predicted` positions."""
    return 2 * predicted * config.embedding_size * (config.hidden_size + config.vocab_size)


def rtd_head_flops(config: ModelConfig, length: int) -> int:
    """One logit per token."""
    return 2 * length * config.hidden_size * (config.hidden_size + 1)


def sentence_order_head_flops(config: ModelConfig) -> int:
    """Two logits per row."""
    return 2 * config.hidden_size * (config.hidden_size + 2)
