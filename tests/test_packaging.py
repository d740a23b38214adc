"""What is installed is what pyproject.toml asks for; tests reach no other machine; the wheel alone
pretrains.
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import venv
from functools import partial
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from tests.apps.tiny_run import environment
from tests.budgets import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(text: str) -> dict[str, str]:
    return {
        name.replace("_", "-"): version
        for name, version in re.findall(r"([\w-]+(?:\[\w+\])?)==([\w.]+)", text)
    }


def test_every_dependency_is_pinned_within_its_range_and_a_tool_has_one_version() -> None:
    found = pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    wanted = {
        re.split("[<>=]", line)[0].replace("_", "-"): Requirement(line)
        for line in PROJECT["dependencies"]
    }
    assert found.keys() == wanted.keys(), "run `make requirements`"
    assert [name for name, one in wanted.items() if found[name] not in one.specifier] == []
    tools = pins(" ".join(PROJECT["optional-dependencies"]["dev"]))
    for file in (".pre-commit-config.yaml", ".github/workflows/ci.yml", "Makefile"):
        assert len(used := pins((ROOT / file).read_text(encoding="utf-8"))) > 0
        assert used.items() <= tools.items(), file


LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LOCKED = re.compile(
    r"^(\S+==[^;\\\n]+)(?:;([^\\\n]+))?((?: *\\\n +--hash=sha256:[0-9a-f]{64})+)\n", re.M
)


def test_the_lock_file_is_pins_with_hashes_and_holds_every_pinned_version() -> None:
    rest = LOCKED.sub("", LOCK)
    # No pin without a hash, no address.
    assert all(line.startswith("#") for line in rest.splitlines()), rest
    found = pins((ROOT / "requirements.txt").read_text())
    pinned = {name.split("[")[0]: version for name, version in found.items()}
    locked = pins(" ".join(pin for pin, _, _ in LOCKED.findall(LOCK)))
    assert pinned.items() <= locked.items(), "run `make requirements`"


def test_the_licence_list_has_every_package_that_is_locked_for_linux() -> None:
    _, table = (ROOT / "docs" / "licenses.md").read_text(encoding="utf-8").split("| --- | --- |\n")
    names = " ".join(row.split("|")[2] for row in table.splitlines())
    listed = {*names.replace(",", "").split()}
    linux = {"sys_platform": "linux", "platform_machine": "x86_64", "python_full_version": "3.11.0"}
    locked = (
        (pin.split("==")[0], marker or "sys_platform == 'linux'")
        for pin, marker, _ in LOCKED.findall(LOCK)
    )
    assert listed == {name for name, marker in locked if Marker(marker).evaluate(linux)}, (
        "run `make requirements`"
    )


def test_neither_a_test_nor_a_process_that_it_starts_reaches_another_machine() -> None:
    # This machine, by another than its usual address.
    connect = "import socket; socket.create_connection(('127.0.0.2', 9))"
    with pytest.raises(AssertionError, match=r"a test tried to reach 127\.0\.0\.2"):
        exec(connect)
    ended = subprocess.run(
        [sys.executable, "-c", connect], env=environment(), capture_output=True, text=True
    )
    assert "AssertionError: a test tried to reach 127.0.0.2" in ended.stderr


TIMEOUT_SECONDS = 280


def install(folder: Path) -> Path:
    """`electra-albert` in a new environment with the wheel and this environment's dependencies."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # May load what builds the wheel.
    run = partial(subprocess.run, env={**os.environ, "PYTHONPATH": ""}, check=True)
    run([*pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder)])
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)])
    (packages,) = folder.glob("env/lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python.with_name("electra-albert")


SMALL = "--max_steps 3 --vocab_size 500 --eval_examples 32 --preprocessing_num_workers 1"


@pytest.mark.slow
def test_an_installed_wheel_pretrains_on_the_sample_and_fills_masks(tmp_path: Path) -> None:
    (installed := tmp_path / "installed").mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "offline")}
    how = {"capture_output": True, "text": True, "timeout": TIMEOUT_SECONDS}
    call = partial(subprocess.run, cwd=tmp_path, env=env, **how)
    trained = call([command := install(installed), "pretrain", *SMALL.split()])
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "sample-tiny" / "discriminator" / "model.safetensors").is_file()
    (advice,) = (line for line in trained.stdout.splitlines() if line.startswith("next: "))
    assert call(shlex.split(advice.removeprefix("next: "))).returncode == 0
    filled = call([command, "demo"])  # uses the shipped model, since three steps learn nothing
    assert (filled.returncode, "[MASK]" in filled.stdout) == (0, True), filled.stderr
    assert "english-h256-l4" in filled.stderr
    assert str(ROOT) not in filled.stderr
