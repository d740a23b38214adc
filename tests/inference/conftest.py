"""Fixtures: a run with random stock models and a small trained tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.tokenization.tokenizer import save_tokenizer
from tests.apps.tiny_run import english
from tests.inference.stock import LONGEST, make_stock


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer(english(60).split("\n"), 300, do_lower_case=True)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A folder with generator and discriminator, with the same tokenizer and maximum length."""
    folder = tmp_path_factory.mktemp("run")
    for part, name, size in (
        ("generator", "AlbertForMaskedLM", 11),
        ("discriminator", "ElectraForPreTraining", 12),
    ):
        make_stock(
            folder / part, name, embedding_size=size, vocab_size=len(tokenizer), pad_token_id=0
        )
        for file in (folder / part).glob("*token*"):
            file.unlink()
        save_tokenizer(tokenizer, folder / part, LONGEST)
    return folder


@pytest.fixture(scope="session")
def model(run: Path) -> InferenceModel:
    """Both models of the run; tests must not change it."""
    return load_model(run, device="cpu")
