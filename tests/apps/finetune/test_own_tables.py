"""The user's own tables: folders, imbalanced classes, the selection metric, and the validation
split.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune.results import format_results
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_tasks import losses, options, results, stories, tune

Words = Callable[..., list[str]]
SPLIT = ("--validation_split", 0.25)
# The weights hardly change.
HARDLY = ("--max_steps", 2, "--learning_rate", 1e-9, "--logging_steps", 1)


def write(file: Path, labels: Sequence[object], seed: int = 1) -> Path:
    """A table with one story per label."""
    texts = [story.text for story in stories(len(labels), seed)]
    rows = [
        json.dumps({"text": text, "label": label})
        for text, label in zip(texts, labels, strict=True)
    ]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def words(finished: Finished) -> Words:
    """Options to train on a table with a validation split."""

    def of_table(table: Path, output: Path | None, *more: object) -> list[str]:
        return options(
            "custom", None, finished.folder, output, "--train_file", table, *SPLIT, *HARDLY, *more
        )

    return of_table


EQUAL, UNEQUAL = ["no", "yes"] * 16, ["no"] * 30 + ["yes"] * 2


def test_two_tables_have_separate_folders_and_are_distinguished(
    words: Words, in_folder: Path
) -> None:
    for name in ("a", "b"):
        tune(*words(write(Path(f"{name}.jsonl"), EQUAL, ord(name)), None))
        assert results(Path("runs") / f"{name}-run")["train_examples"] == 24
    refused = call(finetune.main, *words(Path("b.jsonl"), Path("runs/a-run")))
    assert_refused(refused, 4, "b.jsonl now, a.jsonl before")
    write(Path("a.jsonl"), EQUAL, 7)
    assert_refused(call(finetune.main, *words(Path("a.jsonl"), None)), 4, "a.jsonl changed since")


def test_sweeps_are_compared_on_the_same_texts_only(
    words: Words, finished: Finished, in_folder: Path
) -> None:
    """Regression: other texts with the same labels were compared; other labels in the training
    data, which renumber those of the evaluation data, were refused.
    """
    for name, seed in (("a", 1), ("b", 7)):
        tune(*words(write(Path(f"{name}.jsonl"), EQUAL, seed), Path(name)))
    refused = call(finetune.main, "--compare", "a", "b")
    assert_refused(refused, 3, "a.jsonl", "b.jsonl", "different examples")
    write(Path("more.jsonl"), ["maybe", *EQUAL])
    for name in ("b", "more"):
        files = ("--train_file", f"{name}.jsonl", "--validation_file", "a.jsonl")
        output = Path(f"{name}-dev")
        tune(*options("custom", None, finished.folder, output, *files, *HARDLY))
    assert "| accuracy |" in tune("--compare", "b-dev", "more-dev").out


def test_a_model_is_scored_on_a_table_of_ones_own(finished: Finished, in_folder: Path) -> None:
    """Regression: the built-in task was another one, and a regression was not named."""
    tune("--model", finished.folder, "--output_dir", "topics", "--max_steps", 1, "--seeds", 1)
    Path("own.csv").write_text("text,label\nThe band played.,music\nIt was filmed.,screen\n")
    scored = ("--num_train_epochs", 0, "--validation_file", "own.csv", "--output_dir", "scored")
    ended = tune("--model", "topics", *scored, "--max_seq_length", 9)
    assert "was fine-tuned with --max_seq_length" in ended.err
    assert results(Path("scored"))["evaluation_examples"] == {"dev": 2}
    Path("own.csv").write_text("text,label\n" + "One.,0.5\nTwo.,1.5\n" * 4)
    numbers = ("--train_file", "own.csv", "--validation_file", "own.csv", "--regression", "true")
    tune(*numbers, "--model", finished.folder, "--output_dir", "numbers", "--max_steps", 1)
    assert_refused(call(finetune.main, "--model", "numbers", *scored), 2, "--regression true")


# Imbalanced classes.


def test_balanced_class_weights_are_those_of_scikit_learn_and_only_for_training(
    words: Words, tmp_path: Path
) -> None:
    for name, labels in (("equal", EQUAL), ("unequal", UNEQUAL)):
        table = write(tmp_path / f"{name}.jsonl", labels)
        tune(*words(table, tmp_path / name))
        tune(*words(table, tmp_path / f"{name}-weighted", "--class_weights", "balanced"))
    assert losses(tmp_path / "equal") == losses(tmp_path / "equal-weighted")
    both = zip(losses(tmp_path / "unequal-weighted"), losses(tmp_path / "unequal"), strict=True)
    # A batch with only the frequent label, which 23 of the 24 training examples have.
    lowest = min(weighted / plain for weighted, plain in both)
    assert lowest == pytest.approx(24 / (2 * 23), rel=1e-4)
    evaluated = [
        results(tmp_path / name)["metrics"]["loss"]["values"]
        for name in ("unequal", "unequal-weighted")
    ]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-6)


def test_a_collapse_has_a_fitting_remedy(words: Words, tmp_path: Path) -> None:
    tune(*words(write(tmp_path / "a.jsonl", UNEQUAL), tmp_path / "out"))
    found = results(tmp_path / "out")
    found["collapsed_seeds"] = found["seeds"]
    remedies: list[tuple[dict[str, object], str]] = [
        ({}, "; try a lower --learning_rate, or --class_weights balanced"),
        ({"class_weights": "balanced"}, "; try a lower --learning_rate"),
        ({"measure": "multi_label"}, "; try more --num_train_epochs"),
        ({"measure": "regression"}, "; try more --num_train_epochs, a lower"),
        ({"updates": [0]}, ""),
    ]
    for changes, advice in remedies:
        text = format_results({**found, **changes})
        assert "| macro_f1 |" in text
        assert "baseline (the same prediction for every example): accuracy 87.50" in text
        assert f"collapsed (same prediction for every example): seed 3{advice}" in text
        assert bool(advice) == ("; " in text)


# The selection metric.


def test_the_metric_asked_for_selects_the_best_seed(words: Words, tmp_path: Path) -> None:
    table, by = write(tmp_path / "a.jsonl", EQUAL), "--metric_for_best_model"
    offers = f"{by} f2: custom has accuracy, macro_f1, matthews_correlation"
    assert_refused(call(finetune.main, *words(table, tmp_path / "no", by, "f2")), 2, offers)
    more = ("--seeds", 3, "--learning_rate", 0.003, "--max_steps", 4)
    tune(*words(table, tmp_path / "out", by, "macro_f1", *more))
    found = results(tmp_path / "out")
    scores = found["metrics"]["macro_f1"]["values"]
    assert found["main_metric"] == "macro_f1"
    assert scores[found["seeds"].index(found["best_seed"])] == max(scores)
    refused = call(finetune.main, *words(table, tmp_path / "out", *more))
    assert_refused(refused, 4, "metric_for_best_model: macro_f1 before, None now")
