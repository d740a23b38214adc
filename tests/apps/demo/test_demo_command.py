"""LM_DEMO.py: predictions and rewritten text from any model, as tables, JSON and files."""

import io
import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps import default_model, demo
from electra_albert.apps.command_line import run_app
from electra_albert.inference import rewrite
from electra_albert.inference.model import load_model
from electra_albert.inference.rewrite import Replacement, Rewritten
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, copy_as_learned, finish, start, succeed
from tests.refusals import rows

ONE = "The quiet [MASK] crossed the river."
SEVERAL = "Every [MASK] owl found a [MASK] near the [MASK]."
PLAIN = "The quiet  owl crossed the river, and every OLD cat found a lamp."
TEXT = f"{PLAIN}\n\n  {ONE}\r\n\t\n[CLS] [SEP]\n{SEVERAL}\n  {PLAIN}"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (file := tmp_path / "text.txt").write_bytes(TEXT.encode())
    return file


def run_demo(model: Path, *more: object) -> Ended:
    return succeed(demo.main, "--gen", model, *more)


def ask(model: Path, text: Path, *more: object) -> list[Any]:
    return json.loads(run_demo(model, "--input", text, "--json", *more).out)


def test_json_has_replacements_or_fill_mask_predictions_also_from_a_checkpoint(
    finished: Finished, text: Path
) -> None:
    model = load_model(finished.folder, "cpu")
    for path in (finished.folder, max((finished.folder / "checkpoints").glob("step-*"))):
        first, filled, nothing, _, last = ask(path, text, "--top_k", 3)
        assert nothing == {"sequence": "[CLS] [SEP]", "original": "[CLS] [SEP]", "replaced": []}
        wanted = model.fill_mask(ONE, top_k=3)
        scores, expected = ([top.pop("score") for top in tops] for tops in (filled, wanted))
        assert scores == pytest.approx(expected)
        assert filled == wanted
        for answer in (first, last):
            assert answer["original"] == PLAIN
            sequence = PLAIN
            for found in reversed(answer["replaced"]):
                assert found.keys() == set(Replacement._fields)
                assert PLAIN[found["start"] : found["end"]] == found["before"]
                assert 0 < found["probability"] < 1
                sequence = sequence[: found["start"]] + found["after"] + sequence[found["end"] :]
            assert answer["sequence"] == sequence != PLAIN
        assert first["sequence"] == model.rewrite(PLAIN).sequence
        assert first["replaced"] != last["replaced"]  # another line gives other samples


def test_a_discriminator_is_found_only_next_to_folder_generator(
    finished: Finished, text: Path, tmp_path: Path
) -> None:
    """Regression: ../discriminator was used for any file, even if it belonged to another model."""
    shutil.copytree(finished.folder / "discriminator", tmp_path / "discriminator")
    for name, has_scores in (("generator", True), ("mine", False)):
        model = shutil.copytree(finished.folder / "generator", tmp_path / name)
        for path in (model, model / "model.safetensors"):
            ended = run_demo(path, "--input", text)
            assert ("P(replaced)" in ended.out) == has_scores
            assert ("no discriminator" in ended.err) != has_scores
        for found in ask(model, text)[0]["replaced"]:
            assert (found["probability"] is not None) == has_scores


def rewrite_to(model: Path, text: Path, target: Path, *more: object) -> tuple[str, Ended]:
    ended = run_demo(model, "--input", text, "--output", target, *more)
    return target.read_bytes().decode(), ended


def test_a_file_is_rewritten_line_by_line_with_counts_and_pipes_give_the_same(
    finished: Finished, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text as in JSON, with the white space and line endings of the input."""
    written, ended = rewrite_to(finished.folder, text, tmp_path / "new" / "out.txt")
    first, one, _, several, last = ask(finished.folder, text)
    filled = SEVERAL
    for predictions in several:
        filled = filled.replace("[MASK]", predictions[0]["token_str"], 1)
    masked = "  " + ONE.replace("[MASK]", one[0]["token_str"]) + "\r"
    own = [first["sequence"], "", masked, "\t", "[CLS] [SEP]", filled, "  " + last["sequence"]]
    assert written.split("\n") == own
    replaced = first["replaced"] + last["replaced"]
    changed = [found["probability"] for found in replaced if found["is_changed"]]
    lines, tokens, scores, where = ended.out.splitlines()
    assert re.findall(r"\d+", lines) == ["4", "1", "2"]  # rewritten, with nothing to mask, blank
    assert re.findall(r"\d+", tokens) == [str(len(replaced)), str(len(changed)), "4"]
    assert f"{sum(changed) / len(changed):.1%} for changed" in scores
    assert where.endswith(str(tmp_path / "new" / "out.txt"))
    text.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())  # the byte order mark is not text
    with text.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        piped = run_demo(finished.folder, "--input", "-", "--output", "-")
    assert (piped.out, piped.err.splitlines()) == (written, [lines, tokens, scores])
    # Of a character.
    half = Rewritten("a", [Replacement(0, 1, "a", demo.LOST, None, True)], False, [])
    monkeypatch.setattr(rewrite, "rewrite_lines", lambda *_: [(demo.LOST, half)])
    _, ended = rewrite_to(finished.folder, text, tmp_path / "half.txt")
    assert re.search(f"{demo.LOST}.*: 1\n", ended.out)


def test_scored_text_equals_written_text(finished: Finished, tmp_path: Path) -> None:
    """Token by token, although joined tokens could be split differently.

    Regressions: the maximal number of masks was printed as filled and then refused; other tokens
    were scored than written.
    """
    file, longest = tmp_path / "masks.txt", 32
    for line in ("[MASK]" * (longest - 2), "[MASK][MASK] sees t[MASK]e, [MASK]."):
        file.write_text(line, encoding="utf-8")
        shown = run_demo(finished.folder, "--input", file)
        written = run_demo(finished.folder, file, "--output", "-")
        scores = shown.out.strip().splitlines()[-1].removeprefix("    P(replaced):")
        scored = re.sub(r"\(\d+%\)", "", scores.replace("␣", ""))
        assert scored.replace(" ", "") == written.out.replace(" ", "")
        assert scores.count("%)") == longest - 2 or not line.startswith("[MASK]" * 9)


@pytest.mark.parametrize("form", [["--output", "-"], ["--json"], []])
def test_an_ascii_terminal_gets_utf8_text_and_json_without_traceback(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    """Standard output under LC_ALL=C or PYTHONIOENCODING=ascii."""
    source, buffer = tmp_path / "text.txt", io.BytesIO()
    terminal = io.TextIOWrapper(buffer, encoding="ascii")
    source.write_text("The owl left 漢 café.\nThe [MASK] left 漢 café.\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdout", terminal)
    argv = ["--gen", str(finished.folder), "--input", str(source), "--mask_rate", "0.01", *form]
    assert run_app(demo.main, argv) == 0
    terminal.flush()
    assert ("漢".encode() in buffer.getvalue()) == bool(form)
    assert (b"\\u6f22" in buffer.getvalue()) != bool(form)


def test_an_output_is_replaced_atomically_with_its_mode_or_kept(
    finished: Finished, text: Path, tmp_path: Path
) -> None:
    """Regression: a private file became readable for everybody."""
    target, mode = tmp_path / "out.txt", 0o600
    target.write_text("precious")
    target.chmod(mode)
    for content, word in (("The [MASK] " + "owl " * 100, "line 1"), (" \n", "no sentence")):
        text.write_text(content)
        argv = ("--gen", finished.folder, "--input", text, "--output", target)
        assert_refused(call(demo.main, *argv), 3, word)
        assert target.read_text() == "precious"
    text.write_text(PLAIN)
    assert "precious" not in rewrite_to(finished.folder, text, target)[0]
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert {file.name for file in tmp_path.iterdir()} == {"out.txt", "text.txt"}


INVALID = """
2 | --input text.txt --output link.txt       | is the input file
2 | --input text.txt --output /dev/null      | regular file
2 | --output out.txt                         | --input
2 | --input text.txt --output out.txt --json | --json
2 | --input gone.txt                         | gone.txt
2 | --input /dev/zero                        | a device
3 | --input long.txt                         | over 4,194,304 characters long
3 | --input empty.txt                        | no sentence
3 | --input latin.txt                        | UTF-8
2 | --mask_rate 0                            | mask_rate
2 | --temperature nan                        | temperature
2 | --top_k 0                                | top_k
"""


def test_an_invalid_option_is_refused_before_a_model_is_loaded(text: Path, in_folder: Path) -> None:
    Path("link.txt").symlink_to(text)
    Path("empty.txt").write_bytes(b" \n\t\n")
    Path("latin.txt").write_bytes(b"\xff\n")
    Path("long.txt").write_bytes(b"x" * ((1 << 22) + 1))
    for code, words, name in rows(INVALID):
        assert_refused(call(demo.main, "--gen", "gone", *words.split()), int(code), name)
    assert text.read_bytes().decode() == TEXT


def test_a_very_long_line_is_rewritten_in_parts(finished: Finished, tmp_path: Path) -> None:
    """Regression: rewriting it at once needed gigabytes. No text is lost."""
    line = " ".join(["owl"] * 6_000)
    (file := tmp_path / "giant.txt").write_text(f"{line}\r\nOwl.", encoding="utf-8")
    parts = list(demo._read_lines(str(file)))
    assert ("".join(parts), parts[-1]) == (f"{line}\r\nOwl.", "Owl.")
    assert max(map(len, parts)) < 20_000
    written, _ = rewrite_to(finished.folder, file, tmp_path / "out.txt", "--mask_rate", 0.001)
    assert written.count("\n") == 1
    assert 0.9 * len(line) < len(written) < 1.1 * len(line)


@pytest.mark.slow
def test_a_closed_output_pipe_is_no_failure(finished: Finished, tmp_path: Path) -> None:
    """As with `| head`.

    Regression: buffered text met the closed pipe only at the interpreter's exit.
    """
    (tmp_path / "lines.txt").write_text("The owl [MASK].\nThe fox slept.\n", encoding="utf-8")
    process = start(["LM_DEMO.py", "--gen", finished.folder, "--input", "lines.txt"], tmp_path)
    process.stdout.close()
    process.stdout = None
    assert finish(process)[::2] == (0, "")


def test_tables_show_replacements_without_control_characters_or_word_marks(
    finished: Finished, tmp_path: Path
) -> None:
    (file := tmp_path / "text.txt").write_text(
        "The quiet owl left\x07 the \x1b[31m river.\nThe [MASK] left\x07.\n"
    )
    shown = run_demo(finished.folder, "--input", file, "--mask_rate", 0.5).out
    assert not {"\x07", "\x1b", "▁"} & set(shown)
    assert "rewritten:" in shown
    assert re.search(r"P\(replaced\) \d+%", shown)
    assert re.search(r"P\(replaced\): .*\(\d+%\)", shown)


LOGGED = "(shipped model; no finished run in runs/)"


def ship(finished: Finished, folder: Path, name: str = "little") -> Path:
    """Copy only a generator and a discriminator of a run to the shipped models."""
    placed = folder / "data" / "models" / name
    for part in ("generator", "discriminator"):
        shutil.copytree(finished.folder / part, placed / part)
    return placed


SHORT = ("The owl [MASK].", "The fox slept.")  # the tiny run has 32 positions


def test_the_demo_uses_the_shipped_model(
    finished: Finished, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last by name, which is logged."""
    (in_folder / "data" / "models" / "z").mkdir(parents=True)
    placed = max(ship(finished, in_folder, name) for name in "bca")
    monkeypatch.setattr(demo, "SENTENCES", SHORT)
    ended = call(demo.main)
    assert (ended.code, ended.err) == (0, f"model: data/models/c {LOGGED}\n")
    assert all(sentence in ended.out for sentence in demo.SENTENCES)
    (in_folder / "elsewhere").mkdir()
    monkeypatch.chdir(in_folder / "elsewhere")
    assert call(demo.main).err == f"model: {placed} {LOGGED}\n"


def test_the_newest_run_takes_precedence_over_the_shipped_model(
    finished: Finished, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are broken, so using one would fail.

    A model folder copied into runs/ is not a run.
    """
    monkeypatch.setattr(demo, "SENTENCES", SHORT)
    placed = ship(finished, in_folder)
    for name in ("older", "newest"):
        copy_as_learned(finished.folder, in_folder / "runs" / name)
    # Written later.
    shutil.copytree(placed, in_folder / "runs" / "copied", copy_function=shutil.copy)
    for folder in (placed, in_folder / "runs" / "older", in_folder / "runs" / "copied"):
        (folder / "generator" / "model.safetensors").write_bytes(b"broken")
    ended = call(demo.main)
    assert (ended.code, ended.err) == (0, "model: runs/newest (newest run)\n")
    (in_folder / "runs" / "older" / "generator" / "config.json").touch()
    assert call(demo.main).code == 4
    assert default_model.newest_run().name == "older"


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("config.yaml", "max_steps: 20", "max_steps: 40", "stopped at step 20 of 40"),
        ("metrics.jsonl", r".*\n\Z", "", "scores not clearly above the baselines after 20 steps"),
    ],
)
def test_a_run_that_did_not_finish_or_learn_is_skipped_with_a_notice(
    finished: Finished, in_folder: Path, caplog: Any, name: str, old: str, new: str, reason: str
) -> None:
    caplog.set_level("INFO", logger="electra_albert")
    ship(finished, in_folder)
    learned = copy_as_learned(finished.folder, in_folder / "runs" / "learned")
    file = copy_as_learned(finished.folder, in_folder / "runs" / "newer") / name
    file.write_text(re.sub(old, new, file.read_text()))
    assert default_model.default_model("--gen") == Path("runs/learned")
    notice = f"notice: skipping runs/newer ({reason}); to use it anyway: --gen runs/newer"
    assert caplog.messages == [notice, "model: runs/learned (newest run)"]
    shutil.rmtree(learned)
    assert default_model.default_model("--gen") == Path("data/models/little")
    assert "no other finished run" in caplog.messages[-1]
