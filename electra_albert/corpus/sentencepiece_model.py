"""Reads SentencePiece Unigram models, to encode in `tokenizers` as in `sentencepiece`."""

import json
from collections.abc import Collection
from typing import Any

WORD_START = "▁"
_RULES = ("", "identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
# `Precompiled` replaces a short grapheme by what it knows of its start: it would drop the mark of
# "X\u0301" in lower-casing, and the "\n" of "\r\n". A noncharacter ends the grapheme before these,
# and separates letters of Korean that SentencePiece does not compose.
_GRAPHEME_END = "\ufdd0"
_SEPARATED = r"(?<=.)(?=[\p{M}\u200c\u200d\n\u3130-\u318f\uffa0-\uffdc])"


def parse_model(content: bytes) -> Any:
    """The ModelProto in a file. Raises ValueError if damaged or of an unsupported kind."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()  # of transformers: protobuf refuses a second module
    proto.ParseFromString(content)
    trainer = proto.trainer_spec
    spec = proto.normalizer_spec
    is_whole = proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")  # stored last
    kind = type(trainer).ModelType.Name(trainer.model_type)
    problems = {
        f"cut off after {len(proto.pieces)} tokens": not is_whole,
        f"of type {kind}, not UNIGRAM": kind != "UNIGRAM",
        "with byte fallback": trainer.byte_fallback,
        "with treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "without escape_whitespaces": not spec.escape_whitespaces,
        f"with the normalization rules {spec.name!r}": spec.name not in _RULES,
    }
    for problem, applies in problems.items():
        if applies:
            raise ValueError(f"a SentencePiece model {problem}, which is not supported")
    return proto


def is_uncased_default(proto: Any) -> bool:
    """Whether a model with the default options has no capitals and accents, as ALBERT's."""
    from transformers import AlbertTokenizer

    spec = proto.normalizer_spec
    learned = "".join(piece.piece for piece in proto.pieces if piece.type == piece.NORMAL)
    if AlbertTokenizer().backend_tokenizer.normalizer.normalize_str(learned) != learned:
        return False
    return bool(spec.name == "nmt_nfkc" and spec.add_dummy_prefix and spec.remove_extra_whitespaces)


def as_content(proto: Any, roles: Collection[str]) -> dict[str, Any]:
    """The content of a tokenizer.json with the same ids; `roles` are its special tokens.

    Raises ValueError for another user-defined symbol that the rules change.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    spec = proto.normalizer_spec
    steps = []
    if spec.precompiled_charsmap:
        separate = normalizers.Replace(Regex(_SEPARATED), _GRAPHEME_END)
        join = normalizers.Replace(_GRAPHEME_END, "")
        rules = normalizers.Precompiled(spec.precompiled_charsmap)
        steps = [normalizers.NFC(), separate, rules, normalizers.NFC(), join]
    normalizer = normalizers.Sequence(steps)
    vocab = []
    for piece in proto.pieces:
        token = piece.piece
        is_symbol = piece.type == piece.USER_DEFINED and token not in roles
        if is_symbol and normalizer.normalize_str(token) != token:
            raise ValueError(f"a SentencePiece model whose rules change its symbol {token!r}")
        if piece.type not in (piece.NORMAL, piece.USER_DEFINED) and token not in roles:
            token = " " + token  # text never yields it, and no space reaches the model
        vocab.append((token, piece.score))
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(f"^ +| +(?= )|[ {WORD_START}]+$"), ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    backend = Tokenizer(models.Unigram(vocab, proto.trainer_spec.unk_id))
    backend.normalizer = normalizers.Sequence(steps)
    crosses_words = any(WORD_START in token.lstrip()[1:] for token, _ in vocab)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "never", split=not crosses_words)
    return dict(json.loads(backend.to_str()))
