"""Untrusted weights are read or refused in a short line, and none of their code runs."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electra_albert.contracts import CheckpointError
from electra_albert.hub.formats import to_stock
from electra_albert.hub.load import build, locate, read_stored
from electra_albert.hub.weights import read_tensors, write_safetensors
from electra_albert.model.electra import Generator
from tests.hub.hostile_files import DAMAGED, PICKLES, Harmful, saved, zip_of
from tests.hub.models import write
from tests.model.twins import SHAPE, make_masked_lm
from tests.refusals import assert_refused, rows

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid generator, to be damaged."""
    model = make_masked_lm(SHAPE, with_sentence_order=False)
    made = write(tmp_path / "model", model)
    write_safetensors(to_stock(model.state_dict()), made / WEIGHTS)
    load(made)
    return made


def load(folder: Path) -> Generator:
    return build(read_stored(locate(folder, "generator")), Generator)


def assert_unreadable(read: Callable[..., object], path: Path, *words: str) -> None:
    """Assert that a CheckpointError names all words in one short line without colours."""
    message = assert_refused("CheckpointError", "", read, path)
    assert len(message) < 450
    for word in words:
        assert word in message


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_safetensors_file_is_refused_with_the_reason(folder: Path, name: str) -> None:
    content, word = DAMAGED[name]
    (folder / WEIGHTS).write_bytes(content(folder / WEIGHTS))
    assert_unreadable(read_tensors, folder / WEIGHTS, WEIGHTS, word)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # torch's, about the test's own files
@pytest.mark.parametrize("name", PICKLES)
def test_pickle_with_anything_but_plain_tensors_is_refused_and_not_run(
    folder: Path, name: str
) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(PICKLES[name](folder / "canary"))
    assert_unreadable(load, folder, "pytorch_model.bin")
    assert_unreadable(read_tensors, folder / "pytorch_model.bin", "pytorch_model.bin")
    assert not (folder / "canary").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about the damaged file
def test_damaged_pickle_is_read_or_raises_only_checkpoint_error(tmp_path: Path) -> None:
    # Regression: torch.load also raises IndexError, TypeError, AssertionError and struct.error.
    file = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(3), "b": torch.ones(2)}, file)
    whole = file.read_bytes()
    for offset in range(20, 900, 7):
        file.write_bytes(whole[:offset] + b"R" + whole[offset + 1 :])
        with suppress(CheckpointError):
            read_tensors(file)


# Regression: a million blocks were built before the weights were read; for BERT, the identity
# projection of a wrong hidden size took 4 TB.
OTHER_SIZES = """
{"vocab_size": 2147483647}
{"hidden_size": 24}
{"num_hidden_layers": 1024, "num_hidden_groups": 1024, "inner_group_num": 1024}
{"model_type": "bert", "hidden_size": 1048576, "num_attention_heads": 1}
"""


def test_configuration_that_does_not_fit_its_weights_is_refused_at_once(folder: Path) -> None:
    contents = json.loads((folder / "config.json").read_text())
    for (change,) in rows(OTHER_SIZES):
        (folder / "config.json").write_text(json.dumps(contents | json.loads(change)))
        assert_unreadable(load, folder)


def test_flipped_bit_in_our_file_is_detected_by_its_hash(folder: Path) -> None:
    file = folder / WEIGHTS
    whole = file.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")  # of the data
    for offset in (0, *range(start, len(whole), 1 + len(whole) // 20)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        file.write_bytes(damaged)
        assert_unreadable(read_tensors, file, WEIGHTS)


def test_compressed_file_is_refused(tmp_path: Path) -> None:
    # Regression: torch unpacked it to a thousand times its size, and read_tensors returned the
    # tensor.
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(2)}))) as old:
        members = {name: old.read(name) for name in old.namelist()}
    file = tmp_path / "weights.pt"
    file.write_bytes(zip_of(zipfile.ZIP_DEFLATED, **members))
    assert_unreadable(read_tensors, file)


def test_a_deeply_nested_tuple_as_a_key_does_not_crash_the_process(tmp_path: Path) -> None:
    # Regression: torch.load hashed it, which overflowed the stack (segmentation fault).
    pickled = b"\x80\x02}(" + b")" + b"\x85" * 500_000 + b"K\x01u."
    file = tmp_path / "weights.pt"
    file.write_bytes(zip_of(**{"archive/data.pkl": pickled, "archive/version": b"3"}))
    reading = get_context("fork").Process(target=assert_unreadable, args=(read_tensors, file))
    reading.start()
    reading.join()
    assert reading.exitcode == 0


def with_index(folder: Path, text: str) -> None:
    if (folder / WEIGHTS).exists():
        (folder / WEIGHTS).rename(folder / "part.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text(text)


def test_index_that_names_anything_but_valid_files_next_to_it_is_refused(folder: Path) -> None:
    names = load_file(folder / WEIGHTS)
    (folder.parent / "part.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    (folder / "evil.bin").write_bytes(saved({"a": Harmful(folder / "canary")}))
    (folder / "folder").mkdir()
    for shard in ("../part.safetensors", "folder", "a" * 5000, "a\0b", "gone.bin", "evil.bin"):
        with_index(folder, json.dumps({"weight_map": dict.fromkeys(names, shard)}))
        assert_unreadable(load, folder)
    assert not (folder / "canary").exists()
    for text in ("{}", '{"weight_map": {"a": 1}}'):
        with_index(folder, text)
        assert_unreadable(load, folder, f"{WEIGHTS}.index.json")


def test_two_files_with_the_same_tensor_are_refused(folder: Path) -> None:
    # Regression: the file read last was used, against the index.
    files = dict.fromkeys(load_file(folder / WEIGHTS), "part.safetensors")
    files["predictions.bias"] = "other.safetensors"
    bias = {"predictions.bias": torch.ones(SHAPE.vocab_size)}
    write_safetensors(bias, folder / "other.safetensors")
    with_index(folder, json.dumps({"weight_map": files}))
    assert_unreadable(load, folder, "predictions.bias")
    files["albert.pooler.weight"] = "part.safetensors"  # missing
    with_index(folder, json.dumps({"weight_map": files}))
    assert_unreadable(load, folder, "disagree on 'albert.pooler.weight'")
