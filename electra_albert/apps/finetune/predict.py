"""Evaluation and prediction with a fine-tuned model: scores, labels for new text, submission files."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from electra_albert.apps import command_line, machine, run_folder
from electra_albert.apps.finetune import results as files
from electra_albert.apps.finetune.job import TaskJob, build_objective, find_base_model, make_task_job
from electra_albert.apps.finetune.results import SeedResult
from electra_albert.contracts import LOG, Batch, RunResult, UsageError
from electra_albert.files import write_text
from electra_albert.finetuning_config import CUSTOM, PREDICT_TEST, FinetuneConfig
from electra_albert.hub import load
from electra_albert.inference.finetuned import outputs_by_feature
from electra_albert.tasks import metrics, registry
from electra_albert.tasks.encoding import EncodedExamples, Outputs, eval_batches
from electra_albert.tasks.kinds import TaskObjective, write_submission
from electra_albert.tasks.task import Report
from electra_albert.training.distributed import World, gather_objects, main_first
from electra_albert.training.guards import StopSignal
from electra_albert.training.step import autocast


def score(job: TaskJob, objective: TaskObjective, world: World, stop: StopSignal) -> SeedResult | None:
    """Evaluate on all evaluation sets, with the same result on every rank; None if stopped."""
    result = SeedResult(job.config.training.seed, 0, {}, {}, {}, {}, False, [])
    for name, features in job.evaluation.items():
        evaluated = _outputs(job, objective, features, world, stop)
        if evaluated is None:
            return None
        outputs, loss = evaluated
        examples = job.data.evaluation[name]
        decoded = job.fine_tuned(objective).decode(outputs, features, examples)
        values = decoded.values
        assert values is not None  # reading skips or refuses examples without labels
        scores = metrics.MEASURES[job.measure](values)
        if job.task.kind == "token":  # without those of entities for plain tags
            scores = {metric: scores[metric] for metric in scores if metric in job.task.metrics}
        is_deciding = name == job.deciding_set
        for metric, value in {"loss": loss, **scores}.items():
            result.metrics[metric if is_deciding else f"{name}_{metric}"] = value
        result.values[name] = values.tolist()
        result.predictions[name] = decoded.predictions
        result.probabilities[name] = decoded.probabilities
        if is_deciding:
            result = result._replace(is_collapsed=metrics.is_collapsed(job.measure, values))
    return result


def _outputs(
    job: TaskJob,
    objective: TaskObjective,
    features: EncodedExamples,
    world: World,
    stop: StopSignal,
) -> tuple[Outputs, float | None] | None:
    """Outputs of each feature and the mean loss (None without labels); None if stopped.

    A model that is trained here is evaluated in float32, as its folder is elsewhere. A single
    process may be stopped. Raises UsageError if the GPU runs out of memory.
    """
    arithmetic = job.arithmetic if job.train is None else "fp32"
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
    precision = autocast(world.device, arithmetic)
    with machine.one_line_errors(job.training, "none"), torch.no_grad(), precision:
        outputs = outputs_by_feature(features, batches, compute)
    gathered = gather_objects((outputs, loss, count), world)
    for of_rank, _, _ in gathered:
        outputs |= of_rank
    if len(outputs) < features.feature_count:
        return None
    total = sum(part[2] for part in gathered)
    mean = sum(part[1] for part in gathered) / total if total else None
    return [outputs[index] for index in sorted(outputs)], mean


def predict_new_text(config: FinetuneConfig, world: World, stop: StopSignal) -> RunResult:
    """Predict the file of --predict.

    Writes to --output_dir, else the folder of the model's sweep, else the model's.
    """
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
    objective, _ = build_objective(job, job.training.seed, world.device)
    count, labels = sum(map(len, job.to_label.values())), ", ".join(job.data.labels[:5])
    named = f"labels {labels}{', ...' * (len(job.data.labels) > 5)}, " if labels else ""
    length = f"sequences of up to {job.plan.max_seq_length} tokens"
    LOG.info(f"{job.task.name}: predicting {count:,} examples of {tuning.predict} with {model}, {named}{length}")
    written: list[Path] | None = []
    with main_first(world):
        if world.is_main and not tuning.dry_run:
            with run_folder.writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            written = predict(job, objective, world, stop)
    is_stopped = None in gather_objects(written, world)
    return RunResult(folder, {}, 0, is_stopped, "\n".join(f"written: {file}" for file in written or ()))


def predict(job: TaskJob, objective: TaskObjective, world: World, stop: StopSignal) -> list[Path] | None:
    """Write labels for new text, or submission files, on the main rank alone; None if stopped."""
    fine_tuned = job.fine_tuned(objective)
    alone = world._replace(rank=0, world_size=1)
    written: list[Path] = []
    for name, examples in job.to_label.items():
        report = Report()
        features = fine_tuned.encode(examples, report, name)
        predicted = _outputs(job, objective, features, alone, stop)
        if predicted is None:
            return None
        decoded = fine_tuned.decode(predicted[0], features, examples)
        file = job.folder / files.PREDICTED
        with run_folder.writing(job.folder):
            if job.config.tuning.predict == PREDICT_TEST:
                submission = job.folder / files.SUBMISSION
                file = write_submission(job.task, name, decoded, examples, submission)
            else:
                table = files.predictions_table(examples, decoded.predictions, decoded.probabilities)
                write_text(file, table)
        written.append(file)
        for line in report.lines():
            LOG.info(f"{job.task.name}: {line}")
    return written
