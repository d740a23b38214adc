"""The stock composition trained beside a run: at the run's rates, in a folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from electra_albert.apps.experiment.stock import main
from electra_albert.objectives.rtd import ReplacedTokenDetection
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call

pytestmark = pytest.mark.slow
HARDLY = 1e-12  # of the rate: what it trains stays as it was
OWN = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    """What is read of a run, whose generator has next to no rate of its own."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(finished.folder / "metrics.jsonl", folder)
    options = yaml.safe_load((finished.folder / "config.yaml").read_text(encoding="utf-8"))
    options["rtd"]["generator_rate"] = HARDLY
    (folder / "config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    return folder


def train(run: Path, output: Path, seconds: float) -> dict[str, torch.Tensor]:
    """Layers that generator and discriminator have of their own, and the table they share."""
    ended = call(main, "--like", run, "--output_dir", output, "--seconds", seconds)
    assert ended.code == 0, ended.err
    generator = load_file(output / "generator" / "model.safetensors")
    discriminator = load_file(output / "discriminator" / "model.safetensors")
    return {
        "generator": generator[f"albert.{OWN}"],
        "discriminator": discriminator[f"albert.{OWN}"],
        "table": generator["albert.embeddings.word_embeddings.weight"],
    }


def test_each_part_is_trained_at_the_rate_that_the_run_gives_it(run: Path, tmp_path: Path) -> None:
    short, long = (train(run, tmp_path / name, seconds) for name, seconds in (("short", 0.1), ("long", 2.0)))
    moved = {name: float((short[name] - long[name]).abs().max()) for name in short}
    assert moved["generator"] < 1e-6
    assert moved["discriminator"] > 1e-4
    assert moved["table"] > 1e-4


def test_it_is_scored_as_a_run_is_without_gradients_and_in_its_arithmetic(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    options["precision"] = "bf16"
    (run / "config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    score, seen = ReplacedTokenDetection.score, []

    def watched(self: ReplacedTokenDetection, *arguments: Any) -> Any:
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return score(self, *arguments)

    monkeypatch.setattr(ReplacedTokenDetection, "score", watched)
    train(run, tmp_path / "stock", 0.1)
    assert set(seen) == {(False, True)}


def test_its_folder_tells_the_command_that_made_it_and_is_made_anew_by_that_alone(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "stock"
    for _ in range(2):
        train(run, output, 0.1)
    command = (output / "command.txt").read_text(encoding="utf-8")
    assert command.startswith(f"python -m electra_albert.apps.experiment.stock --like {run} ")


def test_a_run_is_not_overwritten(finished: Finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    ended = call(main, "--like", folder, "--output_dir", folder, "--seconds", 1)
    assert_refused(ended, 2, "is not empty and not of this command; choose another --output_dir")
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
