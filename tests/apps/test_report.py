"""report.html: its content is that of the run's files, it needs no network, and a browser draws all
of it.
"""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from electra_albert.apps import report, run_folder
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.pretrain.trial import flops_per_step
from electra_albert.files import write_json
from electra_albert.training.monitor import read_metrics
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, assert_refused, call

_TITLES = {
    "Generator loss (nats)",
    "Discriminator ROC-AUC",
    "Discriminator loss (nats)",
    "Learning rate",
}


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
    for row, drawn in zip(
        rows, sorted(run["rows"], key=lambda row: row["elapsed_seconds"]), strict=True
    ):
        expected = {
            key: pytest.approx(one, rel=1e-4) if isinstance(one, float) else one
            for key, one in row.items()
        }
        assert {key: value for key, value in drawn.items() if key != "flops"} == expected
    expected = [flops_per_step(finished.config()) * row["step"] for row in run["rows"]]
    assert [row["flops"] for row in run["rows"]] == expected
    assert all([row["step"] for row in of_text] == [10, STEPS] for of_text in data["samples"])
    assert "held-out scores" in data["scores"]
    assert "100% of the text kept" in data["details"]["Corpus"]
    assert data["details"]["Configuration"] == (finished.folder / "config.yaml").read_text()


def test_the_reference_curves_are_those_of_the_preset(finished: Finished) -> None:
    (_, reference) = report.report_data(finished.folder, [report.REFERENCE])["runs"]
    preset, config = parse_pretraining([])
    config = replace(config, model=replace(config.model, vocab_size=config.corpus.vocab_size))
    last = reference["rows"][-1]
    assert (reference["name"], preset, last["step"]) == (
        "default run",
        "tiny",
        config.training.max_steps,
    )
    assert last["flops"] == flops_per_step(config) * last["step"]
    peak = max(row["learning_rate"] for row in reference["rows"] if "learning_rate" in row)
    assert peak == pytest.approx(config.training.learning_rate, rel=0.1)  # logged every 100 steps


def test_flops_of_an_older_run_are_those_of_its_batch_if_that_never_changed(
    finished: Finished, tmp_path: Path
) -> None:
    shutil.copy(finished.folder / "metrics.jsonl", tmp_path)
    for recorded, per_step in (([[9, 3]], 3), ([[2, 1], [9, 3]], None), ([], None)):
        write_json(tmp_path / "environment.json", {"flops_per_step": recorded})
        (run,) = report.report_data(tmp_path, ())["runs"]
        expected = [per_step and per_step * row["step"] for row in run["rows"]]
        # A chart has no axis without values.
        assert [row.get("flops") for row in run["rows"]] == expected


def test_a_run_killed_before_its_first_row_has_a_report(finished: Finished, tmp_path: Path) -> None:
    shutil.copy(finished.folder / "environment.json", tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    assert call(report.main, "--run", str(tmp_path)).code == 0
    assert data_of(tmp_path / run_folder.REPORT)["scores"] == "no evaluation yet"


def test_text_cannot_end_the_script_and_nothing_is_loaded_from_elsewhere(
    finished: Finished, tmp_path: Path
) -> None:
    run = shutil.copytree(
        finished.folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")
    )
    text = "</script><img src=x><!-- <script>"
    evil = {"step": 1, "text": text, "original": "a", "predictions": [["</SCRIPT>", 0.5]]}
    (run / "samples.jsonl").write_text(json.dumps(evil), encoding="utf-8")
    assert call(report.main, "--run", str(run), "--compare", str(finished.folder)).code == 0
    data = data_of(run / run_folder.REPORT)
    assert data["samples"] == [[evil]]
    assert [each["name"] for each in data["runs"]] == ["run", finished.folder.name]
    addresses = re.findall(
        r"""(?:src|href)\s*=|url\(|@import|https?://[^"'\s]+""",
        (run / run_folder.REPORT).read_text(),
    )
    # The text above.
    assert [found for found in addresses if found != "http://www.w3.org/2000/svg"] == ["src="]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("log.txt", b"20", b"\xf2\x80"),
        ("command.txt", b"python", b"\xff"),
        ("config.yaml", b"corpus", b"\xc3"),
        ("metrics.jsonl", b'"tokens": ', b'"tokens": null, "loss": NaN, "t": '),
        ("metrics.jsonl", b'"elapsed_seconds": ', b'"elapsed_seconds": "1", "t": '),
        ("metrics.jsonl", b'"eval_generator_loss": ', b'"eval_generator_loss": [1e999], "t": '),
        ("samples.jsonl", b'"text": ', b'"text": ["a"], "t": '),
        ("samples.jsonl", b'"text": "', b'"text": "\\ud800'),
        ("samples.jsonl", b'"predictions": [[', b'"predictions": [["a", NaN], ['),
        ("environment.json", b'"corpus_statistics": [', b'"corpus_statistics": [5, '),
        ("environment.json", b'"max_steps": ', b'"max_steps": "4", "m": '),
    ],
)
def test_a_report_is_written_whatever_is_in_a_log(
    finished: Finished, tmp_path: Path, name: str, old: bytes, new: bytes
) -> None:
    unused = shutil.ignore_patterns("checkpoints", "generator", "discriminator")
    run = shutil.copytree(finished.folder, tmp_path / "run", ignore=unused)
    content = (run / name).read_bytes()
    assert old in content
    (run / name).write_bytes(content.replace(old, new))
    ended = call(report.main, "--run", run)
    assert ended.code == 0, ended.err
    data_of(run / run_folder.REPORT)


def test_folders_that_are_no_runs_are_refused(finished: Finished, tmp_path: Path) -> None:
    assert_refused(call(report.main, "--run", str(tmp_path)), 2, "is not a run's folder")
    assert_refused(
        call(report.main, "--run", str(finished.folder), "--compare", str(tmp_path)),
        2,
        str(tmp_path),
    )


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
    if (browser := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("there is no Chromium on PATH")
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
    )
    address = (finished.folder / run_folder.REPORT).as_uri()
    page = subprocess.run(
        [browser, *options, address], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    titles = set(re.findall("<figcaption>([^<]*)<", page))
    assert titles >= _TITLES
    assert page.count("<polyline") > len(titles)
    assert "NaN" not in page
    assert_drawn_inside(page)
    for shown in (
        "discriminator ROC-AUC",
        "Configuration",
        f"{STEPS} of {STEPS}",
        "P(replaced)",
        "original: ",
    ):
        assert shown in page
