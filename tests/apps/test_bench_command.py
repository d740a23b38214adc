"""A long measurement keeps what it has: numbers are written part by part, and what cannot work is refused first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.bench.__main__ import PARTS, Part, main
from electra_albert.contracts import UsageError, UserError
from tests.apps.tiny_bench import V, set_roofs, write_corpus


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small measurement on a CPU whose numbers go to a file."""
    set_roofs(monkeypatch)
    given = {"corpus": write_corpus(tmp_path), "vocab_size": V, "device": "cpu", "precision": "fp32", "repeats": 1}
    given |= {"prepared_dir": tmp_path / "prepared", "output": tmp_path / "bench.json"}
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


def at_once(*_: object) -> dict[str, int]:
    return {"cases": 1}


def failing(error: BaseException) -> Callable[..., Any]:
    """A measurement that gives two cases, and fails at the third."""

    def measure(*_: object) -> Iterator[list[int]]:
        cases: list[int] = []
        for case in (1, 2):
            cases.append(case)
            yield cases
        raise error

    return measure


FAILURES = {"a refusal": UserError("they differ"), "Ctrl-C": KeyboardInterrupt()}


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES.keys())
def test_what_was_measured_before_a_failure_is_written_and_shown(
    options: list[str],
    error: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in PARTS:
        monkeypatch.setitem(PARTS, name, Part(at_once, lambda result: f"table of {result}"))
    monkeypatch.setitem(PARTS, "batches", Part(failing(error), lambda cases: f"table of case {cases[-1]}"))
    with pytest.raises(type(error)):
        main(["all", *options])
    written = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert {name: written[name] for name in PARTS if name in written} == {
        "step": {"cases": 1},
        "encoder": {"cases": 1},
        "batches": [1, 2],
    }
    assert written["environment"]["device"] == "cpu"
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("table of")]
    assert shown == ["table of {'cases': 1}"] * 2 + ["table of case 1", "table of case 2"]


@pytest.mark.parametrize("what", ["step", "all"])
def test_compiling_without_a_compiler_is_refused_before_anything_is_prepared(
    options: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="compiler") as refused:
        main([what, "--torch_compile", "true", *options])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "prepared").exists()
    assert not (tmp_path / "bench.json").exists()
