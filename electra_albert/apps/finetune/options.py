"""The options of `electra-albert finetune`: defaults < published recipe for model and task < --config < flags."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import fields
from typing import TYPE_CHECKING, Literal

from electra_albert.apps.command_line import ShortHelp, add_config, config_first, make_parser, parse
from electra_albert.config import ModelConfig, TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DERIVED, GLUE, DataConfig, FinetuneConfig, TuningConfig
from electra_albert.tasks.registry import find_task

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_SWITCHES = {  # options that may be given without a value on the command line
    "regression": "The labels of a custom task are numbers to be met, not classes.",
    "from_scratch": "Take only shape and tokenizer of the model and begin with random weights, to compare with.",
    "from_mnli": "With --task glue, begin RTE, MRPC and STS-B with the model fine-tuned on MNLI.",
    "double_unordered": "Train on every pair in both orders, where the order means nothing (MRPC, STS-B).",
    "gradient_checkpointing": "Compute activations again in the backward pass: less memory, one more forward.",
    "dry_run": "Read, encode, build and print what would be trained, then stop.",
}
_PARTS = {"data": DataConfig, "tuning": TuningConfig, "training": TrainingConfig}
_COMPARE = "compare"
# Options with an effect where a fine-tuned model labels new text.
_FOR_NEW_TEXT = {"task", "model", "predict", "output_dir", "dry_run", "config", "resume", "device", "precision"}
_FOR_NEW_TEXT |= {"text_column", "text_pair_column", "label_column", "column_names", "encoding", "regression"}
_FOR_NEW_TEXT |= {"max_seq_length", "doc_stride", "max_answer_length", "per_device_eval_batch_size", "seed"}
_FOR_NEW_TEXT |= {"prepared_dir"}
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


def parse_finetuning(argv: Sequence[str]) -> FinetuneConfig:
    """The whole configuration; UsageError where an option is wrong."""
    parser, words = _parser(), config_first(argv)
    options = parse(parser, words, _SHORT_HELP)
    given = parser.parse_args(words, defaults=False).as_dict()
    try:
        parts = {name: part(**{option: options[option] for option in _names(part)}) for name, part in _PARTS.items()}
        return FinetuneConfig(**parts, chosen=frozenset(given))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _parser() -> ArgumentParser:
    purpose = "Fine-tune a pretrained encoder on a task, with honest scores."
    parser = make_parser("Finetuning.py", purpose, "[--option value ...]")
    add_config(parser, "config.yaml of a run")
    for part in _PARTS.values():
        derived = {field.name for field in fields(part)} - _names(part)
        parser.add_class_arguments(part, skip=derived | {_COMPARE, *_SWITCHES})
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name}", type=bool, nargs="?", const=True, default=False, help=text)
    text = "Two folders of results on the same task to compare, instead of training."
    parser.add_argument(f"--{_COMPARE}", type=str, nargs=2, metavar=("A", "B"), help=text)
    return parser


def _names(part: type) -> set[str]:
    """The options of one of the dataclasses."""
    return {field.name for field in fields(part)} - (DERIVED if part is TrainingConfig else set())


def with_recipe(
    config: FinetuneConfig, task_name: str, family: Literal["electra", "albert"], model: ModelConfig
) -> FinetuneConfig:
    """The options for one task: the published ones for the model and the task where the user chose none."""
    from electra_albert.tasks.recipes import recipe

    asked = config.tuning.recipe
    return config.with_defaults(recipe(family if asked == "auto" else asked, task_name, model))


def refuse_idle_options(argv: Sequence[str], config: FinetuneConfig) -> None:
    """UsageError for options on the command line that have no effect beside the others."""
    given = {word.split("=")[0].removeprefix("--") for word in argv if word.startswith("--")}
    tuning, task = config.tuning, config.data.task
    if task not in (None, GLUE):
        task = find_task(str(task)).name
    if tuning.compare:
        _refuse(given - {_COMPARE}, f"--{_COMPARE}, which only reads two folders of results")
    if config.only_predicts:
        idle = given - _FOR_NEW_TEXT - ({"num_train_epochs"} if not tuning.is_training else set())
        _refuse(idle, f"--predict {tuning.predict} without data to train on")
    if task != GLUE:
        _refuse(given & {"from_mnli"}, "a single --task; name the model fine-tuned on MNLI by --model")
    if task != "race":
        _refuse(given & {"race_level"}, f"--task {task}" if task else "the default task")


def _refuse(names: Set[str], beside: str) -> None:
    if names:
        listed = ", ".join(f"--{name}" for name in sorted(names))
        raise UsageError(f"{listed} has no effect with {beside}; leave it out")
