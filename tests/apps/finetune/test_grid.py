"""--grid chooses options on held-out training examples, and trains with them as if given."""

from pathlib import Path

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, sha256, untimed_rows
from tests.apps.tiny_tasks import SEED, Tiny, results, tune
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
        assert trial["evaluation_examples"] == {"dev": 16}  # a tenth of 160 training examples
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
--grid learning_rat=1                                     | learning_rat is no option
--grid task=cola                                          | task is no option
--grid learning_rate=1e-4,much                            | 'much'
--grid learning_rate=1e-4,-1                              | learning_rate=-1.0
--grid learning_rate=1e-4 --validation_split 0.1          | held out
--grid learning_rate=1e-4 --num_train_epochs 0            | --num_train_epochs 0
"""


def test_a_grid_that_cannot_be_tried_is_refused_at_once(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    for words, reason in rows(REFUSED):
        options = tiny.options(finished.folder, tmp_path / "out", *words.split())
        assert_refused(call(finetune.main, *options), 2, reason)
    assert not (tmp_path / "out").exists()
