"""The wheel alone, installed outside the checkout: the console command pretrains on the sample and runs the demo."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 280


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`electra-albert` of a new environment, which borrows this one's packages but for the toolkit's own."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (packages,) = folder.glob("env/lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python.with_name("electra-albert")


def run(command: Path, folder: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONPATH", None)
    words = [str(command), *map(str, argv)]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


@pytest.mark.slow
def test_an_installed_wheel_pretrains_on_the_sample_and_fills_masks(command: Path, tmp_path: Path) -> None:
    sizes = ("--max_steps", 3, "--vocab_size", 500, "--eval_examples", 32, "--preprocessing_num_workers", 1)
    trained = run(command, tmp_path, "pretrain", *sizes)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs" / "sample-tiny" / "discriminator" / "model.safetensors").is_file()
    filled = run(command, tmp_path, "demo")  # with the model that ships: three steps learn nothing
    assert filled.returncode == 0, filled.stderr
    assert "[MASK]" in filled.stdout
    assert "english-h256-l4" in filled.stderr
    assert str(ROOT) not in filled.stderr
