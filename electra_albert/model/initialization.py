"""Initial weights: the published normal ones, or local ones whose heads look at neighbouring tokens from step one.

From normal weights a small model stays at the unigram entropy until it has learned where a token's neighbours are. In
the local form positions are sinusoids in a few dimensions of the table, and each head's query turns them by an offset
of its own, so that key and query agree best at that distance. Embeddings and encoder must have the same form.
Dimensions: E embedding, D hidden, N heads, H head size, P positions, W the dimensions that hold a position.
"""

import math

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.attention import SelfAttention
from electra_albert.model.encoder import Block, Embeddings, Encoder
from electra_albert.model.heads import RtdHead, SentenceOrderHead

POSITION_SHARE = 4  # one dimension in so many holds the position
POSITION_AMPLITUDE = 3.0  # of the sinusoids, in standard deviations of a word's dimension
RATE_SPACING = 1.5  # exponent that spaces the rates so that no two positions of a row look alike
SHARPNESS_NATS = 12.0  # how far a head's own offset is above the other positions before the softmax
FULL_STRENGTH_BLOCKS = 3  # blocks that may add all they compute; of more, each adds its share of as much
HEAD_OFFSETS = (-1, 1, -2, 2, -3, 3)  # the first N of them; further heads start out normal
_PUBLISHED_LOGIT_WIDTH = 256  # up to this width the detection head starts as published, above it with less


def initialize(module: nn.Module, config: ModelConfig) -> None:
    """Fill embeddings, an encoder or a head: normal weights and zero biases as published, or local ones."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=config.initializer_range)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    with torch.no_grad():
        if config.initialization == "local":
            _make_local(module, config)
        elif isinstance(module, RtdHead) and config.hidden_size > _PUBLISHED_LOGIT_WIDTH:
            # Differs from ELECTRA: normal logits grow with the width, to a loss of 1.0 nats for ln 2 at H4096.
            module.dense_prediction.weight *= _PUBLISHED_LOGIT_WIDTH / config.hidden_size


def _make_local(module: nn.Module, config: ModelConfig) -> None:
    if isinstance(module, Embeddings):
        table = _sinusoids(torch.arange(config.max_position_embeddings), config)  # [P, W]
        position_embeddings = module.position_embeddings.weight.zero_()
        position_embeddings[:, : table.shape[1]] = table * POSITION_AMPLITUDE * config.initializer_range
    elif isinstance(module, Encoder):
        positions = _map_positions_apart(module.embedding_hidden_mapping_in, config)  # [D, W]
        for block in module.modules():
            if isinstance(block, Block):
                _look_at_neighbours(block.attention, positions, config)
                for layer in (block.ffn, block.ffn_output):  # wide enough to be bent by the activation
                    nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
                # So that a token reaches the output as well through many blocks as through a few.
                for layer in (block.attention.dense, block.ffn_output):
                    layer.weight *= min(1.0, FULL_STRENGTH_BLOCKS / (config.num_hidden_layers * config.inner_group_num))
    elif isinstance(module, RtdHead | SentenceOrderHead):
        wide = module.dense if isinstance(module, RtdHead) else module.pooler
        output = module.dense_prediction if isinstance(module, RtdHead) else module.classifier
        nn.init.normal_(wide.weight, std=wide.in_features**-0.5)
        nn.init.zeros_(output.weight)  # with other weights the wide layer would decide the first logits


def _sinusoids(positions: Tensor, config: ModelConfig) -> Tensor:
    """positions [P]; returns sine and cosine at each rate, float [P, W]."""
    pairs = config.embedding_size // POSITION_SHARE // 2
    rates = math.pi * ((torch.arange(pairs) + 0.5) / pairs) ** RATE_SPACING
    angles = positions[:, None] * rates  # [P, W/2]
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _map_positions_apart(mapping: nn.Linear, config: ModelConfig) -> Tensor:
    """Make the mapping E to D send position and word to orthogonal directions; returns the position's [D, W]."""
    width = config.embedding_size // POSITION_SHARE // 2 * 2
    basis = nn.init.orthogonal_(torch.empty(config.hidden_size, config.hidden_size))
    apart = min(width, config.hidden_size // 4 * 2)  # a sine and its cosine stay together
    if apart:
        words = nn.init.orthogonal_(torch.empty(config.hidden_size - apart, config.embedding_size - width))
        mapping.weight.zero_()
        mapping.weight[:, :apart] = basis[:, :apart]
        mapping.weight[:, width:] = basis[:, apart:] @ words
    return basis[:, :apart]


def _look_at_neighbours(attention: SelfAttention, positions: Tensor, config: ModelConfig) -> None:
    """positions [D, W]: directions of the residual stream that hold the position."""
    head_size = config.head_size
    width = min(positions.shape[1], head_size // 2 * 2)
    if not width:
        return  # a head too narrow to turn a sine and a cosine starts out normal
    share = width / config.embedding_size
    amplitude = POSITION_AMPLITUDE / math.sqrt(1 + share * POSITION_AMPLITUDE**2 / 2)  # once LayerNorm has scaled it
    gain = math.sqrt(SHARPNESS_NATS * math.sqrt(head_size) / (width / 2 * amplitude**2))
    query, key, value = attention.qkv.weight.view(3, config.num_attention_heads, head_size, config.hidden_size)
    for head, offset in zip(range(config.num_attention_heads), HEAD_OFFSETS, strict=False):
        key[head, :width] = gain * positions[:, :width].T
        query[head, :width] = gain * _turn(width, offset, config) @ positions[:, :width].T
    nn.init.orthogonal_(value.flatten(0, 1))
    nn.init.orthogonal_(attention.dense.weight)


def _turn(width: int, offset: int, config: ModelConfig) -> Tensor:
    """The matrix [W, W] that takes the sinusoids of a position to those of the position `offset` further on."""
    sine, cosine = _sinusoids(torch.tensor([offset]), config)[0, :width].view(-1, 2).unbind(-1)
    turns = torch.stack([torch.stack([cosine, sine], -1), torch.stack([-sine, cosine], -1)], -2)  # [W/2, 2, 2]
    return torch.block_diag(*turns)
