"""Generator and discriminator, and what the two share.

Dimensions: B batch, L length, M masked, V vocab, E embedding, D hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import Embeddings, Encoder
from electra_albert.model.heads import MlmHead, RtdHead
from electra_albert.model.initialization import (
    initialize_embeddings,
    initialize_encoder,
    initialize_head,
    initialize_rtd_head,
)


class Generator(nn.Module):
    """An encoder with an MLM head tied to its token table: a masked language model."""

    def __init__(self, config: ModelConfig, embeddings: Embeddings) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings
        self.encoder = Encoder(config)
        self.predictions = MlmHead(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """ids int64 [B, L], mask bool [B, L]; returns hidden states [B, L, D]. Logits are asked for where needed."""
        return self.encoder(self.embeddings(input_ids, token_type_ids), attention_mask)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [..., D]; returns scores of every token [..., V]."""
        return self.predictions(hidden_states, self.embeddings.word_embeddings.weight)


class Discriminator(nn.Module):
    """An encoder with a head that says of every token whether it was replaced."""

    def __init__(self, config: ModelConfig, embeddings: Embeddings) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings
        self.encoder = Encoder(config)
        self.discriminator_predictions = RtdHead(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """ids int64 [B, L], mask bool [B, L]; returns logits [B, L], above 0 = replaced."""
        hidden_states = self.encoder(self.embeddings(input_ids, token_type_ids), attention_mask)
        return self.discriminator_predictions(hidden_states)


class Electra(nn.Module):
    """The pair: one table of tokens, positions and segments with its LayerNorm; a mapping E to D for each.

    Paper: ELECTRA section 3.2 (shared embeddings), ALBERT section 3.1 (factorised embeddings).
    """

    def __init__(self, generator: ModelConfig, discriminator: ModelConfig) -> None:
        super().__init__()
        embeddings = Embeddings(discriminator)
        self.generator = Generator(generator, embeddings)
        self.discriminator = Discriminator(discriminator, embeddings)
        initialize_embeddings(embeddings, discriminator)
        for model in (self.generator, self.discriminator):
            initialize_encoder(model.encoder, model.config)
        initialize_head(self.generator.predictions, generator)
        initialize_rtd_head(self.discriminator.discriminator_predictions, discriminator)
