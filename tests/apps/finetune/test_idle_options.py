"""Options of Finetuning.py without the intended effect are refused or reported."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.finetune.conftest import Tuned
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_tasks import MAKERS, Tiny, mnli, options, results, rte, stsb, tune
from tests.refusals import rows

Plan = Callable[..., Ended]
QUICK: tuple[object, ...] = ("--max_steps", 2)
SCORE_ONLY = ("--num_train_epochs", 0)


@pytest.fixture(scope="session")
def hardly(tuned: Tuned, tiny: Tiny) -> Path:
    """A barely trained sweep over CoLA. Tests must not change it."""
    return tuned("hardly-cola", tiny, *QUICK)[0]


def diagnostic(folder: Path) -> Path:
    """AX as in GLUE: the texts of MNLI without labels."""
    (folder / "diagnostic").mkdir(parents=True)
    return shutil.copy(
        mnli(folder).folder / "test_matched.tsv", folder / "diagnostic" / "diagnostic.tsv"
    )


@pytest.fixture
def plan(finished: Finished, tmp_path: Path) -> Plan:
    """Dry run of fine-tuning the tiny run on a task."""
    return lambda tiny, *more: call(
        finetune.main, *tiny.options(finished.folder, tmp_path / "out", "--dry_run", *more)
    )


def updates(ended: Ended) -> dict[str, int]:
    """The number of planned updates by task."""
    assert ended.code == 0, ended.err
    return {
        task: int(count)
        for task, count in re.findall(r"(\w+): \d seed\(s\) of (\d+) updates", ended.err)
    }


# Which task.


IDLE = """
--race_level middle --task rte
--muon_rate 2
--doc_stride 9
--from_mnli --task rte
--hub_private_repo
--task rte --compare a b
"""


def test_options_without_effect_are_refused_by_name(in_folder: Path) -> None:
    for words in map(str.split, IDLE.strip().splitlines()):
        assert_refused(call(finetune.main, *words), 2, f"{words[0]} has no effect with")
    assert not list(in_folder.iterdir())


# Which head, and pairs in both orders.


def test_symmetric_pairs_are_swapped(plan: Plan, tmp_path: Path) -> None:
    tiny = stsb(tmp_path / "tasks")
    once, twice = (updates(plan(tiny, "--double_unordered", value)) for value in ("false", "true"))
    assert twice["stsb"] == 2 * once["stsb"]


LACKING = """
squad | --head electra
rte   | --double_unordered true
squad | --classifier_dropout_prob 0.5
stsb  | --class_weights balanced
"""


def test_options_that_a_head_lacks_are_refused(plan: Plan, tmp_path: Path) -> None:
    for task, words in rows(LACKING):
        tiny = MAKERS[task](tmp_path / task)
        assert_refused(plan(tiny, *words.split()), 2, task, words.split()[0])


@pytest.mark.parametrize(("steps", "is_reported"), [(1, False), (2, True)])
def test_a_warmup_that_never_ends_is_reported(
    plan: Plan, tiny: Tiny, steps: int, is_reported: bool
) -> None:
    ended = plan(tiny, "--max_steps", 2, "--warmup_steps", steps)
    assert ended.code == 0, ended.err
    assert (f"notice: --warmup_steps {steps} of 2 updates" in ended.err) == is_reported


# Evaluation only.


def test_evaluation_only_takes_one_seed(hardly: Path, tiny: Tiny, tmp_path: Path) -> None:
    of_cola = tiny.options(hardly, tmp_path / "out", *SCORE_ONLY, "--seeds", 5)
    assert_refused(call(finetune.main, *of_cola), 2, "cola is only evaluated")
    folder = diagnostic(tmp_path / "tasks").parent
    of_ax = options("ax", folder, hardly, tmp_path / "out", "--seeds", 5)
    assert_refused(call(finetune.main, *of_ax), 2, "ax is only evaluated")
    assert not (tmp_path / "out").exists()


def test_a_model_is_not_evaluated_on_another_task(hardly: Path, tmp_path: Path) -> None:
    argv = stsb(tmp_path).options(hardly, tmp_path / "out", *SCORE_ONLY)
    assert_refused(call(finetune.main, *argv), 4, "was fine-tuned on cola, not on stsb")
    assert not (tmp_path / "out").exists()


# New text.


def test_unusual_new_text_is_reported_but_not_in_the_results(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    file = tmp_path / "new.txt"
    file.write_text(f"The owl left.\n\n{'The owl left. ' * 30}\n")
    ended = tune(*tiny.options(finished.folder, tmp_path / "out", *QUICK, "--predict", file))
    assert ended.err.count("1 example of new.txt kept although the text is empty") == 1
    assert ended.err.count("1 example of new.txt truncated to 32 tokens") == 1
    assert not [line for line in results(tmp_path / "out")["noticed"] if "new.txt" in line]
    assert len((tmp_path / "out" / "predicted.tsv").read_text().splitlines()) == 1 + 3


def test_unreadable_new_text_is_refused_before_training(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    (tmp_path / "broken.tsv").write_text("made\t0\nmade\t0\t\tThe owl left.\n")
    for name, code in (("nowhere.txt", 2), ("broken.tsv", 3)):
        argv = tiny.options(finished.folder, tmp_path / "out", *QUICK, "--predict", tmp_path / name)
        assert_refused(call(finetune.main, *argv), code, name)
    assert not (tmp_path / "out").exists()


def test_only_fine_tuned_models_predict(finished: Finished, hardly: Path, in_folder: Path) -> None:
    # Regression: the built-in task was trained.
    (in_folder / "new.txt").write_text("The owl left.\n")
    (in_folder / "new.csv").write_text("said\nThe owl left.\n")
    label = ("--predict", "new.txt")
    assert_refused(call(finetune.main, "--predict", "test"), 2, "--predict test needs --task")
    assert_refused(call(finetune.main, *label), 2, "needs a fine-tuned model: give it with --model")
    for words in ((), ("--task", "custom", *SCORE_ONLY)):
        argv = (*label, *words, "--model", finished.folder)
        assert_refused(call(finetune.main, *argv), 4, "fine-tune it")
    cola_model = ("--model", hardly, "--output_dir", "out")
    other_task = (*label, *cola_model, "--task", "sst2")
    assert_refused(call(finetune.main, *other_task), 4, "was fine-tuned on cola, not on sst2")
    for idle in (QUICK, ("--unknown_labels", "skip"), ("--doc_stride", 8)):
        ended = call(finetune.main, *label, *cola_model, *idle)
        assert_refused(ended, 2, f"--{idle[0].removeprefix('--')} has no effect with")
    split = call(finetune.main, "--validation_split", 0.1)
    assert_refused(split, 2, "--validation_split needs data of your own")
    assert_refused(call(finetune.main, *cola_model, "--predict", "new.csv"), 3, "sentence", "said")
    assert sorted(path.name for path in in_folder.iterdir()) == ["new.csv", "new.txt"]


# All of GLUE.


def test_a_dry_run_of_glue_skips_tasks_that_need_the_model_of_mnli(
    finished: Finished, tmp_path: Path
) -> None:
    rte(tmp_path / "GLUE")
    diagnostic(tmp_path / "GLUE")
    more = ("--dry_run", "--from_mnli")
    ended = tune(*options("glue", tmp_path / "GLUE", finished.folder, tmp_path / "out", *more))
    assert updates(ended).keys() == {"mnli"}
    for name in ("rte", "ax"):
        assert f"{name}: starts from the model fine-tuned on MNLI" in ended.err
    assert not (tmp_path / "out").exists()


NOT_OF_GLUE = """
--num_train_epochs 0 | --num_train_epochs 0
--from_mnli          | MNLI
--predict new.txt    | --predict test
"""


def test_what_glue_lacks_is_refused(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    for words, name in rows(NOT_OF_GLUE):
        folders = (tiny.folder.parent, finished.folder, tmp_path / "out")
        ended = call(finetune.main, *options("glue", *folders, *words.split()))
        assert_refused(ended, 2, name)
    assert not (tmp_path / "out").exists()


def test_glue_is_not_written_into_the_folder_of_a_single_task(
    finished: Finished, tiny: Tiny, hardly: Path
) -> None:
    before = sorted(hardly.rglob("*"))
    argv = options("glue", tiny.folder.parent, finished.folder, hardly, *QUICK)
    assert_refused(call(finetune.main, *argv), 2, "holds the sweep of a single task")
    assert sorted(hardly.rglob("*")) == before
