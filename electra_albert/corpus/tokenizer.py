"""A tokenizer of ALBERT's, BERT's or another fast kind: save it, identify it, show its tokens, add words to it.

What is loaded here and saved again gives `AutoTokenizer` the same ids and token_type_ids. Special ids are read from the
tokenizer, never assumed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import regex

from electra_albert.contracts import SpecialIds, UsageError
from electra_albert.corpus.tokenizer_files import TextOptions, load_tokenizer
from electra_albert.corpus.tokenizer_training import (
    LETTERS_OR_DIGITS,
    MASK_ID,
    MODEL_INPUT_NAMES,
    SCORE_DIGITS,
    SPECIAL_PIECES,
    WORD_START,
    train_tokenizer,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    Tokenizer: TypeAlias = PreTrainedTokenizerFast

__all__ = ["MASK_ID", "SPECIAL_PIECES", "TextOptions", "load_tokenizer", "train_tokenizer"]

_LOADING_ONLY = ("is_local", "local_files_only", "name_or_path")  # how a tokenizer was loaded, not what it is
FEWEST_OCCURRENCES = 5  # of a word, from which on a vector of its own can be learned
MOST_WORDS = 2_000_000  # distinct ones counted at a time
LONGEST_WORD = 64  # characters; bounds what counting holds
# Runs as they are cut where Unigram pieces are trained, so that no new piece joins a word and the full stop behind it.
_RUN = regex.compile(rf"{WORD_START}?(?:{LETTERS_OR_DIGITS})")


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """The special ids of a tokenizer from `load_tokenizer` or `train_tokenizer`."""
    named = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")}
    return SpecialIds(**named, never_masked=tuple(sorted(tokenizer.all_special_ids)))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the stock files, from which `AutoTokenizer` gives the same ids and token_type_ids."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
        beside = Path(name)
        # If the disk is full, tokenizers raises a bare Exception: the same bytes, written here first, an OSError.
        content = tokenizer.backend_tokenizer.to_str(pretty=True)
        (beside / "tokenizer.json").write_text(content, encoding="utf-8", newline="")
        tokenizer.save_pretrained(str(beside))
        file = beside / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config |= {"model_input_names": MODEL_INPUT_NAMES, "model_max_length": max_length}
        if config["tokenizer_class"] == "TokenizersBackend":
            config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that version 4 knows too
        config = {name: value for name, value in config.items() if name not in _LOADING_ONLY}
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for written in sorted(beside.iterdir(), reverse=True):  # tokenizer.json last: with it the folder counts
            os.replace(written, folder / written.name)


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of everything the ids depend on: model, normalizer, pre-tokenizer and special tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    identity = [content["model"].pop("vocab"), content["normalizer"], content["pre_tokenizer"]]
    if type(tokenizer).__name__ != "AlbertTokenizer":  # whose model and special ids are always the same
        identity += [content["model"], content["added_tokens"], special_ids(tokenizer)[:5]]
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


class Piece(NamedTuple):
    """A token as it is shown to people."""

    text: str
    starts_word: bool


def describe_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[Piece]:
    """The text of each id without its marks, and whether a word begins with it.

    A word also begins at the first id, and at and after [CLS], [SEP] and padding. The mask is always a word.
    """
    backend, special = tokenizer.backend_tokenizer, special_ids(tokenizer)
    model, is_bytes = type(backend.model).__name__, type(backend.decoder).__name__ == "ByteLevel"
    borders = {special.cls, special.sep, special.pad}
    mark = "Ġ" if is_bytes else WORD_START
    described, is_start = [], True
    for number, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if number in borders or number == special.mask or model == "WordLevel":
            text, starts_word = token, True
        elif model == "WordPiece":
            text, starts_word = token.removeprefix("##"), is_start or not token.startswith("##")
        else:
            text = backend.decoder.decode([token]).removeprefix(" ") if is_bytes else token.removeprefix(mark)
            starts_word = is_start or token.startswith(mark)
        described.append(Piece(text or token, starts_word))
        is_start = number in borders
    return described


class Extension(NamedTuple):
    """A tokenizer with new tokens after the old ones."""

    tokenizer: Tokenizer
    pieces: list[list[int]]  # the old ids that each new token was written with before, in the order of the new ids


class _Word(NamedTuple):
    text: str
    occurrences: int
    ids: list[int]  # the tokens of several that it is written with


def extend_tokenizer(tokenizer: Tokenizer, sentences: Iterable[str], count: int) -> Extension:
    """Give the words of `sentences` that save most tokens a token of their own, at most `count` of them.

    Words that hold a character without a token are left out. Ids 0 to V - 1 keep their meaning; a text changes only
    where a new token is found in it.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model, size = content["model"], len(tokenizer)
    if model["type"] not in ("Unigram", "WordPiece"):
        raise UsageError(f"the vocabulary of a {model['type']} tokenizer cannot be extended; keep it as it is")
    if len(model["vocab"]) < size:
        raise UsageError("a vocabulary with added tokens behind the model's own cannot be extended; keep it as it is")
    counts = count_words(_words(tokenizer, model["type"], sentences))
    words = _worthwhile(tokenizer, counts)
    if model["type"] == "WordPiece":
        words = words[:count]  # the longest token that matches is taken, which is the whole word
        model["vocab"] |= {word.text: size + number for number, word in enumerate(words)}
    else:
        words = _used_words(model, words, counts.total(), count)
        model["vocab"] += [[word.text, _score(word, counts.total())] for word in words]
    if not words:
        return Extension(tokenizer, [])
    with TemporaryDirectory() as folder:  # checked and built like any that is read from a file
        save_tokenizer(tokenizer, Path(folder), tokenizer.model_max_length)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        extended = load_tokenizer(Path(folder))
    for number, word in enumerate(words, size):
        assert [token.id for token in extended.backend_tokenizer.model.tokenize(word.text)] == [number], word.text
    return Extension(extended, [word.ids for word in words])


def count_words(words: Iterable[str], most_words: int = MOST_WORDS) -> Counter[str]:
    """How often each word stands in the text; the rarest are forgotten whenever more than `most_words` differ."""
    counts: Counter[str] = Counter()
    for word in words:
        counts[word] += 1
        fewest = 1
        while len(counts) > most_words:
            counts = Counter({text: number for text, number in counts.items() if number > fewest})
            fewest += 1
    return counts


def _words(tokenizer: Tokenizer, kind: str, sentences: Iterable[str]) -> Iterator[str]:
    """The words as the model is given them, in the order of the text; those of Unigram cut into runs."""
    backend = tokenizer.backend_tokenizer
    for sentence in sentences:
        text = backend.normalizer.normalize_str(sentence) if backend.normalizer else sentence
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
        for word in words:
            parts = _RUN.findall(word) if kind == "Unigram" else (word,)
            yield from (part for part in parts if len(part) <= LONGEST_WORD)


def _worthwhile(tokenizer: Tokenizer, counts: Counter[str]) -> list[_Word]:
    """Frequent words of several known pieces, those first that a piece of their own would save most tokens of."""
    vocab, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
    found = []
    for text, count in counts.items():
        if count >= FEWEST_OCCURRENCES and text not in vocab:
            ids = [token.id for token in tokenizer.backend_tokenizer.model.tokenize(text)]
            if len(ids) > 1 and unknown not in ids:
                found.append(_Word(text, count, ids))
    return sorted(found, key=lambda word: (-word.occurrences * (len(word.ids) - 1), word.text))


def _used_words(model: dict[str, Any], words: list[_Word], total: int, count: int) -> list[_Word]:
    """The first `count` words that Unigram really encodes as one token, given their scores.

    A word's score is the logarithm of its share of the text. If its parts, old or new, are likelier together than the
    word itself, it would never be used and another one takes its place.
    """
    from tokenizers.models import Unigram

    scores = [score for _, score in model["vocab"]]
    rest = [word for word in words if _score(word, total) > sum(scores[number] for number in word.ids)]
    old = [tuple(row) for row in model["vocab"]]
    taken: list[_Word] = []
    while True:
        room = count - len(taken)
        taken, rest = taken + rest[:room], rest[room:]
        rows = [(word.text, _score(word, total)) for word in taken]
        trial = Unigram(old + rows, model["unk_id"], bool(model.get("byte_fallback")))
        used = [word for word in taken if len(trial.tokenize(word.text)) == 1]
        if len(used) == len(taken):
            return taken
        taken = used


def _score(word: _Word, total: int) -> float:
    return round(math.log(word.occurrences / total), SCORE_DIGITS)
