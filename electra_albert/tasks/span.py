"""Questions answered by a span of a passage: windows, the best span, its score. U windows (units), L length."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.corpus.text_encoder import Subwords
from electra_albert.tasks.encoding import Decoded, EncodedExamples, EncodePlan, Encoding, Labels, Outputs, Pair, lay_out
from electra_albert.tasks.task import Answer, SpanExample

_LONGEST_QUESTION = 64  # tokens, as in BERT's and ALBERT's code
_NO_SPAN = float(np.finfo(np.float32).max)  # by how much no answer is better where a passage has no tokens
_NULL = (0, 0)  # at [CLS]: no answer
_NO_CONTEXT = -1
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def encode(examples: Sequence[SpanExample], encoding: Encoding) -> EncodedExamples:
    """Rows `[CLS] question [SEP] window of the passage [SEP]`; every token of a passage is in at least one.

    Labels are the first and last token of the first answer in the row; a window without the whole answer has (0, 0).
    Where every question has an answer, such windows are left out of training. Evaluation sets keep every question.
    """
    encoder, plan, answers = encoding.encoder, encoding.plan, encoding.gold(examples, "answers")
    room = plan.max_seq_length - 3
    longest = min(_LONGEST_QUESTION, room // 2)
    questions = encoder.encode([example.question for example in examples])
    texts = sorted({example.context for example in examples})  # several questions share one
    passages = dict(zip(texts, map(_without_blanks, encoder.encode_with_offsets(texts)), strict=True))
    rows: list[Pair] = []
    sources: list[int] = []
    gold: list[tuple[int, int]] = []
    info: list[NDArray[np.int32]] = [np.zeros((0, 3), dtype=np.int32)]  # char_starts, char_ends, is_max_context
    for number, (example, whole) in enumerate(zip(examples, questions, strict=True)):
        question, passage = whole[:longest], passages[example.context]
        if len(whole) > longest:
            encoding.note("questions", f"cut to {longest} tokens", example, is_cut=True)
        answer = _locate(example, example.answers[0], passage, encoding) if example.answers else None
        windows = slide(len(passage.ids), room - len(question), plan)
        holds = [answer is not None and answer[0] in window and answer[1] in window for window, _ in windows]
        if answer is not None and not any(holds):
            encoding.note("answers", "cut off by every window", example)
        needs_answer = encoding.is_training and not (plan.has_null_answer and (answer or not example.answers))
        if needs_answer and not all(holds):
            encoding.note("windows", "without the answer left out", example, holds.count(False))
        outside = np.tile(np.array([_NO_CONTEXT, _NO_CONTEXT, 0], dtype=np.int32), (len(question) + 2, 1))
        for (window, is_max_context), is_here in zip(windows, holds, strict=True):
            if needs_answer and not is_here:
                continue
            inside, shift = slice(window.start, window.stop), len(outside) - window.start
            rows.append((question, passage.ids[inside]))
            sources.append(number)
            gold.append((answer[0] + shift, answer[1] + shift) if answer and is_here else _NULL)
            tokens = np.stack([passage.starts[inside], passage.ends[inside], is_max_context], axis=1)
            info += (outside, tokens.astype(np.int32), outside[:1])
    labels = None if answers is None else np.array(gold, dtype=np.int64).reshape(-1, 2)
    token_info = dict(zip(("char_starts", "char_ends", "is_max_context"), np.concatenate(info).T, strict=True))
    return lay_out(encoder, rows, sources, labels, token_info=token_info)


def _without_blanks(passage: Subwords) -> Subwords:
    """No offsets for tokens without a character, such as a space's sign: no answer begins or ends there."""
    starts, ends = np.where(passage.starts < passage.ends, passage[1:], np.int32(_NO_CONTEXT))
    return Subwords(passage.ids, starts, ends)


def slide(token_count: int, room: int, plan: EncodePlan) -> list[tuple[range, NDArray[np.bool_]]]:
    """Windows of `room` tokens, and which tokens have most context there: an answer that begins at one is whole."""
    stride = min(plan.doc_stride, room - min(2 * plan.max_answer_length, room // 2))
    starts = range(0, max(1, token_count - room + stride), stride)
    best = np.full(token_count, -1)
    owner = np.zeros(token_count, dtype=np.int64)
    for number, start in enumerate(starts):
        position = np.arange(start, min(start + room, token_count))
        # Differs from BERT's code: no bonus for a long window, which took answers from the shorter last one.
        score = np.minimum(position - start, position[::-1] - start)
        owner[position[score > best[position]]] = number  # the first of equals
        best[position] = np.maximum(best[position], score)
    windows = [range(start, min(start + room, token_count)) for start in starts]
    return [(window, owner[window.start : window.stop] == number) for number, window in enumerate(windows)]


def _locate(example: SpanExample, answer: Answer, passage: Subwords, encoding: Encoding) -> tuple[int, int] | None:
    """First and last token of the answer, widened to whole tokens; None where no token covers it."""
    begin, end = answer.start, answer.start + len(answer.text)
    touched = np.flatnonzero((passage.starts < end) & (passage.ends > begin))
    if begin < 0 or example.context[begin:end] != answer.text or not len(touched):
        encoding.note("answers", "not found in their passage", example)
        return None
    first, last = int(touched[0]), int(touched[-1])
    text = example.context[passage.starts[first] : passage.ends[last]]
    if answer.text.strip() not in text:
        encoding.note("answers", "that no tokens cover whole", example)
    elif answer.text.strip() != text:
        encoding.note("answers", "widened to whole tokens", example)
    if last - first >= (longest := encoding.plan.max_answer_length):
        encoding.note("answers", f"longer than {longest} tokens, which none predicted is", example)
    return first, last


def best_span(
    logits: NDArray[np.floating], may_start: NDArray[np.bool_], may_end: NDArray[np.bool_], max_answer_length: int
) -> tuple[float, int, int]:
    """Score, first and last token of the first best span; -inf without any. logits [L, 2]; may_start, may_end [L]."""
    starts, ends = logits.astype(np.float64).T
    padded = np.concatenate([np.full(max_answer_length - 1, -np.inf), np.where(may_start, starts, -np.inf)])
    reachable = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length)  # [L, max_answer_length]
    begin = np.arange(len(starts)) - (max_answer_length - 1) + reachable.argmax(axis=1)  # [L]
    total = np.where(may_end, reachable.max(axis=1) + ends, -np.inf)
    end = int(total.argmax())
    return float(total[end]), int(begin[end]), end


class Found(NamedTuple):
    """The best answer of an example."""

    text: str
    start: int  # in characters of the passage
    score: float
    null_score: float


def search(outputs: Outputs, rows: EncodedExamples, examples: Sequence[SpanExample], limit: int) -> list[Found]:
    """Each example's best answer over all its windows, and its lowest score of no answer."""
    found = [Found("", 0, -np.inf, np.inf)] * len(examples)
    char_starts, char_ends = (rows.token_info[name].astype(np.int64) for name in ("char_starts", "char_ends"))
    is_best = rows.token_info["is_max_context"].astype(np.bool_)
    for number, at, logits in zip(rows.examples.tolist(), rows.slices(), outputs, strict=True):
        is_context, best = char_starts[at] >= 0, found[number]
        score, first, last = best_span(logits, is_context & is_best[at], is_context, limit)
        if score > best.score:
            start, end = int(char_starts[at][first]), int(char_ends[at][last])
            best = best._replace(text=examples[number].context[start:end], start=start, score=score)
        null_score = float(logits[0].astype(np.float64).sum())
        found[number] = best._replace(null_score=min(best.null_score, null_score))
    return found


def decode(
    outputs: Outputs, rows: EncodedExamples, examples: Sequence[SpanExample], labels: Labels, plan: EncodePlan
) -> Decoded:
    """Answers as in the passage, "" for none; probabilities of none. outputs: [L, 2] start and end logits of each unit.

    values: (em, f1, has_answer, null_difference, em_of_span, f1_of_span).
    """
    found = search(outputs, rows, examples, plan.max_answer_length)
    difference = np.zeros(len(examples))
    if plan.has_null_answer:
        difference[:] = [min(one.null_score - one.score, _NO_SPAN) for one in found]
    predictions = ["" if above > 0 else one.text for one, above in zip(found, difference, strict=True)]
    no_answer = (0.5 + 0.5 * np.tanh(difference / 2)).tolist() if plan.has_null_answer else None
    if rows.labels is None:
        return Decoded(predictions, None, no_answer)
    values = np.zeros((len(examples), 6))
    for row, example, prediction, one, above in zip(values, examples, predictions, found, difference, strict=True):
        golds = [answer.text for answer in example.answers or ()]
        row[:] = (*answer_scores(prediction, golds), bool(golds), above, *answer_scores(one.text, golds))
    return Decoded(predictions, values, no_answer)


# The comparison of SQuAD's script 2.0, for both versions; that of 1.1 differs only for answers normalised to nothing.


def answer_scores(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Exact match (1.0 or 0.0) of the normalised words, and best F1 of the words, as a bag.

    Without golds, or where nothing is left of them, the empty answer is right; else a gold without words is ignored.
    """
    words = normalized_words(prediction)
    right = [gold for gold in map(normalized_words, golds) if gold] or [[]]
    return float(words in right), max(_word_f1(words, gold) for gold in right)


def normalized_words(text: str) -> list[str]:
    """The words in lower case without ASCII punctuation, then without articles ("a-n" is one, as in the script)."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if predicted or gold else 1.0
