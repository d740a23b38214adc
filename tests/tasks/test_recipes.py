"""Recipes are complete and valid, and on the full data they equal the published settings."""

from dataclasses import fields, replace
from itertools import product
from typing import Any, get_args

import pytest

from electra_albert.config.finetuning import TuningConfig
from electra_albert.config.presets import PRESETS
from electra_albert.config.training import TrainingConfig
from electra_albert.tasks.recipes import ALBERT_ROWS, Family, recipe
from electra_albert.tasks.registry import TASKS as REGISTERED

TASKS = (*REGISTERED, "topics")
FAMILIES: tuple[Family, ...] = get_args(Family)
BASE = PRESETS["base"].model

# Task, warmup, learning rate, steps, batch size, encoder dropout, sequence length, epochs. Paper:
# ALBERT
# appendix A.4, table 14; the first eight as in run_glue.sh, RACE's by the code's README.
ALBERT = """
sst2 1256 1e-5 20935 32 0 512 10
mnli 1000 3e-5 10000 128 0 512 3.3
cola 320 1e-5 5336 16 0 512 10
qnli 1986 1e-5 33112 32 0 512 10
qqp 1000 5e-5 14000 128 .1 512 5
rte 200 3e-5 800 32 .1 512 10
stsb 214 2e-5 3598 16 0 512 10
mrpc 200 2e-5 800 32 0 512 7
wnli 250 2e-5 2000 16 .1 512 50
squad 365 5e-5 3649 48 0 384 2
squad_v2 814 3e-5 8144 48 0 512 3
race 1000 1e-5 12000 32 0 512 4.4
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recipe_is_valid_and_sets_the_same_options_except_for_windows(family: Family) -> None:
    usual = recipe(family, "cola", BASE).keys()
    for task in TASKS:
        options = recipe(family, task, PRESETS["tiny"].model)
        windows = {"doc_stride", "max_answer_length"} if task.startswith("squad") else set()
        assert options.keys() == usual | windows, task
        for config in (TuningConfig, TrainingConfig):
            for name in options.keys() & {field.name for field in fields(config)}:
                replace(config(), **{name: options.pop(name)})
        assert not options, task


SHARED = "lr_scheduler_type weight_decay layer_decay adam_epsilon"
OTHERS = {
    "learning_rate": 3e-5,
    "per_device_train_batch_size": 32,
    "num_train_epochs": 3,
    "warmup_ratio": 0.1,
    "max_seq_length": 128,
    "hidden_dropout_prob": 0,
}


def of(options: dict[str, Any], names: str) -> list[Any]:
    return [options[name] for name in names.split()]


def test_albert_on_the_full_data_uses_the_published_settings() -> None:
    lines = [line.split() for line in ALBERT.strip().splitlines()]
    assert {line[0] for line in lines} == ALBERT_ROWS.keys()
    for task, *numbers in lines:
        warmup, rate, steps, batch, dropout, length, epochs = map(float, numbers)
        options = recipe("albert", task, BASE)
        taken = options["num_train_epochs"] * ALBERT_ROWS[task].train_examples / batch
        assert taken == pytest.approx(steps, rel=1e-12), task
        assert options["warmup_ratio"] * taken == pytest.approx(warmup, rel=1e-12), task
        assert options["num_train_epochs"] == pytest.approx(epochs, rel=0.03), task
        names = "learning_rate per_device_train_batch_size max_seq_length hidden_dropout_prob"
        actual = of(options, f"{names} attention_probs_dropout_prob")
        assert actual == [rate, batch, length, dropout, dropout], task
    for task in TASKS:
        options = recipe("albert", task, BASE)
        assert of(options, SHARED) == ["bert", 0.01, 1.0, 1e-6], task
        assert options["classifier_dropout_prob"] == (0.0 if "squad" in task else 0.1), task
        if task not in (*ALBERT_ROWS, "ax"):  # the middle of what BERT's authors recommend
            assert OTHERS.items() <= options.items(), task


@pytest.mark.parametrize(
    ("preset", "rate", "decay"), [("small", 3e-4, 0.8), ("base", 1e-4, 0.8), ("large", 5e-5, 0.9)]
)
def test_electras_settings_depend_on_size_and_task(preset: str, rate: float, decay: float) -> None:
    dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.05}
    model = replace(PRESETS[preset].model, **dropout, max_position_embeddings=512)
    epochs = {"rte": 10, "stsb": 10, "squad": 2, "squad_v2": 2}
    lengths = {"squad": 512, "squad_v2": 512, "race": 512, "chunking": 256}
    for task in TASKS:
        options = recipe("electra", task, model)
        names = f"{SHARED} warmup_ratio per_device_train_batch_size"
        assert of(options, names) == ["electra", 0.0, decay, 1e-6, 0.1, 32], task
        # Its 122 updates are too few for the published learning rate.
        is_short = task == "topics" and preset == "small"
        assert options["learning_rate"] == rate * (2 if is_short else 1), task
        assert options["num_train_epochs"] == epochs.get(task, 3), task
        assert options["max_seq_length"] == lengths.get(task, 128), task
        assert dropout.items() <= options.items(), task  # from its own config
        assert options["classifier_dropout_prob"] == (0.0 if "squad" in task else 0.1), task


def test_only_electra_doubles_only_symmetric_pairs() -> None:
    doubled = [pair for pair in product(FAMILIES, TASKS) if recipe(*pair, BASE)["double_unordered"]]
    assert doubled == [("electra", "mrpc"), ("electra", "stsb")]


@pytest.mark.parametrize("positions", [8, 100, 512])
def test_sequences_fit_the_positions_and_windows_overlap(positions: int) -> None:
    for family, task in product(FAMILIES, TASKS):
        options = recipe(family, task, replace(BASE, max_position_embeddings=positions))
        whole = recipe(family, task, BASE)["max_seq_length"]
        assert options["max_seq_length"] == min(whole, positions)
        assert 1 <= options.get("doc_stride", 1) <= max(1, options["max_seq_length"] // 3)
        if positions == 512 and "doc_stride" in options:
            assert options["doc_stride"] == 128  # the published one
