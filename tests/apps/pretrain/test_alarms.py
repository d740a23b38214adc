"""Each kind of trouble in the metrics gives one warning with a cure, a healthy run none."""

import math
import random
from dataclasses import replace

from electra_albert.apps.pretrain.alarms import Alarms
from electra_albert.config.pretraining import PretrainConfig, RunConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Metrics
from tests.refusals import rows as table

STEPS = 10_000
CONFIG = PretrainConfig(training=TrainingConfig(STEPS, warmup_steps=800))


def row(step: int, draw: random.Random) -> Metrics:
    """A training row of a healthy run, with noise: the loss falls from 40 to 20."""
    speed = 9000 * draw.uniform(0.85, 1.15)
    loss = (20 + 20 * math.exp(-step / 500)) * draw.uniform(0.85, 1.15)
    rest = {"tokens_per_second": speed, "data_wait": draw.uniform(0, 0.05)}
    return {"step": step, "loss": loss, "grad_norm": 8.0, **rest}


def evaluation(step: int) -> Metrics:
    """The evaluation of a healthy run."""
    nats = 4.1 + 2.4 * math.exp(-step / 500)
    losses = {"loss": 20.0, "generator_loss": nats, "unigram_loss": 6.5}
    rest = {"discriminator_auc": 0.75, "generator_accuracy": 0.25, "most_frequent_accuracy": 0.055}
    return {"step": step, **{f"eval_{name}": value for name, value in (losses | rest).items()}}


def test_a_healthy_run_gives_no_warning() -> None:
    alarms, draw = Alarms(CONFIG), random.Random(0)
    for step in range(1, STEPS, 50):
        assert alarms(row(step, draw)) == []
        assert alarms(evaluation(step)) == []


TRAINING = table("""
loss | 60 | rose from | --learning_rate
grad_norm | 0 | gradient norm is 0 | --precision
tokens_per_second | 3000 | speed fell from | other programs
data_wait | 0.5 | waits for data 50% | --prepared_dir
""")
EVALUATIONS = table("""
eval_generator_loss | 6.45 | by their frequencies alone | --learning_rate 0.000125
eval_most_frequent_accuracy | 0.25 | by their frequencies alone | --learning_rate 0.000125
eval_discriminator_auc | 0.5 | at chance level | --rtd.discriminator_rate 0.25
eval_generator_accuracy | 0.8 | predicts 80% | --rtd.generator_size 0.125
""")


def test_trouble_in_training_rows_is_reported_when_it_begins() -> None:
    for name, value, problem, cure in TRAINING:
        alarms, draw, changed = Alarms(CONFIG), random.Random(1), {name: float(value)}
        # The first row has nothing to be compared with.
        assert alarms({**row(1, draw), **changed}) == []
        for begin in (1000, 2000):
            for step in range(begin, begin + 900, 50):
                assert alarms(row(step, draw)) == []
            (message,) = alarms({**row(begin + 901, draw), **changed})
            assert problem in message
            assert cure in message
            assert alarms({**row(begin + 902, draw), **changed}) == []


def test_trouble_in_evaluations_is_reported_every_time() -> None:
    for name, value, problem, cure in EVALUATIONS:
        alarms, changed = Alarms(CONFIG), {name: float(value)}
        for step in (3000, 4000):
            (message,) = alarms({**evaluation(step), **changed})
            assert problem in message
            assert cure in message
        # Normal at the beginning.
        assert len(alarms({**evaluation(900), **changed})) == ("frequencies" not in problem)
    electric = replace(CONFIG, run=RunConfig(objective="electric"))  # where every sample is noise
    assert Alarms(electric)({**evaluation(3000), "eval_generator_accuracy": 0.8}) == []
