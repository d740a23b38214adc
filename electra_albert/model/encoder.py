"""The encoder: factorised embeddings, blocks shared between layers, and pretraining heads.

Its blocks are ALBERT's or modern ones, which stock ModernBertModel has. Parameter names are those
of stock AlbertModel but for the fused qkv, see hub/formats.py.
Dimensions: B batch, L length, V vocab, E embedding, D hidden.
"""

# mypy: disable-error-code="no-any-return"

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra_albert.config.model import ModelConfig
from electra_albert.model.attention import LayerNorm, SelfAttention

HiddenStates = Tensor | tuple[Tensor, Tensor]  # of ALBERT's and of modern blocks
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings of size E, then LayerNorm.

    For modern blocks only word embeddings.
    With `base`, word_embeddings are differences that are added to those of `base`, which get no
    gradient; everything else is shared.
    Papers: ALBERT section 3.1, He et al. 2021 (DeBERTaV3) section 3.3.
    """

    def __init__(self, config: ModelConfig, base: "Embeddings | None" = None) -> None:
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self._base: tuple[nn.Embedding, ...] = ()  # a tuple: no submodule
        if base is not None:
            self._base = (base.word_embeddings,)
        self.has_positions = config.block == "albert"
        if not self.has_positions:
            return
        if base is None:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
            self.LayerNorm = LayerNorm(size, eps=config.layer_norm_eps)
        else:
            self.position_embeddings = base.position_embeddings
            self.LayerNorm = base.LayerNorm
            self.token_type_embeddings = base.token_type_embeddings

    @property
    def table(self) -> Tensor:
        """The word embeddings [V, E]."""
        table = self.word_embeddings.weight
        for base in self._base:
            table = table + base.weight.detach()
        return table

    def merge_base(self) -> None:
        """Add the word embeddings of `base`, if any: the module is then independent of them."""
        with torch.no_grad():
            self.word_embeddings.weight.copy_(self.table)
        self._base = ()

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """input_ids, token_type_ids int64 [B, L]; returns [B, L, E]."""
        embedded = F.embedding(input_ids, self.table)
        if self.has_positions:
            embedded = embedded + self.token_type_embeddings(token_type_ids)
            embedded = embedded + self.position_embeddings.weight[: input_ids.shape[1]]
            embedded = self.LayerNorm(embedded)
        return self.dropout(embedded)


class Block(nn.Module):
    """Self-attention and feed-forward with post-LayerNorm. Paper: ALBERT section 3.1."""

    inputs = 1  # of the activation: with 2, one is its gate

    def __init__(self, config: ModelConfig, group: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, group)
        self.ffn = nn.Linear(config.hidden_size, self.inputs * config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        # Differs from transformers, which never applies this dropout; ALBERT's code does.
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.full_layer_layer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        attended = self.attention(hidden_states, mask) + hidden_states
        attended = self.attention.LayerNorm(attended)
        fed_forward = self.ffn_output(self.activation(self.ffn(attended)))
        return self.full_layer_layer_norm(self.dropout(fed_forward) + attended)


class ModernBlock(Block):
    """The parts of Block with rotary positions, a gated feed-forward layer and pre-LayerNorm.

    The LayerNorm before the attention is the last one of the block before, so that layers with
    shared weights have the same. Papers: ModernBERT section 2, Shazeer 2020 (GLU variants).
    """

    inputs = 2

    def forward(  # type: ignore[override]
        self, hidden_states: tuple[Tensor, Tensor], mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sums of all layers so far and the same normalized, any float [B, L, D]; returns both."""
        total, normalized = hidden_states
        total = total + self.attention(normalized, mask)
        content, gate = self.ffn(self.attention.LayerNorm(total)).chunk(2, dim=-1)
        content = self.activation(content.contiguous())  # CPUs are slow with strides
        total = total + self.dropout(self.ffn_output(content * gate))
        return total, self.full_layer_layer_norm(total)


BLOCKS: dict[str, Any] = {"albert": Block, "modern": ModernBlock}  # by ModelConfig.block


class Group(nn.Module):
    """The blocks of one parameter-sharing group, applied in sequence in each layer of the group."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        blocks = range(config.inner_group_num)
        self.albert_layers = nn.ModuleList(BLOCKS[config.block](config, number) for _ in blocks)

    def forward(self, hidden_states: HiddenStates, mask: Tensor) -> HiddenStates:
        for block in self.albert_layers:
            hidden_states = block(hidden_states, mask)
        return hidden_states


class Encoder(nn.Module):
    """The projection E to D, then num_hidden_layers layers with the weights of their groups.

    For modern blocks LayerNorm follows the projection.
    gradient_checkpointing: training stores only the input of each layer and recomputes the rest.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.embedding_hidden_mapping_in: Any = nn.Linear(config.embedding_size, config.hidden_size)
        self.is_modern = config.block == "modern"
        if self.is_modern:
            parts = {
                "dense": self.embedding_hidden_mapping_in,
                "LayerNorm": LayerNorm(config.hidden_size, eps=config.layer_norm_eps),
            }
            self.embedding_hidden_mapping_in = nn.Sequential(OrderedDict(parts))
        groups = range(config.num_hidden_groups)
        self.albert_layer_groups = nn.ModuleList(Group(config, group) for group in groups)

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """embedded any float [B, L, E], mask bool [B, L], True = take part; returns [B, L, D]."""
        hidden_states = self.embedding_hidden_mapping_in(embedded)
        if self.is_modern:
            hidden_states = (hidden_states, hidden_states)
        is_recomputed = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for group in self.albert_layer_groups:
            for _ in range(self.config.group_size):
                if is_recomputed:
                    hidden_states = checkpoint(group, hidden_states, mask, use_reentrant=False)
                else:
                    hidden_states = group(hidden_states, mask)
        return hidden_states[1] if self.is_modern else hidden_states


class Backbone(nn.Module):
    """Embeddings, by default new ones, encoder and an optional pooler; base class of all models."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: Embeddings | None = None,
        *,
        with_pooler: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings or Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler: nn.Linear | None = None
        if with_pooler:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Last hidden states [B, L, D]; ids int64 [B, L], attention_mask bool [B, L]."""
        return self.encoder(self.embeddings(input_ids, token_type_ids), attention_mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Last hidden states, or the outputs of a subclass's head; arguments as for encode."""
        return self.encode(input_ids, attention_mask, token_type_ids)


class EncoderModel(Backbone):
    """Encoder without a head, as stock AlbertModel; the caller initializes or loads the weights."""


class PredictionHead(nn.Module):
    """The layers before an output layer: linear, activation and LayerNorm."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.LayerNorm = LayerNorm(size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [..., D]; returns [..., size]."""
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class MlmHead(PredictionHead):
    """Masked language modelling by the word embeddings. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: Tensor, table: Tensor) -> Tensor:  # type: ignore[override]
        """hidden_states any float [..., D], word embeddings [V, E]; returns logits [..., V]."""
        # The table is an argument, so loading, moving or resizing the model cannot untie it.
        transformed = super().forward(hidden_states)  # [..., E]
        return F.linear(transformed, table, self.bias)  # [..., V]


class RtdHead(nn.Module):
    """Replaced-token detection: one logit per token. Paper: ELECTRA section 2."""

    has_energies = False  # True: it returns energies, -log P(token | all others), of `electric`

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.LayerNorm: nn.Module = nn.Identity()
        if config.block == "modern":
            self.LayerNorm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dense_prediction = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [B, L, D]; returns logits [B, L], above 0 = replaced."""
        if not self.has_energies:
            return self._logits(hidden_states)
        # Energies are around log V, where half precision would round away their differences.
        device = "cpu" if hidden_states.is_meta else hidden_states.device.type
        with torch.autocast(device, enabled=False):
            return self._logits(hidden_states.to(self.dense.weight.dtype))

    def _logits(self, hidden_states: Tensor) -> Tensor:
        transformed = self.LayerNorm(self.activation(self.dense(hidden_states)))
        return self.dense_prediction(transformed).squeeze(-1)  # [B, L]


class SentenceOrderHead(nn.Module):
    """Sentence order: whether segment B follows A. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [B, L, D]; returns logits [B, 2]: in order, not in order."""
        # Differs from transformers: no dropout of the pooled output, as ALBERT v2 is pretrained.
        pooled = self.pooler(hidden_states[:, 0]).tanh()
        return self.classifier(pooled)  # [B, 2]
