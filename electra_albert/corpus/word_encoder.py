"""Text to token ids, for every kind of tokenizer, such that text never becomes a special token.

Where the pipeline splits at white space before anything that looks further than one character, a word's ids do not
depend on its neighbours: each distinct word is tokenised once and looked up afterwards, at megabytes a second. Other
pipelines (byte-level BPE sees the space before a word) get whole sentences.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_albert.corpus.statistics import count_lost
from electra_albert.corpus.tokenizer_training import LATIN_MARKS

if TYPE_CHECKING:
    from electra_albert.corpus.tokenizer import Tokenizer

MEMO_WORDS = 500_000
MEMO_CHARACTERS = 16_000_000
# Normalizers that change each character for itself, or with the combining marks after it, which no space is.
_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKD", "StripAccents", "Lowercase", "BertNormalizer"})
_SPLITS_AT_SPACES = frozenset({"WhitespaceSplit", "BertPreTokenizer"})


def encoder_settings(tokenizer: Tokenizer) -> str:
    """The JSON that `TextEncoder` is built from, which can be handed to another process."""
    return str(tokenizer.backend_tokenizer.to_str())


class _UnitNumbers(dict[str, int]):
    """Numbers units of text in the order they are first asked for, and lists those not yet tokenised."""

    def __init__(self) -> None:
        super().__init__()
        self.unseen: list[str] = []
        self.characters = 0

    def __missing__(self, unit: str) -> int:
        number = self[unit] = len(self)
        self.unseen.append(unit)
        self.characters += len(unit)
        return number


class TextEncoder:
    """Encodes sentences as the stock tokenizer with `split_special_tokens` does, but never gives text a special id.

    Stock would turn "[MASK]" in a corpus into the mask itself; even with `split_special_tokens` it finds "<pad>" in
    text if the model is Unigram, which knows no control tokens. Counts over all calls: `special_texts` met;
    `unknown_characters` that the unknown token (`unknown_id`, -1 if there is none) replaced, spaces apart; `lost`, what
    the normalizer removed, by the names of `count_lost`.
    """

    def __init__(self, settings: str, *, by_word: bool | None = None, memo_words: int = MEMO_WORDS) -> None:
        """`settings` as of `encoder_settings`. The memo is emptied when it holds more than `memo_words`."""
        from tokenizers import Tokenizer

        content = json.loads(settings)
        model, added = content["model"], content["added_tokens"]
        self.by_word = _splits_at_spaces_first(content) if by_word is None else by_word
        specials = {token["id"]: token["content"] for token in added if token["special"]}
        unknown = model.get("unk_id") if model["type"] == "Unigram" else model["vocab"].get(model.get("unk_token"))
        self.unknown_id = -1 if unknown is None else int(unknown)
        self._special_ids = np.array([number for number in specials if number != self.unknown_id], np.int32)
        self._special_text = re.compile("|".join(map(re.escape, specials.values())))
        if model["type"] == "Unigram":
            # White space hardly ever reaches the model, so a token that begins with a space is not found in text.
            for number in specials:
                if number < len(model["vocab"]):  # else an added token after the model's own
                    model["vocab"][number][0] = " " + model["vocab"][number][0]
            content["added_tokens"] = [token for token in added if not token["special"]]
        content |= {"post_processor": None, "truncation": None, "padding": None}
        self.backend = Tokenizer.from_str(json.dumps(content))
        self.backend.encode_special_tokens = True
        self.special_texts = 0
        self.unknown_characters = 0
        self.lost: Counter[str] = Counter()
        self._memo_words = memo_words if self.by_word else 0
        self._forget()

    def _forget(self) -> None:
        self._numbers = _UnitNumbers()
        self._ids = np.zeros(0, np.int32)  # of all units of the memo, one after the other
        self._starts = np.zeros(0, np.int64)  # by unit number
        self._counts = np.zeros((3, 0), np.int64)  # by unit number: tokens, special texts, unknown characters
        self._lost: dict[int, Counter[str]] = {}  # of units that lose something

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """ids [tokens] int32 of all sentences one after the other, without special tokens; tokens of each [n] int64."""
        if not sentences:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        if len(self._numbers) > self._memo_words or self._numbers.characters > MEMO_CHARACTERS:
            self._forget()
        units = " ".join(sentences).split(" ") if self.by_word else sentences
        numbers = np.fromiter(map(self._numbers.__getitem__, units), np.int64, len(units))
        if self._numbers.unseen:
            self._learn(self._numbers.unseen)
            self._numbers.unseen = []
        lengths, specials, unknown = self._counts[:, numbers]
        ends = lengths.cumsum()
        ids = self._ids[np.repeat(self._starts[numbers] - (ends - lengths), lengths) + np.arange(ends[-1])]
        self.special_texts += int(specials.sum())
        self.unknown_characters += int(unknown.sum())
        lossy = numbers[np.isin(numbers, np.array([*self._lost], np.int64))]
        for number, count in zip(*np.unique(lossy, return_counts=True), strict=True):
            for name, lost in self._lost[int(number)].items():
                self.lost[name] += lost * int(count)
        if not self.by_word:
            return ids, lengths
        word_counts = np.fromiter((sentence.count(" ") + 1 for sentence in sentences), np.int64, len(sentences))
        return ids, np.diff(ends[word_counts.cumsum() - 1], prepend=0)

    def _learn(self, units: list[str]) -> None:
        """Tokenise new units; special ids that the model finds in text become unknown or are left out."""
        if self.by_word:
            encoding = self.backend.encode(units, is_pretokenized=True, add_special_tokens=False)
            ids = np.array(encoding.ids, np.int32)
            lengths = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(units))
        else:
            found = [one.ids for one in self.backend.encode_batch_fast(units, add_special_tokens=False)]
            lengths = np.array([len(one) for one in found], np.int64)
            ids = np.fromiter((number for one in found for number in one), np.int32, int(lengths.sum()))
        is_special = np.isin(ids, self._special_ids)
        taken = np.bincount(np.repeat(np.arange(len(units)), lengths)[is_special], minlength=len(units))
        written = np.array([len(self._special_text.findall(unit)) for unit in units], np.int64)
        if self.unknown_id >= 0:
            ids[is_special] = self.unknown_id
        else:
            ids, lengths = ids[~is_special], lengths - taken
        counts = np.stack([lengths, np.maximum(taken, written), self._unknown_characters(units, ids, lengths)])
        first = self._counts.shape[1]
        for number, unit in enumerate(units, first):
            if unit.isascii() or self.backend.normalizer is None:
                continue
            for word in (unit,) if self.by_word else unit.split():
                if lost := count_lost(word, self.backend.normalizer.normalize_str(word)):
                    self._lost[number] = self._lost.get(number, Counter()) + lost
        self._starts = np.concatenate([self._starts, len(self._ids) + lengths.cumsum() - lengths])
        self._ids = np.concatenate([self._ids, ids])
        self._counts = np.concatenate([self._counts, counts], axis=1)

    def _unknown_characters(self, units: list[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Characters of each unit that became unknown, spaces apart: int64 [units]."""
        counts = np.zeros(len(units), np.int64)
        holders = np.unique(np.repeat(np.arange(len(units)), lengths)[ids == self.unknown_id]).tolist()
        texts = [units[number] for number in holders]
        special = {*self._special_ids.tolist(), self.unknown_id}  # `_learn` turns the special ones into it as well
        for number, text, found in zip(
            holders, texts, self.backend.encode_batch(texts, add_special_tokens=False), strict=True
        ):
            reached = 0  # spans are in order and may overlap
            for token, (start, end) in zip(found.ids, found.offsets, strict=True):
                if token in special:
                    counts[number] += len(text[max(start, reached) : end].replace(" ", ""))
                    reached = max(reached, end)
        return counts


def _splits_at_spaces_first(content: dict[str, Any]) -> bool:
    """Whether a word's ids provably do not depend on its neighbours; False if in doubt."""
    if any(not token["special"] for token in content["added_tokens"]):
        return False  # such a token is searched for before anything else, and may take the space next to it
    first, *rest = _steps(content["pre_tokenizer"], "pretokenizers") or [{}]
    if first.get("type") not in _SPLITS_AT_SPACES:
        return False
    if any((step["type"], step.get("prepend_scheme")) != ("Metaspace", "always") for step in rest):
        return False
    return all(_is_local(step) for step in _steps(content["normalizer"], "normalizers"))


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]


def _is_local(step: dict[str, Any]) -> bool:
    if step["type"] == "Precompiled":
        return not _has_key_after_space(base64.b64decode(step["precompiled_charsmap"] or ""))
    if step["type"] != "Replace":
        return step["type"] in _LOCAL_NORMALIZERS
    if step["pattern"].get("Regex") == LATIN_MARKS:
        return True
    text = step["pattern"].get("String", " ")
    return not any(character.isspace() for character in text)


def _has_key_after_space(charsmap: bytes) -> bool:
    """Whether a SentencePiece character map replaces a text that begins with a space and continues after it.

    Layout: the trie's size in bytes as a little-endian uint32, then the trie as a double array of uint32 units.
    """
    units = np.frombuffer(charsmap, "<u4", int.from_bytes(charsmap[:4], "little") // 4, offset=4).astype(np.int64)

    def first_child(index: int) -> int:
        return int(index ^ ((units[index] >> 10) << ((units[index] >> 9 & 1) * 8)))

    def is_child(index: int, byte: int) -> bool:
        return int(units[index]) & (1 << 31 | 0xFF) == byte

    space = first_child(0) ^ ord(" ")
    if not is_child(space, ord(" ")):
        return False
    below = first_child(space)
    return any(is_child(below ^ byte, byte) for byte in range(1, 256))
