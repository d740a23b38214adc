"""Predictions of a fine-tuned model in a program: classes, tags, answers, choices, decoded as fine-tuning does.

Dimensions: L length, C classes, K options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from electra_albert.apps.finetune.job import trained_plan
from electra_albert.apps.finetune.scoring import outputs_by_unit
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.finetuning_config import TuningConfig
from electra_albert.hub.load import ModelFiles, Stored, read_task, task_model_of
from electra_albert.inference.checks import Text, name_of
from electra_albert.inference.fill_mask import shorten
from electra_albert.inference.rows import batches
from electra_albert.model.encoder import Body
from electra_albert.model.task_model import TaskModel
from electra_albert.tasks import span, token
from electra_albert.tasks.encoding import EncodePlan, TextEncoder, softmax
from electra_albert.tasks.examples import ChoiceExample, Report, SequenceExample, SpanExample, TokenExample
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.rows import Rows

CALLS = {"sequence": "classify", "token": "tag", "span": "answer", "choice": "choose"}  # by the kind of the head
_NUMBER = "score"  # the label of a regression, as in transformers


class ClassPrediction(NamedTuple):
    """The class of a text or a pair; of a regression its number, under the label "score"."""

    label: str
    score: float  # probability of the label; of a regression the predicted number
    scores: dict[str, float]  # of every label, in the order of the model's outputs


class TagPrediction(NamedTuple):
    """A word and its tag."""

    word: str
    label: str
    score: float  # probability of the tag, at the first token of the word


class SpanPrediction(NamedTuple):
    """An answer as it is in the context: context[start:end]; "" from 0 to 0 where there is none."""

    text: str
    start: int  # in characters of the context
    end: int  # one past the last character
    score: float  # start logit + end logit of the best span, whether or not it is the answer; -inf without any
    no_answer: (
        float | None
    )  # probability that there is none, against the best span; None for a model that always answers


class ChoicePrediction(NamedTuple):
    """The option that answers a question."""

    number: int  # of the option, from 0
    option: str
    scores: list[float]  # [K] probability of each option


class FineTuned(NamedTuple):
    """A model with the head of a task, in eval mode, and what it was fine-tuned with."""

    model: TaskModel
    text_encoder: TextEncoder
    labels: tuple[str, ...]
    plan: EncodePlan
    takes_pairs: bool | None  # None where the folder does not record it


def fine_tuned_of(stored: Stored, files: ModelFiles, tokenizer: Any, encoder: Body) -> FineTuned | str:
    """The fine-tuned model in files that were read, on the weights of `encoder`; else why there is none."""
    try:
        details, head = read_task(files)
        model = task_model_of(stored, head, str(files.weights))
    except CheckpointError as error:
        return str(error)
    model.embeddings, model.encoder = encoder.embeddings, encoder.encoder
    usual, longest = TuningConfig(), stored.config.max_position_embeddings
    plan = EncodePlan(
        max_seq_length=longest,
        doc_stride=usual.doc_stride,
        max_answer_length=usual.max_answer_length,
        has_null_answer=False,
        is_regression=False,
        double_unordered=False,
    )
    plan = trained_plan(plan, details)
    plan = plan._replace(max_seq_length=min(plan.max_seq_length, longest))
    takes_pairs = bool(details["columns"]["pair"]) if "columns" in details else None
    return FineTuned(model, TextEncoder(tokenizer), tuple(details["labels"]), plan, takes_pairs)


class Asked(NamedTuple):
    """What a call asks a fine-tuned model."""

    given: Any  # the texts or questions as the caller gave them, for messages
    truncate: bool
    batch_tokens: int  # in a batch, padding included


def classified(task: FineTuned, texts: Sequence[Text], asked: Asked) -> list[ClassPrediction]:
    """The classes or numbers of texts or pairs; UsageError for the one where the other was learned."""
    if task.takes_pairs is not None and any(isinstance(text, str) == task.takes_pairs for text in texts):
        learned = "pairs of texts" if task.takes_pairs else "single texts"
        raise UsageError(f"the model was fine-tuned on {learned}; give it those")
    pairs = [(text, None) if isinstance(text, str) else text for text in texts]
    examples = [SequenceExample(text, second, None, str(number)) for number, (text, second) in enumerate(pairs)]
    rows, outputs = _read(task, examples, asked)
    decoded = KINDS["sequence"].decode(outputs, rows, examples, task.labels, task.plan)
    if decoded.probabilities is None:
        return [ClassPrediction(_NUMBER, number, {_NUMBER: number}) for number in decoded.predictions]
    return [
        ClassPrediction(label, max(scores), dict(zip(task.labels, scores, strict=True)))
        for label, scores in zip(decoded.predictions, decoded.probabilities, strict=True)
    ]


def tagged(task: FineTuned, texts: Sequence[str], asked: Asked) -> list[list[TagPrediction]]:
    """The tags of the words of texts, which stand between spaces."""
    examples = [TokenExample(tuple(text.split()), None, str(number)) for number, text in enumerate(texts)]
    rows, outputs = _read(task, examples, asked)
    decoded = KINDS["token"].decode(outputs, rows, examples, task.labels, task.plan)
    scores = [softmax(logits).max(axis=1).tolist() for logits in token.word_logits(outputs, rows, examples)]
    return [
        [TagPrediction(*word) for word in zip(example.words, tags, some, strict=True)]
        for example, tags, some in zip(examples, decoded.predictions, scores, strict=True)
    ]


def answered(task: FineTuned, questions: Sequence[tuple[str, str]], asked: Asked) -> list[SpanPrediction]:
    """The answers to questions, each with its context behind it."""
    examples = [SpanExample(context, question, None, str(n)) for n, (question, context) in enumerate(questions)]
    rows, outputs = _read(task, examples, asked)
    decoded = KINDS["span"].decode(outputs, rows, examples, task.labels, task.plan)
    best = span.search(outputs, rows, examples, task.plan.max_answer_length)
    no_answer = decoded.probabilities or [None] * len(examples)
    return [
        SpanPrediction(text, one.start if text else 0, one.start + len(text) if text else 0, one.score, none)
        for text, one, none in zip(decoded.predictions, best, no_answer, strict=True)
    ]


def chosen_options(
    task: FineTuned, questions: Sequence[tuple[str, str, Sequence[str]]], asked: Asked
) -> list[ChoicePrediction]:
    """The options that answer questions: context, question and options of each."""
    examples = [
        ChoiceExample(context, question, tuple(options), None, str(number), "")
        for number, (context, question, options) in enumerate(questions)
    ]
    rows, outputs = _read(task, examples, asked)
    decoded = KINDS["choice"].decode(outputs, rows, examples, task.labels, task.plan)
    return [
        ChoicePrediction(number, example.options[number], scores)
        for example, number, scores in zip(examples, decoded.predictions, decoded.probabilities or [], strict=True)
    ]


def _read(task: FineTuned, examples: Sequence[Any], asked: Asked) -> tuple[Rows, list[NDArray[np.float32]]]:
    """The examples as rows, and the model's outputs for each unit of them.

    Raises DataError for a text that would be cut, unless truncate is asked for, UsageError for pairs where the model
    knows one segment.
    """
    kind, report = KINDS[task.model.head.kind], Report()
    rows = kind.encode(
        examples, task.text_encoder, task.labels, task.plan, report, is_training=False, where="the texts"
    )
    if report.first_cut is not None and not asked.truncate:
        number = int(report.first_cut)
        text = asked.given[number] if isinstance(asked.given, list) else asked.given
        shown = shorten(text if isinstance(text, str) else " ".join(text))
        raise DataError(
            f"{name_of(asked.given, number)}{shown!r} is too long: the model reads "
            f"sequences of {task.plan.max_seq_length} tokens; shorten it or give truncate=True"
        )
    if task.model.config.type_vocab_size < 2 and (np.diff(rows.starts) > rows.first_lengths).any():
        raise UsageError("the model knows one segment and reads no pairs; give single texts")
    found: dict[int, NDArray[np.float32]] = {}
    for units in batches((rows.unit_lengths() * rows.rows_per_unit).tolist(), asked.batch_tokens):
        found |= zip(units, outputs_by_unit(_outputs(task.model, rows, units), np.array(units), rows), strict=True)
    return rows, [found[unit] for unit in range(rows.unit_count)]


@torch.inference_mode()
def _outputs(model: TaskModel, rows: Rows, units: list[int]) -> NDArray[np.float32]:
    """The model's outputs for some units, as TaskModel.forward gives them under one dropout mask, on the CPU."""
    batch = rows.collate(units).to(model.output.weight.device)
    outputs: NDArray[np.float32] = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)[0].cpu().numpy()
    return outputs
