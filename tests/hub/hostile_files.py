"""Damaged, mislabelled and malicious weights files."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MAPPING = "albert.encoder.embedding_hidden_mapping_in.weight"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 47372856\n"


class Harmful:
    """An object whose pickle runs code when loaded: it creates the folder `canary`."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.canary),)


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def edited(change: Change) -> Callable[[Path], bytes]:
    """Rewrite a valid file with a change and without a hash that would reveal it."""

    def content(file: Path) -> bytes:
        tensors = change(load_file(file))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        return file.read_bytes()

    return content


def zip_of(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def saved(value: object) -> bytes:
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()


DAMAGED: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "truncated": (lambda file: file.read_bytes()[:-1], "cannot be read"),
    "LFS pointer": (lambda file: LFS_POINTER, "git lfs pull"),
    "float8": (edited(lambda t: {**t, MAPPING: t[MAPPING].to(torch.float8_e4m3fn)}), "float8"),
    "no number": (edited(lambda t: {**t, MAPPING: t[MAPPING] + torch.nan}), "not finite"),
    "60,000 tensors": (
        edited(lambda t: dict.fromkeys(map(str, range(60_000)), torch.zeros(0))),
        "more than",
    ),
    "line break in a name": (
        edited(lambda t: {**t, "a\nerror: b\x1b[31m": torch.zeros(2)}),
        "tensor name",
    ),
}

# Case: content of a pickled file that is not a mapping from names to plain tensors.
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "code": lambda canary: saved({"a": Harmful(canary)}),
    "code in a zip's pickle": lambda canary: zip_of(
        **{"a/data.pkl": pickle.dumps(Harmful(canary)), "a/version": b"3"}
    ),
    "bare tensor": lambda canary: saved(torch.ones(3)),
    "integer keys": lambda canary: saved({1: torch.zeros(2)}),
    "sparse": lambda canary: saved({"a": torch.eye(3).to_sparse()}),
    "expanded view": lambda canary: saved({"a.decoder.weight": torch.zeros(1).expand(1 << 40)}),
    "shared storage": lambda canary: saved(
        dict.fromkeys(map(str, range(100)), torch.zeros(1 << 10))
    ),
}
