"""Ids that others print for ALBERT's released vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from electra_albert.corpus.tokenizer import TextOptions, load_tokenizer
from tests.corpus.tokenizer_kinds import SHARED_DATA

RELEASED = SHARED_DATA / "albert_vocab" / "30k-clean.rebuilt.model"
pytestmark = pytest.mark.skipif(not RELEASED.is_file(), reason="needs ALBERT's released vocabulary")

# Printed in transformers, tests/models/albert/test_tokenization_albert.py: its integration test.
TRANSFORMERS = {
    "Transformers (formerly known as pytorch-transformers and pytorch-pretrained-bert) provides general-purpose "
    "architectures (BERT, GPT-2, RoBERTa, XLM, DistilBert, XLNet...) for Natural Language Understanding (NLU) and "
    "Natural Language Generation (NLG) with over 32+ pretrained models in 100+ languages and deep interoperability "
    "between Jax, PyTorch and TensorFlow.": "2 21970 13 5 6092 167 28 7103 2153 673 8 7028 12051 18 17 7103 2153 673 8 "
    "3515 18684 8 4461 6 1927 297 8 12060 2607 18 13 5 4461 15 10538 38 8 135 15 822 58 15 993 10363 15 1460 8005 4461 "
    "15 993 255 2328 9 9 9 6 26 1112 816 3260 13 5 103 2377 6 17 1112 816 2782 13 5 103 10641 6 29 84 2512 2430 782 "
    "18684 2761 19 808 2430 2556 17 855 1480 9477 4091 128 11712 15 7103 2153 673 17 24883 9990 9 3",
    "BERT is designed to pre-train deep bidirectional representations from unlabeled text by jointly conditioning on "
    "both left and right context in all layers.": "2 11502 25 1006 20 782 8 11809 855 1732 19393 18667 37 367 21018 69 "
    "1854 34 11860 19124 27 156 225 17 193 4141 19 65 9124 9 3",
    "The quick brown fox jumps over the lazy dog.": "2 14 2231 886 2385 17659 84 14 16792 1952 9 3",
}
# Printed in rust-tokenizers, main/tests/test_albert_uncased.rs; without the texts of several spaces in a row, each of
# which is a piece there.
RUST_TOKENIZERS = {
    "This is a sample sentence to be tokénized": "2 48 25 21 5717 5123 20 44 20 2853 1333 3",
    "Wondering how this will get tokenized 🤔 ?": "2 5712 184 48 129 164 20 2853 1333 13 1 13 60 3",
    "İs th!s 𩸽 Ϻ Šœ Ugljšić dấu nặng": "2 25 13 96 187 18 13 1 13 1 13 18 1 13 5127 15664 7820 18758 13 103 1712 3",
}
OTHERS = {
    # Printed in Bumblebee, test/bumblebee/text/albert_tokenizer_test.exs.
    "Test sentence with [MASK].": "2 1289 5123 29 4 13 9 3",
    # Printed in vadhri/ai-notebook, a notebook on tokenizers, for albert-base-v1.
    "This sentense needs to be broken into pieces.": "2 48 795 6498 2274 20 44 2023 77 2491 9 3",
}
# Printed in the model card of albert-base-v2 on the hub: what fills the mask of "Hello I'm a [MASK] model."
MODEL_CARD = {12807: "▁modeling", 23089: "▁modelling", 1061: "▁model", 8014: "▁runway", 29104: "▁lingerie"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RELEASED)


@pytest.mark.parametrize("source", [TRANSFORMERS, RUST_TOKENIZERS, OTHERS], ids=["transformers", "rust", "others"])
def test_ids_are_those_printed_for_whole_rows(tokenizer: Any, source: dict[str, str]) -> None:
    for text, printed in source.items():
        assert tokenizer(text)["input_ids"] == [int(number) for number in printed.split()], text


def test_a_pair_is_laid_out_as_printed_in_bumblebee(tokenizer: Any) -> None:
    row = tokenizer("Question?", "Answer")
    assert row["input_ids"] == [2, 1301, 60, 3, 1623, 3]
    assert row["token_type_ids"] == [0, 0, 0, 0, 1, 1]


def test_accents_are_kept_as_printed_in_transformers() -> None:
    kept = load_tokenizer(RELEASED, TextOptions(keep_accents=True))

    def ids(text: str) -> list[int]:
        return list(kept(text, add_special_tokens=False)["input_ids"])

    assert ids("This is a test") == [48, 25, 21, 1289]
    text = "I was born in 92000, and this is falsé."
    assert ids(text) == [31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 8256, 18, 1, 9]


def test_case_is_kept_as_printed_in_keras() -> None:
    """Printed in KerasNLP, keras_nlp/models/albert/albert_presets_test.py, whose tokenizer does not lower-case."""
    cased = load_tokenizer(RELEASED, TextOptions(do_lower_case=False))
    assert cased("The quick brown fox.", add_special_tokens=False)["input_ids"] == [13, 1, 438, 2231, 886, 2385, 9]


def test_pieces_are_those_printed_in_the_model_card(tokenizer: Any) -> None:
    assert {number: tokenizer.convert_ids_to_tokens(number) for number in MODEL_CARD} == MODEL_CARD
    row = tokenizer("Hello I'm a [MASK] model.")["input_ids"]
    for number, piece in MODEL_CARD.items():
        filled = [number if one == tokenizer.mask_token_id else one for one in row]
        assert tokenizer.decode(filled) == f"[CLS] hello i'm a {piece[1:]} model.[SEP]"
