"""`electra-albert score` prints and writes the scores of the library, and overwrites none of the
user's files.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps import score
from electra_albert.inference.model import load_model
from electra_albert.inference.scoring import score_pairs, score_text
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, english, sha256
from tests.corpus.reading import write
from tests.refusals import rows

PAIR = """{"sentence_good": "The dog barked.", "sentence_bad": "The dog it barked.",
"linguistics_term": "t"}""".replace("\n", " ")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path, english(12, seed=5) + "\nA quiet 漢 owl\n", "new.txt")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write(tmp_path, f"{PAIR}\n{PAIR}\n", "pairs.jsonl")


def run(*argv: object) -> Any:
    return call(score.main, "--device", "cpu", *argv)


def test_command_prints_and_writes_library_scores(
    finished: Finished, text: Path, pairs: Path, tmp_path: Path
) -> None:
    output, model = tmp_path / "new" / "scores.json", load_model(finished.folder, "cpu")
    asked = ("--text", text, text, "--pairs", pairs, "--output", output)
    ended = run("--model", finished.folder, *asked)
    assert ended.code == 0, ended.err
    found, expected = json.loads(output.read_text(encoding="utf-8")), score_text(model, text)
    assert found["text"] == [expected] * 2
    assert found["pairs"] == score_pairs(model, pairs)
    in_python = score.score(model=finished.folder, text=[text, text], pairs=pairs, device="cpu")
    assert {**found, "options": None} == {**in_python, "options": None}
    weights = finished.folder.glob("*/model.safetensors")
    assert found["weights"] == {str(file): sha256(file) for file in weights}
    assert (found["model"], found["left_out"]) == (str(finished.folder), [])
    assert found["options"]["text"] == [str(text)] * 2
    lines = ended.out.splitlines()
    firsts = "text new.txt new.txt accuracy pairs mean mean standard ties"
    assert [line.split()[0] for line in lines if line] == firsts.split()
    assert f"{expected['nats_per_token']:.4f}" in lines[1]
    assert len({len(line) for line in lines[:3]}) == 1


def test_bf16_rounds_the_scores_and_no_more(finished: Finished, text: Path) -> None:
    asked: dict[str, Any] = {"model": finished.folder, "text": [text], "device": "cpu"}
    exact, rounded = (score.score(**asked, precision=name) for name in ("fp32", "bf16"))
    nats = exact["text"][0]["nats_per_token"]
    assert rounded["text"][0]["nats_per_token"] == pytest.approx(nats, rel=1e-2)
    assert rounded["text"][0]["nats_per_token"] != nats
    assert (exact["options"]["precision"], rounded["options"]["precision"]) == ("fp32", "bf16")


def test_scores_that_a_model_lacks_are_reported(
    finished: Finished, text: Path, pairs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "scores.json"
    asked = ("--text", text, "--pairs", pairs, "--output", output)
    for part, notice, texts, way in (
        ("discriminator", "--text is skipped", 0, "detection"),
        # Overwrites the earlier scores.
        ("generator", "--pairs without detection", 1, "likelihood"),
    ):
        ended = run("--model", finished.folder / part, *asked)
        assert ended.code == 0, ended.err
        assert f"notice: {notice}: the model has no" in ended.err
        written = json.loads(output.read_text(encoding="utf-8"))
        assert (len(written["text"]), [*written["pairs"]]) == (texts, [way])
    refused = run("--model", finished.folder / "discriminator", "--text", text)
    assert_refused(refused, 2, "no masked-token head")


def test_table_of_pairs_has_sets_terms_mean_standard_error_and_ties() -> None:
    sets = {"a": {"term": "t", "pairs": 3, "accuracy": 0.25, "ties": 1}}
    way = {"sets": sets, "terms": {"t": 0.5}, "mean": 0.75, "standard_error": 0.0125, "pairs": 3}
    cells = [line.split()[-1] for line in score.format_pairs({"likelihood": way}).splitlines()]
    assert cells == ["likelihood", "25.0%", "50.0%", "75.0%", "1.25%", "1"]


REFUSED = f"""
--text nowhere.txt                                   | --text nowhere.txt
--pairs nowhere                                      | nowhere: no .jsonl
--text {"x" * 300}                                   | no such file
--pairs {"x" * 300}                                  | no .jsonl file of minimal pairs
--pairs p.jsonl --max_pairs 0                        | --max_pairs 0
--pairs p.jsonl --text_column a                      | --text_column has no effect
--text p.jsonl --max_pairs 3                         | needs --pairs
--text p.jsonl --output p.jsonl                      | not a file of scores
--pairs p.jsonl --output run/generator/config.json   | not a file of scores
--pairs p.jsonl --output p.jsonl/scores.json         | cannot write into
--pairs p.jsonl --num_hidden_layers 0                | num_hidden_layers=0
"""


def test_a_wrong_option_is_refused(finished: Finished, in_folder: Path) -> None:
    write(in_folder, PAIR, "p.jsonl")
    config = shutil.copytree(finished.folder, in_folder / "run") / "generator" / "config.json"
    before = config.read_bytes()
    assert_refused(run("--model", "run"), 2, "nothing to score")
    for words, name in rows(REFUSED):
        assert_refused(run("--model", "run", *words.split()), 2, name)
    assert config.read_bytes() == before
    (in_folder / "latin1.txt").write_bytes(("It was his café.\n" * 20).encode("latin1"))
    refused = run("--model", "run", "--text", "latin1.txt")
    assert_refused(refused, 3, "if that is right, convert it with iconv")
