"""Questions with options: one row an option, the passage cut first, groups scored apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.contracts import DataError
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.sequence import fill
from electra_albert.tasks.task import ChoiceExample, Report
from tests.tasks.small_tokenizers import PLAN, encoder, steady, texts

CHOICE = KINDS["choice"]
ROOM = PLAN.max_seq_length - 3


def encode(examples: list[ChoiceExample], report: Report | None = None) -> Rows:
    report = Report() if report is None else report
    return CHOICE.encode(examples, encoder("albert"), (), PLAN, report, is_training=False, where="dev")


def example(
    context: str = "the house", options: tuple[str, ...] = ("a", "b"), label: int | None = 1, group: str = ""
) -> ChoiceExample:
    return ChoiceExample(context, "who _?", options, label, "7.txt", group)


def ids_of(text: str) -> list[int]:
    return encoder("albert").encode([text])[0].tolist()


@steady
@given(texts, st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_each_option_is_a_row_and_question_and_option_are_kept_before_the_passage(
    context: str, questions: list[tuple[str, str]]
) -> None:
    report = Report()
    examples = [ChoiceExample(context, q, (option, "x"), 0, "1", "") for q, option in questions]
    rows = encode(examples, report)
    cut = 0
    for number, one in enumerate(examples):
        found = [rows.ids[rows.starts[r] : rows.starts[r + 1]].tolist() for r in (2 * number, 2 * number + 1)]
        borders = rows.first_lengths[2 * number : 2 * number + 2].tolist()
        assert borders[0] == borders[1]  # all options are judged on the same part of the passage
        for option, row, border in zip(one.options, found, borders, strict=True):
            whole = ids_of(fill(one.question, option))
            assert row[border:-1] == whole[-(ROOM // 2) :]
            assert row[1 : border - 1] == ids_of(context)[: border - 2]
            assert len(row) <= PLAN.max_seq_length
        is_cut = borders[0] - 2 < len(ids_of(context))
        assert not is_cut or max(map(len, found)) == PLAN.max_seq_length
        cut += is_cut
    assert report.counts["passages of dev with their question cut to 32 tokens (--max_seq_length)"] == cut


@pytest.mark.parametrize(
    ("question", "filled"), [("He _ .", r"He a\1 ."), ("He ____ it", r"He a\1 it"), ("Who?", r"Who? a\1")]
)
def test_the_option_fills_the_gap_or_follows_the_question(question: str, filled: str) -> None:
    assert fill(question, r"a\1") == filled


def test_units_are_questions_and_batches_hold_all_their_options() -> None:
    rows = encode([example(), example(options=("c", "d"), label=0)])
    batch = rows.collate([1, 0])
    assert batch.input_ids.shape[0] == 4
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1]
    assert batch.example_id.tolist() == [1, 1, 0, 0]


def test_values_hold_the_choice_the_answer_and_the_group() -> None:
    examples = [example(group="middle"), example(group="high", label=0), example(group="other")]
    outputs = [np.array(logits, dtype=np.float32) for logits in ([0.0, 1.0], [0.0, 1.0], [1.0, 0.0])]
    decoded = CHOICE.decode(outputs, encode(examples), examples, (), PLAN)
    assert decoded.predictions == [1, 1, 0]
    assert decoded.values is not None
    assert decoded.values.tolist() == [[1, 1, 0], [1, 0, 1], [0, 1, -1]]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([example(), example(options=("a", "b", "c"))], "3 options"),
        ([example(label=2)], "answer 2"),
        ([example(options=(), label=None)], "0 options"),
    ],
)
def test_questions_that_do_not_fit_together_are_refused(examples: list[ChoiceExample], message: str) -> None:
    with pytest.raises(DataError, match=rf"dev, 7\.txt: .*{message}"):
        encode(examples)
