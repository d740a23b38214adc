"""Options of the recipe in whole runs: exact resume, and folders that stock transformers loads."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import pipeline

import electra_albert as ea
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.inference.scoring import score_pairs
from electra_albert.training.monitor import read_metrics
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, english, outcome, succeed

STEPS, HALF = 6, 3
OPTIONS = (
    "--optimizer muon --muon_rate 2 --model.zero_init_outputs true --rtd.mlm_share 0.5 "
    "--rtd.embedding_sharing disentangled --lr_scheduler_type wsd --rtd.mask_unit word "
    f"--max_steps {STEPS}"
)
LOGGED = f"{OPTIONS} --save_steps {HALF} --logging_steps 1".split()
TEXT = "the old fox crossed the [MASK] river today."


@pytest.fixture(scope="module")
def run(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all options, with a checkpoint after half of its steps."""
    folder = tmp_path_factory.mktemp("recipe") / "run"
    succeed(pretrain.main, *finished.options(folder, *LOGGED))
    return folder


def test_a_resumed_run_equals_the_uninterrupted_one_bitwise(
    finished: Finished, run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / f"step-{STEPS:07d}")
    assert "after step 3" in succeed(pretrain.main, *finished.options(folder, *LOGGED)).err
    assert outcome(folder, STEPS) == outcome(run, STEPS)


def test_the_encoder_fills_masks_in_stock_transformers_as_here(run: Path) -> None:
    ours = ea.load_model(run, "cpu").fill_mask(TEXT)
    theirs = pipeline("fill-mask", str(run / "discriminator"), device="cpu")(TEXT)
    assert [top["token"] for top in ours] == [top["token"] for top in theirs]
    scores = pytest.approx([top["score"] for top in ours], abs=1e-5)
    assert [top["score"] for top in theirs] == scores
    generator = ea.load_model(run / "generator", "cpu").fill_mask(TEXT)
    assert [top["score"] for top in generator] != scores


def test_evaluation_scores_minimal_pairs_like_the_finished_run(
    finished: Finished, tmp_path: Path
) -> None:
    good = [" ".join(english(1, seed).split()[:6]) for seed in range(30)]
    pairs = [
        {"sentence_good": text, "sentence_bad": " ".join(sorted(text.split()))} for text in good
    ]
    file, folder = tmp_path / "order.jsonl", tmp_path / "run"
    file.write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")
    few = f"{OPTIONS} --save_steps {STEPS} --eval_pairs {file} --eval_max_pairs 25".split()
    succeed(pretrain.main, *finished.options(folder, *few))
    last = read_metrics(folder / "metrics.jsonl")[-1]
    scores = score_pairs(ea.load_model(folder, "cpu"), file, 25)
    for head, score in scores.items():
        assert last[f"eval_pairs_{head}"] == score["mean"]
    assert {score["mean"] for score in scores.values()} != {0.5}
    long = {"sentence_good": "a " * 900, "sentence_bad": "b"}
    for line, said in (("{}", "no 'sentence_good'"), (json.dumps(long), "tokens long")):
        file.write_text(line, encoding="utf-8")
        assert_refused(call(pretrain.main, *finished.options(tmp_path / "other", *few)), 3, said)
    assert not (tmp_path / "other" / "checkpoints").exists()


def test_a_named_generator_is_not_replaced_by_the_discriminators_head(run: Path) -> None:
    # Regression: the MLM head of a given discriminator was used instead.
    generator = run / "generator"
    pair = ea.load_model(generator, "cpu", discriminator=run / "discriminator")
    assert pair.fill_mask(TEXT) == ea.load_model(generator, "cpu").fill_mask(TEXT)


# Weights stay as they are.
STILL = "--max_steps 1 --learning_rate 1e-20 --rtd.generator_warmup_steps 1"


@pytest.mark.parametrize("part", ["", "discriminator"])
def test_an_exported_pair_continues_with_both_tables(
    run: Path, finished: Finished, tmp_path: Path, part: str
) -> None:
    pair = tmp_path / "pair"
    for name in ("generator", "discriminator"):
        shutil.copytree(run / name, pair / name)
    if part:  # a lone discriminator: the new generator gets its table
        shutil.rmtree(pair / "generator")
    more = f"{STILL} --rtd.embedding_sharing disentangled --init_from {pair}/discriminator"
    succeed(pretrain.main, *finished.options(tmp_path / "run", *more.split()))
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
    bias = "predictions.bias"
    alone = shutil.copytree(run / "discriminator", tmp_path / "alone")
    lone = shutil.copytree(finished.folder / "discriminator", tmp_path / "lone")
    after = []
    for name, source in (("kept", alone), ("new", lone)):
        more = f"{STILL} --rtd.mlm_share 0.5 --init_from {source}"
        succeed(pretrain.main, *finished.options(tmp_path / name, *more.split()))
        after.append(load_file(tmp_path / name / "discriminator" / "model.safetensors")[bias])
    wanted = load_file(alone / "model.safetensors")[bias]
    torch.testing.assert_close(after[0], wanted, rtol=0, atol=1e-6)
    assert after[1].std() > 0.1
