"""Settings of a pretraining run as frozen dataclasses, from which options and help are derived."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from electra_albert.config.checks import (
    COUNT,
    MAX_WIDTH,
    by_content,
    free,
    per_call,
    require,
    require_filled,
    require_repository,
    require_within,
)
from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import MlmConfig, RtdConfig, SopConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.data_files import canonical_encoding

BUILT_IN_CORPUS = "sample"  # articles of the Simple English Wikipedia, in data/sample
_GENERATOR_WARMUP_DIVISOR = 10  # of max_steps, by default
_MAX_GENERATOR_WARMUP_STEPS = 10_000
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # of the units of a budget
GROUPS = ("model", "rtd", "mlm", "sop")  # their options have dotted names, such as --rtd.mask_rate


@dataclass(frozen=True)
class CorpusConfig:
    """Corpus, tokenizer and sequence length."""

    corpus: str = by_content(BUILT_IN_CORPUS)
    """Text, .jsonl, .csv, .tsv, .parquet or .arrow (also as .gz, .bz2, .xz, .zst): a file, folder
    or glob; a folder saved by datasets; a .yaml of sources and weights; OWNER/NAME on the hub; or
    sample, the built-in corpus."""
    text_column: str = "text"
    """Name of the table column or .jsonl key that contains the text."""
    documents: Literal["auto", "blank", "line"] = "auto"
    """The border of documents in text files: a blank line, or each line end. auto: a line end if a
    long file has no blank line and its lines hold several sentences, else a blank line; it also
    joins hard-wrapped lines."""
    encoding: str = by_content("utf-8")
    """Encoding of text, .jsonl, .csv and .tsv files, by Python's name: cp1252 (also reads Latin-1),
    cp1251, gb18030."""
    bad_utf8: Literal["replace", "skip", "error"] = "replace"
    """Lines with invalid UTF-8: replace the bytes, skip the line, or stop with an error."""
    tokenizer: str | None = by_content(None)
    """Tokenizer: a folder, SentencePiece .model, BERT vocab.txt or tokenizer.json; by default one
    is trained."""
    vocab_size: int = 30_000
    """Vocabulary size of the tokenizer to train; a small corpus may give fewer tokens."""
    extend_vocab_to: int | None = by_content(None)
    """Vocabulary size to which a given tokenizer (tokenizer or init_from) is extended by words of
    the corpus."""
    do_lower_case: bool | None = by_content(None)
    """Lower-case the text; by default as set in a given tokenizer's files; a trained tokenizer
    does."""
    keep_accents: bool | Literal["albert"] | None = by_content(None)
    """Keep accents; by default as set in a given tokenizer's files; a trained tokenizer removes
    them from Latin letters in English text (false: in any text; albert: all marks in all scripts,
    as ALBERT does)."""
    split_digit_comma: bool | None = by_content(None)
    """Split a comma from the digit before it; by default as a given tokenizer does; a trained
    tokenizer always does."""
    max_seq_length: int = 128
    """Maximum sequence length in tokens, special tokens included."""
    prepared_dir: str = free("data/prepared")
    """Cache folder for tokenizers and tokenised corpora; later runs on the same corpus reuse
    them."""
    preprocessing_num_workers: int | None = free(None)
    """Number of processes for preprocessing; by default one per core."""

    def __post_init__(self) -> None:
        require_filled(self, "corpus text_column tokenizer prepared_dir")
        object.__setattr__(self, "encoding", canonical_encoding(self.encoding))
        require_within(
            self, f"[32, {1 << 24}]", "vocab_size"
        )  # the trainer allocates memory for all of them
        require(
            self.extend_vocab_to is None or self.tokenizer is not None,
            "extend_vocab_to needs a tokenizer to extend; set --tokenizer or --init_from",
        )
        require_within(self, f"[8, {MAX_WIDTH}]", "max_seq_length")
        require_within(self, COUNT, "preprocessing_num_workers")


@dataclass(frozen=True)
class RunConfig:
    """Output folder, objective, initial weights and device."""

    output_dir: str | None = by_content(None)
    """Output folder of the run; by default runs/<corpus>-<preset>."""
    objective: str = "rtd"
    """Pretraining objective, by its name in objectives/__init__.py."""
    init_from: str | None = None
    """Initial weights, tokenizer and architecture: a run, or a transformers folder of ALBERT,
    ELECTRA, BERT or ModernBERT."""
    old_corpus: str | None = None
    """Text similar to the training corpus of init_from; the run reports how much of it the model
    forgets."""
    language: str | None = free(None)
    """Language code of the corpus for the model cards, such as en."""
    license: str | None = free(None)
    """License of the weights for the model cards, by its identifier on the hub, such as
    apache-2.0."""
    push_to_hub: str | None = free(None)
    """Repository OWNER/NAME on the hub, created before the training, into which the models and
    their card are uploaded at the end."""
    hub_private_repo: bool = free(False)
    """Create the repository as a private one."""
    device: Literal["auto", "cpu", "cuda", "mps"] = free("auto")
    """Device; auto: an NVIDIA GPU (cuda) if there is one, else cpu. mps: Apple's, untried."""
    torch_compile: Literal["auto", "none", "step"] = free("auto")
    """Scope of torch.compile: nothing, or the step (takes minutes); auto: step on CUDA."""
    resume: str = per_call("auto")
    """auto: resume the run in output_dir, if any; never: refuse a folder with checkpoints; PATH: a
    checkpoint."""
    dry_run: bool = per_call(False)
    """Prepare the data, build and check the model, print the plan with its memory and time, then
    stop."""
    eval_pairs: str | None = free(None)
    """Minimal pairs that every evaluation scores: a .jsonl file in BLiMP's format, or a folder of
    them."""
    eval_max_pairs: int = free(20)
    """Number of pairs of each set that are scored, from the first."""
    budget: str | None = free(None)
    """Time for the training, such as 30m, 6h or 2d: max_steps follows from the measured speed, now
    and during the run; warmup and the intervals of logs, evaluations and checkpoints become shares
    of it, at most those that are set."""
    flops: float | None = free(None)
    """FLOPs for the training, such as 8.9e16: max_steps, warmup and the intervals follow from
    them."""

    def __post_init__(self) -> None:
        require_within(self, COUNT, "eval_max_pairs")
        require_filled(self, "output_dir init_from old_corpus resume eval_pairs")
        require_repository(self.push_to_hub)
        require_within(self, "(0, inf)", "flops")
        is_one = self.budget is None or self.flops is None
        require(is_one, "budget and flops exclude each other; give one of them")
        require(
            self.budget is None or bool(self.budget_seconds),
            f"budget={self.budget} must be a number above 0 with a unit: s, m, h or d",
        )
        require(
            self.old_corpus is None or self.init_from is not None,
            "old_corpus needs --init_from; set --init_from or leave out --old_corpus",
        )

    @property
    def budget_seconds(self) -> float:
        """The budget in seconds; 0 without a valid one."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", self.budget or "")
        return float(match[1]) * _SECONDS[match[2]] if match else 0.0


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
    """Option groups of a custom objective, by name: each a dataclass."""

    def __post_init__(self) -> None:
        length = self.corpus.max_seq_length
        positions = self.model.max_position_embeddings
        require(
            length <= positions,
            f"max_seq_length={length} exceeds model.max_position_embeddings={positions}",
        )
        segments = self.model.type_vocab_size
        require(
            segments >= 2,
            f"model.type_vocab_size={segments} must be at least 2: sequences have two segments",
        )
        self._check_mlm_share()
        if "electric" in (self.run.objective, *self.own):
            self._check_electric()

    def _check_mlm_share(self) -> None:
        """Require tokens to predict and tokens to replace in a sequence of the maximum length."""
        if not self.rtd.mlm_share:
            return
        selected = max(1, round(self.rtd.mask_rate * (self.corpus.max_seq_length - 2)))
        predicted = round(self.rtd.mlm_share * selected)
        lacking = "predict" if predicted == 0 else "replace"
        require(
            0 < predicted < selected,
            f"rtd.mlm_share={self.rtd.mlm_share} of the {selected} tokens selected in "
            f"{self.corpus.max_seq_length} leaves none to {lacking}; choose another share",
        )

    def _check_electric(self) -> None:
        """Require options of RTD with which Electric's energies are defined."""
        rtd = self.rtd
        share = rtd.mask_token_share
        has_masks_only = share in (RtdConfig.mask_token_share, 1.0)
        has_own_generator = rtd.generator == RtdConfig.generator
        for is_possible, option, reason in (
            (rtd.mlm_share == 0, "mlm_share", "energies are for text without [MASK]"),
            (has_masks_only, "mask_token_share", "a token that the generator sees gets no noise"),
            (has_own_generator, "generator", "its noise is that of its own generator"),
        ):
            require(
                is_possible,
                f"rtd.{option}={getattr(rtd, option)} excludes electric: {reason}; leave it out",
            )

    @property
    def generator_warmup_steps(self) -> int:
        """Steps that train only the generator, if --init_from has none next to a discriminator."""
        if self.rtd.generator_warmup_steps is not None:
            return self.rtd.generator_warmup_steps
        steps = self.training.max_steps // _GENERATOR_WARMUP_DIVISOR
        return max(1, min(steps, _MAX_GENERATOR_WARMUP_STEPS))


class Removed(NamedTuple):
    """An option that is gone: the value with which it had no effect, and the reason."""

    unused: Any  # ...: with any value
    reason: str

    def had_effect(self, value: Any) -> bool:
        """Whether the option changed anything with this value."""
        return self.unused is not ... and value != self.unused


_NO_GAIN = "it showed no gain"
REMOVED = {
    "average_checkpoints": Removed(1, _NO_GAIN),
    "adam_bias_correction": Removed(True, "no gain was measured"),
    "log_gradient_norms": Removed(False, "no decision was based on it"),
    "model.max_position_embeddings": Removed(..., "it is max_seq_length, or that of init_from"),
    "dropout_samples": Removed(1, "no gain was measured"),
    "loss": Removed(None, "examples/sentence_vectors.py trains sentence vectors"),
    "model.residual_scale": Removed(1.0, "with Muon it showed no gain"),
    "rtd.z_loss": Removed(0.0, _NO_GAIN),
    "mlm.z_loss": Removed(0.0, _NO_GAIN),
    "rtd.mask_rate_end": Removed(None, _NO_GAIN),
    "mlm.mask_rate_end": Removed(None, _NO_GAIN),
    "rtd.temperature_end": Removed(None, _NO_GAIN),
    "rtd.temperature_decay": Removed(0.1, _NO_GAIN),
    "rtd.exclude_original": Removed(False, _NO_GAIN),
    "rtd.straight_through": Removed(False, "with it the generator stopped predicting text"),
    "rtd.label_smoothing": Removed(0.0, _NO_GAIN),
    "short_seq_length": Removed(None, _NO_GAIN),
    "short_seq_steps": Removed(0, _NO_GAIN),
    "batch_ramp_steps": Removed(0, _NO_GAIN),
}
# Their options have no dotted names.
FLAT = {"run": RunConfig, "corpus": CorpusConfig, "training": TrainingConfig}


def as_settings(config: PretrainConfig) -> dict[str, Any]:
    """The settings in the form of config.yaml: flat except for option groups."""
    nested: dict[str, dict[str, Any]] = asdict(config)
    flat = nested["run"] | nested["corpus"] | nested["training"]
    return flat | {group: nested[group] for group in GROUPS} | nested["own"]
