"""Hub datasets without network: labels are matched by class name, splits by the names of the task."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.tasks.registry import TASKS
from electra_albert.tasks.task import SequenceExample, TokenExample
from tests.tasks.task_files import noticed, read, write

HF_ORDER = ["entailment", "neutral", "contradiction"]


def classes(*names: str) -> Any:
    return datasets.ClassLabel(names=list(names))


def made(features: dict[str, Any], **splits: dict[str, list[Any]]) -> datasets.DatasetDict:
    form = datasets.Features(features)
    return datasets.DatasetDict({name: datasets.Dataset.from_dict(rows, form) for name, rows in splits.items()})


@pytest.fixture
def on_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[tuple[str, str | None], Any]:
    """The return values of load_dataset by name and config, filled by the tests; exceptions are raised."""
    held: dict[tuple[str, str | None], Any] = {}

    def load_dataset(name: str, config: str | None = None, split: str | None = None, streaming: bool = False) -> Any:
        found = held.get((name, config), FileNotFoundError(f"Couldn't find {name}\nsecond line"))
        if isinstance(found, Exception):
            raise found
        return {name: rows.to_iterable_dataset(3) for name, rows in found.items()} if streaming else found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return held


def mnli() -> datasets.DatasetDict:
    text = datasets.Value("string")
    rows = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, 1, 2], "idx": [5, 6, 7]}
    unlabelled = {**rows, "label": [-1, -1, -1]}
    features = {"premise": text, "hypothesis": text, "label": classes(*HF_ORDER), "idx": datasets.Value("int32")}
    splits = {"train": rows, "validation_matched": rows, "validation_mismatched": {**rows, "label": [0, 1, -1]}}
    return made(features, **splits, test_matched=unlabelled, test_mismatched=unlabelled)


def test_hub_labels_are_matched_by_name_and_not_by_id(on_hub: dict[Any, Any]) -> None:
    on_hub["nyu-mll/glue", "mnli"] = mnli()
    data = read("mnli", data_dir="nyu-mll/glue", needs_test=True)
    assert data.labels == ("contradiction", "entailment", "neutral")
    assert [one.label for one in data.train] == HF_ORDER
    assert data.train[0] == SequenceExample("a", "d", "entailment", "5")
    assert {name: len(examples) for name, examples in data.evaluation.items()} == {"matched": 3, "mismatched": 2}
    assert noticed(data.report, "NOT SCORED: no label") == 1
    tests = {name: [one.label for one in some] for name, some in data.test.items()}
    assert tests == dict.fromkeys(("MNLI-m", "MNLI-mm"), [None] * 3)


@pytest.mark.parametrize(
    ("names", "wanted"), [(("unacceptable", "acceptable"), ["0", "1"]), (("acceptable", "unacceptable"), ["1", "0"])]
)
def test_hub_class_names_become_ids_of_glue(on_hub: dict[Any, Any], names: tuple[str, str], wanted: list[str]) -> None:
    rows = {"sentence": ["a", "b"], "label": [0, 1]}
    features = {"sentence": datasets.Value("string"), "label": classes(*names)}
    on_hub["nyu-mll/glue", "cola"] = made(features, train=rows, validation=rows)
    assert [one.label for one in read("cola", data_dir="nyu-mll/glue").train] == wanted


def test_label_ids_without_names_are_refused_if_their_order_differs(on_hub: dict[Any, Any]) -> None:
    on_hub["some/mnli", None] = mnli().cast_column("label", datasets.Value("int64"))
    with pytest.raises(DataError, match="label '0' is not one of 'contradiction', 'entailment', 'neutral'"):
        read("mnli", data_dir="some/mnli")


def test_tags_are_matched_by_name_and_a_config_can_be_chosen(on_hub: dict[Any, Any]) -> None:
    rows = {"tokens": [["a", "b"]], "ner_tags": [[1, 0]]}
    features = {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(classes("O", "B-x"))}
    on_hub["some/ner", "small"] = made(features, train=rows, dev=rows)
    data = read("ner", data_dir="some/ner:small")
    assert data.train == data.evaluation["dev"] == [TokenExample(("a", "b"), ("B-x", "O"), "0")]


def test_a_dataset_without_training_data_can_be_evaluated(on_hub: dict[Any, Any]) -> None:
    whole = mnli()
    on_hub["some/mnli", None] = datasets.DatasetDict({name: split for name, split in whole.items() if name != "train"})
    data = read(TASKS["mnli"], data_dir="some/mnli", is_trained=False)
    assert (data.train, list(data.evaluation)) == ([], ["matched", "mismatched"])
    with pytest.raises(UsageError, match=r"no training data in some/mnli.*found 'validation_matched'"):
        read("mnli", data_dir="some/mnli")


def test_a_local_file_replaces_one_set_of_a_dataset(on_hub: dict[Any, Any], tmp_path: Path) -> None:
    on_hub["nyu-mll/glue", "mnli"] = mnli()
    mine = write(tmp_path / "mine.tsv", "premise\thypothesis\tlabel\nmine\tx\tneutral\n")
    data = read("mnli", data_dir="nyu-mll/glue", validation_file=mine)
    texts = {name: [one.text for one in some] for name, some in data.evaluation.items()}
    assert texts == {"matched": ["mine"], "mismatched": ["a", "b"]}


def test_squad_is_read_in_the_format_of_the_hub(on_hub: dict[Any, Any]) -> None:
    text = datasets.Value("string")
    answers = {"text": datasets.List(text), "answer_start": datasets.List(datasets.Value("int32"))}
    features = {**dict.fromkeys(("id", "context", "question"), text), "answers": answers}
    found = [{"text": ["c"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    rows = {"id": ["x", "y"], "context": ["c d", "c d"], "question": ["q", "r"], "answers": found}
    on_hub["rajpurkar/squad_v2", None] = made(features, train=rows, validation=rows)
    assert [one.answers for one in read("squad_v2", data_dir="rajpurkar/squad_v2").train] == [(("c", 0),), ()]


def test_a_stream_has_the_examples_of_the_whole_set(on_hub: dict[Any, Any]) -> None:
    on_hub["nyu-mll/glue", "mnli"] = mnli()
    whole, streamed = (read("mnli", data_dir="nyu-mll/glue", streaming=is_streamed) for is_streamed in (False, True))
    assert streamed[:3] == whole[:3]


def test_streams_of_damaged_or_guessed_rows_are_refused_in_one_line(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", '{"text": "a", "label": "x"}\n{"text": \n')
    with pytest.raises(DataError, match=r"train: cannot be read \(.*JSON.*\); check the data and the network"):
        read("custom", data_dir=tmp_path, streaming=True, validation_split=0.5)
    # Regression: quotes in a .tsv joined lines, and 007 became 7.
    (tmp_path / "train.jsonl").unlink()
    write(tmp_path / "train.tsv", 'text\tlabel\n"he said\tx\nplain\ty\nthree"\tx\n')
    with pytest.raises(UsageError, match="infers types and quotes"):
        read("custom", data_dir=tmp_path, streaming=True, validation_split=0.5)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_sample_of_a_stream_is_all_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, count in (("train", 300), ("validation", 30)):
        rows = datasets.Dataset.from_list([{"text": f"{split} {i}", "label": "ab"[i % 2]} for i in range(count)])
        save = getattr(rows, f"to_{suffix.removesuffix('l')}")
        save(tmp_path / "files" / f"{split}.{suffix}")
    sampled = {"streaming": True, "max_train_examples": 20, "max_eval_examples": 10}
    data, again = (read("custom", data_dir=tmp_path / "files", **sampled) for _ in range(2))
    assert (data.train, data.evaluation) == (again.train, again.evaluation)
    for split, examples, count in (("train", data.train, 20), ("validation", data.evaluation["dev"], 10)):
        numbers = {int(one.text.removeprefix(f"{split} ")) for one in examples}
        assert len(numbers) == len(examples) == count < max(numbers), "distinct, and not the first ones"
    assert not [*tmp_path.rglob("cache/**/*.arrow")]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (None, "Couldn't find some/sst"),
        (RuntimeError("Dataset scripts are no longer supported"), "scripts are no longer"),
        (["train", "test"], "no evaluation data in some/sst.*found 'train', 'test'"),
    ],
)
def test_unavailable_datasets_are_refused_in_one_line(on_hub: dict[Any, Any], held: Any, message: str) -> None:
    if isinstance(held, list):
        features = dict.fromkeys(("sentence", "label"), datasets.Value("string"))
        held = made(features, **{split: {"sentence": ["a"], "label": ["1"]} for split in held})
    if held is not None:
        on_hub["some/sst", None] = held
    with pytest.raises(UsageError, match=message) as refused:
        read("sst2", data_dir="some/sst")
    assert "\n" not in str(refused.value)
