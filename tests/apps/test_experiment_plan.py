"""A plan says what it means: what it takes from the file, and what it refuses, in one line, before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from electra_albert.apps.pretrain.estimate import step_flops

from electra_albert.apps.experiment.checks import check_experiment
from electra_albert.apps.experiment.plan import read_plan
from electra_albert.apps.experiment.stages import Site, all_stages, pretraining_stages, steps_for
from electra_albert.apps.finetune.options import parse_finetuning
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.contracts import UsageError
from electra_albert.presets import PRESETS

PLAN = """
title: Two rates
pretraining: {preset: tiny, learning_rate: 1.0e-3}
flops: 2.0e+12
warmup_share: 0.25
seeds: [7]
arms:
  as it comes: {}
  faster: {learning_rate: 2.0e-3, seeds: [1, 2]}
  untrained: {like: as it comes, weights: random}
  from stock: {like: as it comes, weights: stock}
finetuning: {seeds: 3, options: {num_train_epochs: 2}, tasks: {cola: , rte: {num_train_epochs: 5}}}
"""
PLANS = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))


def write(folder: Path, text: str) -> Path:
    file = folder / "plan.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def value_of(command: list[str], name: str) -> str:
    return command[command.index(f"--{name}") + 1]


def test_an_arm_differs_from_the_others_in_its_own_options_only(tmp_path: Path) -> None:
    plan, site = read_plan(write(tmp_path, PLAN)), Site(tmp_path, "corpus.txt")
    stages = pretraining_stages(plan, site)
    assert [(stage.arm, stage.name) for stage in stages] == [
        ("as it comes", "pretraining-7"),
        ("faster", "pretraining-1"),
        ("faster", "pretraining-2"),
    ]
    told = [dict(zip(stage.command[1::2], stage.command[2::2], strict=True)) for stage in stages]
    assert [each["--learning_rate"] for each in told] == ["0.001", "0.002", "0.002"]
    apart = ("--learning_rate", "--seed", "--output_dir")
    rest = [{name: value for name, value in each.items() if name not in apart} for each in told]
    assert rest[0] == rest[1] == rest[2]


def test_every_arm_may_spend_the_same_operations(tmp_path: Path) -> None:
    budget = 2.0e12
    for more in ({}, {"objective": "mlm_sop"}, {"model.num_hidden_layers": 6}, {"per_device_train_batch_size": 8}):
        options = {"corpus": "corpus.txt", "output_dir": "out", "preset": "tiny", **more}
        steps = steps_for(budget, options)
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        _, config = parse_pretraining(words, "Pretraining.py")
        vocab_size = config.corpus.vocab_size
        object.__setattr__(config.model, "vocab_size", vocab_size)
        update = step_flops(config, config.training.per_device_train_batch_size)
        assert abs(steps * update - budget) <= update / 2


def test_the_warm_up_is_a_share_of_the_updates(tmp_path: Path) -> None:
    plan, site = read_plan(write(tmp_path, PLAN)), Site(tmp_path, "corpus.txt")
    for stage in pretraining_stages(plan, site):
        steps, warmup = (int(value_of(stage.command, name)) for name in ("max_steps", "warmup_steps"))
        assert warmup == round(0.25 * steps)


def test_without_a_number_of_updates_the_warm_up_is_a_share_of_the_presets(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, "warmup_share: 0.5\narms: {a: {preset: tiny}}"))
    (stage,) = pretraining_stages(plan, Site(tmp_path, "corpus.txt"))
    _, config = parse_pretraining(stage.command[1:], "Pretraining.py")
    assert config.training.warmup_steps == config.training.max_steps / 2 > 0


def test_stock_has_the_seeds_and_options_of_the_arm_it_is_like_and_random_weights_the_first_seed(
    tmp_path: Path,
) -> None:
    arms = "arms: {s: {like: a, weights: stock}, r: {like: a, weights: random}, a: {seeds: [4, 5], preset: tiny}}"
    plan = read_plan(write(tmp_path, f"seeds: [9]\n{arms}"))
    _, stages, _ = all_stages(plan, Site(tmp_path, "corpus.txt"))
    assert [stage.name for stage in stages] == ["pretraining-4", "pretraining-5"]
    assert [value_of(stage.command, "like") for stage in stages] == [str(tmp_path / f"a/seed-{n}") for n in (4, 5)]
    assert [value_of(stage.command, "output_dir") for stage in stages] == [
        str(tmp_path / f"s/seed-{n}") for n in (4, 5)
    ]
    assert plan.arm("r").seeds == (4,)
    assert plan.arm("s").options == plan.arm("r").options == {"preset": "tiny"}


def test_random_weights_take_the_shape_and_stock_the_rows_of_the_arm_they_are_like(tmp_path: Path) -> None:
    plan, site = read_plan(write(tmp_path, PLAN)), Site(tmp_path, "corpus.txt", data_dir="GLUE", texts=("held.txt",))
    run = tmp_path / "as-it-comes" / "seed-7"
    _, (stock,), judging = all_stages(plan, site)
    assert value_of(stock.command, "like") == str(run)
    judged = {(stage.arm, stage.name): stage.command for stage in judging}
    assert value_of(judged["untrained", "cola"], "model") == str(run)
    assert value_of(judged["untrained", "cola"], "from_scratch") == "true"
    assert "--from_scratch" not in judged["from stock", "cola"]
    assert ("untrained", "scores") not in judged
    assert value_of(judged["from stock", "scores"], "model") == value_of(stock.command, "output_dir")


def test_a_task_may_have_options_of_its_own(tmp_path: Path) -> None:
    plan, site = read_plan(write(tmp_path, PLAN)), Site(tmp_path, "corpus.txt", data_dir="GLUE")
    judged = {(stage.arm, stage.name): stage.command for stage in all_stages(plan, site)[2]}
    epochs = [value_of(judged["faster", task], "num_train_epochs") for task in ("cola", "rte")]
    assert epochs == ["2", "5"]
    assert value_of(judged["faster", "rte"], "seeds") == "3"


def test_null_is_typed_and_not_left_out(tmp_path: Path) -> None:
    options = "{preset: tiny, rtd.generator_layers: null}"
    tasks = "{options: {early_stopping_patience: null}, tasks: {cola: {max_steps: null, double_unordered: true}}}"
    plan = read_plan(write(tmp_path, f"arms: {{a: {options}}}\nfinetuning: {tasks}"))
    (made,), _, (task,) = all_stages(plan, Site(tmp_path, "corpus.txt", data_dir="GLUE"))
    assert value_of(made.command, "rtd.generator_layers") == "null"
    assert parse_pretraining(made.command[1:], "Pretraining.py")[1].rtd.generator_layers is None
    assert PRESETS["tiny"].rtd.generator_layers is not None
    assert "--tokenizer" not in made.command
    assert value_of(task.command, "early_stopping_patience") == value_of(task.command, "max_steps") == "null"
    tuning = parse_finetuning(task.command[1:]).tuning
    assert (tuning.early_stopping_patience, tuning.max_steps, tuning.double_unordered) == (None, None, True)


REFUSED = {
    "no arms": ("title: x", "has no arms"),
    "an unknown name": ("arm: {a: {}}", "'arm' is none of"),
    "two arms in one folder": ("arms: {a b: {}, a/b: {}}", "would be kept as a-b"),
    "the same seed twice": ("arms: {a: {seeds: [1, 1]}}", "no list of different whole numbers"),
    "seeds that are no list": ("seeds: 3\narms: {a: {}}", "no list of different whole numbers"),
    "what the runner says": ("arms: {a: {output_dir: x}}", "output_dir is given on the command line"),
    "steps and operations": ("flops: 1.0e+12\narms: {a: {max_steps: 3}}", "flops gives max_steps"),
    "warm-up twice": ("warmup_share: .1\narms: {a: {warmup_steps: 3}}", "warmup_share gives warmup_steps"),
    "a warm-up without an end": ("warmup_share: 1.5\narms: {a: {}}", "must lie in [0, 1)"),
    "operations as text": ("flops: 1e12\narms: {a: {}}", "is no number; YAML wants 1.0e+15"),
    "no operations": ("flops: 0\narms: {a: {}}", "must be above 0"),
    "unknown weights": ("arms: {a: {weights: old}}", "is none of pretrained, random, stock"),
    "random like nothing": ("arms: {a: {weights: random}}", "takes `like: ARM`"),
    "random with options": ("arms: {a: {}, b: {weights: random, like: a, seed: 3}}", "no options of its own"),
    "like an arm that is not there": ("arms: {a: {weights: random, like: b}}", "has no arm 'b'"),
    "like one that is not pretrained": (
        "arms: {a: {}, b: {weights: random, like: a}, c: {weights: stock, like: b}}",
        "which is not pretrained itself",
    ),
    "pretrained like another": ("arms: {a: {}, b: {like: a}}", "like goes with weights"),
    "arms that are no mapping": ("arms: [a, b]", "is no mapping"),
    "an arm twice": ("arms: {a: {learning_rate: .1}, a: {learning_rate: .2}}", "the key 'a' stands twice"),
    "seeds of stock": ("arms: {a: {}, s: {like: a, weights: stock, seeds: [3]}}", "takes the seeds of the arm"),
    "seeds of random weights": (
        "arms: {a: {}, r: {like: a, weights: random, seeds: [3]}}",
        "takes the seeds of the arm",
    ),
    "the folder above": ("arms: {'..': {}}", "an arm cannot be called '..'"),
    "no name": ("arms: {'': {}}", "an arm cannot be called ''"),
    "a name that no folder can have": (f"arms: {{{'x' * 101}: {{}}}}", "an arm cannot be called 'xxx"),
    "the name of a result": ("arms: {results.md: {}}", "an arm cannot be called 'results.md'"),
    "the name of the lock": ("arms: {run.lock: {}}", "an arm cannot be called 'run.lock'"),
    "a folder of all tasks": (
        "arms: {a: {}}\nfinetuning: {options: {output_dir: x}}",
        "output_dir is said by the runner",
    ),
    "a model of one task": (
        "arms: {a: {}}\nfinetuning: {tasks: {cola: {model: x}}}",
        "cola: model is said by the runner",
    ),
    "no seeds to fine-tune with": ("arms: {a: {}}\nfinetuning: {seeds: 0}", "no number of seeds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_that_cannot_be_meant_is_refused(case: str, tmp_path: Path) -> None:
    text, complaint = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        read_plan(write(tmp_path, text))
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_every_plan_that_comes_with_the_checkout_can_be_run(file: Path, tmp_path: Path) -> None:
    plan, site = read_plan(file), Site(tmp_path, "docs", data_dir="owner/glue")
    stages = [stage for phase in all_stages(plan, site) for stage in phase]
    check_experiment(plan, site, stages)
    assert {stage.arm for stage in stages} == {arm.name for arm in plan.arms}
