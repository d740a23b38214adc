"""Text to token ids at a few megabytes a second, with a memo of words.

The pipeline cuts at white space before anything else that looks further than one character, so a word's ids do not
depend on its neighbours: each distinct word is tokenised once and looked up ever after.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from electra_albert.corpus.tokenizer import SPECIAL_PIECES

if TYPE_CHECKING:
    from transformers import AlbertTokenizer

MEMO_WORDS = 500_000
MEMO_CHARACTERS = 16_000_000


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
    """Encodes sentences as `tokenizer` does, but never gives text a special id.

    `special_texts` counts the words met that hold the text of a special token. Stock would turn "[MASK]" in a corpus
    into the mask itself; and even told to read "<pad>" as text it would find the piece, as Unigram knows no control
    pieces.
    """

    def __init__(self, tokenizer: AlbertTokenizer | str, memo_words: int = MEMO_WORDS) -> None:
        """`tokenizer`, or the JSON of its backend, which is how a process of its own is handed one.

        The memo begins anew once it holds more than `memo_words`.
        """
        from tokenizers import Tokenizer

        content = json.loads(tokenizer if isinstance(tokenizer, str) else tokenizer.backend_tokenizer.to_str())
        # White space never reaches the model, so a special piece that begins with a space cannot be found in text.
        for row in content["model"]["vocab"][: len(SPECIAL_PIECES)]:
            row[0] = " " + row[0]
        content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self.backend = Tokenizer.from_str(json.dumps(content))
        self.special_texts = 0
        self._memo_words = memo_words
        self._forget()

    def _forget(self) -> None:
        self._numbers = _WordNumbers()
        self._ids = np.zeros(0, np.int32)  # the ids of all words of the memo, one after the other
        self._starts = np.zeros(0, np.int64)  # by word number
        self._lengths = np.zeros(0, np.int64)
        self._specials = np.zeros(0, np.int64)

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """ids [tokens] int32 of all sentences one after the other, without special tokens; tokens of each [n] int64."""
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
        word_counts = np.fromiter((sentence.count(" ") + 1 for sentence in sentences), np.int64, len(sentences))
        return ids, np.diff(ends[word_counts.cumsum() - 1], prepend=0)

    def _learn(self, words: list[str]) -> None:
        encoding = self.backend.encode(words, is_pretokenized=True, add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        lengths = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(words))
        starts = len(self._ids) + lengths.cumsum() - lengths
        specials = [any(special in word for special in SPECIAL_PIECES) for word in words]
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._specials = np.concatenate([self._specials, np.array(specials, np.int64)])
