"""What a user gets wrong with a model or a sentence, in demo and export: one line, the right code, nothing run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from electra_albert.apps import demo, export
from electra_albert.corpus.tokenizer import save_tokenizer, train_tokenizer
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, english


@pytest.fixture
def model(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the generator's folder, to damage."""
    return shutil.copytree(finished.folder / "generator", tmp_path / "model")


@pytest.fixture
def sentence(tmp_path: Path) -> Path:
    file = tmp_path / "sentences.txt"
    file.write_text("The quiet [MASK] left.\n")
    return file


def ask(model: Path, *more: object) -> Ended:
    return call(demo.main, "--gen", model, *more)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"The owl.\n\nThe [MASK] " + b"quiet owl " * 40 + b"left.\n", "line 3: 'The [MASK] quiet"),
        (b"", "holds no sentence"),
        (b" \n\n", "holds no sentence"),
        ("The [MASK] left.\n".encode("utf-16"), "is not UTF-8"),
    ],
    ids=["too long", "empty", "blank", "UTF-16"],
)
def test_a_sentence_that_cannot_be_filled_is_refused(
    finished: Finished, tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "sentences.txt"
    file.write_bytes(content)
    for form in ((), ("--json",)):
        ended = ask(finished.folder, "--input", file, *form)
        assert_refused(ended, 3, words)
        assert ended.out == ""


def test_an_input_or_number_that_is_not_there_is_refused(finished: Finished, tmp_path: Path) -> None:
    assert_refused(ask(finished.folder, "--input", tmp_path / "gone.txt"), 2, "gone.txt")
    assert_refused(ask(finished.folder, "--input", tmp_path), 2, "name a text file")
    assert_refused(ask(finished.folder, "--top_k", 0), 2, "top_k=0")
    assert_refused(ask(finished.folder, "--top-k", 3), 2, "did you mean --top_k?")


def test_a_path_that_holds_no_model_is_refused(finished: Finished, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished.folder / "checkpoints", unfinished / "checkpoints")
    assert_refused(ask(tmp_path / "gone"), 2, "does not exist")
    assert_refused(ask(unfinished), 2, "training has not ended yet")
    assert_refused(call(export.main, "--model", unfinished, "--output_dir", tmp_path / "out"), 2, "not ended yet")
    assert not (tmp_path / "out").exists()


def truncate(model: Path) -> None:
    os.truncate(model / "model.safetensors", 1000)


def fill_with_text(model: Path) -> None:
    (model / "model.safetensors").write_text("these are no weights")


def widen_config(model: Path) -> None:
    edit_config(model, hidden_size=64, num_attention_heads=2)


def enlarge_config(model: Path) -> None:
    """A model that would never fit into memory is refused before it is built."""
    edit_config(model, vocab_size=1 << 60)


def call_it_gpt(model: Path) -> None:
    edit_config(model, model_type="gpt2")


def break_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def edit_config(model: Path, **values: object) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "cannot be read as safetensors"),
        (fill_with_text, "cannot be read as safetensors"),
        (widen_config, "its configuration says"),
        (enlarge_config, "vocab_size"),
        (call_it_gpt, "type 'gpt2'"),
        (break_config, "is not JSON"),
    ],
)
def test_a_damaged_model_is_refused(
    model: Path, sentence: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(model)
    assert_refused(ask(model, "--input", sentence), 4, words)
    assert_refused(call(export.main, "--model", model, "--output_dir", tmp_path / "out"), 4, words)
    assert not (tmp_path / "out").exists()


def test_a_model_without_configuration_or_tokenizer_is_refused(model: Path, sentence: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert_refused(ask(model, "--input", sentence), 2, "tokenizer.json")
    (model / "config.json").unlink()
    assert_refused(ask(model, "--input", sentence), 2, "--config FILE")


def test_a_tokenizer_of_another_model_is_refused(finished: Finished, sentence: Path, tmp_path: Path) -> None:
    other = train_tokenizer(english(20, seed=2).splitlines(), 60, True)
    save_tokenizer(other, tmp_path / "other", 40)
    ended = ask(finished.folder, "--tokenizer", tmp_path / "other", "--input", sentence)
    assert_refused(ended, 4, f"has {len(other)} pieces", "--tokenizer")


class Canary:
    """Writes a file if it is ever unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.open, (str(self.file), os.O_CREAT | os.O_WRONLY)


@pytest.mark.parametrize("name", ["weights.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_code_in_a_weights_file_is_refused_and_never_run(
    model: Path, sentence: Path, tmp_path: Path, name: str, writer: str
) -> None:
    (model / "model.safetensors").unlink()
    canary, content = tmp_path / "canary", {"predictions.bias": Canary(tmp_path / "canary")}
    if writer == "torch":
        torch.save(content, model / name)
    else:
        (model / name).write_bytes(pickle.dumps(content))
    for path in (model, model / name):
        assert_refused(ask(path, "--input", sentence), 4, "anything that could run code is refused")
    assert not canary.exists()
    # The canary sings: loaded without care, the same file does run its code.
    with (model / name).open("rb") as file:
        os.close((torch.load(file, weights_only=False) if writer == "torch" else pickle.load(file))["predictions.bias"])
    assert canary.exists()


def test_a_pt_file_of_anything_but_named_tensors_is_refused(model: Path, sentence: Path) -> None:
    (model / "model.safetensors").unlink()
    for content in ({}, [torch.zeros(2)], {"a": 1.5}, {"a": {"b": torch.zeros(2)}}):
        torch.save(content, model / "weights.pt")
        assert_refused(ask(model, "--input", sentence), 4, "tensor")
    (model / "weights.pt").write_bytes(b"")
    assert_refused(ask(model, "--input", sentence), 4, "weights.pt")


def test_an_export_into_a_folder_that_cannot_be_made_is_refused(finished: Finished, sentence: Path) -> None:
    before = sentence.read_text()
    for place in (sentence, sentence / "below"):
        assert_refused(call(export.main, "--model", finished.folder, "--output_dir", place), 2, "cannot write into")
    assert sentence.read_text() == before
