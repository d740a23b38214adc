"""Options of the recipe in whole runs: exact resume, and folders that stock transformers loads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, pipeline

import electra_albert as ea
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.hub.load import build, locate, read_stored
from electra_albert.hub.save import save_model
from electra_albert.inference.scoring import score_pairs
from electra_albert.model.electra import Discriminator
from electra_albert.training.monitor import read_metrics
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, english, outcome, succeed
from tests.hub.models import tokenizer
from tests.model.twins import SHAPE, make_pair

STEPS, HALF = 6, 3
OPTIONS = (
    *("--optimizer", "muon", "--muon_rate", 2, "--model.zero_init_outputs", "true"),
    *("--rtd.mlm_share", 0.5, "--rtd.embedding_sharing", "disentangled"),
    *("--lr_scheduler_type", "wsd", "--rtd.mask_unit", "word"),
)
TEXT = "the old fox crossed the [MASK] river today."


@pytest.fixture(scope="module")
def run(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all options, with a checkpoint after half of its steps."""
    folder = tmp_path_factory.mktemp("recipe") / "run"
    steps = ("--max_steps", STEPS, "--save_steps", HALF, "--logging_steps", 1, *OPTIONS)
    succeed(pretrain.main, *finished.options(folder, *steps))
    return folder


def test_a_resumed_run_equals_the_uninterrupted_one_bitwise(
    finished: Finished, run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:07d}")
    steps = ("--max_steps", STEPS, "--save_steps", HALF, "--logging_steps", 1, *OPTIONS)
    assert "after step 3" in succeed(pretrain.main, *finished.options(folder, *steps)).err
    assert outcome(folder, STEPS) == outcome(run, STEPS)


def test_the_encoder_fills_masks_in_stock_transformers_as_here(run: Path) -> None:
    model, folder = ea.load_model(run, "cpu"), run / "discriminator"
    ours = model.fill_mask(TEXT)
    theirs = pipeline("fill-mask", str(folder), device="cpu")(TEXT)
    assert [one["token"] for one in ours] == [one["token"] for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx(
        [one["score"] for one in theirs], abs=1e-5
    )
    generator = ea.load_model(run / "generator", "cpu").fill_mask(TEXT)
    assert [one["score"] for one in generator] != pytest.approx(
        [one["score"] for one in ours], abs=1e-5
    )


def test_evaluation_scores_minimal_pairs_like_the_finished_run(
    finished: Finished, tmp_path: Path
) -> None:
    good = [" ".join(english(1, seed).split()[:6]) for seed in range(30)]
    pairs = [
        {"sentence_good": text, "sentence_bad": " ".join(sorted(text.split()))} for text in good
    ]
    (file := tmp_path / "order.jsonl").write_text(
        "\n".join(map(json.dumps, pairs)), encoding="utf-8"
    )
    few = (
        "--max_steps",
        STEPS,
        "--save_steps",
        STEPS,
        *OPTIONS,
        "--eval_pairs",
        file,
        "--eval_max_pairs",
        25,
    )
    succeed(pretrain.main, *finished.options(folder := tmp_path / "run", *few))
    found = score_pairs(ea.load_model(folder, "cpu"), file, 25)
    last = read_metrics(folder / "metrics.jsonl")[-1]
    assert {head: last[f"eval_pairs_{head}"] for head in found} == {
        head: one["mean"] for head, one in found.items()
    }
    assert {one["mean"] for one in found.values()} != {0.5}
    long = {"sentence_good": "a " * 900, "sentence_bad": "b"}
    for line, said in (("{}", "no 'sentence_good'"), (json.dumps(long), "tokens long")):
        file.write_text(line, encoding="utf-8")
        assert_refused(call(pretrain.main, *finished.options(tmp_path / "other", *few)), 3, said)
    assert not (tmp_path / "other" / "checkpoints").exists()


def test_features_are_the_hidden_states_of_stock_transformers(run: Path) -> None:
    model = ea.load_model(run, "cpu")
    encoding = model.tokenizer("the old fox", return_tensors="pt")
    with torch.no_grad():
        stock = AutoModel.from_pretrained(run / "discriminator")(**encoding).last_hidden_state[0]
    tolerance = 1e-5 * float(stock.abs().max())
    torch.testing.assert_close(model.features("the old fox").tokens, stock, rtol=0, atol=tolerance)
    vector = model.features("the old fox", "cls").pooled
    torch.testing.assert_close(vector, stock[0], rtol=0, atol=tolerance)


def test_checkpoint_and_exported_folder_have_the_same_discriminator(run: Path) -> None:
    checkpoint = locate(run / "checkpoints" / f"step-{STEPS:07d}", "discriminator")
    found, exported = (
        build(read_stored(files), Discriminator)
        for files in (checkpoint, locate(run / "discriminator"))
    )
    wanted = exported.state_dict()
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_folders_agree_with_stock(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make_pair(replace(SHAPE, vocab_size=len(tokenizer()))).discriminator
    save_model(model, tokenizer(), tmp_path, dtype=dtype)
    ours, encoded = ea.load_model(tmp_path, "cpu"), tokenizer()("the old fox", return_tensors="pt")
    with torch.no_grad():
        stock = AutoModel.from_pretrained(tmp_path, dtype=torch.float32)(
            **encoded
        ).last_hidden_state[0]
    difference = (ours.features("the old fox").tokens - stock).abs().max()
    assert difference <= 1e-5 * stock.abs().max()  # float32, from the same rounded weights


def test_a_named_generator_is_not_replaced_by_the_discriminators_head(run: Path) -> None:
    # Regression: the MLM head of a given discriminator was used instead.
    wanted = ea.load_model(run / "generator", "cpu").fill_mask(TEXT)
    assert (
        ea.load_model(run / "generator", "cpu", discriminator=run / "discriminator").fill_mask(TEXT)
        == wanted
    )


# Weights stay as they are.
STILL = ("--max_steps", 1, "--learning_rate", 1e-20, "--rtd.generator_warmup_steps", 1)


@pytest.mark.parametrize("part", ["", "discriminator"])
def test_an_exported_pair_continues_with_both_tables(
    run: Path, finished: Finished, tmp_path: Path, part: str
) -> None:
    pair = tmp_path / "pair"
    for name in ("generator", "discriminator"):
        shutil.copytree(run / name, pair / name)
    if part:  # a lone discriminator: the new generator gets its table
        shutil.rmtree(pair / "generator")
    more = ("--rtd.embedding_sharing", "disentangled", "--init_from", pair / "discriminator")
    succeed(pretrain.main, *finished.options(tmp_path / "run", *STILL, *more))
    for name in ("discriminator", "generator")[: 1 if part else 2]:
        before, after = (
            load_file(folder / name / "model.safetensors") for folder in (pair, tmp_path / "run")
        )
        table = next(key for key in before if key.endswith("word_embeddings.weight"))
        torch.testing.assert_close(after[table], before[table], rtol=0, atol=1e-6)
    names = ("generator", "discriminator")
    tables = [load_file(tmp_path / "run" / name / "model.safetensors")[table] for name in names]
    assert torch.equal(*tables) == bool(part)


def test_only_a_new_mlm_head_starts_at_the_token_frequencies(
    finished: Finished, run: Path, tmp_path: Path
) -> None:
    # Regression: the trained bias of a lone discriminator was overwritten, and a new head started
    # at ln V.
    alone = shutil.copytree(run / "discriminator", tmp_path / "alone")
    shares = (
        "--rtd.mlm_share",
        0.5,
        "--max_steps",
        1,
        "--learning_rate",
        1e-20,
        "--rtd.generator_warmup_steps",
        1,
    )
    succeed(pretrain.main, *finished.options(tmp_path / "kept", "--init_from", alone, *shares))
    after = load_file(tmp_path / "kept" / "discriminator" / "model.safetensors")
    wanted = load_file(alone / "model.safetensors")["predictions.bias"]
    torch.testing.assert_close(after["predictions.bias"], wanted, rtol=0, atol=1e-6)
    lone = shutil.copytree(finished.folder / "discriminator", tmp_path / "lone")
    succeed(pretrain.main, *finished.options(tmp_path / "new", "--init_from", lone, *shares))
    assert (
        load_file(tmp_path / "new" / "discriminator" / "model.safetensors")[
            "predictions.bias"
        ].std()
        > 0.1
    )
