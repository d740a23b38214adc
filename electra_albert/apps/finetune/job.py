"""Preparation of one fine-tuning sweep: base model, encoded data, task head, training settings."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from electra_albert.apps.default_model import default_model
from electra_albert.apps.pretrain.job import choose_arithmetic, choose_recording
from electra_albert.config import CorpusConfig, ModelConfig, TrainingConfig
from electra_albert.contracts import LOG, Arithmetic, CheckpointError, DataError, UsageError, redacted
from electra_albert.files import sha256
from electra_albert.finetuning_config import PREDICT_TEST, FinetuneConfig, TuningConfig
from electra_albert.hub import find, formats, load, weights
from electra_albert.inference.finetuned import FineTuned
from electra_albert.keyed_random import Stream, derived_seed
from electra_albert.model import attention, compilation, task_model
from electra_albert.presets import PRESETS
from electra_albert.tasks import kinds, reading, recipes, registry, token
from electra_albert.tasks.encoding import EncodedExamples, EncodePlan, Encoding, trained_plan
from electra_albert.tasks.task import Report, Task, TaskData
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from electra_albert.training.distributed import World, main_first

_SAVE_STEPS = 500  # at most this many updates are lost if a run is killed
_SCRATCH_PRESET = "tiny"  # the shape without a pretrained model
_DISCRIMINATOR = "discriminator_predictions"
_SMALL = 256  # hidden size up to which only ELECTRA published settings, not ALBERT


class BaseModel(NamedTuple):
    """The model to fine-tune or evaluate; its weights are not loaded yet."""

    name: str
    files: find.ModelFiles | None  # None: random weights
    config: ModelConfig
    tokenizer: Tokenizer
    family: Literal["electra", "albert"]  # of the published settings to use
    fingerprint: str  # of the weights


def find_base_model(config: FinetuneConfig, world: World) -> BaseModel:
    """The given model, else the default one, else the smallest preset with random weights, which is logged."""
    model = config.tuning.model
    try:
        path = default_model("--model") if model is None else Path(model)
    except UsageError as error:
        from electra_albert.corpus.prepare import prepare

        LOG.info(f"notice: no pretrained model, training from random weights: {error}")
        preset = PRESETS[_SCRATCH_PRESET]
        corpus = CorpusConfig(vocab_size=preset.corpus.vocab_size, prepared_dir=config.data.prepared_dir)
        with main_first(world):
            tokenizer = prepare(corpus, preset.training.seed).tokenizer
        shape = replace(preset.model, vocab_size=len(tokenizer))
        return BaseModel(_SCRATCH_PRESET, None, shape, tokenizer, "electra", "")
    files = load.locate(path)
    shape, tokenizer = load.read_config(files), load_tokenizer(files.tokenizer)
    if len(tokenizer) > shape.vocab_size:
        found = f"the tokenizer in {files.tokenizer} has {len(tokenizer)} tokens, the model only {shape.vocab_size}"
        raise UsageError(f"{found}; use the tokenizer it was trained with")
    is_electra = (
        load.read_details(files).get("family") == "electra" or shape.hidden_size <= _SMALL or _has_discriminator(files)
    )
    fingerprint = " ".join(filter(None, [*map(sha256, weights.all_files(files.weights)), files.part]))
    return BaseModel(model_name(path), files, shape, tokenizer, "electra" if is_electra else "albert", fingerprint)


def _has_discriminator(files: find.ModelFiles) -> bool:
    """Whether a model has ELECTRA's head, by the names in a header or an index; a pickle is read."""
    names: set[str] = set()
    for file, listed in weights.all_files(files.weights).items():
        if listed is not None:
            names |= listed
        elif file.suffix == ".safetensors":
            # A damaged file is refused when the model is built.
            with suppress(OSError, SafetensorError), safe_open(str(file), framework="pt") as header:
                names.update(header.keys())
        else:
            names |= load.read_stored(files).parts
    return any(_DISCRIMINATOR in name for name in names)


def model_name(path: Path) -> str:
    """The name of a model folder in that of an output folder."""
    path = path.resolve()
    name = path.parent.name if path.name in ("generator", "discriminator", "model") else path.name
    return f"{path.parents[1].name}-{name}" if path.parent.name == "checkpoints" else name


def apply_recipe(config: FinetuneConfig, task_name: str, base: BaseModel) -> FinetuneConfig:
    """Fill options that the user did not set with the published settings for model and task."""
    asked = config.tuning.recipe
    return config.with_defaults(recipes.recipe(base.family if asked == "auto" else asked, task_name, base.config))


Assignment = tuple[Task, FinetuneConfig, BaseModel, Path]  # a task, and its folder


@dataclass(frozen=True)
class TaskJob:
    """Everything that the seeds of a sweep share."""

    task: Task
    config: FinetuneConfig
    training: TrainingConfig  # with the number of updates
    base: BaseModel
    shape: ModelConfig
    head: task_model.TaskHead
    data: TaskData
    plan: EncodePlan
    train: EncodedExamples | None  # None: evaluation only
    evaluation: dict[str, EncodedExamples]
    to_label: Mapping[str, Sequence[Any]]  # unlabelled examples to predict, by set or file name
    arithmetic: Arithmetic
    is_recorded: bool  # the training step, in CUDA graphs
    global_batch_size: int
    folder: Path  # of the results
    text_encoder: TextEncoder

    def fine_tuned(self, objective: kinds.TaskObjective) -> FineTuned:
        """The model with what encodes its examples and decodes its outputs."""
        return FineTuned(objective.model, self.text_encoder, self.data.labels, self.plan)

    @property
    def measure(self) -> str:
        """Name of the function in metrics.MEASURES that computes the metrics."""
        if self.task.kind == "sequence":
            return "regression" if self.plan.is_regression else "classification"
        return "span_with_null" if self.task.kind == "span" and self.plan.has_null_answer else self.task.kind

    @property
    def deciding_set(self) -> str:
        """The evaluation set whose score selects the best seed."""
        return next(iter(self.evaluation))

    @cached_property
    def data_fingerprint(self) -> str:
        """A hash of all encoded examples and labels: a sweep only combines results on the same data."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.data.labels, list(self.evaluation))).encode())
        for part in filter(None, (self.train, *self.evaluation.values())):
            for array in (part.input_ids, part.starts, part.first_lengths, part.example_index, part.labels):
                digest.update(b"" if array is None else array.tobytes())
        for example in chain(*self.data.evaluation.values()):  # holds more than its features: all answers, the level
            digest.update(repr(example).encode())
        return digest.hexdigest()

    @property
    def is_from_scratch(self) -> bool:
        return self.base.files is None or self.config.tuning.from_scratch


def make_task_job(task: Task, config: FinetuneConfig, base: BaseModel, folder: Path, world: World) -> TaskJob:
    """Read and encode the task's data for a model, and log the report on them."""
    tuning, training, task = config.tuning, config.training, registry.as_configured(task, config.data)
    is_trained = task.trained_by is None and tuning.is_training
    _check_options(task, tuning, is_trained=is_trained)
    details = {} if is_trained else _model_details(task, base)
    task = replace(task, labels=tuple(normalize("NFC", label) for label in details["labels"])) if details else task
    data, needs_test = TaskData([], {}, {}, task.labels, Report()), tuning.predict == PREDICT_TEST
    if not config.only_predicts:
        data = reading.read_data(task, config.data, needs_test=needs_test, seed=training.seed, is_trained=is_trained)
    if len({label.casefold() for label in data.labels}) < len(data.labels):
        LOG.info(
            f"notice: {task.name}: labels that differ in case only are different classes: {', '.join(data.labels)}"
        )
    task = _with_metrics(task, data.labels, tuning.metric_for_best_model)
    plan, encode = _encode_plan(task, tuning, base, details), kinds.KINDS[task.kind].encode
    text_encoder = TextEncoder(base.tokenizer)
    scored = Encoding(text_encoder, data.labels, plan, data.report, "")
    train = encode(data.train, replace(scored, set_name="train", is_training=True)) if is_trained else None
    if train is not None and not train.feature_count:
        raise DataError(f"{task.name}: no training example is left ({'; '.join(data.report.lines())}); check the data")
    if train is not None and base.files is not None:  # only positions that are trained, there or here
        longest = max(base.config.max_position_embeddings, int(train.feature_lengths.max()))
        plan = plan._replace(max_seq_length=min(plan.max_seq_length, longest))
        scored = replace(scored, plan=plan)
    evaluation = {name: encode(examples, replace(scored, set_name=name)) for name, examples in data.evaluation.items()}
    if evaluation and task.kind == "token" and "f1" not in task.metrics:
        LOG.info(f"notice: {task.name}: the tags mark no entities by B- and I-, so there is no F1, only accuracy")
    new_text, to_label = Report(), data.test if needs_test else {}  # results.json reports evaluation data only
    if tuning.predict is not None and not needs_test:
        to_label = {
            Path(redacted(tuning.predict)).name: reading.read_unlabelled(task, tuning.predict, config.data, new_text)
        }
    for line in (*data.report.lines(), *new_text.lines()):
        LOG.info(f"{task.name}: {line}")
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps * world.world_size
    asked = {name: getattr(tuning, name) for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")}
    shape = replace(
        load.at_depth(base.config, tuning.num_hidden_layers),
        max_position_embeddings=max(base.config.max_position_embeddings, plan.max_seq_length),
    )
    if asked["attention_probs_dropout_prob"] and not attention.ATTENTION[shape.attention].has_weights:
        LOG.info(f"notice: attention {shape.attention} has no weights to drop: attention_probs_dropout_prob is 0")
        asked["attention_probs_dropout_prob"] = 0.0
    shape = replace(shape, **{name: value for name, value in asked.items() if value is not None})
    form = {"kind": task.kind, "labels": [*data.labels], "style": tuning.head, "is_regression": task.is_regression}
    head = load.head_of(details or form, 0.0 if details else tuning.classifier_dropout_prob)
    training = _with_steps(tuning, training, train.feature_count, batch) if train else training
    encoded = (data, plan, train, evaluation, to_label)
    arithmetic = choose_arithmetic(training.precision, world.device)
    if training.precision == "auto" and not is_trained:  # as after a training
        arithmetic = "fp32"
    is_recorded = choose_recording(training, "none", arithmetic, world)
    return TaskJob(
        task, config, training, base, shape, head, *encoded, arithmetic, is_recorded, batch, folder, text_encoder
    )


def _check_options(task: Task, tuning: TuningConfig, *, is_trained: bool) -> None:
    """UsageError for options that have no effect on this task, or would make its labels wrong."""
    is_weighted, has_classes = tuning.class_weights != "none", task.kind == "sequence" and not task.is_regression
    one_model = not is_trained and (tuning.seeds > 1 or tuning.from_scratch or is_weighted)
    is_symmetric = task.is_symmetric or (task.name == "custom" and task.takes_pairs)
    has_no_pooler, is_span = task.kind in ("span", "token"), is_trained and task.kind == "span"
    for is_idle, why, options in (
        (one_model, "is only evaluated, with a fine-tuned model", "seeds, --from_scratch and --class_weights"),
        (is_weighted and not has_classes, "is not text classification", "class_weights"),
        (tuning.double_unordered and not is_symmetric, "has no symmetric pairs of texts", "double_unordered"),
        (tuning.head == "electra" and has_no_pooler, "has a head without a pooler", "head electra"),
        (is_span and tuning.classifier_dropout_prob > 0, "has a head without dropout", "classifier_dropout_prob"),
    ):
        if is_idle:
            raise UsageError(f"{task.name} {why}; drop --{options}")


def _model_details(task: Task, base: BaseModel) -> dict[str, Any]:
    """The recorded details of a model to evaluate; CheckpointError if it was fine-tuned on another task."""
    wanted = task.trained_by or task.name
    if base.files is None:
        raise UsageError(f"{task.name} is only evaluated: give a model fine-tuned on {wanted} with --model")
    details, _ = load.read_task(base.files)
    labels, found = tuple(details["labels"]), details.get("task", wanted)  # not recorded in a stock folder
    flags = all(bool(details.get(name)) == getattr(task, name) for name in ("is_regression", "has_null_answer"))
    if found == wanted:
        pair = details.get("columns", {}).get("pair")  # not recorded in a stock folder, nor by older versions
        if pair is not None and bool(pair) != task.takes_pairs:
            advice = "pairs of texts; give --text_pair_column" if pair else "single texts; leave out --text_pair_column"
            raise UsageError(f"{base.name} was fine-tuned on {advice}")
        if details["kind"] == task.kind and flags:
            if not task.labels or labels == task.labels:
                return details
            if len(labels) == len(task.labels):
                formats.require_named(labels, str(base.files.config.parent))
        found = f"{details['kind']} with labels {', '.join(labels[:5]) or 'none'}"
    which = f"{base.files.weights} was fine-tuned on {found}, not on {wanted}"
    raise CheckpointError(f"{which}; give another --model or --task")


def _with_metrics(task: Task, labels: Sequence[str], asked: str | None) -> Task:
    """The task with the metrics that fit its labels; `main` is the one asked for."""
    if task.kind == "token" and not token.is_entity_tagging(labels):
        task = replace(task, metrics=("accuracy",), main="accuracy")  # plain tags have no entities to count
    offered = task.metrics[:1] if task.kind == "choice" else task.metrics  # a level of RACE may have no example
    if asked not in (None, *offered):
        raise UsageError(f"--metric_for_best_model {asked}: {task.name} has {', '.join(offered)}; choose one")
    return replace(task, main=asked or task.main)


def _encode_plan(task: Task, tuning: TuningConfig, base: BaseModel, details: Mapping[str, Any]) -> EncodePlan:
    """Settings for encoding. In training, without details, sequences may be longer than in pretraining."""
    positions, lengths = base.config.max_position_embeddings, (tuning.max_seq_length, tuning.doc_stride)
    flags = task.has_null_answer, task.is_regression, tuning.double_unordered
    plan = trained_plan(EncodePlan(*lengths, tuning.max_answer_length, *flags, positions), details)
    length = plan.max_seq_length
    if length <= positions or tuning.from_scratch or base.files is None:
        return plan
    longer = replace(base.config, max_position_embeddings=length)
    if details or attention.mixing_shapes(longer) != attention.mixing_shapes(base.config):
        raise UsageError(f"--max_seq_length {length} exceeds the model's {positions} positions; lower it")
    notice = f"notice: {base.name} has {positions} trained positions; the others are extrapolated and learn from this"
    advice = f"pretrain it with electra-albert pretrain --init_from MODEL --max_seq_length {length}, or split the texts"
    LOG.info(f"{notice} task's examples only; {advice}")
    return plan


def _with_steps(tuning: TuningConfig, training: TrainingConfig, feature_count: int, batch: int) -> TrainingConfig:
    """The training settings with the number of updates, of warmup updates, and between evaluations and checkpoints."""
    steps = tuning.max_steps or max(1, math.ceil(tuning.num_train_epochs * feature_count / batch))
    eval_steps = max(1, math.ceil(feature_count / batch / tuning.evals_per_epoch))
    warmup_steps = round(tuning.warmup_ratio * steps) if tuning.warmup_steps is None else tuning.warmup_steps
    saved: dict[str, Any] = {"save_steps": min(eval_steps, _SAVE_STEPS), "save_total_limit": 1}
    return replace(training, max_steps=steps, warmup_steps=warmup_steps, eval_steps=eval_steps, **saved)


def build_objective(job: TaskJob, seed: int, device: torch.device) -> tuple[kinds.TaskObjective, list[str]]:
    """The model with its head on the device, and the names of its randomly initialized parts.

    Without training, the fine-tuned model to evaluate. Raises DataError for balanced class weights
    if a class has no training example.
    """
    if job.train is None:
        assert job.base.files is not None  # checked by make_task_job
        return load_objective(job, job.base.files, device), []
    tuning, class_weights = job.config.tuning, None
    torch.manual_seed(derived_seed(seed, Stream.INITIAL_WEIGHTS))
    model, new = load.build_task_model(job.shape, job.head, None if tuning.from_scratch else job.base.files)
    if job.training.gradient_checkpointing:
        compilation.set_gradient_checkpointing(model)
    if tuning.class_weights == "balanced" and job.train.labels is not None:
        from sklearn.utils.class_weight import compute_class_weight

        classes = np.arange(len(job.data.labels))
        if missing := sorted({*classes} - {*job.train.labels}):
            label = job.data.labels[missing[0]]
            raise DataError(f"--class_weights balanced: label {label!r} has no training example; drop the option")
        class_weights = torch.from_numpy(compute_class_weight("balanced", classes=classes, y=job.train.labels)).float()
    return kinds.TaskObjective(model, job.plan.is_regression, class_weights).to(device), new


def load_objective(job: TaskJob, files: find.ModelFiles, device: torch.device) -> kinds.TaskObjective:
    """Load a fine-tuned model onto the device."""
    model, _ = load.load_task_model(files, job.config.tuning.num_hidden_layers)
    return kinds.TaskObjective(model, is_regression=job.plan.is_regression).to(device)
