"""Unigram tokens in ALBERT's layout (section 4.1), learned bit for bit the same; new words for a vocabulary."""

import json
import logging
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import regex

from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus import tokenizer as tokenizers
from electra_albert.corpus.documents import word_set
from electra_albert.corpus.tokenizer import SPECIAL_TOKENS, WORD_START, Tokenizer, build_albert

LOG = logging.getLogger(__name__)

CHARACTER_COVERAGE = 0.9999  # the rarest characters beyond it become <unk>, as in SentencePiece, and take no tokens
TRAINING_CHARACTERS = 1_000_000  # of distinct words; below the trainer's seed size, whose cut would not repeat
SCORE_DIGITS = 5
_PENALTY_STEP = 1e-4  # the trainer spaces the scores of characters it has to add by this, in no fixed order
_FEED_WORDS = 1000
_ENDINGS = "".join(map(chr, range(0xF0000, 0xF0400)))  # for private use; so many that no string with one is frequent
_LONGEST_PIECE = 16
# Letters with their marks and joiners (numbers such as Ⅷ and ² count as letters), and digits.
_LETTER = r"\p{L}\p{Nl}\p{No}"
LETTERS_OR_DIGITS = rf"[{_LETTER}][{_LETTER}\p{{M}}\u200c\u200d]*|\d+"
_RUN = regex.compile(rf"{WORD_START}?(?:{LETTERS_OR_DIGITS}|.)", regex.DOTALL)
_WORD_RUN = regex.compile(rf"{WORD_START}?(?:{LETTERS_OR_DIGITS})")
_SPACELESS = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_CHUNK = regex.compile(rf".{{1,{_LONGEST_PIECE}}}(?!\p{{M}})|.{{1,{_LONGEST_PIECE}}}")
# English text: so many of its words are these, and hardly any holds a letter that is not ASCII.
_ENGLISH_WORDS = word_set("the and of that with which from this were they have been their would there")
_FEW_SPACELESS = 0.01  # of the characters, up to which runs of such scripts are treated as words
_ENGLISH_SHARE = 0.05
_FOREIGN_SHARE = 0.01

FEWEST_OCCURRENCES = 5  # of a word, from which on a vector of its own can be learned
MOST_WORDS = 2_000_000  # distinct ones counted at a time
LONGEST_WORD = 64  # characters; bounds what counting holds

Accents = bool | Literal["albert"] | None


class _TrainingText(NamedTuple):
    """Counted strings that tokens are learned from."""

    runs: list[tuple[str, int]]
    chunks: list[tuple[str, int]]  # of runs written without spaces
    alphabet: list[str]  # characters of such runs, each of which is a token


def train_tokenizer(
    sentences: Iterable[str], vocab_size: int, do_lower_case: bool, keep_accents: Accents = None
) -> Tokenizer:
    """Unigram tokens learned from `sentences`, bit for bit the same each time; fewer than `vocab_size` of a short text.

    keep_accents: False removes the marks of Latin letters, True none, "albert" those of every script, as ALBERT's
    published tokenizer does; by default they are removed from Latin letters if the text is English. No token joins a
    comma to a digit. Raises DataError where there is no text.
    """
    from transformers import AlbertTokenizer, PreTrainedTokenizerFast

    raw: Counter[str] = Counter()
    for sentence in sentences:
        raw.update(sentence.split())
    if keep_accents is None:
        keep_accents = not _is_english(raw)
        kept = "not English: all accents and marks are kept (--keep_accents false: not those of Latin letters)"
        removed = "English: accents of Latin letters are removed (--keep_accents true: kept)"
        LOG.info(f"the text is {kept if keep_accents else removed}")
    if keep_accents == "albert":
        normalizer = AlbertTokenizer(do_lower_case=do_lower_case).backend_tokenizer.normalizer
    else:
        normalizer = tokenizers.script_safe_normalizer(do_lower_case, keep_accents)
    words: Counter[str] = Counter()
    for word, count in raw.items():
        for part in normalizer.normalize_str(word).split():
            words[part] += count
    text = _training_text(words, most_characters=max(1, (vocab_size - len(SPECIAL_TOKENS)) // 2))
    if not text.runs and not text.chunks:
        found = f" but words of more than {TRAINING_CHARACTERS // 2:,} characters, or of rare ones" if words else ""
        raise DataError(f"the corpus holds no text to train a tokenizer on{found}; give it some sentences")
    source = f"{len(text.runs):,} most frequent words and {len(text.chunks):,} chunks of text without spaces"
    LOG.info(f"learning subwords of {sum(len(w) * n for w, n in words.items()):,} characters of text from its {source}")
    vocab = [(piece, 0.0) for piece in SPECIAL_TOKENS] + _learn(text, vocab_size)
    if keep_accents == "albert":
        return build_albert(vocab, {"do_lower_case": do_lower_case})
    albert = build_albert(vocab, {})
    backend = albert.backend_tokenizer
    backend.normalizer = normalizer
    roles = {f"{role}_token": getattr(albert, f"{role}_token") for role in tokenizers.ROLES}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=tokenizers.MODEL_INPUT_NAMES, **roles)


def _is_english(words: Counter[str]) -> bool:
    """Whether counted words are English: its function words are frequent, letters that are not ASCII are rare."""
    english = sum(count for word, count in words.items() if word.lower() in _ENGLISH_WORDS)
    others = [word for word in words if not word.isascii()]
    foreign = sum(words[word] for word in others if any(letter.isalpha() and letter > "\x7f" for letter in word))
    return english >= _ENGLISH_SHARE * words.total() > 0 and foreign <= _FOREIGN_SHARE * words.total()


def _learn(text: _TrainingText, vocab_size: int) -> list[tuple[str, float]]:
    """The tokens with their scores, the likeliest first."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer

    endings = _ENDINGS[: len(text.runs)]
    trainer = UnigramTrainer(
        vocab_size=vocab_size + len(endings),
        special_tokens=list(SPECIAL_TOKENS),
        unk_token="<unk>",
        initial_alphabet=text.alphabet,
        max_piece_length=_LONGEST_PIECE,
        shrinking_factor=0.5 if text.chunks else 0.75,  # chunks have many more strings to begin with
        show_progress=False,
    )
    bare = Tokenizer(models.Unigram())
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.train_from_iterator(_repeat_runs(text, endings), trainer)
    vocab = json.loads(bare.to_str())["model"]["vocab"]
    scores = _repeatable_scores({piece: score for piece, score in vocab if piece not in SPECIAL_TOKENS})
    own = {piece: score for piece, score in scores.items() if piece[-1] not in endings}
    return sorted(own.items(), key=lambda item: (-item[1], item[0]))[: vocab_size - len(SPECIAL_TOKENS)]


def _training_text(words: Counter[str], most_characters: int) -> _TrainingText:
    """The most frequent runs made of the covered characters, up to a bound on their characters together.

    Words are cut into runs of letters, runs of digits and single other characters, as SentencePiece cuts them; runs of
    scripts without spaces into chunks as long as the longest token, chosen evenly, with their share of the bound.
    """
    runs, characters, chunks = Counter[str](), Counter[str](), Counter[str]()
    for word, count in words.items():
        for run in _RUN.findall(WORD_START + word):
            runs[run] += count
            for character in run:
                characters[character] += count
    wanted, seen, alphabet = CHARACTER_COVERAGE * characters.total(), 0, set()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0]))[:most_characters]:
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


def _take(runs: list[tuple[str, int]], most_characters: int, alphabet: set[str]) -> tuple[list[tuple[str, int]], int]:
    """The first runs up to a bound on their characters, those in `alphabet`; and how many characters all have."""
    kept, size = [], 0
    for run, count in runs:
        taken = 2 * len(run) + 3  # once as it is, once with an ending
        if size + taken <= most_characters:  # one endless run must not shut out the words after it
            size += taken
            if alphabet.issuperset(run):
                kept.append((run, count))
    return kept, size


def _repeat_runs(text: _TrainingText, endings: str) -> Iterator[str]:
    """Each run as often as it was counted, and once with an ending, since tokens are strings of at least two words."""
    for number, (run, count) in enumerate(text.runs + text.chunks):
        full, rest = divmod(count, _FEED_WORDS)
        yield from repeat((run + " ") * _FEED_WORDS, full)
        yield (run + " ") * rest + (run + endings[number % len(endings)] if number < len(text.runs) else "")


def _repeatable_scores(trained: dict[str, float]) -> dict[str, float]:
    """Scores rounded; characters that the trainer adds, at the lowest plus 0, 1, 2 … steps in any order, are alike."""
    single = [score for piece, score in trained.items() if len(piece) == 1]
    lowest = min(single, default=0.0)

    def is_added(piece: str, score: float) -> bool:
        steps = (score - lowest) / _PENALTY_STEP
        return len(piece) == 1 and steps < len(single) and abs(steps - round(steps)) < _PENALTY_STEP

    return {piece: round(lowest if is_added(piece, score) else score, SCORE_DIGITS) for piece, score in trained.items()}


# New words for a vocabulary.


class _Word(NamedTuple):
    text: str
    occurrences: int
    score: float  # the logarithm of its share of the text
    ids: list[int]  # the tokens of several that it is written with


def extend_tokenizer(tokenizer: Tokenizer, sentences: Iterable[str], count: int) -> tuple[Tokenizer, list[list[int]]]:
    """Give the words of `sentences` that save most tokens a token of their own, at most `count` of them.

    Returns the new tokenizer, whose first ids are the old ones, and the old ids that each new token replaces. Words
    that hold a character without a token are left out. Raises UsageError where the kind cannot be extended.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model, size = content["model"], len(tokenizer)
    if model["type"] not in ("Unigram", "WordPiece"):
        raise UsageError(f"the vocabulary of a {model['type']} tokenizer cannot be extended; keep it as it is")
    if len(model["vocab"]) < size:
        raise UsageError("a vocabulary with added tokens after the model's own cannot be extended; keep it as it is")
    words = _worthwhile(tokenizer, count_words(_words(tokenizer, model["type"], sentences)))
    if model["type"] == "WordPiece":
        words = words[:count]  # the longest token that matches is taken, which is the whole word
        model["vocab"] |= {word.text: size + number for number, word in enumerate(words)}
    else:
        words = _used_words(model, words, count)
        model["vocab"] += [[word.text, word.score] for word in words]
    if not words:
        return tokenizer, []
    with TemporaryDirectory() as folder:  # checked and built like any that is read from a file
        tokenizers.save_tokenizer(tokenizer, Path(folder), tokenizer.model_max_length)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        extended = tokenizers.load_tokenizer(Path(folder))
    for number, word in enumerate(words, size):
        assert [token.id for token in extended.backend_tokenizer.model.tokenize(word.text)] == [number], word.text
    return extended, [word.ids for word in words]


def count_words(words: Iterable[str], most_words: int = MOST_WORDS) -> Counter[str]:
    """How often each word occurs; the rarest are forgotten whenever more than `most_words` differ."""
    counts: Counter[str] = Counter()
    for word in words:
        counts[word] += 1
        fewest = 1
        while len(counts) > most_words:
            counts = Counter({text: number for text, number in counts.items() if number > fewest})
            fewest += 1
    return counts


def _words(tokenizer: Tokenizer, kind: str, sentences: Iterable[str]) -> Iterator[str]:
    """The words as the model is given them; those of Unigram cut into runs."""
    backend = tokenizer.backend_tokenizer
    for sentence in sentences:
        text = backend.normalizer.normalize_str(sentence) if backend.normalizer else sentence
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
        for word in words:
            parts = _WORD_RUN.findall(word) if kind == "Unigram" else (word,)
            yield from (part for part in parts if len(part) <= LONGEST_WORD)


def _worthwhile(tokenizer: Tokenizer, counts: Counter[str]) -> list[_Word]:
    """Frequent words of several known tokens, those first that a token of their own would save most of."""
    vocab, total, found = tokenizer.get_vocab(), counts.total(), []
    for text, count in counts.items():
        if count >= FEWEST_OCCURRENCES and text not in vocab:
            ids = [token.id for token in tokenizer.backend_tokenizer.model.tokenize(text)]
            if len(ids) > 1 and tokenizer.unk_token_id not in ids:
                found.append(_Word(text, count, round(math.log(count / total), SCORE_DIGITS), ids))
    return sorted(found, key=lambda word: (-word.occurrences * (len(word.ids) - 1), word.text))


def _used_words(model: dict[str, Any], words: list[_Word], count: int) -> list[_Word]:
    """The first `count` words that Unigram encodes as one token, since they are likelier than their parts together."""
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
