"""Trial of a modern block: any command of electra-albert with parts of ModernBERT's.

    python -m experiments.modern_block rotary,gated,prenorm pretrain --preset small ...
    python -m experiments.modern_block rotary,gated,prenorm read RUN unseen.txt 128 256 512

The second prints the nats per token of the generator at these lengths, the same tokens at each.

rotary: rotary positions instead of position embeddings (RoFormer). Local initialization turns the
biases of query and key by the head's offset. gated: GeGLU, whose two inputs are one matrix; equal
parameters need 2/3 of intermediate_size. prenorm: LayerNorm before attention and feed-forward, and
one without weights at the end. unbiased: no biases but those of query, key and value.
Only the same PARTS read its folders.
"""

import math
import sys
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.cli import run
from electra_albert.config.model import ModelConfig
from electra_albert.inference.model import load_model
from electra_albert.inference.scoring import predict_batch
from electra_albert.model import electra, encoder, initialization
from electra_albert.model.attention import SelfAttention
from electra_albert.tokenization.tokenizer import special_ids

PARTS = ("rotary", "gated", "prenorm", "unbiased")
BASE = 10_000.0  # of the wavelengths
_LOWEST_FREQUENCY = 0.1  # of the pairs that local initialization uses, in radians per token


def frequencies(head_size: int) -> Tensor:
    """Radians per token of each pair of dimensions [H/2]."""
    return BASE ** (-torch.arange(0, head_size, 2) / head_size)


@lru_cache
def waves(length: int, head_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sine and cosine, each [L, H/2], of the positions."""
    angles = torch.arange(length)[:, None] * frequencies(head_size)
    return angles.sin().to(dtype), angles.cos().to(dtype)


def rotate(heads: Tensor) -> Tensor:
    """Rotate pairs of dimensions of heads any float [B, N, L, H] by their positions."""
    sine, cosine = waves(*heads.shape[-2:], heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(rotated, dim=-1)


class RotaryMixing(nn.Module):
    """An attention kind on rotated queries and keys."""

    def __init__(self, mixing: nn.Module) -> None:
        super().__init__()
        self.mixing = mixing

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Arguments and result as of SoftmaxMixing."""
        mixed: Tensor = self.mixing(rotate(q), rotate(k), v, mask)
        return mixed


class Block(encoder.Block):
    """Block with the chosen parts."""

    parts: tuple[str, ...] = ()

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if "rotary" in self.parts:
            self.attention.mixing = RotaryMixing(self.attention.mixing)
        if "gated" in self.parts:
            self.ffn = nn.Linear(config.hidden_size, 2 * config.intermediate_size)
        if "prenorm" in self.parts:
            self.attention_norm = self.attention.LayerNorm
            self.attention.add_module("LayerNorm", nn.Identity())
        if "unbiased" in self.parts:
            for name, parameter in self.named_parameters():
                if name.endswith("bias") and "qkv" not in name:
                    parameter.requires_grad_(False)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        if "prenorm" not in self.parts:
            attended = self.attention(hidden_states, mask)
            normalized: Tensor = self.full_layer_layer_norm(self._feed_forward(attended) + attended)
            return normalized
        # SelfAttention adds its own input, which here is normalized.
        normalized = self.attention_norm(hidden_states)
        hidden_states = hidden_states + self.attention(normalized, mask) - normalized
        return hidden_states + self._feed_forward(self.full_layer_layer_norm(hidden_states))

    def _feed_forward(self, hidden_states: Tensor) -> Tensor:
        wide = self.ffn(hidden_states)
        if "gated" in self.parts:
            value, gate = wide.chunk(2, dim=-1)
            wide = self.activation(value) * gate
        else:
            wide = self.activation(wide)
        narrow: Tensor = self.dropout(self.ffn_output(wide))
        return narrow


class Encoder(encoder.Encoder):
    """Encoder whose output is normalized if its blocks are not."""

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        hidden_states = super().forward(embedded, mask)
        if "prenorm" in Block.parts:
            return F.layer_norm(hidden_states, hidden_states.shape[-1:])
        return hidden_states


class Embeddings(encoder.Embeddings):
    """Embeddings without positions, whose table keeps its gradient of zero."""

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        embedded = F.embedding(input_ids, self.table) + self.token_type_embeddings(token_type_ids)
        embedded = embedded + 0 * self.position_embeddings.weight[:1]
        dropped: Tensor = self.dropout(self.LayerNorm(embedded))
        return dropped


def init_rotary(attention: SelfAttention, _: Tensor, config: ModelConfig) -> None:
    """Point each head at its offset by the biases of its query and key."""
    size = config.head_size
    turns = frequencies(size)
    turns = turns[turns >= _LOWEST_FREQUENCY]
    power = (1 - turns.cos()).sum().item()
    gain = math.sqrt(initialization.SHARPNESS_NATS * math.sqrt(size) / power)
    query, key, _ = attention.qkv.bias.view(3, config.num_attention_heads, size)
    for head, offset in enumerate(initialization.HEAD_OFFSETS[: config.num_attention_heads]):
        # A key at position n is turned by n; the score is highest at n = m + offset.
        angles = offset * turns
        key[head, : len(turns)] = gain
        query[head, : len(turns)] = gain * angles.cos()
        query[head, size // 2 : size // 2 + len(turns)] = gain * angles.sin()
    nn.init.orthogonal_(attention.qkv.weight.view(3, -1, config.hidden_size)[2])
    nn.init.orthogonal_(attention.dense.weight)


def read(run: str, text: str, *lengths: str) -> int:
    """Print the nats per token of a text's first 512 x 64 tokens at each sequence length."""
    model = load_model(run)
    tokenizer = model.tokenizer
    special = special_ids(tokenizer)
    words = Path(text).read_text(encoding="utf-8").replace("\n", " ")[:400_000]
    ids = torch.tensor(tokenizer(words, add_special_tokens=False)["input_ids"][: 512 * 64])
    for length in map(int, lengths):
        sums = torch.zeros(4, dtype=torch.float64)
        for part in ids.split(length - 2):
            if len(part) == length - 2:
                border = torch.tensor([special.cls, special.sep])
                row = torch.cat([border[:1], part, border[1:]])[None]
                zeros = torch.zeros_like(row)
                batch = SimpleNamespace(
                    input_ids=row, attention_mask=zeros == 0, token_type_ids=zeros
                )
                sums += predict_batch(model.generator, batch, special)
        print(f"{run}\t{length}\t{sums[0] / sums[3]:.4f} nats\taccuracy {sums[2] / sums[3]:.4f}")
    return 0


def main(argv: list[str]) -> int:
    """Replace the block's parts, then run the command."""
    parts = tuple(filter(None, argv[0].split(","))) if argv else ()
    if not argv or set(parts) - set(PARTS):
        print(f"usage: python -m experiments.modern_block PARTS COMMAND; PARTS: {','.join(PARTS)}")
        return 2
    Block.parts = parts
    vars(encoder).update(Block=Block, Encoder=Encoder)
    ModelConfig.is_stock = property(lambda _: not parts)  # type: ignore[assignment]
    if "rotary" in parts:
        for module in (encoder, electra):
            vars(module)["Embeddings"] = Embeddings
        vars(initialization)["_init_attention"] = init_rotary
    return read(*argv[2:]) if argv[1] == "read" else run(argv[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
