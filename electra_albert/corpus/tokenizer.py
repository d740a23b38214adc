"""Load, save and identify a tokenizer: ALBERT's Unigram, BERT's WordPiece, or any fast one made for masked text.

What is loaded here and saved again gives `AutoTokenizer` the same ids and token_type_ids. Special ids are read from the
tokenizer, never assumed.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.charsmap import check_charsmap, read_charsmap
from electra_albert.corpus.tokenizer_albert import (
    MASK_ID,
    MODEL_INPUT_NAMES,
    SPECIAL_PIECES,
    UNK_ID,
    WORD_START,
    build_albert,
    build_script_safe,
    has_albert_layout,
    script_safe_options,
)
from electra_albert.corpus.tokenizer_files import (
    check_rows,
    read_config,
    read_flag,
    read_json,
    read_wordpiece_vocab,
    vocabulary_file,
)
from electra_albert.corpus.tokenizer_foreign import check_content, has_capitals, load_bert, load_fast, load_unigram
from electra_albert.corpus.tokenizer_options import TextOptions, apply_digit_comma
from electra_albert.corpus.tokenizer_sentencepiece import read_sentencepiece
from electra_albert.corpus.tokenizer_training import train_tokenizer

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
]

_ALBERT_CLASSES = (None, "AlbertTokenizer", "AlbertTokenizerFast")
_LOADING_ONLY = ("is_local", "local_files_only", "name_or_path")  # how a tokenizer was loaded, not what it is
_AS_ITS_FILES_SAY = TextOptions()
BYTE_LEVEL_SPACE = "Ġ"


class SpecialIds(NamedTuple):
    """The ids of a tokenizer's special tokens; `unk` is None where it has no unknown token."""

    pad: int
    unk: int | None
    cls: int
    sep: int
    mask: int


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The special ids of a tokenizer from `load_tokenizer` or `train_tokenizer`."""
    return SpecialIds(
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.mask_token_id,
    )


def load_tokenizer(path: Path, told: TextOptions = _AS_ITS_FILES_SAY) -> Tokenizer:
    """The tokenizer in a folder of ours or a stock one, or in a tokenizer.json, SentencePiece model or vocab.txt.

    Nothing of a tokenizer.json of ALBERT or BERT is run: its pieces are read, checked and put into a fresh stock
    tokenizer; any other is first tried in a process of its own. Settings are those of the tokenizer_config.json beside
    the file, over which goes what is `told`. Without either, a SentencePiece model or a vocab.txt is cased where a
    piece holds a capital letter.

    A SentencePiece model gives the ids that SentencePiece gives on normalised text (but that U+0085 and the mark of a
    word's beginning in text are not as white space to SentencePiece as they are to stock), and stock on a published
    ALBERT folder. Stock's own reading of a .model differs: it makes the user-defined pieces, among them the full stop,
    special tokens, which are cut out of text before anything else and neither masked nor shown.

    Raises UsageError where there is no tokenizer or it cannot do what is `told`, CheckpointError where it cannot be
    used.
    """
    file = vocabulary_file(path)
    config = told.over(read_config(file.parent))
    readers = {".json": _load_json, ".model": _load_model, ".txt": _load_text}
    if file.suffix not in readers:
        raise UsageError(f"{file} is not named *.json, *.model or *.txt; name a tokenizer.json or its folder")
    return readers[file.suffix](file, config, told)


def _load_text(file: Path, config: dict[str, Any], told: TextOptions) -> Tokenizer:
    return load_bert(file, read_wordpiece_vocab(file), config, {}, told)


def _load_model(file: Path, config: dict[str, Any], told: TextOptions) -> Tokenizer:
    model = read_sentencepiece(file)
    model = model._replace(vocab=apply_digit_comma(model.vocab, told.split_digit_comma))
    pieces = [piece for piece, _ in model.vocab]
    is_cased = has_capitals(pieces, model.control)
    options = _albert_options(file, config, model.charsmap, do_lower_case=not is_cased)
    if has_albert_layout(pieces, model.unknown_id):
        return build_albert(model.vocab, options)
    return load_unigram(file, model, options, config)


def _load_json(file: Path, config: dict[str, Any], told: TextOptions) -> Tokenizer:
    content = read_json(file)
    pieces = check_content(file, content)
    model = content["model"]
    is_albert = model["type"] == "Unigram" and has_albert_layout(list(pieces), model["unk_id"])
    is_published = config.get("tokenizer_class") in _ALBERT_CLASSES
    own = None if is_published else script_safe_options(content)
    if not is_albert or (not is_published and own is None):
        return load_fast(file, content, pieces, config, told)
    if len(pieces) > len(model["vocab"]):
        raise CheckpointError(f"{file}: an added token is not among its pieces; name an ALBERT tokenizer")
    if own is not None:
        vocab = apply_digit_comma(check_rows(file, model["vocab"]), told.split_digit_comma)
        return build_script_safe(vocab, **(own | told.given()))
    options = _albert_options(file, config, read_charsmap(content.get("normalizer")), do_lower_case=True)
    return build_albert(apply_digit_comma(check_rows(file, model["vocab"]), told.split_digit_comma), options)


def _albert_options(
    file: Path, config: dict[str, Any], charsmap: bytes | None, *, do_lower_case: bool
) -> dict[str, Any]:
    """AlbertTokenizer's arguments: what `config` says, else `do_lower_case` and stock's default for accents."""
    options: dict[str, Any] = {
        "do_lower_case": read_flag(file, config, "do_lower_case", do_lower_case),
        "keep_accents": read_flag(file, config, "keep_accents", False),
    }
    if charsmap is not None:
        problem = check_charsmap(charsmap)
        if problem:
            raise CheckpointError(f"{file}: its character map is damaged ({problem}); fetch the tokenizer again")
        options["_spm_precompiled_charsmap"] = charsmap
    return options


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the stock files, from which `AutoTokenizer` gives the same ids and token_type_ids."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
        beside = Path(name)
        # Where the disk is full, tokenizers raises a bare Exception: the same bytes, written here first, an OSError.
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
    """A hash of everything the ids depend on: model, normaliser, pre-tokenizer and special tokens."""
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

    A word also begins at the first id, and at and behind [CLS], [SEP] and padding. The mask is always a word.
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
            text, is_marked = backend.decoder.decode([token]), token.startswith(BYTE_LEVEL_SPACE)
            text = text.removeprefix(" ")
        else:
            text, is_marked = token.removeprefix(WORD_START), token.startswith(WORD_START)
        described.append(Piece(text or token, is_marked or is_start))
        is_start = False
    return described
