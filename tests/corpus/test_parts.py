"""Parts are written once, by any number of processes, interrupted at any time."""

import gzip
import multiprocessing
import operator
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

from electra_albert.corpus.parts import PartPlan, run_all, write_parts
from electra_albert.corpus.sources import plan_units
from electra_albert.corpus.store import split_parts
from electra_albert.data_files.finding import find_files
from electra_albert.tokenization.tokenizer import save_tokenizer
from tests.corpus.reading import build, document, plan_parts, stored_bytes, write, write_corpus
from tests.refusals import assert_refused

needs_proc = pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="finds children in /proc"
)


ROOT = Path(__file__).parents[2]


def write_long(folder: Path, *names: str) -> None:
    """Write compressed files of 50 MB of text, so that each is one unit and takes some seconds."""
    folder.mkdir()
    text = "\n\n".join("\n".join(document(number)) for number in range(10_000)).encode()
    for name in names:
        write(folder, gzip.compress(text + b"\n\n", 1, mtime=0) * 20, name)


@pytest.mark.slow
def test_an_error_in_one_part_stops_the_others_at_once(tokenizer: Any, tmp_path: Path) -> None:
    # Regression: running units were finished before the error was reported.
    write_long(tmp_path / "corpus", "a.txt.gz")
    write(tmp_path / "corpus", '{"text": 7}\n', "b.jsonl")
    units = plan_units(find_files(str(tmp_path / "corpus"), Counter()), unit_bytes=1 << 17)
    plan = plan_parts(units, tokenizer, tmp_path)
    assert_refused("DataError", "holds a number", write_parts, plan, [0, 1], 2)
    assert missing(plan) == [0, 1]


_BUILD = """
import sys
from collections import Counter
from pathlib import Path
from electra_albert.corpus.parts import write_parts
from electra_albert.corpus.sources import plan_units
from electra_albert.tokenization.tokenizer import load_tokenizer
from electra_albert.data_files.finding import find_files
from tests.corpus.reading import plan_parts
folder = Path(sys.argv[1])
units = plan_units(find_files(str(folder / "corpus"), Counter()), unit_bytes=1 << 17)
write_parts(plan_parts(units, load_tokenizer(folder / "tokenizer"), folder), range(len(units)), 2)
"""


def start_build(folder: Path, tokenizer: Any) -> subprocess.Popen[bytes]:
    """Write the parts of `folder`/corpus into `folder`/parts, in a new process group."""
    save_tokenizer(tokenizer, folder / "tokenizer", 77)
    how = {"cwd": ROOT, "start_new_session": True, "stderr": subprocess.PIPE}
    # For background jobs a shell ignores Ctrl-C, and children inherit this.
    how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([sys.executable, "-c", _BUILD, str(folder)], **how)


def children_of(running: subprocess.Popen[bytes]) -> list[str]:
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert len(children) >= 2
    return children


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


@pytest.mark.slow
@needs_proc
def test_ctrl_c_stops_every_process_at_once(tokenizer: Any, tmp_path: Path) -> None:
    # Regression: a compressed file of 90 MB was read to the end first, which took 22 seconds.
    write_long(tmp_path / "corpus", "a.txt.gz", "b.txt.gz")
    running = start_build(tmp_path, tokenizer)
    parts = tmp_path / "parts"
    wait_until(lambda: all(list(parts.glob(f".*-{number:06d}.tokens")) for number in range(2)))
    children = children_of(running)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    # Including multiprocessing's tracker.
    wait_until(lambda: not any(is_running(child) for child in children))
    assert err.count(b"Traceback") == err.count(b"KeyboardInterrupt") == 1, err.decode()
    assert not list(parts.glob("*.json"))


@pytest.mark.slow
@needs_proc
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
    wait_until(lambda: not any(is_running(child) for child in children))
    assert 2 <= len(list(parts.glob("*.json"))) < len(units)
    caplog.set_level("INFO", logger="electra_albert")
    build(units, tokenizer, tmp_path)
    assert "are already complete" in caplog.messages[0]
    build(units, tokenizer, tmp_path / "one_shot")
    assert stored_bytes(tmp_path / "train") == stored_bytes(tmp_path / "one_shot" / "train") != {}


def missing(plan: PartPlan) -> list[int]:
    return [part.number for part in plan.parts() if not part.statistics]


def test_a_part_is_written_again_if_a_file_is_damaged_or_the_settings_differ(
    tokenizer: Any, tmp_path: Path
) -> None:
    units = write_corpus(tmp_path / "corpus", 30)
    plan = plan_parts(units, tokenizer, tmp_path)
    write_parts(plan, range(3), 1)
    assert missing(plan) == []
    assert missing(plan._replace(parts_key="other")) == [0, 1, 2]
    file = plan.parts()[1].path("groups")
    whole = file.read_bytes()
    for damaged in (whole[:-8], bytes([whole[0] ^ 1]) + whole[1:]):
        file.write_bytes(damaged)
        write_parts(plan, range(3), 1)
        assert file.read_bytes() == whole


def test_a_part_damaged_before_it_is_split_is_refused_and_written_again(
    tokenizer: Any, tmp_path: Path
) -> None:
    # Regression: its damaged text went into the store, and parts split before kept held-out text
    # chosen with it.
    units = write_corpus(tmp_path / "corpus", 300)
    plan = plan_parts(units, tokenizer, tmp_path / "store")
    write_parts(plan, range(3), 1)
    file = plan.parts()[1].path("groups")
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    split_parts(plan, [0], 1)
    assert_refused("DataError", file.name, split_parts, plan, range(3), 1)
    build(units, tokenizer, tmp_path / "store")
    build(units, tokenizer, tmp_path / "clean")
    written = stored_bytes(tmp_path / "store" / "train")
    assert written == stored_bytes(tmp_path / "clean" / "train") != {}


SCRIPT = """
import operator
from electra_albert.corpus.parts import run_all
print(sorted(run_all("adding", operator.add, list(range(40)), 2, 1)))
"""


def test_workers_do_not_run_the_script_of_the_caller_again(tmp_path: Path) -> None:
    # Regression: README's script, which has no `__main__` guard, waited for ever for its own lock.
    script = write(tmp_path, SCRIPT, "mine.py")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert ended.stdout.split("\n") == [str(list(range(1, 41))), ""], ended.stderr


def test_a_process_that_may_have_no_children_prepares_alone() -> None:
    # Regression: an AssertionError of multiprocessing.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = pool.apply(run_all, ("adding", operator.add, [1, 2], 2, 1))
    assert sorted(results) == [2, 3]
