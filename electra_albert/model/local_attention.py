"""Attention in a sliding window.

Dimensions: B batch, L length, N heads, H head size, C tokens in a chunk, M chunks, G global tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.checks import require_option
from electra_albert.config.model import ModelConfig
from electra_albert.model.dot_product import dot_product_attention


class LocalMixing(nn.Module):
    """Sliding window of `window` tokens on both sides, and `global_tokens`.

    A chunk of C = `window` queries reads the keys of the global tokens, of the chunk before, its
    own and the chunk after. Length 7, window 2, one global token:

        queries 0 1    keys 0 | - - 0 1 2 3    query 0 attends to 0, and as global token to all
        queries 2 3    keys 0 | 0 1 2 3 4 5    query 2 attends to 0 | 1 2 3 4
        queries 4 5    keys 0 | 2 3 4 5 6 -    query 5 attends to 0 | 3 4 5 6
        queries 6 -    keys 0 | 4 5 6 - - -    query 6 attends to 0 | 4 5 6

    Sequences of up to three chunks have a mask of all pairs instead, which are no more than those
    of the chunks, and so have exported models, whose length is not known.
    Paper: Longformer section 3.1.
    """

    # Differs from Longformer: `window` counts tokens on one side, and global tokens have no
    # projections of their own.

    def __init__(self, config: ModelConfig, window: int = 64, global_tokens: int = 1) -> None:
        super().__init__()
        require_option("window", window, 1)
        require_option("global_tokens", global_tokens, 0)
        self.window = window
        self.global_tokens = global_tokens
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """As SoftmaxMixing.forward."""
        batch, heads, length, head_size = q.shape
        dropout = self.dropout if self.training else 0.0
        if torch.compiler.is_exporting() or length <= 3 * self.window:
            return dot_product_attention(q, k, v, self._visible_pairs(mask), dropout)
        chunk = self.window
        padding = -length % chunk
        queries = F.pad(q, (0, 0, 0, padding))
        queries = queries.view(batch, heads, -1, chunk, head_size)  # [B, N, M, C, H]
        mixed = dot_product_attention(
            queries.transpose(1, 2).flatten(0, 1),  # [BM, N, C, H]
            self._neighbours(k, padding),
            self._neighbours(v, padding),
            self._visible(mask, padding),
            dropout,
        )
        mixed = mixed.view(batch, -1, heads, chunk, head_size)  # [B, M, N, C, H]
        mixed = mixed.transpose(1, 2).flatten(2, 3)[:, :, :length]  # [B, N, L, H]
        count = self.global_tokens
        if count == 0:
            return mixed
        of_global = dot_product_attention(q[:, :, :count], k, v, mask[:, None, None], dropout)
        return torch.cat([of_global, mixed[:, :, count:]], 2)

    def _visible_pairs(self, mask: Tensor) -> Tensor:
        """Which tokens each token attends to, bool [B, 1, L, L]; mask bool [B, L]."""
        position = torch.arange(mask.shape[1], device=mask.device)
        distance = (position[:, None] - position).abs()
        is_global = position < self.global_tokens
        is_visible = (distance <= self.window) | is_global | is_global[:, None]
        # Padding attends to itself: without any key the softmax is not defined.
        return (is_visible & mask[:, None, None]) | (distance == 0)

    def _neighbours(self, part: Tensor, padding: int) -> Tensor:
        """Keys or values [B, N, L, H] that the queries of each chunk read: [BM, N, G + 3C, H]."""
        chunk = self.window
        near = F.pad(part, (0, 0, chunk, padding + chunk))
        near = near.unfold(2, 3 * chunk, chunk)
        near = near.permute(0, 2, 1, 4, 3)  # [B, M, N, 3C, H]
        of_global = part[:, None, :, : self.global_tokens]
        of_global = of_global.expand(-1, near.shape[1], -1, -1, -1)
        return torch.cat([of_global, near], 3).flatten(0, 1)

    def _visible(self, mask: Tensor, padding: int) -> Tensor:
        """Which of its keys each query attends to, bool [BM, 1, C, G + 3C]; mask bool [B, L]."""
        chunk = self.window
        padded = F.pad(mask, (chunk, padding + chunk))
        position = torch.arange(padded.shape[1], device=mask.device)
        keys = position.unfold(0, 3 * chunk, chunk)[:, None]  # [M, 1, 3C]
        queries = position[chunk:-chunk].view(-1, chunk, 1)  # [M, C, 1]
        is_near = (queries - keys).abs() <= chunk
        is_near &= keys >= chunk + self.global_tokens
        is_token = padded.unfold(1, 3 * chunk, chunk)[:, :, None]  # [B, M, 1, 3C]
        near = is_near & is_token | (queries == keys)  # [B, M, C, 3C]; padding as in _visible_pairs
        of_global = mask[:, None, None, : self.global_tokens]
        of_global = of_global.expand(*near.shape[:3], -1)
        visible = torch.cat([of_global, near], -1)  # [B, M, C, G + 3C]
        return visible.flatten(0, 1)[:, None]
