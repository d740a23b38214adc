"""Initial weights: normal as published, or "local": heads start on neighbouring tokens.

From normal weights the loss of a small model stays at the unigram entropy until it has learned to
attend to nearby tokens. Local initialization sets some dimensions of the position embeddings to
sinusoids, and the query of each head rotates them by the head's offset, where its attention scores
are highest. Embeddings and encoder must have the same. In modern blocks, which have rotary
positions, the biases of query and key do that, in two heads.
Dimensions: E embedding, D hidden, N heads, H head size, P positions, W position dimensions.
"""

import math

import torch
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.model.attention import SelfAttention, rotary_frequencies
from electra_albert.model.encoder import Block, Embeddings, Encoder, RtdHead, SentenceOrderHead

POSITION_SHARE = 4  # one in so many embedding dimensions encodes the position
POSITION_AMPLITUDE = 3.0  # of the sinusoids, in standard deviations of a word embedding
FREQUENCY_SPACING = 1.5  # exponent that spaces the frequencies: all positions must differ
SHARPNESS_NATS = 12.0  # margin of a head's own offset over other positions, in attention scores
FULL_STRENGTH_BLOCKS = 3  # deeper models scale residual branches by this over their blocks
HEAD_OFFSETS = (-1, 1, -2, 2, -3, 3)  # of the first heads; further heads keep normal weights
ROTARY_HEADS = 2  # so many in modern blocks, where training hardly changes them
_LOWEST_FREQUENCY = 0.1  # of the rotated pairs that local initialization uses, in radians per token
_PUBLISHED_LOGIT_WIDTH = 256  # the output layer of wider detection heads is scaled down


def initialize(module: nn.Module, config: ModelConfig) -> None:
    """Initialize embeddings, an encoder or a head in place by config.initialization."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=config.initializer_range)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    with torch.no_grad():
        if config.initialization == "local":
            _init_local(module, config)
        elif isinstance(module, RtdHead) and config.hidden_size > _PUBLISHED_LOGIT_WIDTH:
            # Differs from ELECTRA, whose logits grow with D: at 4096 to a loss of 1.0, not ln 2.
            module.dense_prediction.weight *= _PUBLISHED_LOGIT_WIDTH / config.hidden_size
        if config.zero_init_outputs:
            for block in _blocks(module):
                block.attention.dense.weight.zero_()
                block.ffn_output.weight.zero_()


def _blocks(module: nn.Module) -> list[Block]:
    return [part for part in module.modules() if isinstance(part, Block)]


def _init_local(module: nn.Module, config: ModelConfig) -> None:
    if isinstance(module, Embeddings) and module.has_positions:
        positions = torch.arange(config.max_position_embeddings)
        waves = sinusoids(positions, config) * POSITION_AMPLITUDE  # [P, W]
        width = waves.shape[1]
        weight = module.position_embeddings.weight.zero_()
        weight[:, :width] = waves * config.initializer_range
    elif isinstance(module, Encoder):
        if module.is_modern:
            nn.init.orthogonal_(module.embedding_hidden_mapping_in[0].weight)
        else:
            basis = _init_projection(module.embedding_hidden_mapping_in, config)  # [D, W]
        depth = config.num_hidden_layers * config.inner_group_num
        # Scales the residual branches so that the input token reaches the output at any depth.
        scale = min(1.0, FULL_STRENGTH_BLOCKS / depth)
        for block in _blocks(module):
            attention = block.attention
            if module.is_modern:
                _init_rotary(attention)
            else:
                _init_attention(attention, basis, config)
            nn.init.orthogonal_(attention.qkv.weight.chunk(3)[2])
            nn.init.orthogonal_(attention.dense.weight)
            _scale_by_fan_in(block.ffn)
            _scale_by_fan_in(block.ffn_output)
            attention.dense.weight *= scale
            block.ffn_output.weight *= scale
    elif isinstance(module, RtdHead):
        _scale_by_fan_in(module.dense)
        nn.init.zeros_(module.dense_prediction.weight)  # the first predictions are at chance level
    elif isinstance(module, SentenceOrderHead):
        _scale_by_fan_in(module.pooler)
        nn.init.zeros_(module.classifier.weight)


def _scale_by_fan_in(layer: nn.Linear) -> None:
    """Normal weights large enough that the outputs leave the activation's linear range."""
    nn.init.normal_(layer.weight, std=layer.in_features**-0.5)


def sinusoids(positions: Tensor, config: ModelConfig) -> Tensor:
    """Sines and cosines, float [P, W], of positions [P] at W/2 frequencies."""
    pairs = config.embedding_size // POSITION_SHARE // 2
    shares = (torch.arange(pairs) + 0.5) / pairs
    frequencies = math.pi * shares**FREQUENCY_SPACING
    angles = positions[:, None] * frequencies  # [P, W/2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def _init_projection(mapping: nn.Linear, config: ModelConfig) -> Tensor:
    """Let the projection E to D map positions and words to orthogonal subspaces.

    Returns the position basis [D, W].
    """
    size = config.hidden_size
    width = config.embedding_size // POSITION_SHARE // 2 * 2
    rank = min(width, size // 4 * 2)  # even: a sine and its cosine stay together
    basis = nn.init.orthogonal_(torch.empty(size, size))
    if rank:
        words = torch.empty(size - rank, config.embedding_size - width)
        nn.init.orthogonal_(words)
        weight = mapping.weight.zero_()
        weight[:, :rank] = basis[:, :rank]
        weight[:, width:] = basis[:, rank:] @ words
    return basis[:, :rank]


def _init_attention(attention: SelfAttention, positions: Tensor, config: ModelConfig) -> None:
    """Point each head at its offset.

    positions [D, W]: basis of the position subspace of the hidden states.
    """
    head_size = config.head_size
    width = min(positions.shape[1], head_size // 2 * 2)
    if width == 0:
        return  # too narrow for a sine and a cosine: queries and keys keep their normal weights
    share = width / config.embedding_size
    variance = 1 + share * POSITION_AMPLITUDE**2 / 2
    amplitude = POSITION_AMPLITUDE / math.sqrt(variance)  # after LayerNorm
    power = width / 2 * amplitude**2
    gain = math.sqrt(SHARPNESS_NATS * math.sqrt(head_size) / power)
    query, key, _ = attention.qkv.weight.view(3, -1, head_size, config.hidden_size)
    directions = positions[:, :width].T
    for offset, q, k in zip(HEAD_OFFSETS, query, key, strict=False):  # each [H, D]
        k[:width] = gain * directions
        q[:width] = gain * _rotation(width, offset, config) @ directions


def _init_rotary(attention: SelfAttention) -> None:
    """Point the first heads at their offsets by biases of query and key, which positions rotate."""
    query, key, _ = attention.qkv.bias.view(3, attention.num_heads, -1)  # each [N, H]
    size = query.shape[1]
    turns = rotary_frequencies(attention.rope_theta, size, torch.device("cpu"))
    turns = turns[turns >= _LOWEST_FREQUENCY]
    count = len(turns)
    power = (1 - turns.cos()).sum().item()  # margin over the neighbours of the offset, at gain 1
    gain = math.sqrt(SHARPNESS_NATS * math.sqrt(size) / power)
    # A key at position n is turned by n: the score is highest at n = query's position + offset.
    for offset, q, k in zip(HEAD_OFFSETS[:ROTARY_HEADS], query, key, strict=False):
        k[:count] = gain
        q[:count] = gain * (offset * turns).cos()
        q[size // 2 :][:count] = gain * (offset * turns).sin()


def _rotation(width: int, offset: int, config: ModelConfig) -> Tensor:
    """The matrix [W, W] that maps the sinusoids of each position p to those of p + offset."""
    waves = sinusoids(torch.tensor([offset]), config)[0, :width]
    sine, cosine = waves.view(-1, 2).unbind(-1)  # each [W/2]
    blocks = torch.stack((cosine, sine, -sine, cosine), -1).view(-1, 2, 2)  # [W/2, 2, 2]
    return torch.block_diag(*blocks)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]
