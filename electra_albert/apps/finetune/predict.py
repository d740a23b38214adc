"""Evaluation and prediction with a fine-tuned model: scores, labels for new text, submission files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra_albert.apps import command_line, machine, run_folder
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.job import TaskJob, find_base_model, make_task_job
from electra_albert.contracts import LOG, CheckpointError, RunResult, UsageError
from electra_albert.files import write_text
from electra_albert.finetuning_config import CUSTOM, PREDICT_TEST, FinetuneConfig
from electra_albert.hub import find, load
from electra_albert.tasks import metrics, registry
from electra_albert.tasks.encoding import EncodedExamples, Encoding, eval_batches, split_outputs, trained_plan
from electra_albert.tasks.kinds import KINDS, TaskObjective, write_submission
from electra_albert.tasks.task import Report
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal
from electra_albert.training.step import autocast


@contextmanager
def inference(objective: TaskObjective, job: TaskJob) -> Iterator[None]:
    """Disable gradients and dropout; UsageError if the GPU runs out of memory.

    A model that is trained here is evaluated in float32, as its folder is elsewhere.
    """
    device = next(objective.parameters()).device
    arithmetic = job.arithmetic if job.train is None else "fp32"
    objective.eval()
    with machine.one_line_errors(job.training, "none"), torch.no_grad(), autocast(device, arithmetic):
        yield


def load_objective(job: TaskJob, files: find.ModelFiles, device: torch.device) -> tuple[TaskObjective, dict[str, Any]]:
    """A fine-tuned model on the device, and the task details of its folder."""
    model, details = load.load_task_model(files, job.config.tuning.num_hidden_layers)
    return TaskObjective(model, is_regression=job.plan.is_regression).to(device), details


def score(job: TaskJob, objective: TaskObjective, world: World, stop: StopSignal) -> files.SeedResult | None:
    """Evaluate on all evaluation sets, with the same result on every rank; None if a single process was stopped."""
    result = files.SeedResult(job.config.training.seed, 0, {}, {}, {}, {}, False, [])
    for name, features in job.evaluation.items():
        found = model_outputs(features, objective, job.training.per_device_eval_batch_size, world, stop)
        if found is None:
            return None
        examples, is_deciding = job.data.evaluation[name], name == job.deciding_set
        decoded = KINDS[job.task.kind].decode(found[0], features, examples, job.data.labels, job.plan)
        values = decoded.values
        assert values is not None  # reading skips or refuses examples without labels
        scores = metrics.MEASURES[job.measure](values)
        if job.task.kind == "token":  # without those of entities for plain tags
            scores = {metric: value for metric, value in scores.items() if metric in job.task.metrics}
        for metric, value in {"loss": found[1], **scores}.items():
            result.metrics[metric if is_deciding else f"{name}_{metric}"] = value
        result.values[name], result.predictions[name] = values.tolist(), decoded.predictions
        result.probabilities[name] = decoded.probabilities
        if is_deciding:
            result = result._replace(is_collapsed=metrics.is_collapsed(job.measure, values))
    return result


def model_outputs(
    features: EncodedExamples, objective: TaskObjective, batch_size: int, world: World, stop: StopSignal
) -> tuple[list[np.ndarray], float | None] | None:
    """Outputs of each feature without padding, and the mean loss (None without labels); None if stopped."""
    device, mine = next(objective.parameters()).device, dict[int, np.ndarray]()
    loss, count = 0.0, 0
    for on_host in eval_batches(features, max(1, batch_size // features.num_choices), world.rank, world.world_size):
        if world.world_size == 1 and stop.requested:
            return None
        chosen, batch = on_host.example_id[:: features.num_choices].numpy(), on_host.to(device)
        outputs = objective.outputs(batch)
        if batch.labels is not None:
            term = objective.terms(outputs, batch)[next(iter(objective.weights))]
            loss, count = loss + float(term.sum), count + int(term.count)
        arrays = split_outputs(outputs.float().cpu().numpy(), chosen, features)
        mine |= zip(chosen.tolist(), arrays, strict=True)
    gathered = gather_objects((mine, loss, count), world)
    by_feature = {feature: output for part, _, _ in gathered for feature, output in part.items()}
    total, counted = sum(part[1] for part in gathered), sum(part[2] for part in gathered)
    return [by_feature[feature] for feature in range(features.feature_count)], total / counted if counted else None


def predict_new_text(config: FinetuneConfig, world: World, stop: StopSignal) -> RunResult:
    """Predict the file of --predict; writes to --output_dir, else the folder of the model's sweep, else the model's."""
    tuning, data = config.tuning, config.data
    asked = None if data.task is None else registry.find_task(data.task)
    base = None if tuning.model is None else find_base_model(config, world)
    if base is None or base.files is None:
        advice = "give it with --model, or train one with --task and its data"
        raise UsageError(f"--predict {tuning.predict} needs a fine-tuned model: {advice}")
    (details, _), model = load.read_task(base.files), base.files.config.parent
    task, custom = registry.task_of_model(details, asked), registry.TASKS[CUSTOM]
    if "columns" not in details and task.columns == custom.columns and data.text_pair_column is None:
        one_text = f"notice: {model} does not record its columns, so examples have one text"
        LOG.info(f"{one_text}; give the column of a second text with --text_pair_column")
    if "max_seq_length" in details and "max_seq_length" in (config.chosen or ()):
        trained = f"it was fine-tuned with {details['max_seq_length']}"
        raise UsageError(f"--max_seq_length has no effect with {model}: {trained}; drop the option")
    # If the model does not record a length, all its positions are used.
    config = config.with_defaults({"max_seq_length": max(8, base.config.max_position_embeddings)})
    config = replace(config, tuning=replace(config.tuning, num_train_epochs=0.0, max_steps=None))
    of_sweep = model.name == files.MODEL and (model.parent / run_folder.ENVIRONMENT).is_file()
    folder = Path(tuning.output_dir or (model.parent if of_sweep else model))
    command_line.check_can_write(folder)
    if (table := folder / files.PREDICTED).exists():
        if not (table.is_file() and table.read_bytes().startswith(files.PREDICTIONS_HEADER.encode())):
            raise UsageError(f"{table} was not written by fine-tuning; choose another --output_dir")
        LOG.info(f"notice: {table} will be overwritten; give another --output_dir to keep it")
    job = make_task_job(task, config, base, folder, world)
    count, labels = sum(map(len, job.to_label.values())), ", ".join(job.data.labels[:5])
    named = f"labels {labels}{', ...' * (len(job.data.labels) > 5)}, " if labels else ""
    length = f"sequences of up to {job.plan.max_seq_length} tokens"
    LOG.info(f"{job.task.name}: predicting {count:,} examples of {tuning.predict} with {model}, {named}{length}")
    written: list[Path] | None = []
    with main_first(world):
        if world.is_main and not tuning.dry_run:
            with run_folder.writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            written = predict(job, world.device, stop)
    is_stopped = None in gather_objects(written, world)
    return RunResult(folder, {}, 0, is_stopped, "\n".join(f"written: {file}" for file in written or ()))


def predict(job: TaskJob, device: torch.device, stop: StopSignal) -> list[Path] | None:
    """Write labels for new text, or submission files, with the best model or the evaluated one; None if stopped."""
    folder = job.folder
    model = load.locate(folder / files.MODEL) if job.train is not None else job.base.files
    if model is None:
        raise CheckpointError("a model with random weights cannot predict; fine-tune it first")
    objective, details = load_objective(job, model, device)
    plan, labels, kind = trained_plan(job.plan, details), tuple(details["labels"]), KINDS[job.task.kind]
    encoder, alone, written = TextEncoder(job.base.tokenizer), World(0, 1, 0, device), list[Path]()
    for name, examples in job.to_label.items():
        report = Report()
        features = kind.encode(examples, Encoding(encoder, labels, plan, report, name))
        with inference(objective, job):
            found = model_outputs(features, objective, job.training.per_device_eval_batch_size, alone, stop)
        if found is None:
            return None
        decoded, file = kind.decode(found[0], features, examples, labels, plan), folder / files.PREDICTED
        with run_folder.writing(folder):
            if job.config.tuning.predict == PREDICT_TEST:
                file = write_submission(job.task, name, decoded, examples, folder / files.SUBMISSION)
            else:
                write_text(file, files.predictions_table(examples, decoded.predictions, decoded.probabilities))
        written.append(file)
        for line in report.lines():
            LOG.info(f"{job.task.name}: {line}")
    return written
