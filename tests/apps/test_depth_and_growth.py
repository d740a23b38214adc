"""--num_hidden_layers of the commands, and --init_from with a larger model, on runs of seconds."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from electra_albert.apps.export import export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, outcome, rows, succeed
from tests.apps.tiny_tasks import cola, results, tune
from tests.refusals import rows as table

STEPS = ("--max_steps", 4, "--save_steps", 2, "--logging_steps", 1, "--eval_steps", 4)
RECIPE = "--optimizer muon --rtd.embedding_sharing disentangled --rtd.mlm_share 0.5"
LARGER = """--model.hidden_size 64 --model.num_attention_heads 4 --model.intermediate_size 128
--model.embedding_size 32 --model.num_hidden_groups 2"""


def test_fine_tuning_and_evaluation_take_a_depth(finished: Finished, tmp_path: Path) -> None:
    tiny, short = cola(tmp_path), ("--max_steps", 3, "--num_hidden_layers", 5)
    tune(*tiny.options(finished.folder, tmp_path / "deep", *short))
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "deep" / "model")
    assert stock.config.num_hidden_layers == 5
    assert load_model(tmp_path / "deep").encoder.config.num_hidden_layers == 5
    losses = []
    for depth in ((), ("--num_hidden_layers", 5), ("--num_hidden_layers", 1)):
        more = ("--num_train_epochs", 0, *depth)
        tune(*tiny.options(tmp_path / "deep", tmp_path / "scored", *more))
        losses.append(results(tmp_path / "scored")["metrics"]["loss"]["median"])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("changed", ["attention local", "block modern"])
def test_other_blocks_resume_exactly_and_are_fine_tuned_and_lengthened(
    finished: Finished, tmp_path: Path, changed: str
) -> None:
    name, value = changed.split()
    argv = finished.options(tmp_path / "run", *STEPS, f"--model.{name}", value)
    succeed(pretrain.main, *argv)
    wanted = outcome(tmp_path / "run", 4)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000004")
    assert "after step 2" in succeed(pretrain.main, *argv).err
    assert outcome(tmp_path / "run", 4) == wanted
    tune(*cola(tmp_path).options(tmp_path / "run", tmp_path / "tuned", "--max_steps", 3))
    model = load_model(tmp_path / "tuned")
    assert getattr(model.encoder.config, name) == value
    if value == "modern":
        other = cola(tmp_path).options(tmp_path / "run", tmp_path / "other", "--head", "electra")
        assert_refused(call(finetune.main, *other), 2, "drop --head electra")
        export(tmp_path / "tuned", tmp_path / "stock")
        texts = ["The house."]
        (ours,) = model.classify(texts)
        stock = pipeline("text-classification", str(tmp_path / "stock"), device="cpu")
        assert stock(texts) == [{"label": ours.label, "score": pytest.approx(ours.score, abs=1e-5)}]
        (again,) = load_model(tmp_path / "stock").classify(texts)
        assert again.scores == pytest.approx(ours.scores, abs=1e-6)
    longer = ("--max_seq_length", 48, "--init_from", tmp_path / "run")
    tokenizer = ("--tokenizer", tmp_path / "run" / "tokenizer")
    succeed(pretrain.main, *finished.options(tmp_path / "longer", *STEPS, *longer, *tokenizer))


@pytest.fixture(scope="module")
def small(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with disentangled embeddings and an MLM head on the discriminator, trained by Muon."""
    folder = tmp_path_factory.mktemp("small") / "run"
    succeed(pretrain.main, *finished.options(folder, *RECIPE.split(), *STEPS))
    return folder


def grow(finished: Finished, origin: Path, folder: Path, *more: object) -> list[str]:
    """Options of a larger run from the weights in `origin`, on the same text."""
    start = ("--init_from", origin, "--tokenizer", finished.folder / "tokenizer")
    shape = (*RECIPE.split(), *STEPS, *LARGER.split())
    return finished.options(folder, *shape, *start, *more)


@pytest.mark.parametrize("part", [".", "discriminator"])  # the run, or its exported models
def test_a_grown_run_has_the_old_losses_and_resumes(
    finished: Finished, small: Path, tmp_path: Path, part: str
) -> None:
    argv = grow(finished, small / part, tmp_path / "run")
    ended = succeed(pretrain.main, *argv)
    assert " grows: num_hidden_groups 1 to 2, hidden_size 32 to 64, " in ended.err
    assert f"{small / part}'s generator grows: " in ended.err
    first, last = (next(row for row in rows(tmp_path / "run") if row["step"] == 0), rows(small)[-1])
    for name in ("eval_generator_loss", "eval_discriminator_loss", "eval_discriminator_mlm_loss"):
        assert first[name] == pytest.approx(last[name], rel=1e-5)  # on equal examples, in float32
    wanted = outcome(tmp_path / "run", 4)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000004")
    again = succeed(pretrain.main, *argv)
    assert ("after step 2" in again.err, "grows" in again.err) == (True, False)
    assert outcome(tmp_path / "run", 4) == wanted


# What the generator becomes is known after the text is prepared, so it comes last.
TOO_DIFFERENT = """
--model.num_attention_heads 2 | num_attention_heads=2 changes the size of a head; give 4
--extend_vocab_to 400         | to extend its vocabulary use --init_from
--model.hidden_act relu       | has hidden_act gelu, this run's model has relu
--rtd.generator_size 0.7      | run's generator: hidden_size=45 is not a multiple of 16
"""


def test_what_cannot_grow_is_refused(finished: Finished, small: Path, tmp_path: Path) -> None:
    folders = ("--prepared_dir", tmp_path / "prepared")
    for words, reason in table(TOO_DIFFERENT):
        assert not (tmp_path / "prepared").exists()  # regression: the text was prepared first
        argv = grow(finished, small, tmp_path / "run", *words.split(), *folders)
        assert_refused(call(pretrain.main, *argv), 4, str(small), reason)
        assert not (tmp_path / "run" / "checkpoints").exists()
