"""Every setting of a fine-tuning run as frozen dataclasses; the command line is derived from them.

What the training itself can be told stands in config.TrainingConfig, which all runs share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from electra_albert.config import TrainingConfig
from electra_albert.data_files import canonical_encoding

# Of TrainingConfig: what follows from the number of examples, and how often a run of minutes is saved.
DERIVED = frozenset({"max_steps", "warmup_steps", "eval_steps", "eval_examples", "save_steps", "save_total_limit"})

PREDICT_TEST = "test"  # --predict test: the task's own test sets
CUSTOM = "custom"  # the task of a table of one's own
TOPICS = "topics"  # the task that ships, taken where none is named


def _require(claim: bool, message: str) -> None:
    if not claim:
        raise ValueError(message)


@dataclass(frozen=True)
class DataConfig:
    """Which task, and where its data lies."""

    task: str | None = None
    """cola sst2 mrpc stsb qqp mnli qnli rte wnli ax squad squad_v2 race ner chunking, glue for all of GLUE, or custom
    (any table with --train_file and --validation_file); by default a task made from the documentation installed."""
    data_dir: str | None = None
    """Folder of the task in its official layout, or of all of GLUE; or OWNER/NAME of a dataset on the hub."""
    train_file: str | None = None
    """File to train on instead of the one in data_dir: .tsv, .csv, .jsonl or .parquet, or the task's own format."""
    validation_file: str | None = None
    """File to score on."""
    validation_split: float | None = None
    """Score on this share of the training examples, drawn in proportion to the labels, the same for every seed, and
    train on the rest; instead of validation_file."""
    test_file: str | None = None
    """File without labels for --predict test."""
    text_column: str | None = None
    """Column of the text, or of the first of two; by default the task's own, or `text`."""
    text_pair_column: str | None = None
    """Column of the second text; a custom task without it has one text."""
    label_column: str | None = None
    """Column of the label; by default the task's own, or `label`."""
    column_names: str | None = None
    """Names of all columns of .csv and .tsv files without a header, with commas between them: text,label."""
    encoding: str = "utf-8"
    """Encoding of the files, by Python's names: cp1252 (which reads Latin-1 too), cp1251, gb18030."""
    regression: bool = False
    """The labels of a custom task are numbers to be met, not classes."""
    race_level: Literal["all", "middle", "high"] = "all"
    """Which of RACE's two levels to train and score on."""
    unknown_labels: Literal["error", "skip"] = "error"
    """Rows to score with a label that the training data lack: error refuses the file, skip leaves them out, counted."""
    max_train_examples: int | None = None
    """Train on so many examples, drawn by the seed of the data; all by default."""
    max_eval_examples: int | None = None
    """Score on so many examples, drawn the same for every seed; all by default."""
    prepared_dir: str = "data/prepared"
    """Where the task made from the documentation is kept."""

    def __post_init__(self) -> None:
        for name in ("max_train_examples", "max_eval_examples"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name}={value} must be at least 1")
        share = self.validation_split
        _require(share is None or 0 < share < 1, f"validation_split={share} must be between 0 and 1")
        _require(share is None or self.validation_file is None, "give validation_split or validation_file, not both")
        object.__setattr__(self, "encoding", canonical_encoding(self.encoding))
        names = (self.column_names or "column").split(",")
        is_whole = all(map(str.strip, names)) and len(set(names)) == len(names)
        _require(
            is_whole, f"column_names={self.column_names}: a name is empty or stands twice; give each column its own"
        )
        for name in ("task", "data_dir", "train_file", "validation_file", "test_file", "prepared_dir"):
            _require(getattr(self, name) != "", f"{name} is empty; leave it out or give it a value")


def table_name(data: DataConfig) -> str:
    """What a table of one's own is called: by the name of its file, or of its folder."""
    return Path(data.train_file or data.validation_file or data.data_dir or CUSTOM).resolve().stem


@dataclass(frozen=True)
class TuningConfig:
    """What is fine-tuned, and how often."""

    model: str | None = None
    """A run's folder, a folder of a stock ALBERT, or a fine-tuned one of ours; by default the newest run."""
    output_dir: str | None = None
    """Folder of the results; by default runs/<task>-<model>, for a table of your own runs/<its file>-<model>."""
    from_scratch: bool = False
    """Take only shape and tokenizer of the model and begin with random weights: what pretraining is compared with."""
    from_mnli: bool = False
    """With --task glue, begin RTE, MRPC and STS-B with the model fine-tuned on MNLI."""
    head: Literal["albert", "electra"] = "albert"
    """albert: pooler and classifier, as AutoModelForSequenceClassification has them. electra: the classifier alone, as
    in ELECTRA's code; replaced-token detection trains no pooler."""
    recipe: Literal["auto", "electra", "albert"] = "auto"
    """Published settings for the model and the task; auto takes ELECTRA's for discriminators, and for all models of its
    small size or less, where ALBERT has none; ALBERT's for others."""
    num_train_epochs: float = 3.0
    """Passes over the training examples; 0 only scores a model that is fine-tuned already."""
    max_steps: int | None = None
    """Updates, instead of num_train_epochs."""
    warmup_ratio: float = 0.1
    """Share of the updates over which the learning rate rises."""
    warmup_steps: int | None = None
    """Updates over which the learning rate rises, instead of warmup_ratio."""
    layer_decay: float = 1.0
    """Factor of the learning rate for each step down in depth: head, blocks from the last, mapping, embeddings."""
    max_seq_length: int = 128
    """Tokens of a row, special ones included; longer ones are cut, or for answers and tags read in windows."""
    doc_stride: int = 128
    """Tokens by which the windows over a long passage move on."""
    max_answer_length: int = 30
    """Longest answer, in tokens."""
    double_unordered: bool = False
    """Train on every pair in both orders, where the order means nothing (MRPC, STS-B)."""
    classifier_dropout_prob: float = 0.1
    """Dropout before the classifier."""
    hidden_dropout_prob: float | None = None
    """Dropout in the encoder; by default the recipe's, which for electra is the model's own."""
    attention_probs_dropout_prob: float | None = None
    """Dropout on the attention weights; by default as in the encoder."""
    dropout_samples: int = 1
    """Dropout masks before the classifier whose losses are averaged (multi-sample dropout)."""
    seeds: int = 1
    """Runs that differ in their seed: seed, seed + 1, …; all of them are reported."""
    evals_per_epoch: int = 1
    """Scorings on the evaluation set in one pass."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: in training each class counts as much as any other, however many examples it has."""
    metric_for_best_model: str | None = None
    """The metric of the task that chooses the best seed and stops early; by default ELECTRA's for the task."""
    early_stopping_patience: int | None = None
    """Stop after so many scorings without a better one and keep the best weights; without it the last ones are kept."""
    predict: str | None = None
    """A file of new text to label, or test for the task's own test set (GLUE: files to hand in)."""
    compare: list[str] | None = None
    """Two folders of results on the same task to compare, instead of training."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    resume: Literal["auto", "never"] = "auto"
    """auto goes on with a sweep found in output_dir; never refuses a folder that holds one."""
    dry_run: bool = False
    """Read, encode, build and print what would be trained, then stop."""

    def __post_init__(self) -> None:
        for name in ("model", "output_dir", "predict"):
            _require(getattr(self, name) != "", f"{name} is empty; leave it out or give it a value")
        for name in ("seeds", "evals_per_epoch", "dropout_samples", "max_answer_length", "doc_stride"):
            _require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} must be at least 1")
        for name in ("max_steps", "early_stopping_patience"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name}={value} must be at least 1")
        for name in ("classifier_dropout_prob", "hidden_dropout_prob", "attention_probs_dropout_prob"):
            value = getattr(self, name)
            _require(value is None or 0 <= value < 1, f"{name}={value} must lie in [0, 1)")
        is_number = 0 <= self.num_train_epochs <= 1_000_000
        _require(is_number, f"num_train_epochs={self.num_train_epochs} must lie between 0 and 1,000,000")
        _require(0 <= self.warmup_ratio <= 1, f"warmup_ratio={self.warmup_ratio} must lie between 0 and 1")
        _require(
            self.warmup_steps is None or self.warmup_steps >= 0,
            f"warmup_steps={self.warmup_steps} must not be negative",
        )
        _require(0 < self.layer_decay <= 1, f"layer_decay={self.layer_decay} must lie in (0, 1]")
        _require(self.max_seq_length >= 8, f"max_seq_length={self.max_seq_length} must be at least 8")
        _require(
            self.compare is None or len(self.compare) == 2,
            "compare takes two folders: --compare runs/cola-a runs/cola-b",
        )

    @property
    def is_training(self) -> bool:
        """Whether anything is trained, or a fine-tuned model only scored."""
        return bool(self.num_train_epochs or self.max_steps)


@dataclass(frozen=True)
class FinetuneConfig:
    """Everything `Finetuning.py` can be told."""

    data: DataConfig = field(default_factory=DataConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def only_predicts(self) -> bool:
        """Whether new text is to be labelled and no labelled data is given: the model is a fine-tuned one."""
        data = self.data
        is_given = any((data.data_dir, data.train_file, data.validation_file, data.test_file))
        return self.tuning.predict not in (None, PREDICT_TEST) and not is_given and data.task != "glue"


def as_flat_settings(config: FinetuneConfig) -> dict[str, Any]:
    """The settings as they are written to config.yaml: flat, as on the command line, without what is left open."""
    pieces = asdict(config)
    training = {name: value for name, value in pieces.pop("training").items() if name not in DERIVED}
    flat = {name: value for piece in (*pieces.values(), training) for name, value in piece.items()}
    return {name: value for name, value in flat.items() if value is not None}
