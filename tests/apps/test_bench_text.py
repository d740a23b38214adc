"""Real text end to end: what stock reads, how it is padded, and what is counted."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra_albert.apps.bench.config import OURS
from electra_albert.apps.bench.lines import sample_lines
from electra_albert.apps.bench.text import (
    LONGEST,
    PADDED,
    TOGETHER,
    Padding,
    blocks,
    format_text,
    measure_text,
    stock_batches,
    tokenised,
)
from electra_albert.config import CorpusConfig, PretrainConfig, TrainingConfig
from electra_albert.contracts import DataError
from electra_albert.corpus.tokenizer import train_tokenizer
from tests.apps.tiny_bench import FRESH_SHAPE, SEED, WORDS, V, bench_config

B, L = 2, 9
Row = dict[str, list[int]]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sentences of 2 to 12 words, three a document."""
    draw = np.random.default_rng(1)
    sentences = [" ".join(draw.choice(WORDS, size=2 + n % 11)) + "." for n in range(120)]
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join("\n".join(sentences[n : n + 3]) for n in range(0, 120, 3)) + "\n", encoding="utf-8")
    return file


def settings(corpus: Path, length: int = L) -> PretrainConfig:
    read = CorpusConfig(
        corpus=str(corpus),
        prepared_dir=str(corpus.parent / "prepared"),
        vocab_size=V,
        max_seq_length=length,
        preprocessing_num_workers=1,
    )
    training = TrainingConfig(per_device_train_batch_size=B, seed=SEED)
    return PretrainConfig(corpus=read, model=FRESH_SHAPE, training=training)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([" ".join(WORDS)] * 5, V, do_lower_case=True)


TEXTS = {
    "sentences.txt": ("One here.\nTwo here.\n\nThree.\n", ["One here.", "Two here.", "Three."]),
    "paragraphs.txt": (
        "One here. Two here. And three.\nFour. Five.\n",
        ["One here. Two here. And three.", "Four. Five."],
    ),
    "records.jsonl": ('{"text": "One here. Two."}\n{"text": "Three."}\n', ["One here. Two.", "Three."]),
}


@pytest.mark.parametrize(("name", "text", "lines"), [(name, *both) for name, both in TEXTS.items()])
def test_example_is_a_line_of_text_or_a_record(tmp_path: Path, name: str, text: str, lines: list[str]) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert sample_lines(settings(file).corpus, SEED) == lines


def test_lines_are_cut_at_the_length_and_those_without_a_token_go(tokenizer: Any) -> None:
    rows = tokenised(["river bridge", " ", "house " * 2 * L], tokenizer, L)
    assert [len(row["input_ids"]) for row in rows] == [len(tokenizer("river bridge")["input_ids"]), L]
    assert rows[0]["input_ids"] == tokenizer("river bridge")["input_ids"]


def row_of(length: int, first: int = 10) -> Row:
    return {
        "input_ids": [2, *range(first, first + length - 2), 3],
        "token_type_ids": [0] * length,
        "attention_mask": [1] * length,
    }


@pytest.mark.parametrize(("padding", "width"), [("longest", 7), ("max_length", L)])
def test_rows_are_padded_as_asked_for(corpus: Path, tokenizer: Any, padding: Padding, width: int) -> None:
    batch = next(stock_batches([row_of(4), row_of(7)], tokenizer, settings(corpus), padding, pin=False))
    assert batch.input_ids.shape == (B, width)
    assert sorted(batch.attention_mask.sum(-1).tolist()) == [4, 7]
    assert torch.equal(batch.input_ids == tokenizer.pad_token_id, ~batch.attention_mask)


def test_every_epoch_takes_each_row_once_in_an_order_of_its_own(corpus: Path, tokenizer: Any) -> None:
    rows = [row_of(4, first=10 + number) for number in range(6)]
    taken = list(islice(stock_batches(rows, tokenizer, settings(corpus), "longest", pin=False), 6))
    seen = [int(ids[1]) - 10 for batch in taken for ids in batch.input_ids]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6))
    assert seen[:6] != seen[6:]
    assert torch.cat([batch.example_id for batch in taken]).tolist() == list(range(12))  # keys that never repeat


def test_lines_run_together_fill_rows_without_padding() -> None:
    cut = blocks([row_of(4), row_of(7, first=20), row_of(4, first=30)], 5)
    assert [row["input_ids"] for row in cut] == [[2, 10, 11, 3, 2], [20, 21, 22, 23, 24], [3, 2, 30, 31, 3]]
    assert all(row["attention_mask"] == [1] * 5 for row in cut)


def test_text_is_measured_for_ours_and_each_way_of_stock(corpus: Path) -> None:
    result = measure_text(bench_config(corpus), settings(corpus, length=23))
    contenders = result["contenders"]
    assert list(contenders) == [OURS, LONGEST, PADDED, TOGETHER]
    for record in contenders.values():
        rate = record["tokens_per_second"]
        assert 0 < rate["lowest"] <= rate["median"] <= rate["highest"] < math.inf
        assert 0 < record["seconds_a_step"]["median"] < math.inf
    assert contenders[OURS]["ratio"]["median"] == 1
    assert contenders[TOGETHER]["padding"] == 0
    # Every step takes 3 rows, so that the mean line tells the padding of full rows up to which lines were drawn.
    assert contenders[PADDED]["padding"] == pytest.approx(1 - result["mean_line_tokens"] / 23, abs=0.2)
    assert contenders[LONGEST]["padding"] < contenders[PADDED]["padding"]
    assert result["lines"] == 120
    table = format_text(result)
    assert "target on a CPU: 2.0 x stock, padded to the longest: m" in table
    assert all(f"{name} ({result['attention'][name]})" in table for name in (LONGEST, PADDED, TOGETHER))


def hand_result(device: str, ratio: float) -> dict[str, Any]:
    values = {"median": ratio, "lowest": ratio, "highest": ratio}
    record = {"tokens_per_second": values, "seconds_a_step": values, "padding": 0.25, "ratio": values}
    sizes = {"preset": "small", "precision": "bf16", "rows": 3, "max_seq_length": L, "vocab_size": V, "repeats": 1}
    contenders = {OURS: record, LONGEST: record}
    told = {"lines": 9, "mean_line_tokens": 5.0, "attention": {LONGEST: "sdpa"}, "contenders": contenders}
    return {**sizes, **told, "device": device, "target": 2.0}


@pytest.mark.parametrize(("device", "ratio", "end"), [("cpu", 2.5, ": met, 2.50"), ("cpu", 1.9, ": missed, 1.90")])
def test_table_says_whether_the_target_is_met(device: str, ratio: float, end: str) -> None:
    table = format_text(hand_result(device, ratio))
    assert table.endswith(f"padded to the longest{end}")
    assert "25.0%" in table


def test_target_of_the_cpu_is_not_held_against_a_gpu() -> None:
    assert format_text(hand_result("cuda", 1.0)).endswith("padded to the longest")


def test_corpus_with_fewer_lines_than_a_batch_is_refused(corpus: Path) -> None:
    corpus.write_text("\n\n".join(" ".join(WORDS * 60) + f" {number}." for number in range(4)), encoding="utf-8")
    with pytest.raises(DataError, match="4 lines, a step takes 5"):
        measure_text(bench_config(corpus, per_device_train_batch_size=5), settings(corpus, length=23))
