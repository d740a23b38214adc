"""Hostile files, and the programs that read them."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import pickle
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import torch

LIMIT_SECONDS, MOST_BYTES = 30, 3 << 30  # of one command
_DEEP, _NOISE = b"[" * 100_000, random.Random(0).randbytes(100_000)
_BOMB_BYTES = 1 << 28


class Hostile(NamedTuple):
    """Files by path, each with its content or a function that makes it; the first replaces a word
    of the command.
    """

    program: str
    files: Mapping[str, bytes | Callable[[Path], object]]
    replaced_word: str = ""

    def write(self, folder: Path, command: str) -> list[str]:
        """Write the files; returns the arguments."""
        for name, content in self.files.items():
            if callable(content):
                content(folder / name)
            else:
                (folder / name).write_bytes(content)
        return [
            next(iter(self.files)) if word == self.replaced_word else word
            for word in command.split()
        ]


class _Executed:
    """An object whose pickle makes the folder `canary` when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, ("canary",)


def _saved(file: Path) -> None:
    torch.save({"a": _Executed()}, file)


def _aliases() -> bytes:
    """YAML of nine levels of nine aliases."""
    pairs = zip("abcdefgh", "bcdefghi", strict=True)
    levels = [f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]" for below, name in pairs]
    return "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *levels, ""]).encode()


def _edit(change: Callable[[Any], Any]) -> Callable[[Path], object]:
    """A function that changes the JSON in a file."""
    return lambda file: file.write_text(json.dumps(change(json.loads(file.read_text()))))


def _lengthen_token(content: Any) -> Any:
    content["model"]["vocab"][-1][0] = "x" * 1_000_000
    return content


def _pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def _link(target: str) -> Callable[[Path], None]:
    def make(file: Path) -> None:
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    return make


def _options(content: bytes) -> Hostile:
    return Hostile("plan", {"options.yaml": content})


def _corpus(name: str, content: bytes | Callable[[Path], object]) -> Hostile:
    return Hostile("prepare", {name: content}, "text.txt")


def _demo(name: str, content: bytes | Callable[[Path], object]) -> Hostile:
    return Hostile("demo", {f"run/generator/{name}": content})


_CHECKPOINT, _STATE = "run/checkpoints/step-0000004", b'{"step": 4}'
_FORGED = {"size": len(_STATE), "sha256": hashlib.sha256(_STATE).hexdigest()}
_REMOTE = {
    "auto_map": {"AutoModel": "code.Model"},
    "architectures": ["Model"],
    "model_type": "remote",
}
_FORGERY: dict[str, bytes | Callable[[Path], object]] = {
    f"{_CHECKPOINT}/state.json": _STATE,
    f"{_CHECKPOINT}/MANIFEST.json": _edit(
        lambda old: {"format": old["format"], "files": old["files"] | {"state.json": _FORGED}}
    ),
}
HOSTILE = {
    "YAML bomb": _options(_aliases()),
    "YAML bomb in an option": _options(_aliases() + b"corpus: *i\n"),
    "YAML that calls a function": _options(b"corpus: !!python/object/apply:os.mkdir [canary]"),
    "deep YAML": _options(_DEEP),
    "NUL in a path": _options(b'corpus: "a\\0b"'),
    "options in UTF-16": _options("seed: 1".encode("utf-16")),
    "huge vocabulary": _options(b"corpus: text.txt\nvocab_size: 1000000000000"),
    "named pipe": _corpus("a.txt", _pipe),
    "no text": _corpus("a.txt", b""),
    "NULs": _corpus("a.txt", bytes(100_000)),
    "noise": _corpus("a.txt", _NOISE),
    "UTF-16": _corpus("a.txt", "A cat sat. ".encode("utf-16") * 1000),
    "endless line": _corpus("a.txt", lambda file: file.write_bytes(b"x" * (1 << 24))),
    "gzip bomb": _corpus("a.gz", lambda file: file.write_bytes(gzip.compress(bytes(_BOMB_BYTES)))),
    "bzip2 bomb": _corpus(
        "a.txt.bz2", lambda file: file.write_bytes(bz2.compress(bytes(_BOMB_BYTES)))
    ),
    "zstd bomb": _corpus(
        "a.txt.zst",
        lambda file: file.write_bytes(pyarrow.compress(bytes(_BOMB_BYTES), "zstd", True)),
    ),
    "cut xz": _corpus("a.txt.xz", lzma.compress(_NOISE)[:50_000]),
    "deep JSON lines": _corpus("a.jsonl", _DEEP),
    "no Parquet": _corpus("a.parquet", b"PAR1" + bytes(1000) + b"PAR1"),
    "list of sources with a bomb": _corpus("a.yaml", _aliases()),
    "stars over a folder in itself": Hostile(
        "prepare", {"/".join("*" * 40): lambda file: None, "loop": _link(".")}, "text.txt"
    ),
    "pickled weights": Hostile("demo", {"run/generator/a.bin": _saved}, "run/generator"),
    "long safetensors header": _demo("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
    "pickle as safetensors": _demo("model.safetensors", pickle.dumps(_Executed())),
    "huge model": _demo("config.json", _edit(lambda old: old | {"hidden_size": 10**9})),
    "remote code": _demo("config.json", _edit(lambda old: old | _REMOTE)),
    "deep config.json": _demo("config.json", _DEEP),
    "token of 1 MB": _demo("tokenizer.json", _edit(_lengthen_token)),
    "deep tokenizer.json": _demo("tokenizer.json", _DEEP),
    "endless input": Hostile("demo", {"/dev/zero": lambda file: None}, "lines.txt"),
    "endless training file": Hostile("finetune", {"/dev/zero": lambda file: None}, "train.csv"),
    "field of 30 MB": Hostile(
        "finetune",
        {"a.csv": b'text,label\n"' + b"word " * 6_000_000 + b'",1\n"b",0\n'},
        "train.csv",
    ),
    "state without keys": Hostile("pretrain", _FORGERY),
    "lock as a link": Hostile("pretrain", {"run/run.lock": _link("../kept")}),
    "lock as a pipe": Hostile("pretrain", {"run/run.lock": _pipe}),
}
