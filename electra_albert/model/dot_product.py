"""Scaled dot-product attention, by the kernel that is fast and correct on the device.

Dimensions: B batch, L queries, K keys, N heads, H head size.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """q any float [B, N, L, H], k, v [B, N, K, H], mask bool [B, 1, L or 1, K], True = attend.

    Returns [B, N, L, H]. Without cuDNN's kernel where its gradients can be NaN.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        return _bfloat16_attention(q, k, v, mask, dropout)
    is_unsafe = q.is_cuda and k.shape[2] % 128 == 64  # pytorch#196678
    with sdpa_kernel(_WITHOUT_CUDNN) if is_unsafe else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, dropout)


def _bfloat16_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """The same without the fused kernel, which takes 1.4 times as long or longer in bfloat16."""
    heads, length, head_size = q.shape[1:]
    bias = torch.zeros(mask.shape, dtype=q.dtype)
    bias = bias.masked_fill(~mask, torch.finfo(q.dtype).min)
    bias = bias.expand(-1, heads, -1, -1)  # [B, N, L or 1, K]
    q, k, v, bias = (part.flatten(0, 1) for part in (q, k, v, bias))  # each [BN, ...]
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=head_size**-0.5)  # [BN, L, K]
    weights = F.dropout(scores.softmax(-1), dropout, training=dropout > 0)
    return (weights @ v).view(-1, heads, length, head_size)  # [B, N, L, H]
