"""Linear attention: a feature map of queries and keys instead of the softmax.

Dimensions: B batch, L length, N heads, H head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model_config import require


class LinearMixing(nn.Module):
    """Attention with the weights φ(q)·φ(k) / Σ φ(q)·φ(k), φ(x) = elu(x) + 1. Paper: Katharopoulos et al. 2020."""

    is_stock = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        has_dropout = config.attention_probs_dropout_prob > 0
        require(not has_dropout, "attention linear has no weights to drop; set attention_probs_dropout_prob to 0")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """As SoftmaxMixing.forward."""
        exact = torch.promote_types(v.dtype, torch.float32)
        q, k = F.elu(q.to(exact)) + 1, (F.elu(k.to(exact)) + 1) * mask[:, None, :, None]  # [B, N, L, H]
        with torch.autocast(q.device.type, enabled=False):  # sums over all tokens, in float32
            values = k.transpose(2, 3) @ v.to(exact)  # [B, N, H, H]
            total = q @ k.sum(2)[..., None]  # [B, N, L, 1]
            return (q @ values / total.clamp(min=torch.finfo(total.dtype).tiny)).to(v.dtype)

    @staticmethod
    def flops(config: ModelConfig, length: int) -> int:
        return 2 * length * config.hidden_size * (2 * config.head_size + 1)
