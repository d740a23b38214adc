"""Options and entry points of `electra-albert finetune`: defaults < published recipe < --config < flags."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra_albert.apps import command_line
from electra_albert.config import OPTIMIZERS, TrainingConfig
from electra_albert.contracts import LOG, RunResult, UsageError
from electra_albert.finetuning_config import DERIVED, GLUE, PARTS, FinetuneConfig, option_names
from electra_albert.tasks.registry import find_task

_COMPARE = "compare"
_FOR_NEW_TEXT = (  # options with an effect when a fine-tuned model predicts new text
    "task model predict output_dir dry_run config resume device precision text_column text_pair_column label_column "
    "column_names encoding regression max_seq_length doc_stride max_answer_length per_device_eval_batch_size seed "
    "prepared_dir num_hidden_layers"
)
_SHORT_HELP = command_line.ShortHelp(
    "task data_dir train_file validation_file text_column text_pair_column label_column model output_dir seeds "
    f"num_train_epochs learning_rate max_seq_length predict {_COMPARE}",
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
    return command_line.print_results(run_finetuning(config, world, command_line.started_as("finetune", argv)))


def finetune(config: FinetuneConfig | None = None, **options: Any) -> RunResult:
    """Fine-tune an encoder on a task, or resume a sweep that was stopped.

    `options` are those of `electra-albert finetune` by name; a `config` replaces all of them. Returns the folder, the
    best seed's metrics and its updates. Raises UsageError, DataError, CheckpointError or DivergedError.
    """
    from electra_albert.apps.finetune.run import run_finetuning
    from electra_albert.training.distributed import start, stop
    from electra_albert.training.run_log import console_log

    if config is not None and options:
        raise UsageError(f"give either a config or options such as {next(iter(options))}, not both")
    argv = ["--config", json.dumps(options, default=str)] if options else []
    if config is None:
        config = parse_finetuning(argv)
        refuse_idle_options([f"--{name}" for name in options], config)
    if config.tuning.compare:
        raise UsageError("compare is for the command line: electra-albert finetune --compare A B")
    world = start(config.tuning.device, config.training.ddp_timeout)
    try:
        with console_log():
            result = run_finetuning(config, world, command_line.started_as("finetune", argv))
            LOG.info(result.summary)
            return result
    finally:
        stop(world)


def parse_finetuning(argv: Sequence[str]) -> FinetuneConfig:
    """Parse the command line; UsageError for a wrong option."""
    purpose = "Fine-tune a pretrained encoder on a task and report its scores."
    parser = command_line.make_parser(command_line.program("finetune"), purpose, "[--option value ...]")
    words = command_line.config_first(argv)
    for part in PARTS.values():
        parser.add_class_arguments(part, skip={_COMPARE, *(DERIVED if part is TrainingConfig else ())})
    text = "Compare two result folders of the same task instead of training."
    parser.add_argument(f"--{_COMPARE}", type=str, nargs=2, metavar=("A", "B"), help=text)
    options = command_line.parse(parser, words, _SHORT_HELP)
    given = parser.parse_args(words, defaults=False).as_dict()
    parts = {part: kind(**{name: options[name] for name in option_names(part)}) for part, kind in PARTS.items()}
    return FinetuneConfig(**parts, chosen=frozenset(given))


def refuse_idle_options(argv: Sequence[str], config: FinetuneConfig) -> None:
    """UsageError for options on the command line that have no effect with the others."""
    given = {word.split("=")[0].removeprefix("--") for word in argv if word.startswith("--")}
    tuning, task, kind = config.tuning, config.data.task, "sequence"
    if task not in (None, GLUE):
        task, kind = find_task(str(task)).name, find_task(str(task)).kind
    of_task = f"--task {task}" if task else "the default task"
    has_muon = bool(OPTIMIZERS[config.training.optimizer].matrix_moments)
    is_of_model = config.only_predicts and task is None
    used = {*_FOR_NEW_TEXT.split()} | (set() if tuning.is_training else {"num_train_epochs"})
    for is_idle, names, other in (
        (tuning.compare, given - {_COMPARE}, f"--{_COMPARE}, which only reads two result folders"),
        (config.only_predicts, given - used, f"--predict {tuning.predict} without data to train on"),
        (task != GLUE, {"from_mnli"}, "a single --task; give the model fine-tuned on MNLI with --model"),
        (not has_muon, {"muon_rate"}, f"--optimizer {config.training.optimizer}"),
        (task != "race", {"race_level"}, of_task),
        (kind != "span" and not is_of_model, {"doc_stride", "max_answer_length"}, of_task),
    ):
        if is_idle and names & given:
            listed = ", ".join(f"--{name}" for name in sorted(names & given))
            raise UsageError(f"{listed} has no effect with {other}; drop it")
