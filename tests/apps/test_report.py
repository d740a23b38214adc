"""report.html: its content is that of the run's files, it needs no network, and a browser draws all
of it.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from electra_albert.apps import report, run_folder
from electra_albert.apps.pretrain.trial import flops_per_step
from electra_albert.training.monitor import read_metrics
from tests.apps.conftest import Finished
from tests.apps.tiny_run import CHROMIUM, STEPS, assert_refused, call
from tests.refusals import rows

OPTIONS = "--headless --no-sandbox --disable-gpu --dump-dom"
_TITLES = {"Generator loss (nats)", "Discriminator ROC-AUC", "Learning rate"}


def copy_of(finished: Finished, folder: Path) -> Path:
    """A copy of the run without its models."""
    unused = shutil.ignore_patterns("checkpoints", "generator", "discriminator")
    return shutil.copytree(finished.folder, folder / "run", ignore=unused)


def data_of(path: Path) -> dict[str, object]:
    """The data in a report, as its script reads them."""
    found = re.search(
        r'type="application/json">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL
    )
    return json.loads(found[1], parse_constant=pytest.fail)  # JavaScript knows no NaN


def test_a_finished_run_has_a_report_with_its_metrics_samples_and_settings(
    finished: Finished,
) -> None:
    data = report.report_data(finished.folder, ())
    assert data_of(finished.folder / run_folder.REPORT)["samples"] == data["samples"]
    (run,) = data["runs"]
    rows = read_metrics(finished.folder / "metrics.jsonl")
    drawn = sorted(run["rows"], key=lambda row: row["elapsed_seconds"])
    for row, of_page in zip(rows, drawn, strict=True):
        assert of_page.pop("flops") == flops_per_step(finished.config()) * row["step"]
        assert of_page.keys() == row.keys()
        for name, value in row.items():
            is_rounded = isinstance(value, float)
            assert of_page[name] == (pytest.approx(value, rel=1e-4) if is_rounded else value)
    assert all([row["step"] for row in of_text] == [10, STEPS] for of_text in data["samples"])
    assert "held-out scores" in data["scores"]
    assert "100% of the text kept" in data["details"]["Corpus"]
    assert data["details"]["Configuration"] == (finished.folder / "config.yaml").read_text()


def test_a_report_of_many_rows_has_the_newest(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_MOST_ROWS", 1)
    (run,) = report.report_data(finished.folder, ())["runs"]
    assert [row["step"] for row in run["rows"] if row["phase"] == "train"][-1] == STEPS


def test_a_run_killed_before_its_first_row_has_a_report(finished: Finished, tmp_path: Path) -> None:
    shutil.copy(finished.folder / "environment.json", tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    assert call(report.main, "--run", str(tmp_path)).code == 0
    assert data_of(tmp_path / run_folder.REPORT)["scores"] == "no evaluation yet"


def test_text_cannot_end_the_script_and_nothing_is_loaded_from_elsewhere(
    finished: Finished, tmp_path: Path
) -> None:
    run = copy_of(finished, tmp_path)
    text = "</script><img src=x><!-- <script>"
    evil = {"step": 1, "text": text, "original": "a", "predictions": [["</SCRIPT>", 0.5]]}
    (run / "samples.jsonl").write_text(json.dumps(evil), encoding="utf-8")
    assert call(report.main, "--run", str(run), "--compare", str(finished.folder)).code == 0
    data = data_of(run / run_folder.REPORT)
    assert data["samples"] == [[evil]]
    assert [each["name"] for each in data["runs"]] == ["run", finished.folder.name]
    pattern = r"""(?:src|href)\s*=|url\(|@import|https?://[^"'\s]+"""
    addresses = re.findall(pattern, (run / run_folder.REPORT).read_text())
    # The text above.
    assert [found for found in addresses if found != "http://www.w3.org/2000/svg"] == ["src="]


# A file, and what takes the place of a part of it.
DAMAGE = r"""
log.txt          | 20                       | \xf2\x80
command.txt      | python                   | \xff
metrics.jsonl    | "tokens":                | "tokens": null, "loss": NaN, "t":
metrics.jsonl    | "elapsed_seconds":       | "elapsed_seconds": "1", "t":
metrics.jsonl    | "eval_generator_loss":   | "eval_generator_loss": [1e999], "t":
samples.jsonl    | "text":                  | "text": ["a"], "t":
samples.jsonl    | "text": "                | "text": "\\ud800
samples.jsonl    | "predictions": [[        | "predictions": [["a", NaN], [
environment.json | "corpus_statistics": [   | "corpus_statistics": [5,
environment.json | "max_steps":             | "max_steps": "4", "m":
"""


@pytest.mark.parametrize(("name", "old", "new"), rows(DAMAGE))
def test_a_report_is_written_whatever_is_in_a_log(
    finished: Finished, tmp_path: Path, name: str, old: str, new: str
) -> None:
    run = copy_of(finished, tmp_path)
    content = (run / name).read_bytes()
    assert old.encode() in content
    damaged = new.encode().decode("unicode_escape").encode("latin-1")
    (run / name).write_bytes(content.replace(old.encode(), damaged))
    ended = call(report.main, "--run", run)
    assert ended.code == 0, ended.err
    data_of(run / run_folder.REPORT)


def test_folders_that_are_no_runs_are_refused(finished: Finished, tmp_path: Path) -> None:
    assert_refused(call(report.main, "--run", str(tmp_path)), 2, "is not a run's folder")
    assert_refused(call(report.main, "--run", 300 * "x"), 2, "File name too long")
    compared = ("--run", finished.folder, "--compare", tmp_path)
    assert_refused(call(report.main, *compared), 2, str(tmp_path))


def assert_drawn_inside(page: str) -> None:
    """Every point of every chart is inside its frame, and every x axis has a number besides 0."""
    for figure in page.split("<figure>")[1:]:
        top, height = map(float, re.search(r'viewBox="46 (\S+) \S+ (\S+)"', figure).groups())
        drawn = " ".join(re.findall(r'<polyline points="([^"]*)"', figure))
        points = [tuple(map(float, point.split(","))) for point in drawn.split()]
        heights = [y for x, y in points if x <= 332]  # of the run's own length
        assert top <= min(heights) <= max(heights) <= top + height
        assert len(re.findall(r'text-anchor="middle">', figure)) > 1


def test_a_browser_draws_every_chart_and_shows_every_text(
    finished: Finished, tmp_path: Path
) -> None:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on PATH")
    command = [CHROMIUM, *OPTIONS.split(), f"--user-data-dir={tmp_path}"]
    command.append((finished.folder / run_folder.REPORT).as_uri())
    page = subprocess.check_output(command, text=True, timeout=120, stderr=subprocess.DEVNULL)
    titles = set(re.findall("<figcaption>([^<]*)<", page))
    assert titles >= _TITLES
    assert page.count("<polyline") > len(titles)
    assert "NaN" not in page
    assert_drawn_inside(page)
    for shown in ("Configuration", f"{STEPS} of {STEPS}", "P(replaced)", "original: "):
        assert shown in page
