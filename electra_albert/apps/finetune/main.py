"""The command `electra-albert finetune`: defaults < published recipe < --config < flags."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from electra_albert.apps import command_line
from electra_albert.config.finetuning import (
    DERIVED,
    GLUE,
    PARTS,
    FinetuneConfig,
    grid_points,
    option_names,
)
from electra_albert.config.training import OPTIMIZERS, TrainingConfig
from electra_albert.contracts import LOG, Callbacks, Metrics, RunResult, UsageError
from electra_albert.tasks.registry import find_task

# Options with an effect when a fine-tuned model predicts new text.
_FOR_NEW_TEXT = (
    "task model predict output_dir dry_run config resume device precision text_column "
    "text_pair_column label_column column_names encoding regression max_seq_length doc_stride "
    "max_answer_length per_device_eval_batch_size seed prepared_dir num_hidden_layers"
)
_SHORT_HELP = command_line.ShortHelp(
    "task data_dir train_file validation_file validation_split text_column text_pair_column "
    "label_column model output_dir seeds num_train_epochs learning_rate max_seq_length "
    "predict compare",
    (
        ("", "a built-in task, in minutes"),
        ("--train_file a.csv --validation_file b.csv --text_column review --label_column stars",),
        ("--task cola --data_dir GLUE/CoLA --model runs/mine --seeds 5",),
        ("--task glue --data_dir GLUE --model runs/mine --predict test",),
        ("--compare runs/cola-mine runs/cola-other",),
    ),
    "README.md; docs/finetuning.md (tasks, their data, scores), docs/interop.md",
)


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert finetune`; returns the exit code."""
    config = parse_finetuning(argv)
    refuse_idle_options(argv, config)
    if config.tuning.compare:
        from electra_albert.apps.finetune.compare import compare_folders

        print(compare_folders(*map(Path, config.tuning.compare)))
        return 0
    from electra_albert.apps.finetune.run import run_finetuning
    from electra_albert.training.distributed import start

    world = start(config.tuning.device, config.training.ddp_timeout)
    command = command_line.started_as("finetune", argv)
    return command_line.print_results(run_finetuning(config, world, command))


def finetune(
    config: FinetuneConfig | Path | str | None = None,
    *,
    on_step: Callable[[Metrics], object] | None = None,
    on_evaluation: Callable[[Metrics], object] | None = None,
    **options: Any,
) -> RunResult:
    """Fine-tune an encoder on a task, or resume a sweep that was stopped.

    `options` are those of `electra-albert finetune` by name. `config` is a YAML file, or an object
    instead of options.
    `on_step` and `on_evaluation` get each row of a seed's metrics.jsonl, one seed after the other,
    without the trials of a grid; if `on_evaluation` returns True, the seed ends there. Returns the
    folder, the best seed's metrics and its updates. Raises UsageError, DataError, CheckpointError
    or DivergedError.
    """
    from electra_albert.apps.execution import python_call
    from electra_albert.apps.finetune.run import run_finetuning

    argv = []
    if isinstance(config, (Path, str)):
        argv = ["--config", str(config)]
        config = None
    if config is not None and options:
        name = next(iter(options))
        raise UsageError(f"give either a config or options such as {name}, not both")
    values = options
    if config is not None:  # the recipe decides the others, as in a repetition
        chosen = config.chosen or ()
        values = {name: value for name, value in config.options().items() if name in chosen}
    if values:
        argv += ["--config", json.dumps(values, default=str)]
    if config is None:
        config = parse_finetuning(argv)
        refuse_idle_options([f"--{name}" for name in options], config)
    if config.tuning.compare:
        raise UsageError("compare is for the command line: electra-albert finetune --compare A B")
    with python_call(config.tuning.device, config.training.ddp_timeout) as world:
        callbacks = Callbacks(on_step, on_evaluation)
        command = command_line.started_as("finetune", argv)
        result = run_finetuning(config, world, command, callbacks)
        LOG.info(result.summary)
    return result


def parse_finetuning(argv: Sequence[str]) -> FinetuneConfig:
    """Parse the command line; UsageError for a wrong option."""
    parser = command_line.make_parser(
        command_line.program("finetune"),
        "Fine-tune a pretrained encoder on a task and report its scores.",
        "[--option value ...]",
    )
    words = command_line.config_first(argv)
    for kind in PARTS.values():
        derived = DERIVED if kind is TrainingConfig else ()
        parser.add_class_arguments(kind, skip={"compare", *derived})
    parser.add_argument(
        "--compare",
        type=str,
        nargs=2,
        default=[],
        metavar=("A", "B"),
        help="Compare two result folders of the same task instead of training.",
    )
    options = command_line.parse(parser, words, _SHORT_HELP)
    options.compare = options.compare or None  # the parser refuses None
    chosen = frozenset(parser.parse_args(words, defaults=False).as_dict())
    parts: dict[str, Any] = {}
    for part, kind in PARTS.items():
        parts[part] = kind(**{name: options[name] for name in option_names(part)})
    return FinetuneConfig(**parts, chosen=chosen)


def refuse_idle_options(argv: Sequence[str], config: FinetuneConfig) -> None:
    """UsageError for options on the command line that have no effect with the others."""
    tuning = config.tuning
    names = command_line.option_names(argv) | {*grid_points(tuning.grid)[0]}
    name = config.data.task
    kind = "sequence"
    if name is not None and name != GLUE:
        task = find_task(name)
        name = task.name
        kind = task.kind
    of_task = f"--task {name}" if name else "the default task"
    used = set(_FOR_NEW_TEXT.split())
    if not tuning.is_training:
        used.add("num_train_epochs")
    optimizer = config.training.optimizer
    prediction = f"--predict {tuning.predict} without data to train on"
    has_spans = kind == "span" or (config.only_predicts and name is None)
    single_task = "a single --task; give the model fine-tuned on MNLI with --model"
    rules = (
        (tuning.compare, names - {"compare"}, "--compare, which only reads two result folders"),
        (config.only_predicts, names - used, prediction),
        (not tuning.is_training, {"grid"}, "--num_train_epochs 0"),
        (kind in ("span", "choice"), {"grid"}, f"{of_task}: its questions share passages"),
        (name != GLUE, {"from_mnli"}, single_task),
        (not tuning.push_to_hub, {"hub_private_repo"}, "no --push_to_hub"),
        (not OPTIMIZERS[optimizer].matrix_moments, {"muon_rate"}, f"--optimizer {optimizer}"),
        (name != "race", {"race_level"}, of_task),
        (not has_spans, {"doc_stride", "max_answer_length"}, of_task),
    )
    command_line.refuse_idle(names, rules)
