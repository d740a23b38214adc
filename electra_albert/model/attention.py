"""Self-attention: projections around a replaceable attention kind, which maps q, k and v to the output.

Dimensions: B batch, L length, D hidden, N heads, H head size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.linear_attention import LinearMixing
from electra_albert.model.linformer import LinformerMixing
from electra_albert.model.local_attention import LocalMixing
from electra_albert.model.nystrom import NystromMixing


class SoftmaxMixing(nn.Module):
    """Scaled dot-product attention. Paper: ALBERT section 3 (as in BERT)."""

    is_stock = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q, k, v any float [B, N, L, H], mask bool [B, L] (True = attend to it); returns [B, N, L, H]."""
        dropout = self.dropout if self.training else 0.0
        if q.device.type == "cpu" and q.dtype == torch.bfloat16:
            return _bfloat16_attention(q, k, v, mask, dropout)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=dropout)

    @staticmethod
    def flops(config: ModelConfig, length: int) -> int:
        return 2 * 2 * length * length * config.hidden_size


def _bfloat16_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """SoftmaxMixing without the fused kernel, which is at least twice as slow on the CPU in bfloat16."""
    batch, heads, length, size = q.shape
    q, k, v = (part.reshape(batch * heads, length, size) for part in (q, k, v))  # each [BN, L, H]
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)  # [B, L]
    bias = bias.repeat_interleave(heads, dim=0)[:, None, :].expand(-1, length, -1)  # [BN, L, L]
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=size**-0.5)  # [BN, L, L]
    weights = F.dropout(scores.softmax(-1), dropout, training=dropout > 0)
    return (weights @ v).view(batch, heads, length, size)  # [B, N, L, H]


TRAINING_FLOPS_FACTOR = 3  # forward and backward, which costs twice the forward; recomputation is not counted
# Attention kinds: modules constructed from the model's config and model.attention_options, each with
#   forward(q, k, v, mask)  as SoftmaxMixing
#   is_stock                whether stock transformers computes the same
#   flops(config, length)   FLOPs of the matrix products in the forward pass of one sequence, two for each multiply-add
ATTENTION: dict[str, Any] = {
    "softmax": SoftmaxMixing,
    "linear": LinearMixing,
    "linformer": LinformerMixing,
    "local": LocalMixing,
    "nystrom": NystromMixing,
}


def stock_computes(config: ModelConfig) -> bool:
    """Whether stock transformers computes the same as a model of this configuration."""
    return bool(ATTENTION[config.attention].is_stock)


def make_mixing(config: ModelConfig) -> nn.Module:
    """Construct the attention kind config.attention. Raises ValueError if it or one of its options is unknown."""
    if config.attention not in ATTENTION:
        raise ValueError(f"model.attention={config.attention!r} is not one of {', '.join(ATTENTION)}")
    try:
        mixing: nn.Module = ATTENTION[config.attention](config, **config.attention_options)
    except TypeError as error:
        raise ValueError(f"model.attention_options={config.attention_options}: {error}") from None
    return mixing


class SelfAttention(nn.Module):
    """Multi-head self-attention of one block, with its residual connection and post-LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_attention_heads, config.head_size
        # Query, key and value in one matrix; hub/formats.py splits it for stock folders.
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.mixing = make_mixing(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.residual_scale = config.residual_scale

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        batch, length, _ = hidden_states.shape
        projected = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, self.head_size)
        q, k, v = (part.transpose(1, 2) for part in projected.unbind(2))  # each [B, N, L, H]
        mixed = self.mixing(q, k, v, mask).transpose(1, 2).flatten(2)  # [B, L, D]
        residual = torch.add(self.output_dropout(self.dense(mixed)), hidden_states, alpha=self.residual_scale)
        output: Tensor = self.LayerNorm(residual)
        return output
