"""One text or two with a class or a number: what the rows hold, what is counted, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra_albert.contracts import DataError
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.rows import Rows
from electra_albert.tasks.task import Report, SequenceExample
from tests.tasks.small_tokenizers import PLAN, encoder, steady, texts, tokenizer

LABELS = ("no", "yes")
SEQUENCE = KINDS["sequence"]


def encode(
    examples: list[SequenceExample], report: Report | None = None, is_training: bool = False, **plan: bool
) -> Rows:
    report = Report() if report is None else report
    chosen = PLAN._replace(**plan)  # type: ignore[arg-type]
    return SEQUENCE.encode(examples, encoder("albert"), LABELS, chosen, report, is_training=is_training, where="dev")


def row(rows: Rows, number: int) -> list[int]:
    return rows.ids[rows.starts[number] : rows.starts[number + 1]].tolist()


def ids_of(text: str) -> list[int]:
    return encoder("albert").encode([text])[0].tolist()


@steady
@given(st.lists(st.tuples(texts, st.none() | texts), max_size=4))
def test_rows_hold_both_texts_from_their_beginning_and_fit(pairs: list[tuple[str, str | None]]) -> None:
    report = Report()
    rows = encode([SequenceExample(a, b, "yes", str(n)) for n, (a, b) in enumerate(pairs)], report)
    cls, sep = tokenizer("albert").cls_token_id, tokenizer("albert").sep_token_id
    cut = 0
    for number, (first, second) in enumerate(pairs):
        found, border = row(rows, number), int(rows.first_lengths[number])
        a, b = found[1 : border - 1], found[border:-1]
        assert (found[0], found[border - 1], found[-1]) == (cls, sep, sep)
        assert a == ids_of(first)[: len(a)]
        assert b == ([] if second is None else ids_of(second)[: len(b)])
        assert len(found) <= PLAN.max_seq_length
        shorter = len(a) < len(ids_of(first)) or len(b) < len(ids_of(second or ""))
        assert not shorter or len(found) == PLAN.max_seq_length
        assert second is not None or border == len(found)
        cut += shorter
    assert report.counts["examples of dev cut to 32 tokens (--max_seq_length)"] == cut


def test_training_pairs_come_exchanged_as_well_where_told() -> None:
    examples = [SequenceExample("old", "house", "yes", "1"), SequenceExample("x", None, "no", "2")]
    report = Report()
    rows = encode(examples, report, is_training=True, double_unordered=True)
    assert rows.examples.tolist() == [0, 1, 0]
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0, 1]
    assert row(rows, 2) == row(encode([SequenceExample("house", "old", None, "1")]), 0)
    assert report.counts["pairs of dev taken a second time with their texts exchanged"] == 1
    assert encode(examples, is_training=False, double_unordered=True).unit_count == 2
    assert encode(examples, is_training=True).unit_count == 2
    long = [SequenceExample("the house " * 30, "x", "yes", "1")]
    encode(long, report, is_training=True, double_unordered=True)
    assert report.counts["examples of dev cut to 32 tokens (--max_seq_length)"] == 1  # as an example, not as two rows


def test_logits_give_classes_their_probabilities_and_the_gold_beside() -> None:
    examples = [SequenceExample("a", None, label, "1") for label in ("yes", "no", "yes")]
    rows = encode(examples)
    outputs = [np.array(logits, dtype=np.float32) for logits in ([0.0, 2.0], [0.0, 1.0], [3.0, 0.0])]
    decoded = SEQUENCE.decode(outputs, rows, examples, LABELS, PLAN)
    assert decoded.predictions == ["yes", "yes", "no"]
    assert decoded.values is not None
    assert decoded.values.tolist() == [[1, 1], [1, 0], [0, 1]]
    assert decoded.probabilities is not None
    assert decoded.probabilities[0][1] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-12)


def test_a_regression_predicts_numbers_and_keeps_the_exact_gold() -> None:
    examples = [SequenceExample("a", "b", score, "1") for score in (3.2, 0.0)]
    rows = encode(examples, is_regression=True)
    assert rows.labels is not None
    assert rows.labels.dtype == np.float32
    outputs = [np.array([5.5], dtype=np.float32), np.array([-1.0], dtype=np.float32)]
    decoded = SEQUENCE.decode(outputs, rows, examples, (), PLAN._replace(is_regression=True))
    assert decoded.predictions == [5.5, -1.0]
    assert decoded.values is not None
    assert decoded.values.tolist() == [[5.5, 3.2], [-1.0, 0.0]]


def test_examples_without_labels_are_predicted_but_have_no_values() -> None:
    examples = [SequenceExample("a", None, None, "1")]
    rows = encode(examples)
    decoded = SEQUENCE.decode([np.array([1.0, 0.0], dtype=np.float32)], rows, examples, LABELS, PLAN)
    assert (rows.labels, decoded.values, decoded.predictions) == (None, None, ["no"])


@pytest.mark.parametrize("labels", [("maybe",), ("yes", None)], ids=["of no class", "on some only"])
def test_labels_that_do_not_fit_are_refused_with_their_example(labels: tuple[str | None, ...]) -> None:
    with pytest.raises(DataError, match=r"file\.tsv:"):
        encode([SequenceExample("a", None, label, f"file.tsv:{n}") for n, label in enumerate(labels)])


def test_no_examples_give_no_rows_and_no_predictions() -> None:
    rows = encode([])
    assert rows.unit_lengths().tolist() == SEQUENCE.decode([], rows, [], LABELS, PLAN).predictions == []
