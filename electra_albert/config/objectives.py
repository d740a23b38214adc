"""Options of the objectives."""

from dataclasses import dataclass, replace
from typing import Literal

from electra_albert.config.checks import COUNT, COUNT_OR_0, require, require_filled, require_within
from electra_albert.config.model import ModelConfig

LOWEST_TEMPERATURE = 1e-3  # below it, scaled logits overflow float32


@dataclass(frozen=True)
class RtdConfig:
    """Replaced-token detection. Paper: ELECTRA section 2."""

    mask_rate: float = 0.15
    """Fraction of the maskable tokens of a sequence that the generator predicts."""
    mask_token_share: float = 0.85
    """Fraction of the selected tokens replaced by [MASK]; the others stay unchanged, as in
    ELECTRA's code."""
    temperature: float = 1.0
    """Softmax temperature for sampling replacement tokens from the generator."""
    generator_weight: float = 1.0
    """Weight of the generator's MLM loss in the total loss."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss in the total loss."""
    generator_rate: float = 1.0
    """Learning rate of the generator's own layers, as a multiple of learning_rate (shared
    embeddings, and the warm-up of a new generator: 1)."""
    discriminator_rate: float = 1.0
    """Learning rate of the discriminator's own layers, as a multiple of learning_rate."""
    generator_size: float = 0.25
    """Width of the generator as a fraction of the discriminator's: hidden size, feed-forward size
    and heads."""
    generator_layers: int | None = None
    """Number of generator layers; by default as many as the discriminator has."""
    embedding_sharing: Literal["full", "disentangled"] = "full"
    """full: one table of token embeddings for both models; disentangled: the discriminator adds its
    own differences to the generator's table and does not change it."""
    mlm_share: float = 0.0
    """Fraction of the selected tokens that stay [MASK] for the discriminator, which predicts them
    with its own head."""
    mlm_weight: float = 1.0
    """Weight of the discriminator's MLM loss in the total loss, if mlm_share is above 0."""
    generator_warmup_steps: int | None = None
    """Steps that train only the generator, if init_from has none; by default max_steps / 10, at
    most 10,000."""
    mask_unit: Literal["token", "word", "ngram", "span"] = "token"
    """Unit selected as a whole: token, word, ngram (1 to 3 words, as in ALBERT) or span (1 to 10,
    as in SpanBERT)."""
    generator: str = "own"
    """own: a model of its own; shared: the first generator_layers layers of the discriminator's
    encoder; any other value: folder of a pretrained masked language model, not trained."""

    def __post_init__(self) -> None:
        require_filled(self, "generator")
        require_within(self, "(0, 1)", "mask_rate")
        require_within(self, "[0, 1]", "mask_token_share")
        require_within(self, "[0, 1)", "mlm_share")
        require_within(self, f"[{LOWEST_TEMPERATURE}, inf)", "temperature")
        require_within(self, "(0, 1]", "generator_size")
        require_within(self, COUNT, "generator_layers")
        require_within(self, COUNT_OR_0, "generator_warmup_steps")
        weights = "generator_weight discriminator_weight mlm_weight"
        require_within(self, "(0, inf)", f"{weights} generator_rate discriminator_rate")
        is_used = self.mlm_weight == 1 or self.mlm_share > 0
        require(is_used, f"mlm_weight={self.mlm_weight} needs mlm_share above 0")
        require(
            self.generator != "uniform",
            "generator=uniform is gone: it showed no gain, see dev/log",
        )
        is_of_full_size = self.generator != "shared" or self.generator_size == 1
        require(
            is_of_full_size,
            f"generator=shared is of full size: generator_size={self.generator_size} must be 1",
        )

    @property
    def trains_generator(self) -> bool:
        """Whether the generator is trained; else it is the model in a folder."""
        return self.generator in ("own", "shared")

    def generator_config(self, discriminator: ModelConfig) -> ModelConfig | None:
        """The generator's architecture: narrower, and by default as deep.

        Heads are of the same size if the width allows it. Parameters are shared as in the
        discriminator: as many groups (at most one per layer), or no sharing. None if none is
        trained. Raises ValueError if the layers are not a multiple of the groups, or cannot be
        shared.
        """
        if not self.trains_generator:
            return None
        depth = discriminator.num_hidden_layers
        groups = discriminator.num_hidden_groups
        layers = self.generator_layers or depth
        if self.generator == "shared":
            size = discriminator.group_size
            is_prefix = layers <= size or (layers <= depth and layers % size == 0)
            require(
                is_prefix,
                f"rtd.generator_layers={layers} of {depth} layers in {groups} groups cannot be "
                f"shared; choose up to {size}, or whole groups of {size}",
            )
            groups = max(1, layers // size)
            return replace(discriminator, num_hidden_layers=layers, num_hidden_groups=groups)
        groups = layers if groups == depth else min(groups, layers)
        require(
            layers % groups == 0,
            f"rtd.generator_layers={layers} is not a multiple of model.num_hidden_groups={groups}; "
            "choose another number of layers",
        )
        heads = max(1, round(discriminator.num_attention_heads * self.generator_size))
        head_size = max(1, round(discriminator.hidden_size * self.generator_size / heads))
        return replace(
            discriminator,
            hidden_size=heads * head_size,
            num_attention_heads=heads,
            intermediate_size=max(1, round(discriminator.intermediate_size * self.generator_size)),
            num_hidden_layers=layers,
            num_hidden_groups=groups,
        )


@dataclass(frozen=True)
class MlmConfig:
    """Masked language modelling, for mlm and mlm_sop.

    Papers: BERT section 3.1, ALBERT section 3.1.
    """

    mask_rate: float = 0.15
    """Fraction of the maskable tokens of a sequence that are predicted."""
    mask_token_share: float = 0.8
    """Fraction of the selected tokens replaced by [MASK]."""
    random_token_share: float = 0.1
    """Fraction of the selected tokens replaced by a random token, never a special one; the others
    stay unchanged."""
    mask_unit: Literal["token", "word", "ngram", "span"] = "token"
    """Unit selected as a whole: token, word, ngram (1 to 3 words, as in ALBERT) or span (1 to 10,
    as in SpanBERT)."""

    def __post_init__(self) -> None:
        require_within(self, "(0, 1)", "mask_rate")
        require_within(self, "[0, 1]", "mask_token_share random_token_share")
        total = self.mask_token_share + self.random_token_share
        require(
            total <= 1 + 1e-9,
            f"mask_token_share + random_token_share = {total:g} must not exceed 1",
        )


@dataclass(frozen=True)
class SopConfig:
    """Sentence order (mlm_sop, rtd_sop), ALBERT section 3.1."""

    weight: float = 1.0
    """Weight of the loss of sentence order in the total loss."""

    def __post_init__(self) -> None:
        require_within(self, "(0, inf)", "weight")
