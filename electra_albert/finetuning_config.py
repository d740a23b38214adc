"""Every setting of a fine-tuning run as frozen dataclasses, next to config.TrainingConfig, which all runs share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from electra_albert.config import TrainingConfig, require, require_filled, require_within
from electra_albert.data_files import canonical_encoding

# Of TrainingConfig: what follows from the number of examples, and how often a run of minutes is saved.
DERIVED = frozenset({"max_steps", "warmup_steps", "eval_steps", "eval_examples", "save_steps", "save_total_limit"})

PREDICT_TEST = "test"  # --predict test: the task's own test sets
CUSTOM = "custom"  # the task of a user's own table
TOPICS = "topics"  # the task that ships, taken where none is named
GLUE = "glue"  # all tasks of GLUE


@dataclass(frozen=True)
class DataConfig:
    """The task and its data."""

    task: str | None = None
    """cola sst2 mrpc stsb qqp mnli qnli rte wnli ax squad squad_v2 race ner chunking, glue for all of GLUE, or custom
    (any table, by --train_file and --validation_file); by default a small task that ships with the toolkit."""
    data_dir: str | None = None
    """Folder of the task in its official layout, or of all of GLUE; or OWNER/NAME of a dataset on the hub."""
    train_file: str | None = None
    """File to train on instead of the one in data_dir: .tsv, .csv, .jsonl or .parquet, or the task's own format."""
    validation_file: str | None = None
    """File to score on."""
    validation_split: float | None = None
    """Share of the training examples to score on (stratified by label, one for all seeds), not on validation_file."""
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
    """The labels of a custom task are numbers to predict, not classes."""
    race_level: Literal["all", "middle", "high"] = "all"
    """Which of RACE's two levels to train and score on."""
    unknown_labels: Literal["error", "skip"] = "error"
    """Examples to score with a label that the training data lack: error refuses the file, skip leaves them out."""
    max_train_examples: int | None = None
    """Train on so many examples, drawn by the seed of the data; all by default."""
    max_eval_examples: int | None = None
    """Score on so many examples, drawn the same for every seed; all by default."""
    prepared_dir: str = "data/prepared"
    """Folder of the tokenizer where there is no model to begin with."""

    def __post_init__(self) -> None:
        require_within(self, "[1, inf)", "max_train_examples max_eval_examples")
        require_within(self, "(0, 1)", "validation_split")
        require_filled(self, "task data_dir train_file validation_file test_file prepared_dir")
        is_one = self.validation_split is None or self.validation_file is None
        require(is_one, "give validation_split or validation_file, not both")
        object.__setattr__(self, "encoding", canonical_encoding(self.encoding))
        names = [name.strip() for name in (self.column_names or "column").split(",")]
        is_whole = all(names) and len(set(names)) == len(names)
        require(is_whole, f"column_names={self.column_names}: a name is empty or twice there; give each column its own")


def table_name(data: DataConfig) -> str:
    """The name of a user's own table: of its file, or of its folder."""
    return Path(data.train_file or data.validation_file or data.data_dir or CUSTOM).resolve().stem


@dataclass(frozen=True)
class TuningConfig:
    """What is fine-tuned, how, and how often."""

    model: str | None = None
    """A run's folder, a folder of a stock ALBERT, or a fine-tuned one of ours; by default the newest run."""
    output_dir: str | None = None
    """Folder of the results; by default runs/<task>-<model>, for a table of your own runs/<its file>-<model>."""
    from_scratch: bool = False
    """Take only shape and tokenizer of the model and begin with random weights: what pretraining is compared with."""
    from_mnli: bool = False
    """With --task glue, begin RTE, MRPC and STS-B with the model fine-tuned on MNLI."""
    head: Literal["albert", "electra"] = "albert"
    """albert: pooler and classifier, as in AutoModelForSequenceClassification; electra: the classifier alone."""
    recipe: Literal["auto", "electra", "albert"] = "auto"
    """Published settings; auto: ELECTRA's for discriminators and models of its small size or less, else ALBERT's."""
    num_train_epochs: float = 3.0
    """Epochs over the training examples; 0 only scores a model that is fine-tuned already."""
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
    """Evaluations in one epoch."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: in training each class counts as much as any other, however many examples it has."""
    metric_for_best_model: str | None = None
    """The metric of the task that chooses the best seed and stops early; by default ELECTRA's for the task."""
    early_stopping_patience: int | None = None
    """Stop after so many evaluations without a better score and keep the best weights; else the last ones are kept."""
    predict: str | None = None
    """A file of new text to label, or test for the task's own test set (GLUE: files to hand in)."""
    compare: list[str] | None = None
    """Two folders of results on the same task to compare, instead of training."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    resume: Literal["auto", "never"] = "auto"
    """auto resumes a sweep found in output_dir; never refuses a folder that holds one."""
    dry_run: bool = False
    """Read, encode, build and print what would be trained, then stop."""

    def __post_init__(self) -> None:
        require_filled(self, "model output_dir predict")
        counts = "seeds evals_per_epoch dropout_samples max_answer_length doc_stride max_steps early_stopping_patience"
        require_within(self, "[1, inf)", counts)
        require_within(self, "[0, 1)", "classifier_dropout_prob hidden_dropout_prob attention_probs_dropout_prob")
        require_within(self, "[0, 1_000_000]", "num_train_epochs")
        require_within(self, "[0, 1]", "warmup_ratio")
        require_within(self, "[0, inf)", "warmup_steps")
        require_within(self, "(0, 1]", "layer_decay")
        require_within(self, "[8, inf)", "max_seq_length")
        is_pair = self.compare is None or len(self.compare) == 2
        require(is_pair, "compare takes two folders: --compare runs/cola-a runs/cola-b")

    @property
    def is_training(self) -> bool:
        """Whether anything is trained, or a fine-tuned model only scored."""
        return bool(self.num_train_epochs or self.max_steps)


PARTS = {"data": DataConfig, "tuning": TuningConfig, "training": TrainingConfig}


def option_names(part: str) -> list[str]:
    """The options in one of PARTS."""
    return [one.name for one in fields(PARTS[part]) if part != "training" or one.name not in DERIVED]


@dataclass(frozen=True)
class FinetuneConfig:
    """All settings of fine-tuning; published ones replace what is not `chosen`: by default what equals its default."""

    data: DataConfig = field(default_factory=DataConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    chosen: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.chosen is None:
            usual = FinetuneConfig(chosen=frozenset()).options()
            changed = frozenset(name for name, value in self.options().items() if value != usual.get(name))
            object.__setattr__(self, "chosen", changed)

    def options(self) -> dict[str, Any]:
        """All options by name, as on the command line and in config.yaml, without those that are None."""
        found = {name: getattr(getattr(self, part), name) for part in PARTS for name in option_names(part)}
        return {name: value for name, value in found.items() if value is not None}

    def with_defaults(self, defaults: dict[str, Any]) -> FinetuneConfig:
        """The settings with these values, by name, for every option that was not chosen."""
        free = {name: value for name, value in defaults.items() if name not in (self.chosen or ())}
        parts = {part: {name: free[name] for name in option_names(part) if name in free} for part in PARTS}
        return replace(self, **{part: replace(getattr(self, part), **own) for part, own in parts.items()})

    @property
    def only_predicts(self) -> bool:
        """Whether new text is to be labelled and no labelled data is given: the model is a fine-tuned one."""
        data = self.data
        is_given = any((data.data_dir, data.train_file, data.validation_file, data.test_file))
        return self.tuning.predict not in (None, PREDICT_TEST) and not is_given and data.task != GLUE
