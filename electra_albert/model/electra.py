"""Generator, discriminator, and the pair that shares its tables.

Dimensions: B batch, L length, M masked, V vocab, E embedding, D hidden.
"""

from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.model.encoder import Backbone, Embeddings
from electra_albert.model.heads import MlmHead, RtdHead, SentenceOrderHead
from electra_albert.model.initialization import initialize


class Generator(Backbone):
    """An encoder with an MLM head tied to its token table. A pooler is kept for export only."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: Embeddings | None = None,
        *,
        with_sentence_order: bool = False,
        with_pooler: bool = False,
    ) -> None:
        super().__init__(config, embeddings, with_pooler=with_pooler)
        self.predictions = MlmHead(config)
        self.sentence_order = SentenceOrderHead(config) if with_sentence_order else None

    def logits(self, hidden_states: Tensor) -> Tensor:
        """hidden_states any float [..., D]; returns scores of every token [..., V]."""
        return self.predictions(hidden_states, self.embeddings.word_embeddings.weight)


class Discriminator(Backbone):
    """An encoder with a replaced-token head."""

    def __init__(
        self, config: ModelConfig, embeddings: Embeddings | None = None, *, with_sentence_order: bool = False
    ) -> None:
        super().__init__(config, embeddings)
        self.discriminator_predictions = RtdHead(config)
        self.sentence_order = SentenceOrderHead(config) if with_sentence_order else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Logits [B, L], above 0 = replaced; arguments as for encode."""
        return self.discriminator_predictions(self.encode(input_ids, attention_mask, token_type_ids))


class Electra(nn.Module):
    """The pair: shared tables and their LayerNorm, a mapping E to D for each. Sentence order is the discriminator's.

    Paper: ELECTRA section 3.2 (shared embeddings), ALBERT section 3.1 (factorised embeddings).
    """

    def __init__(
        self, generator: ModelConfig, discriminator: ModelConfig, *, with_sentence_order: bool = False
    ) -> None:
        super().__init__()
        embeddings = Embeddings(discriminator)
        self.generator = Generator(generator, embeddings)
        self.discriminator = Discriminator(discriminator, embeddings, with_sentence_order=with_sentence_order)
        initialize_models(self.generator, self.discriminator)


def initialize_models(*models: Generator | Discriminator) -> None:
    """Draw the weights of models that share their embeddings; the order of the draws decides what a seed gives."""
    initialize(models[-1].embeddings, models[-1].config)
    for model in models:
        initialize(model.encoder, model.config)
    for model in models:
        head = model.predictions if isinstance(model, Generator) else model.discriminator_predictions
        for part in (head, model.sentence_order):
            if part is not None:
                initialize(part, model.config)
