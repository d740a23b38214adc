"""Budgets for the size of the package, in tokens: `make stats` prints them, test_layering.py tests
them.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = "electra_albert"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_FSTRING_START, _FSTRING_END = (
    getattr(tokenize, f"FSTRING_{part}", None) for part in ("START", "END")
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Budget(NamedTuple):
    """A number found in the checkout and its maximum."""

    name: str
    found: int
    most: int


def sources(*names: str) -> dict[str, str]:
    """Source text of files and of all modules in folders, by path relative to the checkout."""
    paths = [ROOT / name for name in names]
    files = [
        file
        for path in paths
        for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))
    ]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def imported_modules(path: str, source: str) -> Iterator[str]:
    """Dotted names of the package's modules that a file imports, also inside functions."""
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


def import_cycle(files: Mapping[str, str]) -> list[str]:
    """Modules of an import cycle, empty if there is none; imports for type checking count too."""
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files
    }
    graph = {}
    for module, path in modules.items():
        names = imported_modules(path, files[path])
        imported = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = (imported & modules.keys()) - {module, PACKAGE}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def lines(files: Mapping[str, str]) -> int:
    return sum(len(source.splitlines()) for source in files.values())


def tokens(files: Mapping[str, str]) -> int:
    """Number of tokens of code, without comments and docstrings."""
    total = 0
    for source in files.values():
        depth = 0  # of f-strings, which Python 3.12 and later split into several tokens
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            depth -= token.type == _FSTRING_END
            total += depth == 0 and token.type not in (*_NO_CODE, _FSTRING_END)
            depth += token.type == _FSTRING_START
        documented = (node for node in ast.walk(ast.parse(source)) if isinstance(node, _DOCUMENTED))
        total -= sum(ast.get_docstring(node) is not None for node in documented)
    return total


def budgets() -> list[Budget]:
    """All budgets that can be counted without running the tests."""
    package = sources(PACKAGE)
    folders = Counter(Path(path).parent for path in package)
    return [
        Budget("tokens of the package", tokens(package), 170_000),
        Budget("files in its largest folder", max(folders.values()), 16),
        Budget(
            "lines of its longest file",
            max(lines({path: text}) for path, text in package.items()),
            400,
        ),
        Budget("modules in an import cycle", len(import_cycle(package)), 0),
        Budget("tokens of tests", tokens(sources("tests")), 215_000),
        Budget("tokens of benchmarks", tokens(sources("benchmarks")), 22_000),
        Budget("tokens of the experiments' runner", tokens(sources("experiments")), 6_200),
    ]


def main() -> None:
    """Print all budgets, and the number of test cases, which pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(ROOT / "tests")]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    cases = Budget("test cases", sum("::" in line for line in listed.splitlines()), 3_600)
    print(f"{'name':32} {'found':>7} {'most':>7}  ok")
    for name, found, most in [*budgets(), cases]:
        print(f"{name:32} {found:7,} {most:7,}  {'yes' if found <= most else 'NO'}")


if __name__ == "__main__":
    main()
