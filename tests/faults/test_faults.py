"""Law 8 and 9 from outside: commands with faults, by the trials of benchmarks/faults; `make
test-faults` runs them.
"""

import shutil
import sys

import pytest

from benchmarks.faults import trials
from benchmarks.faults.bench import Bench
from benchmarks.faults.hostile import HOSTILE

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler"
    ),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def each(points: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs of a program and one of its points, which are separated by commas."""
    return [(program, point) for program, listed in points.items() for point in listed.split(", ")]


KILLS = {
    "prepare": "mkdir 1 prepared/*, write 1 *parts/*.tokens, rename 1 *parts/*.json, write 1 "
    "*train/*tokens.bin, "
    "rename 1 *manifest.json, remove 1 *store/parts, rename 1 *train/*rows-*.bin",
    "pretrain": "rename 1 run/config.yaml, write 3 run/metrics.jsonl, write 2 run/samples.jsonl, "
    "mkdir 1 *ing-*step-0000006, write 1 *ing-*step-0000006/state.json, write 1 "
    "*ing-*step-0000006/.tmp*, "
    "sync 1 *ing-*step-0000006/optimizer.safetensors, write 1 *ing-*step-0000006/*MANIFEST.json, "
    "rename 1 *step-0000006, rename 1 *ing-*step-0000002, remove 2 *ing-*step-0000002/*, "
    "rename 1 run/generator/config.json",
    "export": "write 1 */model.safetensors, rename 1 exported/config.json, rename 1 "
    "exported/model.safetensors",
    "warmup": "mkdir 1 *generator_warmup/checkpoints/*-step-0000004, rename 1 "
    "warm/checkpoints/step-0000002",
    "finetune": "rename 1 tuned/seed-42/result.json, remove 1 "
    "tuned/seed-42/checkpoints/step-0000006/model.*",
}


@pytest.mark.parametrize(("program", "at"), each(KILLS))
def test_a_killed_command_resumes_to_the_same_files(bench: Bench, program: str, at: str) -> None:
    assert trials.kill(bench, program, [f"kill {at}"], False) == ""


@pytest.mark.parametrize("fault", ["kill rename 1 *step-0000004", "after 0.9"])
def test_a_fresh_process_resumes_to_the_same_files(bench: Bench, fault: str) -> None:
    assert trials.kill(bench, "pretrain", [fault], True) == ""


FAILURES = {
    "prepare": "ENOSPC write 1 *parts/*.tokens, ENOSPC write 1 *train/*sentence_ends.bin, "
    "ENOSPC write 1 *manifest.json, ENOSPC write 1 *tokenizer.json, EFBIG write 1 *rows-*.bin, "
    "EIO sync 1 *train/*tokens.bin",
    "pretrain": "ENOSPC write 1 run/*environment.json, ENOSPC write 3 run/metrics.jsonl, "
    "ENOSPC write 1 *ing-*step-0000004/.tmp*, ENOSPC write 1 run/generator/*, ENOSPC write 1 "
    "run/*README.md, "
    "EIO sync 1 *ing-*step-0000006/model.safetensors, EIO rename 1 *step-0000008, EIO write "
    "2 run/tensorboard/*, "
    "EIO open 1 run/run.lock, EIO remove 2 *ing-*step-0000004/*",
    "export": "EDQUOT write 1 */model.safetensors, EIO rename 1 exported/model.safetensors",
}


@pytest.mark.parametrize(("program", "fault"), each(FAILURES))
def test_a_failing_call_is_one_line_and_loses_nothing(
    bench: Bench, program: str, fault: str
) -> None:
    assert trials.fail(bench, program, fault) == ""


CHECKPOINT, STORE = "run/checkpoints/step-0000004", "prepared/text-*/store"
TRAIN, GENERATOR = f"{STORE}/train/000000", "run/generator"
READ = {
    "pretrain": f"{CHECKPOINT}/model.safetensors, {CHECKPOINT}/optimizer.safetensors, "
    f"{CHECKPOINT}/state.json, "
    f"{CHECKPOINT}/MANIFEST.json, {TRAIN}.tokens.bin, {TRAIN}.sentence_ends.bin, "
    f"{TRAIN}.document_ends.bin, "
    f"{STORE}/validation/000000.tokens.bin, {STORE}/token_counts.bin, {STORE}/manifest.json, "
    f"{TRAIN}.rows-2-32-42.bin, prepared/text-*/tokenizer/tokenizer.json",
    "prepare": f"{STORE}/parts/000000.tokens, prepared/text-*/tokenizer/tokenizer_config.json",
    "finetune": "tuned/model/model.safetensors, tuned/model/config.json",
    "demo": f"{GENERATOR}/model.safetensors, {GENERATOR}/config.json, {GENERATOR}/tokenizer.json",
}


@pytest.mark.parametrize(("program", "path"), each(READ))
def test_a_flipped_bit_never_gives_other_results(bench: Bench, program: str, path: str) -> None:
    assert trials.damage(bench, program, path, "flipped bit", 0.6) == ""


TOGETHER = {
    "prepare": "write 1 *tokens.bin",
    "pretrain": "sync 1 *ing-*step-0000004/*",
    "finetune": "mkdir 1 *seed-42",
}


@pytest.mark.parametrize(("program", "at"), each(TOGETHER))
def test_two_processes_in_one_folder_do_no_harm(bench: Bench, program: str, at: str) -> None:
    assert trials.together(bench, program, f"stop {at}") == ""


@pytest.mark.parametrize(
    ("program", "at", "signal"),
    [
        ("prepare", "write 1 *train/*tokens.bin", "SIGTERM"),
        ("pretrain", "write 3 run/metrics.jsonl", "SIGINT"),
        ("pretrain", "sync 1 *ing-*step-0000004/model.safetensors", "SIGTERM"),
        ("pretrain", "open 1 run/samples.jsonl", "SIGUSR1"),
        ("pretrain", "rename 1 run/generator/model.safetensors", "SIGTERM"),
        ("export", "write 1 */model.safetensors", "SIGINT"),
    ],
    ids=["preparing", "training", "saving", "evaluating", "exporting a run", "exporting"],
)
def test_a_signal_in_any_phase_loses_nothing(
    bench: Bench, program: str, at: str, signal: str
) -> None:
    assert trials.interrupt(bench, program, f"stop {at}", signal) == ""


@pytest.mark.parametrize(
    ("at", "lost", "signal"),
    [
        ("rename 1 two/generator/model.safetensors", 0, "SIGKILL"),
        ("sync 1 *ing-*step-0000004/*", 0, "SIGKILL"),
        ("sync 1 *ing-*step-0000004/*", 1, "SIGKILL"),
        ("sync 1 *ing-*step-0000004/*", 1, "SIGSTOP"),
    ],
)
def test_a_lost_rank_is_named_and_the_ranks_resume(
    bench: Bench, at: str, lost: int, signal: str
) -> None:
    assert trials.lose_rank(bench, f"stop {at}", lost, signal) == ""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_or_read_in_bounded_time(bench: Bench, name: str) -> None:
    assert trials.hostile(bench, name) == ""


def test_the_trials_see_a_planted_fault(bench: Bench) -> None:
    # Planted: a run with another setting, an empty folder, and a fault that is never reached.
    folder = bench.work("pretrain")
    other = bench.launcher.start(
        [*trials.PROGRAMS["pretrain"].argv.split(), "--adam_beta1", "0.8"], folder
    ).wait()
    assert "model.safetensors differs" in bench.difference("pretrain", folder, other)
    (folder / "run" / "empty").mkdir()
    assert bench.difference("pretrain", folder, other, ["*.*"]) == "run/empty is left over"
    assert "was not reached" in trials.kill(bench, "export", ["kill open 1 nowhere"], False)
    assert "did not stop" in trials.interrupt(bench, "export", "stop open 1 nowhere", "SIGTERM")
