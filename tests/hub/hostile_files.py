"""Weight files that are damaged, not what they seem, or made to do harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Change = Callable[[Path], object]  # of a sound model.safetensors, or of a new file in its stead
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


def tensors(edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Change:
    """Written again without a hash, so that the fault must be seen by itself."""

    def change(file: Path) -> None:
        save_file({name: tensor.contiguous() for name, tensor in edit(load_file(file)).items()}, file)

    return change


def replaced(name: str, edit: Callable[[Tensor], Tensor]) -> Change:
    return tensors(lambda found: {**found, name: edit(found[name])})


def zip_of(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def saved(value: object, **options: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made, **options)
    return made.getvalue()


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 47372856\n"

# Each is refused as it is read.
UNREADABLE: dict[str, Change] = {
    "a byte less": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "header of 2^60 bytes": lambda file: file.write_bytes(safetensors_bytes({}, length=1 << 60)),
    "shape of 2^124": lambda file: file.write_bytes(
        safetensors_bytes({"a": entry([1 << 62, 1 << 62], 0, 4)}, bytes(4))
    ),
    "LFS pointer": lambda file: file.write_bytes(LFS_POINTER),
    "60,000 tensors": lambda file: file.write_bytes(
        safetensors_bytes({f"n{number}": entry([0], 0, 0) for number in range(60_000)})
    ),
}

# Each is refused as it is read or put into the model; the word is in the message.
WRONG: dict[str, tuple[Change, str]] = {
    "float8": (replaced(MAPPING, lambda tensor: tensor.to(torch.float8_e4m3fn)), "float8"),
    "no number": (replaced(MAPPING, lambda tensor: tensor.index_fill(0, torch.tensor([3]), torch.nan)), "not finite"),
    "line break in a name": (tensors(lambda t: {**t, "a\nerror: b\x1b[31m": torch.zeros(2)}), "name"),
}

# Each is read by unpickling, and is anything but plain tensors by name.
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "code": lambda canary: saved({"a": Harmful(canary)}),
    "code in a plain pickle": lambda canary: pickle.dumps({"a": Harmful(canary)}),
    "code in a zip's pickle": lambda canary: zip_of(**{"a/data.pkl": pickle.dumps(Harmful(canary)), "a/version": b"3"}),
    "whole module": lambda canary: saved(Whole()),
    "numbers as names": lambda canary: saved({1: torch.zeros(2)}),
    "sparse": lambda canary: saved({"a": torch.eye(3).to_sparse()}),
    "view of nothing": lambda canary: saved({"a": torch.zeros(1).expand(1 << 40)}),
    "nested 1000 deep": lambda canary: b"\x80\x02" + b"(" * 1000 + b"t" * 1000 + b".",
}
