"""Read and write weights files, safetensors or pickled: no code in them runs, memory is proportional to size."""

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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.files import load_json

_INDEX = ".index.json"
WEIGHT_FILES: tuple[str, ...] = ("model.safetensors", f"model.safetensors{_INDEX}")
WEIGHT_FILES += ("weights.pt", "pytorch_model.bin", f"pytorch_model.bin{_INDEX}")
DIGEST = "electra_albert_sha256"  # metadata key of the hash of the tensors
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HEADER_SIZE_BYTES = 8  # of the number at the start of a safetensors file
_MAX_JSON_BYTES = 1 << 20
_MAX_NAME = 200  # bytes for a file, characters for a tensor
_TIED = ("decoder.weight", "decoder.bias")  # of an MLM head, may share storage
_MAX_TENSORS = 50_000
_MAX_TUPLES = 20_000  # in a pickle, four per tensor; nested in each other they still fit on the stack
_OLD_PARTS = 4  # pickles at the start of a file in torch's old format; the last is the saved object
# Exceptions of torch.load for damaged or hostile files, collected by fuzzing.
_DAMAGED: tuple[type[Exception], ...] = (pickle.UnpicklingError, struct.error, zipfile.BadZipFile, ArithmeticError)
_DAMAGED += (AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError)
_DAMAGED += (ValueError,)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read all tensors of a file or of the shards of an index, as finite float32 or integers; else CheckpointError."""
    tensors = dict[str, Tensor]()
    for part, promised in all_files(file).items():
        found = _read_safetensors(part) if part.suffix == ".safetensors" else _read_pickled(part)
        if promised is not None and (other := sorted(found.keys() ^ promised)):
            raise CheckpointError(f"{file} and {part.name} disagree on {other[0][:_MAX_NAME]!r}; fetch both again")
        tensors |= found
    for name, tensor in tensors.items():
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
            raise CheckpointError(f"{file} contains {name[:_MAX_NAME]!r}, no valid tensor name; get another file")
        if tensor.is_floating_point() or tensor.is_complex():
            if tensor.dtype not in _DTYPES:
                raise CheckpointError(f"{file}: {name} is {tensor.dtype}, which is not supported; save it as float32")
            tensors[name] = tensor.float()
            if not tensors[name].isfinite().all():
                raise CheckpointError(f"{file}: {name} is not finite in float32; damaged, or training diverged")
    return tensors


def all_files(file: Path) -> dict[Path, set[str] | None]:
    """The weights files and the tensor names an index gives for each; `file` itself (None) if it is not an index."""
    if not file.name.endswith(_INDEX):
        return {file: None}
    weight_map = read_json(file, {"weight_map": dict[str, str]})["weight_map"]
    found: dict[Path, set[str] | None] = {}
    for shard in sorted(set(weight_map.values())):
        is_name = shard.isprintable() and len(shard.encode()) <= _MAX_NAME and Path(shard).name == shard
        if not is_name or not (file.parent / shard).is_file():
            raise CheckpointError(f"{file} names {shard[:_MAX_NAME]!r}, no file next to it; fetch the whole model")
        found[file.parent / shard] = {name for name, other in weight_map.items() if other == shard}
    return found


def read_json(file: Path, kind: Any = dict) -> dict[str, Any]:
    """Read the JSON object of this kind in a small file, else raise CheckpointError."""
    try:
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"it has more than {_MAX_JSON_BYTES:,} bytes")
        contents: dict[str, Any] = load_json(file, kind)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be used ({_reason(error)}); fetch it again") from None
    return contents


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 hash of names, shapes, dtypes and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def write_safetensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file with a hash in its metadata, whose order is fixed, unlike the library's."""
    content = save(tensors)
    data = _HEADER_SIZE_BYTES + int.from_bytes(content[:_HEADER_SIZE_BYTES], "little")
    header = {"__metadata__": {"format": "pt", DIGEST: digest(tensors)}, **json.loads(content[_HEADER_SIZE_BYTES:data])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_SIZE_BYTES)  # aligns the data as the format requires
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(_HEADER_SIZE_BYTES, "little") + text)
        opened.write(memoryview(content)[data:])


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(file), framework="pt") as opened:
            if len(opened.keys()) > _MAX_TENSORS:
                raise CheckpointError(f"{file} contains more than {_MAX_TENSORS} tensors; name another model")
            written = (opened.metadata() or {}).get(DIGEST)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError) as error:
        advice = "fetch it again, or run git lfs pull if it is a pointer"
        raise CheckpointError(f"{file} cannot be read as safetensors ({_reason(error)}); {advice}") from None
    if written is not None and written != digest(tensors):
        raise CheckpointError(f"{file} does not match its hash; fetch or export it again")
    return tensors


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        _check_pickled(file)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # about a plain pickle, which is rejected
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        raise CheckpointError(f"{file} has more than plain tensors ({_reason(error)}); get another file") from None
    for wrapper in ("model", "state_dict"):
        if isinstance(contents, dict) and isinstance(contents.get(wrapper), dict):
            contents = contents[wrapper]
    if not isinstance(contents, dict) or not contents or not all(_is_plain(*item) for item in contents.items()):
        raise CheckpointError(f"{file} contains more than plain tensors; save a flat mapping from names to tensors")
    own = (tensor.nbytes for name, tensor in contents.items() if not name.endswith(_TIED))
    if sum(own) > file.stat().st_size:
        raise CheckpointError(f"{file} contains tensors that share storage; save copies of them")
    return dict(contents)


def _is_plain(name: object, tensor: object) -> bool:
    if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        return False
    return not (tensor.is_meta or tensor.is_quantized) and tensor.nbytes <= tensor.untyped_storage().nbytes()


def _check_pickled(file: Path) -> None:
    """Raise ValueError if a file unpacks to more than its size, or nests tuples so deeply that hashing them crashes."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if is_packed or sum(member.file_size for member in members) > file.stat().st_size:
                raise ValueError("it unpacks to more than its size")
            pickles = [io.BytesIO(archive.read(each)) for each in members if each.filename.lower().endswith(".pkl")]
    else:
        pickles = [io.BytesIO(file.read_bytes())] * _OLD_PARTS  # one stream, each read continues where the last stopped
    names = (opcode.name for pickled in pickles for opcode, _, _ in pickletools.genops(pickled))
    if sum(name.startswith("TUPLE") for name in names) > _MAX_TUPLES:
        raise ValueError("its values are nested too deeply")


def _reason(error: Exception) -> str:
    """A library's message as one short line without terminal colours."""
    if isinstance(error, pickle.UnpicklingError):  # its message names options of torch.load
        return "it contains something else, or is damaged"
    text = "".join(letter for letter in " ".join(str(error).split()) if letter.isprintable())
    return text[:100] or type(error).__name__
