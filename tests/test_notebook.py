"""The notebook runs from top to bottom."""

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def outputs(cell: Any, kind: str) -> list[str]:
    """Outputs of a cell that are of a MIME type."""
    return [output["data"][kind] for output in cell.get("outputs", []) if kind in output.get("data", {})]


def test_the_quickstart_notebook_pretrains_plots_and_fine_tunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (examples := tmp_path / "examples").mkdir()
    shutil.copytree(ROOT / "data" / "models", tmp_path / "data" / "models")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(examples)}}).execute()
    pictures = [picture for cell in notebook.cells for picture in outputs(cell, "image/png")]
    assert len(pictures) == 1
    (labels,) = outputs(notebook.cells[-2], "text/plain")
    assert "music" in labels
    assert "sport" in labels
    assert (tmp_path / "runs" / "notebook" / "discriminator" / "model.safetensors").is_file()
