"""A fine-tuned model's outputs: scores on evaluation sets, labels for new text, submission files."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra_albert.apps.command_line import check_can_write
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.job import TaskJob, find_start, make_task_job
from electra_albert.apps.machine import one_line_errors
from electra_albert.apps.run_folder import ENVIRONMENT, writing
from electra_albert.contracts import CheckpointError, RunResult, UsageError
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.files import write_text
from electra_albert.finetuning_config import CUSTOM, PREDICT_TEST, FinetuneConfig
from electra_albert.hub.load import ModelFiles, load_task_model, locate, read_task
from electra_albert.tasks import metrics, registry
from electra_albert.tasks.encoding import EncodedExamples, Encoding, eval_batches, outputs_by_unit, trained_plan
from electra_albert.tasks.kinds import KINDS, TaskObjective, write_submission
from electra_albert.tasks.task import Report
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal
from electra_albert.training.step import autocast

LOG = logging.getLogger(__name__)


@contextmanager
def inference(objective: TaskObjective, job: TaskJob) -> Iterator[None]:
    """Without gradients and dropout, in the arithmetic of the training. UsageError where a GPU's memory is full."""
    device = next(objective.parameters()).device
    objective.eval()
    with one_line_errors(job.training, "none"), torch.no_grad(), autocast(device, job.arithmetic):
        yield


def load_objective(job: TaskJob, files: ModelFiles, device: torch.device) -> tuple[TaskObjective, dict[str, Any]]:
    """A fine-tuned model on the device, and what its folder records of its task."""
    model, details = load_task_model(files)
    return TaskObjective(model, is_regression=job.plan.is_regression).to(device), details


def score(job: TaskJob, objective: TaskObjective, world: World, stop: StopSignal) -> files.SeedResult | None:
    """Score all evaluation sets, the same result on every rank; None where one process alone was stopped."""
    result = files.SeedResult(job.config.training.seed, 0, {}, {}, {}, {}, False, [])
    for name, rows in job.evaluation.items():
        found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, world, stop)
        if found is None:
            return None
        examples, is_deciding = job.data.evaluation[name], name == job.deciding_set
        decoded = KINDS[job.task.kind].decode(found[0], rows, examples, job.data.labels, job.plan)
        values = decoded.values
        if values is None:
            raise ValueError(f"evaluation set {name} has no labels to score by")
        for metric, value in {"loss": found[1], **metrics.MEASURES[job.measure](values)}.items():
            result.metrics[metric if is_deciding else f"{name}_{metric}"] = value
        result.values[name], result.predictions[name] = values.tolist(), decoded.predictions
        result.probabilities[name] = decoded.probabilities
        if is_deciding:
            result = result._replace(is_collapsed=metrics.is_collapsed(job.measure, values))
    return result


def model_outputs(
    rows: EncodedExamples, objective: TaskObjective, batch_size: int, world: World, stop: StopSignal
) -> tuple[list[np.ndarray], float | None] | None:
    """An array of outputs per unit, cut to its row, and the mean loss (None without labels); None if stopped."""
    device, mine = next(objective.parameters()).device, dict[int, np.ndarray]()
    loss, count = 0.0, 0
    for on_host in eval_batches(rows, max(1, batch_size // rows.rows_per_unit), world.rank, world.world_size):
        if world.world_size == 1 and stop.requested:
            return None
        units, batch = on_host.example_id[:: rows.rows_per_unit].numpy(), on_host.to(device)
        outputs = objective.outputs(batch)
        if batch.labels is not None:
            term = objective.terms(outputs, batch)[next(iter(objective.weights))]
            loss, count = loss + float(term.sum), count + int(term.count)
        mine |= dict(zip(units.tolist(), outputs_by_unit(outputs[0].float().cpu().numpy(), units, rows), strict=True))
    gathered = gather_objects((mine, loss, count), world)
    by_unit = {unit: output for part, _, _ in gathered for unit, output in part.items()}
    total, counted = sum(part[1] for part in gathered), sum(part[2] for part in gathered)
    return [by_unit[unit] for unit in range(rows.unit_count)], total / counted if counted else None


def label_text(config: FinetuneConfig, world: World, stop: StopSignal) -> RunResult:
    """Label the file of --predict into --output_dir, else the folder of the model's sweep, or the model's own."""
    tuning, data = config.tuning, config.data
    asked = None if data.task is None else registry.find_task(data.task)
    start = None if tuning.model is None else find_start(tuning.model, data.prepared_dir, world)
    if start is None or start.files is None:
        way_out = "name it by --model, or give --task and its data to train one"
        raise UsageError(f"--predict {tuning.predict} needs a fine-tuned model: {way_out}")
    (details, _), model = read_task(start.files), start.files.config.parent
    task, custom = registry.task_of_model(details, asked), registry.TASKS[CUSTOM]
    if "columns" not in details and task.columns == custom.columns and data.text_pair_column is None:
        one_text = f"notice: {model} does not record the columns it was fine-tuned on, so one text an example is read"
        LOG.info(f"{one_text}; --text_pair_column names that of a second one")
    if "max_seq_length" in details and "max_seq_length" in (config.chosen or ()):
        trained = f"it was fine-tuned to read {details['max_seq_length']}"
        raise UsageError(f"--max_seq_length has no effect with {model}: {trained}; leave it out")
    # A model that does not record its length reads as much as it has positions for.
    config = config.with_defaults({"max_seq_length": max(8, start.config.max_position_embeddings)})
    config = replace(config, tuning=replace(config.tuning, num_train_epochs=0.0, max_steps=None))
    of_sweep = model.name == files.MODEL and (model.parent / ENVIRONMENT).is_file()
    folder = Path(tuning.output_dir or (model.parent if of_sweep else model))
    check_can_write(folder)
    table = folder / files.PREDICTED
    if table.exists():
        if not (table.is_file() and table.read_bytes().startswith(files.PREDICTIONS_HEADER.encode())):
            raise UsageError(f"{table} was not written by Finetuning.py; choose another --output_dir")
        LOG.info(f"notice: {table} is replaced; --output_dir keeps another one apart")
    job = make_task_job(task, config, start, world)
    count, labels = sum(map(len, job.to_label.values())), ", ".join(job.data.labels[:5])
    named = f" with labels {labels}{', ...' * (len(job.data.labels) > 5)}" if labels else ""
    length = f"in sequences of at most {job.plan.max_seq_length} tokens"
    LOG.info(f"{job.task.name}: {count:,} examples of {tuning.predict} to label by {model}{named}, {length}")
    written: list[Path] | None = []
    with main_first(world):
        if world.is_main and not tuning.dry_run:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            written = predict(job, folder, world.device, stop)
    is_stopped = None in gather_objects(written, world)
    return RunResult(folder, {}, 0, is_stopped, "\n".join(f"written: {file}" for file in written or ()))


def predict(job: TaskJob, folder: Path, device: torch.device, stop: StopSignal) -> list[Path] | None:
    """Write labels of new text, or submission files, by the best model or the one scored; None if stopped."""
    model = locate(folder / files.MODEL) if job.train is not None else job.start.files
    if model is None:
        raise CheckpointError("a model with random weights predicts nothing; fine-tune it first")
    objective, details = load_objective(job, model, device)
    plan, labels, kind = trained_plan(job.plan, details), tuple(details["labels"]), KINDS[job.task.kind]
    encoder, alone, written = TextEncoder(job.start.tokenizer), World(0, 1, 0, device), list[Path]()
    for name, examples in job.to_label.items():
        report = Report()
        rows = kind.encode(examples, Encoding(encoder, labels, plan, report, name))
        with inference(objective, job):
            found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, alone, stop)
        if found is None:
            return None
        decoded, file = kind.decode(found[0], rows, examples, labels, plan), folder / files.PREDICTED
        with writing(folder):
            if job.config.tuning.predict == PREDICT_TEST:
                file = write_submission(job.task, name, decoded, examples, folder / files.SUBMISSION)
            else:
                write_text(file, files.predictions_table(examples, decoded.predictions, decoded.probabilities))
        written.append(file)
        for line in report.lines():
            LOG.info(f"{job.task.name}: {line}")
    return written
