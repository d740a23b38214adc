"""The benchmark's command: what it is told, what it refuses, and what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.bench.__main__ import PARTS, main
from electra_albert.apps.bench.config import BenchConfig
from electra_albert.apps.bench.machine import arithmetics_of, environment
from electra_albert.apps.bench.store import format_store, measure_store
from electra_albert.apps.bench.tables import format_step
from electra_albert.contracts import UsageError
from tests.apps.tiny_bench import V, bench_config, write_corpus
from tests.apps.tiny_run import ROOT

CPU = torch.device("cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path)


@pytest.mark.parametrize(("kind", "between"), [("sentences", "\n"), ("paragraphs", " ")])
def test_store_is_measured_over_all_of_the_text(corpus: Path, kind: str, between: str) -> None:
    documents = corpus.read_text(encoding="utf-8").replace(".\n", ".\r").replace("\r\n", "\n\n").replace("\r", between)
    capitals = ". ".join(sentence.capitalize() for sentence in documents.split(". "))
    corpus.write_text(capitals, encoding="utf-8")
    (record,) = measure_store(bench_config(corpus))
    assert record["kind"] == kind
    assert record["megabytes"] == corpus.stat().st_size / 1e6
    assert 0 < record["megabytes_per_second_and_core"]["lowest"] <= record["megabytes_per_second_and_core"]["highest"]
    assert kind in format_store([record])


def test_command_prints_a_table_and_writes_its_numbers_with_the_environment(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "bench.json"
    options = {"corpus": corpus, "vocab_size": V, "repeats": 1, "prepared_dir": tmp_path / "prepared", "output": output}
    options["device"] = "cpu"
    assert main(["store", *(part for name, value in options.items() for part in (f"--{name}", str(value)))]) == 0
    assert "MB/s a core" in capsys.readouterr().out
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["environment"] == environment(BenchConfig(), CPU)
    assert written["store"][0]["kind"] == "sentences"
    assert "step" not in written


BAD_OPTIONS = {
    "no repeats": (["--repeats", "0"], "--repeats 0 must be at least 1"),
    "preset": (["--preset", "smal"], "preset 'smal' does not exist"),
    "one of several presets": (["--preset", "tiny,smal"], "preset 'smal' does not exist; there are tiny, small"),
    "objective": (["--objective", "rtd,sop"], "objective 'sop' does not exist; there are rtd, rtd_sop, mlm, mlm_sop"),
    "precision": (["--precision", "bf16,fp16"], "precision 'fp16' does not exist; there are auto, fp32, bf16"),
    "nothing after a comma": (["--precision", "bf16,"], "precision '' does not exist"),
    "rows": (["--per_device_train_batch_size", "16,many"], "16,many is no whole number, nor several separated by com"),
    "rows in part": (["--per_device_train_batch_size", "16.5"], "16.5 is no whole number"),
    "no rows": (["--per_device_train_batch_size", "16,0"], "--per_device_train_batch_size 0 must be at least 1"),
    "compile": (["--torch_compile", "blocks"], "torch_compile"),
    "attention": (["--attention", "x"], "attention"),
    "mistyped": (["--repeat", "3"], "did you mean --repeats"),
    "rows too long": (["--max_seq_length", "600"], "max_position_embeddings=512"),
    "rows too long for one preset": (["--preset", "small,base", "--max_seq_length", "513"], "max_seq_length=513"),
    "output in a file": (["--output", f"{__file__}/bench.json"], "is a file"),
}


@pytest.mark.parametrize(("argv", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_wrong_options_are_refused_before_anything_is_measured(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        main(["step", *argv])


def test_lists_are_read_in_order_and_once() -> None:
    config = BenchConfig(preset="base, tiny,base", objective="mlm", per_device_train_batch_size="8,4", precision="fp32")
    assert (config.presets, config.objectives, config.rows) == (("base", "tiny"), ("mlm",), (8, 4))


def test_automatic_precision_is_that_of_a_run_and_is_not_measured_twice() -> None:
    (found,) = arithmetics_of(BenchConfig(precision="auto"), CPU)
    assert arithmetics_of(BenchConfig(precision=f"auto,{found}"), CPU) == (found,)


def test_environment_names_the_commit_and_how_memory_is_kept() -> None:
    stamp = environment(BenchConfig(), CPU)
    assert {"commit", "torch", "cpu", "cores", "threads", "libc", "auto_precision", "keeps_freed_memory"} <= set(stamp)
    assert bool(stamp["commit"]) == (ROOT / ".git").exists()


def test_everything_that_can_be_measured_has_a_name() -> None:
    assert list(PARTS) == ["step", "encoder", "batches", "fill_mask", "text", "store", "finetune"]


def contender(
    seconds: list[float], memory: float | None = 1e9, traffic: float | None = 4e9, *, is_compiled: bool = False
) -> dict[str, Any]:
    middle = seconds[0]
    return {
        "tokens_per_second": dict.fromkeys(("median", "lowest", "highest"), 4000 / middle),
        "seconds_a_step": {"median": middle, "values": seconds},
        "ratio": {"median": middle / 2.0},
        "peak_memory_bytes": memory,
        "memory_of_stock": memory and memory / 2e9,
        "flops_per_second": 8e11 / middle,
        "share_of_matrix_rate": 0.9 / middle,
        "bytes_per_second": traffic and traffic / middle,
        "share_of_bandwidth": traffic and 0.25 / middle,
        "is_traffic_at_most": is_compiled,
        "binds": traffic and "matrix products",
    }


def record(**changes: object) -> dict[str, Any]:
    case = {"objective": "rtd", "preset": "small", "precision": "bf16", "rows": 32, "max_seq_length": 128}
    case |= {"vocab_size": 30_000, "device": "cpu", "repeats": 2, "updates_a_timing": 1, "padding": 0.025}
    machine = {"matrix_flops_per_second": 5e11, "copy_bytes_per_second": 2e10}
    contenders = {
        "ours": contender([2.0, 2.0]),
        "ours, blocks compiled": contender([1.5, 1.5], memory=0.8e9, traffic=3e9, is_compiled=True),
        "stock": contender([3.0, 3.0], memory=2e9),
    }
    told = {"attention": {"stock": "sdpa"}, "left_out": {}, "machine": machine, "contenders": contenders}
    return {**case, **told, **changes}


def test_table_shows_speed_memory_and_roofs_of_each_contender() -> None:
    lines = format_step([record()]).splitlines()
    assert max(map(len, lines)) < 120
    compiled = [line.split() for line in lines if line.startswith("ours, blocks compiled")]
    assert compiled[0][3:] == ["2,667", "2,667", "2,667", "1.5000", "0.75x", "0.80", "0.40x"]
    assert compiled[1][3:] == ["0.533", "60.0%", "<2", "<16.7%", "matrix", "products"]
    plain = [line.split() for line in lines if line.startswith("ours  ")]
    assert plain[1][1:] == ["0.4", "45.0%", "2", "12.5%", "matrix", "products"]
    assert any("5 TFLOP/s of matrix products in bf16, 20 GB/s" in line for line in lines)


def test_what_is_not_known_is_a_dash_and_what_has_no_like_is_said() -> None:
    alone = {"ours": contender([2.0, 2.0], memory=None, traffic=None)}
    table = format_step([record(objective="mlm", contenders=alone, attention={})])
    assert "stock has no like of mlm" in table
    speed, reached = (line.split() for line in table.splitlines() if line.startswith("ours  "))
    assert speed[-3:] == ["-", "-", "-"]
    assert reached[-3:] == ["-", "-", "-"]


def test_case_of_which_nothing_was_measured_is_shown_and_meets_no_target() -> None:
    reasons = {"ours": "32 rows do not fit into memory", "stock": "no room"}
    table = format_step([record(contenders={}, attention={}, left_out=reasons)])
    assert "ours is left out: 32 rows do not fit into memory\nstock is left out: no room" in table
    assert "1.6 x stock's tokens/s (small, bf16, 32 rows): not measured" in table


def test_ratios_are_against_the_first_of_ours_that_was_measured() -> None:
    found = record()["contenders"]
    del found["ours"]
    table = format_step([record(contenders=found, left_out={"ours": "no room"})])
    speed = {line[:21].strip(): line.split() for line in reversed(table.splitlines()) if "0.80 " in line}
    assert speed["ours, blocks compiled"][-3:] == ["-", "0.80", "0.40x"]


TARGETS: dict[str, tuple[dict[str, object], list[str]]] = {
    "cpu": (
        {},
        [
            "1.6 x stock's tokens/s (small, bf16, 32 rows): met, 2.00 by ours, blocks compiled",
            "50 % of the matrix rate (small, bf16, 32 rows): met, 0.60",
            "at most 0.5 x stock's memory (small, bf16, 32 rows): met, 0.40",
        ],
    ),
    "cpu in float32": ({"precision": "fp32"}, ["1.6 x stock's", "0.5 x stock's memory"]),
    "gpu": (
        {"device": "NVIDIA H200", "rows": 128},
        [
            "at most 0.5 x stock's memory (small, bf16, 128 rows): met, 0.40",
            "4 x stock's tokens/s (small, bf16, 128 rows): missed, 2.00",
            "1.5 x tokens/s of stock tuned and compiled (small, bf16, 128 rows): not measured",
            "1 million tokens/s at 128 rows (small, bf16, 128 rows): missed, 2,667",
            "2.5 million tokens/s at the best batch: not measured, only 128 rows a step were tried",
        ],
    ),
    "base": (
        {"device": "NVIDIA H200", "preset": "base", "max_seq_length": 512},
        ["45 % of the matrix rate (base, bf16, 32 rows): met, 0.60"],
    ),
    "another length": ({"max_seq_length": 256}, []),
    "another objective": ({"objective": "rtd_sop"}, []),
}


@pytest.mark.parametrize(("changes", "wanted"), TARGETS.values(), ids=TARGETS.keys())
def test_targets_are_held_against_the_cases_that_they_are_stated_for(
    changes: dict[str, object], wanted: list[str]
) -> None:
    lines = [line for line in format_step([record(**changes)]).splitlines() if line.startswith("target")]
    assert len(lines) == len(wanted)
    assert all(text in line for text, line in zip(wanted, lines, strict=True))


def test_best_batch_is_looked_for_among_all_numbers_of_rows() -> None:
    fast = {"ours": contender([0.001, 0.001]), "stock": contender([1.0, 1.0])}
    found = [record(device="NVIDIA H200"), record(device="NVIDIA H200", rows=1024, contenders=fast)]
    best = [line for line in format_step(found).splitlines() if "best batch" in line]
    assert best == [
        "target at least 2.5 million tokens/s at the best batch (small, bf16, 1024 rows): met, 4,000,000 by ours"
    ]
