"""The benchmark: what is compared computes the same function, and it refuses to compare what does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from electra_albert.apps.bench import main
from electra_albert.apps.bench_config import BenchConfig, environment
from electra_albert.apps.bench_step import format_step, measure_step
from electra_albert.apps.bench_stock import StockPair, check_same_function, draw
from electra_albert.apps.bench_store import format_store, measure_store
from electra_albert.config import CorpusConfig, ModelConfig, PretrainConfig, RtdConfig
from electra_albert.contracts import Batch, DataError, UsageError, UserError
from electra_albert.objectives.masking import SpecialIds
from electra_albert.objectives.rtd import ReplacedTokenDetection

B, L, V = 3, 23, 61
SEED = 5
SHAPE = ModelConfig(
    vocab_size=V,
    embedding_size=13,
    hidden_size=28,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=34,
    max_position_embeddings=37,
    initializer_range=0.2,  # far from where every loss is that of guessing, so that weights show in it
)
WORDS = ("river", "bridge", "house", "people", "night", "water", "road", "hill", "moon", "dog", "stone", "wind", "old")


@pytest.fixture
def ours() -> ReplacedTokenDetection:
    torch.manual_seed(SEED)
    return ReplacedTokenDetection(SHAPE, RtdConfig(mask_rate=0.3), SpecialIds(4, (0, 1, 2, 3, 4)), SEED)


@pytest.fixture
def batch() -> Batch:
    ids = torch.randint(5, V, (B, L), generator=torch.Generator().manual_seed(SEED))
    mask = torch.arange(L) < torch.tensor([[L], [17], [11]])
    segments = ((torch.arange(L) > 7) & mask).long()
    return Batch(ids * mask, mask, segments, torch.full((B,), -100), torch.arange(B))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    drawn = np.random.default_rng(1).integers(len(WORDS), size=(40, 3, 9))
    documents = ["\n".join(" ".join(WORDS[w] for w in sentence) + "." for sentence in document) for document in drawn]
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return file


def bench_config(corpus: Path, **changes: object) -> BenchConfig:
    options = {"repeats": 2, "per_device_train_batch_size": 3, "vocab_size": V, "max_seq_length": L, "seed": SEED}
    paths = {"corpus": str(corpus), "prepared_dir": str(corpus.parent / "prepared")}
    return BenchConfig(**{**options, **paths, "device": "cpu", **changes})  # type: ignore[arg-type]


def settings(config: BenchConfig) -> PretrainConfig:
    corpus = CorpusConfig(
        corpus=config.corpus,
        vocab_size=config.vocab_size,
        max_seq_length=config.max_seq_length,
        prepared_dir=config.prepared_dir,
        preprocessing_num_workers=1,
    )
    return PretrainConfig(corpus=corpus, model=SHAPE)


def silent(message: str) -> None:
    """Say nothing."""


@pytest.mark.parametrize("is_tuned", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_stock_pair_with_our_weights_computes_our_losses_and_gradient(
    ours: ReplacedTokenDetection, batch: Batch, is_tuned: bool, attention: str
) -> None:
    pair = StockPair(ours, is_tuned=is_tuned)
    pair.use_attention(attention)
    check_same_function(ours, pair, batch)


def change_a_weight(pair: StockPair) -> None:
    with torch.no_grad():
        pair.discriminator_predictions.dense.weight[0, 0] += 0.1


def untie_the_decoder(pair: StockPair) -> None:
    decoder = pair.generator.predictions.decoder
    decoder.weight = torch.nn.Parameter(decoder.weight.detach().clone())


def part_the_embeddings(pair: StockPair) -> None:
    pair.discriminator.embeddings = copy.deepcopy(pair.generator.albert.embeddings)


# A weight that differs shows in a loss; a lost tie leaves every loss as it is and shows in the gradient's norm alone,
# an untied decoder in the generator's, parted embeddings where both losses' gradients meet.
FAULTS: dict[str, tuple[Callable[[StockPair], None], str]] = {
    "another weight": (change_a_weight, "discriminator_loss"),
    "untied decoder": (untie_the_decoder, "gradient norm after generator_loss"),
    "embeddings not shared": (part_the_embeddings, "gradient norm after discriminator_loss"),
}


@pytest.mark.parametrize(("plant", "shows_in"), FAULTS.values(), ids=FAULTS.keys())
def test_what_computes_another_function_is_refused(
    ours: ReplacedTokenDetection, batch: Batch, plant: Callable[[StockPair], None], shows_in: str
) -> None:
    pair = StockPair(ours, is_tuned=False)
    plant(pair)
    with pytest.raises(UserError, match=f"do not compute the same: {shows_in}"):
        check_same_function(ours, pair, batch)


def test_stock_shares_what_ours_shares(ours: ReplacedTokenDetection) -> None:
    pair = StockPair(ours, is_tuned=False)
    assert sum(p.numel() for p in pair.parameters()) == sum(p.numel() for p in ours.parameters())


def test_stock_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 0.5])
    torch.manual_seed(SEED)
    drawn = draw(logits.expand(20_000, 4), temperature=2.0).bincount(minlength=4) / 20_000
    # Five standard deviations of the most uncertain share; a temperature left out is off by .2.
    assert torch.allclose(drawn, (logits / 2.0).softmax(-1), atol=5 * 0.5 / 20_000**0.5)


def test_step_gives_a_row_for_each_contender_on_the_same_batches(corpus: Path) -> None:
    config = bench_config(corpus)
    result = measure_step(config, settings(config), silent)
    assert list(result["contenders"]) == ["ours", "stock", "stock, tuned"]
    assert result["contenders"]["ours"]["ratio"]["median"] == 1.0
    for record in result["contenders"].values():
        assert 0 < record["tokens_per_second"]["lowest"] <= record["tokens_per_second"]["median"]
    table = format_step(result)
    assert f"stock ({result['attention']['stock']})" in table
    assert "1.3 x stock" in table


def test_step_in_bfloat16_with_the_attention_asked_for(corpus: Path) -> None:
    config = bench_config(corpus, precision="bf16", attention="eager", repeats=1)
    assert set(measure_step(config, settings(config), silent)["attention"].values()) == {"eager"}


def test_step_refuses_a_corpus_smaller_than_a_batch(corpus: Path) -> None:
    config = bench_config(corpus, per_device_train_batch_size=9_999)
    with pytest.raises(DataError, match="a step takes 9999"):
        measure_step(config, settings(config), silent)


@pytest.mark.parametrize(("kind", "between"), [("sentences", "\n"), ("paragraphs", " ")])
def test_store_is_measured_over_all_of_the_text(corpus: Path, kind: str, between: str) -> None:
    documents = corpus.read_text(encoding="utf-8").replace(".\n", ".\r").replace("\r\n", "\n\n").replace("\r", between)
    capitals = ". ".join(sentence.capitalize() for sentence in documents.split(". "))
    corpus.write_text(capitals, encoding="utf-8")
    (record,) = measure_store(bench_config(corpus), silent)
    assert record["kind"] == kind
    assert record["megabytes"] == corpus.stat().st_size / 1e6
    assert 0 < record["megabytes_per_second_and_core"]["lowest"] <= record["megabytes_per_second_and_core"]["highest"]
    assert kind in format_store([record])


def test_command_prints_a_table_and_writes_its_numbers_with_the_environment(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "bench.json"
    options = {"corpus": corpus, "vocab_size": V, "repeats": 1, "prepared_dir": tmp_path / "prepared", "output": output}
    assert main(["store", *(part for name, value in options.items() for part in (f"--{name}", str(value)))]) == 0
    assert "MB/s a core" in capsys.readouterr().out
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["environment"] == environment(BenchConfig())
    assert written["store"][0]["kind"] == "sentences"
    assert "step" not in written


BAD_OPTIONS = {
    "no repeats": (["--repeats", "0"], "--repeats 0 must be at least 1"),
    "preset": (["--preset", "smal"], "preset 'smal' does not exist"),
    "attention": (["--attention", "x"], "attention"),
    "mistyped": (["--repeat", "3"], "did you mean --repeats"),
    "rows too long": (["--max_seq_length", "600"], "max_position_embeddings=512"),
    "output in a file": (["--output", f"{__file__}/bench.json"], "is a file"),
}


@pytest.mark.parametrize(("argv", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_wrong_options_are_refused_before_anything_is_measured(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        main(["step", *argv])
