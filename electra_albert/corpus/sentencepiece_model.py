"""Reads SentencePiece Unigram models, to encode as the sentencepiece package does but without it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

WORD_START = "▁"
_RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
# `Precompiled` looks up only the start of a short grapheme: it would drop the mark of "X\u0301" or the "\n" of "\r\n".
# A noncharacter before these ends the grapheme, and before letters of Korean that SentencePiece does not compose.
_GRAPHEME_END = "\ufdd0"
_SEPARATED = r"(?<=.)(?=[\p{M}\u200c\u200d\n\u3130-\u318f\uffa0-\uffdc])"
_PLACEHOLDERS = [chr(code) for code in range(0xFDD1, 0xFDF0)]  # noncharacters


def parse_model(content: bytes) -> Any:
    """The ModelProto in a file. Raises ValueError for a damaged one, and by name for what cannot be encoded exactly."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()  # as transformers imports it, because protobuf refuses a second module
    proto.ParseFromString(content)
    if not (proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):  # stored after the tokens
        raise ValueError(f"it is cut off after {len(proto.pieces)} tokens")
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    kind = type(trainer).ModelType.Name(trainer.model_type)
    unsupported = {
        f"of type {kind}, not UNIGRAM": kind != "UNIGRAM",
        "with byte fallback": trainer.byte_fallback,
        "with treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "without escape_whitespaces": not normalizer.escape_whitespaces,
        f"with normalization rules {normalizer.name!r}, not {', '.join(_RULES)} or identity": (
            normalizer.precompiled_charsmap and normalizer.name not in _RULES
        ),
    }
    for reason in (reason for reason, applies in unsupported.items() if applies):
        raise ValueError(f"a SentencePiece model {reason}")
    return proto


def is_plain(proto: Any) -> bool:
    """Whether it encodes words without capitals and accents by the default rules, as ALBERT's does."""
    spec = proto.normalizer_spec
    if spec.name != "nmt_nfkc" or not spec.add_dummy_prefix or not spec.remove_extra_whitespaces:
        return False
    learned = "".join(piece.piece for piece in proto.pieces if piece.type == piece.NORMAL)
    return learned == learned.lower() and not any(map(unicodedata.combining, unicodedata.normalize("NFKD", learned)))


def as_content(proto: Any, roles: Collection[str], do_lower_case: bool | None, keep_accents: bool | None) -> Any:
    """The content of a tokenizer.json with the same ids; the options are steps before the model's own rules."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    vocab = [(piece.piece, piece.score) for piece in proto.pieces]
    for number, piece in enumerate(proto.pieces):
        if piece.type not in (piece.NORMAL, piece.USER_DEFINED) and piece.piece not in roles:
            # SentencePiece does not find it in text, nor does a model that no space reaches.
            vocab[number] = (" " + piece.piece, piece.score)
    crosses_words = any(WORD_START in token.lstrip()[1:] for token, _ in vocab)
    backend = Tokenizer(models.Unigram(vocab, proto.trainer_spec.unk_id))
    rules = _rules(proto, do_lower_case, keep_accents)
    user_defined = [piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED]
    changed = [token for token in user_defined if rules.normalize_str(token) != token]
    if len(changed) > len(_PLACEHOLDERS):
        raise ValueError(f"its rules change more than {len(_PLACEHOLDERS)} of its user-defined symbols")
    pairs = list(zip(sorted(changed, key=len, reverse=True), _PLACEHOLDERS, strict=False))
    steps = [normalizers.Replace(token, placeholder) for token, placeholder in pairs]
    steps += [rules, *(normalizers.Replace(placeholder, token) for token, placeholder in pairs)]
    backend.normalizer = normalizers.Sequence([*steps, *_white_space(proto.normalizer_spec)])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "never", split=not crosses_words)
    return json.loads(backend.to_str())


def _rules(proto: Any, do_lower_case: bool | None, keep_accents: bool | None) -> Normalizer:
    from tokenizers import Regex, normalizers

    steps: list[Normalizer] = []
    if keep_accents is False:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    if charsmap := proto.normalizer_spec.precompiled_charsmap:
        separate = normalizers.Replace(Regex(_SEPARATED), _GRAPHEME_END)
        rules = normalizers.Precompiled(charsmap)
        join = normalizers.Replace(_GRAPHEME_END, "")
        steps += [normalizers.NFC(), separate, rules, normalizers.NFC(), join]
    return normalizers.Sequence(steps)


def _white_space(spec: Any) -> list[Normalizer]:
    from tokenizers import Regex, normalizers

    steps: list[Normalizer] = []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(f"^ +|[ {WORD_START}]+$"), "")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return steps
