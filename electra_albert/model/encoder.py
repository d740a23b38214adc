"""The ALBERT encoder: factorised embeddings, blocks whose parameters are shared between layers, and pretraining heads.

Parameter names are those of stock AlbertModel except for the fused query, key and value (see hub/formats.py).
Dimensions: B batch, L length, V vocab, E embedding, D hidden.
"""

# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra_albert.config import ModelConfig
from electra_albert.model.attention import LayerNorm, SelfAttention

_GELU_NEW = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu_new": _GELU_NEW, "gelu": F.gelu, "relu": F.relu}


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings of size E, then LayerNorm. Paper: ALBERT section 3.1.

    With `base`, word_embeddings are differences that are added to those of `base`, which get no gradient; everything
    else is shared. Paper: He et al. 2021 (DeBERTaV3) section 3.3.
    """

    def __init__(self, config: ModelConfig, base: "Embeddings | None" = None) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self._base: tuple[nn.Embedding, ...] = () if base is None else (base.word_embeddings,)  # a tuple: no submodule
        if base is None:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.embedding_size)
            self.LayerNorm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        else:
            self.position_embeddings, self.LayerNorm = base.position_embeddings, base.LayerNorm
            self.token_type_embeddings = base.token_type_embeddings
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    @property
    def table(self) -> Tensor:
        """The word embeddings [V, E]."""
        weight: Tensor = self.word_embeddings.weight
        return weight if not self._base else weight + self._base[0].weight.detach()

    def merge_base(self) -> None:
        """Add the word embeddings of `base`, if any, for export: afterwards the module is independent of them."""
        with torch.no_grad():
            self.word_embeddings.weight.copy_(self.table)
        self._base = ()

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """input_ids, token_type_ids int64 [B, L]; returns [B, L, E]."""
        positions = self.position_embeddings.weight[: input_ids.shape[1]]  # [L, E]
        embedded = F.embedding(input_ids, self.table) + self.token_type_embeddings(token_type_ids) + positions
        return self.dropout(self.LayerNorm(embedded))


class Block(nn.Module):
    """Transformer block: self-attention and feed-forward, post-LayerNorm. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        # Differs from transformers, which creates this dropout but never applies it; ALBERT's code applies it.
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.full_layer_layer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
        attended = self.attention(hidden_states, mask)
        fed_forward = self.ffn_output(self.activation(self.ffn(attended)))
        return self.full_layer_layer_norm(self.dropout(fed_forward) + attended)


class Group(nn.Module):
    """The blocks of one parameter-sharing group, applied in sequence in each layer of the group."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(Block(config) for _ in range(config.inner_group_num))

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        for block in self.albert_layers:
            hidden_states = block(hidden_states, mask)
        return hidden_states


def apply_group(group: Callable[[Tensor, Tensor], Tensor], hidden_states: Tensor, mask: Tensor) -> Tensor:
    """Apply one layer: hidden_states any float [B, L, D], mask bool [B, L]; returns [B, L, D]."""
    return group(hidden_states, mask)


class Encoder(nn.Module):
    """ALBERT encoder: the projection E to D, then `num_hidden_layers` layers that share the weights of their group."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False  # True: training stores only the input of each layer, recomputes the rest
        self.apply_in_training: Callable[[nn.Module, Tensor, Tensor], Tensor] = apply_group  # or its compiled form
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(Group(config) for _ in range(config.num_hidden_groups))

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """embedded any float [B, L, E], mask bool [B, L] (True = take part); returns hidden states [B, L, D]."""
        hidden_states: Tensor = self.embedding_hidden_mapping_in(embedded)  # [B, L, D]
        is_training = self.training and torch.is_grad_enabled()
        apply = self.apply_in_training if is_training else apply_group
        for group in self.albert_layer_groups:
            for _ in range(self.config.num_hidden_layers // self.config.num_hidden_groups):
                if is_training and self.gradient_checkpointing:
                    hidden_states = checkpoint(apply, group, hidden_states, mask, use_reentrant=False)
                else:
                    hidden_states = apply(group, hidden_states, mask)
        return hidden_states


class Backbone(nn.Module):
    """Embeddings (shared ones if given), encoder and an optional pooler; base class of all models."""

    def __init__(self, config: ModelConfig, embeddings: Embeddings | None = None, *, with_pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings or Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if with_pooler else None

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Last hidden states [B, L, D]; ids int64 [B, L], attention_mask bool [B, L]."""
        return self.encoder(self.embeddings(input_ids, token_type_ids), attention_mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Last hidden states, or the outputs of a subclass's head; arguments as for encode."""
        return self.encode(input_ids, attention_mask, token_type_ids)


class EncoderModel(Backbone):
    """Encoder without a head, as stock AlbertModel; the caller initializes or loads the weights."""


class MlmHead(nn.Module):
    """Masked language modelling head; its decoder is the word embeddings. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.LayerNorm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: Tensor, table: Tensor) -> Tensor:
        """hidden_states any float [..., D], table (word embeddings) [V, E]; returns logits [..., V]."""
        # The table is an argument, so loading, moving or resizing the model cannot untie it.
        transformed = self.LayerNorm(self.activation(self.dense(hidden_states)))  # [..., E]
        return F.linear(transformed, table, self.bias)  # [..., V]


class RtdHead(nn.Module):
    """Replaced-token detection: one logit per token. Paper: ELECTRA section 2."""

    has_energies = False  # True: it returns energies, -log P(token | all others), of `electric`

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_prediction = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [B, L, D]; returns logits [B, L], above 0 = replaced."""
        if self.has_energies:  # around log V, where half precision would round away their differences
            with torch.autocast("cpu" if hidden_states.is_meta else hidden_states.device.type, enabled=False):
                return self._logits(hidden_states.to(self.dense.weight.dtype))
        return self._logits(hidden_states)

    def _logits(self, hidden_states: Tensor) -> Tensor:
        return self.dense_prediction(self.activation(self.dense(hidden_states))).squeeze(-1)  # [B, L]


class SentenceOrderHead(nn.Module):
    """Sentence order: whether segment B follows A. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [B, L, D]; returns logits [B, 2] of the classes in order and not."""
        # Differs from transformers: no dropout on the pooled output, since ALBERT v2 is pretrained without dropout.
        return self.classifier(self.pooler(hidden_states[:, 0]).tanh())  # [B, 2]
