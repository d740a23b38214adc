"""Options of `electra-albert pretrain`: defaults < preset < --init_from < --config < flags."""

import json
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace

from electra_albert.apps import command_line
from electra_albert.apps.command_line import ShortHelp, parse, suggest
from electra_albert.apps.settings import flatten
from electra_albert.config.model import MODERN_FIELDS, READ_LENGTHS, ModelConfig
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import FLAT, GROUPS, PretrainConfig, as_settings
from electra_albert.config.training import OPTIMIZERS
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.objectives import OBJECTIVES, spec_of

DEFAULT_PRESET = "tiny"
# Groups of options with dotted names: the model's and those of the objectives.
_GROUPED: dict[str, type[Any]] = {
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
_TRAINED = {
    *("rtd.embedding_sharing", "rtd.generator_layers", "rtd.generator_rate"),
    *("rtd.generator_size", "rtd.generator_warmup_steps", "rtd.generator_weight"),
}
# As many as the run's and its initial weights' longest texts have tokens.
_POSITIONS = "max_position_embeddings"
_DERIVED = {_POSITIONS, "vocab_size"}  # no options of the model; vocab_size is the tokenizer's


def parse_pretraining(
    argv: Sequence[str],
    program: str | None = None,
    purpose: str = "Pretrain an ALBERT encoder on your own text.",
) -> tuple[str, PretrainConfig]:
    """Preset name and configuration of a pretraining run. Raises UsageError for an invalid option.

    `program` and `purpose` are those of --help, by default of `electra-albert pretrain`.
    """
    preset, source, inherited = _find_preset(argv)
    parser = _make_parser(program or command_line.program("pretrain"), purpose, preset)
    first = ["--config", json.dumps(inherited, ensure_ascii=False)] if inherited else []
    if first:
        try:
            _build(parse(parser, first))
        except (UsageError, TypeError, ValueError) as error:
            problem = f"its settings are invalid ({error})"
            raise CheckpointError(f"--init_from {source}: {problem}") from None
    words = [*first, *command_line.config_first(argv)]
    config = _build(parse(parser, words, _SHORT_HELP, "corpus"))
    refuse_idle_options(argv, config)
    return preset, replace(config, run=replace(config.run, init_from=source))


@cache
def _make_parser(program: str, purpose: str, preset: str) -> ArgumentParser:
    """The parser of all options, with the defaults of a preset."""
    parser = command_line.make_parser(program, purpose, "[CORPUS] [--option value ...]")
    text = "Default sizes and learning rates."
    parser.add_argument("--preset", choices=list(PRESETS), default=preset, help=text)
    for section in FLAT.values():
        parser.add_class_arguments(section, skip={"objective"})
    listed = "; ".join(f"{name}, {spec.description}" for name, spec in OBJECTIVES.items())
    names: Any = Literal[tuple(OBJECTIVES)]
    parser.add_argument("--objective", type=names, help=f"Pretraining objective: {listed}.")
    for group, section in _GROUPED.items():
        parser.add_class_arguments(section, group, skip=_DERIVED if group == "model" else set())
    text = "Length of the position table: --max_seq_length, or that of --init_from if it is larger."
    parser.add_argument(f"--model.{_POSITIONS}", type=int | None, help=text)
    defaults = flatten(as_settings(PRESETS[preset]))
    for name in _DERIVED:
        del defaults[f"model.{name}"]
    parser.set_defaults(defaults)
    return parser


def refuse_idle_options(argv: Sequence[str], config: PretrainConfig) -> None:
    """Raise UsageError for an option that has no effect with the others."""
    names = command_line.option_names(argv)
    run = config.run
    training = config.training
    idle_groups = _GROUPED.keys() - {"model", *OBJECTIVES[run.objective].options}
    of_idle_groups = {name for name in names if name.partition(".")[0] in idle_groups}
    has_budget = bool(run.budget or run.flops)
    is_modern = config.model.block == "modern"
    has_muon = bool(OPTIMIZERS[training.optimizer].matrix_moments)
    command_line.refuse_idle(
        names,
        (
            (True, of_idle_groups, f"--objective {run.objective}"),
            (True, {f"model.{_POSITIONS}"}, "--max_seq_length or --init_from, which decide it"),
            (not config.rtd.trains_generator, _TRAINED, f"--rtd.generator {config.rtd.generator}"),
            (has_budget, {"max_steps", "save_milestones"}, "--budget or --flops, which decide it"),
            (config.corpus.tokenizer, {"vocab_size"}, f"--tokenizer {config.corpus.tokenizer}"),
            (is_modern, {"model.type_vocab_size"}, "--model.block modern"),
            (not is_modern, {f"model.{name}" for name in MODERN_FIELDS}, "--model.block albert"),
            (not run.push_to_hub, {"hub_private_repo"}, "no --push_to_hub"),
            (not has_muon, {"muon_rate"}, f"--optimizer {training.optimizer}"),
        ),
    )
    if "save_milestones" in names and training.save_milestones % training.save_steps:
        raise UsageError(
            f"--save_milestones must be a multiple of --save_steps {training.save_steps}"
        )


def _find_preset(argv: Sequence[str]) -> tuple[str, str | None, dict[str, Any]]:
    """The preset, --init_from, and the options inherited from it, before the rest is parsed."""
    names = ("preset", "init_from", "output_dir")
    preset, source, output_dir = command_line.find_early(argv, names)
    inherited: dict[str, Any] = {}
    if source is not None:
        if not source or not output_dir:
            raise UsageError(
                "--init_from needs the folder of a run or of a stock model, and --output_dir"
            )
        from electra_albert.apps.pretrain.init_from import inherited_options

        source = os.path.normpath(source)
        inherited = inherited_options(Path(source), Path(output_dir))
    default = str(inherited.pop("preset", DEFAULT_PRESET))
    preset = preset or default
    if preset not in PRESETS:
        raise UsageError(
            f"preset {preset!r} does not exist{suggest(preset, PRESETS)}; "
            f"there are {', '.join(PRESETS)}"
        )
    return preset, source, inherited


def _build(options: Namespace) -> PretrainConfig:
    """The configuration from parsed options. Raises UsageError for invalid values."""
    for group in _GROUPED:
        if not hasattr(options[group], "as_dict"):
            raise UsageError(
                f"{group}: {options[group]!r} is not a mapping; write {group}.<name> or a mapping"
            )
    length = options.max_seq_length * READ_LENGTHS[options.model.block]
    options.model[_POSITIONS] = max(length, options.model[_POSITIONS] or 0)
    custom = sorted(OBJECTIVES[options.objective].options.keys() - {*GROUPS})
    try:
        flat: dict[str, Any] = {}
        for part, kind in FLAT.items():
            flat[part] = kind(**{entry.name: options[entry.name] for entry in fields(kind)})
        groups = {
            group: _GROUPED[group](**options[group].as_dict()) for group in (*GROUPS, *custom)
        }
        own = {group: groups.pop(group) for group in custom}
        config = PretrainConfig(**flat, **groups, own=own)
        spec_of(config).generator(config)
        if config.model.attention != ModelConfig.attention or config.model.attention_options:
            from electra_albert.model.attention import make_mixing

            make_mixing(config.model)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return config
