"""Loads, saves and fingerprints fast tokenizers: ALBERT, BERT or any other with special tokens.

The published ALBERT normalizer, which `AlbertTokenizer` always rebuilds, removes all combining
marks, including the vowels and tones of many scripts. Tokenizers trained here use a normalizer that
is safe for every script.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from electra_albert.contracts import LOG, CheckpointError, SpecialIds, UsageError
from electra_albert.files import content_hash, filling, parse_json
from electra_albert.tokenization import unigram
from electra_albert.tokenization.unigram import (
    MODEL_INPUT_NAMES,
    ROLES,
    SPECIAL_TOKENS,
    UNK_ID,
    JsonObject,
    Vocab,
    build_albert,
    content_of,
    find_roles,
    script_safe_normalizer,
    split_digit_commas,
    token_name,
)

if TYPE_CHECKING:
    from transformers import AlbertTokenizer, PreTrainedTokenizerFast

Tokenizer: TypeAlias = "PreTrainedTokenizerFast"

WORD_START = unigram.WORD_START
_FOLDER_FILES = ("tokenizer.json", "spiece.model", "vocab.txt")  # the first one is read
_FOLDERS = ("", "tokenizer", "generator", "discriminator", "model")  # of a run or an exported pair
_ALBERT_NAMES = ("AlbertTokenizer", "AlbertTokenizerFast", "albert")  # classes and model type
_GENERAL_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
_ALBERT_FLAGS = ("do_lower_case", "keep_accents")
_BERT_FLAGS = {  # and their names in tokenizer.json
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_MAX_TOKENS_PER_CHARACTER = 64  # U+FDFA becomes 18 characters of up to 3 bytes
_MAX_TOKEN_LENGTH = 1000  # characters; freeing a far longer token overflows the stack of tokenizers
_PROBE = 40 * "a" + "! The 1,000 don't … “é” e\u0301 中文 한국어 👩\u200d👧 עברית "
_PROBE += "\t\u3000\x00\ufdfa ▁ ## [MASK] <unk>"


class TextOptions(NamedTuple):
    """The user's options for case, accents and commas after digits; None: as in the files."""

    do_lower_case: bool | None = None
    keep_accents: bool | None = None
    split_digit_comma: bool | None = None

    def chosen(self) -> dict[str, bool]:
        return {name: value for name, value in self._asdict().items() if value is not None}


def load_tokenizer(path: Path, options: TextOptions | None = None) -> Tokenizer:
    """Load a tokenizer from a folder, tokenizer.json, SentencePiece model or vocab.txt.

    One that begins with ALBERT's five special tokens, adds none, and is ALBERT's by its
    configuration, or a .model that looks like it, becomes an AlbertTokenizer. Any other keeps its
    normalizer, pre-tokenizer and model, and gets the template [CLS] A [SEP] B [SEP] with token
    types 0 and 1. `options` override the tokenizer_config.json next to the file; without either, a
    vocab.txt is cased if a token holds a capital letter.
    Differs from transformers: user-defined tokens of a .model, such as the full stop, do not become
    added tokens.
    """
    file = _vocabulary_file(path)
    config: JsonObject = {}
    try:
        for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json"):
            settings = file.parent / name
            if settings.is_file():
                config |= _read_settings(settings)
        tokenizer = _load(file, config, options or TextOptions())
        count = len(tokenizer.backend_tokenizer.encode(_PROBE).ids)
        if count > _MAX_TOKENS_PER_CHARACTER * len(_PROBE):
            raise ValueError(f"it makes {count} tokens of {len(_PROBE)} characters")
    except (UsageError, OSError):
        raise
    except BaseException as problem:  # tokenizers raises bare Exceptions, and panics of Rust
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
        raise CheckpointError(
            f"{file}: damaged, or not a tokenizer that can be used ({reason}); "
            "fetch it again or use another"
        ) from None
    return tokenizer


def _vocabulary_file(path: Path) -> Path:
    """The tokenizer file in a folder, such as a run's, or the file itself.

    Raises UsageError if there is none.
    """
    candidates = [path]
    reason = "does not exist"
    if path.is_dir():
        candidates = [path / folder / name for folder, name in product(_FOLDERS, _FOLDER_FILES)]
        reason = f"holds no {', '.join(_FOLDER_FILES)}"
    elif path.exists():
        reason = "is not named *.json, *.model or *.txt"
    for file in candidates:
        if file.is_file() and file.suffix in (".json", ".model", ".txt"):
            return file
    raise UsageError(f"tokenizer {path} {reason}; give the folder or a file of a tokenizer")


def _read(file: Path) -> bytes:
    content = file.read_bytes()
    if content.startswith(b"version https://git-lfs"):
        raise ValueError("a git LFS pointer, not the file; run git lfs pull")
    return content


def _read_settings(file: Path) -> Any:
    try:
        content = _read(file)
        return parse_json(content.decode(json.detect_encoding(content)), dict)
    except ValueError as error:
        raise ValueError(f"{file.name} next to it: {error}") from None


def _load(file: Path, config: JsonObject, options: TextOptions) -> Tokenizer:
    """Load the tokenizer in a file, with any exception of the libraries if it is damaged."""
    if file.suffix == ".model":
        return _load_sentencepiece(file, config, options)
    content = _read_wordpiece(file) if file.suffix == ".txt" else json.loads(_read(file))
    model = content["model"]
    vocab = model["vocab"]
    if "type" not in model:  # old files of 2020
        model["type"] = "BPE" if "merges" in model else "WordPiece"
        if isinstance(vocab, list):
            model["type"] = "Unigram"
    added = content.get("added_tokens") or []
    is_albert = model["type"] == "Unigram" and _names_albert(config)
    if is_albert and _has_albert_layout(vocab, model["unk_id"]):
        vocab = list(map(tuple, vocab))
        _check_ids(_numbered(vocab))
        charsmap = ""
        normalizer = content.get("normalizer") or {}
        for step in normalizer.get("normalizers") or ():
            if step["type"] == "Precompiled":
                charsmap = step["precompiled_charsmap"]
        decoded = base64.b64decode(charsmap, validate=True)
        albert = _load_albert(vocab, config, options, decoded)
        if all(token["id"] < len(SPECIAL_TOKENS) for token in added):
            return albert
        content = content_of(albert.backend_tokenizer) | {"added_tokens": added}
    else:
        _apply_options(file, content, config, options)
    return _build_fast(content, config)


def _names_albert(config: JsonObject) -> bool:
    """Whether AutoTokenizer makes an AlbertTokenizer of it."""
    return (config.get("tokenizer_class") or config.get("model_type")) in _ALBERT_NAMES


def _has_albert_layout(vocab: Vocab, unknown_id: object) -> bool:
    special = tuple(token for token, _ in vocab[: len(SPECIAL_TOKENS)])
    return special == SPECIAL_TOKENS and unknown_id == UNK_ID


def _numbered(vocab: Vocab) -> dict[str, int]:
    return {token: number for number, (token, _) in enumerate(vocab)}


def _flag(config: JsonObject, name: str, default: bool | None) -> bool | None:
    """A boolean setting, or `default` if it is missing or null."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"its setting {name}={value!r} is neither true nor false")
    return value


def _load_albert(
    vocab: Vocab,
    config: JsonObject,
    options: TextOptions,
    charsmap: bytes,
    is_uncased: bool = True,
) -> AlbertTokenizer:
    """An AlbertTokenizer by `options`, else `config`, else lower-cased if `is_uncased`."""
    flags: dict[str, Any] = {
        "do_lower_case": _flag(config, "do_lower_case", is_uncased),
        "keep_accents": _flag(config, "keep_accents", not is_uncased),
    }
    flags |= options.chosen()
    is_split = flags.pop("split_digit_comma", None)
    if charsmap:
        flags["_spm_precompiled_charsmap"] = charsmap
    return build_albert(split_digit_commas(vocab, is_split), **flags)


def _load_sentencepiece(file: Path, config: JsonObject, options: TextOptions) -> Tokenizer:
    """Load a SentencePiece Unigram model as the sentencepiece package does, or as ALBERT."""
    proto = unigram.parse_model(_read(file))
    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    _check_ids(_numbered(vocab))
    is_named = _names_albert(config)
    is_uncased = unigram.is_uncased_default(proto)
    name = config.get("tokenizer_class")
    settings = config | options.chosen()
    has_flags = not settings.keys().isdisjoint(_ALBERT_FLAGS)
    is_albert = is_named or (name is None and (is_uncased or has_flags))
    if is_albert and _has_albert_layout(vocab, proto.trainer_spec.unk_id):
        LOG.info(f"{file.name} is read as a model of AlbertTokenizer")
        charsmap = proto.normalizer_spec.precompiled_charsmap
        return _load_albert(vocab, config, options, charsmap, is_named or is_uncased)
    if is_named or name not in _GENERAL_CLASSES:
        name = name or "AlbertTokenizer"
        raise ValueError(f"{name} has rules of its own for a .model; save it with AutoTokenizer")
    roles = find_roles(config, dict(vocab))
    content = unigram.as_content(proto, roles.values())
    _apply_options(file, content, config, options)
    return _build_fast(content, config)


def _read_wordpiece(file: Path) -> JsonObject:
    """The content of a tokenizer.json for a BERT vocab.txt: a token per line, its number the id."""
    from transformers import BertTokenizer

    text = _read(file).decode("utf-8").replace("\r\n", "\n")
    tokens = text.removesuffix("\n").split("\n")
    words = [token for token in tokens if not token.startswith(("[", "<"))]
    content = content_of(BertTokenizer().backend_tokenizer)
    content["added_tokens"] = []
    content["model"]["vocab"] = {token: number for number, token in enumerate(tokens)}
    content["normalizer"]["lowercase"] = all(token == token.lower() for token in words)
    return content


def _normalizer_content(do_lower_case: bool, keep_accents: bool) -> Any:
    return json.loads(script_safe_normalizer(do_lower_case, keep_accents).__getstate__())


def _apply_options(
    file: Path, content: JsonObject, config: JsonObject, options: TextOptions
) -> None:
    """Apply the user's options, and for BERT those of `config`, to a tokenizer.json's content."""
    chosen = options.chosen()
    normalizer = content.get("normalizer")
    flags = product((True, False), repeat=len(_ALBERT_FLAGS))
    trained = [pair for pair in flags if _normalizer_content(*pair) == normalizer]
    applicable: Collection[str] = ()
    reason = "whose own pipeline decides this"
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        applicable = _ALBERT_FLAGS
        config = config | chosen
        if "keep_accents" in chosen:
            config = config | {"strip_accents": not chosen["keep_accents"]}
        for name, key in _BERT_FLAGS.items():
            normalizer[key] = _flag(config, name, normalizer.get(key))
        reason = "whose tokens never join a comma to a digit"
    elif trained:
        applicable = TextOptions._fields
        settings = map(chosen.get, _ALBERT_FLAGS, trained[0])
        content["normalizer"] = _normalizer_content(*settings)
        model = content["model"]
        model["vocab"] = split_digit_commas(model["vocab"], options.split_digit_comma)
    for name in chosen:
        if name not in applicable:
            raise UsageError(
                f"--{name} does not apply to {file}, {reason}; omit it or choose another tokenizer"
            )


def _check_ids(ids: dict[str, int]) -> None:
    """Raise ValueError for tokens that crash native code, and for ids that are not 0 to V - 1."""
    if "" in ids or len(max(ids, key=len, default="")) > _MAX_TOKEN_LENGTH:
        raise ValueError(f"a token is empty or longer than {_MAX_TOKEN_LENGTH:,} characters")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"its ids are not 0 to {len(ids) - 1}, each once")


def _build_fast(content: JsonObject, config: JsonObject) -> Tokenizer:
    """Build a tokenizer from the content of a tokenizer.json.

    Without its truncation, padding, dropout and template.
    """
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    model = content["model"]
    vocab = model["vocab"]
    ids = _numbered(vocab) if isinstance(vocab, list) else dict(vocab)
    roles = _complete_added_tokens(content, config, ids)
    if model["type"] == "WordPiece":
        model["unk_token"] = roles.get("unk_token")
    if "dropout" in model:
        model["dropout"] = None  # BPE dropout would give other ids for the same text each time
    content |= {"post_processor": None, "truncation": None, "padding": None}
    cls = roles["cls_token"]
    sep = roles["sep_token"]
    single = [f"{cls}:0", "$A:0", f"{sep}:0"]
    pair = [*single, "$B:1", f"{sep}:1"]
    borders = [(cls, ids[cls]), (sep, ids[sep])]
    template: Any = processors.TemplateProcessing(single, pair, borders)
    splits = content.get("pre_tokenizer") or {}
    steps = splits.get("pretokenizers", [splits])
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    if config.get("tokenizer_class") not in _GENERAL_CLASSES:  # as transformers does for these
        for step in byte_level:
            step["add_prefix_space"] = bool(config.get("add_prefix_space"))
    adds_space = any(step["add_prefix_space"] for step in byte_level)
    if byte_level:  # removes the leading space from the offsets, as in transformers
        offsets = processors.ByteLevel(add_prefix_space=adds_space)
        template = processors.Sequence([offsets, template])
    backend = Tokenizer.from_str(json.dumps(content))
    if backend.get_vocab(with_added_tokens=True) != ids:
        raise ValueError("its tokens get other ids when it is loaded")
    backend.post_processor = template
    # transformers 4 overwrites the option of the pre-tokenizer with the one in the configuration.
    settings = roles | ({"add_prefix_space": True} if adds_space else {})
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=MODEL_INPUT_NAMES, **settings
    )


def _complete_added_tokens(
    content: JsonObject, config: JsonObject, ids: dict[str, int]
) -> dict[str, str]:
    """Complete the added tokens of a tokenizer.json and `ids`; returns the token of each role."""
    added = {
        int(number): {"id": int(number)} | token
        for number, token in (config.get("added_tokens_decoder") or {}).items()
    }
    added |= {token["id"]: token for token in content.get("added_tokens") or []}
    ids |= {token["content"]: number for number, token in added.items()}
    _check_ids(ids)
    roles = find_roles(config, ids)
    extra = config.get("extra_special_tokens") or {}
    if isinstance(extra, dict):  # as in transformers, a list replaces those of the older setting
        extra = [*extra.values(), *(config.get("additional_special_tokens") or ())]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for token in [*roles.values(), *map(token_name, extra)]:
        if token not in ids:
            raise ValueError(f"its special token {token!r} is not in the vocabulary")
        number = ids[token]
        entry = {"id": number, "content": token, **flags} | added.get(number, {})
        added[number] = entry | {"special": True}
    content["added_tokens"] = [added[number] for number in sorted(added)]
    return roles


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The special ids of a tokenizer from `load_tokenizer` or `train_tokenizer`."""
    named = {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES}
    return SpecialIds(**named, never_masked=tuple(sorted(tokenizer.all_special_ids)))


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, max_length: int, inputs: Sequence[str] = MODEL_INPUT_NAMES
) -> None:
    """Write files that `AutoTokenizer` loads with the same ids and token_type_ids."""
    with filling(folder, last=("tokenizer.json",)) as new:  # which marks a complete folder
        try:
            tokenizer.save_pretrained(str(new))
        except Exception as problem:  # tokenizers raises a bare Exception when it cannot write
            code = re.search(r"\(os error (\d+)\)$", str(problem))
            if code is None:
                raise
            raise OSError(int(code[1]), str(problem), str(folder / "tokenizer.json")) from None
        file = new / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config |= {"model_input_names": inputs, "model_max_length": max_length}
        if config["tokenizer_class"] == "TokenizersBackend":  # unknown to transformers 4
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        for name in ("is_local", "local_files_only", "name_or_path"):  # not of the tokenizer
            config.pop(name, None)
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of all that the token ids depend on: model, normalizer and special tokens."""
    content = content_of(tokenizer.backend_tokenizer)
    identity = [content["model"].pop("vocab"), content["normalizer"], content["pre_tokenizer"]]
    if type(tokenizer).__name__ != "AlbertTokenizer":  # whose model and special ids are fixed
        special = special_ids(tokenizer)[: len(ROLES)]
        identity += [content["model"], content["added_tokens"], special]
        if len(content["added_tokens"]) > len(ROLES) - special.count(None):
            identity.append("added tokens are found in text")
    return content_hash(identity)
