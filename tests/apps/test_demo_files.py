"""LM_DEMO.py on text without masks: what is told of a rewriting, as JSON, in a terminal, and from file to file."""

from __future__ import annotations

import io
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.command_line import run_app
from electra_albert.apps.demo import main as demo
from electra_albert.apps.demo.files import Tally
from electra_albert.inference.splice import Replacement, Rewritten
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call

ONE, SEVERAL = "The quiet [MASK] crossed the river.", "Every [MASK] owl found a [MASK] near the [MASK]."
PLAIN = "The quiet  owl crossed the river, and every OLD cat found a lamp."
TEXT = f"{PLAIN}\n\n  {ONE}\r\n\t\n[CLS] [SEP]\n{SEVERAL}\n  {PLAIN}"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT.encode())
    return file


def run_demo(model: Path, *more: object) -> Ended:
    ended = call(demo.main, "--gen", model, *more)
    assert ended.code == 0, ended.err
    return ended


def ask(model: Path, text: Path, *more: object) -> list[Any]:
    return json.loads(run_demo(model, "--input", text, "--json", *more).out)


def rewrite_to(model: Path, text: Path, target: Path, *more: object) -> tuple[str, Ended]:
    ended = run_demo(model, "--input", text, "--output", target, *more)
    return target.read_bytes().decode(), ended


def test_json_of_a_line_without_a_mask_tells_what_was_replaced_where(finished: Finished, text: Path) -> None:
    first, one, nothing, several, last = ask(finished.folder, text)
    assert [isinstance(answer, list) for answer in (one, several)] == [True, True]
    assert nothing == {"sequence": "[CLS] [SEP]", "original": "[CLS] [SEP]", "replaced": []}
    for answer in (first, last):
        assert answer.keys() == {"sequence", "original", "replaced"}
        assert answer["original"] == PLAIN
        sequence = PLAIN
        for found in reversed(answer["replaced"]):
            assert found.keys() == set(Replacement._fields)
            assert PLAIN[found["start"] : found["end"]] == found["before"]
            assert 0 < found["probability"] < 1
            sequence = sequence[: found["start"]] + found["after"] + sequence[found["end"] :]
        assert answer["sequence"] == sequence != PLAIN
    assert first["replaced"] != last["replaced"]  # another line, other draws


def test_options_reach_the_draw(finished: Finished, text: Path) -> None:
    default = ask(finished.folder, text)
    assert ask(finished.folder, text, "--seed", 42, "--mask_rate", 0.15, "--temperature", 1) == default
    assert ask(finished.folder, text, "--seed", 1)[0] != default[0]
    assert ask(finished.folder, text, "--temperature", 0.01)[0]["sequence"] != default[0]["sequence"]
    assert len(ask(finished.folder, text, "--mask_rate", 0.9)[0]["replaced"]) > len(default[0]["replaced"])


def test_a_file_is_rewritten_line_for_line(finished: Finished, text: Path, tmp_path: Path) -> None:
    """The same text as JSON tells, in the spaces and line ends of the input."""
    written, ended = rewrite_to(finished.folder, text, tmp_path / "out.txt")
    first, one, _, several, last = ask(finished.folder, text)
    filled = SEVERAL
    for guesses in several:
        filled = filled.replace("[MASK]", guesses[0]["token_str"], 1)
    wanted = [
        first["sequence"],
        "",
        "  " + ONE.replace("[MASK]", one[0]["token_str"]) + "\r",
        "\t",
        "[CLS] [SEP]",
        filled,
        "  " + last["sequence"],
    ]
    assert written.split("\n") == wanted
    assert {file.name for file in tmp_path.iterdir()} == {"text.txt", "out.txt"}
    assert ended.err == ""


def test_the_summary_of_a_file_counts_what_was_done(finished: Finished, text: Path, tmp_path: Path) -> None:
    _, ended = rewrite_to(finished.folder, text, tmp_path / "out.txt")
    replaced = [
        found for answer in ask(finished.folder, text) if isinstance(answer, dict) for found in answer["replaced"]
    ]
    changed = [found["probability"] for found in replaced if found["is_changed"]]
    lines, tokens, verdict, where = ended.out.splitlines()
    assert lines == "lines: 4 rewritten, 1 with nothing to mask left as they are, 2 blank"
    assert tokens == f"tokens masked: {len(replaced)}, of which changed: {len(changed)}; [MASK]s filled: 4"
    mean = f"{sum(changed) / len(changed):.1%}"
    assert verdict.startswith(
        f"discriminator's mean probability of a replacement: {mean} at the {len(changed)} changed"
    )
    assert where == f"written to {tmp_path / 'out.txt'}"


def test_pipes_give_what_files_give(
    finished: Finished, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, by_file = rewrite_to(finished.folder, text, tmp_path / "out.txt")
    with text.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        ended = run_demo(finished.folder, "--input", "-", "--output", "-")
    assert ended.out == written
    assert ended.err.splitlines() == by_file.out.splitlines()[:-1]


class AsciiTerminal(io.TextIOWrapper):
    """Standard output under LC_ALL=C or PYTHONIOENCODING=ascii."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")

    def written(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


@pytest.mark.parametrize("form", [["--output", "-"], ["--json"], []])
def test_an_ascii_terminal_gets_utf8_text_and_json_and_no_traceback(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    source, terminal = tmp_path / "text.txt", AsciiTerminal()
    source.write_text("The owl left 漢 café.\nThe [MASK] left 漢 café.\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdout", terminal)
    argv = ["--gen", str(finished.folder), "--input", str(source), "--mask_rate", "0.01", *form]
    assert run_app(demo.main, argv) == 0
    written = terminal.written()
    assert ("漢".encode() in written, b"\\u6f22" in written) == (bool(form), not form)
    if form == ["--json"]:
        assert len(json.loads(written)) == 2


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_replaced_file_keeps_its_mode(finished: Finished, text: Path, tmp_path: Path, mode: int) -> None:
    """A regression: what only its owner might read, everybody could read afterwards."""
    target = tmp_path / "out.txt"
    target.write_text("precious")
    target.chmod(mode)
    written, _ = rewrite_to(finished.folder, text, target)
    assert "precious" not in written
    assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_left_out_and_told(finished: Finished, text: Path, tmp_path: Path, mark: str) -> None:
    plain, _ = rewrite_to(finished.folder, text, tmp_path / "plain.txt")
    text.write_bytes((mark + TEXT).encode())
    written, ended = rewrite_to(finished.folder, text, tmp_path / "out.txt")
    assert written == plain
    assert ("byte order mark" in ended.out) is bool(mark)
    assert "\ufeff" not in str(ask(finished.folder, text))


def test_a_line_in_parts_is_counted_once_and_what_is_no_character_is_told() -> None:
    half, plain = Replacement(0, 1, "a", "\ufffd", 0.5, True), Replacement(0, 1, "b", "c", 0.5, True)
    tally = Tally()
    for replaced, is_last in (([half], False), ([], True), ([], True), ([], False), ([plain], True)):
        tally.add(Rewritten("ab", replaced, False, 0.0, 0), is_last=is_last)
    assert [tally.rewritten, tally.left, tally.lines, tally.changed, tally.no_character] == [2, 1, 3, 2, 1]
    assert tally.report(is_judged=False).splitlines()[2:] == [
        "written as \ufffd, a drawn token being only a part of a character: 1"
    ]


def test_an_output_file_is_replaced_whole_or_left_alone(finished: Finished, text: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("precious")
    text.write_text("The [MASK] " + "owl " * 100)
    assert_refused(call(demo.main, "--gen", finished.folder, "--input", text, "--output", target), 3, "the model reads")
    assert target.read_text() == "precious"
    assert {file.name for file in tmp_path.iterdir()} == {"out.txt", "text.txt"}
    text.write_text(PLAIN)
    written, _ = rewrite_to(finished.folder, text, target)
    assert "precious" not in written


def test_an_output_that_cannot_be_is_refused_before_a_model_is_loaded(text: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(text)
    gone = tmp_path / "gone"

    def refused(*argv: object) -> Ended:
        return call(demo.main, "--gen", gone, *argv)

    assert_refused(refused("--input", text, "--output", text), 2, "is the input itself")
    assert_refused(refused("--input", text, "--output", link), 2, "is the input itself")
    assert_refused(refused("--input", text, "--output", tmp_path), 2, "no regular file")
    assert_refused(refused("--input", text, "--output", "/dev/null"), 2, "no regular file")
    assert_refused(refused("--input", text, "--output", gone / "out.txt"), 2, "is no folder")
    assert_refused(refused("--output", tmp_path / "out.txt"), 2, "--output needs --input")
    assert_refused(refused("--input", text, "--output", tmp_path / "out.txt", "--json"), 2, "give one of the two")
    assert text.read_bytes().decode() == TEXT


@pytest.mark.parametrize("option", ["--mask_rate=0", "--mask_rate=1.1", "--mask_rate=nan", "--temperature=0"])
def test_numbers_that_make_no_sense_are_refused(option: str) -> None:
    assert_refused(call(demo.main, option), 2, option.removeprefix("--").split("=")[0])


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "no sentence"), (b" \n\t\n", "no sentence"), (b"\xff\n", "UTF-8")]
)
def test_an_input_without_text_is_refused_and_leaves_no_output(
    finished: Finished, tmp_path: Path, content: bytes, words: str
) -> None:
    source, target = tmp_path / "text.txt", tmp_path / "out.txt"
    source.write_bytes(content)
    assert_refused(call(demo.main, "--gen", finished.folder, "--input", source, "--output", target), 3, words)
    assert [file.name for file in tmp_path.iterdir()] == ["text.txt"]


def test_a_run_without_a_discriminator_rewrites_and_says_once_that_nothing_is_judged(
    finished: Finished, text: Path, tmp_path: Path
) -> None:
    """As the folder of a run of an MLM objective is."""
    run = tmp_path / "run"
    shutil.copytree(finished.folder / "generator", run / "generator")
    ended = run_demo(run, "--input", text)
    assert ended.err.splitlines() == ["notice: there is no discriminator beside this generator, so nothing is judged"]
    assert "replaced?" not in ended.out
    _, ended = rewrite_to(run, text, tmp_path / "out.txt")
    assert "probability" not in ended.out
    bare, judged = ask(run, text)[0], ask(finished.folder, text)[0]
    assert {found.pop("probability") for found in bare["replaced"]} == {None}
    for found in judged["replaced"]:
        del found["probability"]
    assert bare == judged


def test_a_rewritten_text_is_shown_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    replaced = [Replacement(4, 7, "owl", "la\x1bmp", 0.9, True), Replacement(8, 12, "left", "left", 0.1, False)]
    rewritten = Rewritten("The owl left\x07", replaced, False, 0.2, 2)
    demo.print_rewritten(rewritten, colours=False)
    assert capsys.readouterr().out.splitlines() == [
        "The owl left�",
        "    after: The [owl]->[la�mp] left�",
        "    owl -> la�mp  changed  replaced? 90%",
        "    left          kept     replaced? 10%",
    ]
    demo.print_rewritten(rewritten, colours=True)
    out = capsys.readouterr().out
    assert "The \x1b[1mla�mp\x1b[0m left" in out
    assert ["\x1b[31mreplaced? 90%" in out, "\x1b[32mreplaced? 10%" in out] == [True, True]


def test_a_text_without_anything_to_mask_is_shown_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_rewritten(Rewritten("[CLS]", [], False, 0.0, 0), colours=False)
    assert capsys.readouterr().out == "[CLS]\n    holds no token that may be masked: left as it is\n"
