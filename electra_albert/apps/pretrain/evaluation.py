"""Held-out rows scored during pretraining: every rank takes its share, and all return the same numbers."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from electra_albert.apps.pretrain.scores import MASKED_TOKENS, OLD_TEXT_PREFIX
from electra_albert.apps.pretrain.summary import guesses_in_markdown
from electra_albert.contracts import Term
from electra_albert.corpus.batches import eval_batches
from electra_albert.objectives.evaluation import Detections, detection_scores, is_discriminator_idle
from electra_albert.training.distributed import gather_objects
from electra_albert.training.monitor import Tally, means_of

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.contracts import Metrics
    from electra_albert.corpus.examples import Rows
    from electra_albert.objectives import PretrainingObjective
    from electra_albert.training.loop import Evaluate
    from electra_albert.training.step import RunSettings

LOG = logging.getLogger(__name__)

_IDLE = (
    "the discriminator finds replaced tokens no better than chance, while the generator learns. A rate too "
    "high for many layers makes all its vectors alike: if this lasts, begin anew with --rtd.discriminator_rate {rate:g}"
)


def evaluator(job: Job, run: RunSettings) -> Evaluate:
    """What the loop calls to score the job's objective on the new text and, where a run goes on, on the old one."""

    def evaluate(step: int) -> Metrics | None:
        metrics = score(job.objective, job, job.held_out, run, job.prepared.held_out_sources)
        if metrics is None:
            return None
        if job.origin is not None and job.origin.held_out is not None:
            old = score(job.objective, job, job.origin.held_out, run)
            if old is None:
                return None
            metrics |= {f"{OLD_TEXT_PREFIX}{name}": old[name] for name in ("loss", *job.objective.weights)}
        if is_discriminator_idle(metrics):
            LOG.warning(_IDLE.format(rate=job.config.rtd.discriminator_rate / 4))
        if run.world.is_main:
            run.monitor.text(step, "guesses", guesses_in_markdown(job))
        return metrics

    return evaluate


def score(
    objective: PretrainingObjective,
    job: Job,
    held_out: Rows,
    run: RunSettings,
    sources: Mapping[str, int] | None = None,
) -> Metrics | None:
    """Means of all terms over held-out rows, and the detection scores; None where it was told to stop.

    sources: the row at which each source begins. Losses are then reported by source too, as `<loss>/<source>`.
    """
    training, world, sources = run.config, run.world, sources or {}
    by_source = [*objective.weights, "unigram_loss"] if sources else []
    firsts = list(sources.values())
    tally, detections = Tally(world.device), Detections()
    kept = torch.ones((), dtype=torch.bool, device=world.device)
    for batch in eval_batches(
        held_out, training.eval_examples, training.per_device_eval_batch_size, world.rank, world.world_size, firsts
    ):
        if run.stop.requested and world.world_size == 1:
            return None
        terms = objective.score(batch.to(world.device), job.unigram, detections)
        here = bisect_right(firsts, int(batch.example_id[0])) - 1
        for number, source in enumerate(sources):
            part = 1 if number == here else 0
            terms |= {f"{name}/{source}": Term(terms[name].sum * part, terms[name].count * part) for name in by_source}
        tally.add(terms, kept)
    totals = tally.take(world)
    metrics = means_of(totals, objective.weights)
    for suffix in ("", *(f"/{source}" for source in sources)):
        metrics[f"{MASKED_TOKENS}{suffix}"] = totals[f"unigram_loss{suffix}"][1]
    if objective.discriminator is None:
        return metrics
    gathered = gather_objects(detections.arrays(), world)
    scores, is_replaced = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
    return {**metrics, **detection_scores(scores, is_replaced, training.seed)}
