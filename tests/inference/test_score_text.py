"""Scores of a text: every token predicted once, stock's own numbers, and nothing that depends on the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.inference.scoring import ROUNDS, score_text
from tests.apps.tiny_run import english
from tests.inference.stock import LONGEST, TOLERANCE, make_stock, tokenizer_of

SENTENCE = "The old bridge fell into the river, but the dog in the house heard it 漢 and barked at the moon."


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Many short documents, a token that is not in the vocabulary, and the text of a special token."""
    file = tmp_path / "new.txt"
    file.write_text(english(12, seed=5) + "\nA quiet 漢 owl\n\nand [MASK] twice\n", encoding="utf-8")
    return file


def test_the_score_of_a_sequence_is_what_the_stock_model_gives(tmp_path: Path) -> None:
    stock = make_stock(tmp_path, "AlbertForMaskedLM")
    file = tmp_path / "one.txt"
    file.write_text(SENTENCE, encoding="utf-8")
    found = score_text(load_model(tmp_path, device="cpu"), file)
    tokenizer = tokenizer_of(tmp_path)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    ids = inputs["input_ids"][0]
    nats, hits, unknown_nats = 0.0, 0, 0.0
    for first in range(1, 1 + ROUNDS):
        positions = torch.arange(first, len(ids) - 1, ROUNDS)
        masked = ids.index_fill(0, positions, tokenizer.mask_token_id)
        with torch.no_grad():
            logits = stock(**{**inputs, "input_ids": masked[None]}).logits[0, positions]
        cost = -logits.double().log_softmax(-1).gather(1, ids[positions, None]).squeeze(1)
        nats += float(cost.sum())
        unknown_nats += float(cost[ids[positions] == tokenizer.unk_token_id].sum())
        hits += int((logits.argmax(-1) == ids[positions]).sum())
    assert (found["rows"], found["tokens"], found["words"]) == (1, len(ids) - 2, len(SENTENCE.split()))
    assert (found["nats"], found["unknown_nats"]) == pytest.approx((nats, unknown_nats), rel=TOLERANCE)
    assert (found["correct"], found["unknown_tokens"]) == (hits, 1)


def test_how_many_sequences_are_read_together_changes_nothing(model: InferenceModel, text: Path, run: Path) -> None:
    together, apart = score_text(model, text, 32), score_text(load_model(run, "cpu", 100), text, 32)
    assert together["rows"] > 8
    for name, value in together.items():
        is_count = name in ("file", "max_seq_length", "rows", "tokens", "words", "unknown_tokens")
        assert apart[name] == (value if is_count else pytest.approx(value, rel=TOLERANCE))


def test_all_of_the_text_is_counted_and_means_are_sums_by_their_counts(model: InferenceModel, text: Path) -> None:
    found, raw = score_text(model, text), text.read_text(encoding="utf-8")
    ids = [model.tokenizer(line, split_special_tokens=True)["input_ids"][1:-1] for line in raw.splitlines()]
    flat = [number for line in ids for number in line]
    nats, tokens, words, unknown = (found[name] for name in ("nats", "tokens", "words", "unknown_tokens"))
    assert (tokens, words) == (len(flat), len(raw.split()))
    assert unknown == flat.count(model.tokenizer.unk_token_id) >= 1
    share = np.unique(flat, return_counts=True)[1] / len(flat)
    assert found["unigram_entropy"] == pytest.approx(float(-(share * np.log(share)).sum()))
    assert (found["nats_per_token"], found["nats_per_word"]) == (nats / tokens, nats / words)
    assert found["nats_per_known_token"] == (nats - found["unknown_nats"]) / (tokens - unknown)
    assert found["accuracy"] == found["correct"] / tokens
    assert found["pseudo_perplexity"] == pytest.approx(np.exp(nats / words))


def test_a_mean_that_is_no_number_is_none(model: InferenceModel, tmp_path: Path) -> None:
    """JSON knows no infinity."""
    make_stock(tmp_path / "stock", "AlbertForMaskedLM")
    (file := tmp_path / "a.txt").write_text("漢", encoding="utf-8")
    assert score_text(load_model(tmp_path / "stock", "cpu"), file)["nats_per_known_token"] is None
    file.write_text("x" * 500, encoding="utf-8")
    assert score_text(model, file)["pseudo_perplexity"] is None


def test_what_cannot_be_scored_is_refused(model: InferenceModel, run: Path, tmp_path: Path, text: Path) -> None:
    with pytest.raises(UsageError, match="masked-token head"):
        score_text(load_model(run / "discriminator", "cpu"), text)
    for length in (7, LONGEST + 1):
        with pytest.raises(UsageError, match=f"max_seq_length={length}"):
            score_text(model, text, length)
    for content in (" \n\n", "\u0301\n"):  # an accent alone, which the tokenizer takes off
        (blank := tmp_path / "blank.txt").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"blank\.txt.* no text"):
            score_text(model, blank)
