"""Encodes text, with any fast tokenizer, as token ids and character offsets; never as [MASK]."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra_albert.corpus.tokenizer import ROLES

Ids = NDArray[np.int32]
_TEXTS_AT_ONCE, _CHARACTERS_AT_ONCE = 2048, 1 << 20  # a token with its offsets takes hundreds of bytes
_MAX_CACHED_LENGTH = 64  # characters of a word; bounds the memory of the cache
MARKS_REMOVED, FORMS_REWRITTEN = "marks_removed", "compatibility_forms_rewritten"


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
        unknown = tokenizer.unk_token_id
        self.filler_id: int = tokenizer.mask_token_id if unknown is None else unknown  # for words that yield no token
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        model, added = content["model"], content["added_tokens"]
        is_unigram = model["type"] == "Unigram"
        found = model.get("unk_id") if is_unigram else model["vocab"].get(model.get("unk_token"))
        self.unknown_id = -1 if found is None else int(found)  # of the model, -1 if it has none
        roles = [getattr(tokenizer, f"{role}_token") for role in ROLES]
        special = {tokenizer.convert_tokens_to_ids(role): role for role in roles if role}
        self._special_text = re.compile("|".join(map(re.escape, special.values())))
        for token in added:
            token["special"] = token["id"] in special  # encode_special_tokens does not find these
        if is_unigram:
            # White space rarely reaches the model, so it does not find a token that begins with a space.
            own = {number for number in special if number < len(model["vocab"])}
            for number in own:
                model["vocab"][number][0] = " " + model["vocab"][number][0]
            content["added_tokens"] = [token for token in added if token["id"] not in own]
        content |= {"post_processor": None, "truncation": None, "padding": None}
        self._is_special = np.zeros(len(tokenizer), np.bool_)
        self._is_special[sorted({*special} - {self.unknown_id})] = True
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
        return np.split(ids, lengths.cumsum()[:-1]) if texts else []

    def encode_counted(self, sentences: Sequence[str]) -> tuple[Ids, NDArray[np.int64], Counter[str]]:
        """ids [tokens] int32 of all sentences concatenated, tokens per sentence [n] int64, and counts.

        Counts: `special_texts` (texts of special tokens), `unknown_characters` (replaced by the unknown token, without
        spaces), and `marks_removed` and `compatibility_forms_rewritten` by the normalizer.
        """
        ids, lengths = self._flat_ids(sentences)
        special_texts = sum(len(self._special_text.findall(sentence)) for sentence in sentences)
        unknown = np.unique(np.repeat(np.arange(len(sentences)), lengths)[ids == self.unknown_id]).tolist()
        unknown_characters = self._unknown_characters([sentences[number] for number in unknown])
        counts = Counter(special_texts=special_texts, unknown_characters=unknown_characters)
        for word in chain.from_iterable(sentence.split() for sentence in sentences if not sentence.isascii()):
            if self._normalizer is not None and not word.isascii():
                count_changed = _count_changed if len(word) <= _MAX_CACHED_LENGTH else _count_changed.__wrapped__
                counts.update(count_changed(self._normalizer, word))
        return ids, lengths, counts

    def encode_with_offsets(self, texts: Sequence[str]) -> Iterator[Subwords]:
        """Yield the token ids and offsets of each text."""
        for text, found in zip(texts, self._in_batches(texts, self._backend.encode_batch), strict=True):
            ids, spans = np.array(found.ids, np.int32), np.array(cover(text, found.offsets), np.int32).reshape(-1, 2)
            kept = ~self._is_special[ids] | (self.unknown_id >= 0)
            ids[self._is_special[ids]] = self.unknown_id
            yield Subwords(ids[kept], spans[kept, 0], spans[kept, 1])

    def _flat_ids(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """ids of all texts and tokens per text; special tokens become unknown or are dropped."""
        encodings = self._in_batches(texts, self._backend.encode_batch_fast)
        ids_of = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids_of), np.int64, len(ids_of))
        ids = np.fromiter(chain.from_iterable(ids_of), np.int32, int(lengths.sum()))
        is_special = self._is_special[ids]
        if self.unknown_id >= 0:
            ids[is_special] = self.unknown_id
            return ids, lengths
        dropped = np.repeat(np.arange(len(texts)), lengths)[is_special]
        return ids[~is_special], lengths - np.bincount(dropped, minlength=len(texts))

    def _in_batches(self, texts: Sequence[str], encode_batch: Callable[..., list[Any]]) -> Iterator[Any]:
        start = characters = 0
        for end, text in enumerate(texts, start=1):
            characters += len(text)
            if end == len(texts) or end - start == _TEXTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
                yield from encode_batch(list(texts[start:end]), add_special_tokens=False)
                start, characters = end, 0

    def _unknown_characters(self, texts: Sequence[str]) -> int:
        """The number of characters that became unknown tokens, without spaces."""
        count = 0
        for text, found in zip(texts, self._in_batches(texts, self._backend.encode_batch), strict=True):
            reached = 0  # end of the counted text; offsets are sorted and may overlap
            for token, (start, end) in zip(found.ids, found.offsets, strict=True):
                if token == self.unknown_id or self._is_special[token]:
                    count += len(text[max(start, reached) : end].replace(" ", ""))
                    reached = max(reached, end)
        return count


def cover(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjust offsets so that no subword starts with a space and each dropped character belongs to a subword.

    Combining marks join the subword before them, other characters the one after.
    """
    spans: list[list[int]] = []
    reached = 0  # end of the covered text
    for start, end in offsets:
        while start < end and text[start].isspace():
            start += 1
        if start > reached:
            gap = text[reached:start]
            if marks := _leading_marks(gap) if spans else 0:
                spans[-1][1] += marks
            start -= len(re.split(r"\s", gap[marks:])[-1])
        spans.append([start, max(start, end)])
        reached = max(reached, end)
    if spans:
        spans[-1][1] += _leading_marks(text[reached:])
    return [(start, end) for start, end in spans]


def _leading_marks(gap: str) -> int:
    """The number of leading characters that belong to the letter before: marks and zero-width signs."""
    is_mark = (not character.isspace() and unicodedata.category(character)[0] in "MC" for character in gap)
    return sum(takewhile(bool, is_mark))


@lru_cache(maxsize=1 << 17)
def _count_changed(normalizer: Any, word: str) -> Counter[str]:
    """Count the combining marks and compatibility forms that the normalizer removes from a word; ignores case."""
    normalized = normalizer.normalize_str(word)
    if normalized in (word, word.lower()):
        return Counter()
    return _marks_and_forms(word) - _marks_and_forms(normalized)


def _marks_and_forms(text: str) -> Counter[str]:
    marks = sum(unicodedata.category(character)[0] == "M" for character in unicodedata.normalize("NFKD", text))
    forms = sum(unicodedata.decomposition(character).startswith("<") for character in text)
    return Counter({MARKS_REMOVED: marks, FORMS_REWRITTEN: forms})
