"""Scores of text and minimal pairs: equal to stock, independent of the batch size, errors for
damaged files.
"""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ElectraForPreTraining

from electra_albert import score
from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.inference.scoring import (
    ROUNDS,
    original_log_probability,
    score_pairs,
    score_text,
    summarize,
)
from tests.apps.tiny_run import english
from tests.inference.stock import LONGEST, NATS_TOLERANCE, TOLERANCE, make_stock, tokenizer_of

SENTENCE = (
    "The old bridge fell into the river, but the dog in the house heard it 漢 and barked at the "
    "moon."
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Many short documents with an unknown token and the text of a special token."""
    (file := tmp_path / "new.txt").write_text(
        english(12, seed=5) + "\nA quiet 漢 owl\n\nand [MASK] twice\n", "utf-8"
    )
    return file


def test_score_of_a_sequence_equals_that_of_the_stock_model(tmp_path: Path) -> None:
    stock, tokenizer = make_stock(tmp_path, "AlbertForMaskedLM"), tokenizer_of(tmp_path)
    (file := tmp_path / "one.txt").write_text(SENTENCE, encoding="utf-8")
    found = score_text(load_model(tmp_path, device="cpu"), file)
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    ids, nats, correct, unknown_nats = inputs["input_ids"][0], 0.0, 0, 0.0
    for first in range(1, 1 + ROUNDS):
        positions = torch.arange(first, len(ids) - 1, ROUNDS)
        masked = ids.index_fill(0, positions, tokenizer.mask_token_id)
        with torch.no_grad():
            logits = stock(**{**inputs, "input_ids": masked[None]}).logits[0, positions]
        losses = -logits.double().log_softmax(-1).gather(1, ids[positions, None]).squeeze(1)
        nats += float(losses.sum())
        unknown_nats += float(losses[ids[positions] == tokenizer.unk_token_id].sum())
        correct += int((logits.argmax(-1) == ids[positions]).sum())
    assert (found["rows"], found["tokens"], found["words"]) == (
        1,
        len(ids) - 2,
        len(SENTENCE.split()),
    )
    assert (found["nats"], found["unknown_nats"]) == pytest.approx(
        (nats, unknown_nats), rel=TOLERANCE
    )
    assert (found["correct"], found["unknown_tokens"]) == (correct, 1)


def test_score_does_not_depend_on_the_batch_size(
    model: InferenceModel, text: Path, run: Path
) -> None:
    together, apart = score_text(model, text, 32), score_text(load_model(run, "cpu", 100), text, 32)
    assert together["rows"] > 8
    for name, value in together.items():
        is_count = name in ("file", "max_seq_length", "rows", "tokens", "words", "unknown_tokens")
        assert apart[name] == (value if is_count else pytest.approx(value, rel=TOLERANCE))


def test_all_tokens_are_counted_and_means_are_sums_over_counts(
    model: InferenceModel, run: Path, text: Path
) -> None:
    found, raw, tokenizer = (
        score_text(model, text),
        text.read_text("utf-8"),
        tokenizer_of(run / "generator"),
    )
    ids = [
        tokenizer(line, split_special_tokens=True)["input_ids"][1:-1] for line in raw.splitlines()
    ]
    flat = [number for line in ids for number in line]
    nats, tokens, words, unknown = (
        found[name] for name in ("nats", "tokens", "words", "unknown_tokens")
    )
    assert (tokens, words) == (len(flat), len(raw.split()))
    assert unknown == flat.count(model.tokenizer.unk_token_id) >= 1
    share = np.unique(flat, return_counts=True)[1] / len(flat)
    assert found["unigram_entropy"] == pytest.approx(float(-(share * np.log(share)).sum()))
    assert (found["nats_per_token"], found["nats_per_word"]) == (nats / tokens, nats / words)
    assert found["nats_per_known_token"] == (nats - found["unknown_nats"]) / (tokens - unknown)
    assert found["accuracy"] == found["correct"] / tokens
    assert found["pseudo_perplexity"] == pytest.approx(np.exp(nats / words))


def test_a_mean_that_is_not_finite_is_none(model: InferenceModel, tmp_path: Path) -> None:
    """JSON cannot represent infinity."""
    make_stock(tmp_path / "stock", "AlbertForMaskedLM")
    (file := tmp_path / "a.txt").write_text("漢", encoding="utf-8")
    assert score_text(load_model(tmp_path / "stock", "cpu"), file)["nats_per_known_token"] is None
    file.write_text("x" * 500, encoding="utf-8")
    assert score_text(model, file)["pseudo_perplexity"] is None


def test_text_that_cannot_be_scored_is_refused(
    model: InferenceModel, run: Path, tmp_path: Path, text: Path
) -> None:
    with pytest.raises(UsageError, match="masked-token head"):
        score_text(load_model(run / "discriminator", "cpu"), text)
    for length in (7, LONGEST + 1):
        with pytest.raises(UsageError, match=f"max_seq_length={length}"):
            score_text(model, text, length)
    for content in (" \n\n", "\u0301\n"):  # only an accent, which the tokenizer removes
        (blank := tmp_path / "blank.txt").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"blank\.txt.* no text"):
            score_text(model, blank)


HEADS = ("likelihood", "detection")
ANIMALS = (
    "cat",
    "dog",
    "horse",
    "fox",
    "owl",
    "hen",
    "goat",
    "bear",
    "mouse",
    "swan",
    "crow",
    "wolf",
)
GOOD = [f"The old {animal} crossed the river today." for animal in ANIMALS]
LONG = " ".join(GOOD[:3])
BAD = [f"The {animal} old crossed the river today the." for animal in ANIMALS]


def write(file: Path, good: Sequence[str], bad: Sequence[str], **more: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    lines = [
        {"sentence_good": one, "sentence_bad": other, **more}
        for one, other in zip(good, bad, strict=True)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def counts(scores: dict[str, Any], head: str) -> tuple[int, int]:
    """Correct pairs and ties of the only set."""
    (found,) = scores[head]["sets"].values()
    return found["correct"], found["ties"]


def test_pairs_are_scored_by_likelihoods_and_replaced_probabilities(
    model: InferenceModel, tmp_path: Path
) -> None:
    found = score_pairs(model, write(tmp_path / "order.jsonl", GOOD, BAD))
    likelihoods = [model.pseudo_log_likelihood(texts) for texts in (GOOD, BAD)]
    detected = [model.replaced_probabilities(texts) for texts in (GOOD, BAD)]
    expected = [
        [math.fsum(math.log1p(-s.probability) for s in each) for each in texts]
        for texts in detected
    ]
    for head, (good, bad) in (("likelihood", likelihoods), ("detection", expected)):
        assert counts(found, head) == (
            sum(one > other for one, other in zip(good, bad, strict=True)),
            0,
        )
    assert original_log_probability(model, GOOD + BAD) == pytest.approx(
        expected[0] + expected[1], abs=NATS_TOLERANCE
    )


def test_energies_score_all_tokens_in_one_forward_pass_as_the_stock_head_does(
    run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "electric"))
    config = folder / "discriminator" / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text("utf-8")) | {"electric": True}), "utf-8"
    )
    model, tokenizer = load_model(folder, "cpu"), tokenizer_of(run / "discriminator")
    stock, calls = ElectraForPreTraining.from_pretrained(run / "discriminator"), list[int]()
    model.encoder.encoder.register_forward_hook(lambda *given: calls.append(len(given[2])))
    found = model.token_log_likelihoods([*GOOD, LONG])
    assert calls == [len(GOOD) + 1]  # sequences of the only batch
    for text, likelihood in zip([*GOOD, LONG], found, strict=True):
        with torch.no_grad():
            energies = stock(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1]
        assert [value for _, value in likelihood.tokens] == pytest.approx(
            (-energies).tolist(), abs=NATS_TOLERANCE
        )
        assert likelihood.total == math.fsum(value for _, value in likelihood.tokens)
    assert model.pseudo_log_likelihood(LONG) == pytest.approx(found[-1].total, abs=NATS_TOLERANCE)
    pairs = write(tmp_path / "order.jsonl", GOOD, BAD)
    # A run, and the encoder without a masked-token head.
    for path in (folder, folder / "discriminator"):
        scores = score(model=path, pairs=pairs, device="cpu")["pairs"]
        assert list(scores) == ["likelihood"]  # energies are no probabilities of replacement
    with pytest.raises(UsageError, match="detection"):
        model.replaced_probabilities(LONG)


def test_a_tie_is_not_correct_in_either_order(model: InferenceModel, tmp_path: Path) -> None:
    good, bad = [*GOOD, "One lamp.", "Every  Owl"], [*BAD, "One lamp.", "every owl"]
    there = score_pairs(model, write(tmp_path / "there.jsonl", good, bad))
    back = score_pairs(model, write(tmp_path / "back.jsonl", bad, good))
    for head in HEADS:
        assert counts(there, head)[1] == counts(back, head)[1] == 2  # both pairs have equal tokens
        assert counts(back, head)[0] == len(good) - 2 - counts(there, head)[0]


@pytest.mark.parametrize("logit", [200.0, math.nan])
def test_detection_is_finite_for_large_logits_and_nan_is_refused(
    run: Path, tmp_path: Path, logit: float
) -> None:
    model = load_model(run, "cpu")
    output = model.discriminator.discriminator_predictions.dense_prediction
    with torch.no_grad():
        output.weight.zero_()
        output.bias.fill_(logit)
    if math.isnan(logit):
        with pytest.raises(CheckpointError, match="not finite"):
            score_pairs(model, write(tmp_path / "order.jsonl", GOOD, BAD))
    else:
        lengths = [len(each) for each in model.replaced_probabilities(GOOD)]
        assert original_log_probability(model, GOOD) == pytest.approx(
            [-length * logit for length in lengths]
        )


def test_means_weigh_sets_equally_for_every_size() -> None:
    sets = {
        name: {
            "term": term,
            "pairs": pairs,
            "accuracy": correct / pairs,
            "correct": correct,
            "ties": 0,
        }
        for name, term, correct, pairs in (
            ("a", "x", 1, 2),
            ("b", "x", 30, 40),
            ("c", "y", 5, 5),
            ("d", "", 0, 5),
        )
    }
    found = summarize(sets)
    assert found["terms"] == {"x": 0.625, "y": 1.0}
    assert found["mean"] == pytest.approx((0.5 + 0.75 + 1 + 0) / 4)
    assert found["standard_error"] == pytest.approx(math.sqrt(0.25 / 2 + 0.1875 / 40) / 4)
    assert (found["pairs"], found["sets"]) == (52, sets)


def test_max_pairs_limits_each_set(
    model: InferenceModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    for name, count in (("a", 2), (".hidden", 1)):
        write(tmp_path / f"{name}.jsonl", GOOD[:count], BAD[:count])
    write(tmp_path / "b.jsonl", [*GOOD[:3], "a " * 99], [*BAD[:3], "a"])  # too long for the model
    (tmp_path / "README.md").write_text("no pairs", encoding="utf-8")
    scores = score_pairs(model, tmp_path, 3)
    sets = scores["detection"]["sets"]
    assert {name: one["pairs"] for name, one in sets.items()} == {"a": 2, "b": 3}
    assert [line.partition(":")[0] for line in caplog.messages] == ["a", "b"]


FINE = json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": "s", "linguistics_term": "t"})
DAMAGED = {
    "{": "JSON",
    '{"sentence_good": "a"}': "'sentence_bad'",
    FINE.replace('"t"', '"u"'): "'t' and 'u'",
    json.dumps({"sentence_good": "a " * 99, "sentence_bad": "b"}): "tokens long",
}


def test_error_names_the_damaged_line(model: InferenceModel, tmp_path: Path) -> None:
    for line, word in DAMAGED.items():
        (file := tmp_path / "pairs.jsonl").write_text(f"{FINE}\n{line}\n", encoding="utf-8")
        with pytest.raises(DataError, match=rf"pairs\.jsonl:2: .*{word}"):
            score_pairs(model, file)
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    for name in ("a", "b"):
        write(tmp_path / "twice" / f"{name}.jsonl", GOOD[:1], BAD[:1], UID="same")
    for name, word in (("empty.jsonl", "empty"), ("twice", "'same'")):
        with pytest.raises(DataError, match=word):
            score_pairs(model, tmp_path / name)
