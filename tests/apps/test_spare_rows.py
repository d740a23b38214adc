"""Folders whose token table has rows behind the tokenizer's pieces: such rows are never guessed, and change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from electra_albert.apps.demo import main as demo
from electra_albert.contracts import CheckpointError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.inference.model import load_model
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.apps.tiny_stock import load_stock, write_stock

SPARE = 7
TEMPTING = 30.0  # the bias of a row without a piece: stock guesses it at every mask
TOLERANCE = 1e-5  # of float32 sums that run otherwise over tables of other sizes
NATS_TOLERANCE = 1e-4
MASKED = ["The quiet [MASK] crossed the river.", "Every [MASK] owl found a [MASK]."]
PLAIN = ["The quiet owl crossed the river.", "", "Every old cat found a lamp near the garden."]
KINDS = ["AlbertForMaskedLM", "ElectraForMaskedLM"]


class Twins(NamedTuple):
    """The same weights twice: with rows behind the pieces, and without."""

    padded: Path
    plain: Path
    pieces: int


def twins(folder: Path, kind: str, spare: int = SPARE) -> Twins:
    write_stock(folder / "plain", kind)
    pieces = len(load_tokenizer(folder / "plain"))
    rows = pieces + spare
    write_stock(folder / "padded", kind, vocab_size=rows)
    padded, plain = (load_stock(folder / name, kind) for name in ("padded", "plain"))
    if kind.endswith("MaskedLM"):
        with torch.no_grad():
            padded.get_output_embeddings().bias[pieces:] = TEMPTING
        padded.save_pretrained(folder / "padded")
    state = {name: rest[:pieces] if rest.shape[:1] == (rows,) else rest for name, rest in padded.state_dict().items()}
    plain.load_state_dict(state)
    plain.save_pretrained(folder / "plain")
    return Twins(folder / "padded", folder / "plain", pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_piece_are_never_guessed(tmp_path: Path, kind: str) -> None:
    """Scores are stock's among the pieces alone; stock itself guesses a row that is none."""
    folder, _, pieces = twins(tmp_path, kind)
    stock, model = load_stock(folder, kind), load_model(folder, "cpu")
    encoded = model.tokenizer(MASKED[0].replace("[MASK]", model.tokenizer.mask_token), return_tensors="pt")
    place = encoded["input_ids"][0].tolist().index(model.tokenizer.mask_token_id)
    with torch.no_grad():
        logits = stock(**encoded).logits[0, place]
    assert logits.argmax() >= pieces
    everything = model.fill_mask(MASKED[0], top_k=10**6)
    expected = logits[:pieces].softmax(-1)
    assert sorted(guess["token"] for guess in everything) == list(range(pieces))
    assert [guess["score"] for guess in everything] == pytest.approx(
        [float(expected[guess["token"]]) for guess in everything], abs=TOLERANCE
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_piece_change_no_answer(tmp_path: Path, kind: str) -> None:
    padded_folder, plain_folder, _ = twins(tmp_path, kind)
    padded, plain = load_model(padded_folder, "cpu"), load_model(plain_folder, "cpu")
    ours, theirs = padded.pseudo_log_likelihood(PLAIN), plain.pseudo_log_likelihood(PLAIN)
    assert ours == pytest.approx(theirs, abs=NATS_TOLERANCE)
    for mine, other in zip(padded.features(PLAIN), plain.features(PLAIN), strict=True):
        assert torch.equal(mine.tokens, other.tokens)
    for mine, other in zip(padded.fill_mask(MASKED[1]), plain.fill_mask(MASKED[1]), strict=True):
        assert [guess["token_str"] for guess in mine] == [guess["token_str"] for guess in other]


def test_a_detector_may_have_spare_rows_too(tmp_path: Path) -> None:
    folder, _, _ = twins(tmp_path, "ElectraForPreTraining")
    stock, model = load_stock(folder, "ElectraForPreTraining"), load_model(folder, "cpu")
    with torch.no_grad():
        expected = stock(**model.tokenizer(PLAIN[0], return_tensors="pt")).logits[0, 1:-1].sigmoid()
    found = [verdict.probability for verdict in model.replaced_probabilities(PLAIN[0])]
    assert found == pytest.approx(expected.tolist(), abs=TOLERANCE)


# LM_DEMO.py.


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("\n".join([*MASKED, *filter(None, PLAIN)]), encoding="utf-8")
    return file


def ask(model: Path, text: Path, *more: object) -> Ended:
    return call(demo.main, "--gen", model, "--input", text, "--json", *more)


def without_scores(answers: Any) -> Any:
    """A piece of the demo's JSON without numbers that are computed."""
    if isinstance(answers, list):
        return [without_scores(answer) for answer in answers]
    if isinstance(answers, dict):
        return {name: without_scores(value) for name, value in answers.items() if name not in ("score", "probability")}
    return answers


@pytest.mark.parametrize("kind", KINDS[:1])
def test_the_demo_fills_and_rewrites_with_pieces_alone_and_says_so(tmp_path: Path, text: Path, kind: str) -> None:
    """A temperature near nothing takes the best guess, so that no draw depends on how many rows there are."""
    folder, plain, _ = twins(tmp_path, kind)
    padded_said, plain_said = (ask(path, text, "--temperature", 1e-3) for path in (folder, plain))
    assert (padded_said.code, plain_said.code) == (0, 0), padded_said.err
    assert without_scores(json.loads(padded_said.out)) == without_scores(json.loads(plain_said.out))
    assert f"{SPARE} rows of the token table" in padded_said.err
    assert "token table" not in plain_said.err


def test_the_demos_discriminator_has_a_row_for_each_piece_or_the_generators_rows(tmp_path: Path, text: Path) -> None:
    generator, _, _ = twins(tmp_path / "generator", "ElectraForMaskedLM")
    judges = twins(tmp_path / "same", "ElectraForPreTraining")
    other = twins(tmp_path / "other", "ElectraForPreTraining", SPARE + 1).padded
    for judge in judges[:2]:
        ended = ask(generator, text, "--disc", judge)
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)[-1]["replaced"][0]["probability"] is not None
    assert_refused(ask(generator, text, "--disc", other), 4, f"the model {judges.pieces + SPARE + 1}")


def test_a_tokenizer_that_lies_elsewhere_needs_a_piece_for_every_row(tmp_path: Path, text: Path) -> None:
    folder, plain, pieces = twins(tmp_path, "BertForMaskedLM")
    assert_refused(ask(folder, text, "--tokenizer", plain), 4, f"{pieces} pieces", f"{pieces + SPARE}", "--tokenizer")
    assert ask(plain, text, "--tokenizer", folder).code == 0


# What cannot be used.


def test_a_table_of_fewer_rows_than_pieces_is_refused(tmp_path: Path, text: Path) -> None:
    pieces = twins(tmp_path, "BertForMaskedLM").pieces
    write_stock(folder := tmp_path / "short", "BertForMaskedLM", vocab_size=pieces - 1)
    with pytest.raises(CheckpointError, match=f"{pieces} pieces, the model {pieces - 1}; put the tokenizer"):
        load_model(folder, "cpu")
    assert_refused(ask(folder, text), 4, f"{pieces} pieces, the model {pieces - 1}; name the tokenizer")


@pytest.mark.parametrize("which", ["padded", "plain"])
def test_a_table_that_its_configuration_does_not_describe_is_refused(tmp_path: Path, text: Path, which: str) -> None:
    """Rows are left out where they are there; those that are not are missed."""
    found = twins(tmp_path, "BertForMaskedLM")
    damaged, rows = tmp_path / which, found.pieces + (SPARE if which == "padded" else 0)
    contents = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps(contents | {"vocab_size": rows + 2}))
    with pytest.raises(CheckpointError, match=rf"shape \[{rows}.* its configuration.* says \[{rows + 2}"):
        load_model(damaged, "cpu")
    assert_refused(ask(damaged, text), 4, f"shape [{rows}")
