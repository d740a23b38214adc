"""A missing compiler or full memory gives a one-line error, and other errors are not hidden."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps import doctor
from electra_albert.apps.execution import choose_arithmetic, choose_compilation, choose_recording
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.machine import one_line_errors, processor, why_not_compiled
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.run_folder import commit, environment
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import UsageError
from electra_albert.tasks.kinds import TaskObjective
from electra_albert.training import loop
from electra_albert.training.distributed import World
from tests.apps.conftest import Finished
from tests.apps.pretrain.test_distributed_run import NEEDS_COMPILER
from tests.apps.tiny_run import ROOT, STEPS, assert_refused, call, rows, succeed
from tests.apps.tiny_tasks import cola
from tests.refusals import rows as table

CPU = torch.device("cpu")


def test_compiling_needs_a_compiler(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    argv = finished.options(
        tmp_path / "run", "--torch_compile", "step", "--prepared_dir", tmp_path / "none"
    )
    ended = call(pretrain.main, *argv)
    assert_refused(ended, 2, "--torch_compile step cannot work here", "no C compiler", "CXX")
    assert not (tmp_path / "none").exists()


def test_compiling_without_python_headers_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # any existing program
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: None)
    header = tmp_path / "Python.h"
    header.touch()
    assert why_not_compiled(CPU) is None
    header.unlink()
    assert "python3-dev" in str(why_not_compiled(CPU))
    with pytest.raises(UsageError, match=r"--torch_compile step cannot work here.*python3-dev"):
        choose_compilation("step", CPU)


@pytest.mark.parametrize(("problem", "expected"), [(None, "step"), ("Triton is missing", "none")])
def test_on_a_gpu_the_step_is_compiled_if_that_works(
    problem: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("electra_albert.apps.machine.why_not_compiled", lambda device: problem)
    assert choose_compilation("auto", torch.device("cuda")) == expected
    assert choose_compilation("auto", CPU) == "none"


@pytest.mark.parametrize(
    ("flags", "expected"),
    table("""
avx2 avx512_f | fp32
avx512_bf16 | bf16
avx512_bf16 avx512_fp16 | fp32
amx_bf16 avx512_bf16 avx512_fp16 | bf16
bf16 | bf16
"""),
)
def test_auto_precision_is_the_faster_one_of_a_processor(
    flags: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: bf16, 1.4 times slower on a Xeon with its AMX hidden by a virtual machine.
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(flags.split(), True))
    assert choose_arithmetic("auto", CPU) == expected


RECORDED = table("""
asked | fp32 | cuda | yes
asked | bf16 | cuda | yes
default | bf16 | cuda | no
default | bf16 | cpu | no
asked | fp16 | cuda | error
asked | bf16 | cpu | error
""")


def test_the_step_is_recorded_on_a_gpu_if_asked_for() -> None:
    # Not by default before it has run on one.
    configs = {"default": TrainingConfig(), "asked": TrainingConfig(cuda_graphs=True)}
    for config, arithmetic, device, expected in RECORDED:
        values: Any = (configs[config], arithmetic, World(0, 1, torch.device(device)))
        if expected == "error":
            with pytest.raises(UsageError, match="--cuda_graphs true"):
                choose_recording(*values)
        else:
            assert choose_recording(*values) == (expected == "yes"), values


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_out_of_memory_error_names_the_options_that_help(is_checkpointed: bool) -> None:
    training = TrainingConfig(
        per_device_train_batch_size=48, gradient_checkpointing=is_checkpointed
    )
    expected = pytest.raises(UsageError, match="lower --per_device_train_batch_size 48")
    with expected as refused, one_line_errors(training, "step"):
        if is_checkpointed:
            torch.empty(1 << 50)  # on the CPU, a RuntimeError
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert ("set --gradient_checkpointing true" in str(refused.value)) != is_checkpointed


def test_out_of_memory_outside_of_a_training_step_is_a_one_line_error() -> None:
    assert_refused(call(lambda argv: len(bytearray(1 << 60))), 2, "out of memory")


@pytest.mark.parametrize("is_training", [True, False])
def test_out_of_memory_in_fine_tuning_is_a_one_line_error(
    is_training: bool, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = TaskObjective.outputs

    def fails(self: TaskObjective, *arguments: Any) -> Any:
        if self.training is is_training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return outputs(self, *arguments)

    monkeypatch.setattr(TaskObjective, "outputs", fails)
    argv = cola(tmp_path).options(finished.folder, tmp_path / "tuned", "--max_steps", 2)
    ended = call(finetune.main, *argv)
    assert_refused(ended, 2, "out of memory", "--per_device_eval_batch_size 32")


@pytest.mark.parametrize("main", [pretrain.main, doctor.main])
def test_out_of_memory_in_pretraining_is_a_one_line_error(
    main: Any, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop.TrainingStep, "accumulate", fails)
    assert_refused(call(main, *finished.options(tmp_path / "run")), 2, "out of memory")


def test_a_compiler_failure_is_reported_with_a_remedy_and_other_errors_are_raised() -> None:
    def broken_backend(graph: object, inputs: object) -> object:
        raise RuntimeError("the linker is missing")

    double = torch.compile(lambda x: x * 2, backend=broken_backend)
    refused = pytest.raises(UsageError, match=r"torch\.compile failed .*--torch_compile none")
    with refused, one_line_errors(TrainingConfig(), "step"):
        double(torch.ones(3))
    with pytest.raises(RuntimeError, match="a bug"), one_line_errors(TrainingConfig(), "step"):
        raise RuntimeError("a bug")


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.usefixtures("nothing_compiled_yet")
def test_a_compiled_step_gives_the_losses_of_an_eager_one_also_after_resuming(
    finished: Finished, tmp_path: Path
) -> None:
    folder, compiled = tmp_path / "run", ("--torch_compile", "step")
    succeed(pretrain.main, *finished.options(folder, *compiled))
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:07d}")
    ended = succeed(pretrain.main, *finished.options(folder, *compiled))
    assert f"resuming from {folder / 'checkpoints'}" in ended.err
    expected, found = rows(finished.folder)[-1], rows(folder)[-1]
    for name in ("eval_loss", "eval_generator_loss", "eval_discriminator_loss"):
        # Differences from another order of additions accumulate over the float32 updates.
        assert found[name] == pytest.approx(expected[name], rel=1e-3)
    # For both runs.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_cpu_compiles_only_on_request(finished: Finished, tmp_path: Path) -> None:
    assert choose_compilation("step", CPU) == "step"
    ended = call(pretrain.main, *finished.options(tmp_path / "run", "--torch_compile", "all"))
    assert_refused(ended, 2, "torch_compile", "step")


def test_the_recorded_commit_is_complete_marked_if_dirty_and_none_outside_the_checkout(
    tmp_path: Path,
) -> None:
    assert environment()["processor"] == processor() != ""
    assert environment()["commit"] == commit(ROOT)

    def git(*words: str) -> str:
        settings = "-c user.name=x -c user.email=x@example.org -c commit.gpgsign=false"
        command = ["git", "-C", str(tmp_path), *settings.split(), *words]
        return subprocess.check_output(command, text=True).strip()

    git("init", "--quiet")
    (tmp_path / "notes").write_text("one")
    git("add", "notes")
    git("commit", "--quiet", "--message", "one")
    head = git("rev-parse", "HEAD")
    assert commit(tmp_path) == head
    (tmp_path / "notes").write_text("two")
    assert commit(tmp_path) == f"{head}-dirty"
    (tmp_path / "packages").mkdir()  # like a virtual environment inside another project
    assert commit(tmp_path / "packages") is None
