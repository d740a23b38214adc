"""Attention in time linear in the length: a feature map instead of the softmax, or keys and values of fixed number.

Dimensions: B batch, L length, N heads, H head size, P positions, R rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model_config import require_option


class LinearMixing(nn.Module):
    """Attention with the weights φ(q)·φ(k) / Σ φ(q)·φ(k), φ(x) = elu(x) + 1. Paper: Katharopoulos et al. 2020."""

    has_weights = False

    def __init__(self, _: ModelConfig) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """As SoftmaxMixing.forward."""
        exact = torch.promote_types(v.dtype, torch.float32)
        q, k = _features(q.to(exact)), _features(k.to(exact)) * mask[:, None, :, None]  # [B, N, L, H]
        with torch.autocast("cpu" if q.is_meta else q.device.type, enabled=False):  # sums over all tokens, in float32
            values = k.transpose(2, 3) @ v.to(exact)  # [B, N, H, H]
            total = q @ k.sum(2)[..., None]  # [B, N, L, 1]
            return (q @ values / total.clamp(min=torch.finfo(total.dtype).tiny)).to(v.dtype)


def _features(x: Tensor) -> Tensor:
    """elu(x) + 1 without its rounding to zero below about -17."""
    return x.clamp(max=0).exp() + F.relu(x)


class LinformerMixing(nn.Module):
    """Softmax attention to `rank` learned sums of the tokens, the same for all heads. Paper: Wang et al. 2020."""

    # Differs from Linformer: the initial variance is 1 / P, not 1 / R, so that sums of P tokens are as large as one.

    has_weights = True

    def __init__(self, config: ModelConfig, rank: int = 64) -> None:
        super().__init__()
        require_option("rank", rank, 1)
        self.dropout, positions = config.attention_probs_dropout_prob, config.max_position_embeddings
        self.key_projection = nn.Parameter(torch.randn(rank, positions) * positions**-0.5)
        self.value_projection = nn.Parameter(torch.randn(rank, positions) * positions**-0.5)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """As SoftmaxMixing.forward; L at most P."""
        is_token, length = mask[:, None, :, None], q.shape[2]
        keys = self.key_projection[:, :length] @ (k * is_token)  # [B, N, R, H]
        values = self.value_projection[:, :length] @ (v * is_token)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, keys, values, dropout_p=dropout)
