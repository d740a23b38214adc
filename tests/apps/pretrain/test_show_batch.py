"""show-batch reproduces the batch of any step of a run."""

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import yaml

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
    """The printed tokens of each example, by its id."""
    ended = succeed(show_batch.main, "--run", folder, "--step", step, "--rows", count)
    _, *blocks = ended.out.strip().split("\n\n")
    return {
        int(lines[0].split()[1]): [Token(*LINE.fullmatch(line).groups()) for line in lines[2:]]
        for lines in map(str.splitlines, blocks)
    }


def test_labels_mark_replaced_tokens_and_only_targets_are_replaced(finished: Finished) -> None:
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


def test_the_first_step_is_the_first_training_batch(finished: Finished) -> None:
    """The generator has its initial weights, so the replaced fraction is the logged one."""
    tokens = [token for example in show(finished.folder, 1).values() for token in example]
    logged = rows(finished.folder)[0]
    assert len(tokens) == logged["tokens"]
    replaced = sum(token.label == "replaced" for token in tokens)
    assert replaced / len(tokens) == logged["replaced_fraction"]


def test_a_step_of_a_distributed_run_has_its_examples(copied: Path) -> None:
    """Regression: the global batch size of the run counts, not that of the single process of
    show-batch.
    """
    record = copied / "environment.json"
    content = json.loads(record.read_text())
    content["settings"]["global_batch_size"] = 16
    record.write_text(json.dumps(content))
    config = copied / "config.yaml"  # of a run on a GPU
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings | {"cuda_graphs": True, "torch_compile": "step"}))
    assert sorted(show(copied, 3)) == list(range(32, 40))


def test_the_newest_run_is_the_default(finished: Finished, in_folder: Path) -> None:
    assert_refused(call(show_batch.main, "--step", 1), 2, "electra-albert pretrain")
    shutil.copytree(finished.folder, in_folder / "runs" / "mine")
    ended = succeed(show_batch.main, "--step", STEPS, "--rows", 1)
    assert f"step {STEPS}: 1 of 8 examples; generator: checkpoint of step 10" in ended.out


def test_a_step_of_a_changed_corpus_is_refused(
    finished: Finished, copied: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "tales.txt"
    corpus.write_text(finished.corpus.read_text() + "\nOne more owl left.\n")
    config = copied / "config.yaml"
    config.write_text(config.read_text().replace(str(finished.corpus), str(corpus)))
    assert_refused(call(show_batch.main, "--run", copied, "--step", 1), 4, "different settings")
