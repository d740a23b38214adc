"""Preparation of one fine-tuning sweep: base model, encoded data, task head, training settings."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch

from electra_albert.apps.execution import choose_arithmetic, choose_recording
from electra_albert.apps.finetune.base_model import BaseModel
from electra_albert.config.finetuning import (
    CUSTOM,
    PREDICT_TEST,
    TOPICS,
    FinetuneConfig,
    TuningConfig,
)
from electra_albert.config.model import ModelConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import (
    LOG,
    Arithmetic,
    CheckpointError,
    DataError,
    UsageError,
    redacted,
)
from electra_albert.hub import find, formats, load
from electra_albert.inference.finetuned import FineTuned
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.model import compilation
from electra_albert.model.task_model import MODERNBERT, TaskHead
from electra_albert.tasks import reading, registry, token
from electra_albert.tasks.encoding import EncodedExamples, EncodePlan, Encoding, trained_plan
from electra_albert.tasks.kinds import KINDS, TaskObjective
from electra_albert.tasks.task import Report, Task, TaskData
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.training.distributed import World

_ARRAYS = "input_ids starts first_lengths example_index labels"  # that determine the features
_SAVE_STEPS = 500  # at most this many updates are lost if a run is killed

Assignment = tuple[Task, FinetuneConfig, BaseModel, Path]  # a task, and the folder of its results


@dataclass(frozen=True)
class TaskJob:
    """Everything that the seeds of a sweep share."""

    task: Task
    config: FinetuneConfig
    base: BaseModel
    folder: Path  # of the results
    world: World
    details: Mapping[str, Any]  # of a model to evaluate; empty: it is trained
    data: TaskData
    text_encoder: TextEncoder
    plan: EncodePlan
    train: EncodedExamples | None  # None: evaluation only
    evaluation: Mapping[str, EncodedExamples]
    to_label: Mapping[str, Sequence[Any]]  # unlabelled examples to predict, by set or file name

    @property
    def global_batch_size(self) -> int:
        """Features per update, over all ranks and micro-batches."""
        return self.config.training.step_examples * self.world.world_size

    @cached_property
    def training(self) -> TrainingConfig:
        """The settings with the numbers of updates: in all, of warmup, between evaluations."""
        tuning = self.config.tuning
        if self.train is None:
            return self.config.training
        count = self.train.feature_count
        size = self.global_batch_size
        steps = tuning.max_steps or max(1, math.ceil(tuning.num_train_epochs * count / size))
        warmup_steps = tuning.warmup_steps
        if warmup_steps is None:
            warmup_steps = round(tuning.warmup_ratio * steps)
        eval_steps = max(1, math.ceil(count / size / tuning.evals_per_epoch))
        return replace(
            self.config.training,
            max_steps=steps,
            warmup_steps=warmup_steps,
            eval_steps=eval_steps,
            save_steps=min(eval_steps, _SAVE_STEPS),
            save_total_limit=1,
        )

    @cached_property
    def arithmetic(self) -> Arithmetic:
        precision = self.config.training.precision
        if precision == "auto" and self.train is None:
            return "fp32"  # in which a trained model is evaluated
        return choose_arithmetic(precision, self.world.device)

    @cached_property
    def is_recorded(self) -> bool:
        """Whether the training step is recorded in CUDA graphs."""
        return choose_recording(self.training, self.arithmetic, self.world)

    @cached_property
    def shape(self) -> ModelConfig:
        """The model's configuration with the depth, positions and dropout of the task."""
        tuning = self.config.tuning
        shape = load.at_depth(self.base.config, tuning.num_hidden_layers)
        positions = max(shape.max_position_embeddings, self.plan.max_seq_length)
        shape = replace(shape, max_position_embeddings=positions)
        if tuning.hidden_dropout_prob is not None:
            shape = replace(shape, hidden_dropout_prob=tuning.hidden_dropout_prob)
        dropout = tuning.attention_probs_dropout_prob
        return shape if dropout is None else replace(shape, attention_probs_dropout_prob=dropout)

    @property
    def head(self) -> TaskHead:
        tuning = self.config.tuning
        if self.details:
            return load.head_of(self.details, 0.0)
        form = {
            "kind": self.task.kind,
            "is_regression": self.task.is_regression,
            "labels": [*self.data.labels],
            "style": tuning.head if self.shape.block == "albert" else MODERNBERT,
        }
        return load.head_of(form, tuning.classifier_dropout_prob)

    def fine_tuned(self, objective: TaskObjective) -> FineTuned:
        """The model with what encodes its examples and decodes its outputs."""
        return FineTuned(objective.model, self.text_encoder, self.data.labels, self.plan)

    @property
    def measure(self) -> str:
        """Name of the function in metrics.MEASURES that computes the metrics."""
        kind = self.task.kind
        if kind == "sequence":
            if self.plan.is_multi_label:
                return "multi_label"
            return "regression" if self.plan.is_regression else "classification"
        return "span_with_null" if kind == "span" and self.plan.has_null_answer else kind

    @property
    def deciding_set(self) -> str:
        """The evaluation set whose score selects the best seed."""
        return next(iter(self.evaluation))

    def prefix(self, set_name: str) -> str:
        """Prefix of an evaluation set's metrics: none for the deciding set."""
        return "" if set_name == self.deciding_set else f"{set_name}_"

    @property
    def is_from_scratch(self) -> bool:
        return self.base.files is None or self.config.tuning.from_scratch

    @cached_property
    def data_fingerprint(self) -> str:
        """A hash of all encoded examples and labels, equal for all results of a sweep."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.data.labels, list(self.evaluation))).encode())
        for part in filter(None, (self.train, *self.evaluation.values())):
            for name in _ARRAYS.split():
                array = getattr(part, name)
                digest.update(b"" if array is None else array.tobytes())
        # An example holds more than its features: all answers, the level.
        for example in chain(*self.data.evaluation.values()):
            digest.update(repr(example).encode())
        return digest.hexdigest()

    @property
    def evaluation_fingerprints(self) -> dict[str, str]:
        """A hash of each evaluation set as it was read, equal for all models."""
        hashes = {}
        for name, examples in self.data.evaluation.items():
            texts = repr(examples).encode()
            hashes[name] = hashlib.sha256(texts).hexdigest()
        return hashes


def make_task_job(
    task: Task, config: FinetuneConfig, base: BaseModel, folder: Path, world: World
) -> TaskJob:
    """Read and encode the task's data for a model, and log the report on them."""
    task, data, details = _read(task, config, base)
    text_encoder = TextEncoder(base.tokenizer)
    encode = KINDS[task.kind].encode
    plan = _encode_plan(task, config, base, details)
    encoding = Encoding(text_encoder, data.labels, plan, data.report, "train", is_training=True)
    train = None
    if not details:
        train = encode(data.train, encoding)
        if not train.feature_count:
            reasons = "; ".join(data.report.lines())
            raise DataError(f"{task.name}: no training example is left ({reasons}); check the data")
        if base.files is not None:  # only positions that are trained, there or here
            longest = max(base.config.max_position_embeddings, int(train.feature_lengths.max()))
            plan = plan._replace(max_seq_length=min(plan.max_seq_length, longest))
    evaluation = {}
    for name, examples in data.evaluation.items():
        scored = replace(encoding, plan=plan, set_name=name, is_training=False)
        evaluation[name] = encode(examples, scored)
    if evaluation and task.kind == "token" and "f1" not in task.metrics:
        reason = "the tags mark no entities by B- and I-, so there is no F1, only accuracy"
        LOG.info(f"notice: {task.name}: {reason}")
    to_label = data.test
    new_text = Report()  # apart from that on the data, which is in results.json
    predict = config.tuning.predict
    if predict is not None and predict != PREDICT_TEST:
        name = Path(redacted(predict)).name
        to_label = {name: reading.read_unlabelled(task, predict, config.data, new_text)}
    for line in (*data.report.lines(), *new_text.lines()):
        LOG.info(f"{task.name}: {line}")
    encoded = (data, text_encoder, plan, train, evaluation, to_label)
    return TaskJob(task, config, base, folder, world, details, *encoded)


def _read(
    task: Task, config: FinetuneConfig, base: BaseModel
) -> tuple[Task, TaskData, dict[str, Any]]:
    """The task with its labels and metrics, its data, and the details of a model to evaluate."""
    tuning = config.tuning
    task = registry.as_configured(task, config.data)
    is_trained = task.trained_by is None and tuning.is_training
    _check_options(task, tuning, is_trained)
    if base.config.block == "modern" and tuning.head == "electra":
        raise UsageError(f"{base.name} gets ModernBERT's head; drop --head electra")
    details = {}
    if not is_trained:
        details = _model_details(task, base)
        task = replace(task, labels=tuple(normalize("NFC", name) for name in details["labels"]))
    data = TaskData([], {}, {}, task.labels, Report())
    if not config.only_predicts:
        data = reading.read_data(
            task,
            config.data,
            needs_test=tuning.predict == PREDICT_TEST,
            seed=config.training.seed,
            is_trained=is_trained,
        )
    if len({label.casefold() for label in data.labels}) < len(data.labels):
        problem = "labels that differ in case only are different classes"
        LOG.info(f"notice: {task.name}: {problem}: {', '.join(data.labels)}")
    return _with_metrics(task, data.labels, tuning.metric_for_best_model), data, details


def _check_options(task: Task, tuning: TuningConfig, is_trained: bool) -> None:
    """UsageError for options that have no effect on this task, or would make its labels wrong."""
    is_weighted = tuning.class_weights != "none"
    has_classes = task.kind == "sequence" and not (task.is_regression or task.is_multi_label)
    has_pooler = task.kind not in ("span", "token")
    is_symmetric = task.is_symmetric or (task.name == CUSTOM and task.takes_pairs)
    is_span = is_trained and task.kind == "span"
    one_model = not is_trained and (tuning.seeds > 1 or tuning.from_scratch or is_weighted)
    evaluated = "is only evaluated, with a fine-tuned model; drop --seeds, --from_scratch"
    for is_idle, problem in (
        (one_model, f"{evaluated} and --class_weights"),
        (is_weighted and not has_classes, "has no single class per text; drop --class_weights"),
        (
            tuning.double_unordered and not is_symmetric,
            "has no symmetric pairs of texts; drop --double_unordered",
        ),
        (
            tuning.head == "electra" and not has_pooler,
            "has a head without a pooler; drop --head electra",
        ),
        (
            is_span and tuning.classifier_dropout_prob > 0,
            "has a head without dropout; drop --classifier_dropout_prob",
        ),
    ):
        if is_idle:
            raise UsageError(f"{task.name} {problem}")


def _model_details(task: Task, base: BaseModel) -> dict[str, Any]:
    """The recorded details of a model to evaluate.

    Raises CheckpointError if it was fine-tuned on another task.
    """
    task_name = task.trained_by or task.name
    if base.files is None:
        raise UsageError(
            f"{task.name} is only evaluated: give a model fine-tuned on {task_name} with --model"
        )
    details, _ = load.read_task(base.files)
    labels = tuple(details["labels"])
    recorded = details.get("task", task_name)  # not recorded in a stock folder
    if recorded == task_name or (recorded, task_name) == (TOPICS, CUSTOM):
        # Not recorded in a stock folder, nor by older versions.
        pair = details.get("columns", {}).get("pair")
        if pair is not None and bool(pair) != task.takes_pairs:
            advice = "single texts; leave out --text_pair_column"
            if pair:
                advice = "pairs of texts; give --text_pair_column"
            raise UsageError(f"{base.name} was fine-tuned on {advice}")
        for option, predicted in {"multi_label": "several labels", "regression": "numbers"}.items():
            if details.get(f"is_{option}") and not getattr(task, f"is_{option}"):
                raise UsageError(f"{base.name} predicts {predicted}; give --{option} true")
        is_same = all(bool(details.get(name)) == getattr(task, name) for name in registry.FLAGS)
        if is_same and details["kind"] == task.kind:
            if not task.labels or labels == task.labels:
                return details
            if len(labels) == len(task.labels):
                formats.require_named(labels, str(base.files.config.parent))
        recorded = f"{details['kind']} with labels {', '.join(labels[:5]) or 'none'}"
    problem = f"{base.files.weights} was fine-tuned on {recorded}, not on {task_name}"
    raise CheckpointError(f"{problem}; give another --model or --task")


def _with_metrics(task: Task, labels: Sequence[str], main: str | None) -> Task:
    """The task with the metrics that fit its labels, and `main` if it is given."""
    if task.kind == "token" and not token.is_entity_tagging(labels):
        # Plain tags have no entities to count.
        task = replace(task, metrics=("accuracy",), main="accuracy")
    # A level of RACE may have no example.
    offered = task.metrics[:1] if task.kind == "choice" else task.metrics
    if main not in (None, *offered):
        raise UsageError(
            f"--metric_for_best_model {main}: {task.name} has {', '.join(offered)}; choose one"
        )
    return replace(task, main=main or task.main)


def _encode_plan(
    task: Task, config: FinetuneConfig, base: BaseModel, details: Mapping[str, Any]
) -> EncodePlan:
    """Settings for encoding.

    In training, without details, sequences may be longer than in pretraining.
    """
    tuning = config.tuning
    positions = base.config.max_position_embeddings
    plan = EncodePlan(
        tuning.max_seq_length,
        tuning.doc_stride,
        tuning.max_answer_length,
        task.has_null_answer,
        task.is_regression,
        task.is_multi_label,
        tuning.double_unordered,
        positions,
    )
    plan = trained_plan(plan, details)
    for name in registry.LENGTHS:
        trained = getattr(plan, name)
        if name in (config.chosen or ()) and trained != getattr(tuning, name):
            LOG.info(f"notice: {base.name} was fine-tuned with --{name} {trained}, which is kept")
    length = plan.max_seq_length
    if length <= positions or tuning.from_scratch or base.files is None:
        return plan
    if details:
        raise UsageError(
            f"--max_seq_length {length} exceeds the model's {positions} positions; lower it"
        )
    LOG.info(
        f"notice: {base.name} is trained for at most {positions} tokens; what is longer it learns "
        "from this task's examples only; pretrain it with electra-albert pretrain "
        f"--init_from MODEL --max_seq_length {length}, or split the texts"
    )
    return plan


def build_objective(job: TaskJob, seed: int) -> tuple[TaskObjective, list[str]]:
    """The model with its head on the device, and the names of its randomly initialized parts.

    Without training, the fine-tuned model to evaluate. Raises DataError for balanced class weights
    if a class has no training example.
    """
    if job.train is None:
        assert job.base.files is not None  # checked by make_task_job
        return load_objective(job, job.base.files), []
    torch.manual_seed(derived_seed(seed, Stream.INITIAL_WEIGHTS))
    files = None if job.is_from_scratch else job.base.files
    model, new_parts = load.build_task_model(job.shape, job.head, files)
    if job.training.gradient_checkpointing:
        compilation.set_gradient_checkpointing(model)
    class_weights = None
    labels = job.train.labels
    if job.config.tuning.class_weights == "balanced" and labels is not None:
        from sklearn.utils.class_weight import compute_class_weight

        classes = np.arange(len(job.data.labels))
        for missing in np.setdiff1d(classes, labels):
            problem = f"label {job.data.labels[missing]!r} has no training example"
            raise DataError(f"--class_weights balanced: {problem}; drop the option")
        balanced = compute_class_weight("balanced", classes=classes, y=labels)
        class_weights = torch.from_numpy(balanced).float()
    objective = TaskObjective(model, job.measure, class_weights)
    return objective.to(job.world.device), new_parts


def load_objective(job: TaskJob, files: find.ModelFiles) -> TaskObjective:
    """Load a fine-tuned model onto the device."""
    model, _ = load.load_task_model(files, job.config.tuning.num_hidden_layers)
    return TaskObjective(model, job.measure).to(job.world.device)
