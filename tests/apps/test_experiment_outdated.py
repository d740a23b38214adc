"""What was made by another command, was made of other weights, or is lost is not told as if it were of the plan."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from electra_albert.apps.experiment.findings import find
from electra_albert.apps.experiment.records import Record, Stage, check_records, read_record, write_record
from electra_albert.apps.experiment.running import run_stages
from electra_albert.apps.experiment.stages import Site
from electra_albert.contracts import CheckpointError, UsageError
from tests.apps.tiny_plan import PLAN, find_stage, note, planned

RESULTS = {"main_metric": "accuracy", "metrics": {"accuracy": {"values": [0.5, 0.6]}}, "collapsed_seeds": []}
CHANGED = PLAN.replace("preset: tiny", "preset: tiny, learning_rate: .5")


def made_all(folder: Path, text: str = PLAN, **given: object) -> tuple[Site, list[Stage]]:
    """Everything noted as made by a plan with one task and one text."""
    _, site, stages = planned(folder, text, data_dir="GLUE", **{"texts": ("held.txt",), **given})
    for made in stages:
        note(made)
    return site, stages


def replanned(folder: Path, text: str, **given: object) -> list[Stage]:
    return planned(folder, text, **{"data_dir": "GLUE", "texts": ("held.txt",), **given})[2]


def undone(stages: list[Stage]) -> set[tuple[str, str]]:
    return {(made.arm, made.name) for made in stages if not made.is_done}


def test_what_was_made_of_weights_that_will_be_others_is_refused_with_all_folders_to_remove(tmp_path: Path) -> None:
    site, stages = made_all(tmp_path)
    assert undone(stages) == set()
    changed = replanned(tmp_path, CHANGED)
    folders = [site.output_dir / arm for arm in "asr"]
    with pytest.raises(UsageError) as refused:
        check_records(changed)
    assert str(refused.value).endswith(
        f"tells of another command (--learning_rate is new); choose another --output_dir, or remove {folders[0]} and "
        f"{folders[1]} and {folders[2]} to have it made anew"
    )


def test_what_was_made_like_an_arm_is_refused_after_that_arm_was_removed_and_made_anew(tmp_path: Path) -> None:
    made_all(tmp_path)
    changed = replanned(tmp_path, CHANGED)
    for made in changed:
        if made.arm == "a":
            note(made)
    stock = find_stage(changed, "s", "pretraining-1")
    with pytest.raises(
        UsageError, match=rf"{stock.record} tells of another pretraining-1 of a; .*remove {stock.folder} and"
    ):
        check_records(changed)
    assert undone(changed) == {
        ("s", "pretraining-1"),
        ("s", "pretraining-2"),
        ("s", "cola"),
        ("s", "scores"),
        ("r", "cola"),
    }


def test_only_what_is_of_the_changed_weights_is_refused(tmp_path: Path) -> None:
    site, _ = made_all(tmp_path)
    changed = replanned(tmp_path, PLAN.replace("arms: {", "arms: {b: {learning_rate: .5}, "))
    check_records(changed)
    assert {arm for arm, _ in undone(changed)} == {"b"}
    (other,) = [made for made in changed if (made.arm, made.name) == ("b", "pretraining-42")]
    assert not other.folder.is_relative_to(site.output_dir / "a")


def test_the_order_of_options_and_the_place_of_what_was_made_change_nothing(tmp_path: Path) -> None:
    options = PLAN.replace("preset: tiny", "preset: tiny, learning_rate: .5, max_steps: 3")
    site, _ = made_all(tmp_path, options)
    moved = site.output_dir.rename(tmp_path / "moved")
    turned = PLAN.replace("preset: tiny", "max_steps: 3, learning_rate: .5, preset: tiny")
    stages = replanned(tmp_path, turned, output_dir=moved, prepared_dir="elsewhere")
    check_records(stages)
    assert undone(stages) == set()
    changed = replanned(tmp_path, turned.replace("max_steps: 3", "max_steps: 4"), output_dir=moved)
    with pytest.raises(UsageError, match=f"remove {moved / 'a'} and {moved / 's'} and {moved / 'r'} to have"):
        check_records(changed)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("learning_rate: .5", "learning_rate: .25", "--learning_rate 0.25, which was 0.5"),
        ("learning_rate: .5", "max_steps: 3", "--max_steps is new"),
        ("learning_rate: .5, max_steps: 3", "max_steps: 3", "--learning_rate is gone"),
    ],
)
def test_what_a_command_asked_for_before_is_told(before: str, now: str, told: str, tmp_path: Path) -> None:
    made_all(tmp_path, PLAN.replace("preset: tiny", f"preset: tiny, {before}"))
    with pytest.raises(UsageError, match=rf"tells of another command \({told}\); choose"):
        check_records(replanned(tmp_path, PLAN.replace("preset: tiny", f"preset: tiny, {now}")))


def test_a_command_notes_what_it_was_made_of(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("", encoding="utf-8")
    first = Stage("a", "pretraining-1", [str(script)], tmp_path / "a", tmp_path)
    second = Stage("b", "cola", [str(script)], tmp_path / "b", tmp_path, first)
    for made in (first, second):
        run_stages([made], Site(tmp_path, "c"))
    noted = read_record(second.record)
    assert noted is not None
    assert noted.made_of == first.made_by
    assert second._replace(needs=first._replace(command=["other.py"])).made_of != noted.made_of


def test_a_task_made_by_another_command_is_refused_by_its_folder_and_scores_are_made_anew(tmp_path: Path) -> None:
    site, _ = made_all(tmp_path)
    task = site.output_dir / "a" / "cola"
    changed = replanned(tmp_path, PLAN.replace("cola: ", "cola: {num_train_epochs: 5}"), texts=("b",))
    with pytest.raises(UsageError, match=rf"num_train_epochs is new.* remove {task} and") as refused:
        check_records(changed)
    assert "\n" not in str(refused.value)
    others = replanned(tmp_path, PLAN, texts=("b",))
    check_records(others)
    assert undone(others) == {("a", "scores"), ("s", "scores")}


def test_what_is_lost_is_told_and_made_again(tmp_path: Path) -> None:
    site, stages = made_all(tmp_path)
    lost = [site.output_dir / "a" / "scores.json", site.output_dir / "a" / "cola" / "results.json"]
    for file in lost:
        file.unlink()
    (site.output_dir / "s" / "seed-2").rmdir()
    check_records(stages)
    assert undone(stages) == {("a", "scores"), ("a", "cola"), ("s", "pretraining-2")}
    plan, _, _ = planned(tmp_path)
    failures = {found.arm.name: found.failures for found in find(plan, site, stages)}
    assert sorted(failures["a"]) == [f"cola has lost {lost[1]}", f"scores has lost {lost[0]}"]
    assert failures["s"] == [f"pretraining-2 has lost {site.output_dir / 's' / 'seed-2'}"]


@pytest.mark.parametrize("given", [{}, {"data_dir": None, "texts": ()}], ids=["all", "without data and texts"])
def test_what_the_plan_says_otherwise_now_is_left_out_of_what_is_found_and_told(
    given: dict[str, object], tmp_path: Path
) -> None:
    site, stages = made_all(tmp_path)
    for made in stages:
        if made.name == "cola":
            (made.output / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
        if made.name == "scores":
            made.output.write_text('{"text": []}', encoding="utf-8")
        if made.name == "pretraining-1":
            (made.output / "metrics.jsonl").write_text('{"step": 1}\n', encoding="utf-8")
            (made.output / "config.yaml").write_text("preset: tiny\n", encoding="utf-8")
            (made.output / "environment.json").write_text('{"settings": {"model": {"vocab_size": 300}}}')
    plan, _, _ = planned(tmp_path)
    before = find(plan, site, stages)
    assert all(found.tasks == {"cola": (0.5, 0.6)} for found in before)
    assert [[run.seed for run in found.runs] for found in before] == [[1], [], [1]]
    assert [bool(found.scores) for found in before] == [True, False, True]
    changed = replanned(tmp_path, CHANGED, **given)
    plan, _, _ = planned(tmp_path, CHANGED)
    for found in find(plan, site, changed):
        assert (found.tasks, found.runs, found.scores) == ({}, [], {})
        assert f"cola tells of another pretraining-1 of {'s' if found.arm.name == 's' else 'a'}" in found.failures


def test_a_task_of_other_options_is_left_out_and_told_where_its_data_are_not_named(tmp_path: Path) -> None:
    site, stages = made_all(tmp_path)
    for made in stages:
        if made.name == "cola":
            (made.output / "results.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    without = {"data_dir": None, "texts": ()}
    plan, _, stages = planned(tmp_path, **without)
    assert all(found.tasks == {"cola": (0.5, 0.6)} and not found.failures for found in find(plan, site, stages))
    plan, _, stages = planned(tmp_path, PLAN.replace("cola: ", "cola: {num_train_epochs: 5}"), **without)
    told = "cola tells of another command (--num_train_epochs is new)"
    assert all((found.tasks, found.failures) == ({}, [told]) for found in find(plan, site, stages))


@pytest.mark.parametrize("lost", ["config.yaml", "environment.json"])
def test_a_run_that_lost_what_it_says_of_itself_is_told_with_what_to_remove(lost: str, tmp_path: Path) -> None:
    site, stages = made_all(tmp_path)
    run = site.output_dir / "a" / "seed-1"
    (run / "metrics.jsonl").write_text('{"step": 1}\n', encoding="utf-8")
    (run / "config.yaml").write_text("preset: tiny\n", encoding="utf-8")
    (run / "environment.json").write_text('{"settings": {"model": {"vocab_size": 300}}}', encoding="utf-8")
    (run / lost).unlink()
    plan, _, _ = planned(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{run} lacks .*{lost}.*; remove it"):
        find(plan, site, stages)


def test_a_record_has_reached_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced, sync = tmp_path / "cola.json", [], os.fsync

    def watch(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, file.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    write_record(file, Record(["x"], 0))
    assert synced == [(file.stat().st_size, False)]


def test_damaged_results_are_told_with_the_file_to_remove(tmp_path: Path) -> None:
    site, stages = made_all(tmp_path)
    file = site.output_dir / "a" / "scores.json"
    file.write_text("{", encoding="utf-8")
    plan, _, _ = planned(tmp_path)
    with pytest.raises(CheckpointError, match=f"{file} is damaged: .*; remove it"):
        find(plan, site, stages)
