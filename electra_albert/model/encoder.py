"""The ALBERT encoder: factorised embeddings, and blocks whose parameters are shared between layers.

Parameter names are those of stock AlbertModel but for the fused query, key and value (see hub/formats.py).
Dimensions: B batch, L length, V vocab, E embedding, D hidden.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra_albert.config import ModelConfig
from electra_albert.model.attention import ATTENTION, SelfAttention

Compilation = Literal["none", "blocks", "step"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


class Embeddings(nn.Module):
    """Word, position and segment tables of width E, their sum normalised. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """input_ids, token_type_ids int64 [B, L]; returns [B, L, E]."""
        positions = self.position_embeddings.weight[: input_ids.shape[1]]  # [L, E]
        embedded = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids) + positions
        return self.dropout(self.LayerNorm(embedded))


class Block(nn.Module):
    """Attention and feed-forward, each with residual and LayerNorm after it. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        # Differs from transformers, which makes this module and never calls it: ALBERT's own code drops out here.
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        attended = self.attention(hidden_states, mask)
        fed_forward = self.ffn_output(self.activation(self.ffn(attended)))
        return self.full_layer_layer_norm(attended + self.dropout(fed_forward))


class Group(nn.Module):
    """The blocks of one group, applied one after the other in each of its layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(Block(config) for _ in range(config.inner_group_num))

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        for block in self.albert_layers:
            hidden_states = block(hidden_states, mask)
        return hidden_states


def pass_through(group: nn.Module, hidden_states: Tensor, mask: Tensor) -> Tensor:
    """One layer: hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
    return group(hidden_states, mask)


class Encoder(nn.Module):
    """From embeddings to hidden states: the mapping E to D, then `num_hidden_layers` layers with the groups' weights.

    With gradient_checkpointing, training keeps only the input of each layer and computes the rest again.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.training_pass: Callable[[nn.Module, Tensor, Tensor], Tensor] = pass_through  # or its compiled form
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(Group(config) for _ in range(config.num_hidden_groups))

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """embedded any float [B, L, E], mask bool [B, L] (True = take part); returns hidden states [B, L, D]."""
        hidden_states = self.embedding_hidden_mapping_in(embedded)  # [B, L, D]
        is_training = self.training and torch.is_grad_enabled()
        run = self.training_pass if is_training else pass_through
        for group in self.albert_layer_groups:
            for _ in range(self.config.num_hidden_layers // self.config.num_hidden_groups):
                if is_training and self.gradient_checkpointing:
                    hidden_states = checkpoint(run, group, hidden_states, mask, use_reentrant=False)
                else:
                    hidden_states = run(group, hidden_states, mask)
        return hidden_states

    @staticmethod
    def flops(config: ModelConfig, length: int) -> int:
        """Operations over one row, as mixings count them; padding is computed like any other token."""
        hidden, blocks = config.hidden_size, config.num_hidden_layers * config.inner_group_num
        layers = 4 * hidden + 2 * config.intermediate_size  # query, key, value and output; feed-forward
        block = 2 * length * hidden * layers + int(ATTENTION[config.attention].flops(config, length))
        return 2 * length * config.embedding_size * hidden + blocks * block


def set_gradient_checkpointing(module: nn.Module) -> None:
    """Switch gradient checkpointing on in every Encoder inside `module`. Gradients stay the same, to the bit."""
    for part in module.modules():
        if isinstance(part, Encoder):
            part.gradient_checkpointing = True


def compile_for_training(objective: nn.Module, what: Compilation) -> None:
    """Compile training steps: blocks, each group for itself, in seconds; step, the forward pass whole, in minutes."""
    if what != "none":
        import torch._dynamo

        # DDP would cut graphs so that gradients leave early, but a shared block's are whole after its last layer.
        torch._dynamo.config.optimize_ddp = False
    if what == "blocks":
        for part in objective.modules():
            if isinstance(part, Encoder):
                part.training_pass = torch.compile(pass_through, dynamic=False)
    elif what == "step":
        objective.compile(dynamic=False)


class Backbone(nn.Module):
    """Embeddings, its own or those given, the encoder and a pooler where it has one."""

    def __init__(self, config: ModelConfig, embeddings: Embeddings | None = None, *, with_pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings or Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if with_pooler else None

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """ids int64 [B, L], mask bool [B, L]; returns the hidden states [B, L, D] that every head reads."""
        return self.encoder(self.embeddings(input_ids, token_type_ids), attention_mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """The hidden states, or a subclass's own outputs; arguments as for encode."""
        return self.encode(input_ids, attention_mask, token_type_ids)


class EncoderModel(Backbone):
    """Stock AlbertModel; the caller fills the weights."""
