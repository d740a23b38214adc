"""Checkpoints are complete or ignored; a failure loses at most the one being written (law 8)."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from electra_albert.contracts import CheckpointError, DivergedError, UsageError
from electra_albert.training import checkpoint
from electra_albert.training.checkpoint import find_checkpoint, list_checkpoints, save_checkpoint
from electra_albert.training.optimizer import build_optimizer
from tests.budgets import ROOT
from tests.training.toy import CONFIG, ToyObjective, fingerprint


def trained() -> tuple[ToyObjective, torch.optim.Optimizer]:
    """A module and its optimizer after one step."""
    module = ToyObjective()
    optimizer = build_optimizer(module, CONFIG)
    for parameter in module.parameters():
        parameter.grad = torch.linspace(-1, 2, parameter.numel()).view_as(parameter)
    optimizer.step()
    return module, optimizer


STATE = {
    "step": 1,
    "tokens": 5,
    "skipped": [0, 0, 0],
    "loss_scale": {},
    "tally": {},
    "settings": {},
}
STATE |= {"world_size": 1, "threads": 1, "torch": torch.__version__}


def save(folder: Path, step: int, limit: int = 100) -> Path:
    return save_checkpoint(folder, *trained(), STATE | {"step": step}, limit)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(*arguments: object, number: int = errno.EIO) -> None:
    raise OSError(number, os.strerror(number))


def test_load_restores_weights_and_optimizer_state_bitwise_and_tied_weights_are_stored_once(
    tmp_path: Path,
) -> None:
    (module, optimizer), path, fresh = trained(), save(tmp_path, 100), ToyObjective()
    fresh_optimizer = build_optimizer(fresh, CONFIG)
    state = checkpoint.load_checkpoint(path, fresh, fresh_optimizer)
    assert (path.name, state["step"], state["tokens"]) == ("step-0000100", 100, 5)
    assert fingerprint(fresh) == fingerprint(module)
    assert fresh.decoder.weight is fresh.table.weight
    for old, new in zip(module.parameters(), fresh.parameters(), strict=True):
        for key, value in optimizer.state[old].items():
            assert torch.equal(value, fresh_optimizer.state[new][key])
    with safe_open(path / checkpoint.MODEL, "pt") as file:
        assert {"table.weight", "decoder.weight"} & set(file.keys()) == {"table.weight"}


def test_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = save(tmp_path, 1)
    finally:
        os.umask(old)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o640}


def damaged(data: bytes) -> bytes:
    """The bytes with one bit flipped."""
    at = len(data) - len(data) // 3
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


FAULTS = [
    (checkpoint.MODEL, lambda data: data[:-20]),
    (checkpoint.OPTIMIZER, damaged),
    (checkpoint.STATE, None),
    (checkpoint.MANIFEST, lambda _: b"\xff\xfe{["),
    (checkpoint.MANIFEST, lambda _: b'{"format": 2}'),
    (checkpoint.MANIFEST, os.mkfifo),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_never_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, fault: Callable[[Any], Any] | None
) -> None:
    # Planted: each file damaged or missing. The last complete checkpoint is used; without one no
    # new run starts.
    complete, broken = save(tmp_path, 100), save(tmp_path, 200)
    data = (broken / name).read_bytes()
    (broken / name).unlink()
    if fault is os.mkfifo:
        os.mkfifo(broken / name)
    elif fault is not None:
        (broken / name).write_bytes(fault(data))
    assert find_checkpoint(tmp_path, "auto") == complete
    (warning,) = caplog.messages
    assert "step-0000200" in warning
    assert name in warning
    for folder, resume in ((tmp_path, str(broken)), (tmp_path, "auto")):
        with pytest.raises(CheckpointError, match=name):
            find_checkpoint(folder, resume)
        shutil.rmtree(complete, ignore_errors=True)


def test_an_unreadable_folder_is_an_error_and_no_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("listdir", "scandir"):  # the tests may run as root, who may read everything
        monkeypatch.setattr(os, name, partial(failing, number=errno.EACCES))
    with pytest.raises(CheckpointError, match="Permission denied"):
        find_checkpoint(tmp_path, "auto")


def test_an_unreadable_checkpoint_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, newest, is_file = save(tmp_path, 1), save(tmp_path, 2), Path.is_file

    def denied(path: Path) -> bool:
        if newest in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    assert find_checkpoint(tmp_path, "auto") == first


def test_other_files_in_the_folder_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    for name in ("step-12", ".writing-7-step-0000007", "step-0000001.aside-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-0000009").touch()
    (tmp_path / "step-0000008").symlink_to(tmp_path / "step-12")
    assert find_checkpoint(tmp_path, "auto") is find_checkpoint(tmp_path / "none", "never") is None
    save(tmp_path, 1)
    with pytest.raises(UsageError, match="output_dir"):
        find_checkpoint(tmp_path, "never")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda module: setattr(module, "extra", nn.Linear(1, 1, bias=False)), "extra.weight"),
        (lambda module: module.__init__(hidden=3), r"table.weight.*\[11, 5\].*\[11, 3\]"),
        (
            lambda module: setattr(module.decoder, "weight", nn.Parameter(torch.zeros(11, 5))),
            "decoder.weight",
        ),
        (lambda module: module.norm.requires_grad_(False), "norm"),  # has no optimizer state
    ],
)
def test_another_model_changes_nothing(
    tmp_path: Path, change: Callable[[ToyObjective], object], named: str
) -> None:
    path, module = save(tmp_path, 1), ToyObjective()
    change(module)
    before = fingerprint(module)
    with pytest.raises(CheckpointError, match=named):
        checkpoint.load_checkpoint(path, module, build_optimizer(module, CONFIG))
    assert fingerprint(module) == before


def test_a_state_without_one_of_its_entries_is_refused(tmp_path: Path) -> None:
    # As a checkpoint of another version would be.
    file = save(tmp_path, 1) / checkpoint.STATE
    state = json.loads(file.read_text())
    values = [(name, None) for name in (*STATE, "aliases")]
    for name, value in (*values, ("skipped", []), ("skipped", [1, "2", 3])):
        file.write_text(json.dumps(state | {name: value}))
        with pytest.raises(CheckpointError, match=name):
            checkpoint.read_state(file.parent)


@pytest.mark.parametrize("where", ["weight", "moment"])
def test_non_finite_weights_and_moments_are_refused(where: str) -> None:
    # Planted: one NaN in one weight, or in one moment.
    module, optimizer = trained()
    checkpoint.check_finite(module, optimizer)
    weight = module.table.weight
    tensors = {"weight": weight.data, "moment": optimizer.state[weight]["exp_avg_sq"]}
    tensors[where][3, 2] = torch.nan
    with pytest.raises(DivergedError, match=r"table\.weight"):
        checkpoint.check_finite(module, optimizer)


def test_damaged_checkpoints_and_foreign_files_are_not_counted_or_deleted(tmp_path: Path) -> None:
    # Planted: counting folders instead of complete checkpoints would keep only damaged ones.
    (tmp_path / "step-best").mkdir()
    (tmp_path / "step-0000005").symlink_to(tmp_path / "step-best")
    save(tmp_path, 10)
    (save(tmp_path, 20) / checkpoint.MODEL).write_bytes(b"")
    save(tmp_path, 15, limit=2)
    foreign = ["step-0000005", "step-best"]
    complete = ["step-0000010", "step-0000015"]
    assert names(tmp_path) == sorted([*foreign, *complete, "step-0000020"])
    save(tmp_path, 30, limit=1)
    assert names(tmp_path) == sorted([*foreign, "step-0000020", "step-0000030"])


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    for clean in (lambda: checkpoint.tidy(tmp_path, 1), lambda: save(tmp_path, 1)):
        (tmp_path / ".writing-3-step-0000003").mkdir()
        clean()
    assert names(tmp_path) == ["step-0000001"]


def test_checkpoints_after_the_resumed_step_are_renamed_not_deleted(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    for _ in range(2):
        checkpoint.tidy(tmp_path, 1)
        save(tmp_path, 2)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [1, 2]
    assert "step-0000002.aside-2" in names(tmp_path)
    assert "step-0000003.aside-1" in names(tmp_path)


@pytest.mark.parametrize(("call", "step"), [(1, 2), (5, 1)])
def test_disk_errors_leave_the_old_checkpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, step: int
) -> None:
    path, fsync, calls = save(tmp_path, 1), os.fsync, iter(range(1, 100))
    monkeypatch.setattr(
        os, "fsync", lambda number: failing() if next(calls) == call else fsync(number)
    )
    with pytest.raises(OSError, match="Input/output error"):
        save(tmp_path, step, limit=1)
    assert names(tmp_path) == [path.name]
    assert find_checkpoint(tmp_path, "auto") == path


@pytest.mark.slow
def test_sigkill_at_any_file_operation_loses_only_the_steps_since_the_last_save(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.training.faults", "kill", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    through, *results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) > 30  # three saves of at least a dozen operations
    newest = [int(result["found"][5:]) if result["found"] else 0 for result in results]
    assert newest == sorted(newest)  # a run killed later never resumes from an older checkpoint
    assert set(newest) == {0, 2, 4, 6}
    for result in results:
        assert result["warnings"] == []  # every folder with a checkpoint's name is complete
        assert {name: result[name] for name in through} == through
        assert set(result["left"]) <= {"step-0000004", "step-0000006"}  # no leftovers
