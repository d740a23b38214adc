"""The encoder alone, with or without a pooler: stock AlbertModel.

Dimensions: B batch, L length, D hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import Embeddings, Encoder


class Body(nn.Module):
    """Embeddings, encoder and, where one was trained, the pooler; its weights are drawn or loaded by who makes it."""

    def __init__(self, config: ModelConfig, *, with_pooler: bool) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if with_pooler else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """ids int64 [B, L], mask bool [B, L]; returns hidden states [B, L, D]."""
        return self.encoder(self.embeddings(input_ids, token_type_ids), attention_mask)

    def pooled(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [B, L, D]; returns the pooler's [B, D]. Raises ValueError where there is none."""
        if self.pooler is None:
            raise ValueError("this encoder has no pooler; pool its hidden states in another way")
        return self.pooler(hidden_states[:, 0]).tanh()
