"""Preparing a corpus by several jobs: the bytes of one process, whatever happened to the jobs."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.prepare import command, main
from electra_albert.config import CorpusConfig
from electra_albert.contracts import DataError
from tests.apps.tiny_run import assert_refused, call, english, finish, start

JOBS = 3


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Several kinds of files with weights, in units so small that each gives many."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(main, "UNIT_BYTES", 1 << 13)
    folder = tmp_path / "tales"
    folder.mkdir()
    texts = [english(200, seed=seed) for seed in range(4)]
    (folder / "a.txt").write_text(texts[0], encoding="utf-8")
    records = "".join(json.dumps({"text": text}) + "\n" for text in texts[1].split("\n\n"))
    (folder / "b.jsonl").write_text(records, encoding="utf-8")
    (folder / "c.txt.gz").write_bytes(gzip.compress(texts[2].encode(), mtime=0))
    parquet.write_table(pyarrow.table({"text": texts[3].split("\n\n")}), folder / "d.parquet", row_group_size=50)
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


def run_job(corpus: Path, prepared: Path, *share: object) -> str:
    """One job, by its index, or the merge; returns what it printed and logged."""
    ended = call(command.main, *options(corpus, prepared, "--num_shards", JOBS, *share))
    assert ended.code == 0, ended.err
    return ended.out + ended.err


def test_jobs_in_any_order_and_twice_give_the_bytes_of_one_process(mixture: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert call(command.main, *options(mixture, alone)).code == 0
    for index in (2, 0, 0):
        run_job(mixture, together, "--shard_index", index)
    ended = call(command.main, *options(mixture, together, "--num_shards", JOBS, "--merge"))
    assert_refused(ended, 3, "missing", "--shard_index 1;")
    run_job(mixture, together, "--shard_index", 1)
    run_job(mixture, together, "--merge")
    assert stored(together) == stored(alone)
    assert "using the token store" in run_job(mixture, together, "--shard_index", 1)  # nothing is done again
    run_job(mixture, together, "--merge")
    assert stored(together) == stored(alone)


def test_jobs_that_start_together_make_one_tokenizer_and_all_parts(tmp_path: Path) -> None:
    (tmp_path / "tales.txt").write_text(english(150), encoding="utf-8")
    shared = options(tmp_path / "tales.txt", tmp_path / "prepared", "--num_shards", 2)
    module = ["-m", "electra_albert", "prepare", *shared, "--shard_index"]
    ends = [finish(job) for job in [start([*module, str(index)], tmp_path) for index in range(2)]]
    assert [ended.code for ended in ends] == [0, 0], ends
    assert sum("training a tokenizer" in ended.out + ended.err for ended in ends) == 1
    assert call(command.main, *shared, "--merge").code == 0


def test_a_share_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    refused = {
        "--shard_index 0": "num_shards",
        "--num_shards 2": "shard_index or merge",
        "--num_shards 2 --shard_index 2": "between 0 and 1",
        "--num_shards 0 --merge": "number of jobs",
    }
    for more, word in refused.items():
        argv = options(tmp_path / "none.txt", tmp_path / "prepared", *more.split())
        assert_refused(call(command.main, *argv), 2, word)


class At(logging.Handler):
    """Does something once, in the middle of the first of two jobs."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.act, self.done = act, False

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("job 0 of 2") and not self.done:
            self.done = True
            self.act()


@pytest.mark.timeout(60)
def test_jobs_do_not_wait_for_one_another_and_notice_a_changed_corpus(mixture: Path, tmp_path: Path) -> None:
    """One job runs while another is in the middle of its own; with a lock for one alone it would wait for ever."""

    def run(act: Callable[[], object], prepared: str) -> Path:
        handler = At(act)
        main.LOG.addHandler(handler)
        main.LOG.setLevel("INFO")
        try:
            return main.prepare_shard(config_of(prepared), 42, main.ShardConfig(2, 0))
        finally:
            main.LOG.removeHandler(handler)
            assert handler.done

    def config_of(prepared: str) -> CorpusConfig:
        prepared_dir = str(tmp_path / prepared)
        return CorpusConfig(str(mixture), vocab_size=300, prepared_dir=prepared_dir, preprocessing_num_workers=1)

    folder = run(lambda: main.prepare_shard(config_of("first"), 42, main.ShardConfig(2, 1)), "first")
    assert main.prepare(config_of("first"), 42, main.ShardConfig(2, merge=True)).folder == folder

    def change() -> None:
        with (mixture.parent / "b.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"text": "One more."}\n')

    with pytest.raises(DataError, match="changed while it was read"):
        run(change, "second")
