"""Files of named tensors, safetensors or pickled: nothing in them is run, memory stays a multiple of their size."""

import hashlib
import io
import json
import pickle
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra_albert.contracts import CheckpointError

_INDEX = ".index.json"
WEIGHT_FILES: tuple[str, ...] = ("model.safetensors", f"model.safetensors{_INDEX}")
WEIGHT_FILES += ("weights.pt", "pytorch_model.bin", f"pytorch_model.bin{_INDEX}")
DIGEST = "electra_albert_sha256"  # of the tensors, in the metadata of files we write
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HEADER_SIZE_BYTES = 8  # of the number a safetensors file begins with
_LARGEST_JSON_BYTES = 1 << 20
_LONGEST_NAME = 200  # bytes of a file's, characters of a tensor's
_TIED = ("decoder.weight", "decoder.bias")  # of a masked-token head, which may share storage
_MOST_TENSORS = 50_000
_MOST_TUPLES = 20_000  # in a pickle: four a tensor; as deeply nested as they are many, they still fit on the stack
_OLD_PARTS = 4  # pickles that a file of torch's old form begins with, the last of them what was saved
# What torch.load raises on a damaged or hostile file, found by damaging files in thousands of ways.
_DAMAGED: tuple[type[Exception], ...] = (pickle.UnpicklingError, struct.error, zipfile.BadZipFile, ArithmeticError)
_DAMAGED += (AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError)
_DAMAGED += (ValueError,)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of those an index names: finite float32 or whole numbers, else CheckpointError."""
    tensors = dict[str, Tensor]()
    for part, promised in all_files(file).items():
        found = _read_safetensors(part) if part.suffix == ".safetensors" else _read_pickled(part)
        if promised is not None and (other := sorted(found.keys() ^ promised)):
            raise CheckpointError(f"{file} and {part.name} disagree on {other[0][:_LONGEST_NAME]!r}; fetch both again")
        tensors |= found
    for name, tensor in tensors.items():
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            raise CheckpointError(f"{file} holds {name[:_LONGEST_NAME]!r}, no name of a tensor; get another file")
        if tensor.is_floating_point() or tensor.is_complex():
            if tensor.dtype not in _DTYPES:
                raise CheckpointError(f"{file}: {name} is {tensor.dtype}, which cannot be read; save it as float32")
            tensors[name] = tensor.float()
            if not tensors[name].isfinite().all():
                raise CheckpointError(f"{file}: {name} is not finite in float32; the file is damaged or diverged")
    return tensors


def all_files(file: Path) -> dict[Path, set[str] | None]:
    """The files that hold the weights, those that an index names or `file` itself; with their names of the tensors."""
    if not file.name.endswith(_INDEX):
        return {file: None}
    weight_map = read_json(file).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{file} holds no weight_map of names to files")
    found: dict[Path, set[str] | None] = {}
    for shard in sorted(set(weight_map.values())):
        is_name = shard.isprintable() and len(shard.encode()) <= _LONGEST_NAME and Path(shard).name == shard
        if not is_name or not (file.parent / shard).is_file():
            raise CheckpointError(f"{file} names {shard[:_LONGEST_NAME]!r}, no file next to it; fetch all of the model")
        found[file.parent / shard] = {name for name, other in weight_map.items() if other == shard}
    return found


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a small file; CheckpointError where it holds none."""
    try:
        is_small = file.stat().st_size <= _LARGEST_JSON_BYTES
        contents: Any = json.loads(file.read_text(encoding="utf-8")) if is_small else None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON ({_reason(error)}); fetch it again") from None
    if not isinstance(contents, dict):
        raise CheckpointError(f"{file} holds no JSON object, or one of over {_LARGEST_JSON_BYTES:,} bytes")
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
    """Write a file that stock loads, with a hash in metadata, which the library itself writes in any order."""
    from safetensors.torch import save

    content = save(tensors)
    data = _HEADER_SIZE_BYTES + int.from_bytes(content[:_HEADER_SIZE_BYTES], "little")
    header = {"__metadata__": {"format": "pt", DIGEST: digest(tensors)}, **json.loads(content[_HEADER_SIZE_BYTES:data])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_SIZE_BYTES)  # so that the data begins where the format wants it
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(_HEADER_SIZE_BYTES, "little") + text)
        opened.write(memoryview(content)[data:])


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt") as opened:
            if len(opened.keys()) > _MOST_TENSORS:
                raise CheckpointError(f"{file} holds more than {_MOST_TENSORS} tensors, which no model here has")
            written = (opened.metadata() or {}).get(DIGEST)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, no mapping
    except (SafetensorError, OSError) as error:
        way_out = "fetch it again, a pointer by git lfs pull"
        raise CheckpointError(f"{file} cannot be read as safetensors ({_reason(error)}); {way_out}") from None
    if written is not None and written != digest(tensors):
        raise CheckpointError(f"{file} is not as it was written: its hash is another; fetch or export it again")
    return tensors


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        _check_pickled(file)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a plain pickle, which is refused
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        raise CheckpointError(f"{file} is no file of plain tensors ({_reason(error)}); no other is read") from None
    for wrapper in ("model", "state_dict"):
        if isinstance(contents, dict) and isinstance(contents.get(wrapper), dict):
            contents = contents[wrapper]
    if not isinstance(contents, dict) or not contents or not all(_is_plain(*item) for item in contents.items()):
        raise CheckpointError(f"{file} holds more than plain tensors by name; save a flat mapping of names to tensors")
    own = (tensor.nbytes for name, tensor in contents.items() if not name.endswith(_TIED))  # else is stored once
    if sum(own) > file.stat().st_size:
        raise CheckpointError(f"{file} holds tensors that share storage; save each on its own")
    return dict(contents)


def _is_plain(name: object, tensor: object) -> bool:
    if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        return False
    return not (tensor.is_meta or tensor.is_quantized) and tensor.nbytes <= tensor.untyped_storage().nbytes()


def _check_pickled(file: Path) -> None:
    """Raise ValueError where a file unpacks to more bytes than it has, or nests tuples without end.

    torch.load bounds neither; hashing such a tuple, as every key of a mapping is, overflows the stack of the process.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if is_packed or sum(member.file_size for member in members) > file.stat().st_size:
                raise ValueError("it unpacks to more than its size")
            pickles = [io.BytesIO(archive.read(each)) for each in members if each.filename.lower().endswith(".pkl")]
    else:
        pickles = [io.BytesIO(file.read_bytes())] * _OLD_PARTS  # which are read on from where the one before ended
    names = (opcode.name for pickled in pickles for opcode, _, _ in pickletools.genops(pickled))
    if sum(name.startswith("TUPLE") for name in names) > _MOST_TUPLES:
        raise ValueError("its values are nested without end")


def _reason(error: Exception) -> str:
    """A library's message in one short line without the colours of a terminal."""
    if isinstance(error, pickle.UnpicklingError):  # it talks of its own options
        return "it holds something else, or is damaged"
    text = "".join(letter for letter in " ".join(str(error).split()) if letter.isprintable())
    return text[:100] or type(error).__name__
