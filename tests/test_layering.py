"""Imports point one way only, files stay short, and asking for help loads nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "electra_albert"
LONGEST_FILE_LINES = 400
HEAVY = ("torch", "transformers", "datasets", "tokenizers", "sklearn", "matplotlib")
FOUNDATION = {"config", "data_files", "finetuning_config", "presets", "contracts", "keyed_random"}
# What a folder may import besides itself. Siblings never import one another.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    "corpus": FOUNDATION,
    "model": FOUNDATION,
    "training": FOUNDATION,
    "objectives": FOUNDATION | {"model"},
    "tasks": FOUNDATION | {"model"},
    "apps": FOUNDATION | {"corpus", "model", "training", "objectives", "tasks"},
    "scripts": {"apps"},
}


def sources() -> dict[str, str]:
    """Source text of the package and its scripts, by path relative to the checkout."""
    files = [*(ROOT / PACKAGE).rglob("*.py"), *ROOT.glob("*.py")]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def layer(path: str) -> str:
    """The layer a file belongs to: its folder, its own name in the package's top, or scripts."""
    parts = Path(path).with_suffix("").parts
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else "scripts"


def imported_modules(path: str, source: str) -> Iterator[str]:
    """Dotted names of all modules of the package a file imports, anywhere in it."""
    package = list(Path(path).parts[:-1])
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE)


def violations(files: Mapping[str, str]) -> list[str]:
    """One line for each import that points the wrong way."""
    found = []
    for path, source in files.items():
        mine = layer(path)
        for module in imported_modules(path, source):
            theirs = (*module.split("."), "")[1]
            if theirs not in MAY_IMPORT[mine] | {mine, ""} or theirs == "":
                found.append(f"{path} imports {module}")
    return found


def heavy_modules_loaded(script: Path, cwd: Path) -> set[str]:
    """Heavy packages that a script loads to print its help."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", str(script), "--help"], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr[-500:]
    loaded = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines() if line.startswith("import time:")}
    assert "argparse" in loaded
    return loaded & set(HEAVY)


def test_imports_point_one_way_only() -> None:
    files = sources()
    assert {layer(path) for path in files} >= set(MAY_IMPORT)
    assert violations(files) == []


# Planted: every arrow the design forbids, in each form an import can take.
@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("electra_albert/model/encoder.py", "from electra_albert.training.loop import train"),
        ("electra_albert/training/loop.py", "import electra_albert.corpus.store"),
        ("electra_albert/corpus/store.py", "def read():\n    from electra_albert import model"),
        ("electra_albert/objectives/rtd.py", "from ..training import loop"),
        ("electra_albert/objectives/rtd.py", "from electra_albert.tasks.registry import TASKS"),
        ("electra_albert/model/heads.py", "from .. import objectives"),
        ("electra_albert/contracts.py", "from electra_albert.model.heads import MlmHead"),
        ("electra_albert/training/loop.py", "from electra_albert.apps import pretrain"),
        ("Pretraining.py", "from electra_albert.training.loop import train"),
        ("electra_albert/model/heads.py", "import electra_albert"),
    ],
)
def test_check_rejects_an_import_against_the_arrows(path: str, source: str) -> None:
    assert len(violations({path: source})) == 1


def test_check_allows_what_the_design_allows() -> None:
    allowed = {
        "electra_albert/objectives/rtd.py": "from electra_albert.model import electra\nimport torch",
        "electra_albert/apps/pretrain/main.py": "from electra_albert.training.loop import train",
        "electra_albert/model/heads.py": "from .encoder import Encoder\nfrom electra_albert.config import ModelConfig",
    }
    assert violations(allowed) == []


@pytest.mark.parametrize("script", ["Pretraining.py", "Finetuning.py", "LM_DEMO.py"])
def test_help_loads_nothing_heavy(script: str) -> None:
    assert heavy_modules_loaded(ROOT / script, ROOT) == set()


def test_check_of_help_rejects_a_script_that_loads_a_heavy_package(tmp_path: Path) -> None:
    # Planted: a package of that name beside a script that imports it before it has read its options.
    (tmp_path / "datasets.py").write_text("")
    (tmp_path / "script.py").write_text("import argparse\nimport datasets\nargparse.ArgumentParser().parse_args()\n")
    assert heavy_modules_loaded(tmp_path / "script.py", tmp_path) == {"datasets"}


def test_no_file_is_too_long_to_read_at_once() -> None:
    long = {path: len(source.splitlines()) for path, source in sources().items()}
    assert {path: lines for path, lines in long.items() if lines > LONGEST_FILE_LINES} == {}
