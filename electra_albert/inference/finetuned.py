"""Fine-tuned models: the path from examples to predictions, and the calls on it. K options.

examples   a long passage and a short one
features   windows 1 and 2 of the first, and the second           FineTuned.encode
batches    of features, in any order, padded to the longest one
outputs    an array [tokens, ...] for each of the 3 features      outputs_by_feature
decoded    a prediction for each of the 2 examples                FineTuned.decode
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra_albert.config.finetuning import TuningConfig
from electra_albert.contracts import Batch, CheckpointError, DataError, UsageError
from electra_albert.hub.load import Stored, build, read_task
from electra_albert.inference.engine import (
    Engine,
    OneOrMore,
    as_given,
    as_texts,
    plan_batches,
    quote,
)
from electra_albert.model.task_model import TaskModel
from electra_albert.tasks import span, token
from electra_albert.tasks.encoding import (
    Decoded,
    EncodedExamples,
    EncodePlan,
    Encoding,
    Outputs,
    split_outputs,
    trained_plan,
)
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.task import (
    ChoiceExample,
    Examples,
    Report,
    SequenceExample,
    SpanExample,
    TokenExample,
)
from electra_albert.tokenization.text_encoder import TextEncoder

# By the kind of the head.
CALLS = {"sequence": "classify", "token": "tag", "span": "answer", "choice": "choose"}


class ClassPrediction(NamedTuple):
    """Class of a text or a pair; a regression has the label "score", as in transformers."""

    label: str
    score: float  # probability of the label; for a regression the predicted number
    scores: dict[str, float]  # of all labels, in the order of the model's outputs


class MultiLabelPrediction(NamedTuple):
    """Labels of a text or a pair with a probability above .5, in the order of the model's."""

    labels: list[str]
    scores: dict[str, float]  # probabilities of all labels


class TagPrediction(NamedTuple):
    """Predicted tag of a word: `label` and its probability `score`, at the word's first token."""

    word: str
    label: str
    score: float


class SpanPrediction(NamedTuple):
    """Answer to a question: `text` is context[start:end], or "" with 0 and 0 for no answer."""

    text: str
    start: int
    end: int
    # Start logit + end logit of the best span, even for no answer; -inf without a valid span.
    score: float
    no_answer: float | None  # its probability; None for a model that always answers


class ChoicePrediction(NamedTuple):
    """Predicted option of a question: its index `number` from 0, its text, and K probabilities."""

    number: int
    option: str
    scores: list[float]


class FineTuned(NamedTuple):
    """A fine-tuned model in eval mode with its tokenizer, labels and encoding options."""

    model: TaskModel
    text_encoder: TextEncoder
    labels: tuple[str, ...]
    plan: EncodePlan
    takes_pairs: bool | None = None  # None if the folder does not record it

    def encode(self, examples: Examples, report: Report, set_name: str) -> EncodedExamples:
        """Encode examples without labels; what is truncated goes into the report."""
        encoding = Encoding(self.text_encoder, self.labels, self.plan, report, set_name)
        return KINDS[self.model.head.kind].encode(examples, encoding)

    def decode(self, outputs: Outputs, features: EncodedExamples, examples: Examples) -> Decoded:
        """The prediction for each example from the outputs of its features."""
        decode = KINDS[self.model.head.kind].decode
        return decode(outputs, features, examples, self.labels, self.plan)


def load_fine_tuned(stored: Stored, tokenizer: Any) -> FineTuned | str:
    """Build the fine-tuned model; returns the reason as a str if its files hold none."""
    try:
        details, head = read_task(stored.files)
        model = build(stored, TaskModel, head)
    except CheckpointError as error:
        return str(error)
    longest = model.config.max_position_embeddings
    plan = EncodePlan(longest, TuningConfig.doc_stride, TuningConfig.max_answer_length)
    plan = trained_plan(plan, details)
    plan = plan._replace(max_seq_length=min(plan.max_seq_length, longest))
    takes_pairs = None
    if "columns" in details:
        takes_pairs = bool(details["columns"]["pair"])
    return FineTuned(model, TextEncoder(tokenizer), tuple(details["labels"]), plan, takes_pairs)


def outputs_by_feature(
    features: EncodedExamples, batches: Iterable[Batch], compute: Callable[[Batch], Tensor]
) -> dict[int, NDArray[np.float32]]:
    """Outputs without padding by the index of the feature; compute: those of a batch [B, ...]."""
    outputs: dict[int, NDArray[np.float32]] = {}
    for batch in batches:
        indices = batch.example_id[:: features.num_choices].numpy()
        padded = compute(batch).float().cpu().numpy()
        by_feature = split_outputs(padded, indices, features)
        outputs |= zip(indices.tolist(), by_feature, strict=True)
    return outputs


def classify(model: Engine, texts: object, *, truncate: bool = False) -> Any:
    """Classify a text or a pair, or predict its number; returns a ClassPrediction.

    For a multi-label task a MultiLabelPrediction.
    """
    task = _task_for(model, "classify")
    examples: list[SequenceExample] = []
    for text in as_texts(texts, may_be_pairs=True):
        is_pair = isinstance(text, tuple)
        first, second = text if is_pair else (text, None)
        if task.takes_pairs not in (None, is_pair):
            texts_type = "pairs of texts" if task.takes_pairs else "single texts"
            raise UsageError(f"the model was fine-tuned on {texts_type}; give it those")
        examples.append(SequenceExample(first, second, None, str(len(examples))))
    decoded, _, _ = _predict(model, examples, texts, truncate)
    results: list[Any] = []
    if decoded.probabilities is None:
        for number in decoded.predictions:
            results.append(ClassPrediction("score", number, {"score": number}))
    else:
        for label, scores in zip(decoded.predictions, decoded.probabilities, strict=True):
            by_label = dict(zip(task.labels, scores, strict=True))
            result: Any = ClassPrediction(label, max(scores), by_label)
            if task.plan.is_multi_label:
                result = MultiLabelPrediction(label, by_label)
            results.append(result)
    return as_given(texts, results)


def tag(model: Engine, texts: OneOrMore, *, truncate: bool = False) -> Any:
    """Tag the words of a text, split at white space; returns a list of TagPrediction.

    A long text is read in windows.
    """
    _task_for(model, "tag")
    examples = [
        TokenExample(tuple(text.split()), None, str(number))
        for number, text in enumerate(as_texts(texts))
    ]
    decoded, outputs, features = _predict(model, examples, texts, truncate)
    logits = token.word_logits(outputs, features, examples)
    results = []
    for example, tags, of_words in zip(examples, decoded.predictions, logits, strict=True):
        probabilities = torch.from_numpy(of_words).double().softmax(1)  # [words, C]
        scores = probabilities.amax(1).tolist()
        results.append(list(map(TagPrediction, example.words, tags, scores)))
    return as_given(texts, results)


def answer(
    model: Engine, questions: OneOrMore, contexts: OneOrMore, *, truncate: bool = False
) -> Any:
    """Find the answer to a question in its context; returns a SpanPrediction.

    A long context is read in overlapping windows.
    """
    task = _task_for(model, "answer")
    examples = [
        SpanExample(context, question, None, str(number))
        for number, (question, context) in enumerate(_pairs(questions, contexts))
    ]
    decoded, outputs, features = _predict(model, examples, questions, truncate)
    best_spans = span.search(outputs, features, examples, task.plan.max_answer_length)
    no_answer = decoded.probabilities or [None] * len(examples)
    results = []
    for text, best, probability in zip(decoded.predictions, best_spans, no_answer, strict=True):
        start = best.start if text else 0
        results.append(SpanPrediction(text, start, start + len(text), best.score, probability))
    return as_given(questions, results)


def choose(
    model: Engine, contexts: Any, questions: OneOrMore, options: Any, *, truncate: bool = False
) -> Any:
    """Choose which of K options answers the question on a context, or fills its gap `_`.

    Returns a ChoicePrediction.
    """
    _task_for(model, "choose")
    pairs = _pairs(questions, contexts)
    if not (isinstance(questions, list) and isinstance(options, list)):
        options = [options]
    is_complete = all(isinstance(texts, list) and texts for texts in options)
    if len(options) != len(pairs) or not is_complete:
        raise UsageError("options must be a list of one or more str for each question")
    examples: list[ChoiceExample] = []
    for (question, context), texts in zip(pairs, options, strict=True):
        choices = tuple(as_texts(texts))
        number = str(len(examples))
        examples.append(ChoiceExample(context, question, choices, None, number, ""))
    decoded, _, _ = _predict(model, examples, questions, truncate)
    results = []
    for example, best, scores in zip(
        examples, decoded.predictions, decoded.probabilities or [], strict=True
    ):
        results.append(ChoicePrediction(best, example.options[best], scores))
    return as_given(questions, results)


def _task_for(model: Engine, call: str) -> FineTuned:
    task: FineTuned | str = model.task
    if isinstance(task, str):
        raise UsageError(f"{call} needs a fine-tuned model: {task}")
    supported = CALLS[task.model.head.kind]
    if supported != call:
        raise UsageError(f"{call} needs a model fine-tuned for it; this one supports {supported}")
    return task


def _pairs(questions: object, contexts: object) -> list[tuple[str, str]]:
    """Pairs of question and context. UsageError unless both are texts, or lists of one length."""
    first = as_texts(questions)
    second = as_texts(contexts)
    are_alike = isinstance(questions, list) == isinstance(contexts, list)
    if not are_alike or len(first) != len(second):
        raise UsageError("question and context must both be str, or lists of the same length")
    return list(zip(first, second, strict=True))


@torch.no_grad()
def _predict(
    model: Engine, examples: Examples, texts: object, truncate: bool
) -> tuple[Decoded, list[Any], EncodedExamples]:
    """Predictions, outputs per feature without padding, and encoded examples.

    Messages quote the user's `texts`.
    """
    task: FineTuned = model.task
    report = Report()
    features = task.encode(examples, report, "the texts")
    if report.first_truncated is not None and not truncate:
        text = quote(texts, int(report.first_truncated))
        raise DataError(
            f"{text} is too long: the maximum is {task.plan.max_seq_length} tokens; "
            "shorten it or give truncate=True"
        )
    has_second = np.diff(features.starts) > features.first_lengths
    if task.model.config.type_vocab_size < 2 and has_second.any():
        raise UsageError("the model has one segment; give single texts")
    # The options of one question may be in several batches.
    single = replace(features, num_choices=1)
    batches = plan_batches(single.feature_lengths.tolist(), model.batch_tokens)
    logits = outputs_by_feature(
        single,
        map(single.collate, batches),
        lambda batch: task.model(*batch.to(model.device)[:3]),
    )
    outputs = [logits[index] for index in sorted(logits)]
    if features.num_choices > 1:
        outputs = split_outputs(np.stack(outputs), features.example_index, features)
    return task.decode(outputs, features, examples), outputs, features
