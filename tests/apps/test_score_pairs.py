"""Minimal pairs: the model's own numbers compared, counted by set and by term, and damaged files refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.inference.score_pairs import (
    Outcome,
    PairScores,
    SetScore,
    compare,
    originality,
    read_pairs,
    score_pairs,
)
from tests.apps.conftest import Finished

TOLERANCE = 1e-4  # nats, float32, of a sum over a dozen tokens
WAYS = ("likelihood", "detection")
ANIMALS = ("cat", "dog", "horse", "fox", "owl", "hen", "goat", "bear", "mouse", "swan", "crow", "wolf")
GOOD = [f"The old {animal} crossed the river today." for animal in ANIMALS]
BAD = [f"The {animal} old crossed the river today the." for animal in ANIMALS]


@pytest.fixture(scope="module")
def model(finished: Finished) -> InferenceModel:
    """The tiny run: a generator and a discriminator."""
    return load_model(finished.folder, device="cpu")


def write(file: Path, good: Sequence[str], bad: Sequence[str], **more: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    lines = [{"sentence_good": one, "sentence_bad": other, **more} for one, other in zip(good, bad, strict=True)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_pairs_are_scored_by_the_models_own_numbers(model: InferenceModel, tmp_path: Path) -> None:
    (found,) = score_pairs(model, write(tmp_path / "order.jsonl", GOOD, BAD)).sets
    likelihoods = [model.pseudo_log_likelihood(list(texts)) for texts in (GOOD, BAD)]
    assert found.outcomes["likelihood"] == compare(*likelihoods)
    verdicts = [model.replaced_probabilities(list(texts)) for texts in (GOOD, BAD)]
    by_hand = [[math.fsum(math.log1p(-v.probability) for v in each) for each in texts] for texts in verdicts]
    assert found.outcomes["detection"] == compare(*by_hand)
    assert originality(model, GOOD + BAD) == pytest.approx(by_hand[0] + by_hand[1], abs=TOLERANCE)


def test_good_and_bad_swapped_give_what_is_left_without_the_ties(model: InferenceModel, tmp_path: Path) -> None:
    good, bad = [*GOOD, "One lamp.", "Every  Owl"], [*BAD, "One lamp.", "every owl"]
    there = score_pairs(model, write(tmp_path / "there.jsonl", good, bad)).sets[0]
    back = score_pairs(model, write(tmp_path / "back.jsonl", bad, good)).sets[0]
    for way in WAYS:
        assert there.outcomes[way].ties == back.outcomes[way].ties == 2  # the tokenizer tells neither pair apart
        assert back.outcomes[way].correct == len(good) - 2 - there.outcomes[way].correct


def test_a_tie_is_not_correct() -> None:
    assert compare([1.0, 2.0, 3.0, 0.0], [0.0, 2.0, 4.0, 0.0]) == Outcome(correct=1, ties=2)


@pytest.mark.parametrize("batch_tokens", [1, 37])
def test_how_many_sentences_are_read_together_changes_nothing(
    model: InferenceModel, finished: Finished, batch_tokens: int
) -> None:
    apart = load_model(finished.folder, "cpu", batch_tokens)
    texts = [text[: 9 * number] for number, text in enumerate(GOOD, start=1)]
    assert originality(apart, texts) == pytest.approx(originality(model, texts), abs=TOLERANCE)


@pytest.mark.parametrize("logit", [-1e4, 200.0, 1e4])
def test_detection_is_finite_however_sure_the_model_is(finished: Finished, logit: float) -> None:
    sure = load_model(finished.folder, "cpu")
    assert sure.discriminator is not None
    output = sure.discriminator.discriminator_predictions.dense_prediction
    with torch.no_grad():
        output.weight.zero_()
        output.bias.fill_(logit)
    texts = ["One lamp.", "The owl crossed the river."]
    counts = [len(each) for each in sure.replaced_probabilities(texts)]
    assert originality(sure, texts) == pytest.approx([-count * max(logit, 0.0) for count in counts])


def test_scores_that_are_no_numbers_are_refused(finished: Finished, tmp_path: Path) -> None:
    broken = load_model(finished.folder, "cpu")
    assert broken.discriminator is not None
    with torch.no_grad():
        broken.discriminator.discriminator_predictions.dense_prediction.bias.fill_(math.nan)
    with pytest.raises(CheckpointError, match="scores are not finite"):
        score_pairs(broken, write(tmp_path / "order.jsonl", GOOD, BAD))


def test_sets_of_a_term_and_all_sets_count_the_same_whatever_their_size() -> None:
    def one(name: str, term: str, correct: int, pairs: int) -> SetScore:
        return SetScore(name, term, pairs, {"likelihood": Outcome(correct, 0)})

    scores = PairScores([one("a", "x", 1, 2), one("b", "x", 30, 40), one("c", "y", 5, 5), one("d", "", 0, 5)])
    assert scores.of_terms("likelihood") == {"x": 0.625, "y": 1.0}
    assert scores.accuracy("likelihood") == pytest.approx((0.5 + 0.75 + 1 + 0) / 4)
    assert scores.standard_error("likelihood") == pytest.approx(math.sqrt(0.25 / 2 + 0.1875 / 40) / 4)
    assert scores.pairs == 52


def test_a_set_is_named_by_its_uid_or_by_its_file(tmp_path: Path) -> None:
    write(tmp_path / "named.jsonl", GOOD[:2], BAD[:2], UID="word_order", linguistics_term="order")
    mixed = write(tmp_path / "mixed.jsonl", GOOD[2:5], BAD[2:5])
    with mixed.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": "other"}))
    (named,) = read_pairs(tmp_path / "named.jsonl")
    assert (named.name, named.term, len(named.pairs)) == ("word_order", "order", 2)
    assert [(found.name, found.term, len(found.pairs)) for found in read_pairs(mixed)] == [
        ("mixed", "", 3),
        ("other", "", 1),
    ]


def test_all_files_of_a_folder_are_read_and_the_first_pairs_of_each_set(model: InferenceModel, tmp_path: Path) -> None:
    for name, count in (("a", 2), (".hidden", 1)):
        write(tmp_path / "sets" / f"{name}.jsonl", GOOD[:count], BAD[:count])
    long = "a " * 99  # which the model would refuse to read
    write(tmp_path / "sets" / "b.jsonl", [*GOOD[:3], long, long], [*BAD[:3], "a", "a"])
    (tmp_path / "sets" / "README.md").write_text("no pairs", encoding="utf-8")
    said: list[str] = []
    scores = score_pairs(model, tmp_path / "sets", 3)
    assert [(found.name, found.pairs) for found in scores.sets] == [("a", 2), ("b", 3)]
    first = score_pairs(model, write(tmp_path / "first.jsonl", GOOD[:3], BAD[:3]))
    assert scores.sets[1].outcomes == first.sets[0].outcomes
    assert len(said) == 2


def test_a_model_of_one_head_scores_in_one_way(finished: Finished, tmp_path: Path, model: InferenceModel) -> None:
    file = write(tmp_path / "order.jsonl", GOOD, BAD)
    both = score_pairs(model, file).sets[0].outcomes
    for part, way in (("generator", "likelihood"), ("discriminator", "detection")):
        alone = score_pairs(load_model(finished.folder / part, "cpu"), file)
        assert alone.sets[0].outcomes == {way: both[way]}


FINE = json.dumps({"sentence_good": "a", "sentence_bad": "b", "UID": "s", "linguistics_term": "t"})
DAMAGED = {
    "{": "pairs.jsonl:2: not JSON",
    "[1]": "pairs.jsonl:2: not an object",
    '{"sentence_good": "a"}': "pairs.jsonl:2: no 'sentence_bad'",
    '{"sentence_good": " ", "sentence_bad": "b"}': "pairs.jsonl:2: no 'sentence_good'",
    '{"sentence_good": ["a"], "sentence_bad": "b"}': "pairs.jsonl:2: 'sentence_good' holds list, not text",
    '{"sentence_good": "\\ud800", "sentence_bad": "b"}': "pairs.jsonl:2: 'sentence_good' holds half",
    FINE.replace('"t"', '"u"'): "pairs.jsonl:2: set 's' is of 't' and of 'u'",
    json.dumps({"sentence_good": "a " * 99, "sentence_bad": "b"}): "pairs.jsonl:2: .* the model reads 64",
}


@pytest.mark.parametrize("line", DAMAGED, ids=list(map(str, range(len(DAMAGED)))))
def test_a_damaged_line_is_refused_by_its_number(model: InferenceModel, tmp_path: Path, line: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(f"{FINE}\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=DAMAGED[line]):
        score_pairs(model, file)


def test_files_without_pairs_and_sets_that_stand_twice_are_refused(model: InferenceModel, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty.jsonl: empty"):
        score_pairs(model, tmp_path / "empty.jsonl")
    (tmp_path / "other.jsonl").write_text('{"good": "a"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"other.jsonl:1: no 'sentence_good'"):
        score_pairs(model, tmp_path / "other.jsonl")
    for name in ("a", "b"):
        write(tmp_path / "twice" / f"{name}.jsonl", GOOD[:1], BAD[:1], UID="same")
    with pytest.raises(DataError, match=r"b.jsonl: there is a set 'same' in another file"):
        score_pairs(model, tmp_path / "twice")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UsageError, match=r"holds no .jsonl file"):
        score_pairs(model, tmp_path / "bare")
    (tmp_path / "pairs.tsv").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match=r"pairs are read from .jsonl files"):
        score_pairs(model, tmp_path / "pairs.tsv")
