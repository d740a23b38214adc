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
from electra_albert.corpus.prepare import prepare
from tests.apps.tiny_run import assert_refused, call, english
from tests.corpus.reading import joined, write


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """Several kinds of files with weights; each source is a part."""
    (folder := tmp_path / "tales").mkdir()
    texts = [english(200, seed=seed) for seed in range(4)]
    write(folder, texts[0], "a.txt")
    write(
        folder,
        "".join(json.dumps({"text": text}) + "\n" for text in texts[1].split("\n\n")),
        "b.jsonl",
    )
    write(folder, gzip.compress(texts[2].encode(), mtime=0), "c.txt.gz")
    parquet.write_table(
        pyarrow.table({"text": texts[3].split("\n\n")}), folder / "d.parquet", row_group_size=50
    )
    listed = [
        f"- {{corpus: {file.name}, weight: {len(file.name)}}}" for file in sorted(folder.iterdir())
    ]
    return write(folder, "\n".join(listed), "tales.yaml")


def config_of(corpus: Path | str, prepared: Path, **changed: Any) -> CorpusConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 300,
        "max_seq_length": 32,
        "preprocessing_num_workers": 1,
        **changed,
    }
    return CorpusConfig(str(corpus), prepared_dir=str(prepared), **sizes)


def stored(folder: Path) -> dict[str, Any]:
    """Bytes of tokenizer and store, and the manifest without its times and the hash that covers
    them.
    """
    files = [
        *folder.glob("tokenizer/tokenizer*.json"),
        *folder.glob("store/**/*.bin"),
        *folder.glob("store/*/rows*"),
    ]
    manifest = json.loads((folder / "store" / "manifest.json").read_text(encoding="utf-8"))
    manifest["statistics"].pop("process_seconds")
    manifest.pop("hash")
    names = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if "checked" not in file.name
    }
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


def test_datatrove_runs_the_tasks(mixture: Path, tmp_path: Path) -> None:
    alone = prepare(config_of(mixture, tmp_path / "alone"), 42).folder
    argv = [
        "--corpus",
        mixture,
        "--vocab_size",
        300,
        "--max_seq_length",
        32,
        "--preprocessing_num_workers",
        2,
    ]
    ended = call(
        main,
        *map(str, argv),
        "--prepared_dir",
        str(tmp_path / "d"),
        "--engine",
        "datatrove",
        "--tasks",
        "3",
    )
    assert ended.code == 0, ended.err
    assert stored(next((tmp_path / "d").glob("tales-*"))) == stored(alone)


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


# Documents of a datatrove pipeline, here from an S3 server.


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket `texts` of a local S3 server."""
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "ENDPOINT_URL": f"http://{host}:{port}",
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
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


def test_a_datatrove_pipeline_writes_a_corpus(bucket: Any, tmp_path: Path) -> None:
    texts = [text for seed in range(3) for text in english(100, seed=seed).split("\n\n")]
    for number in range(3):
        lines = (
            json.dumps({"text": text, "id": str(n)}) for n, text in enumerate(texts[number::3])
        )
        bucket.put_object(
            Bucket="texts", Key=f"docs/{number}.jsonl", Body="\n".join(lines).encode()
        )
    wanted = [text for text in texts if "river" not in text]
    local = write(
        tmp_path, "".join(json.dumps({"text": text}) + "\n" for text in wanted), "wanted.jsonl"
    )
    given = prepare(config_of(local, tmp_path / "a"), 42)
    folder = tmp_path / "corpus"
    steps = [
        JsonlReader("s3://texts/docs"),
        LambdaFilter(lambda document: "river" not in document.text),
        WriteTokens(str(folder), str(given.tokenizer_dir)),
    ]
    how: dict[str, Any] = {
        "tasks": 3,
        "logging_dir": str(tmp_path / "log"),
        "start_method": "spawn",
    }
    LocalPipelineExecutor(steps, local_tasks=2, **how).run()
    with pytest.raises(UsageError, match="10,000 tasks, more than 4,096"):
        WriteTokens(str(folder), str(given.tokenizer_dir))([], 0, 10_000)
    with pytest.raises(UsageError, match="begun with other settings"):
        WriteTokens(str(folder), str(given.tokenizer_dir), seed=7)([], 0, 3)
    with pytest.raises(ZeroDivisionError):  # the part of the run before no longer counts
        steps[-1]((1 // 0 for _ in range(1)), 0, 3)  # type: ignore[operator, arg-type]
    with pytest.raises(DataError, match="tasks 0, 2 have not ended"):
        prepare(config_of(folder, tmp_path / "unused"), 42)
    LocalPipelineExecutor(steps, **how, skip_completed=False).run()
    for _ in range(2):
        prepared = prepare(config_of(folder, tmp_path / "unused"), 42)
        assert prepared.folder == folder
        splits = [(p.store.train, p.store.validation) for p in (prepared, given)]
        tokens = [
            sorted(t for split in both for t in joined(split).tokens.tolist()) for both in splits
        ]
        assert tokens[0] == tokens[1]
        assert len(prepared.store.train.parts) == 3
    record = folder / "token_parts.json"
    whole = record.read_text()
    for damaged in ("", whole[:9], "{}", whole.replace("3", "null"), whole.replace("3", "9000")):
        record.write_text(damaged)
        with pytest.raises(DataError, match=r"token_parts.json is damaged"):
            prepare(config_of(folder, tmp_path / "unused"), 42)
        with pytest.raises(DataError, match=r"token_parts.json is damaged"):
            steps[-1]([], 0, 3)  # type: ignore[operator]
    record.write_text(whole)
    # A late task would have removed the store.
    with pytest.raises(UsageError, match="complete and in use"):
        WriteTokens(str(folder), str(given.tokenizer_dir))([], 0, 3)
    with pytest.raises(UsageError, match="--tokenizer"):
        prepare(config_of(folder, tmp_path, tokenizer=str(given.tokenizer_dir)), 42)
