"""A tokenizer of generated text."""

from typing import Any

import pytest

from electra_albert.corpus.tokenizer_training import train_tokenizer
from tests.corpus.reading import document


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    text = [sentence for number in range(50) for sentence in document(number)]
    return train_tokenizer(text, 200, True, keep_accents=False)
