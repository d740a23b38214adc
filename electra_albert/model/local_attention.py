"""Attention in a sliding window.

Dimensions: as in linear_attention.py, C tokens in a chunk, M chunks, G global tokens.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from electra_albert.config import ModelConfig
from electra_albert.model_config import require_option

_WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """As F.scaled_dot_product_attention; cuDNN's kernel is not used where its gradients can be NaN."""
    is_unsafe = q.is_cuda and k.shape[2] % 128 == 64  # pytorch#196678
    with sdpa_kernel(_WITHOUT_CUDNN) if is_unsafe else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, dropout)


class LocalMixing(nn.Module):
    """Sliding window of `window` tokens on both sides, and `global_tokens`. Paper: Longformer section 3.1."""

    has_weights = True
    # Differs from Longformer: `window` counts tokens on one side, and global tokens have no projections of their own.

    def __init__(self, config: ModelConfig, window: int = 64, global_tokens: int = 1) -> None:
        super().__init__()
        require_option("window", window, 1)
        require_option("global_tokens", global_tokens, 0)
        self.window, self.global_tokens = window, global_tokens
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """As SoftmaxMixing.forward."""
        batch, heads, length, size = q.shape
        chunk, dropout = min(self.window, length), self.dropout if self.training else 0.0
        count, most = -(-length // chunk), min(self.global_tokens, length)
        padding = count * chunk - length
        # A chunk of queries reads the keys of its own and both neighbouring chunks, and those of the global tokens.
        queries = F.pad(q, (0, 0, 0, padding)).view(batch, heads, count, chunk, size).transpose(1, 2)  # [B, M, N, C, H]
        keys, values = (self._neighbours(part, chunk, padding, most) for part in (k, v))  # [B, M, N, G + 3C, H]
        position = torch.arange(-chunk, (count + 1) * chunk, device=q.device)
        near, own = position.unfold(0, 3 * chunk, chunk)[:, None], position[chunk:-chunk].view(count, chunk, 1)
        is_near = ((own - near).abs() <= self.window) & (near >= most)  # [M, C, 3C]
        is_token = F.pad(mask, (chunk, padding + chunk)).unfold(1, 3 * chunk, chunk)[:, :, None]  # [B, M, 1, 3C]
        # Padding attends to itself: without any key the softmax is not defined.
        is_visible = is_near & is_token | (own == near)
        of_global = mask[:, None, None, :most].expand(batch, count, chunk, most)
        visible = torch.cat([of_global, is_visible.expand(batch, -1, -1, -1)], -1)  # [B, M, C, G + 3C]
        queries, keys, values, visible = (part.flatten(0, 1) for part in (queries, keys, values, visible[:, :, None]))
        mixed = dot_product_attention(queries, keys, values, visible, dropout)  # [BM, N, C, H]
        mixed = mixed.view(batch, count, heads, chunk, size).transpose(1, 2).flatten(2, 3)[:, :, :length]
        if not most:
            return mixed
        first = dot_product_attention(q[:, :, :most], k, v, mask[:, None, None, :], dropout)
        return torch.cat([first, mixed[:, :, most:]], 2)

    @staticmethod
    def _neighbours(part: Tensor, chunk: int, padding: int, most: int) -> Tensor:
        """Keys or values [B, N, L, H] of the global tokens and of three chunks, for each chunk [B, M, N, G + 3C, H]."""
        near = F.pad(part, (0, 0, chunk, padding + chunk)).unfold(2, 3 * chunk, chunk)  # [B, N, M, H, 3C]
        near = near.permute(0, 2, 1, 4, 3)
        return torch.cat([part[:, None, :, :most].expand(-1, near.shape[1], -1, -1, -1), near], 3)
