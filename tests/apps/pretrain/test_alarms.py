"""Each kind of trouble in the metrics gives one warning with a cure, a healthy run none."""

import math
import random
from dataclasses import replace

import pytest

from electra_albert.apps.pretrain.alarms import Alarms
from electra_albert.config.pretraining import PretrainConfig, RunConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Metrics

STEPS = 10_000
CONFIG = PretrainConfig(training=TrainingConfig(STEPS, warmup_steps=800))


def row(step: int, draw: random.Random) -> Metrics:
    """A training row of a healthy run, with noise: the loss falls from 40 to 20."""
    noise = {name: draw.uniform(0.85, 1.15) for name in ("loss", "tokens_per_second")}
    pace = {
        "tokens_per_second": 9000 * noise["tokens_per_second"],
        "data_wait": draw.uniform(0, 0.05),
    }
    return {
        "step": step,
        "loss": (20 + 20 * math.exp(-step / 500)) * noise["loss"],
        "grad_norm": 8.0,
        **pace,
    }


def evaluation(step: int) -> Metrics:
    """The evaluation of a healthy run."""
    nats = 4.1 + 2.4 * math.exp(-step / 500)
    scores = {"generator_loss": nats, "unigram_loss": 6.5, "discriminator_auc": 0.75}
    scores |= {"generator_accuracy": 0.25, "most_frequent_accuracy": 0.055}
    return {
        "step": step,
        **{f"eval_{name}": value for name, value in {"loss": 20.0, **scores}.items()},
    }


def test_a_healthy_run_gives_no_warning() -> None:
    alarms, draw = Alarms(CONFIG), random.Random(0)
    for step in range(1, STEPS, 50):
        assert alarms(row(step, draw)) == []
        assert alarms(evaluation(step)) == []


@pytest.mark.parametrize(
    ("changed", "said", "cure"),
    [
        ({"loss": 60.0}, "rose from", "--learning_rate"),
        ({"grad_norm": 0.0}, "gradient norm is 0", "--precision"),
        ({"tokens_per_second": 3000.0}, "speed fell from", "other programs"),
        ({"data_wait": 0.5}, "waits for data 50%", "--prepared_dir"),
    ],
)
def test_trouble_in_training_rows_is_reported_when_it_begins(
    changed: Metrics, said: str, cure: str
) -> None:
    alarms, draw = Alarms(CONFIG), random.Random(1)
    # The first row has nothing to be compared with.
    assert alarms({**row(1, draw), **changed}) == []
    counts = []
    for begin in (1000, 2000):
        for step in range(begin, begin + 900, 50):
            assert alarms(row(step, draw)) == []
        found = [
            message
            for step in (1, 2)
            for message in alarms({**row(begin + 900 + step, draw), **changed})
        ]
        counts.append(len(found))
        assert said in found[0]
        assert cure in found[0]
    assert counts == [1, 1]


@pytest.mark.parametrize(
    ("changed", "said", "cure"),
    [
        ({"eval_generator_loss": 6.45}, "by their frequencies alone", "--learning_rate 0.000125"),
        (
            {"eval_generator_loss": 5.7, "eval_generator_accuracy": 0.0554},
            "by their frequencies alone",
            "0.000125",
        ),
        ({"eval_discriminator_auc": 0.5}, "at chance level", "--rtd.discriminator_rate 0.25"),
        ({"eval_generator_accuracy": 0.8}, "predicts 80%", "--rtd.generator_size 0.125"),
    ],
)
def test_trouble_in_evaluations_is_reported_every_time(
    changed: Metrics, said: str, cure: str
) -> None:
    alarms = Alarms(CONFIG)
    for step in (3000, 4000):
        (message,) = alarms({**evaluation(step), **changed})
        assert said in message
        assert cure in message
    if "predicts" in said:  # where every sample is noise
        electric = replace(CONFIG, run=RunConfig(objective="electric"))
        assert Alarms(electric)({**evaluation(3000), **changed}) == []
    # Normal at the beginning.
    assert len(alarms({**evaluation(900), **changed})) == ("frequencies" not in said)
