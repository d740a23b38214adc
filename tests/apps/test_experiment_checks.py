"""What can be refused is refused before the first command, in one line; what has no effect is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from electra_albert.apps.experiment.__main__ import main
from electra_albert.apps.experiment.checks import check_experiment
from electra_albert.contracts import UserError
from electra_albert.training.guards import RunLock
from tests.apps.tiny_plan import PLAN, find_stage, note, planned
from tests.apps.tiny_run import Ended, assert_refused, call


def glue(folder: Path) -> Path:
    (folder / "glue" / "CoLA").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (folder / "glue" / "CoLA" / name).write_text("gj04\t1\t\tThe owl left.\n", encoding="utf-8")
    return folder / "glue"


REFUSED = {
    "a misspelt option": (
        "preset: tiny",
        "preset: tiny, lerning_rate: 1",
        {},
        "arm a: there is no option --lerning_rate",
    ),
    "stock like masked tokens": ("preset: tiny", "objective: mlm", {}, "arm a: s is like it, but stock"),
    "stock with accumulation": ("preset: tiny", "gradient_accumulation_steps: 4", {}, "arm a: s is like it, but stock"),
    "a corpus": ("", "", {"corpus": "nosuch.txt"}, "--corpus nosuch.txt: no such file"),
    "a corpus in a folder": ("", "", {"corpus": "glue/nosuch.txt"}, "--corpus glue/nosuch.txt: no such file"),
    "a corpus of a list": ("", "", {"corpus": "sources.yaml"}, "entry 2 names nosuch.txt, but there is no"),
    "a tokenizer": ("", "", {"tokenizer": "nosuch"}, "tokenizer nosuch does not exist"),
    "a text": ("", "", {"texts": ("nosuch.txt",)}, "--text nosuch.txt: no such file"),
    "pairs": ("", "", {"pairs": "nosuch"}, "--pairs nosuch: no such file"),
    "pairs that are none": ("", "", {"pairs": "bad.jsonl"}, "bad.jsonl:1: no 'sentence_bad'"),
    "a folder of tasks": ("", "", {"data_dir": "/no/such/folder"}, "--data_dir /no/such/folder: no such folder"),
    "a task": ("cola:", "colaa:", {"data_dir": "glue"}, "--task colaa: no such task"),
    "all tasks": ("cola:", "glue:", {}, "this takes one task"),
    "a task that is not there": ("cola:", "rte:", {"data_dir": "glue"}, "--task rte: no training data in"),
    "a task that is not trained": ("cola: ", "cola: {num_train_epochs: 0}", {}, "task cola: it would only be scored"),
    "an option of a task": ("cola: ", "cola: {epochs: 1}", {}, "task cola: there is no option --epochs"),
    "an option that another task has": ("cola: ", "cola: {race_level: high}", {}, "task cola: --race_level has no"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_late_command_would_refuse_is_refused_before_the_first(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    glue(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"sentence_good": "The owls leave."}\n', encoding="utf-8")
    (tmp_path / "sources.yaml").write_text("- {corpus: corpus.txt}\n- {corpus: nosuch.txt}\n", encoding="utf-8")
    old, new, given, complaint = REFUSED[case]
    plan, site, stages = planned(tmp_path, PLAN.replace(old, new, 1), **given)
    with pytest.raises(UserError) as refused:
        check_experiment(plan, site, stages)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["docs", "owner/name", "owner/name:config"])
def test_what_is_not_on_this_machine_yet_is_fetched_when_its_turn_comes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan, site, stages = planned(tmp_path, corpus=name, data_dir="owner/tasks")
    check_experiment(plan, site, stages)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "plan.yaml"]


def test_a_corpus_is_not_looked_for_once_everything_is_pretrained(tmp_path: Path) -> None:
    plan, site, stages = planned(tmp_path, corpus="nosuch.txt", tokenizer="nosuch")
    for made in stages:
        note(made)
    check_experiment(plan, site, stages)
    (tmp_path / "out" / "a" / "seed-2").rmdir()
    with pytest.raises(UserError, match="no such file"):
        check_experiment(plan, site, stages)


def test_an_arm_alone_passes_only_where_the_one_it_is_like_is_made_as_the_plan_says_now(tmp_path: Path) -> None:
    given = {"data_dir": str(glue(tmp_path))}
    plan, site, stages = planned(tmp_path, **given)
    check_experiment(plan, site, stages)
    alone = [made for made in stages if made.arm == "r"]
    with pytest.raises(UserError, match="it is like a, of which pretraining-1 has not been made; name a too"):
        check_experiment(plan, site, alone)
    note(find_stage(stages, "a", "pretraining-1"))
    check_experiment(plan, site, alone)
    assert not (site.output_dir / "r").exists()
    plan, site, stages = planned(tmp_path, PLAN.replace("{preset: tiny}", "{preset: tiny, learning_rate: .5}"), **given)
    with pytest.raises(UserError, match=r"pretraining-1 tells of another command .*; name a too"):
        check_experiment(plan, site, [made for made in stages if made.arm == "r"])


def told(folder: Path, text: str, *more: object) -> Ended:
    """The app where everything has been made."""
    _, site, stages = planned(folder, text)
    for made in stages:
        note(made)
    return call(main, "--plan", folder / "plan.yaml", "--corpus", site.corpus, "--output_dir", site.output_dir, *more)


def test_pairs_at_most_without_pairs_are_refused(tmp_path: Path) -> None:
    assert_refused(told(tmp_path, PLAN, "--max_pairs", 3), 2, "--max_pairs has no effect without --pairs")


def test_tasks_without_data_and_data_without_tasks_are_told(tmp_path: Path) -> None:
    tasks, none, data = PLAN, PLAN[: PLAN.index("finetuning")], ("--data_dir", glue(tmp_path))
    lacking, idle, without = told(tmp_path, tasks), told(tmp_path, none, *data), told(tmp_path, none)
    nothing = "notice: nothing is done for r, since the plan has no tasks\n"
    assert lacking.err == "notice: no task is trained; --data_dir says where their data lie\n"
    assert idle.err == f"{nothing}notice: --data_dir has no effect, since the plan has no tasks\n"
    assert (lacking.code, idle.code, without.code, without.err) == (0, 0, 0, nothing)


def test_random_weights_asked_for_by_name_where_none_are_fine_tuned_are_refused(tmp_path: Path) -> None:
    tasks, none = PLAN, PLAN[: PLAN.index("finetuning")]
    reason = "--arms r: random weights are only fine-tuned, and"
    assert_refused(told(tmp_path, tasks, "--arms", "r"), 2, f"{reason} --data_dir is not given")
    assert_refused(told(tmp_path, none, "--arms", "r"), 2, f"{reason} the plan has no tasks")


def test_an_experiment_that_runs_already_is_refused(tmp_path: Path) -> None:
    with RunLock(tmp_path / "out"):
        assert_refused(told(tmp_path, PLAN), 2, "out is in use by another run")


def test_a_place_is_the_same_however_it_is_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, data = PLAN, str(glue(tmp_path).relative_to(tmp_path))
    _, site, stages = planned(tmp_path, text, corpus="corpus.txt", data_dir=data)
    for made in stages:
        note(made)
    places = "--corpus", "./corpus.txt", "--data_dir", f"{data}/", "--output_dir", site.output_dir
    ended = call(main, "--plan", "plan.yaml", *places)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    "content",
    ['{"command": ["x"', '{"command": ["x"], "exit": 0}', '{"command": "x"}', "{}", "[]", b"\xff"],
    ids=["truncated", "unknown key", "no list", "nothing", "no object", "no text"],
)
def test_a_damaged_record_of_any_arm_is_told_in_one_line_with_the_file_to_remove(
    content: str | bytes, tmp_path: Path
) -> None:
    _, _, stages = planned(tmp_path)
    record = find_stage(stages, "s", "pretraining-1").record
    record.parent.mkdir(parents=True)
    record.write_bytes(content if isinstance(content, bytes) else content.encode())
    command = "--plan", tmp_path / "plan.yaml", "--corpus", tmp_path / "corpus.txt", "--output_dir", tmp_path / "out"
    assert_refused(call(main, *command, "--arms", "a"), 4, f"{record} ", "; remove it to have")
    assert not (tmp_path / "out" / "a").exists()
