"""Settings of fine-tuning as frozen dataclasses; those of the loop are config.TrainingConfig."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self, get_type_hints

from electra_albert.config.checks import (
    COUNT,
    COUNT_OR_0,
    MAX_WIDTH,
    by_content,
    free,
    names_of,
    per_call,
    require,
    require_filled,
    require_repository,
    require_within,
)
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import UsageError, redacted
from electra_albert.data_files import canonical_encoding

# Fields of TrainingConfig that are no options here: the number of examples determines them.
DERIVED = frozenset({"max_steps", "warmup_steps", "eval_steps", "eval_examples"})
DERIVED |= {"save_steps", "save_total_limit", "save_milestones"}

PREDICT_TEST = "test"  # --predict test: the task's own test sets
CUSTOM = "custom"  # the task of a user's table
TOPICS = "topics"  # the built-in task, the default
GLUE = "glue"  # all tasks of GLUE
# Converters of the text of a number, by the type of its option.
_NUMBERS: dict[Any, type[int] | type[float]] = {
    int: int,
    int | None: int,
    float: float,
    float | None: float,
}


@dataclass(frozen=True)
class DataConfig:
    """Task and data."""

    task: str | None = None
    """cola sst2 mrpc stsb qqp mnli qnli rte wnli ax squad squad_v2 race ner chunking, glue (all
    GLUE tasks), or custom (any table, given by --train_file and --validation_file); by default a
    small built-in task."""
    data_dir: str | None = free(None)
    """Folder of the task in its official layout (for glue: of all tasks), or OWNER/NAME of a
    dataset on the hub."""
    streaming: bool = False
    """Stream the splits of data_dir (on the hub, or files in a folder) by `datasets`, without a
    copy on disk. A maximum number of examples is taken from a stream that is shuffled in a buffer
    of 10,000."""
    train_file: str | None = free(None)
    """Training data, instead of the file in data_dir: .tsv, .csv, .jsonl or .parquet, or the task's
    own format."""
    validation_file: str | None = free(None)
    """Evaluation data."""
    validation_split: float | None = None
    """Fraction of the training data to evaluate on, instead of evaluation data (stratified)."""
    test_file: str | None = free(None)
    """Unlabelled data for --predict test."""
    text_column: str | None = None
    """Column of the text, or of the first text of a pair; by default the task's, or `text`. In
    CoNLL files the number of the words' column; by default 0, the first."""
    text_pair_column: str | None = None
    """Column of the second text of a pair; a custom task without it has single texts."""
    label_column: str | None = None
    """Column of the label; by default the task's or `label`. In CoNLL files a number from 0."""
    column_names: str | None = None
    """Column names of .csv and .tsv files without a header, separated by commas: text,label."""
    encoding: str = by_content("utf-8")
    """Encoding of the files, by Python's name: cp1252 (also reads Latin-1), cp1251, gb18030."""
    regression: bool | None = free(None)
    """Whether the labels of a custom task are numbers to predict; by default they are classes, but
    numbers such as 0.5 are refused. With false they are classes too: 1.0 and 1 are one."""
    multi_label: bool = False
    """Whether a text of a custom task has any number of labels: a list of them, a text that
    separates them by commas, or columns of 0 and 1 that --label_column a,b,c names."""
    race_level: Literal["all", "middle", "high"] = "all"
    """Difficulty level of RACE to train and evaluate on."""
    unknown_labels: Literal["error", "skip"] = free("error")
    """Evaluation examples with a label that is not in the training data: stop with an error, or
    skip them."""
    max_train_examples: int | None = None
    """Maximum number of training examples, sampled with --seed, the same for all seeds of a sweep;
    by default all."""
    max_eval_examples: int | None = None
    """Maximum number of evaluation examples, the same for all seeds; by default all."""
    prepared_dir: str = free("data/prepared")
    """Folder with the tokenizer to use if there is no pretrained model."""

    def __post_init__(self) -> None:
        require_within(self, COUNT, "max_train_examples max_eval_examples")
        require_within(self, "(0, 1)", "validation_split")
        require_filled(self, "task data_dir train_file validation_file test_file prepared_dir")
        is_single = self.validation_split is None or self.validation_file is None
        require(is_single, "give validation_split or validation_file, not both")
        has_source = self.data_dir is not None or not self.streaming
        require(has_source, "streaming reads data_dir; give it")
        is_one = not (self.multi_label and self.regression)
        require(is_one, "give multi_label or regression, not both")
        object.__setattr__(self, "encoding", canonical_encoding(self.encoding))
        names = [name.strip() for name in (self.column_names or "column").split(",")]
        require(
            all(names) and len(set(names)) == len(names),
            f"column_names={self.column_names}: a name is empty or repeated; "
            "give each column its own",
        )


def table_name(data: DataConfig) -> str:
    """The name of a user's table: its file name, else its folder name, without suffix."""
    location = data.train_file or data.validation_file or data.data_dir or CUSTOM
    return Path(redacted(location)).resolve().stem


@dataclass(frozen=True)
class TuningConfig:
    """Model, recipe and evaluation."""

    model: str | None = free(None)
    """Model to fine-tune: a run, an ALBERT, BERT, ELECTRA or ModernBERT folder of transformers, or
    a fine-tuned model; by default the newest finished run that beats the baselines, else the
    shipped model."""
    output_dir: str | None = by_content(None)
    """Output folder; by default runs/<task>-<model>, for a custom table runs/<its file>-<model>."""
    push_to_hub: str | None = free(None)
    """Repository OWNER/NAME on the hub, created before the training, into which the best model is
    uploaded."""
    hub_private_repo: bool = free(False)
    """Create the repository as a private one."""
    from_scratch: bool = False
    """Use only the model's architecture and tokenizer, with random weights: the baseline without
    pretraining."""
    from_mnli: bool = free(False)
    """With --task glue: start RTE, MRPC and STS-B from the model fine-tuned on MNLI."""
    head: Literal["albert", "electra"] = "albert"
    """albert: pooler and classifier, as in AutoModelForSequenceClassification; electra: the
    classifier alone."""
    recipe: Literal["auto", "electra", "albert"] = "auto"
    """Published settings; auto: ELECTRA's for discriminators and for models up to its small size,
    else ALBERT's."""
    num_hidden_layers: int | None = None
    """Number of layers, a multiple of the model's num_hidden_groups; by default the model's."""
    num_train_epochs: float = 3.0
    """Number of training epochs; 0 only evaluates a fine-tuned model."""
    max_steps: int | None = None
    """Total number of training steps; overrides num_train_epochs."""
    warmup_ratio: float = 0.1
    """Fraction of the steps for linear learning rate warmup."""
    warmup_steps: int | None = None
    """Number of steps of linear learning rate warmup; overrides warmup_ratio."""
    layer_decay: float = 1.0
    """Layer-wise learning rate decay: factor per level from head through blocks and mapping to
    embeddings."""
    max_seq_length: int = 128
    """Maximum sequence length in tokens; longer texts are truncated (span and tagging tasks: read
    in windows)."""
    doc_stride: int = 128
    """Stride in tokens between the windows of a long passage, which overlap by two longest answers,
    or by half."""
    max_answer_length: int = 30
    """Maximum answer length in tokens."""
    double_unordered: bool = False
    """Train on both orders of each pair, for MRPC, STS-B, QQP and pairs of your own."""
    classifier_dropout_prob: float = 0.1
    """Dropout probability before the classifier."""
    hidden_dropout_prob: float | None = None
    """Dropout probability in the encoder; by default the recipe's (electra: the model's)."""
    attention_probs_dropout_prob: float | None = None
    """Dropout probability of attention weights; by default the recipe's (electra: the model's)."""
    seeds: int = free(1)
    """Number of runs with the seeds seed, seed + 1, …; all results are reported."""
    grid: str | None = free(None)
    """Values of options with numbers, such as `learning_rate=1e-4,3e-4 num_train_epochs=3,10`: all
    combinations are trained with one seed, those of the best score on a tenth of the training
    examples, held out, are taken."""
    evals_per_epoch: int = 1
    """Number of evaluations per epoch."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: weight the training loss so that all classes count equally."""
    metric_for_best_model: str | None = None
    """Metric that selects the best seed and is used for early stopping; by default the task's, as
    in ELECTRA."""
    early_stopping_patience: int | None = None
    """Stop after this many evaluations without improvement and keep the best weights; by default
    keep the last ones."""
    predict: str | None = per_call(None)
    """File of new text to label, or test for the task's test set (GLUE: submission files)."""
    compare: list[str] | None = per_call(None)
    """Two result folders of the same task to compare, instead of training."""
    device: Literal["auto", "cpu", "cuda", "mps"] = free("auto")
    """Device; auto: an NVIDIA GPU (cuda) if there is one, else cpu. mps: Apple's, untried."""
    resume: Literal["auto", "never"] = per_call("auto")
    """auto: resume the run in output_dir, if any; never: refuse a folder that has one."""
    dry_run: bool = per_call(False)
    """Read and encode the data, build the model, print the plan, then stop."""

    def __post_init__(self) -> None:
        require_filled(self, "model output_dir predict")
        counts = "seeds evals_per_epoch max_answer_length doc_stride max_steps"
        require_within(self, COUNT, f"{counts} early_stopping_patience")
        dropout = "hidden_dropout_prob attention_probs_dropout_prob"
        require_within(self, "[0, 1)", f"classifier_dropout_prob {dropout}")
        require_within(self, "[0, 1_000_000]", "num_train_epochs")
        require_within(self, "[0, 1]", "warmup_ratio")
        require_within(self, COUNT_OR_0, "warmup_steps")
        require_within(self, "(0, 1]", "layer_decay")
        require_within(self, f"[8, {MAX_WIDTH}]", "max_seq_length")
        require_repository(self.push_to_hub)
        is_pair = self.compare is None or len(self.compare) == 2
        require(is_pair, "compare takes two folders: --compare runs/cola-a runs/cola-b")

    @property
    def is_training(self) -> bool:
        """Whether the run trains; otherwise it only evaluates a fine-tuned model."""
        return bool(self.num_train_epochs or self.max_steps)

    @property
    def has_trials(self) -> bool:
        """Whether options are chosen by training with them."""
        return bool(self.grid and self.is_training and not self.dry_run)


PARTS = {"data": DataConfig, "tuning": TuningConfig, "training": TrainingConfig}


def option_names(part: str) -> list[str]:
    """The option names of one of PARTS."""
    names = [entry.name for entry in fields(PARTS[part])]
    return [name for name in names if part != "training" or name not in DERIVED]


def grid_points(grid: str | None) -> list[dict[str, int | float]]:
    """All combinations of the values in `NAME=VALUE,VALUE NAME=VALUE`; UsageError for others."""
    hints = get_type_hints(TrainingConfig) | get_type_hints(TuningConfig)
    names = {*option_names("training"), *option_names("tuning")}
    names -= names_of("free by_content per_call", TrainingConfig, TuningConfig) - DERIVED
    axes: dict[str, list[int | float]] = {}
    for axis in (grid or "").split():
        name, _, values = axis.partition("=")
        kind = _NUMBERS.get(hints.get(name))
        if name not in names or kind is None:
            raise UsageError(f"grid={axis}: {name} takes no number to try")
        try:
            numbers = [kind(value) for value in values.split(",")]
        except ValueError as error:
            raise UsageError(f"grid={axis}: {error}; give numbers separated by commas") from None
        is_new = name not in axes and len({*numbers}) == len(numbers)
        require(is_new, f"grid={axis}: an option or a value is repeated; give each once")
        axes[name] = numbers
    return [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]


@dataclass(frozen=True)
class FinetuneConfig:
    """All settings of fine-tuning.

    A recipe replaces the values that are not `chosen` (by default: not changed).
    """

    data: DataConfig = field(default_factory=DataConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    chosen: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for name in DERIVED:
            is_default = getattr(self.training, name) == getattr(TrainingConfig, name)
            require(is_default, f"training.{name} is not set in fine-tuning; see TuningConfig")
        repository = self.tuning.push_to_hub
        has_model = self.data.task != GLUE and self.tuning.is_training
        require(
            repository is None or has_model,
            f"push_to_hub={repository} is for one trained model; name one task, and train",
        )
        if self.tuning.grid:
            for point in grid_points(self.tuning.grid):
                self.with_options({**point, "grid": None})  # refuses values out of range
            names = ("validation_split", "max_train_examples")
            require(
                all(getattr(self.data, name) is None for name in names),
                "grid chooses on a tenth of all training examples, held out; "
                f"give neither {' nor '.join(names)}",
            )
        if self.chosen is None:
            defaults = FinetuneConfig(chosen=frozenset()).options()
            options = self.options()
            changed = {name for name in options if options[name] != defaults.get(name)}
            object.__setattr__(self, "chosen", frozenset(changed))

    def options(self) -> dict[str, Any]:
        """All options that are not None, by their name on the command line and in config.yaml."""
        options: dict[str, Any] = {}
        for part in PARTS:
            options |= {name: getattr(getattr(self, part), name) for name in option_names(part)}
        return {name: value for name, value in options.items() if value is not None}

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """A copy with these values, by option name, which are then `chosen`."""
        parts: dict[str, Any] = {}
        for part in PARTS:
            values = {name: options[name] for name in option_names(part) if name in options}
            parts[part] = replace(getattr(self, part), **values)
        return replace(self, **parts, chosen=(self.chosen or frozenset()) | options.keys())

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """A copy with these values for all options that are not in `chosen`."""
        names = defaults.keys() - (self.chosen or ())
        copy = self.with_options({name: defaults[name] for name in names})
        return replace(copy, chosen=self.chosen)

    @property
    def only_predicts(self) -> bool:
        """Whether a fine-tuned model only labels new text: no labelled data is given."""
        data = self.data
        has_data = data.data_dir or data.train_file or data.validation_file or data.test_file
        is_new_text = self.tuning.predict not in (None, PREDICT_TEST)
        return is_new_text and not has_data and data.task != GLUE
