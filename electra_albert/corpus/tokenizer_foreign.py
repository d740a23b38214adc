"""Tokenizers of other layouts than ALBERT's: BERT's WordPiece, and any fast tokenizer with the special tokens needed.

BERT's is built anew from its pieces. Any other tokenizer.json is run, but only after a process of its own has tried
it; its own template, truncation, padding and dropout never are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.contracts import CheckpointError
from electra_albert.corpus import tokenizer_probe
from electra_albert.corpus.charsmap import check_charsmap, read_charsmap
from electra_albert.corpus.tokenizer_albert import MODEL_INPUT_NAMES
from electra_albert.corpus.tokenizer_files import check_pieces, check_rows, find_roles, read_flag
from electra_albert.corpus.tokenizer_options import TextOptions
from electra_albert.corpus.tokenizer_sentencepiece import SentencePieces

if TYPE_CHECKING:
    from transformers import BertTokenizer, PreTrainedTokenizerFast


_PROBE_SECONDS = 30
_BERT_PIPELINE = ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
_BERT_MODEL = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}


def check_content(file: Path, content: dict[str, Any]) -> dict[str, int]:
    """The pieces of a tokenizer.json with its added tokens, by id; says its model's type where older files do not.

    Raises CheckpointError unless the ids are 0 to V - 1, each once, and the unknown piece is among them.
    """
    model = content.get("model")
    kind = _model_type(model) if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind is None:
        raise CheckpointError(f"{file} holds no Unigram, WordPiece, BPE or WordLevel model; name another tokenizer")
    model["type"] = kind
    rows, unknown = model.get("vocab"), model.get("unk_id" if kind == "Unigram" else "unk_token")
    if kind == "Unigram":
        pieces = {piece: number for number, (piece, _) in enumerate(check_rows(file, rows))}
        is_known = type(unknown) is int and 0 <= unknown < len(pieces)
    elif isinstance(rows, dict) and all(type(number) is int for number in rows.values()):
        check_pieces(file, list(rows))
        pieces = dict(rows)
        is_known = unknown in pieces if isinstance(unknown, str) else unknown is None and kind == "BPE"
    else:
        raise CheckpointError(f"{file}: its pieces are not (text, id) pairs; fetch the tokenizer again")
    if not is_known:
        raise CheckpointError(
            f"{file}: its unknown piece {unknown!r} is not among its pieces; fetch the tokenizer again"
        )
    added = content.get("added_tokens") or []
    for token in added if isinstance(added, list) else [added]:
        number, text = (token.get("id"), token.get("content")) if isinstance(token, dict) else (None, None)
        if type(number) is not int or not isinstance(text, str) or not text or pieces.get(text, number) != number:
            raise CheckpointError(f"{file}: added token {text!r} does not fit its pieces; name another tokenizer")
        pieces[text] = number
    if set(pieces.values()) != set(range(len(pieces))):
        raise CheckpointError(f"{file}: its ids are not 0 to {len(pieces) - 1}, each once; name another tokenizer")
    return pieces


def _model_type(model: dict[str, Any]) -> str | None:
    """The type of the model, which files of 2020 leave to be seen from its parts."""
    if "type" in model:
        return model["type"] if model["type"] in ("Unigram", "WordPiece", "BPE", "WordLevel") else None
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    if "merges" in model:
        return "BPE"
    return "WordPiece" if "continuing_subword_prefix" in model else None


def load_bert(
    file: Path, vocab: dict[str, int], config: dict[str, Any], normalizer: dict[str, Any], told: TextOptions
) -> BertTokenizer:
    """The stock tokenizer of a checked WordPiece vocabulary.

    Case, accents and Chinese characters are as `config` says, else as `normalizer` (of a tokenizer.json; or empty),
    else as BERT's are; text keeps its case where a piece holds a capital letter. Raises UsageError where commas are
    told to be treated in another way than BERT's.
    """
    from transformers import BertTokenizer

    told.refuse(file, "whose pieces never join a comma to a digit, as BERT's do not", "split_digit_comma")
    roles = find_roles(file, config, vocab)
    if "unk_token" not in roles:
        raise CheckpointError(f"{file} has no unk_token, which WordPiece needs; name another tokenizer")

    def flag(name: str, name_in_file: str, otherwise: bool | None) -> bool | None:
        return read_flag(file, config, name, read_flag(file, normalizer, name_in_file, otherwise))

    return BertTokenizer(
        vocab=vocab,
        do_lower_case=flag("do_lower_case", "lowercase", not has_capitals(vocab, roles.values())),
        tokenize_chinese_chars=flag("tokenize_chinese_chars", "handle_chinese_chars", True),
        strip_accents=flag("strip_accents", "strip_accents", None),
        model_input_names=MODEL_INPUT_NAMES,
        **roles,
    )


def has_capitals(pieces: Iterable[str], special: Collection[str]) -> bool:
    """Whether a piece that is no special token, nor written in brackets as one, holds a capital letter."""
    return any(piece != piece.lower() and piece[0] not in "[<" and piece not in special for piece in pieces)


def load_fast(
    file: Path, content: dict[str, Any], pieces: dict[str, int], config: dict[str, Any], told: TextOptions
) -> PreTrainedTokenizerFast:
    """The tokenizer of a checked tokenizer.json of any layout; one that is not BERT's is tried first.

    Raises UsageError where it is not BERT's and something is told that its own pipeline decides.
    """
    roles = find_roles(file, config, pieces)
    if _is_bert(content, roles):
        return load_bert(file, content["model"]["vocab"], config, content["normalizer"], told)
    told.refuse(file, "whose own pipeline decides that")
    charsmap = read_charsmap(content.get("normalizer"))
    problem = "" if charsmap is None else check_charsmap(charsmap)
    if problem:
        raise CheckpointError(f"{file}: its character map is damaged ({problem}); fetch the tokenizer again")
    return _build_fast(file, content, pieces, roles)


def _is_bert(content: dict[str, Any], roles: dict[str, str]) -> bool:
    """Whether a checked tokenizer.json is what BertTokenizer builds from its pieces and options."""
    parts = [content["model"], content.get("normalizer"), content.get("pre_tokenizer")]
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    if kinds != _BERT_PIPELINE or content["normalizer"].get("clean_text") is not True:
        return False
    added = {token["content"] for token in content.get("added_tokens") or ()}
    if not added <= set(roles.values()) & set(content["model"]["vocab"]):
        return False
    return all(content["model"].get(name, value) == value for name, value in _BERT_MODEL.items())


def load_unigram(
    file: Path, model: SentencePieces, options: dict[str, Any], config: dict[str, Any]
) -> PreTrainedTokenizerFast:
    """A SentencePiece vocabulary of another layout than ALBERT's, behind the normaliser and the cuts of ALBERT."""
    from transformers import AlbertTokenizer

    content = json.loads(AlbertTokenizer(**options).backend_tokenizer.to_str())
    content["model"] = {"type": "Unigram", "unk_id": model.unknown_id, "vocab": model.vocab, "byte_fallback": False}
    pieces = {piece: number for number, (piece, _) in enumerate(model.vocab)}
    content["added_tokens"] = [_added_token(piece, pieces[piece]) for piece in model.control]
    return _build_fast(file, content, pieces, find_roles(file, config, pieces))


def _build_fast(
    file: Path, content: dict[str, Any], pieces: dict[str, int], roles: dict[str, str]
) -> PreTrainedTokenizerFast:
    """Checked content as a stock tokenizer whose template is [CLS] A [SEP] B [SEP], types 0 and 1."""
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    added = {token["id"]: token for token in content.get("added_tokens") or ()}
    for text in roles.values():
        number = pieces[text]
        added[number] = _added_token(text, number) | added.get(number, {}) | {"special": True}
    cut = content.get("pre_tokenizer")
    content |= {
        "added_tokens": [added[number] for number in sorted(added)],
        "post_processor": _template(roles["cls_token"], roles["sep_token"], pieces, cut),
        "truncation": None,
        "padding": None,
    }
    if "dropout" in content["model"]:
        content["model"]["dropout"] = None  # it would draw other ids for the same text each time
    text = json.dumps(content)
    _try(file, text)
    backend = Backend.from_str(text)
    if backend.get_vocab(with_added_tokens=True) != pieces:
        raise CheckpointError(f"{file}: its pieces get other ids once it is loaded; name another tokenizer")
    # Stock of version 4 sets the cut's own option to what the configuration says.
    options = {"add_prefix_space": True} if _adds_space(cut) else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=MODEL_INPUT_NAMES, **roles, **options)


def _added_token(text: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **flags, "special": True}


def _template(cls: str, sep: str, pieces: dict[str, int], cut: object) -> dict[str, Any]:
    def special(text: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": segment}}

    single = [special(cls, 0), {"Sequence": {"id": "A", "type_id": 0}}, special(sep, 0)]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}, special(sep, 1)],
        "special_tokens": {text: {"id": text, "ids": [pieces[text]], "tokens": [text]} for text in (cls, sep)},
    }
    if not _is_byte_level(cut):
        return template
    # Takes the space that such pieces begin with out of the offsets, as stock does.
    trim = {"type": "ByteLevel", "add_prefix_space": _adds_space(cut), "trim_offsets": True, "use_regex": True}
    return {"type": "Sequence", "processors": [trim, template]}


def _byte_level_steps(cut: object) -> list[dict[str, Any]]:
    steps = cut.get("pretokenizers", [cut]) if isinstance(cut, dict) else []
    dictionaries = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [step for step in dictionaries if step.get("type") == "ByteLevel"]


def _is_byte_level(cut: object) -> bool:
    return bool(_byte_level_steps(cut))


def _adds_space(cut: object) -> bool:
    return any(step.get("add_prefix_space") is True for step in _byte_level_steps(cut))


def _try(file: Path, content: str) -> None:
    """Tokenise a few texts in a process of its own, where native code may panic, hang or fill memory."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", tokenizer_probe.__file__],
            input=content,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{file} took more than {_PROBE_SECONDS} s for a few short texts; name another tokenizer"
        ) from None
    if done.returncode:
        said = f"ended with status {done.returncode}"
        lines = [line for line in (done.stdout or done.stderr).splitlines() if line.strip()]
        if lines and done.returncode == 1:  # it says what is wrong, or Python says so last; else the system killed it
            said = " ".join(lines[-1].split())[:120]
        raise CheckpointError(f"{file} cannot be used as a tokenizer ({said}); fetch it again")
