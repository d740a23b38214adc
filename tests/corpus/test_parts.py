"""Parts of a token store: written once, by any number of processes, stopped at any time."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import DataError
from electra_albert.corpus.parts import PartPlan, missing_parts, token_dtype, write_parts
from electra_albert.corpus.sources import Reading, find_files, plan_units
from electra_albert.corpus.tokenizer import save_tokenizer, train_tokenizer
from electra_albert.corpus.word_encoder import encoder_settings
from electra_albert.files import name_beside, write_json
from tests.corpus.building import build, document, stored_bytes, write_corpus
from tests.corpus.reading import write

ROOT = Path(__file__).parents[2]
FINDS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([sentence for number in range(50) for sentence in document(number)], 200, True)


def plan_of(folder: Path, tokenizer: Any, reading: Reading) -> PartPlan:
    units = plan_units(find_files(str(folder / "corpus"), Counter()), reading, unit_bytes=1 << 17)
    return PartPlan(units, encoder_settings(tokenizer), folder / "parts", "f", token_dtype(len(tokenizer)))


@pytest.mark.parametrize("reading", [Reading(bad_utf8="skip"), Reading(text_column="body")])
def test_parts_read_in_another_way_are_not_used(tokenizer: Any, tmp_path: Path, reading: Reading) -> None:
    # Catches a key that leaves out how the text was read: the old parts would be taken for the new ones.
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus", b'{"text": "One. \xff Two.", "body": "Three. Four."}\n', "a.jsonl")
    plan = plan_of(tmp_path, tokenizer, Reading())
    write_parts(plan, [0], 1)
    assert missing_parts(plan) == []
    assert missing_parts(plan_of(tmp_path, tokenizer, reading)) == [0]


def test_names_of_files_beside_never_repeat(tmp_path: Path) -> None:
    # Regression: the names held the number of the process alone, which repeats on other machines of a cluster.
    names = {name_beside(tmp_path / "a.json") for _ in range(100)}
    assert len(names) == 100
    assert {name.parent for name in names} == {tmp_path}
    write_json(tmp_path / "a.json", {"text": "é"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def write_long(folder: Path, *names: str) -> None:
    """Files of 50 MB of text, compressed, so that each is one unit and takes some seconds."""
    text = "\n\n".join("\n".join(document(number)) for number in range(10_000)).encode()
    raw = gzip.compress(text + b"\n\n", 1, mtime=0) * 20
    for name in names:
        write(folder, raw, name)


@pytest.mark.slow
def test_an_error_in_one_part_ends_the_others_at_once(tokenizer: Any, tmp_path: Path) -> None:
    # Regression: the units under way were read to their ends before the message came.
    (tmp_path / "corpus").mkdir()
    write_long(tmp_path / "corpus", "a.txt.gz")
    write(tmp_path / "corpus", '{"text": 7}\n', "b.jsonl")
    plan = plan_of(tmp_path, tokenizer, Reading())
    with pytest.raises(DataError, match="holds a number"):
        write_parts(plan, [0, 1], 2)
    assert missing_parts(plan) == [0, 1]


_BUILD = """
import sys
from collections import Counter
from pathlib import Path
from electra_albert.corpus.parts import PartPlan, token_dtype, write_parts
from electra_albert.corpus.sources import find_files, plan_units
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.corpus.word_encoder import encoder_settings
units = plan_units(find_files(sys.argv[1], Counter()), unit_bytes=1 << 17)
tokenizer = load_tokenizer(Path(sys.argv[2]))
folder, dtype = Path(sys.argv[3]) / "parts", token_dtype(len(tokenizer))
write_parts(PartPlan(units, encoder_settings(tokenizer), folder, "f", dtype), range(len(units)), 2)
"""


def start_build(folder: Path, tokenizer: Any) -> subprocess.Popen[bytes]:
    """Write the parts of `folder`/corpus into `folder`/parts, in a process with a group of its own."""
    save_tokenizer(tokenizer, folder / "tokenizer", 77)
    arguments = [str(folder / name) for name in ("corpus", "tokenizer", ".")]
    return subprocess.Popen(
        [sys.executable, "-c", _BUILD, *arguments],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.PIPE,
        # Where the tests run in the background a shell has Ctrl-C ignored, and children take that over.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def children_of(running: subprocess.Popen[bytes]) -> list[str]:
    return Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()


@pytest.mark.slow
@pytest.mark.skipif(not FINDS_CHILDREN, reason="finds children in /proc")
def test_ctrl_c_ends_every_process_at_once(tokenizer: Any, tmp_path: Path) -> None:
    # Regression: a compressed file of 90 MB was read to its end first, which took 22 seconds.
    (tmp_path / "corpus").mkdir()
    write_long(tmp_path / "corpus", "a.txt.gz", "b.txt.gz")
    running = start_build(tmp_path, tokenizer)
    parts = tmp_path / "parts"
    wait_until(lambda: all(list(parts.glob(f"{number:06d}.tokens.*")) for number in range(2)))
    children = children_of(running)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert len(children) >= 2
    wait_until(lambda: not any(is_running(child) for child in children))  # multiprocessing's tracker among them
    assert said.count(b"Traceback") == said.count(b"KeyboardInterrupt") == 1, said.decode()
    assert missing_parts(plan_of(tmp_path, tokenizer, Reading())) == [0, 1]


@pytest.mark.slow
@pytest.mark.skipif(not FINDS_CHILDREN, reason="finds children in /proc")
def test_killed_build_leaves_no_process_and_continues(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_corpus(tmp_path / "corpus", [document(number % 2_000) for number in range(20_000)], 1)
    units = plan_units(find_files(str(tmp_path / "corpus"), Counter()), unit_bytes=1 << 17)
    running = start_build(tmp_path, tokenizer)
    parts = tmp_path / "parts"
    wait_until(lambda: len(list(parts.glob("*.json"))) >= 2)
    children = children_of(running)
    running.kill()
    running.communicate()
    assert len(children) >= 2
    wait_until(lambda: not any(is_running(child) for child in children))
    assert 2 <= len(list(parts.glob("*.json"))) < len(units)
    caplog.set_level("INFO", logger="electra_albert")
    build(units, tokenizer, tmp_path)
    assert "are there already" in caplog.messages[0]
    build(units, tokenizer, tmp_path / "one_shot")
    assert stored_bytes(tmp_path / "train") == stored_bytes(tmp_path / "one_shot" / "train") != {}


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
