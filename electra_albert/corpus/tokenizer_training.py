"""Reproducible training of Unigram tokenizers in ALBERT's layout, and vocabulary extension.

Paper: ALBERT section 4.1.
"""

import io
import json
import math
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import regex

from electra_albert.contracts import LOG, DataError, UsageError
from electra_albert.corpus.documents import word_set
from electra_albert.tokenization.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from electra_albert.tokenization.unigram import (
    MODEL_INPUT_NAMES,
    SPECIAL_TOKENS,
    UNK_ID,
    WORD_START,
    build_albert,
    content_of,
    find_roles,
    parse_model,
    script_safe_normalizer,
)

CHARACTER_COVERAGE = 0.9999  # rarer characters become <unk>, as in SentencePiece
TRAINING_CHARACTERS = 2_000_000  # of distinct words; bounds the time
SCORE_DIGITS = 5
# Characters that a small vocabulary may hold; a larger one gives them up to half.
_ALPHABET_SIZE = 128
_MAX_TOKEN_LENGTH = 16
# On one core; a token may begin at each character of a distinct word.
_SECONDS_PER_CANDIDATE = 1.3e-6
_RESERVED = "▁▅⁇<["  # have a meaning in SentencePiece, or begin its special tokens
_RUNS_PER_LINE = 2
_BORDER = "\n"  # between lines of the trainer, which no token crosses
# Letters with their marks and joiners (numbers such as Ⅷ and ² count as letters), and digits.
_LETTER = r"\p{L}\p{Nl}\p{No}"
_LETTER_OR_MARK = rf"[{_LETTER}\p{{M}}\u200c\u200d]"
LETTERS_OR_DIGITS = rf"[{_LETTER}]{_LETTER_OR_MARK}*|\d+"
# Runs of one kind. Long ones are cut, which bounds the time; Chinese and Japanese after the length
# of the longest token, which needs 1 to 3 % fewer tokens.
_CJK = rf"[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}ー]{{1,{_MAX_TOKEN_LENGTH}}}"
_RUN = regex.compile(
    rf"{WORD_START}?(?:{_CJK}|[{_LETTER}]{_LETTER_OR_MARK}{{0,63}}|\d{{1,64}}"
    rf"|[^{_LETTER}\d{WORD_START}]{{1,64}})|{WORD_START}"
)
_WORD_RUN = regex.compile(rf"{WORD_START}?(?:{LETTERS_OR_DIGITS})")
# Text is English if these words are frequent and words with letters outside ASCII are rare.
_ENGLISH_WORDS = word_set("""the and of that with which from this were they have been their would
    there""")
_ENGLISH_SHARE = 0.05
_FOREIGN_SHARE = 0.01

MIN_OCCURRENCES = 5  # of a word, enough to learn an embedding
MAX_WORDS = 2_000_000  # distinct words counted at once
MAX_WORD_LENGTH = 64  # characters; bounds the memory of counting

Accents = bool | Literal["albert"] | None


def train_tokenizer(
    sentences: Iterable[str], vocab_size: int, do_lower_case: bool, keep_accents: Accents = None
) -> Tokenizer:
    """Train a Unigram tokenizer, bit-identical for the same text; a short one gives fewer tokens.

    keep_accents: False removes the marks of Latin letters, True none, "albert" those of every
    script, as the published ALBERT tokenizer does; None those of Latin letters if the text is
    English. No token joins a comma to a digit. Raises DataError if there is no text.
    """
    from transformers import AlbertTokenizer, PreTrainedTokenizerFast

    raw = count_words(chain.from_iterable(map(str.split, sentences)))
    if keep_accents is None:
        keep_accents = not _is_english(raw)
        choice = "English: removing accents of Latin letters (--keep_accents true keeps them)"
        if keep_accents:
            choice = "not English: keeping all accents (--keep_accents false removes Latin ones)"
        LOG.info(f"the text is {choice}")
    if keep_accents == "albert":
        normalizer = AlbertTokenizer(do_lower_case=do_lower_case).backend_tokenizer.normalizer
    else:
        normalizer = script_safe_normalizer(do_lower_case, keep_accents)
    words = Counter[str]()
    for word, count in raw.items():
        for part in normalizer.normalize_str(word).split():
            words[part] += count
    if not words:
        raise DataError("the corpus holds no text to train a tokenizer on; add sentences")
    codes = _character_codes(words, vocab_size - len(SPECIAL_TOKENS) - len(WORD_START))
    characters = {ord(code): character for character, code in codes.items()}
    vocab = [(token, 0.0) for token in SPECIAL_TOKENS]
    for token, score in _learn(_coded_runs(words, codes), vocab_size):
        vocab.append((token.translate(characters), score))
    if keep_accents == "albert":
        return build_albert(vocab, do_lower_case=do_lower_case)
    backend = build_albert(vocab).backend_tokenizer
    backend.normalizer = normalizer
    roles = find_roles({}, SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=MODEL_INPUT_NAMES, **roles
    )


def _is_english(words: Counter[str]) -> bool:
    """Whether English function words are frequent, and letters outside ASCII rare."""
    english = 0
    foreign = 0
    for word, count in words.items():
        if word.lower() in _ENGLISH_WORDS:
            english += count
        elif any(letter.isalpha() and not letter.isascii() for letter in word):
            foreign += count
    total = words.total()
    return english >= _ENGLISH_SHARE * total > 0 and foreign <= _FOREIGN_SHARE * total


def _character_codes(words: Counter[str], room: int) -> dict[int, str]:
    """Codes of the characters that become tokens, and a border for others, for `str.translate`.

    SentencePiece looks for tokens in UTF-8. It misses those after which all characters begin with
    the same byte, as most of one script do. So frequent characters get codes of one byte, and the
    next ones different first bytes.
    """
    characters = Counter[str]()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    del characters[WORD_START]
    printable = chain(range(0x21, 0x7F), range(0xA1, 0xD800))
    usable = set(map(chr, printable)) - set(_RESERVED)
    # Those with fewer bytes first, and of these the ones whose last bytes are smallest.
    codes = sorted(usable, key=lambda code: (len(code.encode()), code.encode()[::-1]))
    most = min(room, max(room // 2, _ALPHABET_SIZE), len(codes))
    uncovered = CHARACTER_COVERAGE * characters.total()
    table: dict[int, str] = {}
    for character in sorted(characters, key=lambda key: (-characters[key], key)):
        is_frequent = uncovered > 0 and len(table) < most
        table[ord(character)] = codes[len(table)] if is_frequent else _BORDER
        uncovered -= characters[character]
    return table


def _coded_runs(words: Counter[str], codes: dict[int, str]) -> Counter[str]:
    """Count the runs of one kind in words, in codes: "▁9", "," and "000" of "9,000"."""
    runs = Counter[str]()
    for word, count in words.items():
        coded = _BORDER.join(_RUN.findall(WORD_START + word)).translate(codes)
        for run in coded.split(_BORDER):
            runs[run] += count
    del runs[""]
    return runs


def _learn(runs: Counter[str], vocab_size: int) -> list[tuple[str, float]]:
    """Learned tokens with their scores (log probabilities), highest first."""
    from sentencepiece import SentencePieceTrainer

    # Among equally frequent ones the checksum chooses evenly from the whole text.
    ordered = sorted(runs, key=lambda run: (-runs[run], zlib.crc32(run.encode())))
    sizes = accumulate(map(len, ordered))
    frequent = [
        run for run, size in zip(ordered, sizes, strict=True) if size <= TRAINING_CHARACTERS
    ]
    candidates = sum(len(run) * min(len(run), _MAX_TOKEN_LENGTH) for run in frequent)
    seconds = math.ceil(_SECONDS_PER_CANDIDATE * candidates)
    LOG.info(
        f"learning subwords from {len(frequent):,} distinct words, "
        f"about {seconds} seconds on one core"
    )
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=_shuffled_lines({run: runs[run] for run in frequent}),
        model_writer=model,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        max_sentencepiece_length=_MAX_TOKEN_LENGTH,
        max_sentence_length=2**30,
        num_threads=1,  # with more, sums and so scores would differ
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        pad_id=0,
        unk_id=UNK_ID,
        bos_id=-1,
        eos_id=-1,
        control_symbols=list(SPECIAL_TOKENS[2:]),
        minloglevel=2,
    )
    proto = parse_model(model.getvalue())
    learned = proto.pieces[len(SPECIAL_TOKENS) :]
    return [(piece.piece, round(piece.score, SCORE_DIGITS)) for piece in learned]


def _shuffled_lines(counts: dict[str, int]) -> Iterator[str]:
    """Lines in which each run occurs as often as counted, some before a space and some at the end.

    The trainer finds only tokens that occur before two different characters; repeated sentences
    would hide them.
    """
    shuffled = list(Counter(counts).elements())
    random.Random(0).shuffle(shuffled)
    line: list[str] = []
    for run in shuffled:
        if line and (len(line) == _RUNS_PER_LINE or not run.startswith(WORD_START)):
            yield "".join(line)
            line = []
        line.append(run)
    yield "".join(line)


# Vocabulary extension.


class _Word(NamedTuple):
    text: str
    score: float  # log probability
    ids: list[int]  # of the tokens it is split into
    saved_tokens: int


def extend_tokenizer(
    tokenizer: Tokenizer, sentences: Iterable[str], count: int
) -> tuple[Tokenizer, list[list[int]]]:
    """Add up to `count` words of `sentences` as tokens, those that save most tokens first.

    Returns the new tokenizer, which keeps all old ids, and the old ids that each new token
    replaces. Skips words with unknown characters. Raises UsageError if the tokenizer type cannot
    be extended.
    """
    content = content_of(tokenizer.backend_tokenizer)
    model = content["model"]
    kind = model["type"]
    size = len(tokenizer)
    if kind not in ("Unigram", "WordPiece"):
        raise UsageError(f"the vocabulary of a {kind} tokenizer cannot be extended")
    if len(model["vocab"]) < size:
        raise UsageError("a vocabulary with added tokens after the model's cannot be extended")
    counts = count_words(_words(tokenizer, kind, sentences))
    words = _candidate_words(tokenizer, counts)
    if kind == "WordPiece":
        words = words[:count]  # WordPiece takes the longest match, which is the whole word
        model["vocab"] |= {word.text: number for number, word in enumerate(words, size)}
    else:
        words = _used_words(model, words, count)
        model["vocab"] += [(word.text, word.score) for word in words]
    if not words:
        return tokenizer, []
    with TemporaryDirectory() as folder:  # checks and builds it like any other tokenizer
        path = Path(folder)
        save_tokenizer(tokenizer, path, tokenizer.model_max_length)
        (path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        extended = load_tokenizer(path)
    return extended, [word.ids for word in words]


def count_words(words: Iterable[str]) -> Counter[str]:
    """Count words; drops the rarest whenever there are more than MAX_WORDS distinct ones."""
    counts = Counter[str]()
    for word in words:
        counts[word] += 1
        fewest = 1
        while len(counts) > MAX_WORDS:
            counts = Counter({text: number for text, number in counts.items() if number > fewest})
            fewest += 1
    return counts


def _words(tokenizer: Tokenizer, kind: str, sentences: Iterable[str]) -> Iterator[str]:
    """The pre-tokenized words; for Unigram split into runs of letters or digits."""
    backend = tokenizer.backend_tokenizer
    for text in sentences:
        if backend.normalizer:
            text = backend.normalizer.normalize_str(text)
        words = [text]
        if backend.pre_tokenizer:
            words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        for word in words:
            parts = [word]
            if kind == "Unigram":
                parts = _WORD_RUN.findall(word)
            yield from (part for part in parts if len(part) <= MAX_WORD_LENGTH)


def _candidate_words(tokenizer: Tokenizer, counts: Counter[str]) -> list[_Word]:
    """Frequent words of several known tokens, sorted by the number of tokens they would save."""
    vocab = tokenizer.get_vocab()
    total = counts.total()
    words = []
    for text, count in counts.items():
        if count < MIN_OCCURRENCES or text in vocab:
            continue
        ids = [token.id for token in tokenizer.backend_tokenizer.model.tokenize(text)]
        if len(ids) > 1 and tokenizer.unk_token_id not in ids:
            score = round(math.log(count / total), SCORE_DIGITS)
            words.append(_Word(text, score, ids, count * (len(ids) - 1)))
    return sorted(words, key=lambda word: (-word.saved_tokens, word.text))


def _used_words(model: dict[str, Any], words: list[_Word], count: int) -> list[_Word]:
    """The first `count` words that Unigram encodes as one token, likelier than their parts."""
    from tokenizers.models import Unigram

    vocab = list(map(tuple, model["vocab"]))
    scores = [score for _, score in vocab]
    rest = []
    for word in words:
        score_of_parts = sum(scores[token_id] for token_id in word.ids)
        if word.score > score_of_parts:
            rest.append(word)
    used: list[_Word] = []
    while True:
        room = count - len(used)
        added = used + rest[:room]
        rest = rest[room:]
        rows = [(word.text, word.score) for word in added]
        trial = Unigram(vocab + rows, model["unk_id"], model["byte_fallback"])
        used = [word for word in added if len(trial.tokenize(word.text)) == 1]
        if len(used) == len(added):
            return used
