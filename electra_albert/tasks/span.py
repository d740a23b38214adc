"""Questions answered by a stretch of a passage: rows over sliding windows, and the best stretch out of their logits.

Dimensions: U windows (units), L length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.tasks.encoding import (
    Decoded,
    EncodePlan,
    Ids,
    Pieces,
    TextEncoder,
    are_labelled,
    lay_out,
    row_slices,
)
from electra_albert.tasks.examples import Answer, Report, SpanExample
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.squad_rules import exact_match, f1

_LONGEST_QUESTION = 64  # tokens, as in BERT's and ALBERT's code
_NO_SPAN = float(np.finfo(np.float32).max)  # by how much no answer is better where a passage has no tokens
_NULL = (0, 0)  # [CLS] stands for no answer
_NO_CONTEXT = -1
_OUTSIDE = np.full(_LONGEST_QUESTION + 2, _NO_CONTEXT, dtype=np.int32)  # offsets of [CLS], question and [SEP]
_NOT_BEST = np.zeros(_LONGEST_QUESTION + 2, dtype=np.bool_)


class Window(NamedTuple):
    """A stretch of a passage's tokens, and which of them have more context here than in any other window."""

    start: int
    end: int
    is_max_context: NDArray[np.bool_]


class Span(NamedTuple):
    """The best answer of a window or a passage."""

    score: float
    start: int  # tokens of the row, the last one included
    end: int


class _Set(NamedTuple):
    """Which examples are encoded, and how."""

    plan: EncodePlan
    report: Report
    is_training: bool
    where: str


@dataclass
class _Gathered:
    """The rows so far; the last three in pieces, to be put one behind the other."""

    rows: list[tuple[Ids, Ids | None]] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)
    labels: list[tuple[int, int]] = field(default_factory=list)
    char_starts: list[Ids] = field(default_factory=list)
    char_ends: list[Ids] = field(default_factory=list)
    is_max_context: list[NDArray[np.bool_]] = field(default_factory=list)


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
    chosen = _Set(plan, report, is_training, where)
    is_labelled = are_labelled([e.answers for e in examples], [e.identity for e in examples], where)
    room = plan.max_seq_length - 3
    longest = min(_LONGEST_QUESTION, room // 2)
    questions = encoder.encode([example.question for example in examples])
    texts = sorted({example.context for example in examples})  # several questions share one
    passages = dict(zip(texts, map(_without_blanks, encoder.encode_with_offsets(texts)), strict=True))
    gathered = _Gathered()
    for number, (example, whole) in enumerate(zip(examples, questions, strict=True)):
        question, passage = whole[:longest], passages[example.context]
        if len(whole) > longest:
            report.note_cut(f"questions of {where} cut to {longest} tokens", example.identity)
        answer = _locate(example, passage, chosen) if example.answers else None
        windows = slide(len(passage.ids), room - len(question), plan)
        for window in _usable(windows, example, answer, chosen):
            gathered.examples.append(number)
            _add(gathered, question, passage, window, answer)
    return _rows(gathered, encoder, is_labelled)


def _without_blanks(pieces: Pieces) -> Pieces:
    """No offsets for tokens that stand for no character, such as a space's sign: no answer begins or ends there."""
    is_blank = pieces.starts >= pieces.ends
    none = np.int32(_NO_CONTEXT)
    return Pieces(pieces.ids, np.where(is_blank, none, pieces.starts), np.where(is_blank, none, pieces.ends))


def slide(token_count: int, room: int, plan: EncodePlan) -> list[Window]:
    """Windows of at most `room` tokens over a passage, doc_stride apart, but near enough not to cut answers off.

    Neighbours share twice the longest answer, or half a window where that is less: so the window in which a token has
    most context holds whole any answer that begins with it.
    """
    overlap = min(2 * plan.max_answer_length, room // 2)
    stride = min(plan.doc_stride, room - overlap)
    starts = range(0, max(1, token_count - room + stride), stride)
    best = np.full(token_count, -1)
    owner = np.zeros(token_count, dtype=np.int64)
    for number, start in enumerate(starts):
        place = np.arange(start, min(start + room, token_count))
        # Differs from BERT's code: no bonus for a long window, which took answers from the shorter last one.
        score = np.minimum(place - start, place[::-1] - start)
        owner[place[score > best[place]]] = number  # the first of equals
        best[place] = np.maximum(best[place], score)
    ends = [min(start + room, token_count) for start in starts]
    return [
        Window(start, end, owner[start:end] == at) for at, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _holds(window: Window, answer: tuple[int, int] | None) -> bool:
    return answer is not None and window.start <= answer[0] and answer[1] < window.end


def _usable(windows: list[Window], example: SpanExample, answer: tuple[int, int] | None, chosen: _Set) -> list[Window]:
    """All windows; in training only those that hold the answer, or are right to hold none."""
    kept = [window for window in windows if _holds(window, answer)]
    if answer is not None and not kept:
        chosen.report.note(f"answers of {chosen.where} cut off by every window", example.identity)
    if not chosen.is_training or (chosen.plan.has_null_answer and (answer is not None or not example.answers)):
        return windows
    if len(kept) < len(windows):
        left_out = len(windows) - len(kept)
        chosen.report.note(f"windows of {chosen.where} without the answer left out", example.identity, left_out)
    return kept


def _locate(example: SpanExample, passage: Pieces, chosen: _Set) -> tuple[int, int] | None:
    """First and last token of the first answer, widened to whole tokens; None where no token stands for it."""
    answer: Answer = (example.answers or ())[0]
    begin, end = answer.start, answer.start + len(answer.text)
    touched = np.flatnonzero((passage.starts < end) & (passage.ends > begin))
    if begin < 0 or example.context[begin:end] != answer.text or not len(touched):
        chosen.report.note(f"answers of {chosen.where} not found in their passage", example.identity)
        return None
    first, last = int(touched[0]), int(touched[-1])
    text = example.context[passage.starts[first] : passage.ends[last]]
    if answer.text.strip() not in text:
        chosen.report.note(f"answers of {chosen.where} that no tokens cover whole", example.identity)
    elif answer.text.strip() != text:
        chosen.report.note(f"answers of {chosen.where} widened to whole tokens", example.identity)
    if last - first >= chosen.plan.max_answer_length:
        most = chosen.plan.max_answer_length
        chosen.report.note(
            f"answers of {chosen.where} longer than {most} tokens, which none predicted is", example.identity
        )
    return first, last


def _add(gathered: _Gathered, question: Ids, passage: Pieces, window: Window, answer: tuple[int, int] | None) -> None:
    """Put one window's row, label and offsets behind those gathered."""
    inside = slice(window.start, window.end)
    before = len(question) + 2
    shift = before - window.start
    is_here = answer is not None and _holds(window, answer)
    gathered.rows.append((question, passage.ids[inside]))
    gathered.labels.append((answer[0] + shift, answer[1] + shift) if answer is not None and is_here else _NULL)
    gathered.char_starts += (_OUTSIDE[:before], passage.starts[inside], _OUTSIDE[:1])
    gathered.char_ends += (_OUTSIDE[:before], passage.ends[inside], _OUTSIDE[:1])
    gathered.is_max_context += (_NOT_BEST[:before], window.is_max_context, _NOT_BEST[:1])


def _rows(gathered: _Gathered, encoder: TextEncoder, is_labelled: bool) -> Rows:
    info = {
        "char_starts": np.concatenate([_OUTSIDE[:0], *gathered.char_starts]),
        "char_ends": np.concatenate([_OUTSIDE[:0], *gathered.char_ends]),
        "is_max_context": np.concatenate([_NOT_BEST[:0], *gathered.is_max_context]),
    }
    labels = np.array(gathered.labels, dtype=np.int64).reshape(-1, 2) if is_labelled else None
    examples = np.array(gathered.examples, dtype=np.int64)
    return Rows(*lay_out(encoder, gathered.rows), examples, labels, encoder.pad_id, token_info=info)


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
    behind = reachable.argmax(axis=1)  # [L]
    begin = np.arange(len(starts)) - (max_answer_length - 1) + behind
    total = np.where(may_end, reachable.max(axis=1) + end_logits.astype(np.float64), -np.inf)
    end = int(total.argmax())
    return None if total[end] == -np.inf else Span(float(total[end]), int(begin[end]), end)


class Found(NamedTuple):
    """The best answer of an example."""

    text: str
    start: int  # in characters of the passage
    score: float
    null_score: float


def search(outputs: list[NDArray[np.float32]], rows: Rows, examples: Sequence[SpanExample], limit: int) -> list[Found]:
    """Each example's best answer over all its windows, and its lowest score of no answer."""
    found = [Found("", 0, -np.inf, np.inf)] * len(examples)
    char_starts, char_ends = (rows.token_info[name].astype(np.int64) for name in ("char_starts", "char_ends"))
    is_best = rows.token_info["is_max_context"].astype(np.bool_)
    for number, at, logits in zip(rows.examples.tolist(), row_slices(rows.starts), outputs, strict=True):
        is_context = char_starts[at] >= 0
        span = best_span(logits[:, 0], logits[:, 1], is_context & is_best[at], is_context, limit)
        text, start, score, null_score = found[number]
        if span is not None and span.score > score:
            start, end, score = int(char_starts[at][span.start]), char_ends[at][span.end], span.score
            text = examples[number].context[start:end]
        found[number] = Found(text, start, score, min(null_score, float(logits[0].astype(np.float64).sum())))
    return found


def decode(
    outputs: list[NDArray[np.float32]],
    rows: Rows,
    examples: Sequence[SpanExample],
    labels: tuple[str, ...],
    plan: EncodePlan,
) -> Decoded:
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
