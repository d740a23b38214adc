"""Minimal pairs: the model's own numbers compared, counted by set and by term, and damaged files refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.contracts import CheckpointError, DataError
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.inference.scoring import originality, score_pairs, summarize

TOLERANCE = 1e-4  # nats, float32, of a sum over a dozen tokens
WAYS = ("likelihood", "detection")
ANIMALS = ("cat", "dog", "horse", "fox", "owl", "hen", "goat", "bear", "mouse", "swan", "crow", "wolf")
GOOD = [f"The old {animal} crossed the river today." for animal in ANIMALS]
BAD = [f"The {animal} old crossed the river today the." for animal in ANIMALS]


def write(file: Path, good: Sequence[str], bad: Sequence[str], **more: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    lines = [{"sentence_good": one, "sentence_bad": other, **more} for one, other in zip(good, bad, strict=True)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def counts(scores: dict[str, Any], way: str) -> tuple[int, int]:
    """Right pairs and ties of the only set."""
    (found,) = scores[way]["sets"].values()
    return found["correct"], found["ties"]


def test_pairs_are_scored_by_the_models_own_numbers(model: InferenceModel, tmp_path: Path) -> None:
    found = score_pairs(model, write(tmp_path / "order.jsonl", GOOD, BAD))
    likelihoods = [model.pseudo_log_likelihood(texts) for texts in (GOOD, BAD)]
    verdicts = [model.replaced_probabilities(texts) for texts in (GOOD, BAD)]
    by_hand = [[math.fsum(math.log1p(-v.probability) for v in each) for each in texts] for texts in verdicts]
    for way, (good, bad) in (("likelihood", likelihoods), ("detection", by_hand)):
        assert counts(found, way) == (sum(one > other for one, other in zip(good, bad, strict=True)), 0)
    assert originality(model, GOOD + BAD) == pytest.approx(by_hand[0] + by_hand[1], abs=TOLERANCE)


def test_a_tie_is_not_correct_whichever_of_the_two_is_the_good_one(model: InferenceModel, tmp_path: Path) -> None:
    good, bad = [*GOOD, "One lamp.", "Every  Owl"], [*BAD, "One lamp.", "every owl"]
    there = score_pairs(model, write(tmp_path / "there.jsonl", good, bad))
    back = score_pairs(model, write(tmp_path / "back.jsonl", bad, good))
    for way in WAYS:
        assert counts(there, way)[1] == counts(back, way)[1] == 2  # the tokenizer tells neither pair apart
        assert counts(back, way)[0] == len(good) - 2 - counts(there, way)[0]


@pytest.mark.parametrize("logit", [200.0, math.nan])
def test_detection_is_finite_however_sure_the_model_is_and_what_is_not_is_refused(
    run: Path, tmp_path: Path, logit: float
) -> None:
    sure = load_model(run, "cpu")
    assert sure.discriminator is not None
    output = sure.discriminator.discriminator_predictions.dense_prediction
    with torch.no_grad():
        output.weight.zero_()
        output.bias.fill_(logit)
    if math.isnan(logit):
        with pytest.raises(CheckpointError, match="not finite"):
            score_pairs(sure, write(tmp_path / "order.jsonl", GOOD, BAD))
        return
    texts = ["One lamp.", "The owl crossed the river."]
    lengths = [len(each) for each in sure.replaced_probabilities(texts)]
    assert originality(sure, texts) == pytest.approx([-length * max(logit, 0.0) for length in lengths])


def test_sets_of_a_term_and_all_sets_count_the_same_whatever_their_size() -> None:
    sets = {
        name: {"term": term, "pairs": pairs, "accuracy": correct / pairs, "correct": correct, "ties": 0}
        for name, term, correct, pairs in (("a", "x", 1, 2), ("b", "x", 30, 40), ("c", "y", 5, 5), ("d", "", 0, 5))
    }
    found = summarize(sets)
    assert found["terms"] == {"x": 0.625, "y": 1.0}
    assert found["mean"] == pytest.approx((0.5 + 0.75 + 1 + 0) / 4)
    assert found["standard_error"] == pytest.approx(math.sqrt(0.25 / 2 + 0.1875 / 40) / 4)
    assert (found["pairs"], found["sets"]) == (52, sets)


def test_all_files_of_a_folder_are_read_and_the_first_pairs_of_each_set(
    model: InferenceModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    for name, count in (("a", 2), (".hidden", 1)):
        write(tmp_path / "sets" / f"{name}.jsonl", GOOD[:count], BAD[:count])
    long = "a " * 99  # which the model would refuse to read
    write(tmp_path / "sets" / "b.jsonl", [*GOOD[:3], long, long], [*BAD[:3], "a", "a"])
    (tmp_path / "sets" / "README.md").write_text("no pairs", encoding="utf-8")
    scores = score_pairs(model, tmp_path / "sets", 3)
    assert [(name, one["pairs"]) for name, one in scores["detection"]["sets"].items()] == [("a", 2), ("b", 3)]
    assert [line.partition(":")[0] for line in caplog.messages] == ["a", "b"]
    first = score_pairs(model, write(tmp_path / "first.jsonl", GOOD[:3], BAD[:3]))
    assert scores["likelihood"]["sets"]["b"] == first["likelihood"]["sets"]["first"]


FINE = json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": "s", "linguistics_term": "t"})
DAMAGED = {
    "{": "JSON",
    '{"sentence_good": "a"}': "'sentence_bad'",
    FINE.replace('"t"', '"u"'): "'t' and of 'u'",
    json.dumps({"sentence_good": "a " * 99, "sentence_bad": "b"}): "tokens long",
}


def test_a_damaged_line_is_refused_by_its_number(model: InferenceModel, tmp_path: Path) -> None:
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
