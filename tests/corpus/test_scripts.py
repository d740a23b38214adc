"""Languages and scripts: what a tokenizer trained on a text, or given for it, does to its letters and marks."""

from __future__ import annotations

import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from electra_albert.corpus.sentences import word_set
from electra_albert.corpus.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from electra_albert.corpus.word_encoder import TextEncoder, encoder_settings
from tests.corpus.tokenizer_kinds import PROSE, save_bert

LANGUAGES = word_set("ar de el he hi ja km ko ru ta th vi zh")  # in 12 scripts
# Written by people with all marks: Hebrew points, Arabic vowels, Russian ё and й, tones of Thai and Vietnamese.
MARKED = [
    "שָׁלוֹם לְכֻלָּם וּבְרוּכִים הַבָּאִים",
    "أُنشِئ الملفُّ إلى المجلَّد",
    "Ёлка ещё мой йод, все и всё",
    "हिन्दी में कुछ शब्द लिखिए",
    "ไม่มีไฟล์ที่ต้องการ น้ำ",
    "schön drücken, tiếng Việt, İstanbul",
    "Ёлка ещё мой".replace("ё", "е\u0308").replace("й", "и\u0306"),  # decomposed
]


def names_of(language: str) -> list[str]:
    """Names of languages, territories, currencies, months and days in a language, joined to short sentences."""
    babel = pytest.importorskip("babel", reason="its names are the text; pip install -e '.[dev]'")
    locale = babel.Locale.parse(language)
    calendar = [*locale.months["format"]["wide"].values(), *locale.days["format"]["wide"].values()]
    names = [*locale.languages.values(), *locale.territories.values(), *locale.currencies.values()]
    return [" ".join(f"{name}, {calendar[number % len(calendar)]}".split()) for number, name in enumerate(names)]


def announced(text: str) -> str:
    """NFC and each character in lower case: all that is done to a text that is not English."""
    return "".join(letter.lower() for letter in unicodedata.normalize("NFC", text))


def is_marked(piece: str) -> bool:
    return any(unicodedata.category(letter).startswith("M") for letter in piece)


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_letter_and_mark_survives_the_default_tokenizer(language: str) -> None:
    text = names_of(language)
    tokenizer = train_tokenizer(text, 8000, do_lower_case=True)
    kept = {line: ids for line in text if tokenizer.unk_token_id not in (ids := tokenizer.encode(line)[1:-1])}
    assert len(kept) > 0.97 * len(set(text))  # the others hold a character that is there once or twice
    assert [tokenizer.decode(ids) for ids in kept.values()] == list(map(announced, kept))
    if language in ("bn", "hi", "km", "lo", "ml", "my", "ta", "te", "th"):
        assert sum(len(piece) > 2 and is_marked(piece) for piece in tokenizer.get_vocab()) > 50


def test_marks_written_by_hand_survive() -> None:
    tokenizer = train_tokenizer(MARKED * 50, 500, do_lower_case=True)
    assert [tokenizer.decode(tokenizer.encode(line)[1:-1]) for line in MARKED] == list(map(announced, MARKED))


FOREIGN = "Zoë’s naïve café ﬁt: हिन्दी ไม่มี мой שָׁלוֹם ή パン 한국 x ≠ y"


@pytest.mark.parametrize(
    ("text", "keep_accents", "wanted"),
    [
        (PROSE, None, "zoe’s naive cafe fit: हिन्दी ไม่มี мой שָׁלוֹם ή パン 한국 x ≠ y"),
        (PROSE, True, FOREIGN.lower()),
        (PROSE, "albert", "zoe’s naive cafe fit: हनद ไมม мои שלום η ハン 한국 x = y"),
        (MARKED, None, FOREIGN.lower()),
        (MARKED, False, "zoe’s naive cafe fit: हिन्दी ไม่มี мой שָׁלוֹם ή パン 한국 x ≠ y"),
    ],
)
def test_only_latin_letters_lose_marks_and_only_in_english_or_where_told(
    text: list[str], keep_accents: Any, wanted: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoTokenizer

    caplog.set_level("INFO", logger="electra_albert")
    tokenizer = train_tokenizer(text * 5, 300, True, keep_accents)
    save_tokenizer(tokenizer, tmp_path, 77)
    for loaded in (tokenizer, load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))):
        assert unicodedata.normalize("NFC", loaded.backend_tokenizer.normalizer.normalize_str(FOREIGN)) == wanted
        assert loaded(FOREIGN)["input_ids"] == tokenizer(FOREIGN)["input_ids"]
    assert TextEncoder(encoder_settings(tokenizer)).by_word
    language = "is English" if text is PROSE else "is not English"
    assert [language in line for line in caplog.messages if "English" in line] == (
        [True] if keep_accents is None else []
    )


def test_english_with_a_tenth_of_german_is_not_taken_for_english() -> None:
    german = ["Über die Brücke führte früher eine schöne Straße, und alle gingen müde zurück."] * 15
    for text, is_english in ((PROSE, True), ([*PROSE, *german], False)):
        normalizer = train_tokenizer(text, 200, do_lower_case=True).backend_tokenizer.normalizer
        assert normalizer.normalize_str("schön") == ("schon" if is_english else "schön")


@pytest.mark.slow
def test_text_without_spaces_is_learned_from_in_bounded_time() -> None:
    """Regression: every end of a clause was one of the first pieces, of which there were hundreds of thousands."""
    names = [line.split(",")[0].replace(" ", "") for line in names_of("ja")]
    draw = np.random.default_rng(1).integers(len(names), size=(4_000, 12))
    text = ["".join(names[number] for number in row) for row in draw]
    assert 300_000 < sum(map(len, text)) < 500_000
    begun = time.process_time()
    tokenizer = train_tokenizer(text, 4000, do_lower_case=True)
    assert time.process_time() - begun < 14  # seconds; it was 21, and is 6
    assert sum(len(piece) > 3 for piece in tokenizer.get_vocab()) > 1000


@pytest.mark.parametrize("by_word", [True, False])
def test_marks_that_a_given_tokenizer_removes_are_counted(by_word: bool, tmp_path: Path) -> None:
    albert = train_tokenizer(PROSE, 300, True, "albert")
    encoder = TextEncoder(encoder_settings(albert), by_word=by_word)
    for _ in range(2):  # words met for the first time, and again
        encoder.encode(["The Café of Zoë", "हिन्दी हिन्दी", "ÉTÉ, ½ and ﬁne: мой x≠y"])
    assert encoder.marks_removed == 24
    save_bert(tmp_path, do_lower_case=False)
    kept = TextEncoder(encoder_settings(load_tokenizer(tmp_path)), by_word=by_word)
    kept.encode(["The Café of Zoë", "हिन्दी"])
    assert not kept.marks_removed
