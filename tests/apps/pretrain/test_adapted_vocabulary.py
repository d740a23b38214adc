"""Going on from a stock folder: its vocabulary with new words, and what cannot be begun with, in one line."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from electra_albert.apps import show_batch
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.hub.formats import TABLE
from tests.apps.tiny_run import assert_refused, call, succeed, untimed_rows
from tests.apps.tiny_stock import MLM, NEW_WORDS, PIECES, Desk, adapt, load_stock

ALBERT = "AlbertForMaskedLM"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.mark.parametrize("kind", [ALBERT, "BertForMaskedLM"])
def test_new_words_grow_the_table_the_config_and_the_tokenizer(desk: Desk, tmp_path: Path, kind: str) -> None:
    own = load_tokenizer(desk.stock(kind))
    wanted = len(own) + len(NEW_WORDS)
    ended = adapt(desk, desk.stock(kind), tmp_path / "run", *MLM, "--extend_vocab_to", wanted)
    assert f"{len(NEW_WORDS)} new" in ended.err
    exported = tmp_path / "run" / "generator"
    assert json.loads((exported / "config.json").read_text())["vocab_size"] == wanted
    tokenizer = load_tokenizer(exported)
    assert len(tokenizer) == wanted
    for word in NEW_WORDS:
        assert len(tokenizer.tokenize(word)) == 1 < len(own.tokenize(word))
    assert load_stock(exported, "AlbertForMaskedLM").get_input_embeddings().weight.shape[0] == wanted


def test_a_new_piece_begins_as_the_mean_of_its_old_pieces(desk: Desk) -> None:
    own = load_tokenizer(desk.stock(ALBERT))
    job, _ = desk.job(desk.stock(ALBERT), *MLM, "--extend_vocab_to", PIECES + len(NEW_WORDS))
    new, old = job.objective.generator.state_dict(), load_stock(desk.stock(ALBERT), ALBERT).state_dict()
    for word in NEW_WORDS:
        (number,) = job.prepared.tokenizer.encode(word, add_special_tokens=False)
        before = own.encode(word, add_special_tokens=False)
        assert number >= PIECES
        for name, stock_name in ((TABLE, f"albert.{TABLE}"), ("predictions.bias", "predictions.bias")):
            assert torch.allclose(new[name][number], old[stock_name][before].mean(0), atol=1e-6)
    assert torch.equal(new[TABLE][:PIECES], old[f"albert.{TABLE}"])


def test_an_extended_run_goes_on_by_the_same_command_when_the_folder_is_gone(desk: Desk, tmp_path: Path) -> None:
    origin = shutil.copytree(desk.stock(ALBERT), tmp_path / "origin")
    command = (*MLM, "--extend_vocab_to", PIECES + 500, "--save_steps", 1)
    adapt(desk, origin, tmp_path / "run", *command)
    expected = untimed_rows(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000002")
    shutil.rmtree(origin)
    ended = adapt(desk, origin, tmp_path / "run", *command)
    assert "after step 1" in ended.err
    assert untimed_rows(tmp_path / "run") == expected
    succeed(pretrain.main, "--config", tmp_path / "run" / "config.yaml")
    succeed(show_batch.main, "--run", tmp_path / "run", "--step", 2)


def test_words_are_added_to_the_vocabulary_of_a_folder_not_of_a_run(desk: Desk, tmp_path: Path) -> None:
    adapt(desk, desk.stock(ALBERT), tmp_path / "first", *MLM)
    first, second = tmp_path / "first", tmp_path / "second"
    for more, word in {
        ("--extend_vocab_to", PIECES + 1): "vocabulary",
        ("--model.num_attention_heads", 2): "num_attention_heads",
        ("--model.num_hidden_layers", 4): "num_hidden_layers",
    }.items():
        assert_refused(call(pretrain.main, *desk.options(first, second, *MLM, *more)), 4, str(first), word)
    adapt(desk, first / "generator", second, *MLM, "--extend_vocab_to", PIECES + 1)


def test_rows_beyond_the_vocabulary_are_left_out_and_sequences_are_no_longer_than_the_model_reads(
    desk: Desk, tmp_path: Path
) -> None:
    job, _ = desk.job(desk.stock(ALBERT, vocab_size=PIECES + 10), *MLM)
    assert job.objective.generator.config.vocab_size == PIECES
    argv = desk.options(desk.stock(ALBERT, max_position_embeddings=32), tmp_path / "run", *MLM)
    place = argv.index("--max_seq_length")
    ended = succeed(pretrain.main, *argv[:place], *argv[place + 2 :], "--dry_run")
    assert "of 32 tokens" in ended.err


@pytest.mark.parametrize(
    ("stock", "broken", "more", "code", "word"),
    [
        ({}, "", ("--model.hidden_size", 64), 4, "shape"),
        ({}, "", ("--model.hidden_act", "relu"), 4, "hidden_act"),
        ({}, "", ("--max_seq_length", 65), 2, "max_seq_length"),
        ({}, "", ("--tokenizer", "other"), 2, "--tokenizer"),
        ({"vocab_size": PIECES - 10}, "", (), 4, str(PIECES - 10)),
        ({}, "config.json", (), 4, "roberta"),
        ({}, "model.safetensors", (), 2, "model.safetensors"),
    ],
)
def test_a_folder_or_option_that_does_not_fit_is_refused(
    desk: Desk, tmp_path: Path, stock: dict[str, int], broken: str, more: tuple[object, ...], code: int, word: str
) -> None:
    origin = desk.stock(ALBERT, **stock)
    if broken:
        origin = shutil.copytree(origin, tmp_path / "origin")
        text = (origin / "config.json").read_text().replace('"model_type": "albert"', '"model_type": "roberta"')
        (origin / broken).unlink()
        if broken == "config.json":
            (origin / broken).write_text(text)
    if "other" in more:
        more = ("--tokenizer", desk.stock("BertForMaskedLM"))
    ended = call(pretrain.main, *desk.options(origin, tmp_path / "run", *MLM, *more))
    assert_refused(ended, code, word)
    assert not (tmp_path / "run" / "checkpoints").exists()
