"""Evaluation during pretraining on held-out examples, with equal numbers on all ranks."""

from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra_albert.apps.metrics_table import MASKED_TOKENS, OLD_TEXT_PREFIX
from electra_albert.apps.pretrain.job import Job
from electra_albert.apps.pretrain.samples import inference_model, sample_predictions
from electra_albert.contracts import CheckpointError, Metrics, Term
from electra_albert.corpus.examples import PackedExamples, eval_batches
from electra_albert.inference.model import InferenceModel
from electra_albert.inference.scoring import score_pairs
from electra_albert.objectives.evaluation import Detections, detection_scores
from electra_albert.training import distributed, monitor
from electra_albert.training.loop import Evaluate
from electra_albert.training.step import RunSettings

_UNIGRAM = "unigram_loss"


def evaluator(job: Job, run: RunSettings) -> Evaluate:
    """The loop's evaluation, in continued pretraining on the old text too."""

    def evaluate(step: int) -> Metrics | None:
        metrics = score(job.objective, job, job.held_out, run, job.prepared.held_out_sources)
        if metrics is None:
            return None
        if job.origin is not None and job.origin.held_out is not None:
            old = score(job.objective, job, job.origin.held_out, run)
            if old is None:
                return None
            for name in ("loss", *job.objective.weights):
                metrics[f"{OLD_TEXT_PREFIX}{name}"] = old[name]
        if run.world.is_main:
            model = inference_model(job)
            metrics |= _pair_scores(model, job)
            samples = list(sample_predictions(job, model))
            lines = [sample.line() for sample in samples]
            run.monitor.samples(step, lines, [sample.record() for sample in samples])
        return metrics

    return evaluate


def score(
    objective: Any,
    job: Job,
    packed: PackedExamples,
    run: RunSettings,
    sources: Mapping[str, int] = {},
) -> Metrics | None:
    """Means of all terms over held-out examples, and the detection scores.

    None if a signal stopped the evaluation. sources: index of each source's first example. Losses
    are then also reported per source, as `<loss>/<source>`.
    """
    training = run.config
    world = run.world
    firsts = list(sources.values())
    tally = monitor.Tally(world.device)
    detections = Detections()
    is_kept = torch.ones((), dtype=torch.bool, device=world.device)
    sizes = (training.eval_examples, training.per_device_eval_batch_size)
    for batch in eval_batches(packed, *sizes, world.rank, world.world_size, firsts):
        if run.stop.requested and world.world_size == 1:
            return None
        terms = objective.score(batch.to(world.device), job.unigram, detections)
        losses = [name for name in (*objective.weights, _UNIGRAM) if name in terms]
        current = bisect_right(firsts, int(batch.example_id[0])) - 1
        for number, source in enumerate(sources):
            is_current = int(number == current)
            for name in losses:
                total, count = terms[name]
                terms[f"{name}/{source}"] = Term(total * is_current, count * is_current)
        tally.add(terms, is_kept)
    totals = tally.take(world)
    metrics = monitor.means_of(totals, objective.weights)
    for name, (_, count) in totals.items():
        if name.startswith(_UNIGRAM):  # of masked language models
            metrics[name.replace(_UNIGRAM, MASKED_TOKENS, 1)] = count
    gathered = distributed.gather_objects(detections.arrays(), world)
    scores, is_replaced = map(np.concatenate, zip(*gathered, strict=True))
    if len(scores):
        metrics |= detection_scores(scores, is_replaced, training.seed)
    return metrics


def _pair_scores(model: InferenceModel, job: Job) -> Metrics:
    """Accuracy on --eval_pairs by each head; none if the model's scores are not finite."""
    options = job.config.run
    if options.eval_pairs is None:
        return {}
    try:
        heads = score_pairs(
            model, Path(options.eval_pairs), options.eval_max_pairs, is_logged=False
        )
    except CheckpointError:
        return {}
    return {f"pairs_{head}": scores["mean"] for head, scores in heads.items()}
