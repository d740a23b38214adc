"""The options of Finetuning.py: defaults < published recipe for the model and the task < --config < flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from electra_albert.apps.command_line import config_first, make_parser, parse
from electra_albert.config import TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.finetuning_config import DERIVED, DataConfig, FinetuneConfig, TuningConfig

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


def parse_finetuning(argv: Sequence[str], recipe: Mapping[str, Any] | None = None) -> FinetuneConfig:
    """The whole configuration, over a recipe's defaults; UsageError where an option is wrong."""
    parser = _parser()
    if recipe:
        parser.set_defaults(dict(recipe))
    return _build(parse(parser, config_first(argv)))


def _parser() -> ArgumentParser:
    parser = make_parser("Finetuning.py", "Fine-tune a pretrained encoder on a task, with honest scores.")
    parser.add_argument("--config", action="config", help="A YAML file of these options, such as config.yaml of a run.")
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
