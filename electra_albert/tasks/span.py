"""Extractive question answering: windows over the passage and their best span. L length."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.tasks.encoding import (
    Decoded,
    EncodedExamples,
    EncodePlan,
    Encoding,
    Labels,
    Outputs,
    flatten,
)
from electra_albert.tasks.task import SpanExample
from electra_albert.tokenization.text_encoder import Subwords

_MAX_QUESTION_LENGTH = 64  # tokens, as in BERT's and ALBERT's code
_NO_SPAN = float(np.finfo(np.float32).max)  # null score minus best span's without a span
_NO_CONTEXT = -1
_TOKEN_INFO = ("char_starts", "char_ends", "is_max_context")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
TokenSpan = tuple[int, int]  # first and last token of an answer
Mask = NDArray[np.bool_]  # [L]
Window = tuple[range, Mask]  # tokens of the passage, and which have maximum context
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def encode(examples: Sequence[SpanExample], encoding: Encoding) -> EncodedExamples:
    """Features `[CLS] question [SEP] window of the passage [SEP]` that cover all of the passage.

    Labels are the first and last token of the first answer; a window without the whole answer has
    (0, 0), and is dropped in training if no question is unanswerable. With windows of 3 words and
    the answer "Bob" in "Ada met Bob in Rome":

        [CLS] who? [SEP] Ada met Bob [SEP]   (5, 5)
        [CLS] who? [SEP] Bob in Rome [SEP]   (3, 3)
    """
    room = encoding.plan.max_seq_length - 3
    longest = min(_MAX_QUESTION_LENGTH, room // 2)
    questions = encoding.encoder.encode([example.question for example in examples])
    texts = sorted({example.context for example in examples})  # several questions share one
    encoded = map(_without_blanks, encoding.encoder.encode_with_offsets(texts))
    passages = dict(zip(texts, encoded, strict=True))
    sequences = []
    index = []
    gold = []
    info = [np.zeros((0, 3), dtype=np.int32)]
    for number, example in enumerate(examples):
        question = questions[number]
        if len(question) > longest:
            encoding.note("questions", f"truncated to {longest} tokens", example, is_truncated=True)
            question = question[:longest]
        outside = np.full((len(question) + 2, 3), (_NO_CONTEXT, _NO_CONTEXT, 0), dtype=np.int32)
        passage = passages[example.context]
        answer = _find_answer(example, passage, encoding)
        windows = slide(len(passage.ids), room - len(question), encoding.plan)
        for window, is_max_context in _usable(windows, answer, example, encoding):
            inside = slice(window.start, window.stop)
            sequences.append((question, passage.ids[inside]))
            index.append(number)
            label = (0, 0)  # [CLS]: no answer
            if answer is not None and _is_whole(answer, window):
                shift = len(outside) - window.start
                label = (answer[0] + shift, answer[1] + shift)
            gold.append(label)
            tokens = [passage.starts[inside], passage.ends[inside], is_max_context]
            info += (outside, np.stack(tokens, axis=1, dtype=np.int32), outside[:1])
    labels = None
    if encoding.gold(examples, "answers") is not None:
        labels = np.array(gold, dtype=np.int64).reshape(-1, 2)
    token_info = dict(zip(_TOKEN_INFO, np.concatenate(info).T, strict=True))
    return flatten(encoding.encoder, sequences, index, labels, token_info=token_info)


def _without_blanks(passage: Subwords) -> Subwords:
    """Remove the offsets of tokens without a character, such as a bare `▁`.

    No answer begins or ends there.
    """
    has_text = passage.starts < passage.ends
    starts, ends = np.where(has_text, passage[1:], np.int32(_NO_CONTEXT))
    return Subwords(passage.ids, starts, ends)


def slide(token_count: int, room: int, plan: EncodePlan) -> list[Window]:
    """Windows of `room` tokens, each with a mask of the tokens with their maximum context in it.

    Of 7 tokens in windows of 5 with stride 2, the later one has more context for the last three:

        0 1 2 3 4
            2 3 4 5 6
        ^ ^ ^ ^         maximum context in the first
                ^ ^ ^   and in the second
    """
    # They overlap enough that the window with the maximum context of an answer's first token holds
    # the whole answer.
    overlap = min(2 * plan.max_answer_length, room // 2)
    stride = min(plan.doc_stride, room - overlap)
    starts = range(0, max(1, token_count - room + stride), stride)
    windows = [range(start, min(start + room, token_count)) for start in starts]
    best = np.full(token_count, -1)
    owner = np.zeros(token_count, dtype=np.int64)
    for number, window in enumerate(windows):
        inside = slice(window.start, window.stop)
        before = np.arange(len(window))
        # Differs from BERT's code: no bonus for a longer window, which moved answers away from the
        # shorter last one.
        context = np.minimum(before, before[::-1])
        is_more = context > best[inside]  # ties: the first window
        best[inside][is_more] = context[is_more]
        owner[inside][is_more] = number
    return [
        (window, owner[window.start : window.stop] == number)
        for number, window in enumerate(windows)
    ]


def _find_answer(example: SpanExample, passage: Subwords, encoding: Encoding) -> TokenSpan | None:
    """First and last token of the first answer, widened to whole tokens; None if none covers it."""
    if not example.answers:
        return None
    text, begin = example.answers[0]
    end = begin + len(text)
    touched = np.flatnonzero((passage.starts < end) & (passage.ends > begin))
    is_there = begin >= 0 and example.context.startswith(text, begin)
    if not is_there or not len(touched):
        encoding.note("answers", "not found in their passage", example)
        return None
    first = int(touched[0])
    last = int(touched[-1])
    covered = example.context[passage.starts[first] : passage.ends[last]]
    text = text.strip()
    if text not in covered:
        encoding.note("answers", "only partly covered by tokens", example)
    elif text != covered:
        encoding.note("answers", "widened to whole tokens", example)
    longest = encoding.plan.max_answer_length
    if last - first >= longest:
        encoding.note("answers", f"longer than {longest} tokens (--max_answer_length)", example)
    return first, last


def _usable(
    windows: list[Window], answer: TokenSpan | None, example: SpanExample, encoding: Encoding
) -> list[Window]:
    """The windows to train or evaluate on: in training, those that have a label."""
    whole = []
    if answer is not None:
        whole = [window for window in windows if _is_whole(answer, window[0])]
        if not whole:
            encoding.note("answers", "not whole in any window", example)
    may_be_null = encoding.plan.has_null_answer and (answer or not example.answers)
    dropped = len(windows) - len(whole)
    if not encoding.is_training or may_be_null or dropped == 0:
        return windows
    encoding.note("windows", "without the answer dropped", example, dropped)
    return whole


def _is_whole(answer: TokenSpan, window: range) -> bool:
    """Whether a window holds the first and the last token of an answer."""
    return answer[0] in window and answer[1] in window


def best_span(
    logits: NDArray[np.floating], may_start: Mask, may_end: Mask, limit: int
) -> tuple[float, int, int]:
    """Score (-inf if none is allowed), first and last token of the best span. logits [L, 2]."""
    starts, ends = logits.astype(np.float64).T
    starts = np.where(may_start, starts, -np.inf)
    before = np.full(limit - 1, -np.inf)
    padded = np.concatenate([before, starts])
    # Row i has the start scores of token i and the limit - 1 tokens before it.
    reachable = np.lib.stride_tricks.sliding_window_view(padded, limit)  # [L, limit]
    best_with_end = reachable.max(axis=1) + ends
    total = np.where(may_end, best_with_end, -np.inf)
    end = int(total.argmax())
    column = int(reachable[end].argmax())
    start = end - limit + 1 + column
    return float(total[end]), start, end


class BestSpan(NamedTuple):
    """The best span of an example over all its windows."""

    text: str
    start: int  # in characters of the passage
    score: float
    null_score: float  # the lowest


def search(
    outputs: Outputs, features: EncodedExamples, examples: Sequence[SpanExample], limit: int
) -> list[BestSpan]:
    """The best span of each example, of at most `limit` tokens. outputs: [L, 2] logits."""
    unseen = BestSpan("", 0, -np.inf, np.inf)
    spans = [unseen] * len(examples)
    numbers = features.example_index.tolist()
    for number, at, logits in zip(numbers, features.slices(), outputs, strict=True):
        starts, ends, is_best = (features.token_info[name][at] for name in _TOKEN_INFO)
        is_context = starts >= 0
        may_start = is_context & (is_best > 0)
        score, first, last = best_span(logits, may_start, is_context, limit)
        best = spans[number]
        if score > best.score:
            start = int(starts[first])
            text = examples[number].context[start : int(ends[last])]
            best = BestSpan(text, start, score, best.null_score)
        null_score = float(logits[0].astype(np.float64).sum())
        if null_score < best.null_score:
            best = best._replace(null_score=null_score)
        spans[number] = best
    return spans


def decode(
    outputs: Outputs,
    features: EncodedExamples,
    examples: Sequence[SpanExample],
    labels: Labels,
    plan: EncodePlan,
) -> Decoded:
    """Answer texts, "" for no answer, and probabilities of no answer. outputs: [L, 2] logits.

    values: (em, f1, has_answer, null_difference, em_of_span, f1_of_span).
    """
    spans = search(outputs, features, examples, plan.max_answer_length)
    difference = np.zeros(len(examples))
    no_answer = None
    if plan.has_null_answer:
        difference[:] = [min(span.null_score - span.score, _NO_SPAN) for span in spans]
        probabilities = 0.5 + 0.5 * np.tanh(difference / 2)  # of no answer
        no_answer = probabilities.tolist()
    predictions = []
    values = np.zeros((len(examples), 6))
    for row, example, span, above in zip(values, examples, spans, difference, strict=True):
        prediction = span.text
        if above > 0:
            prediction = ""
        predictions.append(prediction)
        golds = [answer.text for answer in example.answers or ()]
        row[:2] = answer_scores(prediction, golds)
        row[2:4] = (bool(golds), above)
        row[4:] = answer_scores(span.text, golds)
    if features.labels is None:
        return Decoded(predictions, None, no_answer)
    return Decoded(predictions, values, no_answer)


def answer_scores(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Exact match (1.0 or 0.0) and best bag-of-words F1 of the normalized words.

    If no gold answer has a word, the empty answer is correct; otherwise golds without words are
    ignored. As in SQuAD's script 2.0, for both versions; that of 1.1 differs only for answers
    normalized to nothing.
    """
    words = normalized_words(prediction)
    golds_with_words = [gold for gold in map(normalized_words, golds) if gold] or [[]]
    f1 = max(_word_f1(words, gold) for gold in golds_with_words)
    return float(words in golds_with_words), f1


def normalized_words(text: str) -> list[str]:
    """Words in lowercase without ASCII punctuation, then without articles ("a-n" is one)."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return _ARTICLE.sub(" ", text).split()


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted and not gold:
        return 1.0
    shared = Counter(predicted) & Counter(gold)
    return 2 * shared.total() / (len(predicted) + len(gold))
