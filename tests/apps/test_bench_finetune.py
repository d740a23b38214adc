"""The fine-tuning contest: both sides get the same rows, weights and updates; what cannot be compared is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from electra_albert.apps.bench import finetune
from electra_albert.apps.bench.__main__ import main
from electra_albert.apps.bench.config import BenchConfig
from electra_albert.apps.bench.contest import Contest, Predict, make_contest, padding_of
from electra_albert.apps.bench.finetune import accuracy_of, format_finetune, measure_finetune, train_ours
from electra_albert.apps.bench.trainer import plain_rows, stock_contenders
from electra_albert.contracts import Batch, DataError, DivergedError, UsageError
from electra_albert.model.task_model import TaskHead
from tests.apps import tiny_bench

SHAPE = replace(tiny_bench.SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
HEAVY = ("numpy", "torch", "transformers", "tokenizers", "accelerate")
CPU = torch.device("cpu")
NOUNS = ("river", "bridge", "house", "night", "road", "hill", "moon")


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """Texts of three to nine words on rivers and hills; label 1 where the first is a river."""
    texts = [" ".join(NOUNS[(n * 5 + place * (n % 4 + 1)) % 7] for place in range(3 + n % 7)) for n in range(31)]
    lines = ["sentence\tlabel", *(f"{text} .\t{int(text.startswith('river'))}" for text in texts)]
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    (folder / "dev.tsv").write_text("\n".join(lines[:12]) + "\n")
    return tmp_path / "glue"


def bench_config(glue: Path, **changes: object) -> BenchConfig:
    options: dict[str, object] = {"task": "sst2", "data_dir": str(glue), "device": "cpu", "vocab_size": 60}
    options |= {"per_device_train_batch_size": 8, "repeats": 2, "max_seq_length": 16, "attention": "eager"}
    return BenchConfig(**{**options, **changes})  # type: ignore[arg-type]


def undropped(contest: Contest) -> Contest:
    """One update on all rows at once, without dropout: then only rounding tells two sides apart."""
    contest.model.head = TaskHead("sequence", 2, dropout=0.0)
    contest.model.dropout.p = 0.0
    count = contest.train.unit_count
    training = replace(contest.training, max_steps=1, warmup_steps=0, per_device_train_batch_size=count)
    return replace(contest, training=replace(training, learning_rate=0.01))


def dev_batch(contest: Contest) -> Batch:
    return contest.dev.collate(range(contest.dev.unit_count))


def test_rows_fill_whole_batches_and_hold_what_the_stock_tokenizer_gives(glue: Path) -> None:
    contest = make_contest(bench_config(glue), SHAPE)
    assert contest.train.unit_count == 24  # of 31
    assert contest.training.max_steps == 3
    lines = (glue / "SST-2" / "dev.tsv").read_text().splitlines()[1:]
    for row, line in zip(plain_rows(contest.dev), lines, strict=True):
        text, label = line.split("\t")
        assert {**contest.tokenizer(text), "labels": int(label)} == row


def test_pass_of_ours_changes_the_weights_it_is_given_a_copy_of(glue: Path) -> None:
    contest = make_contest(bench_config(glue), SHAPE)
    before = {name: tensor.clone() for name, tensor in contest.model.state_dict().items()}
    trained = train_ours(contest, 1)
    assert trained.seconds > 0
    assert trained.other_seconds > 0
    predict = trained.predict
    assert all(torch.equal(before[name], tensor) for name, tensor in contest.model.state_dict().items())
    batch = dev_batch(contest)
    untrained = contest.model.eval()(batch.input_ids, batch.attention_mask, batch.token_type_ids)[0]
    assert not torch.allclose(predict(batch), untrained)
    assert torch.equal(train_ours(contest, 1).predict(batch), predict(batch))
    assert not torch.equal(train_ours(contest, 2).predict(batch), predict(batch))


def test_pass_that_diverges_is_refused_as_a_run_is(glue: Path) -> None:
    contest = make_contest(bench_config(glue, per_device_train_batch_size=4), SHAPE)
    with torch.no_grad():
        next(contest.model.parameters()).fill_(math.nan)
    with pytest.raises(DivergedError, match="7 updates in a row"):
        train_ours(contest, 1)


class Masked(torch.nn.Module):
    """A model that does nothing with what it is called with."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return input_ids


def test_padding_is_the_share_of_the_masks_that_is_not_set() -> None:
    masks = [torch.arange(width) < torch.tensor([[width], [2]]) for width in (3, 5)]  # 5 of 6 places, 7 of 10
    model = Masked()
    with padding_of(model) as padding:
        model(masks[0], masks[0])
        model(input_ids=masks[1], attention_mask=masks[1])
    model(masks[1], masks[1])  # no longer watched
    assert padding() == pytest.approx(4 / 16)


def always(label: int) -> Predict:
    """One answer to everything."""
    return lambda batch: torch.eye(2)[label].expand(len(batch.input_ids), 2)


def test_accuracy_is_the_share_of_rows_guessed_right(glue: Path) -> None:
    rows = make_contest(bench_config(glue), SHAPE).dev
    share = sum(row["labels"] for row in plain_rows(rows)) / rows.unit_count
    assert 0 < share < 1
    for label, wanted in ((1, share), (0, 1 - share)):
        assert accuracy_of(always(label), rows, CPU) == pytest.approx(wanted)


@pytest.mark.slow
def test_stock_makes_the_same_update_as_ours_on_the_same_rows(glue: Path) -> None:
    pytest.importorskip("accelerate")
    contest = undropped(make_contest(bench_config(glue), SHAPE))
    batch = dev_batch(contest)
    untrained = contest.model.eval()(batch.input_ids, batch.attention_mask, batch.token_type_ids)[0].detach()
    ours = train_ours(contest, 1).predict(batch)
    with stock_contenders(contest, "eager") as stock:
        theirs = {name: train(1).predict(batch) for name, train in stock.passes.items()}
    moved = (ours - untrained).abs().max()
    assert moved > 0.1
    assert len(theirs) == 3
    # Adam divides by a gradient's own size, so that the smallest ones turn rounding into a step of some per cent.
    for name, logits in theirs.items():
        assert (logits - ours).abs().max() < 0.02 * moved, name


@pytest.mark.slow
def test_contest_is_measured_and_shown(glue: Path) -> None:
    pytest.importorskip("accelerate")
    result = measure_finetune(bench_config(glue), SHAPE)
    names = ["ours", "stock", "stock, grouped", "stock, padded"]
    assert list(result["contenders"]) == names
    for record in result["contenders"].values():
        rate = record["examples_per_second"]
        assert 0 < rate["lowest"] <= rate["median"] <= rate["highest"]
        assert len(record["accuracy"]["values"]) == 2
    assert result["contenders"]["stock"]["ratio_to_stock"]["values"] == [1, 1]
    assert result["examples"] == 24
    padding = {name: record["padding"]["mean"] for name, record in result["contenders"].items()}
    assert padding["stock, padded"] == pytest.approx(1 - result["mean_length"] / 16)
    assert padding["ours"] < padding["stock"] < padding["stock, padded"]
    table = format_finetune(result)
    assert all(name in table for name in names)


def test_missing_trainer_is_told_in_one_line(glue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetune, "has_trainer", lambda: False)
    with pytest.raises(UsageError, match="needs accelerate") as refused:
        measure_finetune(bench_config(glue), SHAPE)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"task": "stsb"}, UsageError, "has no classes"),
        ({"task": "squad"}, UsageError, "has no classes"),
        ({"data_dir": None}, UsageError, "needs --data_dir"),
        ({"per_device_train_batch_size": 32}, DataError, "lower the batch size"),
        ({"per_device_train_batch_size": "auto"}, DataError, "a step takes 32"),
        ({"max_seq_length": 64}, UsageError, "exceeds 37 positions"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    glue: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_contest(bench_config(glue, **changes), SHAPE)


def test_number_of_examples_must_be_one_at_least() -> None:
    with pytest.raises(UsageError, match="--examples 0 must be at least 1"):
        main(["finetune", "--examples", "0"])


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from electra_albert.apps.bench.__main__ import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        f"    print('loaded', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--max_seq_length" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "loaded []"
