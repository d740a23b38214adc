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
from tests.refusals import assert_refused, rows

SENTENCE = (
    "The old bridge fell into the river, but the dog in the house heard it 漢 and barked at the "
    "moon."
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Many short documents with an unknown token and the text of a special token."""
    content = english(12, seed=5) + "\nA quiet 漢 owl\n\nand [MASK] twice\n"
    return save(tmp_path / "new.txt", content)


def save(file: Path, content: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(content, encoding="utf-8")
    return file


def test_score_of_a_sequence_equals_that_of_the_stock_model(tmp_path: Path) -> None:
    stock, tokenizer = make_stock(tmp_path, "AlbertForMaskedLM"), tokenizer_of(tmp_path)
    scores = score_text(load_model(tmp_path, device="cpu"), save(tmp_path / "one.txt", SENTENCE))
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
    expected = {"rows": 1, "tokens": len(ids) - 2, "words": len(SENTENCE.split())}
    expected |= {"correct": correct, "unknown_tokens": 1}
    assert scores.items() >= expected.items()
    assert scores["nats"] == pytest.approx(nats, rel=TOLERANCE)
    assert scores["unknown_nats"] == pytest.approx(unknown_nats, rel=TOLERANCE)


def test_score_does_not_depend_on_the_batch_size(
    model: InferenceModel, text: Path, run: Path
) -> None:
    together, apart = score_text(model, text, 32), score_text(load_model(run, "cpu", 100), text, 32)
    assert together["rows"] > 8
    assert together.pop("file") == apart.pop("file")
    assert apart == pytest.approx(together, rel=TOLERANCE)


def test_all_tokens_are_counted_and_means_are_sums_over_counts(
    model: InferenceModel, run: Path, text: Path
) -> None:
    scores, lines = score_text(model, text), text.read_text("utf-8").splitlines()
    flat: list[int] = []
    for ids in tokenizer_of(run / "generator")(lines, split_special_tokens=True)["input_ids"]:
        flat += ids[1:-1]
    names = ("nats", "tokens", "words", "unknown_tokens")
    nats, tokens, words, unknown = map(scores.__getitem__, names)
    assert (tokens, words) == (len(flat), len(" ".join(lines).split()))
    assert unknown == flat.count(model.tokenizer.unk_token_id) >= 1
    share = np.unique(flat, return_counts=True)[1] / len(flat)
    assert scores["unigram_entropy"] == pytest.approx(float(-(share * np.log(share)).sum()))
    assert (scores["nats_per_token"], scores["nats_per_word"]) == (nats / tokens, nats / words)
    assert scores["nats_per_known_token"] == (nats - scores["unknown_nats"]) / (tokens - unknown)
    assert scores["accuracy"] == scores["correct"] / tokens
    assert scores["pseudo_perplexity"] == pytest.approx(np.exp(nats / words))


def test_a_mean_that_is_not_finite_is_none(model: InferenceModel, tmp_path: Path) -> None:
    """JSON cannot represent infinity."""
    make_stock(tmp_path / "stock", "AlbertForMaskedLM")
    stock = load_model(tmp_path / "stock", "cpu")
    file = save(tmp_path / "a.txt", "漢")
    assert score_text(stock, file)["nats_per_known_token"] is None
    assert score_text(model, save(file, "x" * 500))["pseudo_perplexity"] is None


def test_text_that_cannot_be_scored_is_refused(
    model: InferenceModel, run: Path, tmp_path: Path, text: Path
) -> None:
    detector = load_model(run / "discriminator", "cpu")
    assert_refused("UsageError", "masked-token head", score_text, detector, text)
    for length in (7, LONGEST + 1):
        assert_refused("UsageError", f"max_seq_length={length}", score_text, model, text, length)
    for content in (" \n\n", "\u0301\n"):  # only an accent, which the tokenizer removes
        blank = save(tmp_path / "blank.txt", content)
        assert "blank.txt" in assert_refused("DataError", "no text", score_text, model, blank)


HEADS = ("likelihood", "detection")
ANIMALS = "cat dog horse fox owl hen goat bear mouse swan crow wolf"
GOOD = [f"The old {animal} crossed the river today." for animal in ANIMALS.split()]
LONG = " ".join(GOOD[:3])
BAD = [f"The {animal} old crossed the river today the." for animal in ANIMALS.split()]


def write(file: Path, good: Sequence[str], bad: Sequence[str], **more: str) -> Path:
    pairs = zip(good, bad, strict=True)
    lines = [json.dumps({"sentence_good": a, "sentence_bad": b, **more}) for a, b in pairs]
    return save(file, "\n".join(lines))


def counts(scores: dict[str, Any], head: str) -> tuple[int, int]:
    """Correct pairs and ties of the only set."""
    (of_set,) = scores[head]["sets"].values()
    return of_set["correct"], of_set["ties"]


def test_pairs_are_scored_by_likelihoods_and_replaced_probabilities(
    model: InferenceModel, tmp_path: Path
) -> None:
    scores = score_pairs(model, write(tmp_path / "order.jsonl", GOOD, BAD))
    expected = [
        math.fsum(math.log1p(-token.probability) for token in tokens)
        for tokens in model.replaced_probabilities(GOOD + BAD)
    ]
    by_head = {"likelihood": model.pseudo_log_likelihood(GOOD + BAD), "detection": expected}
    for head, values in by_head.items():
        good, bad = np.split(np.array(values), 2)
        assert counts(scores, head) == ((good > bad).sum(), 0)
    actual = original_log_probability(model, GOOD + BAD)
    assert actual == pytest.approx(expected, abs=NATS_TOLERANCE)


def test_energies_score_all_tokens_in_one_forward_pass_as_the_stock_head_does(
    run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "electric"))
    config = folder / "discriminator" / "config.json"
    save(config, json.dumps(json.loads(config.read_text("utf-8")) | {"electric": True}))
    model, tokenizer = load_model(folder, "cpu"), tokenizer_of(run / "discriminator")
    stock, calls = ElectraForPreTraining.from_pretrained(run / "discriminator"), list[int]()
    model.encoder.encoder.register_forward_hook(lambda *values: calls.append(len(values[2])))
    texts = [*GOOD, LONG]
    likelihoods = model.token_log_likelihoods(texts)
    assert calls == [len(texts)]  # sequences of the only batch
    for text, (total, tokens) in zip(texts, likelihoods, strict=True):
        with torch.no_grad():
            energies = stock(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1]
        values = [value for _, value in tokens]
        assert values == pytest.approx((-energies).tolist(), abs=NATS_TOLERANCE)
        assert total == math.fsum(values)
    assert model.pseudo_log_likelihood(LONG) == pytest.approx(total, abs=NATS_TOLERANCE)
    pairs = write(tmp_path / "order.jsonl", GOOD, BAD)
    # A run, and the encoder without a masked-token head.
    for path in (folder, folder / "discriminator"):
        scores = score(model=path, pairs=pairs, device="cpu")["pairs"]
        assert list(scores) == ["likelihood"]  # energies are no probabilities of replacement
    assert_refused("UsageError", "detection", model.replaced_probabilities, LONG)


def test_a_tie_is_not_correct_in_either_order(model: InferenceModel, tmp_path: Path) -> None:
    good, bad = [*GOOD, "One lamp.", "Every  Owl"], [*BAD, "One lamp.", "every owl"]
    there = score_pairs(model, write(tmp_path / "there.jsonl", good, bad))
    back = score_pairs(model, write(tmp_path / "back.jsonl", bad, good))
    for head in HEADS:
        assert counts(there, head)[1] == counts(back, head)[1] == 2  # both pairs have equal tokens
        assert counts(back, head)[0] == len(good) - 2 - counts(there, head)[0]


def test_detection_is_finite_for_large_logits_and_nan_is_refused(run: Path, tmp_path: Path) -> None:
    model = load_model(run, "cpu")
    output = model.discriminator.discriminator_predictions.dense_prediction
    output.requires_grad_(False).weight.zero_()
    output.bias.fill_(200.0)
    expected = [-200.0 * len(tokens) for tokens in model.replaced_probabilities(GOOD)]
    assert original_log_probability(model, GOOD) == pytest.approx(expected)
    output.bias.fill_(math.nan)
    pairs = write(tmp_path / "order.jsonl", GOOD, BAD)
    assert_refused("CheckpointError", "not finite", score_pairs, model, pairs)


# Sets of pairs: name, term, correct pairs and pairs.
SETS = """
a | x | 1  | 2
b | x | 30 | 40
c | y | 5  | 5
d |   | 0  | 5
"""


def test_means_weigh_sets_equally_for_every_size() -> None:
    sets: dict[str, Any] = {}
    for name, term, correct, pairs in rows(SETS):
        sets[name] = {"term": term, "pairs": int(pairs), "accuracy": int(correct) / int(pairs)}
    summary = summarize(sets)
    assert summary["terms"] == {"x": 0.625, "y": 1.0}
    assert summary["mean"] == pytest.approx((0.5 + 0.75 + 1 + 0) / 4)
    assert summary["standard_error"] == pytest.approx(math.sqrt(0.25 / 2 + 0.1875 / 40) / 4)
    assert (summary["pairs"], summary["sets"]) == (52, sets)


def test_max_pairs_limits_each_set(
    model: InferenceModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    for name, count in (("a", 2), (".hidden", 1)):
        write(tmp_path / f"{name}.jsonl", GOOD[:count], BAD[:count])
    write(tmp_path / "b.jsonl", [*GOOD[:3], "a " * 99], [*BAD[:3], "a"])  # too long for the model
    save(tmp_path / "README.md", "no pairs")
    sets = score_pairs(model, tmp_path, 3)["detection"]["sets"]
    assert {name: scores["pairs"] for name, scores in sets.items()} == {"a": 2, "b": 3}
    assert [line.partition(":")[0] for line in caplog.messages] == ["a", "b"]


FINE = '{"sentence_good": "a", "sentence_bad": "b", "UID": "s", "linguistics_term": "t"}'
DAMAGED = """
{                                                                                   | JSON
{"sentence_good": "a"}                                                              | 'sentence_bad'
{"sentence_good": "a", "sentence_bad": "b", "UID": "s", "linguistics_term": "u"}    | 't' and 'u'
{"sentence_good": "LONG", "sentence_bad": "b"}                                      | tokens long
"""


def test_error_names_the_damaged_line(model: InferenceModel, tmp_path: Path) -> None:
    for line, word in rows(DAMAGED.replace("LONG", "a " * 99)):
        file = save(tmp_path / "pairs.jsonl", f"{FINE}\n{line}\n")
        assert "pairs.jsonl:2: " in assert_refused("DataError", word, score_pairs, model, file)
    save(tmp_path / "empty.jsonl", "\n")
    for name in ("a", "b"):
        write(tmp_path / "twice" / f"{name}.jsonl", GOOD[:1], BAD[:1], UID="same")
    for name, word in (("empty.jsonl", "empty"), ("twice", "'same'")):
        assert_refused("DataError", word, score_pairs, model, tmp_path / name)
