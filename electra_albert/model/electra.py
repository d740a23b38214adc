"""Generator, discriminator, and the pair with shared embeddings.

Dimensions: B batch, L length, V vocab, E embedding, D hidden.
"""

# mypy: disable-error-code="no-any-return"

from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.model.encoder import Backbone, Embeddings, MlmHead, RtdHead, SentenceOrderHead
from electra_albert.model.initialization import initialize

_HEADS = ("discriminator_predictions", "predictions", "sentence_order")


class Generator(Backbone):
    """An encoder with an MLM head tied to its word embeddings; a pooler is only kept for export."""

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
        """MLM logits [..., V] from hidden_states, any float [..., D]."""
        return self.predictions(hidden_states, self.embeddings.table)


class Discriminator(Backbone):
    """An encoder with a replaced-token detection head and, optionally, an MLM head."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: Embeddings | None = None,
        *,
        with_sentence_order: bool = False,
        with_mlm: bool = False,
    ) -> None:
        super().__init__(config, embeddings)
        self.discriminator_predictions = RtdHead(config)
        self.predictions = MlmHead(config) if with_mlm else None
        self.sentence_order = SentenceOrderHead(config) if with_sentence_order else None

    @property
    def has_energies(self) -> bool:
        return self.discriminator_predictions.has_energies

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Replaced-token logits [B, L], above 0 = replaced; arguments as for encode."""
        hidden_states = self.encode(input_ids, attention_mask, token_type_ids)
        return self.discriminator_predictions(hidden_states)

    def mlm_logits(self, hidden_states: Tensor) -> Tensor:
        """MLM logits [..., V] from hidden_states, any float [..., D]."""
        assert self.predictions is not None
        return self.predictions(hidden_states, self.embeddings.table)


class Electra(nn.Module):
    """Generator, if any, and discriminator with optional `heads`, with shared embeddings.

    is_disentangled: the discriminator adds its own differences to the word embeddings.
    Paper: ELECTRA section 3.2 (shared embeddings), ALBERT section 3.1 (factorised embeddings).
    """

    def __init__(
        self,
        generator: ModelConfig | None,
        discriminator: ModelConfig,
        *,
        is_disentangled: bool = False,
        **heads: bool,
    ) -> None:
        super().__init__()
        embeddings = Embeddings(discriminator)
        self.generator = None if generator is None else Generator(generator, embeddings)
        if is_disentangled:
            embeddings = Embeddings(discriminator, embeddings)
        self.discriminator = Discriminator(discriminator, embeddings, **heads)
        initialize_models(*filter(None, (self.generator, self.discriminator)))
        if is_disentangled:
            nn.init.zeros_(embeddings.word_embeddings.weight)


def initialize_models(*models: Backbone) -> None:
    """Initialize models with shared embeddings, drawn from torch's generator in a fixed order."""
    initialize(models[0].embeddings, models[0].config)
    for model in models:
        initialize(model.encoder, model.config)
    for model in models:
        for name, head in model.named_children():
            if name in _HEADS:
                initialize(head, model.config)
