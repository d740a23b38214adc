"""What was found is told as it is: equal things are averaged, unequal ones kept apart, and nothing is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from electra_albert.apps.pretrain.estimate import step_flops

from electra_albert.apps.experiment.curves import draw_curves
from electra_albert.apps.experiment.findings import Findings, Pretrained, as_record, stock_surplus, training_seconds
from electra_albert.apps.experiment.plan import Arm, Plan
from electra_albert.apps.experiment.stages import Site
from electra_albert.apps.experiment.tables import format_findings, untrained
from electra_albert.presets import PRESETS
from electra_albert.tasks.statistics import distance_in_stds

METRIC = {"cola": "matthews_correlation"}
SMALL, WIDE = {"preset": "small"}, {"preset": "small", "model.hidden_size": 512}


def run(seed: int, updates: int, *losses: float, is_finished: bool = True) -> Pretrained:
    """A run evaluated at equal distances up to its end, 100 tokens an update at 10 a second."""
    rows: list[dict[str, Any]] = [
        {"step": step, "tokens": 100 * step, "tokens_per_second": 10.0} for step in range(10, updates + 1, 10)
    ]
    ends = [updates * (number + 1) // len(losses) for number in range(len(losses))]
    rows += [{"step": step, "eval_generator_loss": loss} for step, loss in zip(ends, losses, strict=True)]
    return Pretrained(seed, rows, 1e10 * updates, is_finished, threads=1, jobs=2)


def found(name: str, *runs: Pretrained, cola: tuple[float, ...] = (), **more: Any) -> Findings:
    arm = Arm(name, more.pop("options", {}), weights=more.pop("weights", "pretrained"), like=more.pop("like", None))
    tasks = {"cola": cola} if cola else {}
    collapsed, scores, failures = more.pop("collapsed", {}), more.pop("scores", {}), more.pop("failures", [])
    return Findings(arm, list(runs), tasks, METRIC if cola else {}, collapsed, scores, failures)


def plan_of(*all_found: Findings) -> Plan:
    return Plan("A title", tuple(each.arm for each in all_found), task_seeds=2)


def told(*all_found: Findings) -> str:
    return format_findings(plan_of(*all_found), all_found)


def row_of(text: str, arm: str, table: int = 0) -> list[str]:
    """The cells of an arm's row in one of the tables that it stands in."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {arm} |")]
    return rows[table]


def test_runs_of_different_length_are_not_averaged() -> None:
    diverged = run(44, 40, 9.0, is_finished=False)
    text = told(found("shared", run(42, 100, 6.0, 5.0), run(43, 100, 6.0, 4.0), diverged))
    assert row_of(text, "shared") == ["shared", "42 43", "100", "0.0", "1.00e+12", "16.7", "4.500 ± 0.707"]
    assert row_of(text, "shared (unfinished)") == ["shared (unfinished)", "44", "40", "0.0", "4.00e+11", "6.7", "9.000"]


def test_an_arm_that_has_not_been_evaluated_is_told_without_a_score() -> None:
    text = told(found("early", run(1, 20)), found("late", run(1, 20, 3.0)))
    assert row_of(text, "early")[-1] == "-"
    assert row_of(text, "late")[-1] == "3.000"


def test_a_score_that_is_no_number_is_called_so() -> None:
    assert row_of(told(found("a", run(1, 20, float("inf")))), "a")[-1] == "not finite"


def test_random_weights_are_compared_with_those_of_the_same_shape_only() -> None:
    arms = [
        found("small", cola=(0.30, 0.32), options=SMALL),
        found("wide", cola=(0.40, 0.44), options=WIDE),
        found("sloped", cola=(0.40, 0.44), options={**SMALL, "model.num_hidden_groups": 12}),
        found("faster", cola=(0.30, 0.34), options={**SMALL, "learning_rate": 0.1}),
        found("random wide", cola=(0.10, 0.12), options=WIDE, weights="random", like="wide"),
        found("random small", cola=(0.20, 0.22), options=SMALL, weights="random", like="small"),
        found("stock", cola=(0.25, 0.27), options=WIDE, weights="stock", like="wide"),
    ]
    names = {each.arm.name: base.arm.name for each in arms if (base := untrained(each.arm, arms)) is not None}
    assert names == {
        "small": "random small",
        "faster": "random small",
        "wide": "random wide",
        "stock": "random wide",
    }
    text = told(*arms)
    assert row_of(text, "small") == ["small", "31.00 ± 1.41 (+7.1)", "31.00"]
    assert row_of(text, "sloped")[1] == "42.00 ± 2.83"
    assert row_of(text, "random small")[1] == "21.00 ± 1.41"


def test_seeds_that_gave_one_answer_to_everything_are_marked() -> None:
    arms = found("stuck", cola=(0.0, 0.0), collapsed={"cola": [1, 2]}), found("fine", cola=(0.30, 0.34))
    text = told(*arms)
    assert (row_of(text, "stuck")[1], row_of(text, "fine")[1]) == ("0.00 ± 0.00 †2", "32.00 ± 2.83")
    assert "† so many of the seeds collapsed: they gave the same answer to everything." in text
    assert "†" not in told(arms[1])
    assert as_record(plan_of(*arms), Site(None, Path("out")), arms)["arms"]["stuck"]["collapsed_seeds"] == {
        "cola": [1, 2]
    }


def test_of_several_random_arms_of_a_shape_the_one_like_the_arm_is_taken() -> None:
    arms = [
        found("other random", cola=(0.1, 0.2), options=SMALL, weights="random", like="b"),
        found("own random", cola=(0.1, 0.2), options=SMALL, weights="random", like="a"),
        found("a", cola=(0.3, 0.4), options=SMALL),
    ]
    base = untrained(arms[2].arm, arms)
    assert base is not None
    assert base.arm.name == "own random"


def test_the_distance_is_in_standard_deviations_pooled_by_degrees_of_freedom() -> None:
    ours, other = (1.0, 2.0, 3.0, 4.0), (0.0, 0.5)
    pooled = ((5.0 + 0.125) / 4) ** 0.5
    assert distance_in_stds(ours, other) == pytest.approx((2.5 - 0.25) / pooled)
    assert distance_in_stds([1.0], [2.0]) is None
    assert distance_in_stds([1.0, 1.0], [2.0, 2.0]) is None
    ours_told = found("a", cola=ours), found("r", cola=other, weights="random", like="a")
    assert row_of(told(*ours_told), "a")[1].endswith(f"({(2.5 - 0.25) / pooled:+.1f})")


def test_a_mean_over_tasks_is_of_all_of_them_or_is_not_told() -> None:
    whole = found("whole", cola=(0.2, 0.4))._replace(
        tasks={"cola": (0.2, 0.4), "rte": (0.5, 0.7)}, task_metrics={**METRIC, "rte": "accuracy"}
    )
    text = told(whole, found("part", cola=(0.9, 0.9)))
    assert row_of(text, "whole")[-1] == "45.00"
    assert row_of(text, "part") == ["part", "90.00 ± 0.00", "-", "-"]
    assert "only the first seed of pretraining is fine-tuned" in text


def scores(**files: float) -> dict[str, Any]:
    return {"text": [{"file": file, "nats_per_token": n, "accuracy": 0.5} for file, n in files.items()], "pairs": None}


def test_texts_of_the_same_name_are_both_told_and_only_these_by_their_whole_path() -> None:
    text = told(found("a", scores=scores(**{"wiki/test.txt": 3.0, "books/test.txt": 5.0, "news/held.txt": 4.0})))
    head = next(line for line in text.splitlines() if "nats a token" in line)
    assert [title.split(":")[0] for title in head.strip("| ").split(" | ")[1:]] == [
        "wiki/test.txt",
        "books/test.txt",
        "held.txt",
    ]
    assert row_of(text, "a") == ["a", "3.000, 0.500", "5.000, 0.500", "4.000, 0.500"]


def test_pairs_are_told_by_each_way_that_an_arm_has() -> None:
    one = {"mean": 0.6, "standard_error": 0.01}
    both = found("both", scores={**scores(), "pairs": {"likelihood": one, "detection": one}})
    text = told(both, found("one", scores={**scores(), "pairs": {"detection": one}}))
    assert row_of(text, "both") == ["both", "60.0 ± 1.0", "60.0 ± 1.0"]
    assert row_of(text, "one") == ["one", "-", "60.0 ± 1.0"]


def test_every_failure_is_told_under_its_arm_and_a_bar_in_a_name_breaks_no_table() -> None:
    text = told(found("a|b", run(1, 20, 3.0), failures=["cola ended with exit code 3: why", "rte was stopped"]))
    assert text.endswith(
        "Failed, stopped or made otherwise:\n\n- a|b: cola ended with exit code 3: why\n- a|b: rte was stopped\n"
    )
    assert r"| a\|b | 1 |" in text


def test_time_is_that_of_the_updates_by_their_rates() -> None:
    rows: list[dict[str, Any]] = [{"tokens": 100, "tokens_per_second": 10.0}, {"eval_loss": 1.0}]
    rows.append({"tokens": 400, "tokens_per_second": 20.0})
    assert training_seconds(rows) == 25


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_stock_scores_the_vocabulary_at_all_positions_and_its_operations_say_so(preset: str) -> None:
    config = PRESETS[preset]
    config = replace(config, model=replace(config.model, vocab_size=30_000))
    generator, length = config.rtd.generator(config.model), config.corpus.max_seq_length
    # Operations of one more predicted position, forward and backward, from the cost of one more masked position.
    rates = [replace(config, rtd=replace(config.rtd, mask_rate=n / (length - 2))) for n in (1, 2)]
    position = step_flops(rates[1], 1) - step_flops(rates[0], 1)
    masked = (step_flops(config, 1) - step_flops(rates[0], 1)) // position + 1
    assert position == 3 * 2 * generator.embedding_size * (generator.hidden_size + 30_000)
    assert stock_surplus(config) == (length - masked) * position


def test_the_record_holds_what_the_tables_leave_out() -> None:
    one = found("a", run(42, 20, 3.0), run(43, 10, is_finished=False), cola=(0.1, 0.2))
    record = json.loads(json.dumps(as_record(plan_of(one), Site(Path("out"), "c", jobs=3), [one])))
    runs = record["arms"]["a"]["pretraining"]
    assert record["jobs"] == 3
    assert [(each["seed"], each["is_finished"], each["jobs"]) for each in runs] == [(42, True, 2), (43, False, 2)]
    assert record["arms"]["a"]["tasks"] == {"cola": {"matthews_correlation": [0.1, 0.2]}}


def drawn(all_found: list[Findings], file: Path, title: str = "A title") -> bytes:
    draw_curves(title, all_found, file)
    return file.read_bytes()


def test_a_single_evaluation_is_seen_in_the_curves(tmp_path: Path) -> None:
    line = found("ours", run(1, 100, 6.0, 5.0))
    without = drawn([line, found("stock", run(1, 100))], tmp_path / "without.png")
    alone = found("stock", run(1, 60, 5.5))
    seen = drawn([line, alone], tmp_path / "with.png")
    unlike = found("stock", run(1, 60, 5.8))
    assert without != seen != drawn([line, unlike], tmp_path / "unlike.png")
    assert drawn([alone], tmp_path / "alone.png").startswith(b"\x89PNG")


def test_nothing_is_drawn_where_nothing_was_evaluated_nor_is_what_was_drawn_before_kept(tmp_path: Path) -> None:
    drawn([found("a", run(1, 60, 5.5))], tmp_path / "curves.png")
    draw_curves("A title", [found("a", run(1, 100))], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["_x", "$_{$ a step", "a $b$"])
def test_any_name_stands_in_the_picture_as_it_is(name: str, tmp_path: Path) -> None:
    others = [drawn([found(other, run(1, 100, 6.0, 5.0))], tmp_path / "other.png", name) for other in ("y", name + "z")]
    assert drawn([found(name, run(1, 100, 6.0, 5.0))], tmp_path / "curves.png", name) not in others
