"""Preparation by tasks: any number of them, in any order, with losses, gives the bytes of one
process.
"""

import gzip
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import boto3
import psutil
import pyarrow
import pytest
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from moto.server import ThreadedMotoServer
from pyarrow import parquet

from electra_albert.apps.prepare import main
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.datatrove import WriteTokens
from electra_albert.corpus.engines import PrepareStep, run_engine
from electra_albert.corpus.folder import open_corpus
from electra_albert.corpus.prepare import Prepared, prepare
from tests.apps.tiny_run import SHIPPED, assert_refused, call, english, succeed
from tests.corpus.reading import joined, write


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """Several kinds of files with weights; each source is a part."""
    (folder := tmp_path / "tales").mkdir()
    write(folder, english(200, seed=0), "a.txt")
    write(folder, gzip.compress(english(200, seed=1).encode(), mtime=0), "b.txt.gz")
    table = pyarrow.table({"text": english(200, seed=2).split("\n\n")})
    parquet.write_table(table, folder / "c.parquet", row_group_size=50)
    listed = [f"- {{corpus: {file.name}, weight: {len(file.name)}}}" for file in folder.iterdir()]
    return write(folder, "\n".join(sorted(listed)), "tales.yaml")


def config_of(corpus: Path | str, prepared: Path, **changed: Any) -> CorpusConfig:
    sizes: dict[str, Any] = {"vocab_size": 300, "max_seq_length": 32, **changed}
    folders = {"corpus": str(corpus), "prepared_dir": str(prepared)}
    return CorpusConfig(**folders, preprocessing_num_workers=1, **sizes)


def stored(folder: Path) -> dict[str, Any]:
    """Bytes of tokenizer and store, and the manifest without its times and the hash that covers
    them.
    """
    patterns = ("tokenizer/tokenizer*.json", "store/**/*.bin", "store/*/rows*")
    files = [file for pattern in patterns for file in folder.glob(pattern)]
    manifest = json.loads((folder / "store" / "manifest.json").read_text(encoding="utf-8"))
    manifest["statistics"].pop("process_seconds")
    manifest.pop("hash")
    names = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    return names | {"manifest": manifest}


def test_tasks_in_any_order_repeated_or_lost_give_the_bytes_of_one_process(
    mixture: Path, tmp_path: Path
) -> None:
    alone = prepare(config_of(mixture, tmp_path / "alone"), 42).folder
    config = config_of(mixture, tmp_path / "together")
    for rank in (2, 0, 0):
        PrepareStep(config, 42, "write")(None, rank, 3)
    with pytest.raises(UsageError, match="part 1 is missing"):
        PrepareStep(config, 42, "split")(None, 0, 3)
    PrepareStep(config, 42, "write")(None, 1, 3)
    for rank in (1, 2, 1):
        PrepareStep(config, 42, "split")(None, rank, 3)
    PrepareStep(config, 42, "merge")()  # does what task 0 has not done
    (folder,) = (tmp_path / "together").glob("tales-*")
    assert stored(folder) == stored(alone)
    for stage in ("write", "split", "merge"):  # nothing is repeated
        PrepareStep(config, 42, stage)(None, 0, 1)  # type: ignore[arg-type]
    assert not (folder / "store" / "parts").exists()
    assert stored(folder) == stored(alone)


def test_wrong_options_are_refused(mixture: Path, tmp_path: Path) -> None:
    for options, word in (("--tasks 2", "--engine"), ("--engine datatrove --tasks 0", "above 0")):
        argv = ["--corpus", str(mixture), "--prepared_dir", str(tmp_path / "p"), *options.split()]
        assert_refused(call(main, *argv), 2, word)


THREE_TASKS = "--vocab_size 300 --max_seq_length 32 --preprocessing_num_workers 1 --tasks 3"


@pytest.mark.parametrize("engine", ["datatrove", "ray"])
def test_an_engine_runs_the_tasks(
    mixture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    # In this process; below on a real cluster.
    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("datatrove.executor.RayPipelineExecutor", LocalPipelineExecutor)
    alone = prepare(config_of(mixture, tmp_path / "alone"), 42).folder
    folders = ("--corpus", mixture, "--prepared_dir", tmp_path / "d")
    succeed(main, *folders, *THREE_TASKS.split(), "--engine", engine)
    assert stored(next((tmp_path / "d").glob("tales-*"))) == stored(alone)


@pytest.mark.slow
def test_a_ray_cluster_of_two_workers_survives_the_loss_of_one(tmp_path: Path) -> None:
    import ray

    (folder := tmp_path / "tales").mkdir()
    for number in range(4):
        write(folder, english(2_000, seed=number), f"{number}.txt")
    listed = "".join(f"- {{corpus: {number}.txt}}\n" for number in range(4))
    corpus = write(folder, listed, "tales.yaml")
    alone = prepare(config_of(corpus, tmp_path / "alone"), 42).folder
    config = config_of(corpus, tmp_path / "together")
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not killed:
            begun = list((tmp_path / "together").glob("*/store/parts/*tokens"))
            workers = [
                process for process in psutil.process_iter(["cmdline"]) if is_worker(process)
            ]
            if begun and workers:
                os.kill(workers[0].pid, signal.SIGKILL)
                killed.append(workers[0].pid)
            time.sleep(0.01)

    def is_worker(process: psutil.Process) -> bool:
        return "RankWorker.run_for_rank" in " ".join(process.info["cmdline"] or ())

    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    try:
        (killer := threading.Thread(target=kill_one)).start()
        run_engine("ray", replace(config, preprocessing_num_workers=2), 42, tasks=4)
        killer.join()
    finally:
        ray.shutdown()
    assert killed
    assert stored(prepare(config, 42).folder) == stored(alone)


# Text on an S3 server, and documents of a datatrove pipeline.


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket `texts` of a local S3 server."""
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "k")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    client.create_bucket(Bucket="texts")
    yield client
    server.stop()


def test_text_on_an_s3_server_is_prepared_as_if_it_were_local(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    for number in range(2):
        write(tmp_path, text := english(150, seed=number), f"tales-{number}.txt")
        bucket.put_object(Bucket="texts", Key=f"tales-{number}.txt", Body=text.encode())
    local = prepare(config_of(tmp_path / "tales-*.txt", tmp_path / "a"), 42)
    remote = prepare(config_of("s3://texts/tales-*.txt", tmp_path / "b"), 42)
    assert stored(remote.folder)["manifest"]["files"] == stored(local.folder)["manifest"]["files"]


def sorted_tokens(prepared: Prepared) -> list[int]:
    """The tokens of both splits."""
    splits = (prepared.store.train, prepared.store.validation)
    return sorted(chain(*(joined(split).tokens.tolist() for split in splits)))


def test_a_datatrove_pipeline_writes_a_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (docs := tmp_path / "docs").mkdir()
    texts = [text for seed in range(3) for text in english(100, seed=seed).split("\n\n")]
    for number in range(3):
        lines = [json.dumps({"text": text, "id": text[:9]}) for text in texts[number::3]]
        write(docs, "\n".join(lines), f"{number}.jsonl")
    wanted = [json.dumps({"text": text}) for text in texts if "river" not in text]
    local = write(tmp_path, "\n".join(wanted), "wanted.jsonl")
    given = prepare(config_of(local, tmp_path / "a"), 42)
    folder = tmp_path / "corpus"
    steps = [
        JsonlReader(str(docs)),
        LambdaFilter(lambda document: "river" not in document.text),
        WriteTokens(str(folder), str(given.tokenizer_dir)),
    ]
    how: dict[str, Any] = {"tasks": 3, "workers": 1, "logging_dir": str(tmp_path / "log")}
    LocalPipelineExecutor(steps, local_tasks=2, **how).run()
    last: Any = steps[-1]
    with pytest.raises(UsageError, match="10,000 tasks, more than 4,096"):
        last([], 0, 10_000)
    with pytest.raises(UsageError, match="begun with other settings"):
        replace(last, seed=7)([], 0, 3)
    with pytest.raises(ZeroDivisionError):  # the part of the run before no longer counts
        last((1 // 0 for _ in range(1)), 0, 3)
    with pytest.raises(DataError, match="tasks 0, 2 have not ended"):
        prepare(config_of(folder, tmp_path / "unused"), 42)
    LocalPipelineExecutor(steps, **how, skip_completed=False).run()
    config = config_of(folder, tmp_path / "unused")
    open_corpus(config, 42)  # which records that all parts are there
    part = folder / "store" / "parts" / "000001.json"
    whole = part.read_text()
    part.unlink()
    with pytest.raises(DataError, match="part 1 is missing or damaged"):  # not written without text
        PrepareStep(config, 42, "write")()
    part.write_text(whole)
    run_engine("datatrove", config, 42, 2)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (folder, "~/corpus"):
        # As --init_from does, with the tokenizer that the parts have.
        named = config_of(Path(name), tmp_path / "unused", tokenizer=str(given.tokenizer_dir))
        prepared = prepare(named, 42)
        assert prepared.folder == folder
        assert sorted_tokens(prepared) == sorted_tokens(given)
        assert len(prepared.store.train.parts) == 3
    record = folder / "token_parts.json"
    whole = record.read_text()
    for damaged in (whole[:9], "{}", whole.replace("3", "9000")):
        record.write_text(damaged)
        with pytest.raises(DataError, match=r"token_parts.json is damaged"):
            prepare(config_of(folder, tmp_path / "unused"), 42)
        with pytest.raises(DataError, match=r"token_parts.json is damaged"):
            last([], 0, 3)
    record.write_text(whole)
    # A late task would have removed the store.
    with pytest.raises(UsageError, match="complete and in use"):
        last([], 0, 3)
    with pytest.raises(UsageError, match="tokenized with another one"):
        prepare(config_of(folder, tmp_path, tokenizer=str(SHIPPED)), 42)
