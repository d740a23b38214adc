"""Labels for new text, and files to hand in, from a fine-tuned model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from electra_albert.apps.finetune.files import MODEL, PREDICTED, SUBMISSION, writing
from electra_albert.apps.finetune.job import encode, trained_plan
from electra_albert.apps.finetune.scoring import inference, model_outputs
from electra_albert.apps.finetune.tables import predictions_table
from electra_albert.apps.run_folder import write_whole
from electra_albert.contracts import CheckpointError
from electra_albert.finetuning_config import PREDICT_TEST
from electra_albert.hub.load import load_task_model, locate_encoder
from electra_albert.tasks.encoding import Decoded, TextEncoder
from electra_albert.tasks.examples import Report
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.objective import TaskObjective
from electra_albert.tasks.submission import write_submission
from electra_albert.training.distributed import World
from electra_albert.training.guards import StopSignal

if TYPE_CHECKING:
    from electra_albert.apps.finetune.job import TaskJob
    from electra_albert.hub.load import ModelFiles

LOG = logging.getLogger(__name__)


class _Predicted(NamedTuple):
    """What a model says of examples without labels."""

    name: str
    examples: Sequence[Any]
    decoded: Decoded
    report: Report


def predict(job: TaskJob, folder: Path, device: torch.device, stop: StopSignal) -> list[Path] | None:
    """Label the new text asked for, or the task's test sets for handing in; returns the files written into `folder`.

    None where it was told to stop. What is odd in the texts is said. The model is the best of the sweep, or the one the
    job was only to score. Raises UsageError where a file cannot be written.
    """
    files = locate_encoder(folder / MODEL) if job.train is not None else job.start.files
    if files is None:
        raise CheckpointError("a model with random weights has nothing to say; fine-tune it first")
    written = []
    for name, examples in job.to_label.items():
        predicted = _ask(job, files, name, examples, device, stop)
        if predicted is None:
            return None
        with writing(folder):
            written.append(_write(job, predicted, folder))
        for line in predicted.report.lines():
            LOG.info(f"{job.task.name}: {line}")
    return written


def _ask(
    job: TaskJob, files: ModelFiles, name: str, examples: Sequence[Any], device: torch.device, stop: StopSignal
) -> _Predicted | None:
    """The predictions of the model in `files`; None where it was told to stop."""
    model, details = load_task_model(files)
    objective = TaskObjective(model, is_regression=job.plan.is_regression).to(device)
    plan, report = trained_plan(job.plan, details), Report()
    data = job.data._replace(labels=tuple(details["labels"]), report=report)
    rows = encode(job.task, examples, TextEncoder(job.start.tokenizer), data, plan, is_training=False, where=name)
    alone = World(0, 1, 0, device)
    with inference(objective, job):
        found = model_outputs(rows, objective, job.training.per_device_eval_batch_size, alone, lambda: stop.requested)
    if found is None:
        return None
    decoded = KINDS[job.task.kind].decode(found[0], rows, examples, data.labels, plan)
    return _Predicted(name, examples, decoded, report)


def _write(job: TaskJob, predicted: _Predicted, folder: Path) -> Path:
    """A file to hand in for a test set, a table for new text."""
    if job.config.tuning.predict == PREDICT_TEST:
        return _hand_in(job, predicted, folder / SUBMISSION)
    file = folder / PREDICTED
    write_whole(
        file, predictions_table(predicted.examples, predicted.decoded.predictions, predicted.decoded.probabilities)
    )
    return file


def _hand_in(job: TaskJob, predicted: _Predicted, folder: Path) -> Path:
    decoded = predicted.decoded
    no_answer = decoded.probabilities if job.plan.has_null_answer else None
    return write_submission(job.task, predicted.name, decoded.predictions, predicted.examples, folder, no_answer)
