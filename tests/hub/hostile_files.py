"""Weight files that are damaged, not what they seem, or made to do harm."""

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

Change = Callable[[Path], None]  # of a sound model.safetensors, or of a new file in its stead
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


def tensors(edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Change:
    """Written again without a hash, so that the fault must be seen by itself."""

    def change(file: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in edit(load_file(file)).items()}, file)

    return change


def replaced(name: str, edit: Callable[[Tensor], Tensor]) -> Change:
    return tensors(lambda found: {**found, name: edit(found[name])})


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    def edit(tensor: Tensor) -> Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return edit


def many_tensors(count: int) -> bytes:
    return safetensors_bytes({f"n{number}": entry([0], 0, 0) for number in range(count)})


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
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def saved(value: object, **options: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made, **options)
    return made.getvalue()


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 47372856\n"

# Each is refused as it is read.
UNREADABLE: dict[str, Change] = {
    "a byte less": part(None, -1),
    "header of 2^60 bytes": content(safetensors_bytes({}, length=1 << 60)),
    "shape of 2^124": content(safetensors_bytes({"a": entry([1 << 62, 1 << 62], 0, 4)}, bytes(4))),
    "LFS pointer": content(LFS_POINTER),
    "60,000 tensors": content(many_tensors(60_000)),
}

# Each is refused as it is read or put into the model; the word is in the message.
WRONG: dict[str, tuple[Change, str]] = {
    "missing table": (tensors(lambda t: {n: x for n, x in t.items() if n != TABLE}), "word_embeddings"),
    "float8": (replaced(MAPPING, lambda tensor: tensor.to(torch.float8_e4m3fn)), "float8"),
    "whole numbers": (replaced(MAPPING, lambda tensor: tensor.long()), "int64"),
    "no number": (replaced(MAPPING, with_value(float("nan"))), "not finite"),
    "path in a name": (tensors(lambda t: {**t, "../../escape": torch.zeros(2)}), "../../escape"),
    "line break in a name": (tensors(lambda t: {**t, "a\nerror: b\x1b[31m": torch.zeros(2)}), "name"),
}

# Each is read by unpickling, and is anything but plain tensors by name.
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "code": lambda canary: saved({"a": Harmful(canary)}),
    "code in a plain pickle": lambda canary: pickle.dumps({"a": Harmful(canary)}),
    "code in a zip's pickle": lambda canary: zip_of(**{"a/data.pkl": pickle.dumps(Harmful(canary)), "a/version": b"3"}),
    "code in a tar": lambda canary: tar_of(
        sys_info=pickle.dumps(Harmful(canary)), pickle=b"", storages=b"", tensors=b""
    ),
    "whole module": lambda canary: saved(Whole()),
    "numbers as names": lambda canary: saved({1: torch.zeros(2)}),
    "sparse": lambda canary: saved({"a": torch.eye(3).to_sparse()}),
    "view of nothing": lambda canary: saved({"a": torch.zeros(1).expand(1 << 40)}),
    "one storage fifty times": lambda canary: saved(dict.fromkeys(map(str, range(50)), torch.zeros(1000))),
    "nested 1000 deep": lambda canary: b"\x80\x02" + b"(" * 1000 + b"t" * 1000 + b".",
}
