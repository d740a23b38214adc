"""The blocks of an encoder: ALBERT's, and the modern one, which stock ModernBertModel has.

Dimensions: B batch, L length, D hidden.
"""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.model.attention import LayerNorm, ResidualAttention, SelfAttention

HiddenStates = Tensor | tuple[Tensor, Tensor]  # of ALBERT's and of the modern block
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


class Block(nn.Module):
    """Self-attention and feed-forward with post-LayerNorm. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = ResidualAttention(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        # Differs from transformers, which never applies this dropout; ALBERT's code does.
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.full_layer_layer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        attended = self.attention(hidden_states, mask)
        fed_forward = self.ffn_output(self.activation(self.ffn(attended)))
        return self.full_layer_layer_norm(self.dropout(fed_forward) + attended)


class ModernBlock(nn.Module):
    """Self-attention with rotary positions, and a gated feed-forward layer, both after LayerNorm.

    The LayerNorm before the attention is the last one of the block before, so that layers with
    shared weights have the same. Papers: ModernBERT section 2, Shazeer 2020 (GLU variants).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.attention = SelfAttention(config)
        self.ffn_layer_norm = LayerNorm(size, eps=config.layer_norm_eps)
        self.ffn = nn.Linear(size, 2 * config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.ffn_output = nn.Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.full_layer_layer_norm = LayerNorm(size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of all layers so far and the same normalized, any float [B, L, D]; returns both."""
        total, normalized = hidden_states
        total = total + self.attention(normalized, mask)
        content, gate = self.ffn(self.ffn_layer_norm(total)).chunk(2, dim=-1)
        total = total + self.dropout(self.ffn_output(self.activation(content) * gate))
        return total, self.full_layer_layer_norm(total)


# By ModelConfig.block.
BLOCKS: dict[str, Any] = {"albert": Block, "modern": ModernBlock}


def head_norm(config: ModelConfig) -> nn.Module:
    """The LayerNorm that the modern block has after the embeddings' projection and in heads."""
    if config.block == "modern":
        return LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
    return nn.Identity()
