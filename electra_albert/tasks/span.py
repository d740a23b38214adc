"""Extractive question answering: windows over the passage, the best span and its score. F features, L length."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.corpus.text_encoder import Subwords
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, Labels, Outputs, Pair, flatten
from electra_albert.tasks.task import Answer, SpanExample

_MAX_QUESTION_LENGTH = 64  # tokens, as in BERT's and ALBERT's code
_NO_SPAN = float(np.finfo(np.float32).max)  # null score minus best span's for a passage without tokens
_NULL = (0, 0)  # label of no answer: [CLS]
_NO_CONTEXT = -1
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def encode(examples: Sequence[SpanExample], encoding: Encoding) -> EncodedExamples:
    """Features `[CLS] question [SEP] window of the passage [SEP]`; windows cover every token of the passage.

    Labels are the first and last token of the first answer; a window without the whole answer has (0, 0). If the task
    has no unanswerable questions, such windows are dropped in training. Evaluation sets keep all windows.
    """
    encoder, plan, answers = encoding.encoder, encoding.plan, encoding.gold(examples, "answers")
    room = plan.max_seq_length - 3
    longest = min(_MAX_QUESTION_LENGTH, room // 2)
    questions = encoder.encode([example.question for example in examples])
    texts = sorted({example.context for example in examples})  # several questions share one
    passages = dict(zip(texts, map(_without_blanks, encoder.encode_with_offsets(texts)), strict=True))
    sequences: list[Pair] = []
    index: list[int] = []
    gold: list[tuple[int, int]] = []
    info: list[NDArray[np.int32]] = [np.zeros((0, 3), dtype=np.int32)]  # char_starts, char_ends, is_max_context
    for number, (example, whole) in enumerate(zip(examples, questions, strict=True)):
        question, passage = whole[:longest], passages[example.context]
        if len(whole) > longest:
            encoding.note("questions", f"truncated to {longest} tokens", example, is_truncated=True)
        answer = _find_answer(example, example.answers[0], passage, encoding) if example.answers else None
        windows = slide(len(passage.ids), room - len(question), plan)
        holds = [answer is not None and answer[0] in window and answer[1] in window for window, _ in windows]
        if answer is not None and not any(holds):
            encoding.note("answers", "not whole in any window", example)
        needs_answer = encoding.is_training and not (plan.has_null_answer and (answer or not example.answers))
        if needs_answer and not all(holds):
            encoding.note("windows", "without the answer dropped", example, holds.count(False))
        outside = np.tile(np.array([_NO_CONTEXT, _NO_CONTEXT, 0], dtype=np.int32), (len(question) + 2, 1))
        for (window, is_max_context), is_here in zip(windows, holds, strict=True):
            if needs_answer and not is_here:
                continue
            inside, shift = slice(window.start, window.stop), len(outside) - window.start
            sequences.append((question, passage.ids[inside]))
            index.append(number)
            gold.append((answer[0] + shift, answer[1] + shift) if answer and is_here else _NULL)
            tokens = np.stack([passage.starts[inside], passage.ends[inside], is_max_context], axis=1)
            info += (outside, tokens.astype(np.int32), outside[:1])
    labels = None if answers is None else np.array(gold, dtype=np.int64).reshape(-1, 2)
    token_info = dict(zip(("char_starts", "char_ends", "is_max_context"), np.concatenate(info).T, strict=True))
    return flatten(encoder, sequences, index, labels, token_info=token_info)


def _without_blanks(passage: Subwords) -> Subwords:
    """Remove the offsets of tokens without a character, such as a bare `▁`: no answer begins or ends there."""
    starts, ends = np.where(passage.starts < passage.ends, passage[1:], np.int32(_NO_CONTEXT))
    return Subwords(passage.ids, starts, ends)


def slide(token_count: int, room: int, plan: EncodePlan) -> list[tuple[range, NDArray[np.bool_]]]:
    """Windows of `room` tokens, each with a mask of the tokens that have their maximum context in it."""
    # They overlap enough that the window with the maximum context of an answer's first token holds the whole answer.
    stride = min(plan.doc_stride, room - min(2 * plan.max_answer_length, room // 2))
    starts = range(0, max(1, token_count - room + stride), stride)
    best = np.full(token_count, -1)
    owner = np.zeros(token_count, dtype=np.int64)
    for number, start in enumerate(starts):
        position = np.arange(start, min(start + room, token_count))
        # Differs from BERT's code: no bonus for a longer window, which moved answers away from the shorter last one.
        score = np.minimum(position - start, position[::-1] - start)
        owner[position[score > best[position]]] = number  # ties: the first window
        best[position] = np.maximum(best[position], score)
    windows = [range(start, min(start + room, token_count)) for start in starts]
    return [(window, owner[window.start : window.stop] == number) for number, window in enumerate(windows)]


def _find_answer(example: SpanExample, answer: Answer, passage: Subwords, encoding: Encoding) -> tuple[int, int] | None:
    """First and last token of the answer, widened to whole tokens; None if no token covers it."""
    begin, end = answer.start, answer.start + len(answer.text)
    touched = np.flatnonzero((passage.starts < end) & (passage.ends > begin))
    if begin < 0 or example.context[begin:end] != answer.text or not len(touched):
        encoding.note("answers", "not found in their passage", example)
        return None
    first, last = int(touched[0]), int(touched[-1])
    text = example.context[passage.starts[first] : passage.ends[last]]
    if answer.text.strip() not in text:
        encoding.note("answers", "only partly covered by tokens", example)
    elif answer.text.strip() != text:
        encoding.note("answers", "widened to whole tokens", example)
    if last - first >= (longest := encoding.plan.max_answer_length):
        encoding.note("answers", f"longer than {longest} tokens (--max_answer_length)", example)
    return first, last


def best_span(
    logits: NDArray[np.floating], may_start: NDArray[np.bool_], may_end: NDArray[np.bool_], max_answer_length: int
) -> tuple[float, int, int]:
    """Score, first and last token of the best span (-inf if none is allowed). logits [L, 2]; may_start, may_end [L]."""
    starts, ends = logits.astype(np.float64).T
    padded = np.concatenate([np.full(max_answer_length - 1, -np.inf), np.where(may_start, starts, -np.inf)])
    reachable = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length)  # [L, max_answer_length]
    begin = np.arange(len(starts)) - (max_answer_length - 1) + reachable.argmax(axis=1)  # [L]
    total = np.where(may_end, reachable.max(axis=1) + ends, -np.inf)
    end = int(total.argmax())
    return float(total[end]), int(begin[end]), end


class Found(NamedTuple):
    """The best span of an example over all its windows."""

    text: str
    start: int  # in characters of the passage
    score: float
    null_score: float


def search(outputs: Outputs, features: EncodedExamples, examples: Sequence[SpanExample], limit: int) -> list[Found]:
    """Each example's best span over all its windows, and its lowest null score. outputs: [L, 2] logits."""
    found = [Found("", 0, -np.inf, np.inf)] * len(examples)
    char_starts, char_ends = (features.token_info[name].astype(np.int64) for name in ("char_starts", "char_ends"))
    is_best = features.token_info["is_max_context"].astype(np.bool_)
    for number, at, logits in zip(features.example_index.tolist(), features.slices(), outputs, strict=True):
        is_context, best = char_starts[at] >= 0, found[number]
        score, first, last = best_span(logits, is_context & is_best[at], is_context, limit)
        if score > best.score:
            start, end = int(char_starts[at][first]), int(char_ends[at][last])
            best = best._replace(text=examples[number].context[start:end], start=start, score=score)
        null_score = float(logits[0].astype(np.float64).sum())
        found[number] = best._replace(null_score=min(best.null_score, null_score))
    return found


def decode(
    outputs: Outputs, features: EncodedExamples, examples: Sequence[SpanExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """Answer texts, "" for no answer, and probabilities of no answer. outputs: [L, 2] start and end logits.

    values: (em, f1, has_answer, null_difference, em_of_span, f1_of_span).
    """
    found = search(outputs, features, examples, plan.max_answer_length)
    difference = np.zeros(len(examples))
    if plan.has_null_answer:
        difference[:] = [min(one.null_score - one.score, _NO_SPAN) for one in found]
    predictions = ["" if above > 0 else one.text for one, above in zip(found, difference, strict=True)]
    no_answer = (0.5 + 0.5 * np.tanh(difference / 2)).tolist() if plan.has_null_answer else None
    if features.labels is None:
        return Decoded(predictions, None, no_answer)
    values = np.zeros((len(examples), 6))
    for row, example, prediction, one, above in zip(values, examples, predictions, found, difference, strict=True):
        golds = [answer.text for answer in example.answers or ()]
        row[:] = (*answer_scores(prediction, golds), bool(golds), above, *answer_scores(one.text, golds))
    return Decoded(predictions, values, no_answer)


def answer_scores(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Exact match (1.0 or 0.0) and best bag-of-words F1 of the normalized words.

    If no gold answer has a word, the empty answer is correct; otherwise golds without words are ignored. As in SQuAD's
    script 2.0, for both versions; that of 1.1 differs only for answers normalized to nothing.
    """
    words = normalized_words(prediction)
    golds_with_words = [gold for gold in map(normalized_words, golds) if gold] or [[]]
    return float(words in golds_with_words), max(_word_f1(words, gold) for gold in golds_with_words)


def normalized_words(text: str) -> list[str]:
    """Lowercase, remove ASCII punctuation, then articles ("a-n" becomes one, as in the script), and split."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if predicted or gold else 1.0
