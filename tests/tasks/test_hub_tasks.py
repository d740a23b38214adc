"""Hub datasets without network: labels match by class name, splits by the task's names."""

from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import pytest

from electra_albert.tasks import reading
from electra_albert.tasks.task import SequenceExample, TokenExample
from tests.refusals import assert_refused, rows
from tests.tasks.task_files import as_lines, noticed, read, write

HF_ORDER = ["entailment", "neutral", "contradiction"]


TEXT = datasets.Value("string")


def classes(*names: str) -> Any:
    return datasets.ClassLabel(names=list(names))


def made(features: dict[str, Any], **splits: dict[str, list[Any]]) -> datasets.DatasetDict:
    form = datasets.Features(features)
    return datasets.DatasetDict(
        {name: datasets.Dataset.from_dict(rows, form) for name, rows in splits.items()}
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The return values of load_dataset by name:config; exceptions are raised."""
    by_name: dict[str, Any] = {}

    def load_dataset(
        name: str, config: str | None = None, split: str | None = None, streaming: bool = False
    ) -> Any:
        missing = FileNotFoundError(f"Couldn't find {name}\nsecond line")
        dataset = by_name.get(f"{name}:{config}" if config else name, missing)
        if isinstance(dataset, Exception):
            raise dataset
        if streaming:
            return {split: rows.to_iterable_dataset(3) for split, rows in dataset.items()}
        return dataset

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return by_name


def mnli() -> datasets.DatasetDict:
    labels = {"label": [0, 1, 2]}
    rows = {"premise": [*"abc"], "hypothesis": [*"def"], "idx": [5, 6, 7]} | labels
    unlabelled = {**rows, "label": [-1] * 3}
    features = {"premise": TEXT, "hypothesis": TEXT, "idx": datasets.Value("int32")}
    return made(
        {**features, "label": classes(*HF_ORDER)},
        train=rows,
        validation_matched=rows,
        validation_mismatched={**rows, "label": [0, 1, -1]},
        test_matched=unlabelled,
        test_mismatched=unlabelled,
    )


def test_hub_labels_are_matched_by_name_and_not_by_id(hub: dict[str, Any]) -> None:
    hub["nyu-mll/glue:mnli"] = mnli()
    data = read("mnli", data_dir="nyu-mll/glue", needs_test=True)
    assert data.labels == ("contradiction", "entailment", "neutral")
    assert [example.label for example in data.train] == HF_ORDER
    assert data.train[0] == SequenceExample("a", "d", "entailment", "5")
    sizes = {name: len(examples) for name, examples in data.evaluation.items()}
    assert sizes == {"matched": 3, "mismatched": 2}
    assert noticed(data.report, "NOT SCORED: no label") == 1
    assert [*data.test] == ["MNLI-m", "MNLI-mm"]
    assert {example.label for example in chain(*data.test.values())} == {None}
    streamed = read("mnli", data_dir="nyu-mll/glue", streaming=True, needs_test=True)
    assert streamed[:3] == data[:3]


@pytest.mark.parametrize("names", [("unacceptable", "acceptable"), ("acceptable", "unacceptable")])
def test_hub_class_names_become_ids_of_glue(hub: dict[str, Any], names: tuple[str, str]) -> None:
    content = {"sentence": ["a", "b"], "label": [0, 1]}
    features = {"sentence": TEXT, "label": classes(*names)}
    hub["nyu-mll/glue:cola"] = made(features, train=content, validation=content)
    labels = [example.label for example in read("cola", data_dir="nyu-mll/glue").train]
    assert labels == [str(int(name == "acceptable")) for name in names]


def test_label_ids_without_names_are_refused_if_their_order_differs(hub: dict[str, Any]) -> None:
    hub["some/mnli"] = mnli().cast_column("label", datasets.Value("int64"))
    assert_refused("DataError", "label '0'", read, "mnli", data_dir="some/mnli")


def test_tags_are_matched_by_name_and_a_config_can_be_chosen(hub: dict[str, Any]) -> None:
    rows = {"tokens": [["a", "b"]], "ner_tags": [[1, 0]]}
    features = {"tokens": datasets.List(TEXT), "ner_tags": datasets.List(classes("O", "B-x"))}
    hub["some/ner:small"] = made(features, train=rows, dev=rows)
    data = read("ner", data_dir="some/ner:small")
    assert data.train == data.evaluation["dev"] == [TokenExample(("a", "b"), ("B-x", "O"), "0")]


def test_a_dataset_without_training_data_can_be_evaluated(hub: dict[str, Any]) -> None:
    hub["some/mnli"] = mnli()
    del hub["some/mnli"]["train"]
    data = read("mnli", data_dir="some/mnli", is_trained=False)
    assert (data.train, [*data.evaluation]) == ([], ["matched", "mismatched"])
    assert_refused("UsageError", "some/mnli", read, "mnli", data_dir="some/mnli")


# Regression: quotes in a .tsv joined lines, and 007 became 7.
STREAMS = r"""
train.jsonl | DataError  | {"text": "a", "label": "x"};{"text":;
train.tsv   | UsageError | text~label;"he said~x;plain~y;three"~x;
"""


@pytest.mark.parametrize(("name", "error", "content"), rows(STREAMS))
def test_streams_of_damaged_or_guessed_rows_are_refused(
    tmp_path: Path, name: str, error: str, content: str
) -> None:
    write(tmp_path / name, as_lines(content))
    options = {"streaming": True, "validation_split": 0.5}
    assert_refused(error, str(tmp_path), read, "custom", data_dir=tmp_path, **options)


def test_a_sample_of_a_stream_is_all_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, count in (("train", 300), ("validation", 30)):
        lines = [f'{{"text": "{number}", "label": "{number % 2}"}}\n' for number in range(count)]
        write(tmp_path / "files" / f"{split}.jsonl", "".join(lines))
    options = {"streaming": True, "max_train_examples": 20, "max_eval_examples": 10}
    data, again = (read("custom", data_dir=tmp_path / "files", **options) for _ in range(2))
    assert (data.train, data.evaluation) == (again.train, again.evaluation)
    for examples, count in ((data.train, 20), (data.evaluation["dev"], 10)):
        numbers = {int(example.text) for example in examples}
        assert len(numbers) == len(examples) == count < max(numbers), "distinct, not the first"
    assert not [*tmp_path.rglob("cache/**/*.arrow")]


def test_streamed_and_downloaded_files_are_those_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '{"sentence1": "a", "sentence2": "b", "sentence": "c", "label": "entailment"}\n'
    for name in ("RTE/train", "RTE/validation", "CoLA/train"):
        write(tmp_path / f"{name}.jsonl", row * 2)
    data = read("rte", data_dir=tmp_path, streaming=True)
    assert (len(data.train), len(data.evaluation["dev"])) == (2, 2)
    monkeypatch.setattr(reading, "fetch", lambda *_: [tmp_path, tmp_path])
    url = "s3://bucket/*.jsonl"
    assert_refused("UsageError", "2 files", read, "rte", train_file=url, validation_file=url)


@pytest.mark.parametrize("word", ["some/sst", "scripts", "'test_matched'"])
def test_unavailable_datasets_are_refused(hub: dict[str, Any], word: str) -> None:
    if word == "scripts":
        hub["some/sst"] = RuntimeError("Dataset scripts are no longer supported\n")
    if word == "'test_matched'":
        hub["some/sst"] = mnli()
    assert_refused("UsageError", word, read, "sst2", data_dir="some/sst")
