"""Questions answered by a span of a passage: windows, the best span, its score. U windows (units), L length."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.corpus.text_encoder import Ids, Subwords, TextEncoder
from electra_albert.tasks.encoding import (
    Decoded,
    EncodePlan,
    Labels,
    Outputs,
    are_labelled,
    lay_out,
)
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.task import Answer, Report, SpanExample

_LONGEST_QUESTION = 64  # tokens, as in BERT's and ALBERT's code
_NO_SPAN = float(np.finfo(np.float32).max)  # by how much no answer is better where a passage has no tokens
_NULL = (0, 0)  # [CLS] stands for no answer
_NO_CONTEXT = -1
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


class Window(NamedTuple):
    """A range of a passage's tokens, and which of them have more context here than in any other window."""

    start: int
    end: int
    is_max_context: NDArray[np.bool_]


def encode(
    examples: Sequence[SpanExample],
    encoder: TextEncoder,
    labels: tuple[str, ...],
    plan: EncodePlan,
    report: Report,
    *,
    is_training: bool,
    where: str,
) -> Rows:
    """Rows `[CLS] question [SEP] window of the passage [SEP]`, such that each token of a passage is in one or more.

    Labels are the first and last token of the first answer in the row; a window without the whole answer has (0, 0).
    Where every question has an answer, such windows are left out of training. An evaluation set keeps every question,
    whatever becomes of its answer.
    """
    is_labelled = are_labelled(examples, "answers", where)
    room = plan.max_seq_length - 3
    longest = min(_LONGEST_QUESTION, room // 2)
    questions = encoder.encode([example.question for example in examples])
    texts = sorted({example.context for example in examples})  # several questions share one
    passages = dict(zip(texts, map(_without_blanks, encoder.encode_with_offsets(texts)), strict=True))
    rows: list[tuple[Ids, Ids | None]] = []
    sources: list[int] = []
    gold: list[tuple[int, int]] = []
    info: list[NDArray[np.int32]] = [np.zeros((0, 3), dtype=np.int32)]  # char_starts, char_ends, is_max_context
    for number, (example, whole) in enumerate(zip(examples, questions, strict=True)):
        question, passage = whole[:longest], passages[example.context]
        if len(whole) > longest:
            report.note_cut(f"questions of {where} cut to {longest} tokens", example.identity)
        answer = _locate(example, passage, plan, report, where) if example.answers else None
        windows = slide(len(passage.ids), room - len(question), plan)
        holds = [answer is not None and w.start <= answer[0] and answer[1] < w.end for w in windows]
        if answer is not None and not any(holds):
            report.note(f"answers of {where} cut off by every window", example.identity)
        needs_answer = is_training and not (plan.has_null_answer and (answer is not None or not example.answers))
        if needs_answer and not all(holds):
            report.note(f"windows of {where} without the answer left out", example.identity, holds.count(False))
        outside = np.tile(np.array([_NO_CONTEXT, _NO_CONTEXT, 0], dtype=np.int32), (len(question) + 2, 1))
        for window, is_here in zip(windows, holds, strict=True):
            if needs_answer and not is_here:
                continue
            inside, shift = slice(window.start, window.end), len(outside) - window.start
            rows.append((question, passage.ids[inside]))
            sources.append(number)
            gold.append((answer[0] + shift, answer[1] + shift) if answer is not None and is_here else _NULL)
            tokens = np.stack([passage.starts[inside], passage.ends[inside], window.is_max_context], axis=1)
            info += (outside, tokens.astype(np.int32), outside[:1])
    columns = np.concatenate(info).T
    return Rows(
        *lay_out(encoder, rows),
        np.array(sources, dtype=np.int64),
        np.array(gold, dtype=np.int64).reshape(-1, 2) if is_labelled else None,
        encoder.pad_id,
        token_info=dict(zip(("char_starts", "char_ends", "is_max_context"), columns, strict=True)),
    )


def _without_blanks(passage: Subwords) -> Subwords:
    """No offsets for tokens without a character, such as a space's sign: no answer begins or ends there."""
    is_blank, none = passage.starts >= passage.ends, np.int32(_NO_CONTEXT)
    return Subwords(passage.ids, np.where(is_blank, none, passage.starts), np.where(is_blank, none, passage.ends))


def slide(token_count: int, room: int, plan: EncodePlan) -> list[Window]:
    """Windows of `room` tokens, doc_stride apart or nearer: answers are whole where they have most context."""
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
    ends = [min(start + room, token_count) for start in starts]
    return [Window(start, end, owner[start:end] == n) for n, (start, end) in enumerate(zip(starts, ends, strict=True))]


def _locate(
    example: SpanExample, passage: Subwords, plan: EncodePlan, report: Report, where: str
) -> tuple[int, int] | None:
    """First and last token of the first answer, widened to whole tokens; None where no token covers it."""
    answer: Answer = (example.answers or ())[0]
    begin, end = answer.start, answer.start + len(answer.text)
    touched = np.flatnonzero((passage.starts < end) & (passage.ends > begin))
    if begin < 0 or example.context[begin:end] != answer.text or not len(touched):
        report.note(f"answers of {where} not found in their passage", example.identity)
        return None
    first, last = int(touched[0]), int(touched[-1])
    text = example.context[passage.starts[first] : passage.ends[last]]
    if answer.text.strip() not in text:
        report.note(f"answers of {where} that no tokens cover whole", example.identity)
    elif answer.text.strip() != text:
        report.note(f"answers of {where} widened to whole tokens", example.identity)
    if last - first >= plan.max_answer_length:
        long = f"answers of {where} longer than {plan.max_answer_length} tokens, which none predicted is"
        report.note(long, example.identity)
    return first, last


def best_span(
    start_logits: NDArray[np.floating],
    end_logits: NDArray[np.floating],
    may_start: NDArray[np.bool_],
    may_end: NDArray[np.bool_],
    max_answer_length: int,
) -> Span | None:
    """The span of highest start + end logit, of at most max_answer_length tokens; the first of equals. All [L]."""
    starts = np.where(may_start, start_logits.astype(np.float64), -np.inf)
    padded = np.concatenate([np.full(max_answer_length - 1, -np.inf), starts])
    reachable = np.lib.stride_tricks.sliding_window_view(padded, max_answer_length)  # [L, max_answer_length]
    begin = np.arange(len(starts)) - (max_answer_length - 1) + reachable.argmax(axis=1)  # [L]
    total = np.where(may_end, reachable.max(axis=1) + end_logits.astype(np.float64), -np.inf)
    end = int(total.argmax())
    return None if total[end] == -np.inf else Span(float(total[end]), int(begin[end]), end)


class Span(NamedTuple):
    """The best answer of a window."""

    score: float
    start: int  # tokens of the row, the last one included
    end: int


class Found(NamedTuple):
    """The best answer of an example."""

    text: str
    start: int  # in characters of the passage
    score: float
    null_score: float


def search(outputs: Outputs, rows: Rows, examples: Sequence[SpanExample], limit: int) -> list[Found]:
    """Each example's best answer over all its windows, and its lowest score of no answer."""
    found = [Found("", 0, -np.inf, np.inf)] * len(examples)
    char_starts, char_ends = (rows.token_info[name].astype(np.int64) for name in ("char_starts", "char_ends"))
    is_best = rows.token_info["is_max_context"].astype(np.bool_)
    for number, at, logits in zip(rows.examples.tolist(), rows.slices(), outputs, strict=True):
        is_context = char_starts[at] >= 0
        span = best_span(logits[:, 0], logits[:, 1], is_context & is_best[at], is_context, limit)
        text, start, score, null_score = found[number]
        if span is not None and span.score > score:
            score, start = span.score, int(char_starts[at][span.start])
            text = examples[number].context[start : char_ends[at][span.end]]
        found[number] = Found(text, start, score, min(null_score, float(logits[0].astype(np.float64).sum())))
    return found


def decode(outputs: Outputs, rows: Rows, examples: Sequence[SpanExample], labels: Labels, plan: EncodePlan) -> Decoded:
    """Answers in the passage's own characters; "" where no answer scores higher than every span.

    values: (em, f1, has_answer, null_difference, em_of_span, f1_of_span). probabilities: of there being no answer
    against the best span, where that can be. outputs: [L, 2] start and end logits of each unit.
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
        of_span = (exact_match(one.text, golds), f1(one.text, golds))
        given = of_span if prediction == one.text else (exact_match(prediction, golds), f1(prediction, golds))
        row[:] = (*given, bool(golds), above, *of_span)
    return Decoded(predictions, values, no_answer)


# The comparison of SQuAD's script of version 2.0, for both versions. That of 1.1 differs only for answers of which
# nothing is left once they are normalised, an article or punctuation alone.


def normalize_answer(text: str) -> str:
    """Lower case without ASCII punctuation and articles, words separated by one space."""
    # Punctuation goes before articles do, as in the official script: "a-n" becomes an article.
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _right_answers(golds: Sequence[str]) -> list[str]:
    """The normalised right answers; the empty one where nothing is left of them or there are none."""
    return [gold for gold in map(normalize_answer, golds) if gold] or [""]


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 where the answer equals a right one up to normalisation; no golds: where it is empty."""
    return float(normalize_answer(prediction) in _right_answers(golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Best F1 of the answer's words, as a bag, against a right answer's; an empty one agrees only with an empty one."""
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, gold.split()) for gold in _right_answers(golds))


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    return 2 * sum((Counter(predicted) & Counter(gold)).values()) / (len(predicted) + len(gold))
