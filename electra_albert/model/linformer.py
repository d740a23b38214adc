"""Linformer: attention to learned sums of the tokens.

Dimensions: as in linear_attention.py, P positions, R rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.checks import require_option
from electra_albert.config.model import ModelConfig


class LinformerMixing(nn.Module):
    """Softmax attention to `rank` learned sums of the tokens, the same for all heads.

    Paper: Wang et al. 2020.
    """

    has_weights = True
    # Differs from Linformer: the initial variance is 1 / P, not 1 / R, so that sums of P tokens
    # are as large as one.

    def __init__(self, config: ModelConfig, rank: int = 64) -> None:
        super().__init__()
        require_option("rank", rank, 1)
        self.dropout = config.attention_probs_dropout_prob
        positions = config.max_position_embeddings
        scale = positions**-0.5
        self.key_projection = nn.Parameter(torch.randn(rank, positions) * scale)
        self.value_projection = nn.Parameter(torch.randn(rank, positions) * scale)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """As SoftmaxMixing.forward; L at most P."""
        length = mask.shape[1]
        is_token = mask[:, None, :, None]
        keys = self.key_projection[:, :length] @ (k * is_token)  # [B, N, R, H]
        values = self.value_projection[:, :length] @ (v * is_token)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, keys, values, dropout_p=dropout)
