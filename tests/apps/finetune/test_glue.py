"""All of GLUE: tasks with data, MNLI first, small tasks from its model, the diagnostic set."""

import json
import shutil
from pathlib import Path

import pytest

from electra_albert.apps.finetune import main as finetune
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_tasks import cola, mnli, options, results, rte, stsb, tune

QUICK: tuple[object, ...] = ("--max_steps", 3, "--logging_steps", 1)


def arithmetic(folder: Path) -> str:
    """The arithmetic of a sweep; of its training if there is one."""
    return str(json.loads((folder / "environment.json").read_text())["settings"]["arithmetic"])


def test_glue_runs_available_tasks_the_small_ones_from_the_model_of_mnli(
    finished: Finished, tmp_path: Path
) -> None:
    glue, out = tmp_path / "GLUE", tmp_path / "out"
    for make in (cola, rte, mnli, stsb):
        make(glue)
    (glue / "diagnostic").mkdir()  # without labels, as GLUE's own
    shutil.copy(glue / "MNLI" / "test_matched.tsv", glue / "diagnostic" / "diagnostic.tsv")
    more = (*QUICK, "--predict", "test", "--from_mnli", "--precision", "bf16")
    argv = options("glue", glue, finished.folder, out, *more)
    ended = tune(*argv)
    tasks, averages = (results(out)[name] for name in ("tasks", "averages"))
    run, of_mnli = str(finished.folder), str(out / "mnli")
    models = {name: found["model"] for name, found in tasks.items()}
    assert models == {"mnli": run, "cola": run, "stsb": of_mnli, "rte": of_mnli}
    # `precision` is that of the trained tasks.
    assert (arithmetic(out / "cola"), arithmetic(out / "ax")) == ("bf16", "fp32")
    predicted = [out / "ax" / "submission" / "AX.tsv", out / "mnli" / "submission" / "MNLI-m.tsv"]
    assert predicted[0].read_text() == predicted[1].read_text()
    mains = [found["metrics"][found["main_metric"]]["median"] for found in tasks.values()]
    assert averages["electra"]["average"] == pytest.approx(sum(mains) / 4)
    assert set(averages["electra"]["missing"]) == {"sst2", "mrpc", "qqp", "qnli"}
    for name in ("SST-2", "QQP", "WNLI"):
        assert name in ended.err
    log = (out / "cola" / "log.txt").read_text()
    assert log.count("written to ") == 1
    assert "stsb: " not in log
    assert "NOT over all tasks" in ended.out
    submitted = {path.stem for path in out.rglob("submission/*.tsv")}
    assert submitted == {"CoLA", "RTE", "STS-B", "MNLI-m", "MNLI-mm", "AX"}
    assert "new weights" in ended.err
    assert "new weights" not in tune(*argv).err
    record = json.loads((out / "rte" / "environment.json").read_text())
    record["settings"]["weights"] = "other"
    (out / "rte" / "environment.json").write_text(json.dumps(record))
    assert_refused(call(finetune.main, *argv), 4, "started from another model")
