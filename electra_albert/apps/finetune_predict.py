"""Labels for new text, and files to hand in, from a fine-tuned model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from electra_albert.apps.finetune_files import MODEL
from electra_albert.apps.finetune_job import encode
from electra_albert.apps.finetune_scoring import inference, model_outputs
from electra_albert.apps.finetune_tables import predictions_table
from electra_albert.apps.run_folder import write_whole
from electra_albert.contracts import CheckpointError
from electra_albert.model.loading import load_task_model, locate_encoder
from electra_albert.tasks.encoding import Decoded, EncodePlan, TextEncoder
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.objective import TaskObjective
from electra_albert.tasks.reading import read_unlabelled
from electra_albert.tasks.submission import write_submission
from electra_albert.training.distributed import World

if TYPE_CHECKING:
    from electra_albert.apps.finetune_job import TaskJob
    from electra_albert.model.loading import ModelFiles

TEST, SUBMISSION, PREDICTED = "test", "submission", "predicted"


class _Predicted(NamedTuple):
    """What a model says of examples without labels."""

    name: str
    examples: Sequence[Any]
    decoded: Decoded


def predict(job: TaskJob, folder: Path, device: torch.device) -> list[Path]:
    """Label the file asked for, or the task's test sets for handing in; returns the files written into `folder`.

    The model is the best of the sweep, or the one the job was only to score. Raises DataError where a text cannot
    be read.
    """
    asked = job.config.tuning.predict
    files = locate_encoder(folder / MODEL) if job.train is not None else job.start.files
    if files is None:
        raise CheckpointError("a model with random weights has nothing to say; fine-tune it first")
    if asked == TEST:
        found = [_ask(job, files, name, examples, device) for name, examples in job.data.test.items()]
        return [_hand_in(job, predicted, folder / SUBMISSION) for predicted in found]
    examples = read_unlabelled(job.task, Path(str(asked)), job.config.data, job.data.report)
    predicted = _ask(job, files, Path(str(asked)).name, examples, device)
    file = folder / f"{PREDICTED}.tsv"
    write_whole(file, predictions_table(examples, predicted.decoded.predictions, predicted.decoded.probabilities))
    return [file]


def _ask(job: TaskJob, files: ModelFiles, name: str, examples: Sequence[Any], device: torch.device) -> _Predicted:
    model, details = load_task_model(files)
    objective = TaskObjective(model, is_regression=job.plan.is_regression).to(device)
    plan, data = trained_plan(job.plan, details), job.data._replace(labels=tuple(details["labels"]))
    rows = encode(job.task, examples, TextEncoder(job.start.tokenizer), data, plan, is_training=False, where=name)
    alone = World(0, 1, 0, device)
    with inference(objective, job):
        found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, alone, lambda: False)
    if found is None:
        raise ValueError("nothing can stop this prediction")
    return _Predicted(name, examples, KINDS[job.task.kind].decode(found[0], rows, examples, data.labels, plan))


def trained_plan(plan: EncodePlan, details: dict[str, Any]) -> EncodePlan:
    """The plan by which the rows of a fine-tuned model were made."""
    kept = ("max_seq_length", "doc_stride", "max_answer_length", "has_null_answer", "is_regression")
    return plan._replace(**{name: details[name] for name in kept})


def _hand_in(job: TaskJob, predicted: _Predicted, folder: Path) -> Path:
    decoded = predicted.decoded
    no_answer = decoded.probabilities if job.plan.has_null_answer else None
    return write_submission(job.task, predicted.name, decoded.predictions, predicted.examples, folder, no_answer)
