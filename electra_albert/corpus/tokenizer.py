"""Loads, saves and fingerprints fast tokenizers: ALBERT, BERT or any other with the needed special tokens.

The published ALBERT normalizer, which `AlbertTokenizer` always rebuilds, removes all combining marks, including the
vowels and tones of many scripts. Tokenizers trained here use a normalizer that is safe for every script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from electra_albert.contracts import LOG, CheckpointError, SpecialIds, UsageError
from electra_albert.corpus import sentencepiece_model
from electra_albert.files import filling, parse_json

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import AlbertTokenizer, PreTrainedTokenizerFast

Tokenizer: TypeAlias = "PreTrainedTokenizerFast"

SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # of ALBERT, with ids 0 to 4
UNK_ID = SPECIAL_TOKENS.index("<unk>")
MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # transformers omits token_type_ids
WORD_START = sentencepiece_model.WORD_START
_LATIN_MARKS = r"(?<![^\p{Latin}\s])\p{M}+"  # after a Latin letter, a space (´ in NFKD) or nothing
_FOLDER_FILES = ("tokenizer.json", "spiece.model", "vocab.txt")  # the first that exists is read, as in transformers
_FOLDERS = ("", "tokenizer", "generator", "discriminator", "model")  # of a run or an exported pair
_ALBERT_NAMES = ("AlbertTokenizer", "AlbertTokenizerFast", "albert")  # classes and model type
_GENERAL_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
ROLES = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}  # or [PAD], [UNK], …
_ALBERT_FLAGS = ("do_lower_case", "keep_accents")
_BERT_FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_BERT_NORMALIZER_FLAGS = ("lowercase", "strip_accents", "handle_chinese_chars")  # the same flags in tokenizer.json
_MAX_TOKENS_PER_CHARACTER = 64  # U+FDFA becomes 18 characters of up to 3 bytes
_MAX_TOKEN_LENGTH = 1000  # characters; freeing a far longer token overflows the stack of the tokenizers library
_PROBE = 40 * "a" + "! The 1,000 don't … “é” e\u0301 中文 한국어 👩\u200d👧 עברית \t\u3000\x00\ufdfa ▁ ## [MASK] <unk>"
# Subtracted from the scores of tokens such as "▁1,". Any split before the comma costs less, so they are never used.
# transformers 4 uses the same number, and the files it wrote contain scores lowered by it.
_DIGIT_COMMA_PENALTY = 100.0
_LOADING_ONLY = ("is_local", "local_files_only", "name_or_path")  # settings of loading, not of the tokenizer


class TextOptions(NamedTuple):
    """The user's options for case, accents and commas after digits; None: as in the tokenizer's files."""

    do_lower_case: bool | None = None
    keep_accents: bool | None = None
    split_digit_comma: bool | None = None

    def given(self) -> dict[str, bool]:
        return {name: value for name, value in self._asdict().items() if value is not None}


def load_tokenizer(path: Path, options: TextOptions | None = None) -> Tokenizer:
    """Load a tokenizer from a folder, tokenizer.json, SentencePiece model or vocab.txt.

    One that begins with ALBERT's five special tokens, adds none, and is ALBERT's by its configuration, or a
    .model that looks like it, becomes an AlbertTokenizer. Any other keeps its normalizer, pre-tokenizer and
    model, and gets the template [CLS] A [SEP] B [SEP] with token types 0 and 1.
    `options` override the tokenizer_config.json next to the file; without either, a vocab.txt is
    cased if a token holds a capital letter.
    Differs from transformers: user-defined tokens of a .model, such as the full stop, do not become added tokens.
    """
    file = _vocabulary_file(path)
    config: dict[str, Any] = {}
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
    except BaseException as problem:  # tokenizers raises bare Exceptions, and Rust panics are BaseExceptions
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
        raise CheckpointError(
            f"{file}: damaged, or not a tokenizer that can be used ({reason}); fetch it again or use another"
        ) from None
    return tokenizer


def _vocabulary_file(path: Path) -> Path:
    """The tokenizer file in a folder, such as a run's, or the file itself. Raises UsageError if there is none."""
    candidates = [path / folder / name for folder, name in product(_FOLDERS, _FOLDER_FILES)]
    for file in candidates if path.is_dir() else [path]:
        if file.is_file() and file.suffix in (".json", ".model", ".txt"):
            return file
    reason = "is not named *.json, *.model or *.txt" if path.exists() else "does not exist"
    reason = f"holds no {', '.join(_FOLDER_FILES)}" if path.is_dir() else reason
    raise UsageError(f"tokenizer {path} {reason}; give the folder or a file of a tokenizer")


def _read(file: Path) -> bytes:
    content = file.read_bytes()
    if content.startswith(b"version https://git-lfs"):
        raise ValueError("a git LFS pointer, not the file; run git lfs pull")
    return content


def _read_settings(file: Path) -> Any:
    try:
        return parse_json(_read(file).decode(), dict)
    except ValueError as error:
        raise ValueError(f"{file.name} next to it: {error}") from None


def _load(file: Path, config: dict[str, Any], options: TextOptions) -> Tokenizer:
    """Load the tokenizer in a file, with any exception of the libraries if it is damaged."""
    if file.suffix == ".model":
        return _load_sentencepiece(file, config, options)
    content: dict[str, Any] = json.loads(_read(file)) if file.suffix == ".json" else _read_wordpiece(file)
    model = content["model"]
    if "type" not in model:  # old files of 2020
        model["type"] = "Unigram" if isinstance(model["vocab"], list) else "BPE" if "merges" in model else "WordPiece"
    if model["type"] == "Unigram" and _names_albert(config):
        vocab = [(token, score) for token, score in model["vocab"]]
        if _has_albert_layout(vocab, model["unk_id"]):
            _check_ids({token: number for number, (token, _) in enumerate(vocab)})
            steps = (content.get("normalizer") or {}).get("normalizers") or ()
            charsmap = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), "")
            albert = _load_albert(vocab, config, options, base64.b64decode(charsmap, validate=True))
            added = content.get("added_tokens") or []
            if all(token["id"] < len(SPECIAL_TOKENS) for token in added):
                return albert
            content = json.loads(albert.backend_tokenizer.to_str()) | {"added_tokens": added}
            return _build_fast(content, config)
    _apply_options(file, content, config, options)
    return _build_fast(content, config)


def _names_albert(config: dict[str, Any]) -> bool:
    """Whether AutoTokenizer makes an AlbertTokenizer of it."""
    return (config.get("tokenizer_class") or config.get("model_type")) in _ALBERT_NAMES


def _has_albert_layout(vocab: list[tuple[str, float]], unknown_id: object) -> bool:
    return tuple(token for token, _ in vocab[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS and unknown_id == UNK_ID


def _has_capitals(tokens: Iterable[str]) -> bool:
    return any(token != token.lower() and token[0] not in "[<" for token in tokens)


def _flag(config: dict[str, Any], name: str, default: bool | None) -> bool | None:
    """A boolean setting, or `default` if it is missing or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"its setting {name}={value!r} is neither true nor false")
    return default if value is None else value


def _load_albert(
    vocab: list[tuple[str, float]],
    config: dict[str, Any],
    options: TextOptions,
    charsmap: bytes,
    is_uncased: bool = True,
) -> AlbertTokenizer:
    """An AlbertTokenizer by `options`, else `config`, else lower-cased if `is_uncased`."""
    defaults = {"do_lower_case": is_uncased, "keep_accents": not is_uncased}
    flags: dict[str, Any] = {name: _flag(config, name, value) for name, value in defaults.items()}
    flags |= {name: value for name, value in options.given().items() if name in flags}
    flags |= {"_spm_precompiled_charsmap": charsmap} if charsmap else {}
    return build_albert(split_digit_commas(vocab, options.split_digit_comma), flags)


def _load_sentencepiece(file: Path, config: dict[str, Any], options: TextOptions) -> Tokenizer:
    """Load a SentencePiece Unigram model as the sentencepiece package does, or as ALBERT."""
    proto = sentencepiece_model.parse_model(_read(file))
    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    _check_ids({token: number for number, (token, _) in enumerate(vocab)})
    is_named = _names_albert(config)
    is_uncased = sentencepiece_model.is_uncased_default(proto)
    name = config.get("tokenizer_class")
    has_flags = not (config | options.given()).keys().isdisjoint(_ALBERT_FLAGS)
    is_albert = is_named or (name is None and (is_uncased or has_flags))
    if is_albert and _has_albert_layout(vocab, proto.trainer_spec.unk_id):
        LOG.info(f"{file.name} is read as a model of AlbertTokenizer")
        charsmap = proto.normalizer_spec.precompiled_charsmap
        return _load_albert(vocab, config, options, charsmap, is_named or is_uncased)
    if is_named or name not in _GENERAL_CLASSES:
        raise ValueError(f"{name or 'AlbertTokenizer'} has rules of its own for a .model; save it with AutoTokenizer")
    content = sentencepiece_model.as_content(proto, _find_roles(config, dict(vocab)).values())
    _apply_options(file, content, config, options)
    return _build_fast(content, config)


def _read_wordpiece(file: Path) -> dict[str, Any]:
    """The content of a tokenizer.json for a BERT vocab.txt, one token per line, with the line number from 0 as id."""
    from transformers import BertTokenizer

    tokens = _read(file).decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
    content: dict[str, Any] = json.loads(BertTokenizer().backend_tokenizer.to_str())
    content["added_tokens"] = []
    content["model"]["vocab"] = {token: number for number, token in enumerate(tokens)}
    content["normalizer"]["lowercase"] = not _has_capitals(filter(None, tokens))
    return content


def _apply_options(file: Path, content: dict[str, Any], config: dict[str, Any], options: TextOptions) -> None:
    """Apply the user's options, and for BERT those of `config`, to the content of a tokenizer.json."""
    normalizer, given = content.get("normalizer"), options.given()
    options_of_ours = product((True, False), repeat=len(_ALBERT_FLAGS))
    ours = {flags: json.loads(script_safe_normalizer(*flags).__getstate__()) for flags in options_of_ours}
    taken: Collection[str] = ()
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        taken = _ALBERT_FLAGS
        config = config | {name: value for name, value in given.items() if name == "do_lower_case"}
        if "keep_accents" in given:
            config["strip_accents"] = not given["keep_accents"]
        for name, own in zip(_BERT_FLAGS, _BERT_NORMALIZER_FLAGS, strict=True):
            normalizer[own] = _flag(config, name, normalizer.get(own))
    elif trained := [flags for flags, state in ours.items() if state == normalizer]:
        taken = TextOptions._fields
        content["normalizer"] = ours[tuple(map(given.get, _ALBERT_FLAGS, trained[0]))]
        content["model"]["vocab"] = split_digit_commas(content["model"]["vocab"], options.split_digit_comma)
    for name in (name for name in given if name not in taken):
        why = "whose tokens never join a comma to a digit" if taken else "whose own pipeline decides this"
        raise UsageError(f"--{name} does not apply to {file}, {why}; omit it or choose another tokenizer")


def _check_ids(ids: dict[str, int]) -> None:
    """Raise ValueError for tokens that native code cannot handle, and for ids that are not 0 to V - 1."""
    if "" in ids or len(max(ids, key=len, default="")) > _MAX_TOKEN_LENGTH:
        raise ValueError(f"a token is empty or longer than {_MAX_TOKEN_LENGTH:,} characters")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"its ids are not 0 to {len(ids) - 1}, each once")


def _build_fast(content: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    """Build a tokenizer from the content of a tokenizer.json, without its truncation, padding, dropout and template."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    model = content["model"]
    vocab = model["vocab"]
    ids = {entry[0]: number for number, entry in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    recorded = config.get("added_tokens_decoder") or {}
    added = {int(number): {"id": int(number)} | token for number, token in recorded.items()}
    added |= {token["id"]: token for token in content.get("added_tokens") or []}
    ids |= {token["content"]: number for number, token in added.items()}
    _check_ids(ids)
    roles = _find_roles(config, ids)
    extra = config.get("extra_special_tokens") or {}
    if isinstance(extra, dict):  # as in transformers, a list replaces those of the older setting
        extra = [*extra.values(), *(config.get("additional_special_tokens") or ())]
    for token in [*roles.values(), *map(_token_name, extra)]:
        if token not in ids:
            raise ValueError(f"its special token {token!r} is not in the vocabulary")
        added[ids[token]] = _added_token(token, ids[token]) | added.get(ids[token], {}) | {"special": True}
    if model["type"] == "WordPiece":
        model["unk_token"] = roles.get("unk_token")
    if "dropout" in model:
        model["dropout"] = None  # BPE dropout would give other ids for the same text each time
    content["added_tokens"] = [added[number] for number in sorted(added)]
    content |= {"post_processor": None, "truncation": None, "padding": None}
    cls, sep = roles["cls_token"], roles["sep_token"]
    single, borders = [f"{cls}:0", "$A:0", f"{sep}:0"], [(cls, ids[cls]), (sep, ids[sep])]
    template: Any = processors.TemplateProcessing(single, [*single, "$B:1", f"{sep}:1"], borders)
    splits = content.get("pre_tokenizer") or {}
    byte_level = [step for step in splits.get("pretokenizers", [splits]) if step.get("type") == "ByteLevel"]
    if config.get("tokenizer_class") not in _GENERAL_CLASSES:  # transformers replaces the option for these classes
        for step in byte_level:
            step["add_prefix_space"] = bool(config.get("add_prefix_space"))
    adds_space = any(step["add_prefix_space"] for step in byte_level)
    if byte_level:  # removes the leading space from the offsets, as in transformers
        template = processors.Sequence([processors.ByteLevel(add_prefix_space=adds_space), template])
    backend = Tokenizer.from_str(json.dumps(content))
    if backend.get_vocab(with_added_tokens=True) != ids:
        raise ValueError("its tokens get other ids when it is loaded")
    backend.post_processor = template
    # transformers 4 overwrites the option of the pre-tokenizer with the one in the configuration.
    options = {"add_prefix_space": True} if adds_space else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=MODEL_INPUT_NAMES, **roles, **options)


def _find_roles(config: dict[str, Any], tokens: Collection[str]) -> dict[str, str]:
    """The special token of each role, from the configuration or else by a well-known name."""
    roles: dict[str, str] = {}
    for role, other in ROLES.items():
        name = _token_name(config.get(f"{role}_token"))
        names = (f"[{role.upper()}]", other) if name is None else (name,)
        if found := [name for name in names if isinstance(name, str) and name in tokens]:
            roles[f"{role}_token"] = found[0]
        elif role != "unk":
            raise ValueError(f"no {role}_token: {' or '.join(map(repr, names))} is not among its tokens")
    if len(set(roles.values())) < len(roles):
        raise ValueError(f"two of its special tokens are the same, {roles}")
    return roles


def _token_name(entry: Any) -> Any:
    return entry.get("content") if isinstance(entry, dict) else entry


def _added_token(token: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **flags, "special": True}


def split_digit_commas(vocab: list[tuple[str, float]], is_split: bool | None) -> list[tuple[str, float]]:
    """Adjust Unigram scores so that a comma is never joined to the digit before it, or may be joined again.

    Differs from ALBERT: its code splits the comma off after encoding, which rarely also changes how digits are split.
    """
    if is_split is None:
        return vocab
    nats, joint = _DIGIT_COMMA_PENALTY, {token for token, _ in vocab if token.endswith(",") and token[-2:-1].isdigit()}
    limit = min((score for token, score in vocab if token not in joint), default=0.0) - nats / 2
    return [(token, score + nats * ((score < limit) - is_split) if token in joint else score) for token, score in vocab]


def build_albert(vocab: list[tuple[str, float]], options: dict[str, Any]) -> AlbertTokenizer:
    """An AlbertTokenizer with a vocabulary of (token, score); `options` are its keyword arguments."""
    from transformers import AlbertTokenizer

    return AlbertTokenizer(vocab=vocab, model_input_names=MODEL_INPUT_NAMES, **options)


def script_safe_normalizer(do_lower_case: bool, keep_accents: bool) -> Normalizer:
    """Replace quotes as ALBERT does, strip marks of Latin letters after NFKD unless kept, apply NFC, lower-case."""
    from tokenizers import Regex, normalizers

    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    strip = [] if keep_accents else [normalizers.NFKD(), normalizers.Replace(Regex(_LATIN_MARKS), "")]
    case = [normalizers.Lowercase()] if do_lower_case else []
    return normalizers.Sequence([*quotes, *strip, normalizers.NFC(), *case])


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The special ids of a tokenizer from `load_tokenizer` or `train_tokenizer`."""
    named = {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES}
    return SpecialIds(**named, never_masked=tuple(sorted(tokenizer.all_special_ids)))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
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
        config |= {"model_input_names": MODEL_INPUT_NAMES, "model_max_length": max_length}
        if config["tokenizer_class"] == "TokenizersBackend":
            config["tokenizer_class"] = "PreTrainedTokenizerFast"  # transformers 4 knows this name too
        config = {name: value for name, value in config.items() if name not in _LOADING_ONLY}
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of everything the token ids depend on: model, normalizer, pre-tokenizer and special tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    identity = [content["model"].pop("vocab"), content["normalizer"], content["pre_tokenizer"]]
    if type(tokenizer).__name__ != "AlbertTokenizer":  # its model and special ids are always the same
        special = special_ids(tokenizer)[: len(ROLES)]
        identity += [content["model"], content["added_tokens"], special]
        if len(content["added_tokens"]) > len(ROLES) - special.count(None):
            identity.append("added tokens are found in text")
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()
