"""Questions with several options on a passage: one row an option. Dimensions: U questions, K options."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra_albert.contracts import DataError
from electra_albert.tasks.encoding import Decoded, EncodePlan, Ids, TextEncoder, are_labelled, lay_out, softmax
from electra_albert.tasks.examples import ChoiceExample, Report
from electra_albert.tasks.rows import Rows

_GAP = re.compile(r"_+")
_LONGEST_QUESTION = 128  # tokens of question and option, as in the code published for RACE
GROUPS = {"middle": 0, "high": 1}
OTHER_GROUP = -1


def encode(
    examples: Sequence[ChoiceExample],
    encoder: TextEncoder,
    labels: tuple[str, ...],
    plan: EncodePlan,
    report: Report,
    *,
    is_training: bool,
    where: str,
) -> Rows:
    """Rows `[CLS] passage [SEP] question and option [SEP]`, as many to a unit as there are options.

    The passage is cut first. Question and option get at most half of a row; of longer ones the end is kept, where the
    option stands. DataError where questions differ in their number of options, or a label names none of them.
    """
    option_count = _option_count(examples, where)
    contexts = sorted({example.context for example in examples})  # several questions share one
    context_ids = dict(zip(contexts, encoder.encode(contexts), strict=True))
    filled = [fill(example.question, option) for example in examples for option in example.options]
    questions = encoder.encode(filled)
    room = plan.max_seq_length - 3
    longest = min(_LONGEST_QUESTION, room // 2)
    rows: list[tuple[Ids, Ids | None]] = []
    for number, example in enumerate(examples):
        context = context_ids[example.context]
        whole = questions[number * option_count : (number + 1) * option_count]
        kept = [question[-longest:] for question in whole]
        room_left = room - max(len(question) for question in kept)
        rows += [(context[:room_left], question) for question in kept]
        if len(context) > room_left:
            report.note_cut(f"passages of {where} with their question {plan.cut}", example.identity)
        if any(len(question) > longest for question in whole):
            report.note_cut(f"questions of {where} with an option cut to {longest} tokens", example.identity)
    layout, order = lay_out(encoder, rows), np.arange(len(examples))
    return Rows(*layout, order, _labels(examples, option_count, where), encoder.pad_id, rows_per_unit=option_count)


def fill(question: str, option: str) -> str:
    """The question with the option in its gap `_`, or behind it where there is no gap."""
    return _GAP.sub(lambda _: option, question) if "_" in question else f"{question} {option}"


def _option_count(examples: Sequence[ChoiceExample], where: str) -> int:
    """How many options all questions have; 1 where there are no questions."""
    count = len(examples[0].options) if examples else 1
    for example in examples:
        if len(example.options) != count or count == 0:
            raise DataError(
                f"{where}, {example.identity}: a question with {len(example.options)} options where the first has "
                f"{count}; all questions of a file need the same number, at least one"
            )
    return count


def _labels(examples: Sequence[ChoiceExample], option_count: int, where: str) -> NDArray[np.int64] | None:
    if not are_labelled([e.label for e in examples], [e.identity for e in examples], where):
        return None
    for example in examples:
        if example.label not in range(option_count):
            raise DataError(
                f"{where}, {example.identity}: the answer {example.label} is none of {option_count} options"
            )
    return np.array([example.label for example in examples], dtype=np.int64)


def decode(
    outputs: list[NDArray[np.float32]],
    rows: Rows,
    examples: Sequence[ChoiceExample],
    labels: tuple[str, ...],
    plan: EncodePlan,
) -> Decoded:
    """The number of the chosen option; values (predicted, gold, group). outputs: [K] a logit an option of each unit."""
    logits = np.stack(outputs) if outputs else np.zeros((0, rows.rows_per_unit), dtype=np.float32)  # [U, K]
    chosen = logits.argmax(axis=1)
    values = None
    if rows.labels is not None:
        groups = np.array([GROUPS.get(example.group, OTHER_GROUP) for example in examples], dtype=np.float64)
        values = np.stack([chosen.astype(np.float64), rows.labels.astype(np.float64), groups], axis=1)
    return Decoded(chosen.tolist(), values, softmax(logits).tolist())
