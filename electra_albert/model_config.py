"""Settings of models and objectives as frozen dataclasses, and the checks of all settings."""

from dataclasses import dataclass, field, replace
from typing import Literal

from electra_albert.contracts import UsageError

MAX_LAYERS = 1024  # layers with shared weights cost no memory: without a bound a bad config would run forever
MAX_WIDTH = 1 << 20
COUNT, COUNT_OR_0 = f"[1, {1 << 31}]", f"[0, {1 << 31}]"  # intervals; larger numbers would overflow somewhere
LOWEST_TEMPERATURE = 1e-3  # below it, scaled logits overflow float32


def require(condition: bool, message: str) -> None:
    """Raise UsageError, which is a ValueError, unless the condition holds."""
    if not condition:
        raise UsageError(message)


def require_within(config: object, interval: str, names: str) -> None:
    """Require each named field to be in an interval such as [0, 1); None (use the default) is allowed."""
    low, high = map(float, interval[1:-1].split(","))
    for name in names.split():
        value = getattr(config, name)
        is_closed_end = (value == low and interval[0] == "[") or (value == high and interval[-1] == "]")
        require(value is None or low < value < high or is_closed_end, f"{name}={value} must be in {interval}")


def require_option(name: str, value: float, least: int) -> None:
    """Require an option of an attention kind to be a whole number from `least` to MAX_WIDTH."""
    problem = f"model.attention_options.{name}={value} must be a whole number from {least} to {MAX_WIDTH}"
    require(isinstance(value, int) and least <= value <= MAX_WIDTH, problem)


def require_repository(name: str | None) -> None:
    """Require OWNER/NAME, or None: without its owner a repository is created, but not found again."""
    is_whole = name is None or (name.count("/") == 1 and all(name.split("/")))
    require(is_whole, f"push_to_hub={name} is not a repository on the hub; give OWNER/NAME")


def require_filled(config: object, names: str) -> None:
    """Require each named field not to be an empty string, nor to hold a NUL character, which no path does."""
    for name in names.split():
        value = getattr(config, name)
        require(value != "", f"{name} is empty; give a value or leave it out")
        require("\0" not in (value or ""), f"{name}={value!r} holds a NUL character; remove it")


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of an ALBERT encoder; names as in transformers' AlbertConfig. Paper: ALBERT section 3.1."""

    vocab_size: int = 30_000
    """Vocabulary size; set from the tokenizer."""
    embedding_size: int = 128
    """Size E of the factorised token embeddings."""
    hidden_size: int = 256
    """Size H of the hidden states."""
    num_hidden_layers: int = 12
    """Number of layers; the layers of a group share their parameters."""
    num_hidden_groups: int = 1
    """Number of groups of layers, each with its own parameters; as many as num_hidden_layers: no sharing (BERT)."""
    inner_group_num: int = 1
    """Number of Transformer blocks in a group; each layer of the group applies all of them in turn."""
    num_attention_heads: int = 4
    """Number of attention heads; must divide hidden_size."""
    intermediate_size: int = 1024
    """Size of the feed-forward layer."""
    hidden_act: Literal["gelu_new", "gelu", "relu"] = "gelu_new"
    """Activation function: gelu_new (tanh approximation, as in ALBERT), gelu (exact, as in ELECTRA) or relu."""
    hidden_dropout_prob: float = 0.0
    """Dropout probability after embeddings, attention output and feed-forward output (0 as in ALBERT v2)."""
    attention_probs_dropout_prob: float = 0.0
    """Dropout probability of the attention weights."""
    max_position_embeddings: int = 512
    """Number of position embeddings: the maximum sequence length of the model."""
    type_vocab_size: int = 2
    """Number of segment (token type) embeddings."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: float = 1e-12
    """Epsilon of the layer normalisations."""
    initialization: Literal["normal", "local"] = "normal"
    """normal: as published; local: sinusoidal position embeddings and heads that attend to neighbouring tokens."""
    zero_init_outputs: bool = False
    """Initialise the output projections of attention and feed-forward to zero: each block starts as its LayerNorms."""
    attention: str = "softmax"
    """Attention kind: softmax, or one of docs/recipe.md, which stock transformers does not have."""
    attention_options: dict[str, int | float] = field(default_factory=dict)
    """Options of the attention kind, as --model.attention_options.NAME VALUE; softmax has none."""

    def __post_init__(self) -> None:
        sizes = "embedding_size hidden_size num_attention_heads intermediate_size type_vocab_size"
        require_within(self, f"[1, {MAX_WIDTH}]", sizes)
        require_within(self, f"[1, {MAX_LAYERS}]", "num_hidden_layers num_hidden_groups inner_group_num")
        require_within(self, f"[8, {MAX_WIDTH}]", "max_position_embeddings")
        require_within(self, "[6, inf)", "vocab_size")  # more than the special tokens
        for whole, part in (("hidden_size", "num_attention_heads"), ("num_hidden_layers", "num_hidden_groups")):
            is_divided = getattr(self, whole) % getattr(self, part) == 0
            require(is_divided, f"{whole}={getattr(self, whole)} is not a multiple of {part}={getattr(self, part)}")
        require_within(self, "[0, 1]", "hidden_dropout_prob attention_probs_dropout_prob")
        require_within(self, "(0, 10)", "initializer_range")
        require_within(self, "(0, 1)", "layer_norm_eps")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def is_stock(self) -> bool:
        """Whether stock transformers computes the same as a model of this configuration."""
        return self.attention == ModelConfig.attention


@dataclass(frozen=True)
class RtdConfig:
    """Replaced-token detection. Paper: ELECTRA section 2."""

    mask_rate: float = 0.15
    """Fraction of the maskable tokens of a sequence that the generator predicts."""
    mask_token_share: float = 0.85
    """Fraction of the selected tokens replaced by [MASK]; the others stay unchanged, as in ELECTRA's code."""
    temperature: float = 1.0
    """Softmax temperature for sampling replacement tokens from the generator."""
    generator_weight: float = 1.0
    """Weight of the generator's MLM loss in the total loss."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss in the total loss."""
    generator_rate: float = 1.0
    """Learning rate of the generator's own layers, as a multiple of learning_rate (shared embeddings: 1)."""
    discriminator_rate: float = 1.0
    """Learning rate of the discriminator's own layers, as a multiple of learning_rate."""
    generator_size: float = 0.25
    """Width of the generator as a fraction of the discriminator's: hidden size, feed-forward size and heads."""
    generator_layers: int | None = None
    """Number of generator layers; by default as many as the discriminator has."""
    embedding_sharing: Literal["full", "disentangled"] = "full"
    """full: one table of token embeddings for both models; disentangled: the discriminator adds its own differences to
    the generator's table and does not change it."""
    mlm_share: float = 0.0
    """Fraction of the selected tokens that stay [MASK] for the discriminator, which predicts them with its own head."""
    mlm_weight: float = 1.0
    """Weight of the discriminator's MLM loss in the total loss, if mlm_share is above 0."""
    generator_warmup_steps: int | None = None
    """Steps that train only the generator, if init_from has none; by default max_steps / 10, at most 10,000."""
    mask_unit: Literal["token", "word", "ngram", "span"] = "token"
    """Unit selected as a whole: token, word, ngram (1 to 3 words, as in ALBERT) or span (1 to 10, as in SpanBERT)."""
    generator: str = "own"
    """own: a model of its own; shared: the first generator_layers layers of the discriminator's encoder; any other
    value: folder of a pretrained masked language model, not trained."""

    def __post_init__(self) -> None:
        require_filled(self, "generator")
        require_within(self, "(0, 1)", "mask_rate")
        require_within(self, "[0, 1]", "mask_token_share")
        require_within(self, "[0, 1)", "mlm_share")
        require_within(self, f"[{LOWEST_TEMPERATURE}, inf)", "temperature")
        require_within(self, "(0, 1]", "generator_size")
        require_within(self, COUNT, "generator_layers")
        require_within(self, COUNT_OR_0, "generator_warmup_steps")
        require_within(self, "(0, inf)", "generator_weight discriminator_weight mlm_weight")
        require_within(self, "(0, inf)", "generator_rate discriminator_rate")
        require(self.mlm_weight == 1 or self.mlm_share > 0, f"mlm_weight={self.mlm_weight} needs mlm_share above 0")
        require(self.generator != "uniform", "generator=uniform is gone: it showed no gain, see dev/log/2026-11.md")
        kind, size = self.generator, self.generator_size
        require(kind != "shared" or size == 1, f"generator=shared is of full size: generator_size={size} must be 1")

    @property
    def trains_generator(self) -> bool:
        """Whether the generator is trained; else it is the model in a folder."""
        return self.generator in ("own", "shared")

    def generator_config(self, discriminator: ModelConfig) -> ModelConfig | None:
        """The generator's architecture: narrower, by default as deep, heads of the same size if the width allows it.

        Parameters are shared as in the discriminator: the same number of groups (at most one per layer), or no sharing.
        None if none is trained. Raises ValueError if the layers are not a multiple of the groups, or cannot be shared.
        """
        if not self.trains_generator:
            return None
        heads = max(1, round(discriminator.num_attention_heads * self.generator_size))
        layers, groups = self.generator_layers or discriminator.num_hidden_layers, discriminator.num_hidden_groups
        if self.generator == "shared":
            each = discriminator.num_hidden_layers // groups  # layers of a group
            is_prefix = layers <= discriminator.num_hidden_layers and (layers <= each or layers % each == 0)
            problem = f"rtd.generator_layers={layers} of {discriminator.num_hidden_layers} layers in {groups} groups"
            require(is_prefix, f"{problem} cannot be shared; choose up to {each}, or whole groups of {each}")
            return replace(discriminator, num_hidden_layers=layers, num_hidden_groups=max(1, layers // each))
        groups = layers if groups == discriminator.num_hidden_layers else min(groups, layers)
        problem = f"rtd.generator_layers={layers} is not a multiple of model.num_hidden_groups={groups}"
        require(layers % groups == 0, f"{problem}; choose another number of layers")
        return replace(
            discriminator,
            hidden_size=max(1, round(discriminator.hidden_size * self.generator_size / heads)) * heads,
            num_attention_heads=heads,
            intermediate_size=max(1, round(discriminator.intermediate_size * self.generator_size)),
            num_hidden_layers=layers,
            num_hidden_groups=groups,
        )


@dataclass(frozen=True)
class MlmConfig:
    """Masked language modelling, for mlm and mlm_sop. Papers: BERT section 3.1, ALBERT section 3.1."""

    mask_rate: float = 0.15
    """Fraction of the maskable tokens of a sequence that are predicted."""
    mask_token_share: float = 0.8
    """Fraction of the selected tokens replaced by [MASK]."""
    random_token_share: float = 0.1
    """Fraction of the selected tokens replaced by a random token, never a special one; the others stay unchanged."""
    mask_unit: Literal["token", "word", "ngram", "span"] = "token"
    """Unit selected as a whole: token, word, ngram (1 to 3 words, as in ALBERT) or span (1 to 10, as in SpanBERT)."""

    def __post_init__(self) -> None:
        require_within(self, "(0, 1)", "mask_rate")
        require_within(self, "[0, 1]", "mask_token_share random_token_share")
        total = self.mask_token_share + self.random_token_share
        require(total <= 1 + 1e-9, f"mask_token_share + random_token_share = {total:g} must not exceed 1")


@dataclass(frozen=True)
class SopConfig:
    """Sentence order (mlm_sop, rtd_sop), ALBERT section 3.1."""

    weight: float = 1.0
    """Weight of the loss of sentence order in the total loss."""

    def __post_init__(self) -> None:
        require_within(self, "(0, inf)", "weight")
