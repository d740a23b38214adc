"""Nyström attention: softmax attention through landmarks. Dimensions: as in linear_attention.py, M landmarks."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model_config import require, require_option


class _Landmarks(NamedTuple):
    """Which tokens each landmark is the mean of."""

    shares: Tensor  # [B, 1, M, L] float, the weights of the means
    is_used: Tensor  # [B, 1, M] bool, False for a landmark without a token
    are_tokens: Tensor  # [B, 1, 1, 1] bool, whether each landmark is a single token


class NystromMixing(nn.Module):
    """softmax(q k̃) pinv(softmax(q̃ k̃)) softmax(q̃ k) v for landmarks q̃ and k̃. Paper: Xiong et al. 2021 (Nyströmformer).

    The landmarks are those of the tokens without padding, and exact attention where they are single tokens. With
    `conv_kernel_size`, a depthwise convolution of the values along the length is added.
    """

    has_weights = False
    # Differs from Nyströmformer's code, whose results depend on padding and on the other sequences of a batch: here
    # landmarks are means over tokens without padding, and each matrix has its own start of the pseudo-inverse.

    def __init__(
        self, config: ModelConfig, landmarks: int = 64, pinv_iterations: int = 6, conv_kernel_size: int = 0
    ) -> None:
        super().__init__()
        heads, is_odd = config.num_attention_heads, conv_kernel_size == 0 or conv_kernel_size % 2 == 1
        require_option("landmarks", landmarks, 1)
        require_option("pinv_iterations", pinv_iterations, 1)
        require_option("conv_kernel_size", conv_kernel_size, 0)
        require(is_odd, f"model.attention_options.conv_kernel_size={conv_kernel_size} must be odd, or 0")
        self.landmarks, self.iterations = landmarks, pinv_iterations
        sizes, padding = (heads, heads, (conv_kernel_size, 1)), (conv_kernel_size // 2, 0)
        self.conv = nn.Conv2d(*sizes, padding=padding, bias=False, groups=heads) if conv_kernel_size else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """As SoftmaxMixing.forward."""
        dtype, exact = v.dtype, torch.promote_types(v.dtype, torch.float32)
        v = v.masked_fill(~mask[:, None, :, None], 0.0)
        with torch.autocast("cpu" if q.is_meta else q.device.type, enabled=False):  # the pseudo-inverse needs float32
            mixed = self._mix(q.to(exact) * q.shape[-1] ** -0.5, k.to(exact), v.to(exact), mask).to(dtype)
        return mixed if self.conv is None else mixed + self.conv(v)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        chosen = _choose_landmarks(mask, self.landmarks, q.dtype)
        q_means, k_means, v_means = (chosen.shares @ part for part in (q, k, v))  # [B, N, M, H]
        is_used = chosen.is_used[:, :, None]  # [B, 1, 1, M]
        to_landmarks = _softmax(q @ k_means.transpose(2, 3), is_used)  # [B, N, L, M]
        # A landmark without a token is the only one to attend to itself, which the inverse leaves so.
        between = _softmax(q_means @ k_means.transpose(2, 3), is_used)  # [B, N, M, M]
        identity = torch.eye(self.landmarks, dtype=q.dtype, device=q.device)
        between = torch.where(is_used & is_used.transpose(2, 3), between, identity)
        values = _softmax(q_means @ k.transpose(2, 3), mask[:, None, None]) @ v  # [B, N, M, H]
        values = torch.where(chosen.are_tokens, v_means, _pseudo_inverse(between, self.iterations) @ values)
        return to_landmarks @ values


def _choose_landmarks(mask: Tensor, landmarks: int, dtype: torch.dtype) -> _Landmarks:
    """Divide the tokens of each sequence, mask bool [B, L], among the landmarks as evenly as possible, in order."""
    count = mask.sum(1, keepdim=True)  # [B, 1]
    landmark = (mask.cumsum(1) - 1) * landmarks // count.clamp(min=1)  # [B, L]
    is_member = (landmark[:, None] == torch.arange(landmarks, device=mask.device)[:, None]) & mask[:, None]  # [B, M, L]
    sizes = is_member.sum(2)  # [B, M]
    shares = is_member.to(dtype) / sizes.clamp(min=1)[..., None]
    return _Landmarks(shares[:, None], (sizes > 0)[:, None], (count <= landmarks)[:, :, None, None])


def _softmax(scores: Tensor, is_visible: Tensor) -> Tensor:
    return scores.masked_fill(~is_visible, torch.finfo(scores.dtype).min).softmax(-1)


def _pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """The Moore-Penrose inverse of matrices [B, N, M, M] with rows that sum to 1, by the paper's iteration."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = matrix.transpose(2, 3) / matrix.sum(2, keepdim=True).amax(3, keepdim=True)
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse
