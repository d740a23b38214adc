"""LM_DEMO.py: the fill-mask pipeline's answers and rewritten text from whatever is named; JSON, tables, files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps import export
from electra_albert.apps.demo import main as demo
from electra_albert.apps.demo.sentences import OF_DOCUMENTATION
from electra_albert.corpus.tokenizer import Piece
from electra_albert.inference.fill_mask import Verdict, encode, fill
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, call, copy_as_learned, finish, start

ONE, SEVERAL = "The quiet [MASK] crossed the river.", "Every [MASK] owl found a [MASK] near the [MASK]."
UNKNOWN = "  A 漢字 and a lamp, near the [MASK]  "
SCORE_TOLERANCE = 1e-5  # float32 probabilities from two implementations of the same attention

Answers = list[Any]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    file = tmp_path / "sentences.txt"
    file.write_text(f"{ONE}\n\n{SEVERAL}\n{UNKNOWN}\n", encoding="utf-8")
    return file


def ask(model: Path, sentences: Path, *more: object) -> Answers:
    ended = call(demo.main, "--gen", model, "--input", sentences, "--json", *more)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def pipeline_answers(folder: Path, sentences: Path) -> Answers:
    """What stock transformers says of the same sentences."""
    from transformers import pipeline

    fill = pipeline("fill-mask", model=str(folder), tokenizer=str(folder), top_k=5, device=torch.device("cpu"))
    return [fill(line.strip()) for line in sentences.read_text(encoding="utf-8").splitlines() if line.strip()]


def difference(ours: Answers, theirs: Answers) -> str:
    """The first difference between two pieces of the demo's JSON, scores apart by more than the tolerance; or ''."""
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{len(ours)} elements, not {len(theirs)}"
        return next((found for pair in zip(ours, theirs, strict=True) if (found := difference(*pair))), "")
    if abs(ours["score"] - theirs["score"]) > SCORE_TOLERANCE:
        return f"score {ours['score']}, not {theirs['score']}"
    return next(
        (f"{name} of {ours} and {theirs}" for name in theirs if name != "score" and ours[name] != theirs[name]), ""
    )


def test_json_is_what_the_fill_mask_pipeline_gives(finished: Finished, sentences: Path) -> None:
    ours = ask(finished.folder, sentences)
    assert difference(ours, pipeline_answers(finished.folder / "generator", sentences)) == ""
    one, several, _ = ours
    assert [len(one), one[0].keys()] == [5, {"score", "token", "token_str", "sequence"}]
    assert [len(several), len(several[0])] == [3, 5]


def test_a_demo_that_forgets_the_special_tokens_is_found_out(
    finished: Finished, sentences: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault for the test above: the text is encoded without [CLS] and [SEP]."""
    from electra_albert.inference import fill_mask

    encode = fill_mask.encode
    monkeypatch.setattr(fill_mask, "encode", lambda text, tokenizer, longest: encode(text, tokenizer, longest)[:, 1:-1])
    theirs = pipeline_answers(finished.folder / "generator", sentences)
    assert difference(ask(finished.folder, sentences), theirs) != ""


def export_to(folder: Path, finished: Finished, *more: object) -> Path:
    ended = call(export.main, "--model", finished.folder, "--output_dir", folder, *more)
    assert ended.code == 0, ended.err
    return folder


def stock_folder(folder: Path, finished: Finished) -> Path:
    """What transformers itself writes of the model."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    source = str(finished.folder / "generator")
    AutoModelForMaskedLM.from_pretrained(source).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(source).save_pretrained(str(folder))
    return folder


SOURCES: dict[str, Callable[[Path, Finished], Path]] = {
    "run folder": lambda folder, finished: finished.folder,
    "generator folder of a run": lambda folder, finished: finished.folder / "generator",
    "exported folder": export_to,
    "exported folder of a .pt": lambda folder, finished: export_to(folder, finished, "--format", "pt"),
    "safetensors file": lambda folder, finished: finished.folder / "generator" / "model.safetensors",
    "pt file": lambda folder, finished: export_to(folder, finished, "--format", "pt") / "weights.pt",
    "stock folder": stock_folder,
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_form_of_a_model_gives_the_same_answers(
    finished: Finished, sentences: Path, tmp_path: Path, source: str
) -> None:
    model = SOURCES[source](tmp_path / "model", finished)
    assert difference(ask(model, sentences), ask(finished.folder, sentences)) == ""


def test_a_bare_weights_file_takes_its_configuration_and_tokenizer_by_name(
    finished: Finished, sentences: Path, tmp_path: Path
) -> None:
    source, bare = finished.folder / "generator", tmp_path / "bare" / "model.safetensors"
    bare.parent.mkdir()
    shutil.copyfile(source / "model.safetensors", bare)
    answers = ask(bare, sentences, "--config", source / "config.json", "--tokenizer", finished.folder / "tokenizer")
    assert difference(answers, ask(finished.folder, sentences)) == ""


def test_without_gen_the_newest_run_is_taken(finished: Finished, in_folder: Path, sentences: Path) -> None:
    """The older run is broken: taking it would fail."""
    for name in ("older", "newest"):
        copy_as_learned(finished.folder, in_folder / "runs" / name)
    (in_folder / "runs" / "older" / "generator" / "model.safetensors").write_bytes(b"broken")
    ended = call(demo.main, "--input", sentences, "--json")
    assert ended.code == 0, ended.err
    assert difference(json.loads(ended.out), ask(finished.folder, sentences)) == ""
    (in_folder / "runs" / "older" / "generator" / "config.json").touch()
    assert call(demo.main, "--input", sentences, "--json").code == 4


def test_the_judged_text_is_the_written_text(finished: Finished, tmp_path: Path) -> None:
    """Token for token, in spite of guesses that run together and would be cut otherwise. Regressions: as many masks as
    the model reads were shown filled and then refused, and other tokens were judged than were written."""
    file, longest = tmp_path / "masks.txt", 64
    for line in ("[MASK]" * (longest - 2), "[MASK][MASK] sees t[MASK]e, [MASK]."):
        file.write_text(line, encoding="utf-8")
        shown = call(demo.main, "--gen", finished.folder, "--input", file)
        written = call(demo.main, "--gen", finished.folder, "--input", file, "--output", "-")
        assert (shown.code, written.code) == (0, 0), shown.err + written.err
        verdicts = shown.out.strip().splitlines()[-1].removeprefix("    replaced?")
        judged = re.sub(r"\(\d+%\)", "", verdicts.replace("␣", ""))
        assert judged.replace(" ", "") == written.out.replace(" ", "")
        if line.startswith("[MASK]" * 9):
            assert verdicts.count("%)") == longest - 2


def test_top_k_is_how_many_guesses_there_are(finished: Finished, sentences: Path) -> None:
    one, several, _ = ask(finished.folder, sentences, "--top_k", 2)
    assert [len(one), len(several[2])] == [2, 2]
    everything, *_ = ask(finished.folder, sentences, "--top_k", 100_000)
    assert sum(guess["score"] for guess in everything) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_the_script_prints_a_table_and_the_verdict_on_every_token(finished: Finished, sentences: Path) -> None:
    ended: Ended = finish(start(["LM_DEMO.py", "--gen", finished.folder, "--input", sentences], sentences.parent))
    assert (ended.code, ended.err) == (0, "")
    blocks = [block.splitlines() for block in ended.out.strip().split("\n\n")]
    assert [block[0] for block in blocks] == [ONE, SEVERAL, UNKNOWN.strip()]
    for block, masks in zip(blocks, (1, 3, 1), strict=True):
        assert [line.count("%") for line in block[1:-1]] == [masks] * 5
        assert block[-1].startswith("    replaced? ")
        assert block[-1].count("%)") >= 6
    assert "\x1b" not in ended.out


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_failure(finished: Finished, tmp_path: Path) -> None:
    """As `| head` does. A regression: text left in a buffer met the closed pipe only when the interpreter ended."""
    process = start(["LM_DEMO.py", "--gen", finished.folder], tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert finish(process)[::2] == (0, "")


def test_without_a_discriminator_there_are_no_verdicts(finished: Finished, sentences: Path, tmp_path: Path) -> None:
    model = export_to(tmp_path / "model", finished)
    ended = call(demo.main, "--gen", model, "--input", sentences)
    assert ended.code == 0, ended.err
    assert "replaced?" not in ended.out
    beside = call(demo.main, "--gen", model, "--disc", finished.folder, "--input", sentences)
    assert beside.out.count("replaced?") == 3


def test_a_filled_text_is_judged_without_the_mark_that_the_tokenizer_puts_behind_a_mask(finished: Finished) -> None:
    """Found by looking: "[MASK]." is cut into a mask, an empty piece and the full stop, and all were judged."""
    model = load_model(finished.folder, "cpu")
    assert model.generator is not None
    text = "The owl saw the [MASK]."
    ids = encode(text, model.tokenizer, 64)
    empty = model.tokenizer.convert_tokens_to_ids("▁")
    assert ids[0, -3] == empty
    filled = fill(model.generator, model.tokenizer, text, ids, 1).ids
    assert filled.shape == (1, ids.shape[1] - 1)
    assert filled[0, -2:].tolist() == ids[0, -2:].tolist()
    assert filled[0, :-3].tolist() == ids[0, :-4].tolist()


@pytest.mark.parametrize(("name", "verdicts"), [("generator", 3), ("mine", 0)])
def test_a_discriminator_is_found_beside_a_folder_of_the_name_generator_alone(
    finished: Finished, sentences: Path, tmp_path: Path, name: str, verdicts: int
) -> None:
    """A regression: ../discriminator was taken from wherever the file lay, whatever it belonged to."""
    model = export_to(tmp_path / name, finished, "--format", "pt")
    shutil.copytree(finished.folder / "discriminator", tmp_path / "discriminator")
    for path in (model, model / "weights.pt"):
        ended = call(demo.main, "--gen", path, "--input", sentences)
        assert ended.code == 0, ended.err
        assert ended.out.count("replaced?") == verdicts


def test_built_in_sentences_are_shown_where_none_are_given(finished: Finished) -> None:
    ended = call(demo.main, "--gen", finished.folder)
    assert ended.code == 0, ended.err
    for sentence in OF_DOCUMENTATION:
        assert sentence in ended.out
    assert {demo.MASK in sentence for sentence in OF_DOCUMENTATION} == {True, False}


def test_control_characters_of_a_sentence_never_reach_the_terminal(finished: Finished, tmp_path: Path) -> None:
    file = tmp_path / "sentences.txt"
    file.write_text("The \x1b[31m[MASK] owl \x07 left.\n", encoding="utf-8")
    ended = call(demo.main, "--gen", finished.folder, "--input", file)
    assert ended.code == 0, ended.err
    assert not {"\x1b", "\x07"} & set(ended.out)


@pytest.mark.parametrize(("text", "shown"), [("▁", "␣"), ("Ġ", "␣"), ("", "␣"), (" ", "␣"), (" owl", "owl")])
def test_words_are_shown_as_people_write_them(capsys: pytest.CaptureFixture[str], text: str, shown: str) -> None:
    """A tokenizer's mark of a word's beginning is no text, and nothing at all cannot be seen."""
    demo.print_verdicts([Verdict(Piece(text, True), 0.5), Verdict(Piece("s", False), 0.5)], colours=False)
    assert capsys.readouterr().out == f"    replaced? {shown}(50%)s(50%)\n"
    demo.print_guesses("The [MASK]", [[{"score": 0.5, "token": 5, "token_str": text, "sequence": ""}]], colours=False)
    assert capsys.readouterr().out == f"The [MASK]\n     50.0%  {shown}\n"


@pytest.mark.parametrize(("probability", "colour"), [(0.1, "32"), (0.45, "33"), (0.9, "31")])
def test_verdicts_are_coloured_only_where_asked(
    capsys: pytest.CaptureFixture[str], probability: float, colour: str
) -> None:
    """Green, yellow and red for ever likelier replacements; in a file the per cent alone."""
    verdicts = [Verdict(Piece("owl", True), probability), Verdict(Piece("s", False), probability)]
    demo.print_verdicts(verdicts, colours=True)
    assert capsys.readouterr().out.count(f"\x1b[{colour}m") == 2
    demo.print_verdicts(verdicts, colours=False)
    assert capsys.readouterr().out == f"    replaced? owl({probability:.0%})s({probability:.0%})\n"
