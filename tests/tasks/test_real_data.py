"""The real files are read whole; without them these tests are skipped."""

import os
from pathlib import Path

import pytest

from electra_albert.tasks.registry import TASKS
from tests.tasks.task_files import read

DATA = Path(os.environ.get("ELECTRA_ALBERT_DATA") or Path(__file__).parents[2] / "../shared/data").resolve()
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data is not beside the checkout")

# Rows of train, of each evaluation set, and of the test set where there is one.
SIZES = {
    "cola": (8551, [1043], 1063),
    "stsb": (5749, [1500], 1379),
    "mnli": (8999, [9815], None),
    "ax": (0, [], 1104),
    "squad_v2": (4719, [7357], None),
    "race": (1616, [519], 431),
    "ner": (3394, [1009], 1287),
}
FOLDERS = {"squad_v2": "squad", "race": "race", "ner": "ner"}


@pytest.mark.parametrize("name", SIZES)
def test_every_row_is_read_and_none_is_left_out(name: str) -> None:
    train, evaluation, test = SIZES[name]
    data = read(name, data_dir=DATA / FOLDERS.get(name, "glue"), needs_test=test is not None)
    assert len(data.train) == train
    assert [len(examples) for examples in data.evaluation.values()] == evaluation
    assert [len(examples) for examples in data.test.values()] == ([] if test is None else [test])
    assert not [what for what in data.report.counts if "left out" in what or "NOT SCORED" in what]
    if TASKS[name].labels:
        assert {example.label for example in data.train} <= set(data.labels)
    if name == "ner":
        assert len(data.labels) == 13
