"""Weight files and configurations that are damaged, not what they seem, or made to do harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Change = Callable[[Path], None]  # of a sound model.safetensors, or of a file made anew in its place
TABLE = "albert.embeddings.word_embeddings.weight"
MAPPING = "albert.encoder.embedding_hidden_mapping_in.weight"


class Harmful:
    """Pickles to a call that leaves a mark."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.canary),)


class Whole(nn.Module):
    """A module of a class that only its author has."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


def safetensors_bytes(header: object, payload: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header (JSON, or bytes as they are), said to be of this length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def content(data: bytes) -> Change:
    def change(file: Path) -> None:
        file.write_bytes(data)

    return change


def part(first: int | None, last: int | None) -> Change:
    def change(file: Path) -> None:
        file.write_bytes(file.read_bytes()[first:last])

    return change


def share(of_whole: float) -> Change:
    def change(file: Path) -> None:
        os.truncate(file, int(file.stat().st_size * of_whole))

    return change


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def tensors(edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Change:
    """Written again without a hash, so that what is wrong must be seen by itself."""

    def change(file: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in edit(load_file(file)).items()}, file)

    return change


def replaced(name: str, edit: Callable[[Tensor], Tensor]) -> Change:
    return tensors(lambda found: {**found, name: edit(found[name])})


def renamed(edit: Callable[[str], str]) -> Change:
    return tensors(lambda found: {edit(name): tensor for name, tensor in found.items()})


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    def edit(tensor: Tensor) -> Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return edit


def many_tensors(count: int) -> bytes:
    header = {f"albert.encoder.n{number}": entry([1], 4 * number, 4 * number + 4) for number in range(count)}
    return safetensors_bytes(header, bytes(4 * count))


def zip_of(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def tar_of(**members: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, data in members.items():
            told = tarfile.TarInfo(name)
            told.size = len(data)
            archive.addfile(told, io.BytesIO(data))
    return made.getvalue()


def saved(value: object, **options: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made, **options)
    return made.getvalue()


def scripted() -> bytes:
    """A TorchScript archive."""
    made = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), made)
    return made.getvalue()


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 47372856\n"
WEB_PAGE = b"\n<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>\n"
DUPLICATE = (
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
)

# Each is refused as it is read.
UNREADABLE: dict[str, Change] = {
    "no byte": content(b""),
    "four bytes": content(b"\x08\0\0\0"),
    "eight zeros": content(bytes(8)),
    "half": share(0.5),
    "a byte less": part(None, -1),
    "first byte lost": part(1, None),
    "a byte more": longer,
    "header of 2^60 bytes": content(safetensors_bytes({}, length=1 << 60)),
    "header of 200 MB": content(safetensors_bytes({}, b" " * 100, length=200_000_000)),
    "header of -1": content(safetensors_bytes({}, length=(1 << 64) - 1)),
    "header is no JSON": content(safetensors_bytes(b"{" * 50)),
    "header is no object": content(safetensors_bytes([1, 2])),
    "header nested": content(safetensors_bytes(b"[" * 100_000)),
    "header is null": content(safetensors_bytes(None)),
    "shape of 2^124": content(safetensors_bytes({"a": entry([1 << 62, 1 << 62], 0, 4)}, bytes(4))),
    "shape below nothing": content(safetensors_bytes({"a": entry([-1], 0, 4)}, bytes(4))),
    "overlapping tensors": content(safetensors_bytes({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12))),
    "offsets backwards": content(safetensors_bytes({"a": entry([1], 4, 0)}, bytes(4))),
    "offsets beyond the end": content(safetensors_bytes({"a": entry([1], 0, 1 << 40)}, bytes(4))),
    "a gap": content(safetensors_bytes({"a": entry([1], 8, 12)}, bytes(12))),
    "unknown type": content(safetensors_bytes({"a": entry([1], 0, 4, "F31")}, bytes(4))),
    "metadata of numbers": content(safetensors_bytes({"__metadata__": {"a": 1}})),
    "LFS pointer": content(LFS_POINTER),
    "web page": content(WEB_PAGE),
    "text": content(b"these are no weights\n" * 40),
    "pickle": content(pickle.dumps({"a": 1})),
    "zip": content(zip_of(a=b"1")),
}

# Each is refused as it is read or put into the model; the words say why.
WRONG: dict[str, tuple[Change, str]] = {
    "missing table": (tensors(lambda t: {n: x for n, x in t.items() if n != TABLE}), "word_embeddings"),
    "unknown tensor": (tensors(lambda t: {**t, "lm_head.weight": torch.zeros(2)}), "lm_head.weight"),
    "block too many": (tensors(lambda t: {**t, "albert.encoder.extra": torch.zeros(2)}), "encoder.extra"),
    "head with more": (tensors(lambda t: {**t, "predictions.extra.bias": torch.zeros(2)}), "predictions.extra.bias"),
    "transposed": (replaced(TABLE, lambda tensor: tensor.T), "has shape"),
    "vector for a matrix": (replaced(MAPPING, lambda tensor: tensor[0]), "has shape"),
    "no dimension": (replaced("predictions.bias", lambda tensor: tensor[0].clone()), "has shape"),
    "no values": (replaced("predictions.bias", lambda tensor: tensor[:0]), "has shape"),
    "bfloat16": (replaced(MAPPING, lambda tensor: tensor.bfloat16()), "bfloat16"),
    "float16": (replaced(MAPPING, lambda tensor: tensor.half()), "float16"),
    "float64": (replaced(MAPPING, lambda tensor: tensor.double()), "float64"),
    "float8": (replaced(MAPPING, lambda tensor: tensor.to(torch.float8_e4m3fn)), "float8"),
    "complex": (replaced(MAPPING, lambda tensor: tensor.to(torch.complex64)), "complex64"),
    "whole numbers": (replaced(MAPPING, lambda tensor: tensor.long()), "int64"),
    "bytes": (replaced("predictions.bias", lambda tensor: tensor.to(torch.uint8)), "uint8"),
    "truth values": (replaced("predictions.bias", lambda tensor: tensor > 0), "bool"),
    "no number": (replaced(MAPPING, with_value(float("nan"))), "not finite"),
    "infinity": (replaced(TABLE, with_value(float("-inf"))), "not finite"),
    "untied decoder": (tensors(lambda t: {**t, "predictions.decoder.weight": t[TABLE] + 1}), "decoder"),
    "path in a name": (tensors(lambda t: {**t, "../../escape": torch.zeros(2)}), "../../escape"),
    "absolute path": (tensors(lambda t: {**t, "/tmp/escape": torch.zeros(2)}), "/tmp/escape"),
    "empty name": (tensors(lambda t: {**t, "": torch.zeros(2)}), "holds"),
    "compiled and wrapped": (renamed(lambda name: f"_orig_mod.module.{name}"), "_orig_mod.module."),
    "of another family": (renamed(lambda name: name.replace("albert.", "roberta.")), "roberta."),
    "line break in a name": (tensors(lambda t: {**t, "a\nerror: b\x1b[31m": torch.zeros(2)}), "holds"),
    "one tensor twice": (content(safetensors_bytes(DUPLICATE, bytes(8))), ""),
    "no tensor": (content(safetensors_bytes({})), ""),
    "half the query": (tensors(lambda t: {n: x for n, x in t.items() if "attention.key.w" not in n}), "is there but"),
    "1e5 tensors": (content(many_tensors(100_000)), ""),
}

# Each lies under a name that is read by unpickling.
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "code": lambda canary: saved({"a": Harmful(canary)}),
    "code in an old file": lambda canary: saved({"a": Harmful(canary)}, _use_new_zipfile_serialization=False),
    "code in a plain pickle": lambda canary: pickle.dumps({"a": Harmful(canary)}),
    "code in a zip's pickle": lambda canary: zip_of(**{"a/data.pkl": pickle.dumps(Harmful(canary)), "a/version": b"3"}),
    "code in a tar": lambda canary: tar_of(
        sys_info=pickle.dumps(Harmful(canary)), pickle=b"", storages=b"", tensors=b""
    ),
    "code as a key": lambda canary: saved({Harmful(canary): torch.zeros(2)}),
    "whole module": lambda canary: saved(Whole()),
    "TorchScript": lambda canary: scripted(),
    "zip without a pickle": lambda canary: zip_of(**{"readme.txt": b"no model"}),
    "zip without a member": lambda canary: zip_of(),
    "safetensors": lambda canary: safetensors_bytes({"a": entry([1], 0, 4)}, bytes(4)),
    "web page": lambda canary: WEB_PAGE,
    "LFS pointer": lambda canary: LFS_POINTER,
    "no byte": lambda canary: b"",
    "text": lambda canary: b"these are no weights\n",
    "zeros": lambda canary: bytes(4096),
    "numbers": lambda canary: saved({"a": 1.5}),
    "list": lambda canary: saved([torch.zeros(2)]),
    "tensor alone": lambda canary: saved(torch.zeros(2)),
    "sparse": lambda canary: saved({"a": torch.eye(3).to_sparse()}),
    "meta": lambda canary: saved({"a": torch.empty(3, device="meta")}),
    "quantized": lambda canary: saved({"a": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}),
    "view of nothing": lambda canary: saved({"a": torch.zeros(1).expand(1 << 40)}),
    "nested 1000 deep": lambda canary: b"\x80\x02" + b"(" * 1000 + b"t" * 1000 + b".",
    "opcode of a huge string": lambda canary: b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"a.",
    "opcode of a huge array": lambda canary: b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b"a.",
}
