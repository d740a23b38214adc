"""What is measured on a GPU: compiled code, and networks and batches that lie there. Skipped without one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from electra_albert.apps.bench.config import OURS, STOCK, TUNED, TUNED_COMPILED
from electra_albert.apps.bench.fill_mask import format_fill_mask, measure_fill_mask
from electra_albert.apps.bench.parts import format_encoder, measure_encoder
from electra_albert.apps.bench.step import measure_step
from electra_albert.apps.bench.tables import format_step
from electra_albert.apps.bench.text import LONGEST, PADDED, TOGETHER, format_text, measure_text
from tests.apps.tiny_bench import FRESH_SHAPE, bench_config, settings, write_corpus

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Path]:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.compiler.reset()
    yield write_corpus(tmp_path)
    torch.compiler.reset()


@pytest.mark.timeout(900)  # the step as one graph takes minutes
def test_step_is_measured_compiled_beside_stock_compiled(corpus: Path) -> None:
    config = bench_config(corpus, device=DEVICE, torch_compile=True)
    (record,) = measure_step(config, settings(config))
    ours = [OURS, f"{OURS}, blocks compiled", f"{OURS}, step compiled"]
    assert list(record["contenders"]) == [*ours, STOCK, TUNED, TUNED_COMPILED]
    assert record["left_out"] == {}
    assert set(record["attention"]) == {STOCK, TUNED, TUNED_COMPILED}
    for found in record["contenders"].values():
        assert 0 < found["tokens_per_second"]["lowest"] <= found["tokens_per_second"]["highest"] < math.inf
        assert 0 < found["peak_memory_bytes"] < 1 << 30
        assert found["bytes_a_step"] > 0
        assert 0 < found["busy_share"] <= 1
        assert found["binds"]
    table = format_step([record])
    assert all(name in table for name in record["contenders"])


def test_text_is_measured(corpus: Path) -> None:
    config = bench_config(corpus, device=DEVICE)
    result = measure_text(config, settings(config, FRESH_SHAPE))
    stock = [LONGEST, PADDED, TOGETHER]
    assert list(result["contenders"])[1:] == stock
    assert list(result["attention"]) == stock
    for found in result["contenders"].values():
        assert 0 < found["tokens_per_second"]["lowest"] <= found["tokens_per_second"]["highest"] < math.inf
    assert "real text, end to end" in format_text(result)


def test_encoder_is_measured(corpus: Path) -> None:
    config = bench_config(corpus, device=DEVICE)
    result = measure_encoder(config, settings(config, FRESH_SHAPE))
    assert list(result["contenders"]) == [OURS, STOCK]
    for found in result["contenders"].values():
        assert 0 < found["tokens_per_second"]["lowest"] <= found["tokens_per_second"]["highest"] < math.inf
        assert found["peak_bytes"] > 0
    assert "encoder, forward without gradient" in format_encoder(result)


def test_fill_mask_is_measured(corpus: Path) -> None:
    config = bench_config(corpus, device=DEVICE)
    result = measure_fill_mask(config, settings(config))
    for found in (*result["one"].values(), *result["batch"].values()):
        assert 0 < found["milliseconds"]["lowest"] <= found["milliseconds"]["highest"] < math.inf
    assert "fill-mask" in format_fill_mask(result)
