"""Labels for new text, and submission files, from a fine-tuned model."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from electra_albert.apps.command_line import check_can_write
from electra_albert.apps.finetune.job import TaskJob, find_start, make_task_job
from electra_albert.apps.finetune.results import MODEL, PREDICTED, PREDICTIONS_HEADER, SUBMISSION, predictions_table
from electra_albert.apps.finetune.sweep import inference, model_outputs
from electra_albert.apps.run_folder import ENVIRONMENT, write_whole, writing
from electra_albert.contracts import CheckpointError, RunResult, UsageError
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.finetuning_config import CUSTOM, PREDICT_TEST, FinetuneConfig
from electra_albert.hub.load import load_task_model, locate, read_task
from electra_albert.tasks.encoding import Encoding, trained_plan
from electra_albert.tasks.kinds import KINDS, TaskObjective, write_submission
from electra_albert.tasks.registry import TASKS, find_task, task_of_model
from electra_albert.tasks.task import Report
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal

LOG = logging.getLogger(__name__)


def label_text(config: FinetuneConfig, world: World, stop: StopSignal) -> RunResult:
    """Label the file of --predict into --output_dir, else the folder of the model's sweep, or the model's own."""
    tuning, data = config.tuning, config.data
    asked = None if data.task is None else find_task(data.task)
    start = None if tuning.model is None else find_start(tuning.model, data.prepared_dir, world)
    if start is None or start.files is None:
        way_out = "name it by --model, or give --task and its data to train one"
        raise UsageError(f"--predict {tuning.predict} needs a fine-tuned model: {way_out}")
    (details, _), model = read_task(start.files), start.files.config.parent
    task = task_of_model(details, asked)
    if "columns" not in details and task.columns == TASKS[CUSTOM].columns and data.text_pair_column is None:
        LOG.info(
            f"notice: {model} does not record the columns it was fine-tuned on, so one text an example is read; "
            "--text_pair_column names that of a second one"
        )
    if "max_seq_length" in details and "max_seq_length" in (config.chosen or ()):
        trained = f"it was fine-tuned to read {details['max_seq_length']}"
        raise UsageError(f"--max_seq_length has no effect with {model}: {trained}; leave it out")
    # A model that does not record its length reads as much as it has positions for.
    config = config.with_defaults({"max_seq_length": max(8, start.config.max_position_embeddings)})
    config = replace(config, tuning=replace(config.tuning, num_train_epochs=0.0, max_steps=None))
    of_sweep = model.name == MODEL and (model.parent / ENVIRONMENT).is_file()
    folder = Path(tuning.output_dir or (model.parent if of_sweep else model))
    check_can_write(folder)
    table = folder / PREDICTED
    if table.exists():
        if not (table.is_file() and table.read_bytes().startswith(PREDICTIONS_HEADER.encode())):
            raise UsageError(f"{table} was not written by Finetuning.py; choose another --output_dir")
        LOG.info(f"notice: {table} is replaced; --output_dir keeps another one apart")
    job = make_task_job(task, config, start, world)
    count, labels = sum(map(len, job.to_label.values())), ", ".join(job.data.labels[:5])
    LOG.info(
        f"{job.task.name}: {count:,} examples of {tuning.predict} to label by {model}"
        f"{' with labels ' * bool(labels)}{labels}{', ...' * (len(job.data.labels) > 5)}, in sequences of at most "
        f"{job.plan.max_seq_length} tokens"
    )
    if tuning.dry_run:
        return RunResult(folder, {}, 0)
    written: list[Path] | None = []
    with main_first(world):
        if world.is_main:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            written = predict(job, folder, world.device, stop)
    is_stopped = None in gather_objects(written, world)
    return RunResult(folder, {}, 0, is_stopped, "\n".join(f"written: {file}" for file in written or ()))


def predict(job: TaskJob, folder: Path, device: torch.device, stop: StopSignal) -> list[Path] | None:
    """Write labels of new text, or submission files, by the best model or the one scored; None if stopped."""
    files = locate(folder / MODEL) if job.train is not None else job.start.files
    if files is None:
        raise CheckpointError("a model with random weights predicts nothing; fine-tune it first")
    model, details = load_task_model(files)
    objective = TaskObjective(model, is_regression=job.plan.is_regression).to(device)
    plan, labels, kind = trained_plan(job.plan, details), tuple(details["labels"]), KINDS[job.task.kind]
    encoder, world = TextEncoder(job.start.tokenizer), World(0, 1, 0, device)
    written = []
    for name, examples in job.to_label.items():
        report = Report()
        rows = kind.encode(examples, Encoding(encoder, labels, plan, report, name))
        with inference(objective, job):
            found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, world, stop)
        if found is None:
            return None
        decoded = kind.decode(found[0], rows, examples, labels, plan)
        with writing(folder):
            if job.config.tuning.predict == PREDICT_TEST:
                written.append(write_submission(job.task, name, decoded, examples, folder / SUBMISSION))
            else:
                write_whole(folder / PREDICTED, predictions_table(examples, decoded.predictions, decoded.probabilities))
                written.append(folder / PREDICTED)
        for line in report.lines():
            LOG.info(f"{job.task.name}: {line}")
    return written
