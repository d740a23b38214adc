"""show_batch: any step of a run, rebuilt from nothing but the step."""

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from electra_albert.apps import show_batch
from tests.apps.conftest import Finished
from tests.apps.tiny_run import STEPS, assert_refused, call, rows, succeed

LINE = re.compile(r" *(\d+) +([01])  (\S+) +(\S+) +(\S+) +(replaced|original \(target\)|original)$")


class Token(NamedTuple):
    """One line of the table."""

    position: str
    segment: str
    token: str
    masked: str
    corrupted: str
    label: str


def show(folder: Path, step: int, count: int = 8) -> dict[int, list[Token]]:
    """The tokens of each example shown, by the example's id."""
    ended = succeed(show_batch.main, "--run", folder, "--step", step, "--rows", count)
    _, *blocks = ended.out.strip().split("\n\n")
    return {
        int(lines[0].split()[1]): [Token(*LINE.fullmatch(line).groups()) for line in lines[2:]]
        for lines in map(str.splitlines, blocks)
    }


def test_labels_say_what_was_replaced_and_only_targets_are(finished: Finished) -> None:
    for tokens in show(finished.folder, 20).values():
        for token in tokens:
            assert (token.label == "replaced") == (token.corrupted != token.token)
            assert token.masked in (token.token, "[MASK]")
            if token.masked == "[MASK]":
                assert token.label != "original"
            if token.token in ("[CLS]", "[SEP]"):
                assert token.label == "original"
        targets = sum(token.label != "original" for token in tokens)
        maskable = sum(token.token not in ("[CLS]", "[SEP]") for token in tokens)
        assert targets == max(1, round(0.15 * maskable))


def test_the_first_step_is_the_one_that_was_trained_on(finished: Finished) -> None:
    """Its generator is known exactly: the replaced share of the tokens is the logged one."""
    tokens = [token for row in show(finished.folder, 1).values() for token in row]
    logged = rows(finished.folder)[0]
    assert len(tokens) == logged["tokens"]
    assert sum(token.label == "replaced" for token in tokens) / len(tokens) == logged["replaced_fraction"]


def test_a_step_of_many_processes_begins_where_theirs_did(finished: Finished, tmp_path: Path) -> None:
    """A regression: the run's global batch counts, not that of the one process which shows it."""
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    record = folder / "environment.json"
    content = json.loads(record.read_text())
    content["settings"]["global_batch_size"] = 16
    record.write_text(json.dumps(content))
    assert sorted(show(folder, 3)) == list(range(32, 40))


def test_the_newest_run_is_shown_where_none_is_named(finished: Finished, in_folder: Path) -> None:
    assert_refused(call(show_batch.main, "--step", 1), 2, "python Pretraining.py")
    shutil.copytree(finished.folder, in_folder / "runs" / "mine")
    ended = succeed(show_batch.main, "--step", STEPS, "--rows", 1)
    assert f"step {STEPS}: 1 of 8 examples; generator weights: checkpoint of step 10" in ended.out


def test_a_step_of_a_corpus_that_changed_since_is_refused(finished: Finished, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "tales.txt", shutil.copytree(finished.folder, tmp_path / "run")
    corpus.write_text(finished.corpus.read_text() + "\nOne more owl left.\n")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace(str(finished.corpus), str(corpus)))
    assert_refused(call(show_batch.main, "--run", folder, "--step", 1), 4, "different settings")
