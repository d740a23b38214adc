"""--grid chooses options on held-out training examples, and trains with them as if given."""

import json
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, sha256, untimed_rows
from tests.apps.tiny_tasks import SEED, Tiny, options, results, tune
from tests.refusals import rows

EPOCHS = ("--num_train_epochs", 8)


def test_the_best_point_on_held_out_examples_is_trained(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    words = tiny.options(finished.folder, tmp_path / "grid", *EPOCHS, "--seeds", 2)
    words += ["--grid", "learning_rate=1e-7,3e-3"]
    ended = tune(*words)
    trials = tmp_path / "grid" / "grid"
    scores = {}
    for folder in trials.iterdir():
        trial = results(folder)
        assert trial["evaluation_examples"] == {"held_out": 16}  # a tenth of 160 training examples
        scores[folder.name] = trial["metrics"][tiny.main_metric]["values"]
        assert f"{folder.name}: {tiny.main_metric} {scores[folder.name][0]:.4f}" in ended.err
    assert scores["learning_rate=0.003"] > scores["learning_rate=1e-07"]
    assert all(len(values) == 1 for values in scores.values())

    tune(*tiny.options(finished.folder, tmp_path / "given", *EPOCHS, "--seeds", 2))  # 3e-3
    outcomes = [
        (results(tmp_path / name)["metrics"], sha256(tmp_path / name / "model/model.safetensors"))
        for name in ("grid", "given")
    ]
    assert outcomes[0] == outcomes[1]

    folders = [tmp_path / "grid", *trials.iterdir()]
    before = [untimed_rows(folder / f"seed-{SEED}") for folder in folders]
    tune(*words)
    assert before == [untimed_rows(folder / f"seed-{SEED}") for folder in folders]


REFUSED = """
--grid learning_rat=1                            | learning_rat takes no number
--grid task=cola                                 | task takes no number
--grid seeds=1,3                                 | seeds takes no number
--grid learning_rate=1e-4,much                   | 'much'
--grid learning_rate=1e-4,0.0001                 | repeated
--grid learning_rate=1e-4,-1 --dry_run           | learning_rate=-1.0
--grid muon_rate=1,2                             | muon_rate has no effect
--grid learning_rate=1e-4 --validation_split 0.1 | validation_split
--grid learning_rate=1e-4 --max_train_examples 9 | max_train_examples
--grid learning_rate=1e-4 --num_train_epochs 0   | grid has no effect
--grid learning_rate=1e-4 --task squad           | grid has no effect
--grid learning_rate=1e-4 --predict missing.txt  | missing.txt
"""


def test_a_grid_that_cannot_be_tried_is_refused_at_once(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    for words, reason in rows(REFUSED):
        argv = tiny.options(finished.folder, tmp_path / "out", *words.split())
        assert_refused(call(finetune.main, *argv), 2, reason)
    assert not (tmp_path / "out").exists()


def test_a_point_that_diverges_is_not_chosen(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    words = tiny.options(finished.folder, tmp_path / "out", *EPOCHS, "--grid")
    ended = tune(*words, "learning_rate=1e30,1e-4")
    assert "point 2 of 2 is chosen" in ended.err
    words = tiny.options(finished.folder, tmp_path / "none", *EPOCHS, "--grid")
    assert_refused(call(finetune.main, *words, "learning_rate=1e30"), 5, "every point diverged")


@pytest.mark.parametrize("metric", ["spearman", "micro_f1"])
def test_the_metric_is_that_of_the_task(finished: Finished, tmp_path: Path, metric: str) -> None:
    # Regression: the metric was that of the table of tasks, whatever the labels were.
    table = tmp_path / "table.jsonl"
    labels = {"spearman": [0.5, 1.5, 2.5], "micro_f1": [["a"], ["a", "b"], []]}[metric]
    texts = [f"A story with number {number}." for number in range(60)]
    lines = [json.dumps({"text": text, "label": labels[i % 3]}) for i, text in enumerate(texts)]
    table.write_text("\n".join(lines) + "\n")
    option = {"spearman": "--regression", "micro_f1": "--multi_label"}[metric]
    files = ("--train_file", table, "--validation_file", table, option, "true")
    words = options("custom", None, finished.folder, tmp_path / "out", *files, "--max_steps", 2)
    ended = tune(*words, "--grid", "max_steps=1,2")
    assert f"max_steps=1: {metric} " in ended.err
