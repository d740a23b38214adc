"""Self-attention: projections around a replaceable attention kind, which maps q, k and v to the output.

Dimensions: B batch, L length, D hidden, N heads, H head size.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.linear_attention import LinearMixing
from electra_albert.model.linformer import LinformerMixing
from electra_albert.model.local_attention import LocalMixing, dot_product_attention
from electra_albert.model.nystrom import NystromMixing
from electra_albert.model_config import require


class LayerNorm(nn.LayerNorm):
    """LayerNorm that returns bfloat16 for bfloat16 on CUDA, where autocast would return float32.

    Differs from ALBERT: the residual stream is stored in bfloat16, half the bytes to move.
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [..., D]; returns [..., D], computed in float32."""
        normalized = super().forward(hidden_states)
        if hidden_states.is_cuda and hidden_states.dtype == torch.bfloat16:
            return normalized.bfloat16()
        return normalized


class SoftmaxMixing(nn.Module):
    """Scaled dot-product attention. Paper: ALBERT section 3 (as in BERT)."""

    has_weights = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q, k, v any float [B, N, L, H], mask bool [B, L] (True = attend to it); returns [B, N, L, H]."""
        dropout = self.dropout if self.training else 0.0
        if q.device.type == "cpu" and q.dtype == torch.bfloat16:
            return _bfloat16_attention(q, k, v, mask, dropout)
        return dot_product_attention(q, k, v, mask[:, None, None, :], dropout)


def _bfloat16_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """SoftmaxMixing without the fused kernel, which is at least twice as slow on the CPU in bfloat16."""
    batch, heads, length, size = q.shape
    q, k, v = (part.reshape(batch * heads, length, size) for part in (q, k, v))  # each [BN, L, H]
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)  # [B, L]
    bias = bias.repeat_interleave(heads, dim=0)[:, None, :].expand(-1, length, -1)  # [BN, L, L]
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=size**-0.5)  # [BN, L, L]
    weights = F.dropout(scores.softmax(-1), dropout, training=dropout > 0)
    return (weights @ v).view(batch, heads, length, size)  # [B, N, L, H]


# Attention kinds: modules constructed from the model's config and model.attention_options, each with
#   forward(q, k, v, mask)  as SoftmaxMixing
#   has_weights             whether attention weights are computed, which attention_probs_dropout_prob needs
ATTENTION: dict[str, Any] = {
    "softmax": SoftmaxMixing,
    "linear": LinearMixing,
    "linformer": LinformerMixing,
    "local": LocalMixing,
    "nystrom": NystromMixing,
}


def make_mixing(config: ModelConfig) -> nn.Module:
    """Construct the attention kind config.attention. Raises ValueError if it or an option is unknown or impossible."""
    kind = config.attention
    require(kind in ATTENTION, f"model.attention={kind!r} is not one of {', '.join(ATTENTION)}")
    known = [*inspect.signature(ATTENTION[kind]).parameters][1:]
    for name in config.attention_options:
        problem = f"model.attention_options.{name} does not exist; attention {kind} has {', '.join(known) or 'none'}"
        require(name in known, problem)
    drops = config.attention_probs_dropout_prob > 0 and not ATTENTION[kind].has_weights
    require(not drops, f"attention {kind} has no weights to drop; set attention_probs_dropout_prob to 0")
    mixing: nn.Module = ATTENTION[kind](config, **config.attention_options)
    return mixing


def mixing_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Shapes of the attention kind's own parameters, without memory for them. Raises ValueError as make_mixing."""
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in make_mixing(config).named_parameters()}


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
        self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        batch, length, _ = hidden_states.shape
        projected = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, self.head_size)
        q, k, v = (part.transpose(1, 2) for part in projected.unbind(2))  # each [B, N, L, H]
        mixed = self.mixing(q, k, v, mask).transpose(1, 2).flatten(2)  # [B, L, D]
        output: Tensor = self.LayerNorm(self.output_dropout(self.dense(mixed)) + hidden_states)
        return output
