"""Published settings: that they are whole, are accepted, and mean on all of the data what was published."""

from dataclasses import fields, replace
from itertools import product
from typing import get_args

import pytest

from electra_albert.config import ModelConfig, TrainingConfig
from electra_albert.finetuning_config import TuningConfig
from electra_albert.presets import PRESETS
from electra_albert.tasks.recipes import ALBERT_ROWS, Family, recipe

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
TASKS = (*GLUE, "squad", "squad_v2", "race", "ner", "chunking", "custom", "topics")
FAMILIES: tuple[Family, ...] = get_args(Family)
SMALL, BASE, LARGE = (PRESETS[name].model for name in ("small", "base", "large"))

# `run_task TASK WARMUP RATE STEPS SAVE BATCH` as in ALBERT's run_glue.sh, checked apart from the table of the paper.
RUN_GLUE = """
sst2 1256 1e-5 20935 100 32
mnli 1000 3e-5 10000 100 128
cola 320 1e-5 5336 100 16
qnli 1986 1e-5 33112 200 32
qqp 1000 5e-5 14000 100 128
rte 200 3e-5 800 100 32
stsb 214 2e-5 3598 100 16
mrpc 200 2e-5 800 100 32
"""


@pytest.mark.parametrize(("family", "task"), list(product(FAMILIES, TASKS)))
def test_every_recipe_is_accepted_by_the_settings_it_is_meant_for(family: Family, task: str) -> None:
    options = recipe(family, task, PRESETS["tiny"].model)
    tuning = {field.name for field in fields(TuningConfig)}
    training = {field.name for field in fields(TrainingConfig)}
    assert options.keys() <= tuning | training
    assert not options.keys() & tuning & training
    replace(TuningConfig(), **{name: value for name, value in options.items() if name in tuning})
    replace(TrainingConfig(), **{name: value for name, value in options.items() if name in training})


@pytest.mark.parametrize("family", FAMILIES)
def test_recipes_of_a_family_set_the_same_options_but_for_windows(family: Family) -> None:
    names = {task: recipe(family, task, BASE).keys() for task in TASKS}
    assert {task: sorted(found - names["cola"]) for task, found in names.items() if found != names["cola"]} == {
        task: ["doc_stride", "max_answer_length"] for task in ("squad", "squad_v2")
    }


@pytest.mark.parametrize("line", RUN_GLUE.strip().splitlines())
def test_albert_on_all_of_the_data_takes_the_steps_of_run_glue(line: str) -> None:
    task, warmup, rate, steps, _, batch = line.split()
    options = recipe("albert", task, BASE)
    taken = options["num_train_epochs"] * ALBERT_ROWS[task].train_examples / options["per_device_train_batch_size"]
    assert taken == pytest.approx(int(steps), rel=1e-12)
    assert options["warmup_ratio"] * taken == pytest.approx(int(warmup), rel=1e-12)
    assert options["learning_rate"] == float(rate)
    assert options["per_device_train_batch_size"] == int(batch)


# Task, dropout of the encoder and before the head, tokens of a row. Paper: ALBERT appendix A.4, table 14.
ALBERT_SHAPES = """
cola 0 .1 512
stsb 0 .1 512
sst2 0 .1 512
mnli 0 .1 512
qnli 0 .1 512
qqp .1 .1 512
rte .1 .1 512
mrpc 0 .1 512
wnli .1 .1 512
ax 0 .1 512
squad 0 0 384
squad_v2 0 0 512
race 0 .1 512
ner 0 .1 128
chunking 0 .1 128
custom 0 .1 128
docs 0 .1 128
"""


def test_every_line_of_alberts_table_is_the_published_one() -> None:
    assert ALBERT_SHAPES.split()[::4] == sorted(TASKS, key=ALBERT_SHAPES.split()[::4].index)
    for line in ALBERT_SHAPES.strip().splitlines():
        task, dropout, before_head, length = line.split()
        options = recipe("albert", task, BASE)
        assert options["hidden_dropout_prob"] == options["attention_probs_dropout_prob"] == float(dropout), task
        assert options["classifier_dropout_prob"] == float(before_head), task
        assert options["max_seq_length"] == int(length), task
        told = [options[name] for name in ("lr_scheduler_type", "weight_decay", "layer_decay", "adam_epsilon")]
        assert told == ["bert", 0.01, 1.0, 1e-6], task


# Those run_glue.sh lacks: warm-up, rate, steps and batch by the table of the paper; RACE's by the code's README.
@pytest.mark.parametrize(
    ("task", "warmup", "rate", "steps", "batch"),
    [
        ("wnli", 250, 2e-5, 2000, 16),
        ("squad", 365, 5e-5, 3649, 48),
        ("squad_v2", 814, 3e-5, 8144, 48),
        ("race", 1000, 1e-5, 12000, 32),
    ],
)
def test_the_other_rows_of_albert_are_those_published(
    task: str, warmup: int, rate: float, steps: int, batch: int
) -> None:
    row = ALBERT_ROWS[task]
    assert (row.warmup_steps, row.learning_rate, row.steps, row.batch_size) == (warmup, rate, steps, batch)


@pytest.mark.parametrize("task", TASKS)
def test_electras_schedule_is_the_same_for_all_tasks(task: str) -> None:
    options = recipe("electra", task, BASE)
    names = ("lr_scheduler_type", "warmup_ratio", "weight_decay", "per_device_train_batch_size")
    assert [options[name] for name in names] == ["electra", 0.1, 0.0, 32]


@pytest.mark.parametrize("task", TASKS)
def test_electras_classifier_drops_out_but_before_spans(task: str) -> None:
    options = recipe("electra", task, BASE)
    assert options["classifier_dropout_prob"] == (0.0 if task.startswith("squad") else 0.1)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("hidden", "attention"), [(0.0, 0.0), (0.1, 0.1), (0.2, 0.05)])
def test_electras_recipe_keeps_the_dropout_that_the_encoder_was_pretrained_with(
    task: str, hidden: float, attention: float
) -> None:
    options = recipe(
        "electra", task, replace(SMALL, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
    )
    assert (options["hidden_dropout_prob"], options["attention_probs_dropout_prob"]) == (hidden, attention)


@pytest.mark.parametrize(
    ("task", "epochs"),
    [
        *(("cola", 10), ("stsb", 10), ("sst2", 10), ("qnli", 10), ("rte", 10), ("mrpc", 7), ("mnli", 3.3), ("qqp", 5)),
        *(("squad", 2), ("squad_v2", 3), ("race", 4.4), ("wnli", 50)),
    ],
)
def test_sizes_of_the_training_sets_give_the_round_numbers_of_passes_that_were_meant(task: str, epochs: float) -> None:
    assert ALBERT_ROWS[task].epochs == pytest.approx(epochs, rel=0.03)


@pytest.mark.parametrize(("model", "rate", "decay"), [(SMALL, 3e-4, 0.8), (BASE, 1e-4, 0.8), (LARGE, 5e-5, 0.9)])
def test_electra_rates_go_by_size(model: ModelConfig, rate: float, decay: float) -> None:
    options = recipe("electra", "mnli", model)
    assert (options["learning_rate"], options["layer_decay"]) == (rate, decay)


def test_the_task_of_150_updates_alone_has_twice_the_rate_and_for_small_models_alone() -> None:
    rates = {task: [recipe("electra", task, model)["learning_rate"] for model in (SMALL, BASE)] for task in TASKS}
    assert rates.pop("topics") == [6e-4, 1e-4]
    assert all(pair == [3e-4, 1e-4] for pair in rates.values())


def test_electra_takes_ten_passes_on_the_two_smallest_tasks_and_two_on_squad() -> None:
    epochs = {task: recipe("electra", task, BASE)["num_train_epochs"] for task in TASKS}
    assert {task: count for task, count in epochs.items() if count != 3} == {
        "rte": 10,
        "stsb": 10,
        "squad": 2,
        "squad_v2": 2,
    }


def test_only_electra_and_only_pairs_without_order_are_doubled() -> None:
    doubled = [
        (family, task) for family, task in product(FAMILIES, TASKS) if recipe(family, task, BASE)["double_unordered"]
    ]
    assert doubled == [("electra", "mrpc"), ("electra", "stsb")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_diagnostic_set_takes_the_recipe_of_mnli(family: Family) -> None:
    assert recipe(family, "ax", BASE) == recipe(family, "mnli", BASE)


@pytest.mark.parametrize(("family", "task", "positions"), list(product(FAMILIES, TASKS, (8, 32, 100, 384, 512))))
def test_rows_fit_the_positions_and_windows_overlap(family: Family, task: str, positions: int) -> None:
    options = recipe(family, task, replace(BASE, max_position_embeddings=positions))
    length = options["max_seq_length"]
    assert length <= positions
    assert 1 <= options.get("doc_stride", 1) <= max(1, length // 3)


def test_windows_in_rows_of_the_published_lengths_move_on_by_the_published_stride() -> None:
    options = [recipe(family, task, BASE) for family in FAMILIES for task in ("squad", "squad_v2")]
    assert {(option["max_seq_length"], option["doc_stride"]) for option in options} == {(512, 128), (384, 128)}
