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
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.formats import to_stock
from electra_albert.hub.load import build, locate, read_stored
from electra_albert.hub.weights import read_tensors, write_safetensors
from electra_albert.model.electra import Generator
from tests.hub.hostile_files import DAMAGED, PICKLES, Harmful, saved, zip_of
from tests.hub.models import write
from tests.model.twins import SHAPE, make_masked_lm
from tests.refusals import assert_refused

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


def refusal(call: Callable[[], object]) -> str:
    """Message of the CheckpointError that `call` raises: one short line without colours."""
    message = assert_refused("CheckpointError", "", call)
    assert len(message) < 450
    return message


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_safetensors_file_is_refused_with_the_reason(folder: Path, name: str) -> None:
    content, word = DAMAGED[name]
    (folder / WEIGHTS).write_bytes(content(folder / WEIGHTS))
    message = refusal(lambda: read_tensors(folder / WEIGHTS))
    assert WEIGHTS in message
    assert word in message


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # torch's, about the test's own files
@pytest.mark.parametrize("name", PICKLES)
def test_pickle_with_anything_but_plain_tensors_is_refused_and_not_run(
    folder: Path, name: str
) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(PICKLES[name](folder / "canary"))
    for read in (lambda: load(folder), lambda: read_tensors(folder / "pytorch_model.bin")):
        assert "pytorch_model.bin" in refusal(read)
    assert not (folder / "canary").exists()


def test_loading_without_checks_runs_the_code(tmp_path: Path) -> None:
    # Planted: so that the tests above would detect code that runs.
    (tmp_path / "weights.pt").write_bytes(PICKLES["code"](tmp_path / "canary"))
    torch.load(tmp_path / "weights.pt", weights_only=False)
    assert (tmp_path / "canary").exists()


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


def test_configuration_that_does_not_fit_its_weights_is_refused_at_once(folder: Path) -> None:
    contents = json.loads((folder / "config.json").read_text())
    # Regression: a million blocks were built before the weights were read.
    blocks = dict.fromkeys(("num_hidden_layers", "num_hidden_groups", "inner_group_num"), 1024)
    # Regression: for BERT, the identity projection of a wrong hidden size took 4 TB.
    wide = {"model_type": "bert", "hidden_size": 1 << 20, "num_attention_heads": 1}
    for change in ({"vocab_size": 2**31 - 1}, {"hidden_size": 24}, blocks, wide):
        (folder / "config.json").write_text(json.dumps(contents | change))
        assert refusal(lambda: load(folder))


def test_flipped_bit_in_our_file_is_detected_by_its_hash(folder: Path) -> None:
    file = folder / WEIGHTS
    whole = file.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")  # of the data
    for offset in (0, *range(start, len(whole), 1 + len(whole) // 20)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        file.write_bytes(damaged)
        assert WEIGHTS in refusal(lambda: read_tensors(file))


def test_compressed_file_is_refused(folder: Path) -> None:
    # Regression: torch unpacked it to a thousand times its size, and read_tensors returned the
    # tensor.
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(2)}))) as old:
        members = {name: old.read(name) for name in old.namelist()}
    (folder / "weights.pt").write_bytes(zip_of(zipfile.ZIP_DEFLATED, **members))
    assert refusal(lambda: read_tensors(folder / "weights.pt"))


def test_a_deeply_nested_tuple_as_a_key_does_not_crash_the_process(tmp_path: Path) -> None:
    # Regression: torch.load hashed it, which overflowed the stack (segmentation fault).
    pickled = b"\x80\x02}(" + b")" + b"\x85" * 500_000 + b"K\x01u."
    file = tmp_path / "weights.pt"
    file.write_bytes(zip_of(**{"archive/data.pkl": pickled, "archive/version": b"3"}))
    reading = get_context("fork").Process(target=refusal, args=(lambda: read_tensors(file),))
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
        assert refusal(lambda: load(folder))
    assert not (folder / "canary").exists()
    for text in ("{}", '{"weight_map": {"a": 1}}'):
        with_index(folder, text)
        assert f"{WEIGHTS}.index.json" in refusal(lambda: load(folder))


def test_two_files_with_the_same_tensor_are_refused(folder: Path) -> None:
    # Regression: the file read last was used, against the index.
    whole: dict[str, Tensor] = load_file(folder / WEIGHTS)
    files = dict.fromkeys(whole, "part.safetensors") | {"predictions.bias": "other.safetensors"}
    write_safetensors(
        {"predictions.bias": torch.ones(SHAPE.vocab_size)}, folder / "other.safetensors"
    )
    with_index(folder, json.dumps({"weight_map": files}))
    assert "predictions.bias" in refusal(lambda: load(folder))
    # Missing.
    with_index(
        folder, json.dumps({"weight_map": files | {"albert.pooler.weight": "part.safetensors"}})
    )
    assert "disagree on 'albert.pooler.weight'" in refusal(lambda: load(folder))
