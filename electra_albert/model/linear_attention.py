"""Attention by a feature map: its time is linear in the length.

Dimensions: B batch, L length, N heads, H head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig


class LinearMixing(nn.Module):
    """Attention with the weights φ(q)·φ(k) / Σ φ(q)·φ(k), φ(x) = elu(x) + 1.

    Paper: Katharopoulos et al. 2020.
    """

    has_weights = False

    def __init__(self, _: ModelConfig) -> None:
        super().__init__()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """As SoftmaxMixing.forward."""
        exact = torch.promote_types(v.dtype, torch.float32)
        q = _features(q.to(exact))  # [B, N, L, H]
        k = _features(k.to(exact)) * mask[:, None, :, None]
        device = "cpu" if q.is_meta else q.device.type
        with torch.autocast(device, enabled=False):  # sums over all tokens, in float32
            values = k.transpose(2, 3) @ v.to(exact)  # [B, N, H, H]
            total = q @ k.sum(2)[..., None]  # [B, N, L, 1]
            total = total.clamp(min=torch.finfo(exact).tiny)
            mixed = q @ values / total
        return mixed.to(v.dtype)


def _features(x: Tensor) -> Tensor:
    """elu(x) + 1 without its rounding to zero below about -17."""
    return x.clamp(max=0).exp() + F.relu(x)
