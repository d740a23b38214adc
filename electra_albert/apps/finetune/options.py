"""The options of Finetuning.py: defaults < published recipe for the model and the task < --config < flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from electra_albert.apps.command_line import ShortHelp, add_config, config_first, make_parser, parse
from electra_albert.config import ModelConfig, TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DERIVED, DataConfig, FinetuneConfig, TuningConfig
from electra_albert.tasks.registry import find_task

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

_SWITCHES = {  # options that may stand alone on the command line
    "regression": "The labels of a custom task are numbers to be met, not classes.",
    "from_scratch": "Take only shape and tokenizer of the model and begin with random weights, to compare with.",
    "from_mnli": "With --task glue, begin RTE, MRPC and STS-B with the model fine-tuned on MNLI.",
    "double_unordered": "Train on every pair in both orders, where the order means nothing (MRPC, STS-B).",
    "gradient_checkpointing": "Compute activations again in the backward pass: less memory, one more forward.",
    "dry_run": "Read, encode, build and print what would be trained, then stop.",
}
_PIECES = {"data": DataConfig, "tuning": TuningConfig, "training": TrainingConfig}
_COMPARE = "compare"
_FOR_NEW_TEXT = frozenset(  # options that labelling new text by a fine-tuned model looks at
    {
        *("task", "model", "predict", "output_dir", "dry_run", "config", "resume", "device", "precision"),
        *("text_column", "text_pair_column", "label_column", "column_names", "encoding", "regression", "prepared_dir"),
        *("max_seq_length", "doc_stride", "max_answer_length", "per_device_eval_batch_size", "seed"),
    }
)
_SHORT_HELP = ShortHelp(
    (
        *("task", "data_dir", "train_file", "validation_file", "text_column", "text_pair_column", "label_column"),
        *("model", "output_dir", "seeds", "num_train_epochs", "learning_rate", "max_seq_length", "predict", _COMPARE),
    ),
    """python Finetuning.py                                      a built-in task, in minutes
python Finetuning.py --train_file a.csv --validation_file b.csv --text_column review --label_column stars
python Finetuning.py --task cola --data_dir GLUE/CoLA --model runs/mine --seeds 5
python Finetuning.py --task glue --data_dir GLUE --model runs/mine --predict test
python Finetuning.py --compare runs/cola-mine runs/cola-other""",
    "README.md; docs/finetuning.md (tasks, their data, scores), docs/interop.md",
)


def parse_finetuning(argv: Sequence[str], recipe: Mapping[str, Any] | None = None) -> FinetuneConfig:
    """The whole configuration, over a recipe's defaults; UsageError where an option is wrong."""
    parser = _parser()
    if recipe:
        parser.set_defaults(dict(recipe))
    return _build(parse(parser, config_first(argv), _SHORT_HELP))


def with_recipe(
    argv: Sequence[str], task_name: str, family: Literal["electra", "albert"], model: ModelConfig
) -> FinetuneConfig:
    """The options for one task: those given, over the published ones for the model and the task."""
    from electra_albert.tasks.recipes import recipe

    chosen = parse_finetuning(argv).tuning.recipe
    return parse_finetuning(argv, recipe(family if chosen == "auto" else chosen, task_name, model))


def refuse_idle_options(argv: Sequence[str], config: FinetuneConfig) -> None:
    """UsageError for options on the command line that have no effect beside the others."""
    given = {word.split("=")[0].removeprefix("--") for word in argv if word.startswith("--")}
    tuning, task = config.tuning, config.data.task
    if task not in (None, "glue"):
        task = find_task(str(task)).name
    if tuning.compare:
        _refuse(given - {_COMPARE}, f"--{_COMPARE}, which only reads two folders of results")
    if config.only_predicts:
        idle = given - _FOR_NEW_TEXT - ({"num_train_epochs"} if not tuning.is_training else set())
        _refuse(idle, f"--predict {tuning.predict} without data to train on")
    if task != "glue":
        _refuse(given & {"from_mnli"}, "a single --task; name the model fine-tuned on MNLI by --model")
    if task != "race":
        _refuse(given & {"race_level"}, f"--task {task}" if task else "the default task")


def _refuse(names: Set[str], beside: str) -> None:
    if names:
        told = ", ".join(f"--{name}" for name in sorted(names))
        raise UsageError(f"{told} has no effect with {beside}; leave it out")


def _parser() -> ArgumentParser:
    purpose = "Fine-tune a pretrained encoder on a task, with honest scores."
    parser = make_parser("Finetuning.py", purpose, "[--option value ...]")
    add_config(parser, "config.yaml of a run")
    for piece in _PIECES.values():
        derived = DERIVED if piece is TrainingConfig else set()
        parser.add_class_arguments(piece, skip=set(_SWITCHES) | derived | {_COMPARE})
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name}", type=bool, nargs="?", const=True, default=False, help=text)
    told = "Two folders of results on the same task to compare, instead of training."
    parser.add_argument(f"--{_COMPARE}", type=str, nargs=2, metavar=("A", "B"), help=told)
    return parser


def _build(options: Namespace) -> FinetuneConfig:
    try:
        return FinetuneConfig(**{name: piece(**_options_of(piece, options)) for name, piece in _PIECES.items()})
    except ValueError as error:
        raise UsageError(str(error)) from None


def _options_of(piece: type, options: Namespace) -> dict[str, Any]:
    derived = DERIVED if piece is TrainingConfig else frozenset()
    return {field.name: options[field.name] for field in fields(piece) if field.name not in derived}
