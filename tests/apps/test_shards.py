"""Preparing a corpus by several jobs: the bytes of one process, whatever the jobs went through."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from electra_albert.apps import prepare
from tests.apps.tiny_run import assert_refused, call, english, finish, start

JOBS = 3


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Text that is cut into several units: each file is larger than one."""
    folder = tmp_path / "tales"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(english(300, seed=number) * 90, encoding="utf-8")
    return folder


def options(corpus: Path, prepared: Path, *more: object) -> list[str]:
    sizes = ["--vocab_size", "300", "--max_seq_length", "32", "--preprocessing_num_workers", "1"]
    return ["--corpus", str(corpus), "--prepared_dir", str(prepared), *sizes, *map(str, more)]


def stored(prepared: Path) -> dict[str, bytes]:
    """Every byte of tokenizer and store; the manifest's times left out."""
    (folder,) = prepared.glob("tales-*")
    files = [*folder.glob("tokenizer/*"), *folder.glob("store/**/*.bin")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def run_job(corpus: Path, prepared: Path, index: int) -> None:
    ended = call(prepare.main, *options(corpus, prepared, "--num_shards", JOBS, "--shard_index", index))
    assert ended.code == 0, ended.err


def merge(corpus: Path, prepared: Path) -> None:
    ended = call(prepare.main, *options(corpus, prepared, "--num_shards", JOBS, "--merge"))
    assert ended.code == 0, ended.err


@pytest.mark.slow
def test_jobs_in_any_order_and_twice_give_the_bytes_of_one_process(corpus: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert call(prepare.main, *options(corpus, alone)).code == 0
    for index in (2, 0, 0, 1, 2):
        run_job(corpus, together, index)
    merge(corpus, together)
    assert stored(together) == stored(alone)
    ended = call(prepare.main, *options(corpus, together, "--num_shards", JOBS, "--shard_index", 1))
    assert (ended.code, "using the token store" in ended.out) == (0, True)  # after the merge nothing is done again
    merge(corpus, together)
    assert stored(together) == stored(alone)


@pytest.mark.slow
def test_a_killed_job_leaves_nothing_that_the_merge_would_take_for_done(corpus: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert call(prepare.main, *options(corpus, alone)).code == 0
    run_job(corpus, together, 0)
    run_job(corpus, together, 1)
    job = ["-m", "electra_albert.apps.prepare", *options(corpus, together, "--num_shards", JOBS, "--shard_index", 2)]
    killed = start(job, tmp_path)
    (parts,) = together.glob("tales-*/store/parts")
    before = len(list(parts.glob("*.json")))
    deadline = time.monotonic() + 60
    while not list(parts.glob("*.tokens.*")) and len(list(parts.glob("*.json"))) == before:
        assert time.monotonic() < deadline, "the job wrote nothing"
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    ended = call(prepare.main, *options(corpus, together, "--num_shards", JOBS, "--merge"))
    if ended.code:  # unless it was done before the signal came
        assert_refused(ended, 3, "missing", "--shard_index 2")
    run_job(corpus, together, 2)
    merge(corpus, together)
    assert stored(together) == stored(alone)


def test_jobs_that_start_together_make_one_tokenizer_and_all_parts(tmp_path: Path) -> None:
    folder = tmp_path / "tales"
    folder.mkdir()
    (folder / "a.txt").write_text(english(150), encoding="utf-8")
    prepared = tmp_path / "prepared"
    module = ["-m", "electra_albert.apps.prepare"]
    jobs = [
        start([*module, *options(folder, prepared, "--num_shards", 2, "--shard_index", index)], tmp_path)
        for index in range(2)
    ]
    ends = [finish(job) for job in jobs]
    assert [ended.code for ended in ends] == [0, 0], ends
    assert sum("training a tokenizer" in ended.out for ended in ends) == 1
    merge_options = options(folder, prepared, "--num_shards", 2, "--merge")
    assert call(prepare.main, *merge_options).code == 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--shard_index", "0"], "num_shards"),
        (["--merge"], "num_shards"),
        (["--num_shards", "2"], "shard_index or merge"),
        (["--num_shards", "2", "--shard_index", "1", "--merge"], "shard_index or merge"),
        (["--num_shards", "2", "--shard_index", "2"], "between 0 and 1"),
        (["--num_shards", "2", "--shard_index", "-1"], "between 0 and 1"),
        (["--num_shards", "0", "--merge"], "number of jobs"),
    ],
)
def test_a_share_that_does_not_exist_is_refused(tmp_path: Path, more: list[str], told: str) -> None:
    ended = call(prepare.main, *options(tmp_path / "none.txt", tmp_path / "prepared", *more))
    assert_refused(ended, 2, told)


def test_merging_before_any_job_names_the_jobs_to_run(tmp_path: Path) -> None:
    (tmp_path / "tales.txt").write_text(english(150), encoding="utf-8")
    more = options(tmp_path / "tales.txt", tmp_path / "prepared", "--num_shards", 4, "--merge")
    assert_refused(call(prepare.main, *more), 3, "--shard_index 0")
