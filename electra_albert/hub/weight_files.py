"""Named tensors out of files that strangers made: bounded, checked, and none of them run.

Safetensors in one file or several with an index, or a .pt or .bin that holds nothing but named tensors.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.pickled_files import check_pickled

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "weights.pt",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_INDEX = ".index.json"
DIGEST = "electra_albert_sha256"  # of the tensors, in the metadata of files we write
_HEADER_SIZE_BYTES = 8  # of the number a safetensors file begins with
_LARGEST_JSON_BYTES = 1 << 20
_LONGEST_NAME = 200  # bytes
_MOST_TENSORS = 50_000
_TIED = ("decoder.weight", "decoder.bias")  # what may stand in a pickled file beside the tensor it is
_HALVES = (torch.float16, torch.bfloat16)
_WRAPPERS = ("model", "state_dict")
_CONVERT = (
    "convert all tensors once and knowingly, as by "
    "safetensors.torch.save_file({n: t.float() for n, t in load_file(FILE).items()}, OTHER)"
)
_ANOTHER_FILE = {  # what a download leaves where the weights should be, by how it begins
    b"version https://git-lfs": "a git LFS pointer, not the file itself; fetch it with git lfs pull",
    b"<!doctype html": "a web page, not the file itself; download it again",
    b"<html": "a web page, not the file itself; download it again",
}
# What torch.load raises on a damaged or hostile file, found by damaging files in thousands of ways.
_DAMAGED = (
    pickle.UnpicklingError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Named tensors of a weights file or of those an index names, on the CPU: finite float32, or whole numbers.

    float16 and bfloat16 become float32. Raises CheckpointError for anything else, also where a file of ours is not as
    it was written.
    """
    tensors = _read_shards(file) if file.name.endswith(_INDEX) else _read_file(file)
    for name, tensor in tensors.items():
        _require_plain(file, name, tensor)
        if tensor.is_floating_point() or tensor.is_complex():
            _require_numbers(file, name, tensor)
    told = sum(tensor.nbytes for name, tensor in tensors.items() if not name.endswith(_TIED))
    if told > sum(part.stat().st_size for part in all_files(file)):
        raise CheckpointError(f"{file} holds tensors that share what is stored; such a file is refused")
    return {name: tensor.float() if tensor.dtype in _HALVES else tensor for name, tensor in tensors.items()}


def all_files(file: Path) -> list[Path]:
    """The files that hold the weights: those an index names, else the one itself. Raises as `read_tensors`."""
    return _shards(file, _places(file)) if file.name.endswith(_INDEX) else [file]


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a small file; CheckpointError where it holds none."""
    _refuse_another_file(file)
    if file.stat().st_size > _LARGEST_JSON_BYTES:
        raise CheckpointError(f"{file} is too large for a model configuration")
    try:
        contents: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({str(error)[:80]})") from None
    if not isinstance(contents, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return contents


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, types and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def write_safetensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a file stock classes load, with the hash by which `read_tensors` sees a damaged one.

    The library writes more than one entry of metadata in any order; here the same tensors give the same bytes.
    """
    from safetensors.torch import save

    content = save(tensors)
    data = _HEADER_SIZE_BYTES + int.from_bytes(content[:_HEADER_SIZE_BYTES], "little")
    header = {"__metadata__": {"format": "pt", DIGEST: digest(tensors)}, **json.loads(content[_HEADER_SIZE_BYTES:data])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_SIZE_BYTES)  # so that the data begins where the format wants it
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(_HEADER_SIZE_BYTES, "little") + text)
        opened.write(memoryview(content)[data:])


def _is_name(text: str) -> bool:
    """Whether it may be shown to a user as it is, and is no longer than a file's name may be."""
    return text.isprintable() and 0 < len(text.encode()) <= _LONGEST_NAME


def _require_plain(file: Path, name: str, tensor: Tensor) -> None:
    if not _is_name(name):
        raise CheckpointError(f"{file} holds {name[:_LONGEST_NAME]!r}, which is no name of a tensor; get another file")
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise CheckpointError(f"{file}: {name} is no plain tensor (sparse, quantized or empty); save it as one")
    if tensor.untyped_storage().nbytes() < tensor.nbytes:
        raise CheckpointError(f"{file}: {name} says it is larger than what is stored of it; such a file is refused")


def _require_numbers(file: Path, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.float32, *_HALVES):
        found = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(f"{file}: {name} is {found}, only float32, float16 and bfloat16 are read; {_CONVERT}")
    if not tensor.isfinite().all():
        raise CheckpointError(f"{file}: {name} holds values that are not finite; the file is damaged or diverged")


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of the files an index names, each of which lies beside it and holds what the index says."""
    places = _places(index)
    tensors: dict[str, Tensor] = {}
    for file in _shards(index, places):
        found = _read_file(file)
        stray = next((name for name in found if places.get(name) != file.name), None)
        if stray is not None:
            raise CheckpointError(f"{file} holds {stray[:_LONGEST_NAME]!r}, which {index} does not place there")
        tensors |= found
    missing = sorted(places.keys() - tensors.keys())
    if missing:
        raise CheckpointError(
            f"{index} promises {missing[0][:_LONGEST_NAME]!r}, which its files do not hold; fetch the model again"
        )
    return tensors


def _places(index: Path) -> dict[str, str]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise CheckpointError(f"{index} holds no weight_map of names to files")
    return places


def _shards(index: Path, places: Mapping[str, str]) -> list[Path]:
    for shard in set(places.values()):
        if Path(shard).name != shard or shard in ("", "..") or not _is_name(shard):
            told = repr(shard[:_LONGEST_NAME])
            raise CheckpointError(f"{index} names {told}, which is no file beside it; such an index is refused")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"{index} names {shard}, which is missing; fetch all files of the model")
    return [index.parent / shard for shard in sorted(set(places.values()))]


def _read_file(file: Path) -> dict[str, Tensor]:
    _refuse_another_file(file)
    return _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickled(file)


def _refuse_another_file(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            start = opened.read(64).lstrip().lower()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror})") from None
    for beginning, told in _ANOTHER_FILE.items():
        if start.startswith(beginning):
            raise CheckpointError(f"{file} is {told}")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            if len(opened.keys()) > _MOST_TENSORS:
                raise CheckpointError(f"{file} holds more than {_MOST_TENSORS} tensors, which no model here has")
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors ({_reason(error)}); it is damaged or no such file"
        ) from None
    if DIGEST in metadata and metadata[DIGEST] != digest(tensors):
        raise CheckpointError(f"{file} is not as it was written: its hash is another; fetch or export it again")
    return tensors


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        check_pickled(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a plain pickle, which is refused in our own words
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        raise CheckpointError(
            f"{file} is no file of plain tensors ({_reason(error)}); anything that could run code is refused"
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(contents, dict) and isinstance(contents.get(wrapper), dict):
            contents = contents[wrapper]
    if not isinstance(contents, dict) or not contents:
        raise CheckpointError(f"{file} holds no mapping of names to tensors")
    for name, tensor in contents.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            found = repr(name[:_LONGEST_NAME]) if isinstance(name, str) else f"a {type(name).__name__} as a name"
            raise CheckpointError(f"{file}: {found} is no tensor; give a flat mapping of names to tensors")
    return dict(contents)


def _reason(error: Exception) -> str:
    """What a library says, in one short line without the colours of a terminal."""
    if isinstance(error, pickle.UnpicklingError):  # it talks of its own options
        return "it holds something else, or is damaged"
    said = "".join(letter for letter in " ".join(str(error).split()) if letter.isprintable())
    return said[:100] or type(error).__name__
