"""Imports follow the layers, without cycles; the budgets hold; --help imports no heavy package."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.budgets import PACKAGE, ROOT, Budget, budgets, import_cycle, imported_modules, sources

HEAVY = ("torch", "transformers", "datasets", "tokenizers", "sklearn", "matplotlib")
FOUNDATION = {"config", "contracts", "files", "keyed_random"}
READING = FOUNDATION | {"data_files"}
# Folders and modules that a folder may import in addition to itself.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(READING, READING),
    "model": FOUNDATION,
    "training": FOUNDATION,
    "tokenization": FOUNDATION,
    "corpus": READING | {"tokenization"},
    "hub": FOUNDATION | {"model", "tokenization"},
    "objectives": FOUNDATION | {"model"},
    "tasks": READING | {"hub", "model", "tokenization"},
    "inference": READING | {"corpus", "hub", "model", "objectives", "tasks", "tokenization"},
    "apps": READING
    | {"corpus", "hub", "inference", "model", "objectives", "tasks", "tokenization", "training"},
    "cli": FOUNDATION | {"__init__", "apps"},
    "__init__": {"apps", "contracts", "inference"},
    "__main__": {"cli"},
    "scripts": {"cli"},
}


def layer(path: str) -> str:
    """The layer of a file: its folder, its module name in the package's root, or scripts."""
    parts = Path(path).with_suffix("").parts
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else "scripts"


def violations(files: Mapping[str, str]) -> list[str]:
    """A line for each import that is not allowed."""
    found = []
    for path, source in files.items():
        mine = layer(path)
        for module in imported_modules(path, source):
            theirs = (*module.split("."), "")[1]
            theirs = "__init__" if theirs == "__version__" else theirs
            if theirs not in MAY_IMPORT[mine] | {mine}:
                found.append(f"{path} imports {module}")
    return found


def heavy_modules_loaded(script: Path) -> set[str]:
    """Heavy packages that a script imports to print its help."""
    command = [sys.executable, "-X", "importtime", str(script), "--help"]
    run = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr[-500:]
    loaded = {
        line.rsplit("|", 1)[-1].strip()
        for line in run.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "argparse" in loaded
    return loaded & set(HEAVY)


def test_imports_follow_the_layers() -> None:
    files = sources(PACKAGE) | {
        file.name: file.read_text(encoding="utf-8") for file in ROOT.glob("*.py")
    }
    assert {layer(path) for path in files} == set(MAY_IMPORT)
    assert violations(files) == []


# Planted: forbidden imports in every form of the import statement.
@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("electra_albert/model/encoder.py", "from electra_albert.training.loop import train"),
        ("electra_albert/corpus/store.py", "def read():\n    from electra_albert import model"),
        ("electra_albert/objectives/rtd.py", "from ..training import loop"),
        ("Pretraining.py", "from electra_albert.training.loop import train"),
        ("electra_albert/model/heads.py", "import electra_albert"),
    ],
)
def test_the_check_rejects_an_import_against_the_layers(path: str, source: str) -> None:
    assert len(violations({path: source})) == 1


def test_the_check_finds_a_cycle_of_three() -> None:
    files = {
        "electra_albert/model/a.py": "def later():\n    from electra_albert.model import b",
        "electra_albert/model/b.py": "from electra_albert.model.c import thing",
        "electra_albert/model/c.py": "from .a import later",
        "electra_albert/model/d.py": "from .a import later",
    }
    assert import_cycle(files) == [f"electra_albert.model.{name}" for name in "abc"]


@pytest.mark.parametrize("budget", budgets(), ids=lambda budget: budget.name)
def test_the_budgets_hold(budget: Budget) -> None:
    assert budget.found <= budget.most


@pytest.mark.parametrize("script", ["Pretraining.py", "Finetuning.py", "LM_DEMO.py"])
def test_help_imports_no_heavy_package(script: str) -> None:
    assert heavy_modules_loaded(ROOT / script) == set()


def test_the_check_of_help_rejects_a_script_that_imports_a_heavy_package(tmp_path: Path) -> None:
    # Planted: a package of that name next to a script that imports it before it parses its options.
    (tmp_path / "datasets.py").write_text("")
    (tmp_path / "script.py").write_text(
        "import argparse\nimport datasets\nargparse.ArgumentParser().parse_args()\n"
    )
    assert heavy_modules_loaded(tmp_path / "script.py") == {"datasets"}
