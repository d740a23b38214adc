"""A model reads sequences as long as those it was trained on, and every file and message has that length."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import electra_albert as ea
from electra_albert.apps import export
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.options import parse_pretraining
from tests.apps.conftest import Finished
from tests.apps.tiny_run import outcome, succeed
from tests.apps.tiny_tasks import cola, tune
from tests.apps.tiny_tasks import options as task_options

TEXT = "The old fox crossed the river."
LENGTH, OLD_LENGTH = 32, 64  # of the tiny run; of the table of a run by an older version
STEPS = ("--max_steps", 4, "--save_steps", 2, "--logging_steps", 1, "--eval_steps", 4)


def positions(model: Path) -> int:
    """The length that stock reads in an exported folder, the same in the files of model and tokenizer."""
    file = "config.json", "tokenizer_config.json"
    config, tokenizer = (json.loads((model / name).read_text(encoding="utf-8")) for name in file)
    assert tokenizer["model_max_length"] == config["max_position_embeddings"]
    return int(config["max_position_embeddings"])


def test_a_run_has_the_length_of_its_sequences(finished: Finished) -> None:
    for part in ("generator", "discriminator"):
        assert positions(finished.folder / part) == LENGTH
    for card in finished.folder.rglob("README.md"):
        assert f"at most {LENGTH} tokens" in card.read_text(encoding="utf-8")
    model = ea.load_model(finished.folder, "cpu")
    assert f"at most {LENGTH} tokens" in repr(model)
    with pytest.raises(ea.contracts.DataError, match=f"the maximum is {LENGTH}"):
        model.features("the " * 50)
    assert len(model.features("the " * 50, truncate=True).subwords) == LENGTH


def test_an_older_run_resumes_and_its_untrained_positions_are_left_out(finished: Finished, tmp_path: Path) -> None:
    # Planted: without the length in a run's record, its models have the positions of their table.
    old, argv = tmp_path / "old", finished.options(tmp_path / "old", *STEPS)
    config = parse_pretraining(argv)[1]
    ea.pretrain(replace(config, model=replace(config.model, max_position_embeddings=OLD_LENGTH)))
    wanted = outcome(old, 4)
    assert positions(old / "generator") == positions(old / "discriminator") == OLD_LENGTH
    before = ea.load_model(old, "cpu").features(TEXT).tokens
    for source in (old, old / "discriminator", old / "checkpoints" / "step-0000002"):
        assert ea.load_model(source, "cpu").encoder.config.max_position_embeddings == LENGTH
    assert torch.equal(ea.load_model(old, "cpu").features(TEXT).tokens, before)
    succeed(export.main, "--model", old, "--output_dir", tmp_path / "exported")
    assert (positions(old / "generator"), positions(tmp_path / "exported")) == (OLD_LENGTH, LENGTH)
    shutil.rmtree(old / "checkpoints" / "step-0000004")
    succeed(pretrain.main, *argv)
    assert (outcome(old, 4), positions(old / "generator")) == (wanted, OLD_LENGTH)
    tokenizer = ("--tokenizer", old / "tokenizer")
    for length, name in ((LENGTH, "same"), (48, "longer")):
        more = ("--init_from", old, "--max_seq_length", length, *tokenizer)
        succeed(pretrain.main, *finished.options(tmp_path / name, *STEPS, *more))
        assert positions(tmp_path / name / "discriminator") == length
    shorter = ("--init_from", tmp_path / "longer", "--max_seq_length", 16, *tokenizer)
    succeed(pretrain.main, *finished.options(tmp_path / "shorter", *STEPS, *shorter))
    assert positions(tmp_path / "shorter" / "discriminator") == 48


def test_other_positions_than_the_trained_ones_are_refused_and_those_of_older_files_ignored() -> None:
    option = "--model.max_position_embeddings"
    for length in (128, 512):
        with pytest.raises(ea.UsageError, match=f"{option} {length} differs from --max_seq_length 64"):
            parse_pretraining([option, str(length)])
    for argv in ([option, "64"], ["--config", '{"model": {"max_position_embeddings": 512}}'], []):
        assert parse_pretraining(argv)[1].model.max_position_embeddings == 64


def test_fine_tuning_on_longer_texts_says_so_and_has_their_length(finished: Finished, tmp_path: Path) -> None:
    file, options = tmp_path / "t.csv", ("--max_steps", 1, "--max_seq_length", 48)
    custom = ("--text_column", "text", "--label_column", "label", "--train_file", file, "--validation_file", file)
    for words, length, expected in ((90, 48, 48), (3, 48, LENGTH), (3, 9_000, LENGTH)):
        file.write_text("text,label\n" + f"{'the ' * words},a\nowl,b\n" * 8, encoding="utf-8")
        output, more = tmp_path / f"{words}-{length}", (*custom, "--max_steps", 1, "--max_seq_length", length)
        ended = tune(*task_options("custom", None, finished.folder, output, *more))
        assert f"has {LENGTH} trained positions; the others are extrapolated" in ended.err
        assert positions(output / "model") == expected
    fresh = ("--from_scratch", "true", "--output_dir", tmp_path / "fresh")
    ended = tune(*cola(tmp_path / "task").options(finished.folder, tmp_path / "out", *options, *fresh))
    assert "trained positions" not in ended.err
