"""Attention in a sliding window.

Dimensions: B batch, L length, N heads, H head size, C tokens in a chunk, M chunks, G global tokens.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from electra_albert.config.checks import require_option
from electra_albert.config.model import ModelConfig

_WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    dropout: float,
) -> Tensor:
    """As F.scaled_dot_product_attention, without cuDNN's kernel where its gradients can be NaN."""
    is_unsafe = q.is_cuda and k.shape[2] % 128 == 64  # pytorch#196678
    with sdpa_kernel(_WITHOUT_CUDNN) if is_unsafe else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, dropout)


class LocalMixing(nn.Module):
    """Sliding window of `window` tokens on both sides, and `global_tokens`.

    A chunk of C = `window` queries reads the keys of the global tokens, of the chunk before, its
    own and the chunk after. Length 6, window 2, one global token:

        queries 0 1    keys 0 | - - 0 1 2 3    query 0 attends to 0, and as global token to all
        queries 2 3    keys 0 | 0 1 2 3 4 5    query 2 attends to 0 | 1 2 3 4
        queries 4 5    keys 0 | 2 3 4 5 - -    query 5 attends to 0 | 3 4 5

    Paper: Longformer section 3.1.
    """

    # Differs from Longformer: `window` counts tokens on one side, and global tokens have no
    # projections of their own.

    def __init__(
        self,
        config: ModelConfig,
        window: int = 64,
        global_tokens: int = 1,
    ) -> None:
        super().__init__()
        require_option("window", window, 1)
        require_option("global_tokens", global_tokens, 0)
        self.window = window
        self.global_tokens = global_tokens
        self.dropout = config.attention_probs_dropout_prob

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """As SoftmaxMixing.forward."""
        batch, heads, length, head_size = q.shape
        chunk = min(self.window, length)
        chunks = -(-length // chunk)
        padding = chunks * chunk - length
        dropout = self.dropout if self.training else 0.0
        queries = F.pad(q, (0, 0, 0, padding))
        queries = queries.view(batch, heads, chunks, chunk, head_size)
        mixed = dot_product_attention(
            queries.transpose(1, 2).flatten(0, 1),  # [BM, N, C, H]
            self._neighbours(k, chunk, padding),
            self._neighbours(v, chunk, padding),
            self._visible(mask, chunk, padding),
            dropout,
        )
        mixed = mixed.view(batch, chunks, heads, chunk, head_size)
        mixed = mixed.transpose(1, 2).flatten(2, 3)
        mixed = mixed[:, :, :length]  # [B, N, L, H]
        count = self.global_tokens
        if count == 0:
            return mixed
        mask = mask[:, None, None]  # [B, 1, 1, L]
        of_global = dot_product_attention(
            q[:, :, :count],
            k,
            v,
            mask,
            dropout,
        )
        return torch.cat([of_global, mixed[:, :, count:]], 2)

    def _neighbours(
        self,
        part: Tensor,
        chunk: int,
        padding: int,
    ) -> Tensor:
        """Keys or values [B, N, L, H] that the queries of each chunk read: [BM, N, G + 3C, H]."""
        near = F.pad(part, (0, 0, chunk, padding + chunk))
        near = near.unfold(2, 3 * chunk, chunk)
        near = near.permute(0, 2, 1, 4, 3)  # [B, M, N, 3C, H]
        of_global = part[:, None, :, : self.global_tokens]
        of_global = of_global.expand(-1, near.shape[1], -1, -1, -1)
        return torch.cat([of_global, near], 3).flatten(0, 1)

    def _visible(
        self,
        mask: Tensor,
        chunk: int,
        padding: int,
    ) -> Tensor:
        """Which of its keys each query attends to, bool [BM, 1, C, G + 3C]; mask bool [B, L]."""
        padded_length = mask.shape[1] + padding
        position = torch.arange(-chunk, padded_length + chunk, device=mask.device)
        keys = position.unfold(0, 3 * chunk, chunk)[:, None]  # [M, 1, 3C]
        queries = position[chunk:-chunk].view(-1, chunk, 1)  # [M, C, 1]
        is_within = (queries - keys).abs() <= self.window
        is_near = is_within & (keys >= self.global_tokens)
        is_token = F.pad(mask, (chunk, padding + chunk))
        is_token = is_token.unfold(1, 3 * chunk, chunk)[:, :, None]  # [B, M, 1, 3C]
        # Padding attends to itself: without any key the softmax is not defined.
        near = is_near & is_token | (queries == keys)  # [B, M, C, 3C]
        of_global = mask[:, None, None, : self.global_tokens]
        of_global = of_global.expand(*near.shape[:3], -1)
        visible = torch.cat([of_global, near], -1)  # [B, M, C, G + 3C]
        return visible.flatten(0, 1)[:, None]
