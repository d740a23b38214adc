"""A model reads sequences as long as those it was trained on, and every file and message has that
length.
"""

import json
from pathlib import Path

import pytest

import electra_albert as ea
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.options import parse_pretraining
from tests.apps.conftest import Finished
from tests.apps.test_depth_and_growth import STEPS
from tests.apps.tiny_run import succeed
from tests.apps.tiny_tasks import options as task_options
from tests.apps.tiny_tasks import tune

LENGTH = 32  # of the tiny run


def positions(model: Path) -> int:
    """The length that stock reads in an exported folder, the same in the files of model and
    tokenizer.
    """
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


def test_a_run_from_weights_has_the_longer_of_both_lengths(
    finished: Finished, tmp_path: Path
) -> None:
    tokenizer = ("--tokenizer", finished.folder / "tokenizer")
    lengths = (("same", finished.folder, LENGTH, LENGTH), ("longer", finished.folder, 48, 48))
    for name, source, length, wanted in (*lengths, ("shorter", tmp_path / "longer", 16, 48)):
        more = ("--init_from", source, "--max_seq_length", length, *tokenizer)
        succeed(pretrain.main, *finished.options(tmp_path / name, *STEPS, *more))
        assert positions(tmp_path / name / "discriminator") == wanted


def test_a_number_of_positions_in_an_older_file_is_ignored() -> None:
    for argv in (["--config", '{"model": {"max_position_embeddings": 512}}'], []):
        assert parse_pretraining(argv)[1].model.max_position_embeddings == 64


def test_fine_tuning_on_longer_texts_says_so_and_has_their_length(
    finished: Finished, tmp_path: Path
) -> None:
    file = tmp_path / "t.csv"
    files = ("--train_file", file, "--validation_file", file, "--max_steps", 1)
    for words, length, expected in ((90, 48, 48), (3, 48, LENGTH), (3, 9_000, LENGTH)):
        file.write_text("text,label\n" + f"{'the ' * words},a\nowl,b\n" * 8, encoding="utf-8")
        output = tmp_path / f"{words}-{length}"
        more = (*files, "--max_seq_length", length)
        ended = tune(*task_options("custom", None, finished.folder, output, *more))
        assert f"is trained for at most {LENGTH} tokens" in ended.err
        assert positions(output / "model") == expected
    output, fresh = tmp_path / "fresh", ("--max_seq_length", 48, "--from_scratch", "true")
    ended = tune(*task_options("custom", None, finished.folder, output, *files, *fresh))
    assert "is trained for at most" not in ended.err
