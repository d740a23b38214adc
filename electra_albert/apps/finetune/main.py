"""Fine-tune an encoder on a task: read, encode, train every seed, score, export, predict.

python Finetuning.py
python Finetuning.py --task cola --data_dir GLUE/CoLA --model runs/mine --seeds 5
python Finetuning.py --task glue --data_dir GLUE --model runs/mine
python Finetuning.py --model runs/cola-mine --predict new.txt
python Finetuning.py --compare runs/cola-mine runs/cola-other
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.apps.command_line import report
from electra_albert.apps.finetune.options import parse_finetuning, refuse_idle_options, with_recipe
from electra_albert.contracts import UsageError, UserError
from electra_albert.files import SAMPLE_TASK
from electra_albert.finetuning_config import CUSTOM, PREDICT_TEST, TOPICS, table_name

if TYPE_CHECKING:
    from electra_albert.apps.finetune.start import Start
    from electra_albert.apps.finetune.task import Session
    from electra_albert.finetuning_config import DataConfig, FinetuneConfig
    from electra_albert.tasks.registry import Task

LOG = logging.getLogger(__name__)

RUNS = Path("runs")
ALL_OF_GLUE = "glue"


def main(argv: Sequence[str]) -> int:
    """Entry point of Finetuning.py; returns the exit code."""
    config = parse_finetuning(argv)  # options first: what they hold is complained of before a model is looked for
    refuse_idle_options(argv, config)
    if config.tuning.compare:
        from electra_albert.apps.finetune.compare import compare_folders

        return compare_folders(*map(Path, config.tuning.compare))
    from electra_albert.apps.finetune.task import Session
    from electra_albert.training.distributed import leave, start
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.run_log import RunLog

    world = start(config.tuning.device)
    try:
        with StopSignal() as stop, RunLog() as log:
            code = _run(config, Session(argv, world, stop, log))
    except UserError as error:
        code = report(error)
    return leave(world, code)


def _run(config: FinetuneConfig, session: Session) -> int:
    from electra_albert.apps.finetune.start import find_start
    from electra_albert.apps.finetune.task import run_task

    tuning = config.tuning
    if config.data.task == ALL_OF_GLUE:
        from electra_albert.apps.finetune.glue import find_glue, run_glue

        names = find_glue(config)
        start = find_start(tuning.model, config.data.prepared_dir, session.world)
        return run_glue(config, names, start, _output_folder(config, ALL_OF_GLUE, start), session)
    if config.only_predicts:
        return _predict_only(config, session)
    task, data = _find_task(config, session)
    start = find_start(tuning.model, data.prepared_dir, session.world)
    config = replace(with_recipe(session.argv, task.name, start.family, start.config), data=data)
    return run_task(task, config, start, _output_folder(config, task.name, start), session)


def _predict_only(config: FinetuneConfig, session: Session) -> int:
    """Label new text with a fine-tuned model, by what its folder records of its task."""
    from electra_albert.apps.finetune.start import find_start
    from electra_albert.apps.finetune.task import label_text
    from electra_albert.hub.load import read_task
    from electra_albert.tasks.registry import TASKS, find_task, task_of_model

    tuning, data = config.tuning, config.data
    asked = None if data.task is None else find_task(data.task)
    start = None if tuning.model is None else find_start(tuning.model, data.prepared_dir, session.world)
    if start is None or start.files is None:
        raise UsageError(
            f"--predict {tuning.predict} needs a fine-tuned model: name it by --model, or give --task and its data to "
            "train one"
        )
    details, _ = read_task(start.files)
    task = task_of_model(details, asked)
    if "columns" not in details and task.columns == TASKS[CUSTOM].columns and data.text_pair_column is None:
        LOG.info(
            f"notice: {start.files.config.parent} does not record the columns it was fine-tuned on, so one text a row "
            "is read; --text_pair_column names that of a second one"
        )
    if "max_seq_length" in details and any(word.split("=")[0] == "--max_seq_length" for word in session.argv):
        told = f"it was fine-tuned to read {details['max_seq_length']}"
        raise UsageError(f"--max_seq_length has no effect with {start.files.config.parent}: {told}; leave it out")
    # A model that does not record its length reads as much as it has positions for.
    config = parse_finetuning(session.argv, {"max_seq_length": max(8, start.config.max_position_embeddings)})
    config = replace(config, tuning=replace(config.tuning, num_train_epochs=0.0, max_steps=None))
    return label_text(task, config, start, session)


def _find_task(config: FinetuneConfig, session: Session) -> tuple[Task, DataConfig]:
    """The task asked for and where its data lies; without any, the task that ships."""
    from electra_albert.tasks.examples import Report
    from electra_albert.tasks.locating import locate
    from electra_albert.tasks.registry import find_task

    data = config.data
    of_a_table = (data.train_file, data.validation_file, data.test_file, data.text_column, data.text_pair_column)
    of_columns = (data.label_column, data.column_names)
    if data.task is not None or data.regression or any((*of_a_table, *of_columns)):
        task = find_task(data.task or CUSTOM)
        # What is not there is said before a model is made.
        needs_test = config.tuning.predict == PREDICT_TEST
        locate(task, data, Report(), needs_test=needs_test, is_trained=config.tuning.is_training)
        return task, data
    if data.data_dir is not None:
        raise UsageError(f"--data_dir {data.data_dir} needs --task, the name of the task whose data lie there")
    if data.validation_split is not None:
        raise UsageError("--validation_split needs data of your own: --train_file, or --task and --data_dir")
    if config.tuning.predict == PREDICT_TEST:
        raise UsageError("--predict test needs --task, the name of the task whose test set is to be labelled")
    train, dev = (str(SAMPLE_TASK / f"{name}.csv") for name in ("train", "dev"))
    return replace(find_task(CUSTOM), name=TOPICS), replace(data, train_file=train, validation_file=dev)


def _output_folder(config: FinetuneConfig, name: str, start: Start) -> Path:
    """The folder of the results: as asked for, or named after the task, or a table of one's own, and the model."""
    if config.tuning.output_dir is not None:
        return Path(config.tuning.output_dir)
    if name == CUSTOM:
        name = table_name(config.data)
    begun = "-from-scratch" if config.tuning.from_scratch or start.files is None else ""
    return RUNS / f"{name}-{start.name}{begun}"
