"""Tokenizer files as they are read from disk: bounded, checked, and nothing of them run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from electra_albert.contracts import CheckpointError, UsageError

_LARGEST_FILE_BYTES = 64 << 20
_LONGEST_PIECE = 1000  # characters; the tokenizers library overflows its stack when it frees a far longer one
_LARGEST_SCORE = 1e300  # of either sign; beyond it lies infinity, and whole numbers that are no float
_LFS_POINTER = b"version https://git-lfs"
_FOLDER_FILES = ("tokenizer.json", "spiece.model", "vocab.txt")  # the first that is there is read, as in stock

ROLES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def vocabulary_file(path: Path) -> Path:
    """The file to read of a folder, or the file itself. Raises UsageError where there is none."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError(f"tokenizer {path} does not exist; name a folder or file of a tokenizer")
    for name in _FOLDER_FILES:
        if (path / name).is_file():
            return path / name
    raise UsageError(f"{path} holds no tokenizer.json, spiece.model or vocab.txt; name the folder of a tokenizer")


def read_bytes(file: Path) -> bytes:
    """The file; CheckpointError where it is too large for a tokenizer or only stands for another file."""
    if file.stat().st_size > _LARGEST_FILE_BYTES:
        raise CheckpointError(f"{file} is larger than {_LARGEST_FILE_BYTES >> 20} MB, too large for a tokenizer")
    content = file.read_bytes()
    if content.startswith(_LFS_POINTER):
        raise CheckpointError(f"{file} is a git LFS pointer, not the file itself; fetch it with git lfs pull")
    return content


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in the file; CheckpointError where it holds none."""
    try:
        content = json.loads(read_bytes(file).decode("utf-8"))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as problem:  # a ValueError also where it is not UTF-8
        raise CheckpointError(f"{file} is not JSON ({str(problem)[:80]}); fetch the tokenizer again") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds no JSON object; fetch the tokenizer again")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, empty where the folder has neither."""
    files = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    merged: dict[str, Any] = {}
    for file in files:
        merged |= read_json(file) if file.is_file() else {}
    return merged


def read_flag(file: Path, settings: dict[str, Any], name: str, otherwise: bool | None) -> bool | None:
    """A setting of the tokenizer in `file` that is true or false, `otherwise` where it is not given or null."""
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{file}: its setting {name}={value!r} is neither true nor false; mend it")
    return otherwise if value is None else value


def read_wordpiece_vocab(file: Path) -> dict[str, int]:
    """The pieces of a BERT vocab.txt, one a line, by their line's number from 0."""
    try:
        text = read_bytes(file).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{file} is not UTF-8 text; fetch the tokenizer again") from None
    pieces = text.removesuffix("\n").split("\n")
    check_pieces(file, pieces)
    return {piece: number for number, piece in enumerate(pieces)}


def check_rows(file: Path, rows: object) -> list[tuple[str, float]]:
    """Pieces with scores as a Unigram model needs them: texts that differ, and finite numbers."""
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise CheckpointError(f"{file}: a piece is not a (text, finite score) pair; fetch the tokenizer again")
    check_pieces(file, [row[0] for row in rows])
    return [(piece, float(score)) for piece, score in rows]


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 2:
        return False
    piece, score = row
    return isinstance(piece, str) and type(score) in (int, float) and abs(score) < _LARGEST_SCORE


def check_pieces(file: Path, pieces: Sequence[str]) -> None:
    """CheckpointError where a piece is empty, too long, no text that can be written, or stands there twice."""
    try:
        "".join(pieces).encode("utf-8")
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair
        raise CheckpointError(f"{file}: a piece is not Unicode text; fetch the tokenizer again") from None
    if "" in pieces:
        raise CheckpointError(f"{file}: piece {pieces.index('')} is empty; fetch the tokenizer again")
    longest = max(pieces, key=len, default="")
    if len(longest) > _LONGEST_PIECE:
        raise CheckpointError(
            f"{file}: a piece has {len(longest):,} characters ({longest[:20]!r}...), more than {_LONGEST_PIECE:,}; "
            "name another tokenizer"
        )
    if len(set(pieces)) < len(pieces):
        twice = next(piece for piece, count in Counter(pieces).items() if count > 1)
        raise CheckpointError(f"{file}: the piece {twice!r} stands in it twice; fetch the tokenizer again")


def find_roles(file: Path, config: dict[str, Any], pieces: Collection[str]) -> dict[str, str]:
    """The special token of each role, as the configuration names it or else by a well-known name.

    Raises CheckpointError where a role but unknown has no token among `pieces`, or two roles share one.
    """
    roles: dict[str, str] = {}
    for role, known in ROLES.items():
        given = config.get(role)
        text = given.get("content") if isinstance(given, dict) else given
        names = known if text is None else (text,)
        found = next((name for name in names if isinstance(name, str) and name in pieces), None)
        if found is not None:
            roles[role] = found
        elif role != "unk_token":
            raise CheckpointError(
                f"{file} has no {role} ({' or '.join(map(repr, names))} is not among its pieces); "
                "name a tokenizer that was made for masked language modelling"
            )
    if len(set(roles.values())) < len(roles):
        raise CheckpointError(f"{file}: two of its special tokens are the same ({roles}); name another tokenizer")
    return roles
