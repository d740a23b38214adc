"""Nyström attention: softmax attention through landmarks.

Dimensions: as in linear_attention.py, M landmarks.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra_albert.config.checks import require_option
from electra_albert.config.model import ModelConfig


class _Landmarks(NamedTuple):
    """Which tokens each landmark is the mean of."""

    shares: Tensor  # [B, 1, M, L] float, the weights of the means
    is_used: Tensor  # [B, 1, 1, M] bool, False for a landmark without a token
    are_tokens: Tensor  # [B, 1, 1, 1] bool, whether each landmark is a single token


class NystromMixing(nn.Module):
    """softmax(q k̃) pinv(softmax(q̃ k̃)) softmax(q̃ k) v for landmarks q̃ and k̃.

    The landmarks are those of the tokens without padding, and exact attention where they are
    single tokens. Paper: Xiong et al. 2021 (Nyströmformer), without its convolution of the values.
    """

    has_weights = False
    # Differs from Nyströmformer's code, whose results depend on padding and on the other sequences
    # of a batch: here landmarks are means over tokens without padding, and each matrix has its own
    # start of the pseudo-inverse.

    def __init__(self, config: ModelConfig, landmarks: int = 64, pinv_iterations: int = 6) -> None:
        super().__init__()
        require_option("landmarks", landmarks, 1)
        require_option("pinv_iterations", pinv_iterations, 1)
        self.landmarks = landmarks
        self.iterations = pinv_iterations

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """As SoftmaxMixing.forward."""
        exact = torch.promote_types(v.dtype, torch.float32)
        v = v.masked_fill(~mask[:, None, :, None], 0.0)
        scaled = q.to(exact) * q.shape[-1] ** -0.5
        device = "cpu" if q.is_meta else q.device.type
        with torch.autocast(device, enabled=False):  # the pseudo-inverse needs float32
            mixed = self._mix(scaled, k.to(exact), v.to(exact), mask)
        return mixed.to(v.dtype)

    def _mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
    ) -> Tensor:
        landmarks = _choose_landmarks(mask, self.landmarks, q.dtype)
        q_means = landmarks.shares @ q  # [B, N, M, H]
        k_means = landmarks.shares @ k
        v_means = landmarks.shares @ v
        is_used = landmarks.is_used
        to_landmarks = _softmax(q @ k_means.transpose(2, 3), is_used)  # [B, N, L, M]
        # A landmark without a token is the only one to attend to itself: the inverse keeps it so.
        between = _softmax(q_means @ k_means.transpose(2, 3), is_used)  # [B, N, M, M]
        identity = torch.eye(self.landmarks, dtype=q.dtype, device=q.device)
        between = torch.where(is_used & is_used.transpose(2, 3), between, identity)
        to_tokens = _softmax(q_means @ k.transpose(2, 3), mask[:, None, None])  # [B, N, M, L]
        values = to_tokens @ v  # [B, N, M, H]
        values = _pseudo_inverse(between, identity, self.iterations) @ values
        values = torch.where(landmarks.are_tokens, v_means, values)
        return to_landmarks @ values


def _choose_landmarks(
    mask: Tensor,
    landmarks: int,
    dtype: torch.dtype,
) -> _Landmarks:
    """Divide the tokens of each sequence, mask bool [B, L], evenly among the landmarks, in order.

    Five tokens, two landmarks: tokens 0 1 2 to the first, 3 4 to the second.
    """
    count = mask.sum(1, keepdim=True)  # [B, 1]
    index = mask.cumsum(1) - 1
    landmark = index * landmarks // count.clamp(min=1)  # [B, L]
    number = torch.arange(landmarks, device=mask.device)[:, None]
    is_member = (landmark[:, None] == number) & mask[:, None]  # [B, M, L]
    sizes = is_member.sum(2)[..., None]  # [B, M, 1]
    shares = is_member.to(dtype) / sizes.clamp(min=1)
    return _Landmarks(
        shares=shares[:, None],
        is_used=(sizes > 0).view(-1, 1, 1, landmarks),
        are_tokens=(count <= landmarks)[..., None, None],
    )


def _softmax(scores: Tensor, is_visible: Tensor) -> Tensor:
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~is_visible, lowest).softmax(-1)


def _pseudo_inverse(
    matrix: Tensor,
    identity: Tensor,
    iterations: int,
) -> Tensor:
    """The Moore-Penrose inverse of matrices [B, N, M, M] with rows that sum to 1.

    identity [M, M]. By the paper's iteration.
    """
    largest_sum = matrix.sum(2, keepdim=True).amax(3, keepdim=True)
    inverse = matrix.transpose(2, 3) / largest_sum
    for _ in range(iterations):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse
