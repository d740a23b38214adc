"""All of GLUE: tasks with data, MNLI first, small tasks from its model, the diagnostic set."""

import json
import shutil
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_tasks import (
    cola,
    mnli,
    options,
    results,
    rte,
    stsb,
    tune,
)

QUICK: tuple[object, ...] = ("--max_steps", 3, "--logging_steps", 1)

# All of GLUE.


def arithmetic(folder: Path) -> str:
    """The arithmetic of a sweep; of its training if there is one."""
    return str(json.loads((folder / "environment.json").read_text())["settings"]["arithmetic"])


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    for make in (cola, rte, mnli, stsb):
        make(tmp_path / "GLUE")
    return tmp_path / "GLUE"


def test_glue_runs_available_tasks_and_reports_missing_ones(
    finished: Finished, glue: Path, tmp_path: Path
) -> None:
    argv = options("glue", glue, finished.folder, tmp_path / "out", *QUICK, "--predict", "test")
    ended = tune(*argv)
    tasks, averages = (results(tmp_path / "out")[name] for name in ("tasks", "averages"))
    assert set(tasks) == {"cola", "rte", "mnli", "stsb"}
    mains = [one["metrics"][one["main_metric"]]["median"] for one in tasks.values()]
    assert averages["electra"]["average"] == pytest.approx(sum(mains) / 4)
    assert set(averages["electra"]["missing"]) == {"sst2", "mrpc", "qqp", "qnli"}
    for name in ("SST-2", "QQP", "WNLI"):
        assert name in ended.err
    assert "NOT over all tasks" in ended.out
    submitted = {path.stem for path in (tmp_path / "out").rglob("submission/*.tsv")}
    assert submitted == {"CoLA", "RTE", "STS-B", "MNLI-m", "MNLI-mm"}
    assert "new weights" in ended.err
    assert "new weights" not in tune(*argv).err


def test_from_mnli_starts_small_tasks_from_its_model(
    finished: Finished, glue: Path, tmp_path: Path
) -> None:
    out, of_mnli = tmp_path / "out", str(tmp_path / "out" / "mnli")
    (glue / "diagnostic").mkdir()
    shutil.copy(glue / "MNLI" / "dev_matched.tsv", glue / "diagnostic" / "diagnostic.tsv")
    argv = options("glue", glue, finished.folder, out, *QUICK, "--from_mnli", "--precision", "bf16")
    run = str(finished.folder)
    tune(*argv)
    models = {name: found["model"] for name, found in results(out)["tasks"].items()}
    assert models == {"mnli": run, "cola": run, "stsb": of_mnli, "rte": of_mnli, "ax": of_mnli}
    assert (arithmetic(out / "cola"), arithmetic(out / "ax")) == ("bf16", "fp32"), (
        "cola is trained in it"
    )
    record = json.loads((out / "rte" / "environment.json").read_text())
    record["settings"]["weights"] = "other"
    (out / "rte" / "environment.json").write_text(json.dumps(record))
    assert_refused(call(finetune.main, *argv), 4, "started from another model")


@pytest.mark.parametrize("has_labels", [True, False])
def test_the_diagnostic_set_is_predicted_by_the_model_of_mnli_and_scored_if_labelled(
    finished: Finished, glue: Path, tmp_path: Path, has_labels: bool
) -> None:
    header, *lines = (glue / "MNLI" / "dev_matched.tsv").read_text().splitlines()
    rows_ = (
        [header, *lines] if has_labels else [line.rpartition("\t")[0] for line in [header, *lines]]
    )
    (glue / "diagnostic").mkdir()
    (glue / "diagnostic" / "diagnostic.tsv").write_text("\n".join(rows_) + "\n")
    tune(*mnli(tmp_path / "GLUE").options(finished.folder, tmp_path / "mnli", *QUICK))
    ended = tune(
        *options(
            "ax",
            glue / "diagnostic",
            tmp_path / "mnli",
            tmp_path / "ax",
            *QUICK,
            "--predict",
            "test",
        )
    )
    header, *handed_in = (tmp_path / "ax" / "submission" / "AX.tsv").read_text().splitlines()
    assert (header, len(handed_in)) == ("index\tprediction", len(lines))
    assert (tmp_path / "ax" / "results.json").exists() == has_labels
    assert ("results.json" in ended.out) == has_labels
    if has_labels:
        of_mnli, found = (results(tmp_path / name)["metrics"] for name in ("mnli", "ax"))
        assert found["matthews_correlation"]["values"] == of_mnli["matthews_correlation"]["values"]
        assert arithmetic(tmp_path / "ax") == "fp32"
        argv = options(
            "ax",
            glue / "diagnostic",
            tmp_path / "mnli",
            tmp_path / "bf16",
            *QUICK,
            "--precision",
            "bf16",
        )
        tune(*argv)
        assert arithmetic(tmp_path / "bf16") == "bf16"
    assert not list((tmp_path / "ax").glob("seed-*/metrics.jsonl"))
