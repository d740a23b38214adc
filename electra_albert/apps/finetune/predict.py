"""Evaluation and prediction with a fine-tuned model: scores, labels of new text, submissions."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.apps import command_line, machine, run_folder
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.base_model import find_base_model
from electra_albert.apps.finetune.job import TaskJob, build_objective, make_task_job
from electra_albert.apps.finetune.results import SeedResult
from electra_albert.config.finetuning import CUSTOM, PREDICT_TEST, FinetuneConfig
from electra_albert.contracts import LOG, Batch, RunResult, UsageError
from electra_albert.files import write_text, writing
from electra_albert.hub import load
from electra_albert.inference.finetuned import outputs_by_feature
from electra_albert.tasks import metrics, registry
from electra_albert.tasks.encoding import Decoded, EncodedExamples, eval_batches
from electra_albert.tasks.kinds import (
    PREDICTIONS_HEADER,
    TaskObjective,
    predictions_table,
    write_submission,
)
from electra_albert.tasks.task import Report
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.signals import StopSignal
from electra_albert.training.step import autocast


def score(job: TaskJob, objective: TaskObjective, stop: StopSignal) -> SeedResult | None:
    """Evaluate on all evaluation sets, with the same result on every rank; None if stopped."""
    result = SeedResult(
        seed=job.config.training.seed,
        step=0,
        metrics={},
        values={},
        predictions={},
        probabilities={},
        is_collapsed=False,
        new_parts=[],
    )
    for name, features in job.evaluation.items():
        examples = job.data.evaluation[name]
        evaluated = _predictions(job, objective, features, examples, job.world, stop)
        if evaluated is None:
            return None
        decoded, loss = evaluated
        values = decoded.values
        assert values is not None  # reading skips or refuses examples without labels
        scores = metrics.MEASURES[job.measure](values)
        if job.task.kind == "token":  # without those of entities for plain tags
            scores = {metric: scores[metric] for metric in scores if metric in job.task.metrics}
        prefix = job.prefix(name)
        for metric, value in {"loss": loss, **scores}.items():
            result.metrics[prefix + metric] = value
        result.values[name] = values.tolist()
        result.predictions[name] = decoded.predictions
        result.probabilities[name] = decoded.probabilities
        if not prefix:
            result = result._replace(is_collapsed=metrics.is_collapsed(job.measure, values))
    return result


def _predictions(
    job: TaskJob,
    objective: TaskObjective,
    features: EncodedExamples,
    examples: Sequence[Any],
    world: World,
    stop: StopSignal,
) -> tuple[Decoded, float | None] | None:
    """Predictions for encoded examples and the mean loss (None without labels); None if stopped.

    A model that is trained here is evaluated in float32, as its folder is elsewhere. Only a single
    process can be stopped. Raises UsageError if the GPU runs out of memory.
    """
    size = max(1, job.training.per_device_eval_batch_size // features.num_choices)
    batches: Iterable[Batch] = eval_batches(features, size, world.rank, world.world_size)
    if world.world_size == 1:
        batches = takewhile(lambda _: not stop.requested, batches)
    loss = 0.0
    count = 0

    def compute(batch: Batch) -> Tensor:
        nonlocal loss, count
        batch = batch.to(world.device)
        outputs = objective.outputs(batch)
        if batch.labels is not None:
            term = objective.terms(outputs, batch)[next(iter(objective.weights))]
            loss += float(term.sum)
            count += int(term.count)
        return outputs

    objective.eval()
    arithmetic = job.arithmetic if job.train is None else "fp32"
    precision = autocast(world.device, arithmetic)
    with machine.one_line_errors(job.training, "none"), torch.no_grad(), precision:
        outputs = outputs_by_feature(features, batches, compute)
    gathered = gather_objects((outputs, loss, count), world)
    by_rank, losses, counts = zip(*gathered, strict=True)
    for of_rank in by_rank:
        outputs |= of_rank
    if len(outputs) < features.feature_count:
        return None
    in_order = [outputs[index] for index in sorted(outputs)]
    decoded = job.fine_tuned(objective).decode(in_order, features, examples)
    return decoded, sum(losses) / sum(counts) if sum(counts) else None


def predict_new_text(config: FinetuneConfig, world: World, stop: StopSignal) -> RunResult:
    """Predict the file of --predict with a fine-tuned model."""
    job = _plan_new_text(config, world)
    objective, _ = build_objective(job, seed=0)
    lines: list[str] | None = []
    with main_first(world):
        if world.is_main and not config.tuning.dry_run:
            with writing(job.folder):
                job.folder.mkdir(parents=True, exist_ok=True)
            lines = predict(job, objective, stop)
    is_stopped = None in gather_objects(lines, world)
    return RunResult(job.folder, {}, 0, is_stopped, "\n".join(lines or ()))


def _plan_new_text(config: FinetuneConfig, world: World) -> TaskJob:
    """Prepare and log the prediction of new text."""
    tuning = config.tuning
    name = config.data.task
    requested = None
    if name is not None:
        requested = registry.find_task(name)
    if tuning.model is None:
        raise UsageError(
            f"--predict {tuning.predict} needs a fine-tuned model: give it with --model, "
            "or train one with --task and its data"
        )
    base = find_base_model(config, world)
    assert base.files is not None
    details, _ = load.read_task(base.files)
    model = base.files.config.parent
    task = registry.task_of_model(details, requested)
    has_one_text = task.columns == registry.TASKS[CUSTOM].columns
    is_recorded = "columns" in details
    if has_one_text and not is_recorded and config.data.text_pair_column is None:
        LOG.info(
            f"notice: {model} does not record its columns, so examples have one text; "
            "give the column of a second text with --text_pair_column"
        )
    for length in registry.LENGTHS:
        if length in details and length in (config.chosen or ()):
            trained = f"it was fine-tuned with {details[length]}"
            raise UsageError(f"--{length} has no effect with {model}: {trained}; drop the option")
    # If the model does not record a length, all its positions are used.
    longest = max(8, base.config.max_position_embeddings)
    config = config.with_defaults({"max_seq_length": longest})
    config = config.with_options({"num_train_epochs": 0.0, "max_steps": None})
    folder = _new_text_folder(tuning.output_dir, model)
    job = make_task_job(task, config, base, folder, world)
    labels = ", ".join(job.data.labels[:5])
    if len(job.data.labels) > 5:
        labels += ", ..."
    count = sum(map(len, job.to_label.values()))
    examples = f"{count:,} examples of {tuning.predict} with {model}"
    form = f"sequences of up to {job.plan.max_seq_length} tokens"
    if labels:
        form = f"labels {labels}, {form}"
    LOG.info(f"{job.task.name}: predicting {examples}, {form}")
    return job


def _new_text_folder(output_dir: str | None, model: Path) -> Path:
    """--output_dir, else the folder of the model's sweep, else the model's.

    Raises UsageError if a file of another origin would be overwritten.
    """
    folder = model
    if output_dir:
        folder = Path(output_dir)
    elif model.name == files.MODEL and (model.parent / run_folder.ENVIRONMENT).is_file():
        folder = model.parent
    command_line.check_can_write(folder)
    table = folder / files.PREDICTED
    if table.exists():
        header = PREDICTIONS_HEADER.encode()
        if not (table.is_file() and table.read_bytes().startswith(header)):
            raise UsageError(f"{table} was not written by fine-tuning; choose another --output_dir")
        LOG.info(f"notice: {table} will be overwritten; give another --output_dir to keep it")
    return folder


def predict(job: TaskJob, objective: TaskObjective, stop: StopSignal) -> list[str] | None:
    """Write labels of new text, or submission files, on the main rank alone.

    Returns a line for each file; None if stopped.
    """
    alone = job.world._replace(rank=0, world_size=1)
    lines = []
    for name, examples in job.to_label.items():
        report = Report()
        features = job.fine_tuned(objective).encode(examples, report, name)
        predicted = _predictions(job, objective, features, examples, alone, stop)
        if predicted is None:
            return None
        decoded, _ = predicted
        file = job.folder / files.PREDICTED
        with writing(job.folder):
            if job.config.tuning.predict == PREDICT_TEST:
                submission = job.folder / files.SUBMISSION
                file = write_submission(job.task, name, decoded, examples, submission)
            else:
                table = predictions_table(examples, decoded.predictions, decoded.probabilities)
                write_text(file, table)
        lines.append(f"written: {file}")
        for line in report.lines():
            LOG.info(f"{job.task.name}: {line}")
    return lines
