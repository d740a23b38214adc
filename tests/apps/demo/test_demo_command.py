"""LM_DEMO.py: the fill-mask pipeline's answers and rewritten text from whatever is named; JSON, tables, files."""

from __future__ import annotations

import io
import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps import demo
from electra_albert.apps.command_line import run_app
from electra_albert.inference.model import load_model
from electra_albert.inference.rewrite import Replacement
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, finish, start

ONE, SEVERAL = "The quiet [MASK] crossed the river.", "Every [MASK] owl found a [MASK] near the [MASK]."
PLAIN = "The quiet  owl crossed the river, and every OLD cat found a lamp."
TEXT = f"{PLAIN}\n\n  {ONE}\r\n\t\n[CLS] [SEP]\n{SEVERAL}\n  {PLAIN}"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (file := tmp_path / "text.txt").write_bytes(TEXT.encode())
    return file


def run_demo(model: Path, *more: object) -> Ended:
    ended = call(demo.main, "--gen", model, *more)
    assert ended.code == 0, ended.err
    return ended


def ask(model: Path, text: Path, *more: object) -> list[Any]:
    return json.loads(run_demo(model, "--input", text, "--json", *more).out)


def test_json_of_a_line_without_a_mask_tells_what_was_replaced_where(finished: Finished, text: Path) -> None:
    first, _, nothing, _, last = ask(finished.folder, text)
    assert nothing == {"sequence": "[CLS] [SEP]", "original": "[CLS] [SEP]", "replaced": []}
    for answer in (first, last):
        assert answer["original"] == PLAIN
        sequence = PLAIN
        for found in reversed(answer["replaced"]):
            assert found.keys() == set(Replacement._fields)
            assert PLAIN[found["start"] : found["end"]] == found["before"]
            assert 0 < found["probability"] < 1
            sequence = sequence[: found["start"]] + found["after"] + sequence[found["end"] :]
        assert answer["sequence"] == sequence != PLAIN
    assert first["replaced"] != last["replaced"]  # another line, other draws


def test_json_is_what_the_library_gives_and_a_checkpoint_gives_the_same_as_its_run(
    finished: Finished, text: Path
) -> None:
    model = load_model(finished.folder, "cpu")
    for path in (finished.folder, max((finished.folder / "checkpoints").glob("step-*"))):
        rewritten, filled, *_ = ask(path, text, "--top_k", 3)
        assert rewritten["sequence"] == model.rewrite(PLAIN).sequence
        wanted = model.fill_mask(ONE, top_k=3)
        assert [each.pop("score") for each in filled] == pytest.approx([each.pop("score") for each in wanted])
        assert filled == wanted


@pytest.mark.parametrize(("name", "has_scores"), [("generator", True), ("mine", False)])
def test_a_discriminator_is_found_beside_a_folder_of_the_name_generator_alone(
    finished: Finished, text: Path, tmp_path: Path, name: str, has_scores: bool
) -> None:
    """A regression: ../discriminator was taken from wherever the file was, whatever it belonged to."""
    model = shutil.copytree(finished.folder / "generator", tmp_path / name)
    shutil.copytree(finished.folder / "discriminator", tmp_path / "discriminator")
    for path in (model, model / "model.safetensors"):
        ended = run_demo(path, "--input", text)
        assert ("replaced?" in ended.out, "no discriminator" in ended.err) == (has_scores, not has_scores)
    probabilities = {found["probability"] is None for found in ask(model, text)[0]["replaced"]}
    assert probabilities == {not has_scores}


# Files.


def rewrite_to(model: Path, text: Path, target: Path, *more: object) -> tuple[str, Ended]:
    ended = run_demo(model, "--input", text, "--output", target, *more)
    return target.read_bytes().decode(), ended


def test_a_file_is_rewritten_line_for_line_and_what_was_done_is_counted(
    finished: Finished, text: Path, tmp_path: Path
) -> None:
    """The same text as in JSON, in the spaces and line ends of the input."""
    written, ended = rewrite_to(finished.folder, text, tmp_path / "new" / "out.txt")
    first, one, _, several, last = ask(finished.folder, text)
    filled = SEVERAL
    for proposals in several:
        filled = filled.replace("[MASK]", proposals[0]["token_str"], 1)
    masked = "  " + ONE.replace("[MASK]", one[0]["token_str"]) + "\r"
    assert written.split("\n") == [
        *(first["sequence"], "", masked, "\t", "[CLS] [SEP]", filled, "  " + last["sequence"])
    ]
    changed = [found["probability"] for each in (first, last) for found in each["replaced"] if found["is_changed"]]
    lines, tokens, scores, where = ended.out.splitlines()
    assert re.findall(r"\d+", lines) == ["4", "1", "2"]  # rewritten, with nothing to mask, blank
    masked_count = len(first["replaced"]) + len(last["replaced"])
    assert re.findall(r"\d+", tokens) == [str(masked_count), str(len(changed)), "4"]
    assert f"{sum(changed) / len(changed):.1%}" in scores
    assert where.endswith(str(tmp_path / "new" / "out.txt"))


def test_pipes_give_what_files_give(
    finished: Finished, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, by_file = rewrite_to(finished.folder, text, tmp_path / "out.txt")
    text.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())  # without a byte order mark
    with text.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        ended = run_demo(finished.folder, "--input", "-", "--output", "-")
    assert ended.out == written
    assert ended.err.splitlines() == by_file.out.splitlines()[:-1]


def test_the_scored_text_is_the_written_text(finished: Finished, tmp_path: Path) -> None:
    """Token for token, in spite of tokens that run together and would be cut otherwise. Regressions: as many masks as
    the model reads were shown filled and then refused, and other tokens were scored than were written."""
    file, longest = tmp_path / "masks.txt", 64
    for line in ("[MASK]" * (longest - 2), "[MASK][MASK] sees t[MASK]e, [MASK]."):
        file.write_text(line, encoding="utf-8")
        shown, written = run_demo(finished.folder, "--input", file), run_demo(finished.folder, file, "--output", "-")
        scores = shown.out.strip().splitlines()[-1].removeprefix("    replaced?")
        scored = re.sub(r"\(\d+%\)", "", scores.replace("␣", ""))
        assert scored.replace(" ", "") == written.out.replace(" ", "")
        assert scores.count("%)") == longest - 2 or not line.startswith("[MASK]" * 9)


@pytest.mark.parametrize("form", [["--output", "-"], []])
def test_an_ascii_terminal_gets_utf8_text_and_json_and_no_traceback(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    """Standard output under LC_ALL=C or PYTHONIOENCODING=ascii."""
    source, terminal = tmp_path / "text.txt", io.TextIOWrapper(buffer := io.BytesIO(), encoding="ascii")
    source.write_text("The owl left 漢 café.\nThe [MASK] left 漢 café.\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdout", terminal)
    argv = ["--gen", str(finished.folder), "--input", str(source), "--mask_rate", "0.01", *form]
    assert run_app(demo.main, argv) == 0
    terminal.flush()
    assert ("漢".encode() in buffer.getvalue(), b"\\u6f22" in buffer.getvalue()) == (bool(form), not form)


def test_an_output_file_is_replaced_whole_with_its_mode_or_left_alone(
    finished: Finished, text: Path, tmp_path: Path
) -> None:
    """A regression: what only its owner might read, everybody could read afterwards."""
    target, mode = tmp_path / "out.txt", 0o600
    target.write_text("precious")
    target.chmod(mode)
    text.write_text("The [MASK] " + "owl " * 100)
    assert_refused(call(demo.main, "--gen", finished.folder, "--input", text, "--output", target), 3, "line 1")
    assert target.read_text() == "precious"
    text.write_text(PLAIN)
    assert "precious" not in rewrite_to(finished.folder, text, target)[0]
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert {file.name for file in tmp_path.iterdir()} == {"out.txt", "text.txt"}


def test_a_wrong_option_is_refused_before_a_model_is_loaded(text: Path, tmp_path: Path) -> None:
    (link := tmp_path / "link.txt").symlink_to(text)
    (empty := tmp_path / "empty.txt").write_bytes(b" \n\t\n")
    (latin := tmp_path / "latin.txt").write_bytes(b"\xff\n")
    for argv, code, word in (
        (("--input", text, "--output", link), 2, "is the input itself"),
        (("--input", text, "--output", "/dev/null"), 2, "regular file"),
        (("--output", tmp_path / "out.txt"), 2, "--input"),
        (("--input", text, "--output", tmp_path / "out.txt", "--json"), 2, "--json"),
        (("--input", tmp_path / "gone.txt"), 2, "gone.txt"),
        (("--input", empty), 3, "no sentence"),
        (("--input", latin), 3, "UTF-8"),
        (("--mask_rate", 0), 2, "mask_rate"),
        (("--temperature", "nan"), 2, "temperature"),
        (("--top_k", 0), 2, "top_k"),
    ):
        assert_refused(call(demo.main, "--gen", tmp_path / "gone", *argv), code, word)
    assert text.read_bytes().decode() == TEXT


def test_a_giant_line_is_rewritten_part_by_part(finished: Finished, tmp_path: Path) -> None:
    """A regression: at once it took gigabytes. Nothing of it is lost."""
    line = " ".join(["owl"] * 10_000)
    (file := tmp_path / "giant.txt").write_text(f"{line}\r\nOwl.", encoding="utf-8")
    parts = list(demo._read_lines(str(file)))
    assert ("".join(parts), parts[-1]) == (f"{line}\r\nOwl.", "Owl.")
    assert max(map(len, parts)) < 20_000
    written, _ = rewrite_to(finished.folder, file, tmp_path / "out.txt", "--mask_rate", 0.001)
    assert written.count("\n") == 1
    assert 0.9 * len(line) < len(written) < 1.1 * len(line)


# What is printed.


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_failure(finished: Finished, tmp_path: Path) -> None:
    """As `| head` does. A regression: text left in a buffer met the closed pipe only when the interpreter ended."""
    process = start(["LM_DEMO.py", "--gen", finished.folder], tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert finish(process)[::2] == (0, "")


def test_a_table_shows_what_was_replaced_and_no_control_character(finished: Finished, tmp_path: Path) -> None:
    """No mark of a tokenizer is shown either."""
    (file := tmp_path / "text.txt").write_text("The quiet owl left\x07 the \x1b[31m river.\nThe [MASK] left\x07.\n")
    shown = run_demo(finished.folder, "--input", file, "--mask_rate", 0.5).out
    assert not {"\x07", "\x1b", "▁"} & set(shown)
    assert "after:" in shown
    assert re.search(r"replaced\? \d+%", shown)
    assert re.search(r"replaced\? .*\(\d+%\)", shown)
