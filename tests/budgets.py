"""Budgets for size and ease of reading: `make stats` prints them, test_layering.py tests them."""

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
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_VAGUE = "found one each some own mine asked given wanted kept shown other others"
_LONG = 45  # lines of a function


class Budget(NamedTuple):
    """A number found in the checkout and its maximum."""

    name: str
    found: float
    most: float


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


def tokens_by_line(source: str) -> Counter[int]:
    """Number of tokens that start on each line with code: without comments and docstrings."""
    count: Counter[int] = Counter()
    depth = 0  # of f-strings, which Python 3.12 and later split into several tokens
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        depth -= token.type == _FSTRING_END
        if depth == 0 and token.type not in (*_NO_CODE, _FSTRING_END):
            count.update(dict.fromkeys(range(token.start[0], token.end[0] + 1), 0))
            count[token.start[0]] += 1
        depth += token.type == _FSTRING_START
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1):
                del count[line]
    return count


def tokens(files: Mapping[str, str]) -> int:
    return sum(tokens_by_line(source).total() for source in files.values())


def reading(files: Mapping[str, str]) -> list[Budget]:
    """Budgets for the ease of reading."""
    nodes = [node for source in files.values() for node in ast.walk(ast.parse(source))]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    pairs = [node for node in assignments if isinstance(node.value, ast.Tuple)]
    tuples = sum(isinstance(target, ast.Tuple) for node in pairs for target in node.targets)
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in functions]
    vague = sum(name in _VAGUE.split() for name in names)
    walrus = sum(isinstance(node, ast.NamedExpr) for node in nodes)
    count = tokens(files)
    lines = sum(len(tokens_by_line(source)) for source in files.values())
    return [
        Budget("tokens per line of code", count / lines, 8.5),
        Budget("walrus operators per 10,000 tokens", 1e4 * walrus / count, 3),
        Budget("tuple assignments per 10,000 tokens", 1e4 * tuples / count, 6),
        Budget("vague names per 1,000", 1e3 * vague / len(names), 5),
        Budget(f"functions over {_LONG} lines", sum(length > _LONG for length in lengths), 3),
    ]


def budgets() -> list[Budget]:
    """All budgets that can be counted without running the tests."""
    package = sources(PACKAGE)
    folders = Counter(Path(path).parent for path in package)
    longest = max(len(source.splitlines()) for source in package.values())
    return [
        Budget("tokens of the package", tokens(package), 173_600),
        *reading(package),
        Budget("files in its largest folder", max(folders.values()), 16),
        Budget("lines of its longest file", longest, 400),
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
    print(f"{'name':35} {'found':>9} {'most':>9}  ok")
    for name, found, most in [*budgets(), cases]:
        print(f"{name:35} {found:9,.6g} {most:9,.6g}  {'yes' if found <= most else 'NO'}")


if __name__ == "__main__":
    main()
