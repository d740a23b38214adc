"""Reproducible training of Unigram tokenizers in ALBERT's layout (section 4.1), and vocabulary extension."""

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import regex

from electra_albert.contracts import LOG, DataError, UsageError
from electra_albert.corpus import tokenizer as tokenizers
from electra_albert.corpus.documents import word_set
from electra_albert.corpus.tokenizer import SPECIAL_TOKENS, WORD_START, Tokenizer, build_albert

CHARACTER_COVERAGE = 0.9999  # rarer characters become <unk>, as in SentencePiece
TRAINING_CHARACTERS = 1_000_000  # of distinct words; a text above the trainer's seed size would not repeat
SCORE_DIGITS = 5
_PENALTY_STEP = 1e-4  # the trainer adds missing characters in no fixed order, with scores this far apart
_WORDS_AT_ONCE = 1000
_ENDINGS = "".join(map(chr, range(0xF0000, 0xF0400)))  # private use; so many that no string ending in one is frequent
_MAX_TOKEN_LENGTH = 16
# Letters with their marks and joiners (numbers such as Ⅷ and ² count as letters), and digits.
_LETTER = r"\p{L}\p{Nl}\p{No}"
LETTERS_OR_DIGITS = rf"[{_LETTER}][{_LETTER}\p{{M}}\u200c\u200d]*|\d+"
_RUN = regex.compile(rf"{WORD_START}?(?:{LETTERS_OR_DIGITS}|.)", regex.DOTALL)
_WORD_RUN = regex.compile(rf"{WORD_START}?(?:{LETTERS_OR_DIGITS})")
_SPACELESS = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_CHUNK = regex.compile(rf".{{1,{_MAX_TOKEN_LENGTH}}}(?!\p{{M}})|.{{1,{_MAX_TOKEN_LENGTH}}}")
# Text is English if these words are frequent and words with letters outside ASCII are rare.
_ENGLISH_WORDS = word_set("the and of that with which from this were they have been their would there")
_FEW_SPACELESS = 0.01  # of the characters; up to this share runs of such scripts are treated as words
_ENGLISH_SHARE = 0.05
_FOREIGN_SHARE = 0.01

MIN_OCCURRENCES = 5  # of a word, enough to learn an embedding
MAX_WORDS = 2_000_000  # distinct words counted at once
MAX_WORD_LENGTH = 64  # characters; bounds the memory of counting

Accents = bool | Literal["albert"] | None


class _TrainingText(NamedTuple):
    """Counted strings that the trainer learns tokens from."""

    runs: list[tuple[str, int]]
    chunks: list[tuple[str, int]]  # of scripts written without spaces
    alphabet: list[str]  # characters of such scripts; each becomes a token


def train_tokenizer(
    sentences: Iterable[str], vocab_size: int, do_lower_case: bool, keep_accents: Accents = None
) -> Tokenizer:
    """Train a Unigram tokenizer, bit-identical for the same text; short text gives fewer than `vocab_size` tokens.

    keep_accents: False removes the marks of Latin letters, True none, "albert" those of every script, as the published
    ALBERT tokenizer does; None those of Latin letters if the text is English. No token joins a comma to a digit. Raises
    DataError if there is no text.
    """
    from transformers import AlbertTokenizer, PreTrainedTokenizerFast

    raw: Counter[str] = Counter()
    for sentence in sentences:
        raw.update(sentence.split())
    if keep_accents is None:
        keep_accents = not _is_english(raw)
        kept = "not English: keeping all accents and marks (--keep_accents false removes those of Latin letters)"
        removed = "English: removing accents of Latin letters (--keep_accents true keeps them)"
        LOG.info(f"the text is {kept if keep_accents else removed}")
    if keep_accents == "albert":
        normalizer = AlbertTokenizer(do_lower_case=do_lower_case).backend_tokenizer.normalizer
    else:
        normalizer = tokenizers.script_safe_normalizer(do_lower_case, keep_accents)
    words: Counter[str] = Counter()
    for word, count in raw.items():
        for part in normalizer.normalize_str(word).split():
            words[part] += count
    text = _training_text(words, max_characters=max(1, (vocab_size - len(SPECIAL_TOKENS)) // 2))
    if not text.runs and not text.chunks:
        found = f" except words of over {TRAINING_CHARACTERS // 2:,} characters or of rare characters" if words else ""
        raise DataError(f"the corpus holds no text to train a tokenizer on{found}; add sentences")
    source = f"the {len(text.runs):,} most frequent words and {len(text.chunks):,} chunks of text without spaces"
    LOG.info(f"learning subwords from {source}, of {sum(len(w) * n for w, n in words.items()):,} characters of text")
    vocab = [(token, 0.0) for token in SPECIAL_TOKENS] + _learn(text, vocab_size)
    if keep_accents == "albert":
        return build_albert(vocab, {"do_lower_case": do_lower_case})
    albert = build_albert(vocab, {})
    backend = albert.backend_tokenizer
    backend.normalizer = normalizer
    roles = {f"{role}_token": getattr(albert, f"{role}_token") for role in tokenizers.ROLES}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=tokenizers.MODEL_INPUT_NAMES, **roles)


def _is_english(words: Counter[str]) -> bool:
    """Whether words are English: English function words are frequent, and letters outside ASCII are rare."""
    english = sum(count for word, count in words.items() if word.lower() in _ENGLISH_WORDS)
    others = [word for word in words if not word.isascii()]
    foreign = sum(words[word] for word in others if any(letter.isalpha() and letter > "\x7f" for letter in word))
    return english >= _ENGLISH_SHARE * words.total() > 0 and foreign <= _FOREIGN_SHARE * words.total()


def _learn(text: _TrainingText, vocab_size: int) -> list[tuple[str, float]]:
    """Learned tokens with their scores (log probabilities), highest first."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer

    endings = _ENDINGS[: len(text.runs)]
    trainer = UnigramTrainer(
        vocab_size=vocab_size + len(endings),
        special_tokens=list(SPECIAL_TOKENS),
        unk_token="<unk>",
        initial_alphabet=text.alphabet,
        max_piece_length=_MAX_TOKEN_LENGTH,
        shrinking_factor=0.5 if text.chunks else 0.75,  # chunks give many more initial candidates
        show_progress=False,
    )
    bare = Tokenizer(models.Unigram())
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.train_from_iterator(_repeat_runs(text, endings), trainer)
    vocab = json.loads(bare.to_str())["model"]["vocab"]
    scores = _repeatable_scores({token: score for token, score in vocab if token not in SPECIAL_TOKENS})
    own = {token: score for token, score in scores.items() if token[-1] not in endings}
    return sorted(own.items(), key=lambda item: (-item[1], item[0]))[: vocab_size - len(SPECIAL_TOKENS)]


def _training_text(words: Counter[str], max_characters: int) -> _TrainingText:
    """The most frequent runs of covered characters, at most TRAINING_CHARACTERS in total.

    Words are split into runs of letters, runs of digits and single other characters, as in SentencePiece. Runs of
    scripts without spaces are cut into chunks of the maximum token length, sampled evenly in their share of the total.
    """
    runs, characters, chunks = Counter[str](), Counter[str](), Counter[str]()
    for word, count in words.items():
        for run in _RUN.findall(WORD_START + word):
            runs[run] += count
            for character in run:
                characters[character] += count
    wanted, seen, alphabet = CHARACTER_COVERAGE * characters.total(), 0, set()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0]))[:max_characters]:
        if seen >= wanted:
            break
        alphabet.add(character)
        seen += count
    spaceless = {character for character in characters if _SPACELESS.match(character)}
    share = sum(characters[character] for character in spaceless) / max(1, characters.total())
    if share > _FEW_SPACELESS:
        for run in [run for run in runs if not spaceless.isdisjoint(run)]:
            count = runs.pop(run)
            for chunk in _CHUNK.findall(run):
                chunks[chunk] += count
    evenly = sorted(chunks.items(), key=lambda item: (zlib.crc32(item[0].encode()), item[0]))
    kept_chunks, size = _take(evenly, int(share * TRAINING_CHARACTERS), alphabet)
    frequent_first = sorted(runs.items(), key=lambda item: (-item[1], item[0]))
    kept_runs, _ = _take(frequent_first, TRAINING_CHARACTERS - size, alphabet)
    return _TrainingText(kept_runs, kept_chunks, sorted(alphabet & spaceless) if chunks else [])


def _take(runs: list[tuple[str, int]], max_characters: int, alphabet: set[str]) -> tuple[list[tuple[str, int]], int]:
    """Take runs up to `max_characters` in total and keep those in `alphabet`; also returns the total."""
    kept, size = [], 0
    for run, count in runs:
        taken = 2 * len(run) + 3  # once plain, once with an ending
        if size + taken <= max_characters:  # skips an overlong run, not the words after it
            size += taken
            if alphabet.issuperset(run):
                kept.append((run, count))
    return kept, size


def _repeat_runs(text: _TrainingText, endings: str) -> Iterator[str]:
    """Repeat each run by its count, plus once with an ending, because a token must occur in at least two words."""
    for number, (run, count) in enumerate(text.runs + text.chunks):
        full, rest = divmod(count, _WORDS_AT_ONCE)
        yield from repeat((run + " ") * _WORDS_AT_ONCE, full)
        yield (run + " ") * rest + (run + endings[number % len(endings)] if number < len(text.runs) else "")


def _repeatable_scores(trained: dict[str, float]) -> dict[str, float]:
    """Round the scores, and give all characters that the trainer added in random order the lowest score."""
    single = [score for token, score in trained.items() if len(token) == 1]
    lowest = min(single, default=0.0)

    def is_added(token: str, score: float) -> bool:
        steps = (score - lowest) / _PENALTY_STEP
        return len(token) == 1 and steps < len(single) and abs(steps - round(steps)) < _PENALTY_STEP

    return {token: round(lowest if is_added(token, score) else score, SCORE_DIGITS) for token, score in trained.items()}


# Vocabulary extension.


class _Word(NamedTuple):
    text: str
    occurrences: int
    score: float  # log probability
    ids: list[int]  # of the tokens it is split into


def extend_tokenizer(tokenizer: Tokenizer, sentences: Iterable[str], count: int) -> tuple[Tokenizer, list[list[int]]]:
    """Add up to `count` words of `sentences` as tokens, those that save most tokens first.

    Returns the new tokenizer, which keeps all old ids, and the old ids that each new token replaces. Skips words with
    unknown characters. Raises UsageError if the tokenizer type cannot be extended.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model, size = content["model"], len(tokenizer)
    if model["type"] not in ("Unigram", "WordPiece"):
        raise UsageError(f"the vocabulary of a {model['type']} tokenizer cannot be extended; keep it as it is")
    if len(model["vocab"]) < size:
        raise UsageError("a vocabulary with added tokens after the model's own cannot be extended; keep it as it is")
    words = _candidate_words(tokenizer, count_words(_words(tokenizer, model["type"], sentences)))
    if model["type"] == "WordPiece":
        words = words[:count]  # WordPiece takes the longest match, which is the whole word
        model["vocab"] |= {word.text: size + number for number, word in enumerate(words)}
    else:
        words = _used_words(model, words, count)
        model["vocab"] += [[word.text, word.score] for word in words]
    if not words:
        return tokenizer, []
    with TemporaryDirectory() as folder:  # checks and builds it like any other tokenizer
        tokenizers.save_tokenizer(tokenizer, Path(folder), tokenizer.model_max_length)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        extended = tokenizers.load_tokenizer(Path(folder))
    for number, word in enumerate(words, size):
        assert [token.id for token in extended.backend_tokenizer.model.tokenize(word.text)] == [number], word.text
    return extended, [word.ids for word in words]


def count_words(words: Iterable[str], max_words: int = MAX_WORDS) -> Counter[str]:
    """Count words; drops the rarest whenever there are more than `max_words` distinct ones."""
    counts: Counter[str] = Counter()
    for word in words:
        counts[word] += 1
        fewest = 1
        while len(counts) > max_words:
            counts = Counter({text: number for text, number in counts.items() if number > fewest})
            fewest += 1
    return counts


def _words(tokenizer: Tokenizer, kind: str, sentences: Iterable[str]) -> Iterator[str]:
    """The pre-tokenized words; for Unigram split into runs of letters or digits."""
    backend = tokenizer.backend_tokenizer
    for sentence in sentences:
        text = backend.normalizer.normalize_str(sentence) if backend.normalizer else sentence
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
        for word in words:
            parts = _WORD_RUN.findall(word) if kind == "Unigram" else (word,)
            yield from (part for part in parts if len(part) <= MAX_WORD_LENGTH)


def _candidate_words(tokenizer: Tokenizer, counts: Counter[str]) -> list[_Word]:
    """Frequent words of several known tokens, sorted by the number of tokens they would save."""
    vocab, total, found = tokenizer.get_vocab(), counts.total(), []
    for text, count in counts.items():
        if count >= MIN_OCCURRENCES and text not in vocab:
            ids = [token.id for token in tokenizer.backend_tokenizer.model.tokenize(text)]
            if len(ids) > 1 and tokenizer.unk_token_id not in ids:
                found.append(_Word(text, count, round(math.log(count / total), SCORE_DIGITS), ids))
    return sorted(found, key=lambda word: (-word.occurrences * (len(word.ids) - 1), word.text))


def _used_words(model: dict[str, Any], words: list[_Word], count: int) -> list[_Word]:
    """The first `count` words that Unigram encodes as one token, because they are likelier than their parts."""
    from tokenizers.models import Unigram

    old = [tuple(row) for row in model["vocab"]]
    rest = [word for word in words if word.score > sum(old[number][1] for number in word.ids)]
    taken: list[_Word] = []
    while True:
        room = count - len(taken)
        taken, rest = taken + rest[:room], rest[room:]
        rows = [(word.text, word.score) for word in taken]
        trial = Unigram(old + rows, model["unk_id"], bool(model.get("byte_fallback")))
        used = [word for word in taken if len(trial.tokenize(word.text)) == 1]
        if len(used) == len(taken):
            return taken
        taken = used
