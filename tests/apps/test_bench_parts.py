"""The smaller measurements: both sides are seen to agree before they are timed, and what is shown can be checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.bench.config import BenchConfig
from electra_albert.apps.bench.fill_mask import (
    SENTENCES,
    check_same_proposals,
    format_fill_mask,
    masked_sentences,
    measure_fill_mask,
)
from electra_albert.apps.bench.parts import (
    MANY_ROWS,
    TARGET_TOKENS,
    check_same_encoder,
    format_batches,
    format_encoder,
    measure_batches,
    measure_encoder,
)
from electra_albert.apps.bench.stock import StockPair
from electra_albert.apps.bench.timing import in_turns
from electra_albert.config import PretrainConfig, RtdConfig, TrainingConfig
from electra_albert.contracts import Batch, DataError, UserError
from electra_albert.inference.model import InferenceModel
from electra_albert.model.flops import encoder_flops
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection
from tests.apps.tiny_bench import (
    FRESH_SHAPE,
    SEED,
    WORDS,
    L,
    V,
    bench_config,
    set_roofs,
    settings,
    silent,
    write_corpus,
)

B = 3
OWN_ROWS = 7


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


def configs(corpus: Path, **changes: object) -> tuple[BenchConfig, PretrainConfig]:
    config = bench_config(corpus, **changes)
    return config, replace(settings(config, FRESH_SHAPE), training=TrainingConfig(per_device_train_batch_size=OWN_ROWS))


def pair_and_batch() -> tuple[ReplacedTokenDetection, Batch]:
    torch.manual_seed(SEED)
    ours = ReplacedTokenDetection(FRESH_SHAPE, RtdConfig(), SpecialIds(4, (0, 1, 2, 3, 4)), SEED).eval()
    ids = torch.randint(5, V, (B, L), generator=torch.Generator().manual_seed(SEED))
    mask = torch.arange(L) < torch.tensor([[L], [17], [11]])
    return ours, Batch(ids * mask, mask, torch.zeros_like(ids), torch.full((B,), -100), torch.arange(B))


def test_calls_are_made_in_turns_once_untimed() -> None:
    made: list[str] = []
    calls = {name: lambda name=name: made.append(name) for name in ("a", "b")}
    seconds = in_turns(calls, repeats=2, device=torch.device("cpu"), calls_a_timing=3)
    assert "".join(made) == "ab" + "aaabbb" * 2
    assert [len(times) for times in seconds.values()] == [2, 2]


def test_encoder_is_measured_beside_stock(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_roofs(monkeypatch)
    result = measure_encoder(*configs(corpus), silent)
    assert list(result["contenders"]) == ["ours", "stock"]
    assert 0 < result["tokens"] <= B * L
    assert result["flops"] == B * encoder_flops(FRESH_SHAPE, L)
    for record in result["contenders"].values():
        assert 0 < record["tokens_per_second"]["lowest"] <= record["tokens_per_second"]["highest"] < math.inf
        assert record["flops_per_second"] == pytest.approx(result["flops"] / record["seconds"]["median"])
        assert record["share_of_matrix_rate"] == pytest.approx(record["flops_per_second"] / result["matrix_rate"])
    table = format_encoder(result)
    assert f"stock ({result['attention']})" in table
    assert "no target" in table


def test_stock_encoder_with_our_weights_gives_our_hidden_states() -> None:
    ours, batch = pair_and_batch()
    check_same_encoder(ours.discriminator, StockPair(ours, is_tuned=False).eval().discriminator, batch)


def test_stock_encoder_with_another_weight_is_refused() -> None:
    ours, batch = pair_and_batch()
    stock = StockPair(ours, is_tuned=False).eval().discriminator
    with torch.no_grad():
        stock.embeddings.position_embeddings.weight[3, 0] += 0.01
    with pytest.raises(UserError, match="hidden states differ by"):
        check_same_encoder(ours.discriminator, stock, batch)


@pytest.mark.slow  # batches enough to time
def test_batches_are_measured_in_the_sizes_of_the_preset_and_of_many_rows(corpus: Path) -> None:
    result = measure_batches(*configs(corpus), silent)
    assert [record["rows"] for record in result["records"]] == [OWN_ROWS, MANY_ROWS]
    for record in result["records"]:
        rate = record["tokens_per_second"]
        assert 0 < rate["lowest"] <= rate["median"] <= rate["highest"] < math.inf
    assert result["max_seq_length"] == L


def test_table_of_batches_names_the_target_and_what_is_reached_of_it() -> None:
    rate = {"median": TARGET_TOKENS / 2, "lowest": 1.0, "highest": 2.0}
    records = [{"rows": 128, "tokens_per_second": rate}]
    table = format_batches(
        {"preset": "small", "max_seq_length": L, "repeats": 1, "target": TARGET_TOKENS, "records": records}
    )
    assert "7,500,000 tokens/s" in table
    assert "50%" in table


def test_fill_mask_is_measured_for_one_sentence_and_for_many(corpus: Path) -> None:
    result = measure_fill_mask(*configs(corpus, repeats=1), silent)
    assert list(result["one"]) == ["ours", "pipeline"]
    assert list(result["batch"]) == ["ours", "ours, one by one", "pipeline", f"pipeline, batch_size={SENTENCES}"]
    assert list(result["features"]) == ["ours", "pipeline", f"pipeline, batch_size={SENTENCES}"]
    for record in (*result["one"].values(), *result["batch"].values(), *result["features"].values()):
        assert 0 < record["milliseconds"]["lowest"] <= record["milliseconds"]["highest"] < math.inf
    assert result["batch"]["ours"]["ratio"]["median"] == 1
    assert result["batch"]["ours"]["milliseconds"]["median"] > result["one"]["ours"]["milliseconds"]["median"]
    table = format_fill_mask(result)
    assert f"{SENTENCES} sentences: pipeline" in table
    assert "vectors of all: pipeline" in table
    assert "no target" in table


def test_batched_call_that_proposes_otherwise_is_not_measured(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = InferenceModel.fill_mask

    def in_another_order(self: InferenceModel, texts: list[str], top_k: int) -> list[Any]:
        found = fill(self, texts, top_k)
        return [*found[1:], found[0]]

    monkeypatch.setattr(InferenceModel, "fill_mask", in_another_order)
    with pytest.raises(UserError, match="do not propose the same for"):
        measure_fill_mask(*configs(corpus, repeats=1), silent)


def test_vectors_that_are_others_are_not_measured(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give = InferenceModel.features

    def shifted(self: InferenceModel, texts: list[str]) -> list[Any]:
        return [found._replace(tokens=found.tokens + 0.01) for found in give(self, texts)]

    monkeypatch.setattr(InferenceModel, "features", shifted)
    with pytest.raises(UserError, match="other vectors"):
        measure_fill_mask(*configs(corpus, repeats=1), silent)


def test_middle_word_of_sentences_of_usual_length_is_masked() -> None:
    lines = [
        "too short",
        "one two three four five six",
        " ".join(WORDS * 4),
        "a <mask> b c d e",
        "six five four three two",
    ]
    found = masked_sentences(lines, "<mask>")
    assert len(found) == SENTENCES
    assert found[:3] == ["one two three <mask> five six", "six five <mask> three two", found[0]]


def test_corpus_without_a_sentence_of_usual_length_is_refused() -> None:
    with pytest.raises(DataError, match="no line of the corpus has 5 to 40 words"):
        masked_sentences(["too short"], "<mask>")


def proposals() -> list[dict[str, Any]]:
    scores = {7: 0.5, 3: 0.2, 9: 0.1}
    return [
        {"score": score, "token": token, "token_str": f"w{token}", "sequence": f"a w{token} b"}
        for token, score in scores.items()
    ]


def test_same_proposals_are_accepted_and_tied_ones_may_change_places() -> None:
    tied = {**proposals()[2], "token": 8, "token_str": "w8", "sequence": "a w8 b", "score": 0.1 * (1 + 1e-6)}
    check_same_proposals("a [MASK] b", proposals(), proposals())
    check_same_proposals("a [MASK] b", [*proposals()[:2], tied], proposals())


CHANGES: dict[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    "a score": lambda found: [{**found[0], "score": 0.51}, *found[1:]],
    "a text": lambda found: [{**found[0], "sequence": "a  w7 b"}, *found[1:]],
    "a token": lambda found: [{**found[0], "token": 11, "token_str": "w11"}, *found[1:]],
    "one fewer": lambda found: found[:2],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_proposals_that_differ_are_refused(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    with pytest.raises(UserError, match="do not propose the same for"):
        check_same_proposals("a [MASK] b", change(proposals()), proposals())
