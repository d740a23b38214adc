"""Tables whose texts have any number of labels."""

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import electra_albert as ea
from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_tasks import options, results, stories, tune
from tests.refusals import rows

LABELS = {  # and their places; a garden has none, a bridge two
    "busy": ("market", "tower"),
    "wet": ("river", "bridge"),
    "high": ("forest", "bridge"),
}
Options = Callable[..., list[str]]
Example = tuple[str, list[str]]


def examples(count: int, seed: int) -> list[Example]:
    """Texts with the labels of their places."""
    made = []
    for story in stories(count, seed):
        labels = [label for label, places in LABELS.items() if story.place in places]
        made.append((story.text, labels))
    return made


def write_lists(file: Path, found: list[Example]) -> None:
    lines = [json.dumps({"text": text, "label": labels}) for text, labels in found]
    file.write_text("\n".join(lines) + "\n")


def write_commas(file: Path, found: list[Example]) -> None:
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["text", "label"])
        table.writerows((text, ", ".join(labels)) for text, labels in found)


def write_flags(file: Path, found: list[Example]) -> None:
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["text", *LABELS])
        table.writerows((text, *(int(name in labels) for name in LABELS)) for text, labels in found)


FORMS: dict[str, tuple[Callable[[Path, list[Example]], None], str, list[str]]] = {
    "lists": (write_lists, "jsonl", []),
    "commas": (write_commas, "csv", []),
    "flags": (write_flags, "csv", ["--label_column", ",".join(LABELS)]),
}


@pytest.fixture
def multi(finished: Finished, tmp_path: Path) -> Options:
    """Options to train on tables in one of the forms, into a folder of its name."""

    def of_form(form: str, *more: object) -> list[str]:
        write, suffix, words = FORMS[form]
        for seed, (name, count) in enumerate({"train": 160, "dev": 48}.items()):
            write(tmp_path / f"{form}-{name}.{suffix}", examples(count, seed))
        files = [f"--{option}_file" for option in ("train", "validation")]
        words = [*words, files[0], f"{tmp_path}/{form}-train.{suffix}"]
        words += [files[1], f"{tmp_path}/{form}-dev.{suffix}", "--multi_label", "true"]
        return options("custom", None, finished.folder, tmp_path / form, *words, *more)

    return of_form


def test_all_forms_of_a_table_are_the_same_task(multi: Options, tmp_path: Path) -> None:
    found = []
    for form in FORMS:
        tune(*multi(form, "--max_steps", 2))
        outcome = results(tmp_path / form)["metrics"]
        predictions = (tmp_path / form / "predictions.tsv").read_text()
        found.append((outcome, predictions))
    assert found[0] == found[1] == found[2]


def test_labels_are_learned_scored_as_by_scikit_learn_and_predicted_as_by_stock(
    multi: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = tune(*multi("lists", "--num_train_epochs", 40))
    metrics = results(tmp_path / "lists")["metrics"]
    assert metrics["micro_f1"]["mean"] > 0.9
    lines = (tmp_path / "lists" / "predictions.tsv").read_text().splitlines()[1:]
    cells = [line.split("\t") for line in lines]
    known = sorted(LABELS)
    gold, predicted = (
        np.array([[label in row[column].split(",") for label in known] for row in cells])
        for column in (1, 2)
    )
    for average in ("micro", "macro"):
        wanted = f1_score(gold, predicted, average=average)
        assert metrics[f"{average}_f1"]["mean"] == pytest.approx(wanted)
    assert metrics["accuracy"]["mean"] == pytest.approx((gold == predicted).all(1).mean())

    folder = tmp_path / "lists" / "model"
    stock = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert stock.config.problem_type == "multi_label_classification"
    texts = [text for text, _ in examples(48, 1)]
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = stock(**batch).logits.sigmoid()
    for row, of_text, cell in zip(
        ea.load_model(folder).classify(texts), probabilities.tolist(), cells, strict=True
    ):
        assert row.scores == pytest.approx(dict(zip(known, of_text, strict=True)), abs=1e-5)
        assert row.labels == [label for label in known if row.scores[label] > 0.5]
        assert ",".join(row.labels) == cell[2]

    (advice,) = (line for line in trained.out.splitlines() if line.startswith("next: "))
    *_, command, name, folder, option, file = shlex.split(advice)
    monkeypatch.chdir(tmp_path)
    Path(file).write_text("\n".join(texts), encoding="utf-8")
    assert command == "finetune"
    tune(name, folder, option, file)
    labelled = (tmp_path / "lists" / "predicted.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[2] for line in labelled] == [row[2] for row in cells]

    again = multi("lists", "--num_train_epochs", 0)
    again[again.index("--model") + 1] = str(folder)
    again[again.index("--output_dir") + 1] = str(tmp_path / "scored")
    tune(*again)
    assert results(tmp_path / "scored")["metrics"]["micro_f1"] == metrics["micro_f1"]


REFUSED = r"""
jsonl | {"text": "One.", "label": ["a", "b"]} |              | 3 | --multi_label true
jsonl | {"text": "One.", "label": []}         | --multi_label true | 3 | 0 tags or labels
csv   | text,a,b\nOne.,2,0                   | --multi_label true --label_column a,b | 3 | holds '2'
csv   | text,a,b\nOne.,1,0                   | --multi_label true --label_column a,c | 3 | 'c'
jsonl | {"text": "One.", "label": [1, 0, 0]}  | --multi_label true | 3 | without names
jsonl | {"text": "One.", "label": ["a,b"]}    | --multi_label true | 3 | comma
jsonl | {"text": "One.", "label": null}       | --multi_label true | 3 | no label
csv   | text,a,b\nOne.,,1                    | --multi_label true --label_column a,b | 3 | no label
csv   | text,a,b\nOne.,1,0                   | --multi_label true --regression true | 2 | not both
csv   | text,label\nOne.,a                   | --multi_label true --task rte | 2 | one label
"""


@pytest.mark.parametrize(("suffix", "content", "words", "code", "reason"), rows(REFUSED))
def test_what_is_no_set_of_labels_is_refused(
    finished: Finished,
    tmp_path: Path,
    suffix: str,
    content: str,
    words: str,
    code: str,
    reason: str,
) -> None:
    table = tmp_path / f"a.{suffix}"
    table.write_text(content.replace("\\n", "\n") + "\n")
    files = ["--train_file", table, "--validation_file", table, "--model", finished.folder]
    ended = call(finetune.main, *files, "--output_dir", tmp_path / "out", *words.split())
    assert_refused(ended, int(code), reason)


def test_columns_in_any_normal_form_are_labels(finished: Finished, tmp_path: Path) -> None:
    """Regression: the label of a column whose name is not composed was never set."""
    names = [normalize("NFD", name) for name in ("café", "bar")]
    table = tmp_path / "a.csv"
    table.write_text(f"text,{names[0]},{names[1]}\n" + "One.,1,0\nTwo.,0,1\n" * 8)
    words = ("--multi_label", "true", "--label_column", ",".join(names), "--max_steps", 1)
    files = ("--train_file", table, "--validation_file", table, "--model", finished.folder)
    ended = tune(*files, "--output_dir", tmp_path / "out", *words)
    assert "without a training example" not in ended.err
    gold = (tmp_path / "out" / "predictions.tsv").read_text()
    assert gold.count("café") >= 8


def test_named_columns_are_labels_and_must_be_those_of_a_model(
    multi: Options, tmp_path: Path
) -> None:
    words = multi("flags", "--max_steps", 2)
    table = tmp_path / "flags-train.csv"
    table.write_text(table.read_text().replace(",1,0\n", ",0,0\n").replace(",1\n", ",0\n"))
    ended = tune(*words)
    assert "label without a training example: 'high'" in ended.err
    model = tmp_path / "flags" / "model"
    assert ea.load_model(model).classify("One.").scores.keys() == LABELS.keys()
    words = multi("flags", "--num_train_epochs", 0, "--label_column", "busy,wet")
    words[words.index("--model") + 1] = str(model)
    words[words.index("--output_dir") + 1] = str(tmp_path / "scored")
    assert_refused(call(finetune.main, *words), 3, "busy', 'wet'", "'high'")


def test_a_held_out_part_leaves_each_label_an_example(multi: Options, tmp_path: Path) -> None:
    table = tmp_path / "rare.jsonl"
    found = [(f"{text} {number}", ["wet"]) for number, (text, _) in enumerate(examples(40, 1))]
    for text, labels in found[::4]:
        labels.append(f"rare {text[-2:].strip()}")
    write_lists(table, found)
    words = [*multi("lists", "--max_steps", 1), "--validation_split", "0.5"]
    words[words.index("--train_file") + 1] = str(table)
    del words[words.index("--validation_file") : words.index("--validation_file") + 2]
    tune(*words)
    assert not [
        line for line in results(tmp_path / "lists")["noticed"] if "without a train" in line
    ]
