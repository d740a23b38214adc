"""Tables of one's own: their folders, classes of unequal size, the metric that decides, and a part held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune.results import format_results
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import losses, options, results, stories

SPLIT = ("--validation_split", 0.25)
HARDLY = ("--max_steps", 2, "--learning_rate", 1e-9, "--logging_steps", 1)  # the weights stay as they are


def write(file: Path, labels: Sequence[object], seed: int = 1) -> Path:
    """A table with a story for each label."""
    texts = [story.text for story in stories(len(labels), seed)]
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


def run(finished: Finished, table: Path, output: Path | None, *more: object) -> Ended:
    argv = options("custom", table, finished.folder, output, "--train_file", table, *SPLIT, *HARDLY, *more)
    place = argv.index("--data_dir")
    return call(finetune.main, *argv[:place], *argv[place + 2 :])


EQUAL, UNEQUAL = ["no", "yes"] * 16, ["no"] * 30 + ["yes"] * 2


def test_two_tables_have_folders_of_their_own_and_are_told_apart(finished: Finished, in_folder: Path) -> None:
    for name in ("a", "b"):
        assert run(finished, write(Path(f"{name}.jsonl"), EQUAL, ord(name)), None).code == 0
        assert results(Path("runs") / f"{name}-run")["train_examples"] == 24
    assert_refused(run(finished, Path("b.jsonl"), Path("runs/a-run")), 4, "b.jsonl now, a.jsonl then")
    write(Path("a.jsonl"), EQUAL, 7)
    assert_refused(run(finished, Path("a.jsonl"), None), 4, "a.jsonl changed since")


def test_two_tables_are_not_compared_and_both_are_named(finished: Finished, in_folder: Path) -> None:
    for name, labels in (("a", EQUAL), ("b", UNEQUAL), ("c", [0.5, 1.5] * 16)):
        more = ("--regression",) if name == "c" else ()
        assert run(finished, write(Path(f"{name}.jsonl"), labels), Path(name), *more).code == 0
    assert_refused(call(finetune.main, "--compare", "a", "b"), 3, "a.jsonl", "b.jsonl", "different examples")
    assert_refused(call(finetune.main, "--compare", "a", "c"), 2, "regression of c.jsonl", "one task")


# Classes of unequal size.


def test_balanced_classes_weigh_as_much_as_scikit_learn_says_and_only_in_training(
    finished: Finished, tmp_path: Path
) -> None:
    for name, labels in (("equal", EQUAL), ("unequal", UNEQUAL)):
        table = write(tmp_path / f"{name}.jsonl", labels)
        for folder, more in ((name, ()), (f"{name}-weighted", ("--class_weights", "balanced"))):
            assert run(finished, table, tmp_path / folder, *more).code == 0
    assert losses(tmp_path / "equal") == losses(tmp_path / "equal-weighted")
    both = zip(losses(tmp_path / "unequal-weighted"), losses(tmp_path / "unequal"), strict=True)
    # A batch of the common label alone: 23 of the 24 examples that are trained on have it.
    assert min(weighted / plain for weighted, plain in both) == pytest.approx(24 / (2 * 23), rel=1e-4)
    evaluated = [results(tmp_path / name)["metrics"]["loss"]["values"] for name in ("unequal", "unequal-weighted")]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-6)


def test_class_weights_are_part_of_the_sweep(finished: Finished, tmp_path: Path) -> None:
    table, balanced = write(tmp_path / "a.jsonl", UNEQUAL), ("--class_weights", "balanced")
    assert run(finished, table, tmp_path / "out", *balanced).code == 0
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["class_weights"] == "balanced"
    assert run(finished, table, tmp_path / "out", *balanced).code == 0
    assert_refused(run(finished, table, tmp_path / "out"), 4, "class_weights balanced then, none now")
    numbers = write(tmp_path / "numbers.jsonl", [1.5, 2.5] * 16)
    assert_refused(run(finished, numbers, tmp_path / "no", "--regression", *balanced), 2, "--class_weights")


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({}, "; try a lower --learning_rate, or --class_weights balanced"),
        ({"class_weights": "balanced"}, "; try a lower --learning_rate"),
        ({"updates": [0]}, ""),
    ],
)
def test_a_collapse_is_told_with_the_way_out_that_fits(
    finished: Finished, tmp_path: Path, changes: dict[str, Any], way_out: str
) -> None:
    assert run(finished, write(tmp_path / "a.jsonl", UNEQUAL), tmp_path / "out").code == 0
    found = {**results(tmp_path / "out"), **changes}
    found["collapsed_seeds"] = found["seeds"]
    text = format_results(found)
    assert "| macro_f1 |" in text
    assert text[text.index("warning: ") :].startswith(
        f"warning: collapsed, the same answer for every example: seed 3{way_out}"
    )
    assert bool(way_out) == ("; " in text)


# The metric that decides.


def test_the_metric_asked_for_decides(finished: Finished, tmp_path: Path) -> None:
    table, by = write(tmp_path / "a.jsonl", EQUAL), "--metric_for_best_model"
    told = f"{by} f2: custom offers accuracy, macro_f1, matthews_correlation"
    assert_refused(run(finished, table, tmp_path / "no", by, "f2"), 2, told)
    more = ("--seeds", 3, "--learning_rate", 0.003, "--max_steps", 4)
    assert run(finished, table, tmp_path / "out", by, "macro_f1", *more).code == 0
    found = results(tmp_path / "out")
    scores = found["metrics"]["macro_f1"]["values"]
    assert found["main_metric"] == "macro_f1"
    assert scores[found["seeds"].index(found["best_seed"])] == max(scores)
    assert_refused(run(finished, table, tmp_path / "out", *more), 4, "metric_for_best_model macro_f1 then, None now")


# A part held out.


def test_the_part_held_out_is_the_same_for_every_seed(finished: Finished, tmp_path: Path) -> None:
    table = write(tmp_path / "a.jsonl", EQUAL)
    for seed in (3, 4):
        assert run(finished, table, tmp_path / str(seed), "--seed", seed).code == 0
    held_out = [(tmp_path / name / "predictions.tsv").read_text().splitlines() for name in ("3", "4")]
    told = [[line.split("\t")[:2] for line in lines] for lines in held_out]
    assert told[0] == told[1]
    assert len(told[0]) == 1 + 8
    argv = ("--validation_file", table)
    assert_refused(
        run(finished, table, tmp_path / "no", *argv), 2, "give validation_split or validation_file, not both"
    )
