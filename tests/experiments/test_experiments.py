"""Experiments: a plan becomes commands, each command runs once, and the report has all results."""

import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.pretrain.trial import flops_per_step
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.files import write_json
from experiments.__main__ import main
from experiments.plan import Site, Stage, all_stages, read_plan, typed
from experiments.report import find, report
from experiments.running import OTHER_RECIPE, check_recipes, failure, is_done, run_stages
from tests.apps.tiny_run import english, finish, start
from tests.apps.tiny_tasks import cola
from tests.budgets import ROOT

PLAN = """
pretraining: {preset: tiny, objective: rtd, optimizer: adamw, rtd.embedding_sharing: full}
variants: {a: {seeds: [1, 2]}, r: {like: a, weights: random}, s: {like: a, weights: stock}}
finetuning: {tasks: {cola: }}
"""


def stages_of(folder: Path, plan: str = PLAN, **given: Any) -> list[Stage]:
    file = folder / "plan.yaml"
    file.write_text(plan, encoding="utf-8")
    site = Site(**{"output_dir": str(folder / "out"), "corpus": "c.txt", **given})
    return all_stages(read_plan(file), site)


ORDER = (
    "a:pretraining-1 a:pretraining-2 s:pretraining-1 s:pretraining-2 "
    "a:scores a:cola r:cola s:scores s:cola"
)


def test_each_variant_becomes_commands_in_the_order_they_need(tmp_path: Path) -> None:
    stages = stages_of(tmp_path, data_dir="glue", text=["t.txt"])
    assert " ".join(f"{stage.variant}:{stage.name}" for stage in stages) == ORDER
    random = stages[6]
    assert random.module == ["electra_albert", "finetune"]
    assert typed(random.options)[-2:] == ["--from_scratch", "true"]
    needed = [stage.needs.output.name for stage in stages if stage.needs]
    assert needed == ["seed-1", "seed-2", *["seed-1"] * 5]
    assert random.needs == stages[0]


PLANS = sorted(ROOT.glob("experiments/*.yaml"))


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_plans_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr("experiments.plan.flops_per_step", lambda _: 10**10)
    plan = read_plan(file)
    first = {name: one._replace(seeds=one.seeds[:1]) for name, one in plan.variants.items()}
    assert all_stages(replace(plan, variants=first), Site(str(tmp_path), "c.txt", data_dir="glue"))


EQUAL_FLOPS = """
{flops: 1.0e+14, warmup_share: 0.1, pretraining: {preset: tiny, vocab_size: 30000},
variants: {d: {}, m: {objective: mlm_sop}, r: {gradient_accumulation_steps: 8}}}
"""


def test_equal_flops_give_each_variant_its_updates(tmp_path: Path) -> None:
    for stage in stages_of(tmp_path, EQUAL_FLOPS):
        _, config = parse_pretraining(typed(stage.options))
        assert flops_per_step(config) * config.training.max_steps == pytest.approx(1e14, rel=0.01)
        assert config.training.warmup_steps == round(0.1 * config.training.max_steps)


CONTINUED = """
pretraining: {preset: tiny, vocab_size: 300}
variants: {a/1: {objective: mlm, seeds: [1, 2], flops: 1e12},
  b: {init_from: a/1/generator, flops: 3.0e+12}}
"""


def test_a_variant_starts_from_the_weights_of_another_and_adds_its_costs(tmp_path: Path) -> None:
    first, _, second = stages = stages_of(tmp_path, CONTINUED)
    assert second.options["init_from"] == str(first.output / "generator")
    assert second.needs == first
    # Regression: --init_from set these two by its folder, so the FLOPs were those of another
    # generator.
    assert second.options["rtd.generator_layers"] == 1
    assert second.options["rtd.generator_rate"] == 2.0
    assert [round(s.flops_per_step * s.options["max_steps"] / 1e12) for s in stages] == [1, 1, 3]
    moved = stages_of(tmp_path, CONTINUED, output_dir=str(tmp_path / "moved"))
    other = stages_of(tmp_path, CONTINUED.replace("a/1/generator", "a/1/encoder"))
    assert moved[2].recipe == second.recipe != other[2].recipe
    for number, stage in enumerate(stages, 1):
        stage.record.parent.mkdir(parents=True, exist_ok=True)
        write_json(stage.record, {"recipe": stage.recipe, "exit_code": 0})
        stage.output.mkdir(parents=True)
        row = {"step": number, "tokens": 10 * number, "tokens_per_second": 10.0}
        row |= {"eval_discriminator_auc": 0.5}
        (stage.output / "metrics.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (run,) = find(stages[2:])["pretraining"]
    flops = first.flops_per_step + second.flops_per_step * 3
    assert run["curves"] == {"discriminator_auc": [(flops, 0.5)]}
    assert [run[key] for key in ("updates", "tokens", "flops", "seconds")] == [4, 40, flops, 4.0]


_PLAIN = "optimizer: adamw, rtd.embedding_sharing: full"
_STOCK = "b: {like: a, weights: stock}"

REFUSED = {
    "twice": "{variants: {a: {}, a: {}}}",
    "task": "{variants: {a: {}}, finetuning: {task: {cola: }}}",
    "learning_rat": "{variants: {a: {learning_rat: 1.0e-3}}}",
    "output_dir": "{variants: {a: {output_dir: x}}}",
    "define 'a'": "{variants: {b: {like: a, weights: random}, a: {}}}",
    "objective rtd": f"{{variants: {{a: {{objective: mlm, optimizer: adamw}}, {_STOCK}}}}}",
    "no init_from": f"{{variants: {{a: {{{_PLAIN}}}, b: {{init_from: a/discriminator, {_PLAIN}}}, "
    "c: {like: b, weights: stock}}}",
    "could not convert": "{variants: {a: {flops: many}}}",
    "aa/generator does not exist": "{variants: {a: {}, b: {init_from: aa/generator}}}",
    "share a folder": "{variants: {a b: {}, a/b: {}}}",
}


def test_invalid_plan_and_variant_without_its_reference_are_refused(tmp_path: Path) -> None:
    for word, text in REFUSED.items():
        with pytest.raises(UsageError, match=word):
            stages_of(tmp_path, text)
    stages_of(tmp_path)
    options = ["--plan", str(tmp_path / "plan.yaml"), "--corpus", "c.txt", "--variants"]
    for variant, word in (("s", "name a too"), ("z", "no variant")):
        with pytest.raises(UsageError, match=word):
            main([*options, variant, "--output_dir", str(tmp_path / "out")])


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
what, output = sys.argv[2], Path(sys.argv[4])
print(what, os.environ["OMP_NUM_THREADS"], flush=True)
if what == "wait":
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
if what == "orphan":
    output.with_name("pid").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
output.mkdir(parents=True, exist_ok=True)
sys.exit(5 if what == "fail" else 0)
"""


def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str = "cola") -> Stage:
    (folder / "scripted.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    output = folder / "a" / name
    return Stage("a", name, ["scripted"], {"what": what, "output_dir": output}, output)


def test_only_stages_that_failed_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, failing = (scripted(tmp_path, monkeypatch, what, what) for what in ("work", "fail"))
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for _ in range(2):
        assert run_stages([stage for stage in (done, failing) if not is_done(stage)], 2) == [5]
    assert "exit code 5" in str(failure(failing))
    assert done.record.with_suffix(".log").read_text(encoding="utf-8") == "work 4\n"
    assert failing.record.with_suffix(".log").read_text(encoding="utf-8") == "fail 4\n" * 2
    done.output.rmdir()
    assert "has no output" in str(failure(done))


def test_interrupt_lets_commands_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = scripted(tmp_path, monkeypatch, "wait")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_stages([stage], 1)
    assert failure(stage) == "was stopped and can be resumed"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process that its parent was killed"
)
def test_commands_save_when_the_runner_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = scripted(tmp_path, monkeypatch, "orphan")
    runner = multiprocessing.get_context("fork").Process(target=run_stages, args=([stage], 1))
    runner.start()
    runner.join()
    status = Path("/proc", stage.output.with_name("pid").read_text(), "stat")
    deadline = time.monotonic() + 30
    # Z: ended, not yet collected by its new parent.
    while status.exists() and ") Z " not in status.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert failure(stage) == "was stopped and can be resumed"


def test_output_of_other_options_or_weights_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = scripted(tmp_path, monkeypatch, "work", "pretraining-1")
    task = scripted(tmp_path, monkeypatch, "work")._replace(needs=weights)
    assert run_stages([weights, task], 1) == []
    moved = task._replace(options={**task.options, "output_dir": "elsewhere", "model": "also"})
    check_recipes([weights, task, moved])
    other = weights._replace(options={"what": "more"})
    later = task._replace(needs=other)
    assert (failure(other), failure(later)) == (OTHER_RECIPE, OTHER_RECIPE)
    # The folder holds the task's too.
    with pytest.raises(UsageError, match=f"delete {tmp_path / 'a'}$"):
        check_recipes([other, later])
    task.record.write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=str(task.record)):
        failure(task)


METRICS = """
{"step": 2, "tokens": 600, "tokens_per_second": 10.0}
{"step": 4, "tokens": 900, "tokens_per_second": 5.0}
{"step": 4, "eval_generator_loss": 2.5, "eval_discriminator_auc": 0.75}
""".lstrip()


def test_report_has_results_and_failures_of_each_variant(tmp_path: Path) -> None:
    stages = stages_of(tmp_path, data_dir="glue", text=["t.txt"])
    scores, task = stages[4], stages[5]
    for stage, code in zip((*stages[:3], scores, task), (0, None, 5, 0, 0), strict=True):
        stage.record.parent.mkdir(parents=True, exist_ok=True)
        write_json(stage.record, {"recipe": stage.recipe, "exit_code": code})
        if stage is not scores:
            stage.output.mkdir(parents=True)
    for stage in stages[:3]:
        (stage.output / "metrics.jsonl").write_text(METRICS, encoding="utf-8")
    scores.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(scores.output, {"text": [{"file": "t.txt", "nats_per_token": 3.25}], "pairs": None})
    results = {"main_metric": "matthews", "metrics": {"matthews": {"values": [0.25, 0.75]}}}
    write_json(task.output / "results.json", results | {"collapsed_seeds": [2]})
    text = report(read_plan(tmp_path / "plan.yaml"), Site(str(tmp_path / "out"), "c.txt"), stages)
    flops = f"{stages[0].flops_per_step * 4:.2e}"
    cells = f"a | 1 | 4 | 0.0 | 2.0 | {flops} | 2.500 | 0.750 | 3.250 | 50.00 ± 35.36 | 50.00"
    assert f"| {cells} |" in text
    assert "- a: pretraining-2 was stopped and can be resumed" in text
    assert "- s: pretraining-1 failed with exit code 5" in text
    written = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    found = written["variants"]["a"]
    assert [run["seconds"] for run in found["pretraining"]] == [120.0, 120.0]
    assert found["collapsed_seeds"] == {"cola": [2]}
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")


TINY = """
pretraining: {preset: tiny, optimizer: adamw, rtd.embedding_sharing: full, vocab_size: 300,
  max_seq_length: 32, max_steps: 10, warmup_steps: 2, precision: fp32,
  per_device_train_batch_size: 8, logging_steps: 5, eval_examples: 16, device: cpu,
  preprocessing_num_workers: 1}
variants: {ours: , random: {like: ours, weights: random}, stock: {like: ours, weights: stock}}
finetuning: {options: {max_seq_length: 32, max_steps: 2, device: cpu}, tasks: {cola: }}
"""


WORDS = """--plan plan.yaml --jobs 2 --corpus c.txt --prepared_dir prep --output_dir out
--data_dir glue/CoLA"""


@pytest.mark.slow
def test_experiment_of_every_kind_of_variant_is_run(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "c.txt").write_text(english(130), encoding="utf-8")
    cola(tmp_path / "glue")
    ended = finish(start(["-m", "experiments", *WORDS.split()], tmp_path))
    assert ended.code == 0, ended.err + ended.out
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["variants"]
    assert [*found] == ["ours", "random", "stock"]
    assert all(variant["tasks"] for variant in found.values())
    (run,), (stock,) = found["ours"]["pretraining"], found["stock"]["pretraining"]
    assert stock["seconds"] == pytest.approx(run["seconds"], abs=2.0)
    assert stock["held_out"]["generator_loss"] > 0
