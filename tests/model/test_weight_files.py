"""Weight files of strangers: read, or refused in one short line, in bounded time, and nothing in them is ever run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.names import to_stock
from electra_albert.hub.load import load_generator, locate
from electra_albert.hub.config import stock_config
from electra_albert.hub.weights import DIGEST, read_tensors, write_safetensors
from tests.apps.tiny_run import environment
from tests.model.hostile_files import PICKLES, UNREADABLE, WRONG, Harmful, saved
from tests.model.twins import SHAPE, SPECIAL_IDS, make_masked_lm

SECONDS = 30.0  # a hundred thousand tensors take six on two slow cores
LONGEST_LINE = 450
SLOW = ("1e5 tensors",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound generator, to damage."""
    made = tmp_path / "model"
    made.mkdir()
    model = make_masked_lm(SHAPE, with_sentence_order=False)
    write_safetensors(to_stock(model.state_dict()), made / "model.safetensors")
    (made / "config.json").write_text(json.dumps(stock_config(SHAPE, "AlbertForMaskedLM", SPECIAL_IDS)))
    load_generator(locate(made, "generator"))
    return made


def refusal(call: Callable[[], object]) -> str:
    """What a CheckpointError of `call` says, in one short line without colours, soon."""
    started = time.monotonic()
    with pytest.raises(CheckpointError) as raised:
        call()
    assert time.monotonic() - started < SECONDS
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < LONGEST_LINE
    return message


@pytest.mark.parametrize("name", UNREADABLE)
def test_damaged_safetensors_file_is_refused(folder: Path, name: str) -> None:
    UNREADABLE[name](folder / "model.safetensors")
    assert "model.safetensors" in refusal(lambda: read_tensors(folder / "model.safetensors"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in WRONG])
def test_tensors_of_no_model_known_here_are_refused_with_the_reason(folder: Path, name: str) -> None:
    change, words = WRONG[name]
    change(folder / "model.safetensors")
    assert words in refusal(lambda: load_generator(locate(folder, "generator")))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's, on what is written here
@pytest.mark.parametrize("file", ["weights.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("name", PICKLES)
def test_pickle_of_anything_but_plain_tensors_is_refused_and_not_run(folder: Path, name: str, file: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(PICKLES[name](folder / "canary"))
    assert file in refusal(lambda: load_generator(locate(folder, "generator")))
    assert not (folder / "canary").exists()


def test_canary_of_these_tests_sings_where_its_file_is_trusted(tmp_path: Path) -> None:
    torch.load(io.BytesIO(saved({"a": Harmful(tmp_path / "canary")})), weights_only=False)
    assert (tmp_path / "canary").exists()


def read_or_none(file: Path) -> dict[str, Tensor] | None:
    """What is in a file, or None where it is refused in one line."""
    try:
        return read_tensors(file)
    except CheckpointError as error:
        return None if str(error).isprintable() else {}


def regions(file: Path) -> dict[str, int]:
    """An offset inside every part of a safetensors file of ours: sizes, header, hash, each tensor's first and last."""
    whole = file.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:data])
    found = {f"size, byte {number}": number for number in range(8)}
    found |= {f"header at {number}/16": 8 + (data - 9) * number // 16 for number in range(17)}
    found["hash"] = whole.index(header["__metadata__"][DIGEST].encode()) + 5
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            found |= {f"{name}, name": whole.index(f'"{name}"'.encode()) + 1}
            found |= {f"{name}, first byte": data + start, f"{name}, last byte": data + end - 1}
    return found


@pytest.mark.parametrize("bit", [1, 64])
def test_flipped_bit_anywhere_in_a_file_of_ours_is_seen(folder: Path, bit: int) -> None:
    file = folder / "model.safetensors"
    whole, wanted = file.read_bytes(), read_tensors(file)
    seen, payload = [], sum(tensor.nbytes for tensor in wanted.values())
    for place, offset in regions(file).items():
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
        found = read_or_none(file)
        seen.append(place if found is None else "")
        if found is not None:  # only of what means nothing in the header: a blank, the name of the hash, "pt"
            assert offset < len(whole) - payload, place
            assert found.keys() == wanted.keys(), place
            assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items()), place
    assert len(set(seen)) > 0.9 * len(seen) > 70


def test_a_flipped_bit_in_a_file_without_our_hash_is_not_seen(folder: Path) -> None:
    # Planted: without the hash nothing else would see it, so the test above tests the hash.
    file = folder / "model.safetensors"
    save_file(load_file(file), file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + bytes([whole[-4] ^ 1]) + whole[-3:])
    assert read_tensors(file).keys()


def repacked(data: bytes, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A file of torch.save with some members changed."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", compression) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))
    return made.getvalue()


def test_packed_file_that_would_unpack_to_a_thousand_times_its_size_is_refused(folder: Path) -> None:
    # Regression: torch unpacked it, and read_tensors gave the tensor.
    packed = repacked(saved({"a": torch.zeros(10_000_000)}), lambda name, data: data, zipfile.ZIP_DEFLATED)
    assert len(packed) < 100_000
    (folder / "weights.pt").write_bytes(packed)
    assert "unpacks" in refusal(lambda: read_tensors(folder / "weights.pt"))


@pytest.mark.slow
def test_tuple_nested_without_end_as_a_name_does_not_end_the_process(tmp_path: Path) -> None:
    # Regression: hashed by torch.load, it overflowed the stack: a segmentation fault.
    pickled = b"\x80\x02}(" + b")" + b"\x85" * 500_000 + b"K\x01u."
    data = repacked(saved({"a": torch.zeros(1)}), lambda name, data: pickled if name.endswith("data.pkl") else data)
    (tmp_path / "weights.pt").write_bytes(data)
    code = "import sys; from pathlib import Path; from electra_albert.hub.weights import read_tensors\n"
    code += "try: read_tensors(Path(sys.argv[1]))\nexcept ValueError as error: print(type(error).__name__, error)"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "weights.pt")],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("CheckpointError")
    assert "nested" in ended.stdout


SHARDS = ["../part.safetensors", "/etc/passwd", "sub/part.safetensors", "..\\part", ".", "..", "folder", "a" * 5000]
SHARDS += ["a\nb", "\x1b[31ma", "", "a\0b", "\udc80", "part-9.safetensors", "evil.bin", "model.safetensors.index.json"]


def with_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.mark.parametrize("shard", SHARDS, ids=lambda shard: ascii(shard[:20]))
def test_index_that_names_anything_but_sound_files_beside_it_is_refused(folder: Path, shard: str) -> None:
    names = load_file(folder / "model.safetensors")
    for place in (folder.parent / "part.safetensors", folder / "evil.bin"):
        place.write_bytes(saved({"a": Harmful(folder / "canary")}))
    (folder / "folder").mkdir()
    with_index(folder, json.dumps({"weight_map": dict.fromkeys(names, shard)}))
    assert refusal(lambda: load_generator(locate(folder, "generator")))
    assert not (folder / "canary").exists()


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "{}",
        '{"weight_map": ["a"]}',
        '{"weight_map": null}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {}}',
        '{"weight_map": ' + "[" * 100_000,
        '{"weight_map": {"' + "a" * (2 << 20) + '": "part.safetensors"}}',
        '{"weight_map": {"\\u001b[31m\\n": "part.safetensors"}}',
        '{"weight_map": {"predictions.bias": "part.safetensors"}}',
    ],
    ids=lambda text: text[:30],
)
def test_index_that_does_not_tell_what_is_in_its_files_is_refused(folder: Path, text: str) -> None:
    with_index(folder, text)
    assert "model.safetensors.index.json" in refusal(lambda: load_generator(locate(folder, "generator")))


def test_two_files_with_the_same_tensor_are_refused(folder: Path) -> None:
    # Regression: the one read last won, whatever the index said.
    whole = load_file(folder / "model.safetensors")
    places = dict.fromkeys(whole, "part.safetensors") | {"predictions.bias": "other.safetensors"}
    write_safetensors({"predictions.bias": torch.ones(SHAPE.vocab_size)}, folder / "other.safetensors")
    with_index(folder, json.dumps({"weight_map": places}))
    assert "does not place there" in refusal(lambda: load_generator(locate(folder, "generator")))
    # Without the second one the very same index is sound, and tells which of the two is meant.
    once = {name: tensor for name, tensor in whole.items() if name != "predictions.bias"}
    write_safetensors(once, folder / "part.safetensors")
    assert torch.equal(load_generator(locate(folder, "generator")).predictions.bias, torch.ones(SHAPE.vocab_size))
