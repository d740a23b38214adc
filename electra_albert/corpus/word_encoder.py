"""Text to token ids, for every kind of tokenizer, such that text never becomes a special token.

Where the pipeline cuts at white space before anything else that looks further than one character, a word's ids do not
depend on its neighbours: each distinct word is tokenised once and looked up ever after, at megabytes a second. Other
pipelines (byte-level BPE sees the space before a word) are given whole sentences.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from electra_albert.corpus.charsmap import has_key_after_space, read_charsmap
from electra_albert.corpus.lost_characters import count_lost
from electra_albert.corpus.tokenizer_albert import LATIN_MARKS

if TYPE_CHECKING:
    from electra_albert.corpus.tokenizer import Tokenizer

MEMO_WORDS = 500_000
MEMO_CHARACTERS = 16_000_000
# What changes each character for itself, or with the combining marks behind it, which no space is.
_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKD", "StripAccents", "Lowercase", "BertNormalizer", "Precompiled"})
_CUTS_AT_SPACES = frozenset({"WhitespaceSplit", "BertPreTokenizer"})


class Encoder(Protocol):
    """Encodes sentences as the stock tokenizer told to `split_special_tokens` does, but never gives text a special id.

    `special_texts` counts the texts of special tokens met. Stock would turn "[MASK]" in a corpus into the mask itself;
    and even told to read "<pad>" as text it finds the piece where the model is Unigram, which knows no control pieces.
    `unknown_id` is what text without a piece becomes, -1 where the model has none; `unknown_characters` counts the
    characters of that text, spaces apart, for one unknown token may stand for many of them. `lost` counts what the
    normalizer takes out of text, by the names of `count_lost`.
    """

    special_texts: int
    unknown_characters: int
    lost: Counter[str]
    unknown_id: int

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """ids [tokens] int32 of all sentences one after the other, without special tokens; tokens of each [n] int64."""
        ...


def encoder_settings(tokenizer: Tokenizer) -> str:
    """What `make_encoder` needs, as JSON, which is how a process of its own is handed it."""
    return str(tokenizer.backend_tokenizer.to_str())


def make_encoder(settings: str) -> Encoder:
    """The fastest encoder that gives the ids of the tokenizer whose `encoder_settings` these are."""
    return WordEncoder(settings) if _cuts_at_spaces_first(json.loads(settings)) else SentenceEncoder(settings)


class _PlainText:
    """A backend to which special tokens are text like any other, and which mends what it takes for one all the same."""

    def __init__(self, settings: str) -> None:
        from tokenizers import Tokenizer

        content = json.loads(settings)
        model, added = content["model"], content["added_tokens"]
        specials = {token["id"]: token["content"] for token in added if token["special"]}
        self.unknown_id = _unknown_id(model)
        self._special_ids = np.array([number for number in specials if number != self.unknown_id], np.int32)
        self._special_text = re.compile("|".join(map(re.escape, specials.values())))
        if model["type"] == "Unigram":
            # White space hardly ever reaches the model, so a piece that begins with a space is not found in text.
            for number in specials:
                if number < len(model["vocab"]):  # an added token may stand behind the pieces
                    model["vocab"][number][0] = " " + model["vocab"][number][0]
            content["added_tokens"] = [token for token in added if not token["special"]]
        content |= {"post_processor": None, "truncation": None, "padding": None}
        self.backend = Tokenizer.from_str(json.dumps(content))
        self.backend.encode_special_tokens = True

    def lost(self, word: str) -> Counter[str]:
        """What the normalizer takes out of a word."""
        normalizer = self.backend.normalizer
        return count_lost(word, normalizer.normalize_str(word)) if normalizer else Counter()

    def mend(self, texts: list[str], ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids and lengths without special tokens, now unknown or left out; special texts met in each text int64."""
        is_special = np.isin(ids, self._special_ids)
        taken = np.bincount(np.repeat(np.arange(len(texts)), lengths)[is_special], minlength=len(texts))
        written = np.array([len(self._special_text.findall(text)) for text in texts], np.int64)
        if self.unknown_id >= 0:
            ids[is_special] = self.unknown_id
        else:
            ids, lengths = ids[~is_special], lengths - taken
        return ids, lengths, np.maximum(taken, written)

    def unknown_characters(self, texts: list[str]) -> np.ndarray:
        """How many characters of each text become the unknown token, spaces apart: int64 [texts]."""
        special = {*self._special_ids.tolist(), self.unknown_id}  # for `mend` turns the others into it as well
        found = self.backend.encode_batch(texts, add_special_tokens=False)
        unknown = [[at for number, at in zip(e.ids, e.offsets, strict=True) if number in special] for e in found]
        return np.array([_covered(text, spans) for text, spans in zip(texts, unknown, strict=True)], np.int64)


def _covered(text: str, spans: list[tuple[int, int]]) -> int:
    """The characters of `text` in spans that are in order and may overlap; spaces are not counted."""
    count = reached = 0
    for start, end in spans:
        count += len(text[max(start, reached) : end].replace(" ", ""))
        reached = max(reached, end)
    return count


def _unknown_id(model: dict[str, Any]) -> int:
    found = model.get("unk_id") if model["type"] == "Unigram" else model["vocab"].get(model.get("unk_token"))
    return -1 if found is None else int(found)


def _cuts_at_spaces_first(content: dict[str, Any]) -> bool:
    """Whether a word's ids provably do not depend on its neighbours; False where in doubt."""
    if any(not token["special"] for token in content["added_tokens"]):
        return False  # such a token is looked for before anything else, and may take the space beside it
    first, *rest = _steps(content["pre_tokenizer"], "pretokenizers") or [{}]
    if first.get("type") not in _CUTS_AT_SPACES:
        return False
    if any((step["type"], step.get("prepend_scheme")) != ("Metaspace", "always") for step in rest):
        return False
    charsmap = read_charsmap(content["normalizer"])
    if charsmap is not None and has_key_after_space(charsmap):
        return False
    return all(_is_local(step) for step in _steps(content["normalizer"], "normalizers"))


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]


def _is_local(step: dict[str, Any]) -> bool:
    if step["type"] != "Replace":
        return step["type"] in _LOCAL_NORMALIZERS
    if step["pattern"].get("Regex") == LATIN_MARKS:
        return True
    text = step["pattern"].get("String", " ")
    return not any(character.isspace() for character in text)


class SentenceEncoder:
    """An Encoder for any pipeline: each sentence is given to it whole."""

    def __init__(self, settings: str) -> None:
        self._plain = _PlainText(settings)
        self._lost = lru_cache(MEMO_WORDS)(self._plain.lost)
        self.unknown_id = self._plain.unknown_id
        self.special_texts = 0
        self.unknown_characters = 0
        self.lost: Counter[str] = Counter()

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Encoder.encode`."""
        if not sentences:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        found = [one.ids for one in self._plain.backend.encode_batch_fast(sentences, add_special_tokens=False)]
        lengths = np.array([len(one) for one in found], np.int64)
        ids = np.fromiter((number for one in found for number in one), np.int32, int(lengths.sum()))
        ids, lengths, specials = self._plain.mend(sentences, ids, lengths)
        self.special_texts += int(specials.sum())
        self.unknown_characters += int(_unknown_characters(self._plain, sentences, ids, lengths).sum())
        for word in (word for sentence in sentences if not sentence.isascii() for word in sentence.split()):
            self.lost.update(self._lost(word))
        return ids, lengths


def _unknown_characters(plain: _PlainText, texts: list[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Characters of each text that became unknown [texts] int64; only texts that hold such a token are looked at."""
    counts = np.zeros(len(texts), np.int64)
    holders = np.unique(np.repeat(np.arange(len(texts)), lengths)[ids == plain.unknown_id])
    if len(holders):
        counts[holders] = plain.unknown_characters([texts[number] for number in holders])
    return counts


class _WordNumbers(dict[str, int]):
    """Numbers words in the order they are first asked for, and lists those not yet tokenised."""

    def __init__(self) -> None:
        super().__init__()
        self.unseen: list[str] = []
        self.characters = 0

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.unseen.append(word)
        self.characters += len(word)
        return number


class WordEncoder:
    """An Encoder with a memo of words, for pipelines that cut at white space first."""

    def __init__(self, tokenizer: Tokenizer | str, memo_words: int = MEMO_WORDS) -> None:
        """`tokenizer`, or its settings. The memo begins anew once it holds more than `memo_words`."""
        self._plain = _PlainText(tokenizer if isinstance(tokenizer, str) else encoder_settings(tokenizer))
        self.backend = self._plain.backend
        self.unknown_id = self._plain.unknown_id
        self.special_texts = 0
        self.unknown_characters = 0
        self.lost: Counter[str] = Counter()
        self._memo_words = memo_words
        self._forget()

    def _forget(self) -> None:
        self._numbers = _WordNumbers()
        self._ids = np.zeros(0, np.int32)  # the ids of all words of the memo, one after the other
        self._starts = np.zeros(0, np.int64)  # by word number
        self._lengths = np.zeros(0, np.int64)
        self._specials = np.zeros(0, np.int64)
        self._unknown = np.zeros(0, np.int64)  # characters
        self._lost: dict[int, Counter[str]] = {}  # of words that lose something
        self._is_lossy = np.zeros(0, bool)

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Encoder.encode`."""
        if not sentences:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        if len(self._numbers) > self._memo_words or self._numbers.characters > MEMO_CHARACTERS:
            self._forget()
        words = " ".join(sentences).split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        if self._numbers.unseen:
            self._learn(self._numbers.unseen)
            self._numbers.unseen = []
        lengths = self._lengths[numbers]
        ends = lengths.cumsum()
        ids = self._ids[np.repeat(self._starts[numbers] - (ends - lengths), lengths) + np.arange(ends[-1])]
        self.special_texts += int(self._specials[numbers].sum())
        self.unknown_characters += int(self._unknown[numbers].sum())
        self._count_lost(numbers[self._is_lossy[numbers]])
        word_counts = np.fromiter((sentence.count(" ") + 1 for sentence in sentences), np.int64, len(sentences))
        return ids, np.diff(ends[word_counts.cumsum() - 1], prepend=0)

    def _learn(self, words: list[str]) -> None:
        encoding = self.backend.encode(words, is_pretokenized=True, add_special_tokens=False)
        found = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(words))
        ids, lengths, specials = self._plain.mend(words, np.array(encoding.ids, np.int32), found)
        starts = len(self._ids) + lengths.cumsum() - lengths
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._specials = np.concatenate([self._specials, specials])
        unknown = _unknown_characters(self._plain, words, ids, lengths)
        self._unknown = np.concatenate([self._unknown, unknown])
        others = [(number, word) for number, word in enumerate(words, len(self._is_lossy)) if not word.isascii()]
        lossy = {number: lost for number, word in others if (lost := self._plain.lost(word))}
        self._lost |= lossy
        self._is_lossy = np.concatenate([self._is_lossy, np.zeros(len(words), bool)])
        self._is_lossy[list(lossy)] = True

    def _count_lost(self, numbers: np.ndarray) -> None:
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            for name, lost in self._lost[int(number)].items():
                self.lost[name] += lost * int(count)
