"""Unigram tokenizers: ALBERT's, and SentencePiece models as `tokenizers` encodes them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import AlbertTokenizer

JsonObject = dict[str, Any]  # such as the content of a tokenizer.json
Vocab = list[tuple[str, float]]  # tokens with their scores, by id
WORD_START = "▁"
SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # of ALBERT, with ids 0 to 4
ROLES = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}  # or [PAD]
UNK_ID = SPECIAL_TOKENS.index("<unk>")
MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # types are no default
_LATIN_MARKS = r"(?<![^\p{Latin}\s])\p{M}+"  # after a Latin letter, space (´ in NFKD) or nothing
# Subtracted from the scores of tokens such as "▁1,". Any split before the comma costs less, so
# they are never used. transformers 4 uses the same number, so files contain scores lowered by it.
_DIGIT_COMMA_PENALTY = 100.0
_RULES = ("", "identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")
# `Precompiled` replaces a short grapheme by what it knows of its start: it would drop the mark of
# "X\u0301" in lower-casing, and the "\n" of "\r\n". A noncharacter ends the grapheme before these,
# and separates letters of Korean that SentencePiece does not compose.
_GRAPHEME_END = "\ufdd0"
_SEPARATED = r"(?<=.)(?=[\p{M}\u200c\u200d\n\u3130-\u318f\uffa0-\uffdc])"


def content_of(backend: Any) -> JsonObject:
    """The content of the tokenizer.json of a tokenizers.Tokenizer."""
    return dict(json.loads(backend.to_str()))


def build_albert(vocab: Vocab, **options: Any) -> AlbertTokenizer:
    """An AlbertTokenizer with a vocabulary of (token, score)."""
    from transformers import AlbertTokenizer

    return AlbertTokenizer(vocab=vocab, model_input_names=MODEL_INPUT_NAMES, **options)


def split_digit_commas(vocab: Vocab, is_split: bool | None) -> Vocab:
    """Adjust Unigram scores so that no token joins a comma to a digit, or that one may again.

    Differs from ALBERT: its code splits the comma off after encoding, which rarely also changes how
    digits are split. Of the tokens "1,", "," and "1":

        scores            -5    -2   -3
        is_split=True     -105  -2   -3
        is_split=False    -5    -2   -3
    """
    if is_split is None:
        return vocab
    joint = {token for token, _ in vocab if token.endswith(",") and token[-2:-1].isdigit()}
    ordinary = [score for token, score in vocab if token not in joint]
    lowest = min(ordinary, default=0.0)
    adjusted = []
    for token, score in vocab:
        is_lowered = score < lowest - _DIGIT_COMMA_PENALTY / 2
        if token in joint and is_lowered != is_split:
            score += -_DIGIT_COMMA_PENALTY if is_split else _DIGIT_COMMA_PENALTY
        adjusted.append((token, score))
    return adjusted


def script_safe_normalizer(do_lower_case: bool, keep_accents: bool) -> Normalizer:
    """Replace quotes as ALBERT does, strip marks of Latin letters unless kept, NFC, lower-case."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_LATIN_MARKS), "")]
    steps.append(normalizers.NFC())
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


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
    normalizer = AlbertTokenizer().backend_tokenizer.normalizer
    if normalizer.normalize_str(learned) != learned:
        return False
    return bool(spec.name == "nmt_nfkc" and spec.add_dummy_prefix and spec.remove_extra_whitespaces)


def as_content(proto: Any, roles: Collection[str]) -> JsonObject:
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
        spaces = Regex(f"^ +| +(?= )|[ {WORD_START}]+$")
        steps.append(normalizers.Replace(spaces, ""))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    backend = Tokenizer(models.Unigram(vocab, proto.trainer_spec.unk_id))
    backend.normalizer = normalizers.Sequence(steps)
    crosses_words = any(WORD_START in token.lstrip()[1:] for token, _ in vocab)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "never", split=not crosses_words)
    return content_of(backend)


def find_roles(config: JsonObject, tokens: Collection[str]) -> dict[str, str]:
    """The special token of each role, from the configuration or else by a well-known name."""
    roles = {}
    for role, usual in ROLES.items():
        key = f"{role}_token"
        name = token_name(config.get(key))
        names = [f"[{role.upper()}]", usual]
        if name is not None:
            names = [name]
        present = [name for name in names if isinstance(name, str) and name in tokens]
        if present:
            roles[key] = present[0]
        elif role != "unk":
            raise ValueError(f"no {key}: {' or '.join(map(repr, names))} is not a token")
    if len(set(roles.values())) < len(roles):
        raise ValueError(f"two of its special tokens are the same, {roles}")
    return roles


def token_name(entry: Any) -> Any:
    """The text of a token in a configuration."""
    if isinstance(entry, dict):
        return entry.get("content")
    return entry
