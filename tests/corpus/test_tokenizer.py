"""ALBERT's tokenizer: repeatable training, the ids that others print for the released vocabulary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer import SPECIAL_PIECES, TextOptions, load_tokenizer, train_tokenizer
from tests.corpus.tokenizer_kinds import PROSE, RELEASED, needs_released


def test_trained_tokens_have_special_ids_first_bounded_size_and_no_punctuation_inside() -> None:
    tokenizer = train_tokenizer(PROSE, 300, do_lower_case=True)
    assert tuple(tokenizer.convert_ids_to_tokens(list(range(5)))) == SPECIAL_PIECES
    assert len(tokenizer) <= 300
    assert len(train_tokenizer(PROSE, 30_000, do_lower_case=True)) < 30_000  # the text gives no more
    many_letters = ["".join(map(chr, range(0x4E00 + k, 0x4E00 + k + 8))) for k in range(500)]
    assert len(train_tokenizer(many_letters, 64, do_lower_case=True)) <= 64
    tokens = [token.removeprefix("▁") for token in tokenizer.get_vocab() if token not in SPECIAL_PIECES]
    assert not [token for token in tokens if not token.isalpha() and not token.isdigit() and len(token) > 1]
    numbers = train_tokenizer(["in 1912, and 1,000 people, 9,"] * 50, 200, do_lower_case=True).get_vocab()
    assert "▁1912" in numbers
    assert not [token for token in numbers if token.endswith(",") and token[-2:-1].isdigit()]


def test_training_without_text_is_refused_and_an_endless_word_shuts_out_no_other() -> None:
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(["", "\u0301"], 100, do_lower_case=True, keep_accents=False)
    # Regression: the first run of letters over the bound ended the gathering, here before any other.
    text = ["a" * 600_000, *PROSE[:6]]
    assert len(train_tokenizer(text, 300, do_lower_case=True)) > 30
    with pytest.raises(DataError, match="words of more than 500,000 characters"):
        train_tokenizer(text[:1], 300, do_lower_case=True)


def test_a_frequent_word_that_is_part_of_no_other_is_a_token() -> None:
    # Regression: the trainer's first tokens must occur in two different words; "this" was cut into "thi" and "s".
    sentences = ["this thing was thick and those things were thin while they waited"] * 40
    vocab = train_tokenizer(sentences, 200, True).get_vocab()
    assert {"▁this", "▁while"} <= vocab.keys()
    assert not [token for token in vocab if any(ord(character) >= 0xF0000 for character in token)]


_TRAIN = """
import sys
from electra_albert.corpus.tokenizer import fingerprint, train_tokenizer
lines = [f"{a}{b} {b}{c}ing {c}{a}." for a in "the cat sat".split() for b in "on a rug".split() for c in "qwxyz中文字"]
print(fingerprint(train_tokenizer(lines * 3, 120, True)))
"""


@pytest.mark.slow
def test_training_repeats_bit_for_bit() -> None:
    """Catches the trainer's own disorder: unrounded, or with its scores of added characters, no two runs agree."""
    found = [
        subprocess.run(
            [sys.executable, "-c", _TRAIN],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"RAYON_NUM_THREADS": threads},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "2", "2")
    ]
    assert found[0] == found[1] == found[2] != ""


PRINTED = {
    # transformers, tests/models/albert/test_tokenization_albert.py: its integration test.
    "Transformers (formerly known as pytorch-transformers and pytorch-pretrained-bert) provides general-purpose "
    "architectures (BERT, GPT-2, RoBERTa, XLM, DistilBert, XLNet...) for Natural Language Understanding (NLU) and "
    "Natural Language Generation (NLG) with over 32+ pretrained models in 100+ languages and deep interoperability "
    "between Jax, PyTorch and TensorFlow.": "2 21970 13 5 6092 167 28 7103 2153 673 8 7028 12051 18 17 7103 2153 673 8 "
    "3515 18684 8 4461 6 1927 297 8 12060 2607 18 13 5 4461 15 10538 38 8 135 15 822 58 15 993 10363 15 1460 8005 4461 "
    "15 993 255 2328 9 9 9 6 26 1112 816 3260 13 5 103 2377 6 17 1112 816 2782 13 5 103 10641 6 29 84 2512 2430 782 "
    "18684 2761 19 808 2430 2556 17 855 1480 9477 4091 128 11712 15 7103 2153 673 17 24883 9990 9 3",
    "The quick brown fox jumps over the lazy dog.": "2 14 2231 886 2385 17659 84 14 16792 1952 9 3",
    # rust-tokenizers, main/tests/test_albert_uncased.rs.
    "This is a sample sentence to be tokénized": "2 48 25 21 5717 5123 20 44 20 2853 1333 3",
    "Wondering how this will get tokenized 🤔 ?": "2 5712 184 48 129 164 20 2853 1333 13 1 13 60 3",
    "İs th!s 𩸽 Ϻ Šœ Ugljšić dấu nặng": "2 25 13 96 187 18 13 1 13 1 13 18 1 13 5127 15664 7820 18758 13 103 1712 3",
    # Bumblebee, test/bumblebee/text/albert_tokenizer_test.exs.
    "Test sentence with [MASK].": "2 1289 5123 29 4 13 9 3",
}


@needs_released
def test_the_released_vocabulary_gives_the_ids_that_others_print() -> None:
    tokenizer = load_tokenizer(RELEASED)
    for text, printed in PRINTED.items():
        assert tokenizer(text)["input_ids"] == [int(number) for number in printed.split()], text
    row = tokenizer("Question?", "Answer")  # as in Bumblebee
    assert (row["input_ids"], row["token_type_ids"]) == ([2, 1301, 60, 3, 1623, 3], [0, 0, 0, 0, 1, 1])
    # In the model card of albert-base-v2: what fills the mask of "Hello I'm a [MASK] model."
    assert tokenizer.convert_ids_to_tokens([12807, 1061, 29104]) == ["▁modeling", "▁model", "▁lingerie"]

    def ids(text: str, **options: Any) -> list[int]:
        return load_tokenizer(RELEASED, TextOptions(**options))(text, add_special_tokens=False)["input_ids"]

    text = "I was born in 92000, and this is falsé."  # as in transformers
    accented: list[int] = [31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 8256, 18, 1, 9]
    assert ids(text, keep_accents=True) == accented
    cased = [13, 1, 438, 2231, 886, 2385, 9]  # as in KerasNLP, whose tokenizer does not lower-case
    assert ids("The quick brown fox.", do_lower_case=False) == cased
