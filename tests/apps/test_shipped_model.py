"""A pair in half precision is taken by all that takes a run, and gives what its rounded weights give."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electra_albert.apps import demo
from electra_albert.apps.export import main as export
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.stock_origin import find_files
from electra_albert.hub.pair_file import PAIR_FILE
from electra_albert.hub.weight_files import write_safetensors
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.shipped_pair import PARTS
from tests.apps.tiny_run import Ended, assert_refused, call, sha256
from tests.apps.tiny_tasks import SEED, Tiny, cola

TEXT = "The quiet [MASK] crossed the river."
QUICK = ("--max_steps", 3, "--logging_steps", 1)


@pytest.fixture(scope="session")
def rounded(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run's two folders with float32 weights that were rounded to half precision without any of this."""
    folder = tmp_path_factory.mktemp("rounded")
    for part in PARTS:
        shutil.copytree(finished.folder / part, folder / part)
        weights = folder / part / "model.safetensors"
        write_safetensors({name: tensor.half().float() for name, tensor in load_file(weights).items()}, weights)
    return folder


# Read, by everything that takes a run.


def ask(model: Path, *more: object) -> str:
    ended = call(demo.main, "--gen", model, "--json", *more)
    assert (ended.code, ended.err) == (0, "")
    return ended.out


def test_the_demo_gives_the_answers_of_the_rounded_weights(shipped: Path, rounded: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nEvery small owl found a lamp near the old bridge before dawn.\n")
    texts = ("--input", tmp_path / "texts.txt")
    answers = ask(shipped, *texts)
    assert answers == ask(rounded, *texts) == ask(shipped / "generator", *texts) == ask(shipped / PAIR_FILE, *texts)
    assert json.loads(answers)[1]["replaced"][0]["probability"] is not None


def test_the_library_gives_the_numbers_of_the_rounded_weights(shipped: Path, rounded: Path) -> None:
    ours, theirs = load_model(shipped, "cpu"), load_model(rounded, "cpu")
    text = TEXT.replace("[MASK]", "owl")
    assert ours.fill_mask(TEXT) == theirs.fill_mask(TEXT)
    assert ours.replaced_probabilities(text) == theirs.replaced_probabilities(text)
    assert torch.equal(ours.features(text).tokens, theirs.features(text).tokens)
    assert load_model(shipped / PAIR_FILE, "cpu").fill_mask(TEXT) == ours.fill_mask(TEXT)


def test_the_library_keeps_what_the_two_share_once(shipped: Path) -> None:
    model = load_model(shipped, "cpu")
    assert model.generator is not None
    assert model.discriminator is not None
    assert model.generator.embeddings is model.discriminator.embeddings is model.encoder.embeddings
    assert model.generator.encoder is not model.encoder.encoder


@pytest.mark.parametrize("part", PARTS)
def test_stock_folders_are_made_of_it(shipped: Path, rounded: Path, tmp_path: Path, part: str) -> None:
    from transformers import AutoModel, AutoModelForMaskedLM

    ended = call(export.main, "--model", shipped, "--kind", part, "--output_dir", tmp_path / part)
    assert ended.code == 0, ended.err
    written, wanted = (load_file(folder / part / "model.safetensors") for folder in (tmp_path, rounded))
    assert written.keys() == wanted.keys()
    assert all(torch.equal(written[name], wanted[name]) for name in wanted)
    if part == "generator":
        stock = AutoModelForMaskedLM.from_pretrained(str(tmp_path / part), local_files_only=True)
    else:
        stock = AutoModel.from_pretrained(str(tmp_path / part), local_files_only=True, add_pooling_layer=False)
    assert next(stock.parameters()).dtype == torch.float32


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return cola(tmp_path / "tasks")


def losses(folder: Path) -> list[float]:
    lines = (folder / f"seed-{SEED}" / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def test_fine_tuning_begins_with_the_rounded_discriminator(
    shipped: Path, rounded: Path, tiny: Tiny, tmp_path: Path
) -> None:
    for name, model in (("pair", shipped), ("plain", rounded)):
        ended = call(finetune.main, *tiny.options(model, tmp_path / name, *QUICK))
        assert ended.code == 0, ended.err
    assert losses(tmp_path / "pair") == losses(tmp_path / "plain") != []


def test_results_of_one_part_are_not_gone_on_with_by_the_other(shipped: Path, tiny: Tiny, tmp_path: Path) -> None:
    # Both lie in the same file, so its hash alone does not tell them apart.
    start = {part: shutil.copytree(shipped, tmp_path / part) for part in PARTS}
    assert call(finetune.main, *tiny.options(start["generator"] / "generator", tmp_path / "out", *QUICK)).code == 0
    ended = call(finetune.main, *tiny.options(start["generator"] / "discriminator", tmp_path / "out", *QUICK))
    assert_refused(ended, 4, "out")


@pytest.mark.slow
def test_pretraining_goes_on_with_both_models(finished: Finished, shipped: Path, rounded: Path, tmp_path: Path) -> None:
    weights = []
    for name, model in (("pair", shipped), ("plain", rounded)):
        argv = finished.options(tmp_path / name, "--init_from", model, "--max_steps", 1, "--eval_examples", 8)
        kept = [word for place, word in enumerate(argv) if not _is_of_vocabulary(argv, place)]
        ended = call(pretrain.main, *kept)
        assert ended.code == 0, ended.err
        assert "nothing is new" in ended.err + ended.out
        weights.append(sha256(tmp_path / name / "generator" / "model.safetensors"))
    assert weights[0] == weights[1]


def _is_of_vocabulary(argv: list[str], place: int) -> bool:
    """Whether a word is --vocab_size or its value, which a run from a model's folder takes from there."""
    return "--vocab_size" in argv[max(0, place - 1) : place + 1]


@pytest.mark.parametrize("command", ["demo", "export", "finetune", "load_model"])
def test_a_damaged_pair_is_refused_in_one_line(shipped: Path, tiny: Tiny, tmp_path: Path, command: str) -> None:
    folder = shutil.copytree(shipped, tmp_path / "damaged")
    content = (folder / PAIR_FILE).read_bytes()
    (folder / PAIR_FILE).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    commands: dict[str, Callable[[], Ended]] = {
        "demo": lambda: call(demo.main, "--gen", folder),
        "export": lambda: call(export.main, "--model", folder, "--output_dir", tmp_path / "out"),
        "finetune": lambda: call(finetune.main, *tiny.options(folder, tmp_path / "tuned", *QUICK)),
        "load_model": lambda: call(lambda _: len(load_model(folder, "cpu").tokenizer)),
    }
    assert_refused(commands[command](), 4, PAIR_FILE, "its hash is another")


def test_a_run_begins_with_the_parts_a_path_means(shipped: Path) -> None:
    parts = {}
    for place in ("", PAIR_FILE, "discriminator", "generator"):
        files = find_files(shipped / place)
        parts[place] = (files.encoder.part, files.generator and files.generator.part)
    both = ("discriminator", "generator")
    assert parts == {"": both, PAIR_FILE: both, "discriminator": both, "generator": ("generator", None)}
