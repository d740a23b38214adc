"""Kinds of attention whose time is linear in the length: feature map, Linformer, sliding window and Nyström.

Dimensions: B batch, L length, N heads, H head size; of Linformer P positions, R rank; of the sliding window C tokens in
a chunk, M chunks, G global tokens; of Nyström M landmarks.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model_config import require, require_option


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

    has_weights = True
    # Differs from Linformer: the initial variance is 1 / P, not 1 / R, so that sums of P tokens are as large as one.

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
        mixed = F.scaled_dot_product_attention(queries, keys, values, visible, dropout)  # [BM, N, C, H]
        mixed = mixed.view(batch, count, heads, chunk, size).transpose(1, 2).flatten(2, 3)[:, :, :length]
        if not most:
            return mixed
        first = F.scaled_dot_product_attention(q[:, :, :most], k, v, mask[:, None, None, :], dropout)
        return torch.cat([first, mixed[:, :, most:]], 2)

    @staticmethod
    def _neighbours(part: Tensor, chunk: int, padding: int, most: int) -> Tensor:
        """Keys or values [B, N, L, H] of the global tokens and of three chunks, for each chunk [B, M, N, G + 3C, H]."""
        near = F.pad(part, (0, 0, chunk, padding + chunk)).unfold(2, 3 * chunk, chunk)  # [B, N, M, H, 3C]
        near = near.permute(0, 2, 1, 4, 3)
        return torch.cat([part[:, None, :, :most].expand(-1, near.shape[1], -1, -1, -1), near], 3)


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
