"""Checks of a corpus and a configuration before training; `electra-albert doctor` prints them.

They run the objective, the optimizer and the export themselves, on the corpus, so they hold for
your own objective too. tests/objectives prove that the built-in ones mask, sample and label right.
Dimensions: B batch, L length.
"""

import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import compress, islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np
import torch

from electra_albert.apps.metrics_table import error_lines
from electra_albert.apps.pretrain import budget, trial
from electra_albert.apps.pretrain.job import MUCH_UNKNOWN, Job, first_examples, ordered_share
from electra_albert.apps.pretrain.run import folder_of_run, save_models
from electra_albert.contracts import IGNORED_LABEL, Batch, CheckpointError
from electra_albert.corpus.rows import Split, padding_share
from electra_albert.objectives import spec_of
from electra_albert.tokenization.token_texts import word_starts
from electra_albert.tokenization.tokenizer import special_ids
from electra_albert.training.distributed import World
from electra_albert.training.step import TrainingStep

_OVERFITTED = 8  # examples
_STEPS = 60  # at most, and
_SECONDS = 40.0  # at most, of the steps that overfit them
_FEWEST = 10  # of these steps, below which their losses are not compared
_FALLEN = 0.9  # of the initial loss, which the last one must not exceed
# From these on a warning.
_UNKNOWN = 0.001
_FERTILITY = 2.5
_PADDING = 0.2
_REPEATED = 0.05
_ORDERED = 0.3
_READABLE = 0.5  # share of unknown tokens from which sentences are not compared
_SAMPLED_EXAMPLES = 4096
_SAMPLED_SENTENCES = 200_000
_SENTENCE_TOKENS = 8


class Finding(NamedTuple):
    """The outcome of one check."""

    status: Literal["pass", "warn", "fail"]
    check: str
    text: str  # the result and, unless it passed, what to do

    def __str__(self) -> str:
        return f"{self.status}  {self.check:<14}  {self.text}"


def examine(job: Job, world: World) -> Iterator[Finding]:
    """Findings for a job with initial weights; they change, so it cannot be trained afterwards."""
    # Checked by make_job.
    yield Finding("pass", "weights", "sharing, parameter groups and initial losses are as expected")
    yield from _of_corpus(job)
    batch = first_examples(job.batches.examples, _OVERFITTED)
    yield _of_padding(job, batch.to(world.device))
    yield from _of_learning(job, world)
    yield from _of_cost(job, world)  # after learning, since its updates change the weights
    if all(parameter.isfinite().all() for parameter in job.objective.parameters()):
        yield _of_export(job)


def _warn_if(is_bad: bool, check: str, text: str, advice: str) -> Finding:
    if is_bad:
        return Finding("warn", check, f"{text}; {advice}")
    return Finding("pass", check, text)


def _of_corpus(job: Job) -> Iterator[Finding]:
    """Findings on the text and its tokens."""
    store = job.prepared.store
    written = store.statistics["written"]
    kept_share = store.statistics["kept"]
    text = f"{kept_share:.2%} of the text is kept; the corpus statistics list what was skipped"
    is_cut = kept_share < 1 - _UNKNOWN
    yield _warn_if(is_cut, "text", text, "check the files, --encoding and --text_column")
    yield from _of_amount(job)
    unknown = written["unknown_characters"] / written["characters"]
    text = f"{unknown:.3%} of the characters are unknown"
    finding = _warn_if(unknown > _UNKNOWN, "unknown", text, "check --tokenizer")
    if unknown > MUCH_UNKNOWN:
        finding = finding._replace(status="fail")
    yield finding
    words = sum(compress(store.token_counts, word_starts(job.prepared.tokenizer)))
    fertility = written["tokens"] / max(1, words)
    length = written["characters"] / written["tokens"]
    text = f"{fertility:.2f} tokens per word, {length:.2f} characters per token"
    advice = "raise --vocab_size if it is prose"
    if job.config.corpus.tokenizer:
        advice = "train a tokenizer on this text"
    yield _warn_if(fertility > _FERTILITY, "fertility", text, advice)
    repeated = _repeated_share(store.train, special_ids(job.prepared.tokenizer).unk)
    text = f"{repeated:.1%} of the sentences of {_SENTENCE_TOKENS} or more tokens occur earlier"
    advice = "remove repeated documents, menus and footers"
    yield _warn_if(repeated > _REPEATED, "duplicates", f"{text} in the text", advice)
    examples = job.batches.examples
    padding = padding_share(store.train, examples.table, examples.max_seq_length)
    text = f"{padding:.1%} of all positions are padding"
    advice = "lower --max_seq_length or use longer documents"
    yield _warn_if(padding > _PADDING, "padding share", text, advice)
    if spec_of(job.config).has_sentence_order:
        ordered = ordered_share(examples)
        text = f"{ordered:.1%} of the examples have a sentence order"
        advice = "raise --max_seq_length or use longer documents"
        yield _warn_if(ordered < _ORDERED, "sentence order", text, advice)


def _of_amount(job: Job) -> Iterator[Finding]:
    """Whether there is enough text for the training and for held-out scores."""
    training = job.config.training
    epochs = job.batches.epoch(training.max_steps)
    text = f"{training.max_steps:,} steps are {epochs:.1f} epochs"
    usual = "".join(budget.suggestion(job)[:1])
    are_many = epochs > budget.MANY_EPOCHS and usual != ""
    yield _warn_if(are_many, "epochs", text, usual)
    counts = job.objective.counts(first_examples(job.held_out, training.eval_examples))
    predicted = counts[next(iter(job.objective.weights))]
    text = f"held-out losses are means over {predicted:,} tokens"
    is_small = bool(error_lines(predicted))
    yield _warn_if(is_small, "held-out text", text, "use more text or raise --eval_examples")


def _repeated_share(split: Split, unknown: int | None) -> float:
    """Share of the first sentences, without short and unknown ones, that equal an earlier one."""
    counts = Counter[bytes]()
    for tokens in islice(_sentences(split), _SAMPLED_SENTENCES):
        if len(tokens) >= _SENTENCE_TOKENS and (tokens == unknown).mean() < _READABLE:
            counts[tokens.tobytes()] += 1
    return (counts.total() - len(counts)) / max(1, counts.total())


def _sentences(split: Split) -> Iterator[np.ndarray]:
    for part in split.parts:
        ends = part.sentence_ends[:_SAMPLED_SENTENCES].tolist()
        for start, end in pairwise([0, *ends]):
            yield part.tokens[start:end]


def _of_padding(job: Job, batch: Batch) -> Finding:
    """Compare the losses of cut examples for two contents of the padding, and all counts."""
    objective = job.objective.eval()
    ids = batch.input_ids  # [B, L]
    length = ids.shape[1]
    is_first_half = torch.arange(length, device=ids.device) < length // 2
    mask = batch.attention_mask & is_first_half
    batch = batch._replace(attention_mask=mask, token_type_ids=batch.token_type_ids * mask)
    special = special_ids(job.prepared.tokenizer)
    padded = batch._replace(input_ids=ids.where(mask, special.pad))
    other_padding = batch._replace(input_ids=ids.where(mask, ids[:, 1:2]))
    counts = objective.counts(padded.to(torch.device("cpu")))
    with torch.no_grad():
        terms = objective(padded)
        filled = objective(other_padding)
    problems = []
    for name in objective.weights:
        if not torch.isclose(terms[name].sum, filled[name].sum, rtol=1e-4):
            problems.append(f"{name} depends on the padding's tokens")
        count = int(terms[name].count)
        if count != counts[name]:
            problems.append(f"{name} has {count} items, counts() {counts[name]}")
    if problems:
        return Finding("fail", "padding", "; ".join(problems))
    return Finding("pass", "padding", "losses and counts do not depend on padding")


def _of_cost(job: Job, world: World) -> Iterator[Finding]:
    """Memory, disk, time and FLOPs of the run."""
    text, is_enough = trial.disk_space(job, folder_of_run(job.config, ""))
    yield _warn_if(not is_enough, "disk", text, trial.DISK_ADVICE)
    for line in trial.measure(job, world):
        if line.startswith(trial.NOT_TIMED):
            yield Finding("warn", "cost", line)
        elif not line.endswith("…"):  # such a line announces the next one
            yield Finding("pass", "cost", line)


def _of_learning(job: Job, world: World) -> Iterator[Finding]:
    """Overfit one batch at the peak learning rate: all losses fall and all parameters change."""
    objective = job.objective.train()
    at_peak = replace(
        job.config.training, lr_scheduler_type="wsd", lr_decay_share=0.0, warmup_steps=0
    )
    run = trial.quiet_run(job, world)
    run = replace(run, config=at_peak, lr_multipliers=objective.lr_multipliers)
    training_step = TrainingStep(objective, run)
    batch = _with_sentence_order(first_examples(job.batches.examples, _SAMPLED_EXAMPLES))
    counts = objective.counts(batch)
    batch = batch.to(world.device)
    before = deepcopy(dict(objective.named_parameters()))
    try:
        training_step.check(batch, 1)
    except ValueError as error:
        yield Finding("fail", "updates", str(error))
        return
    yield _of_losses(_overfit(training_step, batch, counts))
    objective.eval()
    unchanged = [
        name
        for name, parameter in objective.named_parameters()
        if torch.equal(parameter, before[name])
    ]
    if unchanged:
        text = f"{len(unchanged)} parameters do not change, such as {unchanged[:1]}: "
        yield Finding("fail", "updates", f"{text}no parameter group or no gradient has them")
    else:
        yield Finding("pass", "updates", f"all {len(before)} parameters change")


def _with_sentence_order(batch: Batch) -> Batch:
    """The examples to overfit: the first ones, of which one has a sentence order if any has."""
    lacks_order = batch.sentence_order_label == IGNORED_LABEL
    chosen = torch.arange(min(_OVERFITTED, len(lacks_order)))
    if lacks_order[chosen].all():
        chosen[-1] = lacks_order.long().argmin()
    return batch.map(lambda field: field[chosen])


def _overfit(step: TrainingStep, batch: Batch, counts: dict[str, int]) -> list[dict[str, float]]:
    """Train on one batch; returns the losses before each update, by name."""
    rows: list[dict[str, float]] = []
    started = time.monotonic()
    while len(rows) < _STEPS and time.monotonic() - started < _SECONDS:
        step.accumulate([batch], counts, 1)
        terms = step.terms()
        rows.append(
            {name: float(terms[name].sum / count) for name, count in counts.items() if count}
        )
        step.finish()
    return rows


def _of_losses(rows: list[dict[str, float]]) -> Finding:
    """Whether all losses of `_overfit` fall."""
    changes = []
    stuck = []
    for name, first in rows[0].items():
        last = rows[-1][name]
        changes.append(f"{name.replace('_', ' ')} {first:.3f} to {last:.3f}")
        if not last <= _FALLEN * first:  # also if it is no number
            stuck.append(changes[-1])
    steps = f"{len(rows)} steps"
    if len(rows) < _FEWEST:
        text = f"only {steps} in {_SECONDS:.0f} seconds, too few to see losses fall"
        return Finding("warn", "learning", f"{text}; check a smaller model first")
    if stuck:
        text = f"{', '.join(stuck)} in {steps} on one batch"
        return Finding("fail", "learning", f"{text}; change --learning_rate, or correct the loss")
    return Finding("pass", "learning", f"{steps} on one batch: {', '.join(changes)}")


def _of_export(job: Job) -> Finding:
    """Save the models, read them again and compare them with stock transformers."""
    with TemporaryDirectory() as folder:
        try:
            save_models(job, Path(folder))
        except CheckpointError as error:
            return Finding("fail", "export", str(error))
    return Finding("pass", "export", "the models compute the same after saving and loading")
