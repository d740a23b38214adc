"""Encodes text, with any fast tokenizer, as token ids and character offsets; never as [MASK]."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, filterfalse
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.tokenization.unigram import ROLES, content_of

Ids = NDArray[np.int32]
_TEXTS_AT_ONCE = 2048  # a token with its offsets takes hundreds of bytes
_CHARACTERS_AT_ONCE = 1 << 20
_MAX_CACHED_LENGTH = 64  # characters of a word; bounds the memory of the cache
MARKS_REMOVED = "marks_removed"
FORMS_REWRITTEN = "compatibility_forms_rewritten"


class Subwords(NamedTuple):
    """Subwords of a text with their character offsets: text[start:end], without leading spaces."""

    ids: Ids
    starts: Ids
    ends: Ids


class TextEncoder:
    """Encodes like the tokenizer, but tokens with a role, such as [MASK], are text. Can be pickled.

    It finds all other added tokens. `transformers` can only split all special tokens, and finds
    "<pad>" nevertheless if the model is Unigram.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.cls_id: int = tokenizer.cls_token_id
        self.sep_id: int = tokenizer.sep_token_id
        self.pad_id: int = tokenizer.pad_token_id
        self.filler_id: int = tokenizer.unk_token_id  # for words that yield no token
        if tokenizer.unk_token is None:
            self.filler_id = tokenizer.mask_token_id
        content = content_of(tokenizer.backend_tokenizer)
        model = content["model"]
        vocab = model["vocab"]
        added = content["added_tokens"]
        is_unigram = model["type"] == "Unigram"
        unknown = model.get("unk_id") if is_unigram else vocab.get(model.get("unk_token"))
        self.unknown_id: int = -1  # of the model, -1 if none
        if unknown is not None:
            self.unknown_id = unknown
        special = {}
        for role in ROLES:
            token = getattr(tokenizer, f"{role}_token")
            if token:
                special[tokenizer.convert_tokens_to_ids(token)] = token
        self._special_text = re.compile("|".join(map(re.escape, special.values())))
        for entry in added:
            entry["special"] = entry["id"] in special  # encode_special_tokens does not find these
        if is_unigram:
            # White space rarely reaches the model, so it finds no token that begins with a space.
            for token_id, token in special.items():
                if token_id < len(vocab):
                    vocab[token_id][0] = " " + token
            content["added_tokens"] = [
                entry for entry in added if not entry["special"] or entry["id"] >= len(vocab)
            ]
        content |= {"post_processor": None, "truncation": None, "padding": None}
        self._is_special = np.zeros(len(tokenizer), np.bool_)
        self._is_special[sorted(special.keys() - {self.unknown_id})] = True
        self._normalizer = tokenizer.backend_tokenizer.normalizer  # one object for `_count_changed`
        self._content = content
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_backend": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from tokenizers import Tokenizer, models

        self.__dict__ |= state
        self._backend = Tokenizer.from_str(json.dumps(self._content))
        self._backend.encode_special_tokens = True
        model = self._content["model"]
        if model["type"] == "Unigram":  # from_str rounds scores, which would break ties differently
            vocab = list(map(tuple, model["vocab"]))
            self._backend.model = models.Unigram(vocab, model["unk_id"], model["byte_fallback"])

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The token ids of each text."""
        ids, lengths = self._flat_ids(texts)
        return np.split(ids, lengths.cumsum())[:-1]

    def encode_counted(
        self, sentences: Sequence[str]
    ) -> tuple[Ids, NDArray[np.int64], Counter[str]]:
        """ids [tokens] int32 of all sentences, tokens per sentence [n] int64, and counts.

        Counts: `special_texts` (texts of special tokens), `unknown_characters` (without spaces),
        and `marks_removed` and `compatibility_forms_rewritten` by the normalizer.
        """
        ids, lengths = self._flat_ids(sentences)
        sentence = np.repeat(np.arange(len(sentences)), lengths)  # of each token
        numbers = {*sentence[ids == self.unknown_id].tolist()}
        with_unknown = [sentences[number] for number in numbers]
        counts = Counter(
            special_texts=sum(len(self._special_text.findall(text)) for text in sentences),
            unknown_characters=self._unknown_characters(with_unknown),
        )
        if self._normalizer:
            texts = filterfalse(str.isascii, sentences)
            words = chain.from_iterable(map(str.split, texts))
            for word in filterfalse(str.isascii, words):
                is_short = len(word) <= _MAX_CACHED_LENGTH
                count_changed = _count_changed if is_short else _count_changed.__wrapped__
                counts.update(count_changed(self._normalizer, word))
        return ids, lengths, counts

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Subwords]:
        """Yield the token ids and offsets of each text."""
        encodings = self._in_batches(texts, self._backend.encode_batch)
        for text, encoding in zip(texts, encodings, strict=True):
            ids = np.array(encoding.ids, np.int32)
            covered = cover(text, encoding.offsets)
            spans = np.array(covered, np.int32).reshape(-1, 2)
            is_special = self._is_special[ids]
            if self.unknown_id >= 0:
                ids[is_special] = self.unknown_id
            else:
                ids = ids[~is_special]
                spans = spans[~is_special]
            yield Subwords(ids, *spans.T)

    def _flat_ids(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """ids of all texts and tokens per text; special tokens become unknown or are dropped."""
        encodings = self._in_batches(texts, self._backend.encode_batch_fast)
        lists = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        ids = np.fromiter(chain.from_iterable(lists), np.int32, lengths.sum())
        is_special = self._is_special[ids]
        if self.unknown_id >= 0:
            ids[is_special] = self.unknown_id
            return ids, lengths
        text = np.repeat(np.arange(len(texts)), lengths)  # of each token
        dropped = np.bincount(text[is_special], minlength=len(texts))
        return ids[~is_special], lengths - dropped

    def _in_batches(
        self, texts: Sequence[str], encode_batch: Callable[..., list[Any]]
    ) -> Iterator[Any]:
        start = 0
        characters = 0
        for end, text in enumerate(texts, start=1):
            characters += len(text)
            is_full = end - start == _TEXTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE
            if is_full or end == len(texts):
                yield from encode_batch(texts[start:end], add_special_tokens=False)
                start = end
                characters = 0

    def _unknown_characters(self, texts: Sequence[str]) -> int:
        """The number of characters that became unknown tokens, without spaces."""
        count = 0
        encodings = self._in_batches(texts, self._backend.encode_batch)
        for text, encoding in zip(texts, encodings, strict=True):
            counted = 0  # the end of the counted text; offsets are sorted and may overlap
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token == self.unknown_id or self._is_special[token]:
                    unread = text[max(start, counted) : end]
                    count += len(unread.replace(" ", ""))
                    counted = max(counted, end)
        return count


def cover(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjust offsets so that no subword starts with a space and none leaves out a character.

    Dropped combining marks join the subword before them, other characters the one after. In the
    text "Cafe\u0301 x-ray", whose normalizer dropped the accent and the hyphen:

        subwords    cafe    x       ray
        offsets     (0, 4)  (6, 7)  (8, 11)
        adjusted    (0, 5)  (6, 7)  (7, 11)
    """
    spans: list[list[int]] = []
    covered = 0  # the end of the covered text
    for start, end in offsets:
        while start < end and text[start].isspace():
            start += 1
        if start > covered:
            gap = text[covered:start]
            marks = 0
            if spans:
                marks = _leading_marks(gap)
                spans[-1][1] += marks
            words = re.split(r"\s", gap[marks:])
            start -= len(words[-1])
        spans.append([start, max(start, end)])
        covered = max(covered, end)
    if spans:
        spans[-1][1] += _leading_marks(text[covered:])
    return [(start, end) for start, end in spans]


def _leading_marks(gap: str) -> int:
    """The number of leading characters that belong to the letter before: marks and joiners."""
    count = 0
    for sign in gap:
        if sign.isspace() or unicodedata.category(sign)[0] not in "MC":
            break
        count += 1
    return count


@lru_cache(maxsize=1 << 17)
def _count_changed(normalizer: Any, word: str) -> Counter[str]:
    """Count the combining marks and compatibility forms that are removed; ignores case."""
    normalized = normalizer.normalize_str(word)
    if normalized in (word, word.lower()):
        return Counter()
    return _marks_and_forms(word) - _marks_and_forms(normalized)


def _marks_and_forms(text: str) -> Counter[str]:
    decomposed = unicodedata.normalize("NFKD", text)
    categories = map(unicodedata.category, decomposed)
    forms = sum(unicodedata.decomposition(character).startswith("<") for character in text)
    marks = sum(category[0] == "M" for category in categories)
    return Counter({MARKS_REMOVED: marks, FORMS_REWRITTEN: forms})
