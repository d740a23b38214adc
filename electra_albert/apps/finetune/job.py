"""What one fine-tuning sweep trains with: the task's rows, the shape of the model on it, and how long it goes on."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from electra_albert.apps.finetune.start import Start
from electra_albert.apps.pretrain.job import choose_arithmetic
from electra_albert.config import ModelConfig, TrainingConfig
from electra_albert.contracts import Arithmetic, CheckpointError, DataError, UsageError
from electra_albert.finetuning_config import PREDICT_TEST, FinetuneConfig, TuningConfig
from electra_albert.hub.config import are_unnamed, name_the_labels
from electra_albert.hub.load import build_task_model, head_of, load_task_model
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.model.encoder import set_gradient_checkpointing
from electra_albert.model.task_model import TaskHead
from electra_albert.tasks.encoding import EncodePlan, TextEncoder
from electra_albert.tasks.entities import is_entity_tagging
from electra_albert.tasks.examples import Report, TaskData
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.objective import TaskObjective
from electra_albert.tasks.reading import read_data, read_unlabelled
from electra_albert.tasks.registry import Task, as_configured
from electra_albert.tasks.rows import Rows
from electra_albert.training.distributed import World

LOG = logging.getLogger(__name__)

_SAVE_STEPS = 500  # at most this many updates are lost where a run is killed


class TaskJob(NamedTuple):
    """Everything a sweep trains and scores with, ready to start."""

    task: Task
    config: FinetuneConfig
    training: TrainingConfig  # with the number of updates
    start: Start
    shape: ModelConfig
    head: TaskHead
    data: TaskData
    plan: EncodePlan
    train: Rows | None  # None: only scored
    evaluation: dict[str, Rows]
    to_label: Mapping[str, Sequence[Any]]  # examples without labels, by the name of their set or file
    arithmetic: Arithmetic

    @property
    def measure(self) -> str:
        """The name of what turns rows of numbers into metrics."""
        if self.task.kind == "sequence":
            return "regression" if self.plan.is_regression else "classification"
        if self.task.kind == "span":
            return "span_with_null" if self.plan.has_null_answer else "span"
        return self.task.kind

    @property
    def deciding_set(self) -> str:
        """The evaluation set whose score chooses the best seed."""
        return next(iter(self.evaluation))


def make_task_job(task: Task, config: FinetuneConfig, start: Start, world: World) -> TaskJob:
    """Read and encode the task's data for a model; everything odd about them is said."""
    tuning, task = config.tuning, as_configured(task, config.data)
    is_trained = task.trained_by is None and tuning.is_training
    _check_options(task, tuning, is_trained=is_trained)
    details = {} if is_trained else _model_details(task, start)
    if details:
        task = replace(task, labels=tuple(details["labels"]))
    needs_test, seed = tuning.predict == PREDICT_TEST, config.training.seed
    if config.only_predicts:
        data = TaskData([], {}, {}, task.labels, Report())
    else:
        data = read_data(task, config.data, needs_test=needs_test, seed=seed, is_trained=is_trained)
    if task.kind == "token" and not is_entity_tagging(data.labels):
        task = replace(task, metrics=("accuracy",), main="accuracy")  # of plain tags there are no entities to count
    task = _decided_by(task, tuning.metric_for_best_model)
    plan = trained_plan(encode_plan(task, config, start.config), details)
    _check_length(plan.max_seq_length, start.config)
    encoder = TextEncoder(start.tokenizer)
    train = None
    if is_trained:
        train = encode(task, data.train, encoder, data, plan, is_training=True, where="train")
        if not train.unit_count:
            raise DataError(f"{task.name}: no example is left to train on; {'; '.join(data.report.lines())}")
    evaluation = {
        name: encode(task, examples, encoder, data, plan, is_training=False, where=name)
        for name, examples in data.evaluation.items()
    }
    new_text = Report()  # apart: it is no part of what the scores are of
    to_label = _to_label(task, config, data, new_text)
    for line in (*data.report.lines(), *new_text.lines()):
        LOG.info(f"{task.name}: {line}")
    return TaskJob(
        task,
        config,
        _with_steps(config, train.unit_count, world) if train else config.training,
        start,
        _shape(start.config, config),
        head_of(details, 0.0) if details else _head(task, config, data),
        data,
        plan,
        train,
        evaluation,
        to_label,
        choose_arithmetic(config.training.precision, world.device),
    )


def _to_label(task: Task, config: FinetuneConfig, data: TaskData, report: Report) -> Mapping[str, Sequence[Any]]:
    """What is to be labelled in the end, read before anything is trained."""
    asked = config.tuning.predict
    if asked is None:
        return {}
    if asked == PREDICT_TEST:
        return data.test
    return {Path(asked).name: read_unlabelled(task, asked, config.data, report)}


def _model_details(task: Task, start: Start) -> dict[str, Any]:
    """What a fine-tuned model says of its task, when it is only to be scored on it.

    Raises CheckpointError where the model was fine-tuned on another, UsageError where there is none.
    """
    wanted = task.trained_by or task.name
    if start.files is None:
        raise UsageError(f"{task.name} is only to be scored: name a model fine-tuned on {wanted} by --model")
    _, details = load_task_model(start.files)
    labels = tuple(details["labels"])
    fits = details["kind"] == task.kind and bool(details.get("is_regression")) == task.is_regression
    fits = fits and bool(details.get("has_null_answer")) == task.has_null_answer
    trained_on = details.get("task", wanted)  # a stock folder does not tell: its head and labels have to do
    if not fits or (task.labels and labels != task.labels) or trained_on != wanted:
        if fits and trained_on == wanted and are_unnamed(labels) and len(labels) == len(task.labels):
            raise CheckpointError(f"{start.files.config.parent}: {name_the_labels(labels)}")
        of_head = f"{details['kind']} with labels {', '.join(labels[:5]) or 'none'}"
        found = of_head if trained_on == wanted else trained_on
        raise CheckpointError(
            f"{start.files.weights} was fine-tuned on {found}, not on {wanted}; name another --model or --task"
        )
    return details


def encode_plan(task: Task, config: FinetuneConfig, shape: ModelConfig) -> EncodePlan:
    """How the task's texts become rows."""
    tuning = config.tuning
    return EncodePlan(
        max_seq_length=tuning.max_seq_length,
        doc_stride=tuning.doc_stride,
        max_answer_length=tuning.max_answer_length,
        has_null_answer=task.has_null_answer,
        is_regression=task.is_regression,
        double_unordered=tuning.double_unordered,
        max_position_embeddings=shape.max_position_embeddings,
    )


def trained_plan(plan: EncodePlan, details: Mapping[str, Any]) -> EncodePlan:
    """The plan by which the rows of a fine-tuned model were made; the plan itself where there are no details."""
    kept = ("max_seq_length", "doc_stride", "max_answer_length", "has_null_answer", "is_regression")
    return plan._replace(**{name: details[name] for name in kept if name in details})


def encode(
    task: Task,
    examples: Sequence[Any],
    encoder: TextEncoder,
    data: TaskData,
    plan: EncodePlan,
    *,
    is_training: bool,
    where: str,
) -> Rows:
    """Rows of some examples of the task."""
    kind = KINDS[task.kind]
    return kind.encode(examples, encoder, data.labels, plan, data.report, is_training=is_training, where=where)


def _decided_by(task: Task, metric: str | None) -> Task:
    """The task with this one of its metrics as the deciding one; UsageError for any other."""
    offered = task.metrics[:1] if task.kind == "choice" else task.metrics  # a level of RACE may have no example
    if metric not in (None, *offered):
        raise UsageError(f"--metric_for_best_model {metric}: {task.name} offers {', '.join(offered)}; choose one")
    return replace(task, main=metric or task.main)


def _check_options(task: Task, tuning: TuningConfig, *, is_trained: bool) -> None:
    """UsageError for options that the kind of task has no use for, or that would make labels wrong."""
    if not is_trained and (tuning.seeds > 1 or tuning.from_scratch or tuning.class_weights != "none"):
        idle = "--seeds, --from_scratch and --class_weights"
        raise UsageError(f"{task.name} is only scored, with a fine-tuned model; leave out {idle}")
    if tuning.class_weights != "none" and (task.kind != "sequence" or task.is_regression):
        raise UsageError(f"--class_weights: the labels of {task.name} are no classes of whole texts; leave it out")
    is_symmetric = task.is_symmetric or (task.name == "custom" and task.takes_pairs)
    if tuning.double_unordered and not is_symmetric:
        raise UsageError(f"--double_unordered: {task.name} has no pairs whose order means nothing; leave it out")
    if tuning.head == "electra" and task.kind in ("span", "token"):
        raise UsageError(f"--head electra: the head of {task.name} has no pooler to do without; leave it out")
    if is_trained and task.kind == "span" and (tuning.dropout_samples > 1 or tuning.classifier_dropout_prob):
        raise UsageError(
            f"the head of {task.name} has no dropout; leave out --classifier_dropout_prob and --dropout_samples"
        )


def _check_length(max_seq_length: int, shape: ModelConfig) -> None:
    positions = shape.max_position_embeddings
    if max_seq_length > positions:
        raise UsageError(
            f"--max_seq_length {max_seq_length} is longer than the model's {positions} positions; lower it"
        )


def _shape(config: ModelConfig, settings: FinetuneConfig) -> ModelConfig:
    """The model's shape with the dropout asked for."""
    asked = {name: getattr(settings.tuning, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    return replace(config, **{name: value for name, value in asked.items() if value is not None})


def _head(task: Task, config: FinetuneConfig, data: TaskData) -> TaskHead:
    """The head the task needs."""
    counts = {"choice": 1, "span": 2}
    num_labels = 1 if task.is_regression else counts.get(task.kind, len(data.labels))
    return TaskHead(task.kind, num_labels, config.tuning.head, config.tuning.classifier_dropout_prob)


def _with_steps(config: FinetuneConfig, unit_count: int, world: World) -> TrainingConfig:
    """The training settings with the number of updates, and how often they are scored and saved."""
    tuning, training = config.tuning, config.training
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps * world.world_size
    steps = tuning.max_steps or max(1, math.ceil(tuning.num_train_epochs * unit_count / batch))
    warmup = tuning.warmup_steps if tuning.warmup_steps is not None else round(tuning.warmup_ratio * steps)
    eval_steps = max(1, math.ceil(unit_count / batch / tuning.evals_per_epoch))
    return replace(
        training,
        max_steps=steps,
        warmup_steps=warmup,
        eval_steps=eval_steps,
        save_steps=min(eval_steps, _SAVE_STEPS),
        save_total_limit=1,
    )


def build_objective(job: TaskJob, seed: int, device: torch.device) -> tuple[TaskObjective, list[str]]:
    """The model with its head on the device, and the names of its parts that begin with random weights."""
    torch.manual_seed(derived_seed(seed, Stream.INITIAL_WEIGHTS))
    model, new = build_task_model(job.shape, job.head, None if job.config.tuning.from_scratch else job.start.files)
    if job.training.gradient_checkpointing:
        set_gradient_checkpointing(model)
    objective = TaskObjective(
        model,
        is_regression=job.plan.is_regression,
        dropout_samples=job.config.tuning.dropout_samples,
        class_weights=_class_weights(job),
    )
    return objective.to(device), new


def _class_weights(job: TaskJob) -> torch.Tensor | None:
    """float32 [classes] that make all classes count alike; DataError where one has no example to train on."""
    if job.config.tuning.class_weights == "none" or job.train is None or job.train.labels is None:
        return None
    from sklearn.utils.class_weight import compute_class_weight

    classes = np.arange(len(job.data.labels))
    if missing := sorted({*classes} - {*job.train.labels}):
        label = job.data.labels[missing[0]]
        raise DataError(f"--class_weights balanced: label {label!r} has no example to train on; leave it out")
    weights = compute_class_weight("balanced", classes=classes, y=job.train.labels)
    return torch.from_numpy(weights).float()


def data_fingerprint(job: TaskJob) -> str:
    """A hash of all rows and labels: results are only put together where they come from the same."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((job.data.labels, list(job.evaluation))).encode())
    for rows in (job.train, *job.evaluation.values()):
        if rows is not None:
            for array in (rows.ids, rows.starts, rows.first_lengths, rows.examples, rows.labels):
                if array is not None:
                    digest.update(array.tobytes())
    for examples in job.data.evaluation.values():  # what is right may stand beside the rows: all answers, the level
        for example in examples:
            digest.update(repr(example).encode())
    return digest.hexdigest()
