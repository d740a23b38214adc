"""Self-attention: projections around an exchangeable mixing of (q, k, v).

Dimensions: B batch, L length, D hidden, N heads, H head size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig


class SoftmaxMixing(nn.Module):
    """Scaled dot-product attention. Paper: ALBERT section 3 (as in BERT)."""

    is_stock = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q, k, v any float [B, N, L, H], mask bool [B, L] (True = may be looked at); returns [B, N, L, H]."""
        dropout = self.dropout if self.training else 0.0
        if q.device.type == "cpu" and q.dtype == torch.bfloat16:
            return _attend_in_three_products(q, k, v, mask, dropout)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=dropout)

    @staticmethod
    def flops(config: ModelConfig, length: int) -> int:
        return 2 * 2 * length * length * config.hidden_size


def _attend_in_three_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """The same as three products: in bfloat16 PyTorch's fused CPU kernel takes twice the time, in training more."""
    batch, heads, length, size = q.shape
    q, k, v = (part.reshape(batch * heads, length, size) for part in (q, k, v))  # each [BN, L, H]
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)  # [B, L]
    bias = bias.repeat_interleave(heads, dim=0)[:, None, :].expand(-1, length, -1)  # [BN, L, L]
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=size**-0.5)  # [BN, L, L]
    weights = F.dropout(scores.softmax(-1), dropout, training=dropout > 0)
    return (weights @ v).view(batch, heads, length, size)  # [B, N, L, H]


TRAINING_PASSES = 3  # forward, and backward, which makes two products of that size; checkpointing's are not counted
# Modules called with the model's config and their own options by name, each with
#   forward(q, k, v, mask)  as SoftmaxMixing
#   is_stock                whether stock transformers computes the same
#   flops(config, length)   operations of the matrix products in a forward pass over one row, multiply and add counted
ATTENTION: dict[str, Any] = {"softmax": SoftmaxMixing}


def stock_computes(config: ModelConfig) -> bool:
    """Whether stock transformers computes the same as a model of this shape."""
    return bool(ATTENTION[config.attention].is_stock)


def make_mixing(config: ModelConfig) -> nn.Module:
    """The mixing that config.attention names. Raises ValueError where there is none, or none with such options."""
    if config.attention not in ATTENTION:
        raise ValueError(f"model.attention={config.attention!r} is not one of {', '.join(ATTENTION)}")
    try:
        mixing: nn.Module = ATTENTION[config.attention](config, **config.attention_options)
    except TypeError as error:
        raise ValueError(f"model.attention_options={config.attention_options}: {error}") from None
    return mixing


class SelfAttention(nn.Module):
    """Projections, mixing, output projection, residual and LayerNorm of one block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_attention_heads, config.head_size
        # One product for query, key and value; a checkpoint for other code splits it (hub/formats.py).
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.mixing = make_mixing(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        batch, length, _ = hidden_states.shape
        projected = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, self.head_size)
        q, k, v = (part.transpose(1, 2) for part in projected.unbind(2))  # each [B, N, L, H]
        mixed = self.mixing(q, k, v, mask).transpose(1, 2).flatten(2)  # [B, L, D]
        return self.LayerNorm(hidden_states + self.output_dropout(self.dense(mixed)))
