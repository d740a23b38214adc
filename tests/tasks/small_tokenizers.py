"""Small tokenizers of five kinds, cached, and strategies for difficult text."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer

from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.tasks.encoding import EncodePlan
from electra_albert.tokenization.text_encoder import TextEncoder
from tests.tokenization.tokenizer_kinds import (
    NASTY,
    PROSE,
    save_fast_unigram,
    save_roberta,
    wordpiece_vocab,
)

PLAN = EncodePlan(32, 8, 6, has_null_answer=False, is_regression=False, double_unordered=False)
steady = settings(max_examples=40, deadline=None, derandomize=True)
thorough = settings(
    max_examples=100, deadline=None, derandomize=True
)  # if the tokenizer is drawn too
kinds = st.sampled_from(("albert", "albert cased", "bert", "roberta", "unigram"))


@cache
def tokenizer(kind: str) -> Any:
    """ALBERT's Unigram, BERT's WordPiece, byte-level BPE, or a Unigram that keeps spaces."""
    if kind.startswith("albert"):
        return train_tokenizer(PROSE, 300, kind == "albert")
    if kind == "bert":
        return BertTokenizer(vocab=wordpiece_vocab(True))
    with tempfile.TemporaryDirectory() as folder:
        {"roberta": save_roberta, "unigram": save_fast_unigram}[kind](Path(folder))
        return AutoTokenizer.from_pretrained(folder)


@cache
def encoder(kind: str) -> TextEncoder:
    return TextEncoder(tokenizer(kind))


_PLAIN = ["the", "house", "Bridge", "x", "river,", "hill-top.", "1912"]
_WORDS = [*_PLAIN, "``old''", "e\u0301t\u00e9", "People", "[SEP]", "中文"]
plain_texts = st.lists(st.sampled_from(_PLAIN), max_size=60).map(" ".join)
texts = (
    st.sampled_from(NASTY)
    | st.text(max_size=30)
    | st.lists(st.sampled_from(_WORDS), max_size=60).map(" ".join)
)
words = st.sampled_from([*_WORDS, "\u200b", "\u0301", "a" * 50]) | st.text(min_size=1, max_size=5)
