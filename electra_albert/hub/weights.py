"""Read and write weights files, safetensors or pickled.

No code in them runs, and memory is proportional to size.
"""

import hashlib
import io
import json
import os
import pickle
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.files import load_json

_INDEX = ".index.json"
WEIGHT_FILES: tuple[str, ...] = (
    "model.safetensors",
    f"model.safetensors{_INDEX}",
    "weights.pt",
    "pytorch_model.bin",
    f"pytorch_model.bin{_INDEX}",
)
DIGEST = "electra_albert_sha256"  # metadata key of the hash of the tensors
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HEADER_SIZE_BYTES = 8  # of the number at the start of a safetensors file
_MAX_JSON_BYTES = 1 << 20
_MAX_NAME = 200  # characters
_MAX_TENSORS = 50_000
_MAX_TUPLES = 20_000  # in a pickle, four per tensor; nested in each other they fit on the stack
_OLD_PARTS = 4  # pickles at the start of a file in torch's old format; the last is the object
# Exceptions of torch.load for damaged or hostile files, collected by fuzzing.
_DAMAGED = (
    *(pickle.UnpicklingError, struct.error, zipfile.BadZipFile, ArithmeticError, AssertionError),
    *(AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError),
    ValueError,
)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read all tensors of a file or of the shards of an index, as finite float32 or integers.

    Raises CheckpointError for anything else.
    """
    tensors: dict[str, Tensor] = {}
    for part, names in all_files(file).items():
        shard = _read_safetensors(part) if part.suffix == ".safetensors" else _read_pickled(part)
        differing = sorted(shard.keys() ^ (shard if names is None else names))
        if differing:
            raise CheckpointError(
                f"{file} and {part.name} disagree on {differing[0][:_MAX_NAME]!r}; fetch both again"
            )
        tensors |= shard
    for name, tensor in tensors.items():
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
            raise CheckpointError(
                f"{file} contains {name[:_MAX_NAME]!r}, no valid tensor name; get another file"
            )
        if tensor.is_floating_point() or tensor.is_complex():
            if tensor.dtype not in _DTYPES:
                raise CheckpointError(
                    f"{file}: {name} is {tensor.dtype}, which is not supported; save it as float32"
                )
            tensors[name] = tensor.float()
            if not tensors[name].isfinite().all():
                raise CheckpointError(
                    f"{file}: {name} is not finite in float32; damaged, or training diverged"
                )
    return tensors


def all_files(file: Path) -> dict[Path, set[str] | None]:
    """The weights files, with the tensor names that an index gives for each.

    `file` itself with None if it is not an index.
    """
    if not file.name.endswith(_INDEX):
        return {file: None}
    weight_map = read_json(file, {"weight_map": dict[str, str]})["weight_map"]
    neighbours = os.listdir(file.parent)
    files: dict[Path, Any] = {}
    for name, shard in sorted(weight_map.items(), key=itemgetter(1)):
        if shard not in neighbours or not (file.parent / shard).is_file():
            raise CheckpointError(
                f"{file} names {shard[:_MAX_NAME]!r}, no file next to it; fetch the whole model"
            )
        files.setdefault(file.parent / shard, set()).add(name)
    return files


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
    result = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        result.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        result.update(tensor.flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()


def write_safetensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file with a hash in its metadata.

    The order of the metadata is fixed, unlike the library's. The file is the size of the header in
    8 bytes, the header in JSON, padded with spaces to a multiple of 8, and the data.
    """
    content = save(tensors)
    size = int.from_bytes(content[:_HEADER_SIZE_BYTES], "little")
    start = _HEADER_SIZE_BYTES + size  # of the data
    metadata = {"format": "pt", DIGEST: digest(tensors)}
    header = {"__metadata__": metadata, **json.loads(content[_HEADER_SIZE_BYTES:start])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_SIZE_BYTES)
    with file.open("wb") as output:
        output.write(len(text).to_bytes(_HEADER_SIZE_BYTES, "little") + text)
        output.write(memoryview(content)[start:])


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(file), framework="pt") as source:
            if len(source.keys()) > _MAX_TENSORS:
                raise CheckpointError(
                    f"{file} contains more than {_MAX_TENSORS} tensors; use another"
                )
            written = (source.metadata() or {}).get(DIGEST)
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors ({_reason(error)}); "
            "fetch it again, or run git lfs pull if it is a pointer"
        ) from None
    if written is not None and written != digest(tensors):
        raise CheckpointError(f"{file} does not match its hash; fetch or export it again")
    return tensors


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        _check_pickled(file)
        # About a plain pickle, which is rejected.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        raise CheckpointError(
            f"{file} has more than plain tensors ({_reason(error)}); get another file"
        ) from None
    for wrapper in ("model", "state_dict"):
        if isinstance(contents, dict) and isinstance(contents.get(wrapper), dict):
            contents = contents[wrapper]
    is_plain = isinstance(contents, dict) and all(map(_is_plain, contents, contents.values()))
    if not is_plain or not contents:
        raise CheckpointError(
            f"{file} contains more than plain tensors; save a flat mapping from names to tensors"
        )
    # A decoder may share the word embeddings, but views must not multiply what is stored.
    if sum(tensor.nbytes for tensor in contents.values()) > 2 * file.stat().st_size:
        raise CheckpointError(f"{file} contains tensors that share storage; save copies of them")
    return dict(contents)


def _is_plain(name: object, tensor: object) -> bool:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        return False
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized)


def _check_pickled(file: Path) -> None:
    """Raise ValueError for a file that unpacks to more than its size, or crashes when it is read.

    Hashing tuples that are nested too deeply, as keys of a dictionary, overflows the stack.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if is_packed or sum(member.file_size for member in members) > file.stat().st_size:
                raise ValueError("it unpacks to more than its size")
            pickled = [member for member in members if member.filename.lower().endswith(".pkl")]
            streams = [io.BytesIO(archive.read(member)) for member in pickled]
    else:
        streams = [io.BytesIO(file.read_bytes())] * _OLD_PARTS  # each read continues in the stream
    tuples = 0
    for stream in streams:
        tuples += sum(code.name.startswith("TUPLE") for code, _, _ in pickletools.genops(stream))
    if tuples > _MAX_TUPLES:
        raise ValueError("its values are nested too deeply")


def _reason(error: Exception) -> str:
    """A library's message as one short line without terminal colours."""
    if isinstance(error, pickle.UnpicklingError):  # its message names options of torch.load
        return "it contains something else, or is damaged"
    text = "".join(filter(str.isprintable, " ".join(str(error).split())))
    return text[:100] or type(error).__name__
