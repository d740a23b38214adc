"""The real files are read completely; skipped without them."""

import os
from pathlib import Path

import pytest

from electra_albert.tasks.encoding import EncodePlan, Encoding
from electra_albert.tasks.kinds import KINDS
from electra_albert.tasks.registry import TASKS
from electra_albert.tasks.task import Report
from tests.tasks.small_tokenizers import encoder
from tests.tasks.task_files import read
from tests.tasks.test_span import peaked

DATA = Path(
    os.environ.get("ELECTRA_ALBERT_DATA") or Path(__file__).parents[2] / "../shared/data"
).resolve()
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the real data is not next to the checkout"
)

# Examples of train, of each evaluation set, and of the test set if there is one.
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
TRAIN_FILES = {"mnli": "MNLI/train_subset.tsv"}  # where a folder has several


@pytest.mark.parametrize("name", SIZES)
def test_every_example_is_read_and_none_is_left_out(name: str) -> None:
    train, evaluation, test = SIZES[name]
    folder = DATA / FOLDERS.get(name, "glue")
    options = {"train_file": folder / TRAIN_FILES[name]} if name in TRAIN_FILES else {}
    data = read(name, data_dir=folder, needs_test=test is not None, **options)
    assert len(data.train) == train
    assert [len(examples) for examples in data.evaluation.values()] == evaluation
    assert [len(examples) for examples in data.test.values()] == ([] if test is None else [test])
    assert not [what for what in data.report.counts if "left out" in what or "NOT SCORED" in what]
    if TASKS[name].labels:
        assert {example.label for example in data.train} <= set(data.labels)
    if name == "ner":
        assert len(data.labels) == 13


@pytest.mark.parametrize("name", ["squad", "squad_v2"])
def test_real_answers_are_decoded_from_their_labels(name: str) -> None:
    examples = read(name, data_dir=DATA / "squad").evaluation["dev"][:60]
    plan = EncodePlan(384, 128, 200, has_null_answer=name == "squad_v2")
    features = KINDS["span"].encode(
        examples, Encoding(encoder("albert"), (), plan, Report(), "dev")
    )
    decoded = KINDS["span"].decode(peaked(features), features, examples, (), plan)
    assert decoded.values[:, 0].mean() > 0.99  # a few answers begin or end inside a subword
