"""The folder of a sweep: it is never overwritten by something else, and its model is always the
best seed's.
"""

import io
import json
import pickle
import pickletools
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune.run import _find_task
from electra_albert.config.finetuning import FinetuneConfig
from electra_albert.hub.load import TASK_FILE, load_task_model, locate
from tests.apps.conftest import Finished
from tests.apps.finetune.conftest import Again
from tests.apps.tiny_run import Ended, assert_refused, call, hashes, sha256
from tests.apps.tiny_tasks import SEED, Tiny, results, tune
from tests.hub.models import run_code_of
from tests.tokenization.tokenizer_kinds import edit

SEEDS = [SEED, SEED + 1]


def score(tiny: Tiny, model: Path, output: Path, *more: object) -> Ended:
    return call(finetune.main, *tiny.options(model, output, "--num_train_epochs", 0, *more))


def model_of(folder: Path) -> tuple[int, str]:
    """The recorded seed of the model in a sweep's folder, and a hash of its weights."""
    details = json.loads((folder / "model" / TASK_FILE).read_text(encoding="utf-8"))
    return details["seed"], sha256(folder / "model" / "model.safetensors")


# A folder that is not empty.


def test_an_evaluation_does_not_overwrite_a_trained_sweep(tiny: Tiny, copy: Path) -> None:
    before = hashes(copy)
    assert_refused(score(tiny, copy / "model", copy), 4, "choose another --output_dir")
    assert hashes(copy) == before


def test_an_evaluation_may_be_repeated_with_any_model(
    again: Again, tiny: Tiny, sweep: Path, tmp_path: Path
) -> None:
    tune(*again(tmp_path / "other", "--seeds", 1, "--seed", SEED + 7))
    losses = []
    for model in (sweep, sweep, tmp_path / "other"):
        ended = score(tiny, model / "model", tmp_path / "scored")
        assert ended.code == 0, ended.err
        found = results(tmp_path / "scored")
        assert found["model"] == str(model / "model")
        losses.append(found["metrics"]["loss"]["values"])
    assert losses[0] == losses[1] != losses[2]


def test_a_users_file_is_not_overwritten(again: Again, tmp_path: Path) -> None:
    (tmp_path / "mine" / "submission").mkdir(parents=True)
    (tmp_path / "mine" / "submission" / "CoLA.tsv").write_text("mine")
    before = hashes(tmp_path)
    refused = call(finetune.main, *again(tmp_path / "mine"))
    assert_refused(refused, 2, "holds submission, not made by fine-tuning")
    assert hashes(tmp_path) == before


# The seed of the model.


def set_score(folder: Path, tiny: Tiny, seed: int, value: float) -> None:
    """Change the main metric of a finished seed."""
    file = folder / f"seed-{seed}" / "result.json"
    edit(file, lambda found: found["metrics"].update({tiny.main_metric: value}))


def test_a_retrained_seed_keeps_a_better_model(again: Again, tiny: Tiny, copy: Path) -> None:
    removed, best = SEEDS
    # The highest possible score, and the exported model is its own.
    set_score(copy, tiny, best, 2.0)
    edit(copy / "model" / TASK_FILE, lambda found: found.update(seed=best))
    (copy / "digests.json").unlink()
    before = model_of(copy)
    shutil.rmtree(copy / f"seed-{removed}")
    assert f"seed {removed}:" in tune(*again(copy)).err
    assert model_of(copy) == before
    assert (results(copy)["best_seed"], results(copy)["seeds"]) == (best, SEEDS)


def test_a_missing_model_is_reported_with_the_seed_to_remove(again: Again, copy: Path) -> None:
    best, before = results(copy)["best_seed"], model_of(copy)
    shutil.rmtree(copy / "model")
    new_text = copy.parent / "new.txt"
    new_text.write_text("The owl left.\n")
    refused = call(finetune.main, *again(copy, "--predict", new_text))
    assert_refused(refused, 4, "model is missing", f"remove {copy / f'seed-{best}'} ")
    # Another worker's task folder may have changed.
    assert "changed since the sweep began: predict" not in refused.err
    assert not (copy / "predicted.tsv").exists()
    shutil.rmtree(copy / f"seed-{best}")  # the remedy in the message
    tune(*again(copy, "--predict", new_text))
    assert (copy / "predicted.tsv").is_file()
    assert model_of(copy) == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_model_that_has_changed_since_its_export_is_refused(
    again: Again, copy: Path, name: str
) -> None:
    # Regression: a finished sweep with an empty model file ended with 0 and named the model in its
    # last line.
    (copy / "model" / name).write_bytes((copy / "model" / name).read_bytes()[:-1])
    (copy / "model" / "README.md").write_text("a user's own card")
    best = results(copy)["best_seed"]
    refused = call(finetune.main, *again(copy))
    assert_refused(refused, 4, f"{name} has", f"remove {copy / f'seed-{best}'} ")


def test_a_better_seed_of_a_later_command_replaces_the_model(
    again: Again, tiny: Tiny, copy: Path
) -> None:
    before = model_of(copy)
    for seed in SEEDS:
        set_score(copy, tiny, seed, -2.0)  # the lowest possible
    tune(*again(copy, "--seeds", 3))
    assert results(copy)["best_seed"] == SEED + 2
    *earlier, _ = results(copy)["metrics"][tiny.main_metric]["values"]
    assert earlier == [-2.0, -2.0]
    assert model_of(copy) != before
    tune(*again(copy, "--seeds", 3))


def test_a_model_of_another_seed_than_the_best_is_refused(again: Again, copy: Path) -> None:
    best = results(copy)["best_seed"]
    other = next(seed for seed in SEEDS if seed != best)
    edit(copy / "model" / TASK_FILE, lambda found: found.update(seed=other))
    refused = call(finetune.main, *again(copy))
    assert_refused(refused, 4, f"is from seed {other}, the best seed is {best}")


# Fewer seeds than in the folder.


def test_seeds_of_earlier_commands_are_part_of_the_sweep(again: Again, copy: Path) -> None:
    before = results(copy)
    (copy / f"seed-{SEED + 1}" / "result.json").unlink()  # it was not finished
    ended = tune(*again(copy, "--seeds", 1))
    assert results(copy)["metrics"] == before["metrics"]
    assert results(copy)["seeds"] == SEEDS
    assert f"seeds of earlier commands are part of this sweep: {SEED + 1}" in ended.err
    assert "earlier commands" not in tune(*again(copy)).err


# Cards.


@pytest.mark.parametrize("is_scored", [False, True])
def test_the_card_names_a_model_that_loads(
    tiny: Tiny, sweep: Path, tmp_path: Path, is_scored: bool
) -> None:
    folder = sweep
    if is_scored:
        folder = tmp_path / "scored"
        assert score(tiny, sweep, folder).code == 0  # the folder of the sweep also names its model
    stock = run_code_of(folder)["model"]
    ours = load_task_model(locate(sweep / "model"))[0]
    assert stock.classifier.weight.equal(ours.classifier.weight)
    card = ModelCard.load(folder / "README.md").content
    assert ("selected on the evaluation set itself" in card) != is_scored


def test_cards_of_a_fine_tuned_model_name_task_labels_base_model_and_scores(
    sweep: Path, finished: Finished
) -> None:
    found = results(sweep)
    best = found["seeds"].index(found["best_seed"])
    scores = found["metrics"]["matthews_correlation"]
    values = {"README.md": scores["median"], "model/README.md": scores["values"][best]}
    for name, value in values.items():
        card = ModelCard.load(sweep / name)
        (result,) = card.data.eval_results
        metric = (result.dataset_name, result.metric_type, result.metric_value)
        assert metric == ("cola", "matthews_correlation", value)
        assert card.data.base_model == finished.folder.name
        assert card.data.datasets == ["nyu-mll/glue"]
        assert "Labels: `0`, `1`." in card.content


def test_the_settings_of_the_built_in_task_are_those_of_the_built_in_task() -> None:
    task, data = _find_task(FinetuneConfig())
    assert _find_task(FinetuneConfig(data)) == (task, data)


# What all commands together write.


def is_pickle(content: bytes) -> bool:
    """Whether a file is a pickle or may hold one: a zip as torch.save writes, or an array of numpy
    with its header.
    """
    try:
        return content.startswith((b"PK", b"\x93NUMPY")) or len([*pickletools.genops(content)]) > 0
    except ValueError:  # not an opcode
        return False


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in bytes that are no pickle
def test_pretraining_export_and_fine_tuning_write_no_pickle(
    finished: Finished, shipped: Path, sweep: Path
) -> None:
    torch.save(torch.ones(2), planted := io.BytesIO())
    assert is_pickle(pickle.dumps(["a", 1.5]))
    assert is_pickle(planted.getvalue())
    folders = (finished.folder, finished.prepared, shipped, sweep)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert {".safetensors", ".bin", ".json", ".jsonl", ".html"} <= {file.suffix for file in files}
    assert [file for file in files if is_pickle(file.read_bytes())] == []
