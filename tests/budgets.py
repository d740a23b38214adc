"""The size and shape of the package against its budgets: `make stats` prints them, test_layering.py holds them.

Lines are physical ones.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "electra_albert"
STEP_PATH = (  # what one reads to understand one training step
    *("contracts", "keyed_random", "objectives/masking", "objectives/rtd", "model/electra", "model/encoder"),
    *("model/attention", "model/heads", "training/step", "training/loop"),
)


class Budget(NamedTuple):
    """A figure of the checkout and the most it may be."""

    name: str
    found: int
    most: int


def sources(*folders: str) -> dict[str, str]:
    """Source text of all modules below the folders, by path relative to the checkout."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def imported_modules(path: str, source: str) -> Iterator[str]:
    """Dotted names of all modules of the package that a file imports, anywhere in it."""
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


def import_cycles(files: Mapping[str, str]) -> list[list[str]]:
    """Modules that import one another, directly or through others; imports for types alone count too."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files}
    graph = {
        module: {
            name if name in modules else name.rpartition(".")[0]
            for name in imported_modules(path, files[path])
            if name in modules or name.rpartition(".")[0] in modules
        }
        - {module, PACKAGE}
        for module, path in modules.items()
    }
    reached = {module: _reachable(graph, module) for module in graph}
    circles = {tuple(sorted(m for m in reached[module] if module in reached[m])) for module in graph}
    return [list(circle) for circle in sorted(circles) if circle]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph.get(module, ())
    return found


def folder_sizes(files: Mapping[str, str]) -> dict[str, int]:
    """Number of modules directly in each folder."""
    sizes: dict[str, int] = {}
    for path in files:
        folder = Path(path).parent.as_posix()
        sizes[folder] = sizes.get(folder, 0) + 1
    return sizes


def lines(files: Mapping[str, str]) -> int:
    return sum(len(source.splitlines()) for source in files.values())


def budgets() -> list[Budget]:
    """Every budget that is counted without running anything."""
    package = sources(PACKAGE)
    step = {f"{PACKAGE}/{name}.py": package[f"{PACKAGE}/{name}.py"] for name in STEP_PATH}
    return [
        Budget("lines of the package", lines(package), 15_500),
        Budget("files of the package", len(package), 110),
        Budget("files in its largest folder", max(folder_sizes(package).values()), 16),
        Budget("lines that one training step takes to read", lines(step), 1_400),
        Budget("import cycles", len(import_cycles(package)), 0),
        Budget("lines of tests", lines(sources("tests")), 18_000),
        Budget("lines of benchmarks", lines(sources("benchmarks")), 1_000),
        Budget("lines of the experiments' runner", lines(sources("experiments")), 600),
    ]


def _test_cases() -> int:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(ROOT / "tests")]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return sum("::" in line for line in listed.splitlines())


def main() -> None:
    """Print each folder's lines and files, and each budget."""
    package, tests = sources(PACKAGE), sources("tests")
    for files in (package, tests):
        for folder in folder_sizes(files):
            inside = {path: text for path, text in files.items() if Path(path).parent.as_posix() == folder}
            print(f"{folder:40} {lines(inside):7,} lines {len(inside):4} files")
    print()
    for budget in [*budgets(), Budget("test cases", _test_cases(), 3_000)]:
        mark = "" if budget.found <= budget.most else "   over"
        print(f"{budget.name:44} {budget.found:7,} of {budget.most:7,}{mark}")


if __name__ == "__main__":
    main()
