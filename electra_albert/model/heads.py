"""Pretraining heads: masked language modelling, replaced-token detection and sentence order.

Dimensions: B batch, L length, V vocab, E embedding, D hidden.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import ACTIVATIONS


class MlmHead(nn.Module):
    """Masked language modelling head; its decoder is the word embeddings. Paper: ALBERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
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
        logits: Tensor = self.dense_prediction(self.activation(self.dense(hidden_states))).squeeze(-1)  # [B, L]
        return logits


class SentenceOrderHead(nn.Module):
    """Sentence order or next sentence: whether segment B follows A. Papers: ALBERT section 3.1, BERT section 3.1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [B, L, D]; returns logits [B, 2] of the classes in order and not."""
        # Differs from transformers: no dropout on the pooled output, since ALBERT v2 is pretrained without dropout.
        logits: Tensor = self.classifier(self.pooler(hidden_states[:, 0]).tanh())  # [B, 2]
        return logits
