"""The Python API, the printed examples and the notebook run as documented."""

import doctest
import json
import re
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import yaml
from nbclient import NotebookClient

import electra_albert as ea
from electra_albert.apps.execution import python_call
from electra_albert.apps.finetune.main import parse_finetuning
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.config.finetuning import DataConfig, FinetuneConfig, TuningConfig
from electra_albert.config.presets import PRESETS
from electra_albert.contracts import RunResult
from electra_albert.inference.model import load_model
from tests.apps.tiny_run import ROOT, SHIPPED, english
from tests.refusals import assert_refused, rows

EXAMPLE = re.compile(r"```python\n(.*?)```", re.S)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files of the example in docs/api.md."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path
    (folder / "my.txt").write_text(english(130), encoding="utf-8")
    (folder / "unseen.txt").write_text(english(20, seed=2), encoding="utf-8")
    for name in ("train", "dev"):
        table = "text,animal\n" + "The cat ran,cat\nThe owl sang,owl\n" * 8
        (folder / f"{name}.csv").write_text(table)
    return folder


def test_the_documented_examples_run(in_folder: Path) -> None:
    examples = EXAMPLE.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    with torch.no_grad():  # Regression: a RuntimeError
        exec("\n".join(examples), names)
    assert len(names["losses"]) == 20 // 5  # type: ignore[arg-type]
    run = names["run"]
    assert isinstance(run, RunResult)
    assert (run.step, run.is_stopped) == (20, False)
    assert "discriminator ROC-AUC" in run.summary
    assert "discriminator ROC-AUC" not in repr(run)
    assert (in_folder / "exported" / "model.safetensors").is_file()


def test_the_callers_torch_state_is_neither_used_nor_changed() -> None:
    # Regression: after each training torch.rand gave the same numbers.
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(5)
        before = torch.get_rng_state()
        with torch.inference_mode(), python_call("cpu", 5):
            torch.manual_seed(6)
            weight = torch.rand(2, requires_grad=True)
            (2 * weight).sum().backward()
            assert torch.tensor(1e-40) * 1 == 0  # denormal, and slow
        assert (weight.dtype, weight.grad.tolist()) == (torch.float32, [2, 2])
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_default_dtype() == torch.float64
        assert sys.float_info.min / 2 > 0
    finally:
        torch.set_default_dtype(torch.float32)


TINY: dict[str, Any] = {
    **{"corpus": "my.txt", "vocab_size": 300, "objective": "mlm", "device": "cpu", "max_steps": 8},
    **{"eval_steps": 2, "logging_steps": 1, "eval_examples": 8, "model": {"num_hidden_layers": 1}},
}


def test_options_come_from_a_file_and_then_from_arguments(in_folder: Path) -> None:
    """Regression: a TypeError."""
    Path("my.yaml").write_text(yaml.safe_dump({**TINY, "output_dir": "run"}))
    assert ea.pretrain("my.yaml", max_steps=2).step == 2
    assert yaml.safe_load(Path("run", "config.yaml").read_text())["logging_steps"] == 1
    data = {"train_file": "train.csv", "validation_file": "dev.csv", "label_column": "animal"}
    Path("tune.yaml").write_text(yaml.safe_dump({**data, "model": "run", "seeds": 1}))
    options = {"output_dir": "tuned", "device": "cpu", "max_steps": 2}
    assert ea.finetune(Path("tune.yaml"), **options).step == 2
    assert_refused("UsageError", "gone.yaml", ea.pretrain, "gone.yaml")


def test_calls_in_threads_follow_each_other(in_folder: Path) -> None:
    """Regression: they shared torch's random state, and none could be repeated."""

    def loss(folder: str) -> float:
        return ea.pretrain(**TINY, output_dir=folder).metrics["loss"]

    alone = loss("alone")
    with ThreadPoolExecutor() as threads:
        assert [*threads.map(loss, ("first", "second"))] == [alone, alone]


def test_functions_and_exceptions_are_listed() -> None:
    # Regression: an `except ea.UserError` was an AttributeError, and completion showed nothing.
    assert {"pretrain", "load_model", "UserError", "DataError"} <= {*dir(ea)} & {*ea.__all__}
    assert issubclass(ea.DataError, ea.UserError)
    assert_refused("UsageError", "not both", ea.pretrain, PRESETS["tiny"], corpus="my.txt")


REFUSED = """
UsageError      | gone.txt      | {corpus: gone.txt}
DataError       | no text       | {corpus: empty.txt}
UsageError      | learning_rate | {lerning_rate: 1}
UsageError      | hidden_size   | {model: {hiden_size: 1}}
UsageError      | max_steps     | {max_steps: many}
UsageError      | no effect     | {objective: mlm, rtd: {mask_rate: 0.3}}
CheckpointError | tokenizer     | {tokenizer: damaged}
"""


@pytest.mark.parametrize(("error", "word", "options"), rows(REFUSED))
def test_a_user_error_is_raised(in_folder: Path, error: str, word: str, options: str) -> None:
    (in_folder / "empty.txt").touch()
    (in_folder / "damaged").mkdir()
    (in_folder / "damaged" / "tokenizer.json").write_text("{")
    settings = {"corpus": "my.txt", "output_dir": "run", **yaml.safe_load(options)}
    assert_refused(error, word, ea.pretrain, **settings)


def test_a_config_object_records_a_command_that_repeats_it(in_folder: Path) -> None:
    tiny = PRESETS["tiny"]
    config = replace(
        tiny,
        run=replace(tiny.run, output_dir="run", objective="mlm", device="cpu"),
        corpus=replace(tiny.corpus, corpus="my.txt", vocab_size=300),
        training=replace(tiny.training, max_steps=1, eval_examples=8),
    )
    ea.pretrain(config)
    words = shlex.split(Path("run", "command.txt").read_text())
    assert parse_pretraining(words[words.index("--config") :])[1] == config
    data = DataConfig(train_file="train.csv", validation_file="dev.csv", label_column="animal")
    tuning = TuningConfig(model="run", output_dir="tuned", max_steps=1, device="cpu")
    tuned = FinetuneConfig(data, tuning)
    ea.finetune(tuned)
    words = shlex.split(Path("tuned", "command.txt").read_text())
    repeated = parse_finetuning(words[words.index("--config") :])
    assert repeated.options() == tuned.options()
    assert {*(repeated.chosen or ())} - {"config"} == {*(tuned.chosen or ())}  # else the recipe's


def test_an_empty_group_of_an_idle_objective_is_no_option(in_folder: Path) -> None:
    options = {**TINY, "max_seq_length": 32, "dry_run": True}
    assert ea.pretrain(**options, rtd={}).folder == ea.pretrain(**options).folder


def test_callbacks_get_the_logged_rows_and_can_end_a_run(in_folder: Path) -> None:
    seen: list[dict[str, Any]] = []

    def end_after_four(row: dict[str, Any]) -> bool:
        seen.append(row)
        return row["step"] >= 4

    run = ea.pretrain(**TINY, output_dir="run", on_step=seen.append, on_evaluation=end_after_four)
    written = Path("run", "metrics.jsonl").read_text().splitlines()
    assert seen == [json.loads(line) for line in written]
    assert [row["step"] for row in seen if row["phase"] == "eval"] == [2, 4]
    assert (run.step, run.is_stopped) == (4, False)
    assert Path("run", "generator", "model.safetensors").is_file()
    assert ea.pretrain(**TINY, output_dir="run").step == 8  # continues from the step that was saved

    seen.clear()
    data = {"train_file": "train.csv", "validation_file": "dev.csv", "label_column": "animal"}
    settings = {"model": "run", "output_dir": "tuned", "device": "cpu", "evals_per_epoch": 2}
    batches = {"per_device_train_batch_size": 4, "num_train_epochs": 2}
    ea.finetune(**data, **settings, **batches, seeds=2, on_evaluation=end_after_four)
    assert [row["step"] for row in seen] == [2, 4, 2, 4]


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = ea.nothing_of_ours


NUMBER = re.compile(r"-?\d+\.\d+")


class RoundedNumbers(doctest.OutputChecker):
    """Equal but for spaces and line breaks, numbers to within what rounding to two decimals
    changes.
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        texts = ["".join(NUMBER.sub("#", output).split()) for output in (want, got)]
        numbers = [[float(number) for number in NUMBER.findall(output)] for output in (want, got)]
        return texts[0] == texts[1] and numbers[0] == pytest.approx(numbers[1], abs=0.0051)


def test_the_documented_examples_give_the_documented_output() -> None:
    text = (
        (ROOT / "docs" / "inference.md")
        .read_text(encoding="utf-8")
        .partition("\n## Fine-tuned models")[0]
    )
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if ">>>" in block]
    names = {"model": load_model(SHIPPED, device="cpu")}
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), names, "inference.md", None, None)
    report: list[str] = []
    failed, run = doctest.DocTestRunner(RoundedNumbers()).run(test, out=report.append)
    assert (failed, run) == (0, 12), "".join(report)


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def stream_name(output: Any) -> str:
    """stdout or stderr; empty for values and pictures."""
    return output.get("name", "")


# A part of a cell, and what takes its place in a test of seconds.
SHORTER = {
    "max_steps=200": 'max_steps=20, corpus="tales.txt", vocab_size=300',
    "seeds=1": "seeds=1, max_steps=40, learning_rate=1e-3, max_eval_examples=64",
}


def test_the_quickstart_notebook_pretrains_plots_and_fine_tunes(tmp_path: Path) -> None:
    (examples := tmp_path / "examples").mkdir()
    shutil.copytree(ROOT / "data" / "models", tmp_path / "data" / "models")
    (tmp_path / "tales.txt").write_text(english(130), encoding="utf-8")
    source = (ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8")
    for part, shorter in SHORTER.items():
        assert source.count(part) == 1
        source = source.replace(part, json.dumps(shorter)[1:-1])
    notebook = nbformat.reads(source, as_version=4)
    recorded = {stream_name(out) for out in outputs_of(notebook)}
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(examples)}}).execute()
    # No red stderr.
    assert {stream_name(out) for out in outputs_of(notebook)} == recorded == {"stdout", ""}
    rows = [line for out in outputs_of(notebook) for line in out.get("text", "").splitlines()]
    assert any(row.startswith("step 20/20") for row in rows)
    assert all(len(row) <= 100 for row in rows if row.startswith("step "))
    found = [out["data"] for out in outputs_of(notebook) if "data" in out]
    assert sum("image/png" in data for data in found) == 1
    assert all(label in found[-1]["text/plain"] for label in ("label='music'", "label='sport'"))
    assert (tmp_path / "runs" / "notebook" / "discriminator" / "model.safetensors").is_file()
