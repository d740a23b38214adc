"""Predictions of a fine-tuned model, decoded as in fine-tuning. Dimensions: K options."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import softmax

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.corpus.text_encoder import TextEncoder
from electra_albert.finetuning_config import TuningConfig
from electra_albert.hub.load import ModelFiles, load_task_model
from electra_albert.inference.engine import Engine, OneOrMore, as_given, as_texts, plan_batches, quote
from electra_albert.model.task_model import TaskModel
from electra_albert.tasks import span, token
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, split_outputs, trained_plan
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.task import ChoiceExample, Report, SequenceExample, SpanExample, TokenExample

CALLS = {"sequence": "classify", "token": "tag", "span": "answer", "choice": "choose"}  # by the kind of the head


class ClassPrediction(NamedTuple):
    """Class of a text or a pair; a regression has the label "score", as in transformers."""

    label: str
    score: float  # probability of the label; for a regression the predicted number
    scores: dict[str, float]  # of all labels, in the order of the model's outputs


class TagPrediction(NamedTuple):
    """Predicted tag of a word: `label` and its probability `score`, at the first token of the word."""

    word: str
    label: str
    score: float


class SpanPrediction(NamedTuple):
    """Answer to a question: `text` is context[start:end], or "" with start and end 0 if there is no answer."""

    text: str
    start: int
    end: int
    score: float  # start logit + end logit of the best span, even if there is no answer; -inf without a valid span
    no_answer: float | None  # probability that there is no answer; None for a model that always answers


class ChoicePrediction(NamedTuple):
    """Predicted option of a question: its index `number` from 0, its text, and `scores`, the K probabilities."""

    number: int
    option: str
    scores: list[float]


class FineTuned(NamedTuple):
    """A fine-tuned model in eval mode with its tokenizer, labels and encoding options."""

    model: TaskModel
    text_encoder: TextEncoder
    labels: tuple[str, ...]
    plan: EncodePlan
    takes_pairs: bool | None  # None if the folder does not record it


def load_fine_tuned(files: ModelFiles, tokenizer: Any) -> FineTuned | str:
    """Load the fine-tuned model in the files; returns the reason as a str if there is none."""
    try:
        model, details = load_task_model(files)
    except CheckpointError as error:
        return str(error)
    usual, longest = TuningConfig(), model.config.max_position_embeddings
    plan = trained_plan(EncodePlan(longest, usual.doc_stride, usual.max_answer_length), details)
    plan = plan._replace(max_seq_length=min(plan.max_seq_length, longest))
    takes_pairs = bool(details["columns"]["pair"]) if "columns" in details else None
    return FineTuned(model, TextEncoder(tokenizer), tuple(details["labels"]), plan, takes_pairs)


def classify(model: Engine, texts: object, *, truncate: bool = False) -> Any:
    """Classify a text or a pair, or predict its number if the task is a regression; returns a ClassPrediction."""
    task = _task_for(model, "classify")
    pairs = [(text, None) if isinstance(text, str) else text for text in as_texts(texts, may_be_pairs=True)]
    if task.takes_pairs is not None and any((second is None) == task.takes_pairs for _, second in pairs):
        wanted = "pairs of texts" if task.takes_pairs else "single texts"
        raise UsageError(f"the model was fine-tuned on {wanted}; give it those")
    examples = [SequenceExample(text, other, None, str(number)) for number, (text, other) in enumerate(pairs)]
    decoded, _, _ = _predict(model, task, examples, texts, truncate)
    if decoded.probabilities is None:
        return as_given(texts, [ClassPrediction("score", it, {"score": it}) for it in decoded.predictions])
    scored = zip(decoded.predictions, decoded.probabilities, strict=True)
    found = [ClassPrediction(one, max(each), dict(zip(task.labels, each, strict=True))) for one, each in scored]
    return as_given(texts, found)


def tag(model: Engine, texts: OneOrMore, *, truncate: bool = False) -> Any:
    """Tag the words of a text, split at white space and read in windows; returns a list of TagPrediction."""
    task = _task_for(model, "tag")
    examples = [TokenExample(tuple(text.split()), None, str(number)) for number, text in enumerate(as_texts(texts))]
    decoded, outputs, features = _predict(model, task, examples, texts, truncate)
    logits = token.word_logits(outputs, features, examples)
    scores = [softmax(of_words.astype(np.float64), axis=1).max(axis=1).tolist() for of_words in logits]
    parts = zip([one.words for one in examples], decoded.predictions, scores, strict=True)
    return as_given(texts, [[TagPrediction(*word) for word in zip(*each, strict=True)] for each in parts])


def answer(model: Engine, questions: OneOrMore, contexts: OneOrMore, *, truncate: bool = False) -> Any:
    """Find the answer to a question in its context, which is read in overlapping windows; returns a SpanPrediction."""
    task = _task_for(model, "answer")
    pairs = _questions(questions, contexts)
    examples = [SpanExample(context, question, None, str(n)) for n, (question, context) in enumerate(pairs)]
    decoded, outputs, features = _predict(model, task, examples, questions, truncate)
    best = span.search(outputs, features, examples, task.plan.max_answer_length)
    no_answer = decoded.probabilities or [None] * len(examples)
    found = [
        SpanPrediction(text, one.start if text else 0, one.start + len(text) if text else 0, one.score, none)
        for text, one, none in zip(decoded.predictions, best, no_answer, strict=True)
    ]
    return as_given(questions, found)


def choose(model: Engine, contexts: Any, questions: OneOrMore, options: Any, *, truncate: bool = False) -> Any:
    """Choose which of K options answers the question on a context, or fills its gap `_`; returns a ChoicePrediction."""
    task = _task_for(model, "choose")
    pairs = _questions(questions, contexts)
    lists = options if isinstance(questions, list) and isinstance(options, list) else [options]
    if len(lists) != len(pairs) or not all(isinstance(some, list) and some for some in lists):
        raise UsageError("options must be a list of one or more str for each question")
    examples = [
        ChoiceExample(context, question, tuple(as_texts(some)), None, str(number), "")
        for number, ((question, context), some) in enumerate(zip(pairs, lists, strict=True))
    ]
    decoded, _, _ = _predict(model, task, examples, questions, truncate)
    found = zip(examples, decoded.predictions, decoded.probabilities or [], strict=True)
    return as_given(questions, [ChoicePrediction(best, one.options[best], scores) for one, best, scores in found])


def _task_for(model: Engine, call: str) -> FineTuned:
    task: FineTuned | str = model.task
    if isinstance(task, str):
        raise UsageError(f"{call} needs a fine-tuned model: {task}")
    if (supported := CALLS[task.model.head.kind]) != call:
        raise UsageError(f"{call} needs a model fine-tuned for it; this one supports {supported}")
    return task


def _questions(questions: object, contexts: object) -> list[tuple[str, str]]:
    """Pairs of question and context. Raises UsageError unless both are texts, or lists of the same length."""
    found = as_texts(questions), as_texts(contexts)
    if isinstance(questions, list) != isinstance(contexts, list) or len(found[0]) != len(found[1]):
        raise UsageError("question and context must both be str, or lists of the same length")
    return list(zip(*found, strict=True))


@torch.no_grad()
def _predict(
    model: Engine, task: FineTuned, examples: Sequence[Any], given: object, truncate: bool
) -> tuple[Decoded, list[Any], EncodedExamples]:
    """Predictions, outputs per feature without padding, and encoded examples; messages quote the texts `given`."""
    kind, report = KINDS[task.model.head.kind], Report()
    features = kind.encode(examples, Encoding(task.text_encoder, task.labels, task.plan, report, "the texts"))
    if report.first_truncated is not None and not truncate:
        too_long = f"{quote(given, int(report.first_truncated))} is too long: the maximum is"
        raise DataError(f"{too_long} {task.plan.max_seq_length} tokens; shorten it or give truncate=True")
    if task.model.config.type_vocab_size < 2 and (np.diff(features.starts) > features.first_lengths).any():
        raise UsageError("the model has one segment; give single texts")
    single = replace(features, num_choices=1)  # the options of one question may be in several batches
    found: dict[int, np.ndarray] = {}
    for chosen in plan_batches(single.feature_lengths.tolist(), model.batch_tokens):
        logits = task.model(*single.collate(chosen).to(model.device)[:3]).cpu().numpy()
        found |= zip(chosen, split_outputs(logits, np.array(chosen), single), strict=True)
    outputs = [found[index] for index in range(len(found))]
    if features.num_choices > 1:
        outputs = split_outputs(np.stack(outputs), features.example_index, features)
    return kind.decode(outputs, features, examples, task.labels, task.plan), outputs, features
