"""Self-attention: projections around an attention kind, which maps q, k and v to the output.

Dimensions: B batch, L length, D hidden, N heads, H head size.
"""

# mypy: disable-error-code="no-any-return"

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config.checks import require
from electra_albert.config.model import ModelConfig
from electra_albert.model.dot_product import dot_product_attention
from electra_albert.model.local_attention import LocalMixing


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

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q, k, v any float [B, N, L, H], mask bool [B, L], True = attend; returns [B, N, L, H]."""
        dropout = self.dropout if self.training else 0.0
        return dot_product_attention(q, k, v, mask[:, None, None], dropout)


# Attention kinds: modules made from the model's config and model.attention_options, with a forward
# as that of SoftmaxMixing.
ATTENTION: dict[str, Any] = {"softmax": SoftmaxMixing, "local": LocalMixing}


def make_mixing(config: ModelConfig) -> nn.Module:
    """Construct config.attention. Raises ValueError if it or an option is unknown or impossible."""
    kind = config.attention
    require(kind in ATTENTION, f"model.attention={kind!r} is not one of {', '.join(ATTENTION)}")
    mixing = ATTENTION[kind]
    known = list(inspect.signature(mixing).parameters)[1:]
    has = f"attention {kind} has {', '.join(known) or 'none'}"
    for name in config.attention_options:
        require(name in known, f"model.attention_options.{name} does not exist; {has}")
    return mixing(config, **config.attention_options)


class SelfAttention(nn.Module):
    """Multi-head self-attention of one block, and the LayerNorm that follows it in the block.

    In a modern block, queries and keys are rotated by their positions, and in most groups tokens
    may attend to a sliding window only. Paper: ModernBERT section 2.1.
    """

    def __init__(self, config: ModelConfig, group: int) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.is_rotary = config.block == "modern"
        # Query, key and value in one matrix; hub/formats.py splits it for stock folders.
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.mixing = make_mixing(config)
        self.rope_theta = config.global_rope_theta
        if self.is_rotary and not config.is_global(group):
            self.mixing = LocalMixing(config, config.local_attention // 2, global_tokens=0)
            self.rope_theta = config.local_rope_theta
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        projected = self.qkv(hidden_states)
        projected = projected.unflatten(-1, (3, self.num_heads, -1))
        q, k, v = (part.transpose(1, 2) for part in projected.unbind(2))  # each [B, N, L, H]
        if self.is_rotary:
            q, k = rotate(torch.stack([q, k]), self.rope_theta)  # of [2, B, N, L, H]
        mixed = self.mixing(q, k, v, mask)  # [B, N, L, H]
        mixed = mixed.transpose(1, 2).flatten(2)  # [B, L, D]
        return self.output_dropout(self.dense(mixed))


def rotary_frequencies(theta: float, head_size: int, device: torch.device | None = None) -> Tensor:
    """Radians per token of each pair of features, float32 [H/2]."""
    return theta ** (-torch.arange(0, head_size, 2, device=device) / head_size)


def rotate(heads: Tensor, theta: float) -> Tensor:
    """Rotate pairs of features of queries and keys, any float [..., L, H], by their positions.

    Paper: Su et al. 2021 (RoFormer) section 3.2.
    """
    length, size = heads.shape[-2:]
    positions = torch.arange(length, device=heads.device)
    angles = positions[:, None] * rotary_frequencies(theta, size, heads.device)  # [L, H/2]
    sine = angles.sin().to(heads.dtype)
    cosine = angles.cos().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(rotated, dim=-1)
