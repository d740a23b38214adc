"""requirements.txt pins every dependency of pyproject.toml, and each tool has the same version everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned(lines: list[str]) -> dict[str, str]:
    """The version of each requirement `name==version`, by the name with its extras."""
    found = [re.fullmatch(r"([\w-]+(?:\[\w+\])?)==(\S+)", line) for line in lines]
    return {match[1].replace("_", "-"): match[2] for match in found if match}


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = pinned((ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines())
    wanted = [Requirement(line) for line in PROJECT["dependencies"]]
    names = {f"{one.name}[{','.join(one.extras)}]" if one.extras else one.name: one for one in wanted}
    assert pins.keys() == {name.replace("_", "-") for name in names}, "run `make requirements`"
    assert all(Version(pins[name.replace("_", "-")]) in one.specifier for name, one in names.items())


@pytest.mark.parametrize("file", [".pre-commit-config.yaml", ".github/workflows/ci.yml"])
def test_a_tool_has_the_version_of_the_extra_dev_everywhere(file: str) -> None:
    tools = pinned(PROJECT["optional-dependencies"]["dev"])
    used = re.findall(r"\b([a-z-]+)==([\w.]+)", (ROOT / file).read_text(encoding="utf-8"))
    assert used
    assert [(name, version) for name, version in used if tools[name] != version] == []
