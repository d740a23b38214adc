"""Every setting of a pretraining run as frozen dataclasses, from which the command line and its help are derived."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from electra_albert.data_files import canonical_encoding

MAX_LAYERS = 1024  # a shared block costs no memory, so only a bound stops a hostile config from never ending
MAX_WIDTH = 1 << 20
BUILT_IN_CORPUS = "sample"  # articles of the Simple English Wikipedia, in data/sample
LOWEST_TEMPERATURE = 1e-3  # below it, differences of logits overflow float32
_WARMUP_SHARE, _LONGEST_WARMUP_STEPS = 10, 10_000  # of a new generator: one update in so many of the run, at most
GROUPS = ("model", "rtd", "mlm", "sop")  # settings with a dotted name on the command line, of every run


def require(claim: bool, message: str) -> None:
    """Raise ValueError unless the claim holds."""
    if not claim:
        raise ValueError(message)


def require_within(config: object, interval: str, names: str) -> None:
    """Require each field named to lie in an interval, as [0, 1); None, a default found elsewhere, is allowed."""
    low, high = map(float, interval[1:-1].split(","))
    for name in names.split():
        value = getattr(config, name)
        is_closed_end = (value == low and interval[0] == "[") or (value == high and interval[-1] == "]")
        require(value is None or low < value < high or is_closed_end, f"{name}={value} must lie in {interval}")


def require_filled(config: object, names: str) -> None:
    """Require each field named not to be an empty text."""
    for name in names.split():
        require(getattr(config, name) != "", f"{name} is empty; leave it out or give it a value")


@dataclass(frozen=True)
class ModelConfig:
    """Shape of one ALBERT encoder; names as in transformers' AlbertConfig. Paper: ALBERT section 3.1."""

    vocab_size: int = 30_000
    """Rows of the token table; set from the tokenizer."""
    embedding_size: int = 128
    """Width E of the factorised embeddings."""
    hidden_size: int = 256
    """Width H of the residual stream."""
    num_hidden_layers: int = 12
    """Layers of the network; those of a group share their parameters."""
    num_hidden_groups: int = 1
    """Groups of layers with parameters of their own; equal to num_hidden_layers nothing is shared (BERT)."""
    inner_group_num: int = 1
    """Blocks inside one group, applied one after the other at each pass."""
    num_attention_heads: int = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: int = 1024
    """Width of the feed-forward layer."""
    hidden_act: Literal["gelu_new", "gelu", "relu"] = "gelu_new"
    """Activation; gelu_new is the tanh approximation ALBERT was trained with, gelu the exact one of ELECTRA."""
    hidden_dropout_prob: float = 0.0
    """Dropout after the embeddings, the attention output and the feed-forward output (0 as in ALBERT v2)."""
    attention_probs_dropout_prob: float = 0.0
    """Dropout on the attention weights."""
    max_position_embeddings: int = 512
    """Rows of the position table: the longest row the model can read."""
    type_vocab_size: int = 2
    """Rows of the segment table."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    layer_norm_eps: float = 1e-12
    """Epsilon of every LayerNorm."""
    initialization: Literal["normal", "local"] = "normal"
    """normal as published; local starts positions as sinusoids and heads looking at neighbouring tokens."""
    attention: str = "softmax"
    """How queries, keys and values are mixed: softmax, or another kind that model/attention.py has."""
    attention_options: dict[str, int | float] = field(default_factory=dict)
    """Options of that kind, each as --model.attention_options.NAME VALUE; softmax has none."""

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


@dataclass(frozen=True)
class RtdConfig:
    """Replaced-token detection. Paper: ELECTRA section 2."""

    mask_rate: float = 0.15
    """Share of the maskable tokens of each row that the generator must predict."""
    mask_token_share: float = 0.85
    """Share of the chosen tokens shown to the generator as [MASK]; the rest it sees unchanged, as in ELECTRA's code."""
    temperature: float = 1.0
    """The generator's logits are divided by it before a token is drawn."""
    generator_weight: float = 1.0
    """Weight of the generator's loss in the total."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss in the total."""
    generator_rate: float = 1.0
    """Learning rate of the generator's own layers, as a multiple of learning_rate; shared tables have that itself."""
    discriminator_rate: float = 1.0
    """Learning rate of the discriminator's own layers, as a multiple of learning_rate."""
    generator_size: float = 0.25
    """Width of the generator as a share of the discriminator's: hidden size, feed-forward size and heads."""
    generator_layers: int | None = None
    """Layers of the generator; by default as many as the discriminator's."""
    generator_warmup_steps: int | None = None
    """Updates of a new generator alone, next to trained weights; by default one in ten of max_steps, 10,000 at most."""

    def __post_init__(self) -> None:
        require_within(self, "(0, 1)", "mask_rate")
        require_within(self, "[0, 1]", "mask_token_share")
        require_within(self, f"[{LOWEST_TEMPERATURE}, inf)", "temperature")
        require_within(self, "(0, 1]", "generator_size")
        require_within(self, "[1, inf)", "generator_layers")
        require_within(self, "[0, inf)", "generator_warmup_steps")
        require_within(self, "(0, inf)", "generator_weight discriminator_weight generator_rate discriminator_rate")

    def generator(self, discriminator: ModelConfig) -> ModelConfig:
        """The generator's shape: narrower, heads of the same size where they fit, by default as deep.

        Its layers share parameters as the discriminator's do: in as many groups, at most one a layer, or not at all.
        Raises ValueError where the groups do not divide the layers.
        """
        heads = max(1, round(discriminator.num_attention_heads * self.generator_size))
        layers, groups = self.generator_layers or discriminator.num_hidden_layers, discriminator.num_hidden_groups
        groups = layers if groups == discriminator.num_hidden_layers else min(groups, layers)
        problem = f"rtd.generator_layers={layers} is not a multiple of model.num_hidden_groups={groups}"
        require(layers % groups == 0, f"{problem}; give a number of layers that is")
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
    """Masked language modelling on its own: objectives mlm and mlm_sop. Paper: ALBERT section 3.1, as in BERT."""

    mask_rate: float = 0.15
    """Share of the maskable tokens of each row that must be predicted."""
    mask_token_share: float = 0.8
    """Share of the chosen tokens shown as [MASK]."""
    random_token_share: float = 0.1
    """Share of the chosen tokens shown as another token drawn at random, never a special one; the rest stay."""

    def __post_init__(self) -> None:
        require_within(self, "(0, 1)", "mask_rate")
        require_within(self, "[0, 1]", "mask_token_share random_token_share")
        total = self.mask_token_share + self.random_token_share
        require(total <= 1 + 1e-9, f"mask_token_share + random_token_share = {total:g} must not exceed 1")


@dataclass(frozen=True)
class SopConfig:
    """Sentence-order prediction, for the objectives mlm_sop and rtd_sop. Paper: ALBERT section 3.1."""

    weight: float = 1.0
    """Weight of the sentence-order loss in the total."""

    def __post_init__(self) -> None:
        require_within(self, "(0, inf)", "weight")


@dataclass(frozen=True)
class CorpusConfig:
    """What is read, and how it becomes rows."""

    corpus: str = BUILT_IN_CORPUS
    """Text, .jsonl, .csv, .tsv, .parquet or .arrow (or these as .gz, .bz2, .xz, .zst): a file, folder or glob; a folder
    of datasets; a .yaml of sources and weights; OWNER/NAME on the hub; sample, which ships (a folder is ./sample)."""
    text_column: str = "text"
    """Column of a table, or key of a .jsonl line, that holds the text of a document."""
    encoding: str = "utf-8"
    """Encoding of text, .jsonl, .csv and .tsv, by Python's names: cp1252 (which reads Latin-1 too), cp1251, gb18030."""
    bad_utf8: Literal["replace", "skip", "error"] = "replace"
    """What becomes of a line with bytes that are not UTF-8: they are replaced, the line is skipped, or all stops."""
    tokenizer: str | None = None
    """Folder of a tokenizer, SentencePiece .model, BERT vocab.txt or tokenizer.json; by default one is trained."""
    vocab_size: int = 30_000
    """Tokens of the tokenizer that is trained; a small corpus may give fewer."""
    extend_vocab_to: int | None = None
    """Tokens the tokenizer named by tokenizer or init_from grows to, by words of the corpus it has no token for."""
    do_lower_case: bool | None = None
    """Lower-case text; by default a given tokenizer does what its own files say, and one that is trained does."""
    keep_accents: bool | Literal["albert"] | None = None
    """Leave accents on letters; by default a given tokenizer does what its own files say, and one that is trained takes
    them off Latin letters of English text (false: of any text; albert: all marks off all scripts, as ALBERT does)."""
    split_digit_comma: bool | None = None
    """No token joins a comma to the digit before it; a given tokenizer's may by default, one that is trained never."""
    max_seq_length: int = 128
    """Tokens in a row, special tokens included."""
    prepared_dir: str = "data/prepared"
    """Where tokenizers and token stores are kept for the next run on the same corpus."""
    preprocessing_num_workers: int | None = None
    """Processes that tokenise; by default one for each core."""

    def __post_init__(self) -> None:
        require_filled(self, "corpus text_column tokenizer prepared_dir")
        object.__setattr__(self, "encoding", canonical_encoding(self.encoding))
        require_within(self, "[32, inf)", "vocab_size")
        problem = "extend_vocab_to needs a tokenizer to extend; name one by --tokenizer or --init_from"
        require(self.extend_vocab_to is None or self.tokenizer is not None, problem)
        require_within(self, f"[8, {MAX_WIDTH}]", "max_seq_length")
        require_within(self, "[1, inf)", "preprocessing_num_workers")


@dataclass(frozen=True)
class TrainingConfig:
    """The training loop; the same for pretraining and fine-tuning."""

    max_steps: int = 1_000_000
    """Updates in the whole run."""
    per_device_train_batch_size: int = 128
    """Rows in one micro-batch of one process."""
    per_device_eval_batch_size: int = 128
    """Rows in one evaluation batch of one process."""
    gradient_accumulation_steps: int = 1
    """Micro-batches of one update."""
    learning_rate: float = 5e-4
    """Peak learning rate."""
    warmup_steps: int = 10_000
    """Updates over which the rate rises."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and LayerNorms are left out."""
    adam_beta1: float = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: float = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: float = 1e-6
    """Epsilon of Adam."""
    optimizer: Literal["adamw", "lamb"] = "adamw"
    """adamw, or lamb, which ALBERT used: each tensor's step is scaled by its own norm, for very large batches."""
    lr_scheduler_type: Literal["electra", "bert", "linear"] = "electra"
    """How the rate moves: electra warms up while it decays, bert (ALBERT's too) warms up and then jumps onto the decay,
    linear warms up to the peak and decays from there."""
    adam_bias_correction: bool = True
    """Correct Adam's moments for their start at zero; ELECTRA's and ALBERT's own optimiser does not."""
    max_grad_norm: float = 1.0
    """Global gradient norm above which gradients are scaled down."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the matrix products; auto takes bf16 where CPU or CUDA compute in it. fp16 scales the loss."""
    gradient_checkpointing: bool = False
    """Compute each pass's activations again in the backward pass: much less memory, at the cost of one more forward."""
    seed: int = 42
    """Keys every draw of the run."""
    logging_steps: int = 100
    """Updates between two rows of metrics."""
    eval_steps: int = 10_000
    """Updates between two evaluations; the last update is always evaluated."""
    eval_examples: int = 4096
    """Held-out rows scored at an evaluation, at most."""
    save_steps: int = 1000
    """Updates between two checkpoints; the last update is always saved."""
    save_total_limit: int = 2
    """Checkpoints kept."""

    def __post_init__(self) -> None:
        counts = "max_steps per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps"
        require_within(self, "[1, inf)", f"{counts} logging_steps eval_steps eval_examples save_steps save_total_limit")
        require_within(self, "(0, inf)", "learning_rate max_grad_norm")
        require_within(self, "[0, inf)", "warmup_steps")
        require_within(self, "[0, 1)", "weight_decay adam_beta1 adam_beta2")
        require_within(self, "(0, 1)", "adam_epsilon")
        require_within(self, f"[0, {1 << 63})", "seed")


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives and how it starts."""

    output_dir: str | None = None
    """Folder of the run; by default runs/<corpus>-<preset>."""
    objective: str = "rtd"
    """What the encoder learns from; objectives/__init__.py has the names."""
    init_from: str | None = None
    """A run, or a stock folder of ALBERT, ELECTRA or BERT, whose weights, tokenizer and shape to begin with."""
    old_corpus: str | None = None
    """Text like that which the weights of init_from were trained on: what is forgotten of it is reported."""
    language: str | None = None
    """Language of the corpus by its code, as en, for the model cards."""
    license: str | None = None
    """Licence of the weights by the hub's name for it, as apache-2.0, for the model cards."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device; auto takes a GPU where there is one, NVIDIA's (cuda) or a Mac's (mps)."""
    torch_compile: Literal["auto", "none", "blocks", "step"] = "auto"
    """Parts that torch.compile compiles: none, each block once, or the whole step (minutes); auto: blocks on CUDA."""
    resume: str = "auto"
    """auto resumes a run found in output_dir, never begins in an empty folder, PATH names a checkpoint."""
    dry_run: bool = False
    """Prepare, build, check, print what would be trained and the memory and time it would take, then stop."""

    def __post_init__(self) -> None:
        require_filled(self, "output_dir init_from old_corpus resume")
        problem = "old_corpus is text that the weights of --init_from know; name them, or leave it out"
        require(self.old_corpus is None or self.init_from is not None, problem)


@dataclass(frozen=True)
class PretrainConfig:
    """All options of a pretraining run."""

    run: RunConfig = field(default_factory=RunConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rtd: RtdConfig = field(default_factory=RtdConfig)
    mlm: MlmConfig = field(default_factory=MlmConfig)
    sop: SopConfig = field(default_factory=SopConfig)
    own: dict[str, Any] = field(default_factory=dict)
    """Groups of options that only the run's objective has, by name: each a dataclass."""

    def __post_init__(self) -> None:
        length, positions = self.corpus.max_seq_length, self.model.max_position_embeddings
        require(length <= positions, f"max_seq_length={length} exceeds model.max_position_embeddings={positions}")
        segments = self.model.type_vocab_size
        require(segments >= 2, f"model.type_vocab_size={segments}: rows have two segments, so 2 at least are needed")

    @property
    def generator_warmup_steps(self) -> int:
        """Updates for which a new generator of a trained discriminator is trained alone."""
        asked, default = self.rtd.generator_warmup_steps, self.training.max_steps // _WARMUP_SHARE
        return max(1, min(default, _LONGEST_WARMUP_STEPS)) if asked is None else asked


def as_settings(config: PretrainConfig) -> dict[str, Any]:
    """The settings as they are written to config.yaml: flat but for groups of options, as on the command line."""
    nested = asdict(config)
    flat = {name: value for piece in ("run", "corpus", "training") for name, value in nested[piece].items()}
    return flat | {group: nested[group] for group in GROUPS} | nested["own"]
