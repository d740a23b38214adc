"""Preparing a corpus by several jobs: the bytes of one process, whatever the jobs went through."""

from __future__ import annotations

import gzip
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.prepare import main as prepare
from electra_albert.config import CorpusConfig
from electra_albert.contracts import DataError
from tests.apps.test_every_source import write_parquet
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


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Several kinds of files with weights, in units so small that each gives many."""
    monkeypatch.setattr(prepare, "UNIT_BYTES", 1 << 13)
    folder = tmp_path / "tales"
    folder.mkdir()
    (folder / "a.txt").write_text(english(300, seed=1), encoding="utf-8")
    records = "".join(json.dumps({"text": text}) + "\n" for text in english(200, seed=2).split("\n\n"))
    (folder / "b.jsonl").write_text(records, encoding="utf-8")
    (folder / "c.txt.gz").write_bytes(gzip.compress(english(200, seed=3).encode(), mtime=0))
    write_parquet(folder / "d.parquet")
    listed = [f"- {{corpus: {file.name}, weight: {len(file.name)}}}" for file in sorted(folder.iterdir())]
    (folder / "tales.yaml").write_text("\n".join(listed), encoding="utf-8")
    return folder / "tales.yaml"


def options(corpus: Path, prepared: Path, *more: object) -> list[str]:
    sizes = ["--vocab_size", "300", "--max_seq_length", "32", "--preprocessing_num_workers", "1"]
    return ["--corpus", str(corpus), "--prepared_dir", str(prepared), *sizes, *map(str, more)]


def stored(prepared: Path) -> dict[str, Any]:
    """Every byte of tokenizer and store, and all of the manifest but its times, and its hash that covers them."""
    (folder,) = prepared.glob("tales-*")
    files = [*folder.glob("tokenizer/*"), *folder.glob("store/**/*.bin")]
    manifest = json.loads((folder / "store" / "manifest.json").read_text(encoding="utf-8"))
    manifest["receipt"].pop("process_seconds")
    manifest.pop("sha256")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files} | {"manifest": manifest}


def run_job(corpus: Path, prepared: Path, index: int) -> None:
    ended = call(prepare.main, *options(corpus, prepared, "--num_shards", JOBS, "--shard_index", index))
    assert ended.code == 0, ended.err


def merge(corpus: Path, prepared: Path) -> None:
    ended = call(prepare.main, *options(corpus, prepared, "--num_shards", JOBS, "--merge"))
    assert ended.code == 0, ended.err


def test_jobs_in_any_order_and_twice_give_the_bytes_of_one_process(mixture: Path, tmp_path: Path) -> None:
    corpus = mixture
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
    job = ["-m", "electra_albert", "prepare", *options(corpus, together, "--num_shards", JOBS, "--shard_index", 2)]
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
    module = ["-m", "electra_albert", "prepare"]
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


def test_merging_too_early_names_the_jobs_to_run(mixture: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    run_job(mixture, prepared, 1)
    ended = call(prepare.main, *options(mixture, prepared, "--num_shards", JOBS, "--merge"))
    assert_refused(ended, 3, "missing", "--shard_index 0, 2")


def config_of(corpus: Path, prepared: Path) -> CorpusConfig:
    return CorpusConfig(
        corpus=str(corpus),
        vocab_size=300,
        max_seq_length=32,
        prepared_dir=str(prepared),
        preprocessing_num_workers=1,
    )


@pytest.mark.timeout(60)
def test_jobs_do_not_wait_for_one_another(mixture: Path, tmp_path: Path) -> None:
    """One job runs while another is in the middle of its own; with a lock for one alone it would wait for ever."""
    config, ran = config_of(mixture, tmp_path / "prepared"), []

    def say(message: str) -> None:
        if message.startswith("job 0 of 2") and not ran:
            ran.append(prepare.prepare_shard(config, 42, str, prepare.ShardConfig(2, 1)))

    folder = prepare.prepare_shard(config, 42, prepare.ShardConfig(2, 0))
    assert ran == [folder]
    assert prepare.prepare(config, 42, str, prepare.ShardConfig(2, merge=True)).folder == folder


def test_a_job_notices_that_the_corpus_changed_meanwhile(mixture: Path, tmp_path: Path) -> None:
    def say(message: str) -> None:
        if message.startswith("job 0 of 2"):
            with (mixture.parent / "b.jsonl").open("a", encoding="utf-8") as file:
                file.write('{"text": "One more."}\n')

    with pytest.raises(DataError, match="changed while it was read"):
        prepare.prepare_shard(config_of(mixture, tmp_path / "prepared"), 42, prepare.ShardConfig(2, 0))
