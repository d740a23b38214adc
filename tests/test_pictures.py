"""The pictures of the documentation are those that their scripts draw."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.apps.tiny_run import ROOT

IMAGES = ROOT / "docs" / "images"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_drawings_are_those_of_their_scripts(theme: str) -> None:
    import architecture
    import terminal

    lines = (ROOT / "docs" / "terminal.txt").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 100
    drawings = {"architecture": architecture.draw(theme), "terminal": terminal.draw(lines, theme)}
    for name, drawing in drawings.items():
        ElementTree.fromstring(drawing)
        assert drawing == (IMAGES / f"{name}-{theme}.svg").read_text(encoding="utf-8")


def test_curves_are_drawn_from_the_metrics_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import figures

    rows = [
        {"step": step, "phase": "eval", "eval_generator_loss": 6 / step, "eval_unigram_loss": 6.5}
        | {"eval_discriminator_auc": 1 - 1 / step}
        for step in (2, 4)
    ]
    rows += [{"step": step, "phase": "train", "discriminator_loss": 1 / step} for step in (1, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["figures.py", str(tmp_path), f"a run={tmp_path}"])
    figures.main()
    for theme in ("light", "dark"):
        drawing = ElementTree.parse(tmp_path / f"curves-{theme}.svg").getroot()
        # A run is drawn as a line in each of the panels; text is drawn as outlines.
        groups = {group.get("id") for group in drawing.iter("{http://www.w3.org/2000/svg}g")}
        assert {f"axes_{number}" for number in (1, 2, 3)} <= groups
        assert sum((one or "").startswith("line2d_") for one in groups) > 6
        assert figures.SCHEMES[theme][3][0] in (tmp_path / f"curves-{theme}.svg").read_text()


def test_options_and_names_in_code_are_kept_whole_on_the_site() -> None:
    import hooks

    page = "<p>a-b <code>electra-albert demo --top_k 3</code> <code>runs/x-y</code></p>"
    marked = [f'<span class="hyphenated">{name}</span>' for name in ("electra-albert", "--top_k")]
    expected = page.replace("electra-albert", marked[0]).replace("--top_k", marked[1])
    assert hooks.on_page_content(page) == expected
