"""A tokenizer of ALBERT's, BERT's or another fast kind: save it, identify it, show its tokens.

What is loaded here and saved again gives `AutoTokenizer` the same ids and token_type_ids. Special ids are read from the
tokenizer, never assumed.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from electra_albert.corpus.tokenizer_files import TextOptions, load_tokenizer, vocabulary_file
from electra_albert.corpus.tokenizer_training import (
    MASK_ID,
    MODEL_INPUT_NAMES,
    SPECIAL_PIECES,
    UNK_ID,
    WORD_START,
    train_tokenizer,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    Tokenizer: TypeAlias = PreTrainedTokenizerFast

__all__ = [
    "MASK_ID",
    "SPECIAL_PIECES",
    "UNK_ID",
    "Piece",
    "SpecialIds",
    "TextOptions",
    "describe_pieces",
    "fingerprint",
    "load_tokenizer",
    "save_tokenizer",
    "special_ids",
    "train_tokenizer",
    "vocabulary_file",
]

_LOADING_ONLY = ("is_local", "local_files_only", "name_or_path")  # how a tokenizer was loaded, not what it is


class SpecialIds(NamedTuple):
    """The ids of a tokenizer's special tokens; `unk` is None if it has no unknown token."""

    pad: int
    unk: int | None
    cls: int
    sep: int
    mask: int


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The special ids of a tokenizer from `load_tokenizer` or `train_tokenizer`."""
    return SpecialIds(*(getattr(tokenizer, f"{name}_token_id") for name in SpecialIds._fields))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the stock files, from which `AutoTokenizer` gives the same ids and token_type_ids."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
        beside = Path(name)
        # If the disk is full, tokenizers raises a bare Exception: the same bytes, written here first, an OSError.
        content = tokenizer.backend_tokenizer.to_str(pretty=True)
        (beside / "tokenizer.json").write_text(content, encoding="utf-8", newline="")
        tokenizer.save_pretrained(str(beside))
        file = beside / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config |= {"model_input_names": MODEL_INPUT_NAMES, "model_max_length": max_length}
        if config["tokenizer_class"] == "TokenizersBackend":
            config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that version 4 knows too
        config = {name: value for name, value in config.items() if name not in _LOADING_ONLY}
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for written in sorted(beside.iterdir(), reverse=True):  # tokenizer.json last: with it the folder counts
            os.replace(written, folder / written.name)


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of everything the ids depend on: model, normalizer, pre-tokenizer and special tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    identity = [content["model"].pop("vocab"), content["normalizer"], content["pre_tokenizer"]]
    if type(tokenizer).__name__ != "AlbertTokenizer":  # whose model and special ids are always the same
        identity += [content["model"], content["added_tokens"], special_ids(tokenizer)]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


class Piece(NamedTuple):
    """A token as it is shown to people."""

    text: str
    starts_word: bool


def describe_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[Piece]:
    """The text of each id without its marks, and whether a word begins with it.

    A word also begins at the first id, and at and after [CLS], [SEP] and padding. The mask is always a word.
    """
    backend, special = tokenizer.backend_tokenizer, special_ids(tokenizer)
    model, decoder = type(backend.model).__name__, type(backend.decoder).__name__
    borders = {special.cls, special.sep, special.pad}
    described, is_start = [], True
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if number in borders or number == special.mask:
            described.append(Piece(token, True))
            is_start = number in borders
            continue
        if model == "WordPiece":
            text, is_marked = token.removeprefix("##"), not token.startswith("##")
        elif model == "WordLevel":
            text, is_marked = token, True
        elif decoder == "ByteLevel":
            text, is_marked = backend.decoder.decode([token]).removeprefix(" "), token.startswith("Ġ")
        else:
            text, is_marked = token.removeprefix(WORD_START), token.startswith(WORD_START)
        described.append(Piece(text or token, is_marked or is_start))
        is_start = False
    return described
