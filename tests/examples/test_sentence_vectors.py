"""The example that trains sentence vectors: a kill, data without scores, refused data."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.apps.tiny_run import ROOT, sha256
from tests.apps.tiny_stock import write_stock
from tests.apps.tiny_tasks import stories, stsb, write

Main = Callable[..., dict[str, Any]]
OPTIONS = ("--model", "encoder", "--learning_rate", "0.005", "--save_steps", "5", "--output_dir")


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    """Runs the example in a folder with a model; returns its scores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    write_stock(Path("encoder"), "AlbertForMaskedLM", hidden_dropout_prob=0.1)
    import sentence_vectors

    def run(output: str, *words: str) -> dict[str, Any]:
        sentence_vectors.main([*OPTIONS, output, *words])
        scores: dict[str, Any] = json.loads(Path(output, "model", "scores.json").read_text())
        return scores

    return run


def test_a_killed_training_gives_the_model_of_one_that_was_not(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data_dir", str(stsb(tmp_path).folder))
    # Ended after a checkpoint, as by a kill.
    callback = sys.modules["sentence_vectors"].CheckpointCallback
    save = callback.on_save

    def save_and_end(*values: Any, **options: Any) -> None:
        save(*values, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(callback, "on_save", save_and_end)
    with pytest.raises(KeyboardInterrupt):
        main("killed", *data)
    monkeypatch.setattr(callback, "on_save", save)
    (folder,) = tmp_path.glob("killed/training-*")
    write(folder / "checkpoint-10" / "trainer_state.json", "{")  # half-written; five steps an epoch
    scores = main("killed", *data)
    assert scores["after"]["spearman_cosine"] > scores["before"]["spearman_cosine"] + 0.3
    main("whole", *data)
    assert len({sha256(file) for file in tmp_path.glob("*/model/model.safetensors")}) == 1
    assert main("killed", *data) == scores
    with pytest.raises(SystemExit, match="2"):
        main("killed", *data, "--seed", "1")


def test_texts_without_scores_are_ranked(main: Main) -> None:
    texts = [story.text for story in stories(24, 7)]
    for columns in (("anchor", "positive", "negative"), ("anchor", "positive")):
        name = f"{len(columns)}.jsonl"
        rows = [dict(zip(columns, texts[i:], strict=False)) for i in range(20)]
        write(Path(name), "\n".join(map(json.dumps, rows)))
        files = ("--train_file", name, "--validation_file", name, "--num_train_epochs", "1")
        scores = main(f"out-{name}", *files)
        assert scores["after"].keys() & {"cosine_accuracy", "mean_accuracy"}


REFUSED = {"a,b,2.5": "to --max_score 1", " ,b,1": "example 1", "": "sentence1 sentence2 score"}
REFUSED |= {"a,b,1,c": "example 1: not as many cells", 'a,b,1\n"c,d,1': "unexpected end of data"}


@pytest.mark.parametrize("rows", REFUSED)
def test_unusable_data_are_refused(main: Main, capsys: Any, rows: str) -> None:
    write(Path("a.csv"), f"sentence1,sentence2,score\n{rows}")
    with pytest.raises(SystemExit, match="2"):
        main("out", "--train_file", "a.csv")
    assert REFUSED[rows] in capsys.readouterr().err.splitlines()[-1]


def test_a_column_that_the_first_example_lacks_is_not_left_out(main: Main, capsys: Any) -> None:
    rows = [{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": "b", "negative": "c"}]
    write(Path("a.jsonl"), "\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit, match="2"):
        main("out", "--train_file", "a.jsonl")
    assert "example 1: anchor, positive, negative must be texts" in capsys.readouterr().err


OPTIONS_REFUSED = """max_score=0 max_score=inf save_steps=0 learning_rate=-1
num_train_epochs=nan seed=-1 seed=4294967296 model=empty model=damaged"""


def test_unusable_options_end_in_one_line(main: Main, capsys: Any) -> None:
    write(Path("a.csv"), "sentence1,sentence2,score\na,b,1\n")
    write(Path("empty", "config.json"), "{}")
    shutil.copytree("encoder", "damaged")
    write(Path("damaged", "model.safetensors"), "no weights")
    for option in OPTIONS_REFUSED.split():
        with pytest.raises(SystemExit, match="2"):
            main("out", "--train_file", "a.csv", f"--{option}")
        assert ": error: " in capsys.readouterr().err.splitlines()[-1], option


def test_another_model_at_the_same_path_is_not_taken_for_the_former(
    main: Main, capsys: Any
) -> None:
    # Regression: the scores of the former model were printed.
    write(Path("a.csv"), "sentence1,sentence2,score\n" + "a,b,1\nc,d,0\n" * 4)
    words = ("out", "--train_file", "a.csv", "--num_train_epochs", "1")
    scores = main(*words)
    assert main(*words) == scores
    weights = Path("encoder", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(SystemExit, match="2"):
        main(*words)
    assert "another base model" in capsys.readouterr().err
