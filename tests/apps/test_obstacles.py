"""A machine that cannot compile or has too little memory is told of in one line, and nothing else is hidden by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from electra_albert.apps import pretrain
from electra_albert.apps.job import choose_compilation
from electra_albert.apps.obstacles import memory_of, told_in_one_line, why_not_compiled
from electra_albert.config import TrainingConfig
from electra_albert.contracts import UsageError
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, finish, start

CPU = torch.device("cpu")


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_compiling_is_refused_before_anything_is_prepared(
    finished: Finished, tmp_path: Path
) -> None:
    argv = finished.options(tmp_path / "run", "--torch_compile", "blocks", "--prepared_dir", tmp_path / "none")
    ended = call(pretrain.main, *argv)
    assert_refused(ended, 2, "--torch_compile blocks cannot work here", "no C compiler", "g++", "CXX")
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("_no_compiler")
def test_a_compiler_that_is_named_but_not_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert why_not_compiled(CPU) is not None
    assert choose_compilation("auto", CPU) == "none"


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_full_gpu_is_told_with_the_options_that_help(is_checkpointed: bool) -> None:
    training = TrainingConfig(per_device_train_batch_size=48, gradient_checkpointing=is_checkpointed)
    with pytest.raises(UsageError, match="lower --per_device_train_batch_size 48") as refused, told(training):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert ("set --gradient_checkpointing true" in str(refused.value)) != is_checkpointed


def told(training: TrainingConfig | None = None, compilation: str = "blocks") -> object:
    return told_in_one_line(training or TrainingConfig(), compilation)  # type: ignore[arg-type]


def broken_backend(graph: object, inputs: object) -> object:
    raise RuntimeError("the linker is missing")


def test_a_compiler_that_fails_is_told_with_the_way_around_it() -> None:
    double = torch.compile(lambda x: x * 2, backend=broken_backend)
    with pytest.raises(UsageError, match=r"torch\.compile failed .*--torch_compile none"), told():
        double(torch.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--dry_run",)], ids=["run", "dry run"])
def test_a_run_whose_compiler_fails_ends_in_one_line(
    more: tuple[str, ...], finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")  # which is there, and does nothing but fail
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    argv = finished.options(tmp_path / "run", "--torch_compile", "blocks", *more)
    assert_refused(
        finish(start(["Pretraining.py", *argv], tmp_path)), 2, "torch.compile failed", "--torch_compile none"
    )


@pytest.mark.parametrize("compilation", ["none", "blocks"])
def test_other_errors_stay_what_they_are(compilation: str) -> None:
    with pytest.raises(RuntimeError, match="of its own"), told(compilation=compilation):
        raise RuntimeError("of its own")


def test_memory_is_that_of_the_machine() -> None:
    assert 1 << 28 < memory_of(CPU) < 1 << 50
