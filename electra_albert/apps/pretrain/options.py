"""The options of `electra-albert pretrain`: defaults < preset < those of --init_from < --config < flags."""

import json
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace

from electra_albert.apps import command_line
from electra_albert.apps.command_line import ShortHelp, parse, suggest
from electra_albert.config import FLAT, GROUPS, OPTIMIZERS, ModelConfig, PretrainConfig, as_settings
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.objectives import OBJECTIVES, spec_of
from electra_albert.presets import PRESETS

DEFAULT_PRESET = "tiny"
_GROUPED: dict[str, type[Any]] = {  # groups of options with dotted names: the model's and those of the objectives
    "model": ModelConfig,
    **{group: kind for spec in OBJECTIVES.values() for group, kind in spec.options.items()},
}
_SHORT_HELP = ShortHelp(
    "corpus preset output_dir objective init_from tokenizer vocab_size max_seq_length max_steps "
    "per_device_train_batch_size learning_rate seed dry_run config",
    (
        ("", "the sample corpus, in minutes"),
        ("my.txt", "the same as --corpus my.txt"),
        ('"texts/*.txt.xz" --preset small --output_dir runs/mine',),
        ("articles.csv --text_column body --dry_run",),
        ("--init_from runs/mine --corpus more.txt --output_dir runs/adapted",),
    ),
    "README.md; docs/corpus.md (text and its formats), docs/cluster.md, docs/interop.md",
)
# Options of trained generators; presets set some of them for other kinds too.
_TRAINED = "embedding_sharing generator_layers generator_rate generator_size generator_warmup_steps generator_weight"
_POSITIONS = "max_position_embeddings"  # as many as the longest sequences of the run and of its initial weights
_DERIVED = {_POSITIONS, "vocab_size"}  # no options of the model; vocab_size is the tokenizer's


def parse_pretraining(
    argv: Sequence[str], program: str | None = None, purpose: str = "Pretrain an ALBERT encoder on your own text."
) -> tuple[str, PretrainConfig]:
    """Preset name and configuration of a pretraining run. Raises UsageError for an invalid option.

    `program` and `purpose` are those of --help, by default of `electra-albert pretrain`.
    """
    preset, run, inherited = _find_preset(argv)
    program = program or command_line.program("pretrain")
    parser = command_line.make_parser(program, purpose, "[CORPUS] [--option value ...]")
    parser.add_argument("--preset", choices=list(PRESETS), default=preset, help="Default sizes and learning rates.")
    for section in FLAT.values():
        parser.add_class_arguments(section, skip={"objective"})
    listed = "; ".join(f"{name}, {spec.description}" for name, spec in OBJECTIVES.items())
    names: Any = Literal[tuple(OBJECTIVES)]
    parser.add_argument("--objective", type=names, help=f"Pretraining objective: {listed}.")
    for group, section in _GROUPED.items():
        parser.add_class_arguments(section, group, skip=_DERIVED if group == "model" else set())
    text = "Length of the position table: --max_seq_length, or that of --init_from if it is larger."
    parser.add_argument(f"--model.{_POSITIONS}", type=int | None, help=text)
    settings = as_settings(PRESETS[preset])
    settings["model"] = {name: value for name, value in settings["model"].items() if name not in _DERIVED}
    flat = {name: value for name, value in settings.items() if name not in GROUPS}
    dotted = {f"{group}.{name}": value for group in GROUPS for name, value in settings[group].items()}
    parser.set_defaults(flat | dotted)
    first = ["--config", json.dumps(inherited, ensure_ascii=False)] if inherited else []
    if first:
        try:
            _build(parse(parser, first))
        except (UsageError, TypeError, ValueError) as error:
            raise CheckpointError(f"--init_from {run}: its settings are invalid ({error})") from None
    config = _build(parse(parser, [*first, *command_line.config_first(argv)], _SHORT_HELP, "corpus"))
    refuse_idle_options(argv, config)
    (asked,) = command_line.find_first(argv, (f"model.{_POSITIONS}",))
    positions = max(config.corpus.max_seq_length, inherited.get("model", {}).get(_POSITIONS, 0))
    if asked not in (None, str(positions)):
        problem = f"differs from the {positions} positions that --max_seq_length and --init_from give"
        raise UsageError(f"--model.{_POSITIONS} {asked} {problem}; leave it out")
    return preset, replace(config, run=replace(config.run, init_from=run))


def refuse_idle_options(argv: Sequence[str], config: PretrainConfig) -> None:
    """Raise UsageError for an option that has no effect with the others."""
    idle = _GROUPED.keys() - {"model", *OBJECTIVES[config.run.objective].options}
    for option in (word.split("=")[0] for word in argv if word.startswith("--")):
        group, _, name = option.removeprefix("--").partition(".")
        if name and group in idle:
            raise UsageError(f"{option} has no effect with --objective {config.run.objective}; remove it")
        if group == "rtd" and name in _TRAINED.split() and not config.rtd.trains_generator:
            raise UsageError(f"{option} has no effect with --rtd.generator {config.rtd.generator}; leave it out")
        if option in ("--max_steps", "--save_milestones") and (config.run.budget or config.run.flops):
            raise UsageError(f"{option} follows from --budget or --flops; give only one of them")
        if option == "--save_milestones" and config.training.save_milestones % (steps := config.training.save_steps):
            raise UsageError(f"{option} must be a multiple of --save_steps {steps}")
        if option == "--vocab_size" and config.corpus.tokenizer:
            raise UsageError(f"{option} has no effect with --tokenizer {config.corpus.tokenizer}; leave it out")
        if option == "--muon_rate" and not OPTIMIZERS[config.training.optimizer].matrix_moments:
            raise UsageError(f"{option} has no effect with --optimizer {config.training.optimizer}; leave it out")


def _find_preset(argv: Sequence[str]) -> tuple[str, str | None, dict[str, Any]]:
    """The preset, --init_from, and the options inherited from it, before the rest is parsed."""
    preset, run, output_dir = command_line.find_first(argv, ("preset", "init_from", "output_dir"))
    inherited: dict[str, Any] = {}
    if run is not None:
        if not run or not output_dir:
            raise UsageError("--init_from needs the folder of a run or of a stock model, and --output_dir")
        from electra_albert.apps.pretrain.init_from import inherited_options

        run = os.path.normpath(run)
        inherited = inherited_options(Path(run), Path(output_dir))
    default = str(inherited.pop("preset", DEFAULT_PRESET))
    if (preset := preset or default) not in PRESETS:
        raise UsageError(f"preset {preset!r} does not exist{suggest(preset, PRESETS)}; there are {', '.join(PRESETS)}")
    return preset, run, inherited


def _build(options: Namespace) -> PretrainConfig:
    """The configuration from parsed options. Raises UsageError for invalid values."""
    for group in _GROUPED:
        if not hasattr(options[group], "as_dict"):
            raise UsageError(f"{group}: {options[group]!r} is not a mapping; write {group}.<name> or a mapping")
    own = sorted(OBJECTIVES[options.objective].options.keys() - {*GROUPS})
    try:
        flat = {name: kind(**{each.name: options[each.name] for each in fields(kind)}) for name, kind in FLAT.items()}
        options.model[_POSITIONS] = max(options.max_seq_length, options.model[_POSITIONS] or 0)
        groups = {group: _GROUPED[group](**options[group].as_dict()) for group in (*GROUPS, *own)}
        config = PretrainConfig(**flat, **{name: groups.pop(name) for name in GROUPS}, own=groups)
        spec_of(config).generator(config)
        if config.model.attention != ModelConfig.attention or config.model.attention_options:
            from electra_albert.model.attention import mixing_shapes

            mixing_shapes(config.model)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return config
