"""The architecture of an encoder."""

from dataclasses import dataclass, field
from typing import Literal

from electra_albert.config.checks import MAX_WIDTH, require, require_multiple, require_within

# Layers with shared weights cost no memory: without a bound a bad config would run forever.
MAX_LAYERS = 1024
# Length of the texts that a model reads, in lengths of its training examples: position embeddings
# are trained for one; with four, models with rotary positions lost .01 to .06 nats per token.
READ_LENGTHS = {"albert": 1, "modern": 4}
# Fields that only modern blocks have.
MODERN_FIELDS = (
    "global_attn_every_n_layers",
    "local_attention",
    "global_rope_theta",
    "local_rope_theta",
)


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of an ALBERT encoder; names as in transformers' AlbertConfig.

    Paper: ALBERT section 3.1.
    """

    vocab_size: int = 30_000
    """Vocabulary size; set from the tokenizer."""
    embedding_size: int = 128
    """Size E of the factorised token embeddings."""
    hidden_size: int = 256
    """Size H of the hidden states."""
    num_hidden_layers: int = 12
    """Number of layers; the layers of a group share their parameters."""
    num_hidden_groups: int = 1
    """Number of groups of layers, each with its own parameters; as many as num_hidden_layers: no
    sharing (BERT)."""
    inner_group_num: int = 1
    """Number of Transformer blocks in a group; each layer of the group applies all of them."""
    num_attention_heads: int = 4
    """Number of attention heads; must divide hidden_size."""
    intermediate_size: int = 1024
    """Size of the feed-forward layer."""
    hidden_act: Literal["gelu_new", "gelu", "relu"] = "gelu_new"
    """Activation function: gelu_new (tanh approximation, as in ALBERT), gelu (exact, as in ELECTRA)
    or relu."""
    hidden_dropout_prob: float = 0.0
    """Dropout probability after embeddings, attention output and feed-forward output (0 as in
    ALBERT v2)."""
    attention_probs_dropout_prob: float = 0.0
    """Dropout probability of the attention weights."""
    max_position_embeddings: int = 512
    """Maximum sequence length of the model: the number of position embeddings, if it has any."""
    type_vocab_size: int = 2
    """Number of segment (token type) embeddings."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: float = 1e-12
    """Epsilon of the layer normalisations."""
    initialization: Literal["normal", "local"] = "normal"
    """normal: as published; local: heads that attend to neighbouring tokens, and sinusoidal
    position embeddings if there are any."""
    zero_init_outputs: bool = False
    """Initialise the output projections of attention and feed-forward to zero: each block starts as
    its LayerNorms, a modern one as the identity."""
    block: Literal["albert", "modern"] = "albert"
    """albert: as published; modern: rotary positions, a gated feed-forward layer, and LayerNorm
    before instead of after each part, as in ModernBERT."""
    global_attn_every_n_layers: int = 1
    """With modern blocks, the first group and every n-th after it have full attention, the others a
    sliding window; 3 in ModernBERT, whose groups are single layers."""
    local_attention: int = 128
    """Size of the sliding window, half of it on each side of a token."""
    global_rope_theta: float = 10_000.0
    """Base of the wavelengths of rotary positions with full attention."""
    local_rope_theta: float = 10_000.0
    """Base of the wavelengths of rotary positions with a sliding window."""
    attention: str = "softmax"
    """Attention kind: softmax, or one of docs/recipe.md, which stock transformers does not have."""
    attention_options: dict[str, int | float] = field(default_factory=dict)
    """Options of the attention kind, as --model.attention_options.NAME VALUE; softmax has none."""

    def __post_init__(self) -> None:
        sizes = "embedding_size hidden_size num_attention_heads intermediate_size type_vocab_size"
        depths = "num_hidden_layers num_hidden_groups inner_group_num global_attn_every_n_layers"
        require_within(self, f"[1, {MAX_WIDTH}]", sizes)
        require_within(self, f"[1, {MAX_LAYERS}]", depths)
        require_within(self, f"[8, {MAX_WIDTH}]", "max_position_embeddings")
        require_within(self, f"[2, {MAX_WIDTH}]", "local_attention")
        require_within(self, "[1, inf)", "global_rope_theta local_rope_theta")
        require_within(self, "[6, inf)", "vocab_size")  # more than the special tokens
        require_multiple(self, "hidden_size", "num_attention_heads")
        require_multiple(self, "num_hidden_layers", "num_hidden_groups")
        has_pairs = self.head_size % 2 == 0 or self.block == "albert"
        require(
            has_pairs,
            f"block=modern needs heads of an even size, not {self.head_size}; choose another "
            "hidden_size or num_attention_heads (of a generator: rtd.generator_size)",
        )
        require_within(self, "[0, 1]", "hidden_dropout_prob attention_probs_dropout_prob")
        require_within(self, "(0, 10)", "initializer_range")
        require_within(self, "(0, 1)", "layer_norm_eps")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def group_size(self) -> int:
        """Layers in a parameter-sharing group."""
        return self.num_hidden_layers // self.num_hidden_groups

    def is_global(self, group: int) -> bool:
        """Whether the layers of a group have full attention."""
        return group % self.global_attn_every_n_layers == 0

    @property
    def is_stock(self) -> bool:
        """Whether stock transformers computes the same as a model of this configuration."""
        return (self.attention, self.block) == (ModelConfig.attention, ModelConfig.block)
