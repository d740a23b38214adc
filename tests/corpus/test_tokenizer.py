"""Tokenizer training is reproducible, for any script; ids of the released vocabulary."""

import io
import json
import lzma
import math
import os
import random
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from electra_albert.corpus import tokenizer_training as training
from electra_albert.corpus.tokenizer_training import extend_tokenizer, train_tokenizer
from electra_albert.files import SAMPLE_TEXT
from electra_albert.tokenization import tokenizer as tokenizers
from electra_albert.tokenization.text_encoder import TextEncoder
from electra_albert.tokenization.tokenizer import (
    TextOptions,
    fingerprint,
    load_tokenizer,
    save_tokenizer,
)
from tests.corpus.reading import build, write_corpus
from tests.refusals import assert_refused
from tests.tokenization.tokenizer_kinds import (
    KINDS,
    PROSE,
    RELEASED,
    nasty_corpus,
    needs_released,
    save_bert,
)

CHINESE = ["".join(map(chr, range(0x4E00 + k, 0x4E00 + k + 8))) for k in range(500)]


def test_special_ids_come_first_the_size_is_bounded_and_no_token_mixes_kinds_of_characters() -> (
    None
):
    tokenizer = train_tokenizer(PROSE, 300, do_lower_case=True)
    assert tuple(tokenizer.convert_ids_to_tokens(list(range(5)))) == tokenizers.SPECIAL_TOKENS
    assert len(tokenizer) <= 300
    assert len(train_tokenizer(CHINESE, 64, do_lower_case=True)) <= 64
    for token in tokenizer.get_vocab().keys() - {*tokenizers.SPECIAL_TOKENS}:
        letters = token.removeprefix("▁")
        assert len({letter.isalpha() + 2 * letter.isdigit() for letter in letters}) <= 1, token
    numbers = train_tokenizer(["in 1912, and 1,000 people, 9,"] * 50, 200, True).get_vocab()
    assert "▁1912" in numbers
    assert not [token for token in numbers if token.endswith(",") and token[-2:-1].isdigit()]


def test_training_without_text_is_refused_and_an_overlong_word_is_learned() -> None:
    # Regression: the mark ▁ fell under the coverage of characters, so that no word was left.
    for text in (["abcdefgh" * 25_000], ["a" * 600_000, *PROSE[:6]]):
        tokenizer = train_tokenizer(text, 300, do_lower_case=True)
        assert len(tokenizer.tokenize(text[0])) < len(text[0]) / 6
    assert len(tokenizer) > 30
    for refused in ([""], ["\u0301"]):
        assert_refused("DataError", "no text", train_tokenizer, refused, 100, True, False)


def test_a_frequent_word_that_is_part_of_no_other_is_a_token() -> None:
    # Regression: a token had to occur in two different words; "this" was split into "thi" and "s".
    sentences = ["this thing was thick and those things were thin while they waited"] * 40
    assert {"▁this", "▁while"} <= train_tokenizer(sentences, 200, True).get_vocab().keys()


def test_letters_fit_into_a_small_vocabulary_and_take_half_of_a_larger_one() -> None:
    letters = " ".join(map(chr, range(0x430, 0x450)))
    assert "<unk>" not in train_tokenizer([letters], 48, True).tokenize(letters)
    vocab = train_tokenizer(CHINESE, 400, True).get_vocab()
    assert sum(len(token) == 1 for token in vocab) == 1 + (400 - 6) // 2
    rare = (chr(code) for code in range(0x4E00, 0x30000))  # more than codes of the trainer
    every = ["".join(character for character in rare if character.isalpha())]
    assert len(every[0]) > len(train_tokenizer(every, 200_000, True)) > 50_000


def test_characters_below_the_coverage_are_unknown_and_in_no_token() -> None:
    tokenizer = train_tokenizer(["abc abd"] * 9_999 + ["abжc"], 100, do_lower_case=True)
    assert "ж" not in "".join(tokenizer.get_vocab())
    ids = tokenizer("abжc", add_special_tokens=False).input_ids
    assert ids.count(tokenizer.unk_token_id) == 1


def english(number: int) -> list[str]:
    """One of two texts, to train on and to count tokens in."""
    with lzma.open(SAMPLE_TEXT, "rt", encoding="utf-8") as file:
        return list(islice(file, 1_000 * number, 1_000 * (number + 1)))


def cyrillic(number: int) -> list[str]:
    """One of two texts of words whose letters have the same first byte in UTF-8."""
    stems = ["".join(random.Random(stem).choices("бвгдеик", k=6)) for stem in range(80)]
    draw = random.Random(number)
    words = [draw.choice(stems) + draw.choice("абвгдеик") for _ in range(3_600)]
    return [" ".join(words[start : start + 12]) for start in range(0, 3_600, 12)]


@pytest.mark.parametrize("text_of", [english, cyrillic])
def test_other_text_needs_as_few_tokens_as_with_sentencepiece_itself(
    text_of: Callable[[int], list[str]],
) -> None:
    ours = train_tokenizer(text_of(0), 200, do_lower_case=False)
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(text_of(0)),
        model_writer=model,
        vocab_size=198,
        hard_vocab_limit=False,
        character_coverage=0.9999,
        minloglevel=2,
    )
    theirs = SentencePieceProcessor(model_proto=model.getvalue())
    count = sum(map(len, ours(text_of(1), add_special_tokens=False).input_ids))
    assert count <= 1.03 * sum(map(len, theirs.encode(text_of(1))))


@pytest.mark.slow
def test_a_genome_is_split_into_subwords_of_several_letters_within_seconds() -> None:
    # Regression: time grew faster than the text; 300 kB took 69 seconds.
    lines = ["".join(random.Random(number).choices("acgt", k=5_000)) for number in range(60)]
    start = time.process_time()
    tokenizer = train_tokenizer(lines, 4_000, do_lower_case=True)
    assert time.process_time() - start < 40
    assert len(tokenizer.tokenize(lines[0])) < 5_000 / 4


_TRAIN = """
import os, sys
from itertools import product
os.sched_setaffinity(0, [*os.sched_getaffinity(0)][: int(sys.argv[1])])
from electra_albert.tokenization.tokenizer import fingerprint
from electra_albert.corpus.tokenizer_training import train_tokenizer
words = product(("the", "cat", "sat"), ("on", "a", "rug"), "qwxyz中文字")
lines = [f"{a}{b} {b}{c}ing {c}{a}." for a, b, c in words]
print(fingerprint(train_tokenizer(lines * 3, 120, True)))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="only Linux limits the cores of a process"
)
def test_training_is_bit_identical_whatever_the_number_of_cores() -> None:
    commands = [[sys.executable, "-c", _TRAIN, cores] for cores in "122"]
    root = Path(__file__).parents[2]
    printed = {
        subprocess.run(command, cwd=root, check=True, stdout=-1).stdout for command in commands
    }
    assert len(printed) == 1


PRINTED = {
    # rust-tokenizers, main/tests/test_albert_uncased.rs.
    "This is a sample sentence to be tokénized": "2 48 25 21 5717 5123 20 44 20 2853 1333 3",
    "Wondering how this will get tokenized 🤔 ?": "2 5712 184 48 129 164 20 2853 1333 13 1 13 60 3",
    "İs th!s 𩸽 Ϻ Šœ Ugljšić dấu nặng": "2 25 13 96 187 18 13 1 13 1 13 18 1 13 5127 15664 7820 "
    "18758 13 103 1712 3",
    # Bumblebee, test/bumblebee/text/albert_tokenizer_test.exs.
    "Test sentence with [MASK].": "2 1289 5123 29 4 13 9 3",
}


@needs_released
def test_the_released_vocabulary_gives_published_ids() -> None:
    tokenizer = load_tokenizer(RELEASED)
    for text, printed in PRINTED.items():
        assert tokenizer(text)["input_ids"] == [int(number) for number in printed.split()], text
    # From the model card of albert-base-v2: predictions for "Hello I'm a [MASK] model."
    tokens = tokenizer.convert_ids_to_tokens([12807, 1061, 29104])
    assert tokens == ["▁modeling", "▁model", "▁lingerie"]
    # As in transformers; and in KerasNLP, whose tokenizer does not lower-case.
    for options, text, printed in (
        (
            TextOptions(keep_accents=True),
            "I was born in 92000, and this is falsé.",
            "31 23 386 19 561 3050 15 17 48 25 8256 18 1 9",
        ),
        (TextOptions(do_lower_case=False), "The quick brown fox.", "13 1 438 2231 886 2385 9"),
    ):
        ids = load_tokenizer(RELEASED, options)(text, add_special_tokens=False)["input_ids"]
        assert ids == list(map(int, printed.split()))


# Languages and scripts: letters and marks.

MARKED = [  # fully marked text
    *("שָׁלוֹם לְכֻלָּם וּבְרוּכִים הַבָּאִים", "أُنشِئ الملفُّ إلى المجلَّد", "Ёлка ещё мой йод, все и всё"),
    *("हिन्दी में कुछ शब्द लिखिए", "ไม่มีไฟล์ที่ต้องการ น้ำ", "schön drücken, tiếng Việt, İstanbul"),
    "Ёлка ещё мой".replace("ё", "е\u0308").replace("й", "и\u0306"),  # decomposed
]
FOREIGN = "Zoë’s naïve café ﬁt: हिन्दी ไม่มี мой שָׁלוֹם ή パン 한국 x ≠ y"
LATIN_BARE = "zoe’s naive cafe fit: हिन्दी ไม่มี мой שָׁלוֹם ή パン 한국 x ≠ y"


def test_every_letter_and_mark_survives_the_default_tokenizer() -> None:
    tokenizer = train_tokenizer(MARKED * 50, 500, do_lower_case=True)
    for line in MARKED:  # NFC and lower case are the only changes to text that is not English
        plain = "".join(letter.lower() for letter in unicodedata.normalize("NFC", line))
        assert tokenizer.decode(tokenizer.encode(line)[1:-1]) == plain


def test_only_latin_letters_lose_marks_and_only_in_english_or_on_request(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    german = ["Über die Brücke führte früher eine schöne Straße, alle gingen müde zurück."] * 15
    german += PROSE
    cases = [
        (PROSE, None, LATIN_BARE),
        (PROSE, True, FOREIGN.lower()),
        (PROSE, "albert", "zoe’s naive cafe fit: हनद ไมม мои שלום η ハン 한국 x = y"),
        (MARKED, None, FOREIGN.lower()),
        (MARKED, False, LATIN_BARE),
        (german, None, FOREIGN.lower()),
    ]
    for number, (text, keep_accents, expected) in enumerate(cases):
        tokenizer = train_tokenizer(text * 5, 300, True, keep_accents)
        folder = tmp_path / str(number)
        save_tokenizer(tokenizer, folder, 77)
        stock = AutoTokenizer.from_pretrained(str(folder))
        for loaded in (tokenizer, load_tokenizer(folder), stock):
            normalized = loaded.backend_tokenizer.normalizer.normalize_str(FOREIGN)
            assert unicodedata.normalize("NFC", normalized) == expected
            assert loaded(FOREIGN)["input_ids"] == tokenizer(FOREIGN)["input_ids"]


def test_marks_that_a_given_tokenizer_removes_are_counted(tmp_path: Path) -> None:
    lines = ["The Café of Zoë", "हिन्दी हिन्दी", "ÉTÉ, ½ and ﬁne: мой x≠y"]
    units = write_corpus(tmp_path / "corpus", [lines, lines], 1)  # new and cached words
    save_bert(tmp_path / "bert", do_lower_case=False)
    albert = train_tokenizer(PROSE, 300, True, "albert")
    bert = load_tokenizer(tmp_path / "bert")
    for number, (tokenizer, removed) in enumerate([(albert, 24), (bert, 0)]):
        written = build(units, tokenizer, tmp_path / str(number)).statistics["written"]
        assert written.get("marks_removed", 0) == removed
    counts = TextEncoder(train_tokenizer(PROSE, 300, True, False)).encode_counted(["éहिé"])[2]
    assert counts["marks_removed"] == 2


# Vocabulary extension.

NEW_WORDS = ["thrombosis", "septicaemia", "platelets", "hemoglobin"]
_DRAW = random.Random(1)
TEXT = [  # the first new words are more frequent than the last, among known words
    " ".join(_DRAW.choices(PROSE[0].split(), k=4))
    + f" {', '.join(_DRAW.choices(NEW_WORDS, [6, 5, 4, 3], k=2))}."
    for _ in range(120)
] + ["a rareword", f"{'long' * 20} " * 9, "the hgbжtdgbжfvkh " * 9]


@pytest.fixture(scope="module", params=["script-safe cased with accents", "bert uncased"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kind")
    KINDS[request.param](folder)
    return load_tokenizer(folder)


def new_tokens(old: Any, extended: Any) -> list[str]:
    return [*map(str, extended.convert_ids_to_tokens([*range(len(old), len(extended))]))]


def test_old_ids_are_kept_each_new_token_is_used_and_transformers_agrees(
    tokenizer: Any, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    extended, replaced = extend_tokenizer(tokenizer, TEXT, 50)
    everything = list(range(len(tokenizer)))
    assert extended.convert_ids_to_tokens(everything) == tokenizer.convert_ids_to_tokens(everything)
    texts = PROSE[:6] + nasty_corpus(300, 5, with_specials=True)
    assert extended(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    actual = new_tokens(tokenizer, extended)
    assert sorted(token.removeprefix("▁") for token in actual) == sorted(NEW_WORDS)
    for number, (token, old) in enumerate(zip(actual, replaced, strict=True), len(tokenizer)):
        word = token.removeprefix("▁")
        assert extended(f"{word}, old", add_special_tokens=False)["input_ids"][0] == number
        assert tokenizer(word, add_special_tokens=False)["input_ids"] == old != old[:1]
    save_tokenizer(extended, tmp_path, max_length=77)
    stock = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    pairs = ([*TEXT, *texts], [*texts, *TEXT])
    ours = extended(*pairs)
    theirs = stock(*pairs)
    for name in ("input_ids", "token_type_ids"):
        assert theirs[name] == ours[name]
    assert fingerprint(load_tokenizer(tmp_path)) == fingerprint(extended) != fingerprint(tokenizer)


def test_the_words_that_save_most_tokens_come_first_and_rare_ones_are_skipped(
    tokenizer: Any,
) -> None:
    def saved(word: str) -> int:
        tokens = tokenizer(word, add_special_tokens=False)["input_ids"]
        return " ".join(TEXT).count(word) * (len(tokens) - 1)

    expected = sorted(sorted(NEW_WORDS), key=saved, reverse=True)[:2]
    extended, again = (extend_tokenizer(tokenizer, TEXT, 2)[0] for _ in range(2))
    assert [token.removeprefix("▁") for token in new_tokens(tokenizer, extended)] == expected
    assert fingerprint(extended) == fingerprint(again)
    few = training.MIN_OCCURRENCES - 1
    longer = training.MAX_WORD_LENGTH + 1
    rare = [*PROSE[:2], *["the splenectomy"] * few, "a" * longer + " old"]
    assert extend_tokenizer(tokenizer, rare, 50) == (tokenizer, [])


def test_a_word_whose_old_tokens_are_likelier_is_skipped_for_the_next() -> None:
    def added(tokens: dict[str, float], text: list[str], number: int) -> list[str]:
        """New tokens of an ALBERT tokenizer that has these tokens and very unlikely letters."""
        letters = dict.fromkeys(f"{tokenizers.WORD_START}abcdefghijklmnopqrstuvwxyz-", -20.0)
        vocab = dict.fromkeys(tokenizers.SPECIAL_TOKENS, 0.0) | letters | tokens
        tokenizer = tokenizers.build_albert([*vocab.items()])
        return new_tokens(tokenizer, extend_tokenizer(tokenizer, text, number)[0])

    old = [*["the theold"] * 9, *["the"] * 3000, *["the zyx"] * 5]
    assert added({"▁the": -2.0, "old": -2.0}, old, 1) == ["▁zyx"]
    new = [*["zyx-wvu"] * 1000, *["zyxwvu"] * 90, *["onm"] * 80]
    assert added({"▁the": -2.0}, new, 3) == ["▁zyx", "wvu", "▁onm"]


def test_scores_count_only_words_and_the_rarest_words_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = train_tokenizer(PROSE, 300, do_lower_case=True)
    extended = extend_tokenizer(tokenizer, ["thrombosis , . ! ? ; : the"] * 10, 1)[0]
    vocab = json.loads(extended.backend_tokenizer.to_str())["model"]["vocab"]
    assert vocab[-1] == ["▁thrombosis", round(math.log(10 / 20), 5)]
    monkeypatch.setattr(training, "MAX_WORDS", 2)
    assert training.count_words("abacabd") == {"a": 3}


def test_other_models_are_refused_in_one_line(tmp_path: Path) -> None:
    for kind, word in {"roberta": "BPE", "bert with added words": "added tokens after"}.items():
        KINDS[kind](tmp_path / kind)
        tokenizer = load_tokenizer(tmp_path / kind)
        assert_refused("UsageError", word, extend_tokenizer, tokenizer, TEXT, 5)


def test_a_new_word_keeps_its_marks() -> None:
    # Regression: a combining mark ended the word, so no complete word of Hindi or Thai was added.
    letters = train_tokenizer([" ".join("हिन्दी")] * 20, 100, do_lower_case=True)
    assert "▁हिन्दी" in extend_tokenizer(letters, ["हिन्दी"] * 10, 5)[0].get_vocab()
