"""Runs with each kind of generator: plan, exact resume, exported folders, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import electra_albert as ea
from electra_albert.apps import default_model, doctor, show_batch
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.hub.load import KINDS, build, locate, read_stored
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, outcome, succeed

FEW = "--max_steps 6 --save_steps 3 --logging_steps 1"
SHARED = "--rtd.generator shared --rtd.generator_size 1 --rtd.generator_layers 1"
OPTIONS = {  # of each kind, with others that apply to it
    "shared": f"{SHARED} --rtd.embedding_sharing disentangled --optimizer muon",
    "fixed": "--rtd.generator {run} --tokenizer {run}/tokenizer --rtd.temperature 2",
}
TEXT = "the old fox crossed the river."
Made = tuple[str, list[str], Path]  # kind, options and folder


@pytest.fixture(scope="module", params=OPTIONS)
def made(
    finished: Finished, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Made:
    """A run with a kind of generator, with a checkpoint after half of its steps."""
    more = f"{FEW} {OPTIONS[request.param].format(run=finished.folder)}".split()
    folder = tmp_path_factory.mktemp("kind") / "run"
    succeed(pretrain.main, *finished.options(folder, *more))
    return request.param, more, folder


def test_a_resumed_run_equals_the_uninterrupted_one(
    finished: Finished, made: Made, tmp_path: Path
) -> None:
    (_, more, run), folder = made, tmp_path / "run"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("step-0000006"))
    assert "after step 3" in succeed(pretrain.main, *finished.options(folder, *more)).err
    assert outcome(folder, 6) == outcome(run, 6)


def test_checkpoints_hold_trained_weights_once_and_the_exported_ones(made: Made) -> None:
    kind, _, run = made
    is_shared = kind == "shared"
    checkpoint = run / "checkpoints" / "step-0000006"
    parts = ["generator", "discriminator"] if is_shared else ["discriminator"]
    assert [part for part in ("generator", "discriminator") if (run / part).is_dir()] == parts
    stored = load_file(checkpoint / "model.safetensors")
    state = json.loads((checkpoint / "state.json").read_text())
    assert {name.split(".")[1] for name in stored} == {*parts}
    tied = {
        first for second, first in state["aliases"].items() if ".discriminator.encoder." in second
    }
    assert tied == ({name for name in stored if ".encoder." in name} if is_shared else set())
    for part in parts:
        one, other = (
            build(read_stored(locate(path, part)), KINDS[part]).state_dict()
            for path in (checkpoint, run)
        )
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert ("AutoModelForMaskedLM" in (run / "README.md").read_text(encoding="utf-8")) == is_shared
    for model in map(ea.load_model, (checkpoint, run)):
        assert (model.generator is not None) == is_shared
        assert model.replaced_probabilities(TEXT)


def test_plan_doctor_show_batch_know_the_kind(
    finished: Finished, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, more, run = made
    planned = succeed(
        pretrain.main, *finished.options(run.with_name("new"), *more, "--dry_run", "true")
    ).err
    source = "apps/run, not trained" if kind == "fixed" else "the first 1 of the discriminator"
    assert f"generator: {source}" in planned
    stored = load_file(run / "checkpoints/step-0000006/model.safetensors")
    total = sum(tensor.numel() for tensor in stored.values())
    listed = planned.partition(f"parameters: {total:,} (")[2].partition(")")[0].split(", ")
    assert len(listed) == (3 if kind == "shared" else 2)
    assert sum(int(part.split()[0].replace(",", "")) for part in listed) == total
    assert "baseline for the masked-token loss" in planned
    examined = call(doctor.main, *finished.options(None, *more))
    assert examined.code == 0, examined.out
    shown = succeed(show_batch.main, "--run", run, "--step", 5)
    assert ("generator: checkpoint of step 3" in shown.out) == (kind == "shared")
    monkeypatch.setattr(default_model, "RUNS", run.parent)
    assert default_model.newest_run() == run


def test_a_fixed_generator_must_fit_the_run_and_stay_the_same(
    finished: Finished, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished.folder / "generator", tmp_path / "fixed")
    more = f"{FEW} --rtd.generator {folder} --tokenizer {folder}"
    argv = finished.options(tmp_path / "run", *more.split())
    for code, text, options in (
        (4, "another tokenizer; set --tokenizer", "--tokenizer null --vocab_size 150"),
        (4, "has max_position_embeddings 32, the run needs 99", "--max_seq_length 99"),
        (2, "or own or shared", "--rtd.generator shred"),
        (4, "has no predictions", f"--rtd.generator {finished.folder}/discriminator"),
        (2, "--rtd.generator_layers has no effect", "--rtd.generator_layers 1"),
    ):
        assert_refused(call(pretrain.main, *argv, *options.split()), code, text)
    succeed(pretrain.main, *argv)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000006")
    weights = {
        name: tensor * 1.01 for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert_refused(call(pretrain.main, *argv), 4, "fixed_generator")


def test_shared_layers_are_continued_and_not_damaged_by_a_new_head(
    finished: Finished, tmp_path: Path
) -> None:
    few = f"{SHARED} --max_steps 1 --learning_rate 1e-12"

    def argv(name: str, more: str) -> list[str]:
        return finished.options(tmp_path / name, *f"{few} {more}".split())

    succeed(pretrain.main, *argv("run", ""))
    pair, lone = tmp_path / "run" / "discriminator", tmp_path / "lone"
    ended = succeed(pretrain.main, *argv("next", f"--init_from {pair}"))
    assert "randomly initialized: nothing" in ended.err
    for more, word in (
        (f"--init_from {finished.folder}", "its rtd.generator is own"),
        (f"--init_from {tmp_path}/run --model.num_hidden_groups 2", "to add groups name"),
    ):
        assert_refused(call(pretrain.main, *argv("other", more)), 4, word)
    shutil.copytree(pair, lone)  # without a generator: a new head is trained alone first
    warm = f"--rtd.generator_warmup_steps 2 --learning_rate 0.01 --init_from {lone}"
    succeed(pretrain.main, *argv("warm", warm))
    found = load_file(tmp_path / "warm/generator_warmup/checkpoints/step-0000002/model.safetensors")
    for name, tensor in load_file(lone / "model.safetensors").items():
        if "ffn" in name:
            assert torch.equal(found[f"generator.{name.partition('.')[2]}"], tensor)
