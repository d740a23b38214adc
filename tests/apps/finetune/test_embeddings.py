"""Sentence vectors: the exported folder, the scores without and with fine-tuning, refused options."""

from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

import electra_albert as ea
from electra_albert.apps.finetune import main as finetune
from electra_albert.contracts import UsageError
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_tasks import results, stories, tune, write

TEXTS = ["The old fox crossed the river.", "A lamp.", "The quiet owl watched the market from the tower today."]


@pytest.fixture(scope="module")
def similar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """STS-B with the rule that two texts are similar if they have the same animal."""
    folder = tmp_path_factory.mktemp("glue") / "STS-B"
    for name, count in (("train", 96), ("dev", 48)):
        pairs = list(zip(stories(count, 5), stories(count, 6), strict=True))
        rows = []
        for i, (first, second) in enumerate(pairs):
            text = second.text.replace(second.animal, first.animal) if i % 2 else second.text
            rows.append((i, first.text, text, 5.0 if first.animal in text else 1.0))
        write(folder / f"{name}.tsv", [("index", "sentence1", "sentence2", "score"), *rows])
    return folder


def test_vectors_of_the_exported_folder_are_means_over_our_tokens(finished: Finished, tmp_path: Path) -> None:
    ea.export(finished.folder, tmp_path, format="sentence-transformers", max_seq_length=30)
    model = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    found = model.encode(TEXTS, convert_to_tensor=True)
    ours = ea.load_model(finished.folder, "cpu").features(TEXTS)
    assert torch.allclose(found, torch.stack([each.tokens.mean(dim=0) for each in ours]), atol=1e-5)  # float32
    assert model.max_seq_length == 30


@pytest.mark.parametrize("loss", ["cosine", "contrastive"])
def test_training_raises_the_cosine_correlation(finished: Finished, similar: Path, tmp_path: Path, loss: str) -> None:
    where = ("--task", "sts-embeddings", "--data_dir", similar, "--model", finished.folder, "--output_dir", tmp_path)
    ended = tune(*where, "--loss", loss, "--num_train_epochs", 3, "--learning_rate", 2e-3, "--seeds", 2)
    found = results(tmp_path)
    assert all(each["spearman"] > found["zero_shot"]["spearman"] for each in found["seeds"])
    assert found["seeds"][0] != found["seeds"][1]
    (line,) = (line for line in ended.out.splitlines() if line.startswith("seed 43"))
    assert line.split()[2] == f"{100 * found['seeds'][1]['spearman']:.2f}"
    best = max(found["seeds"], key=lambda scores: scores["spearman"])
    for name, value, word in (("data_dir", "nowhere", "no such folder"), ("num_train_epochs", 0, "be overwritten")):
        assert_refused(call(finetune.main, *where, f"--{name}", value), 2, word)  # regression: the model was deleted
    again = ea.finetune(task="sts-embeddings", data_dir=str(similar), model=str(tmp_path / "model"), num_train_epochs=0)
    assert again.metrics["spearman"] == pytest.approx(best["spearman"], abs=1e-6)


REFUSED: dict[str, tuple[tuple[object, ...], int]] = {
    "--head": (("--head", "electra"), 2),
    "learning_rate": (("--learning_rate", 0), 2),
    "would be overwritten": (("--output_dir", "model/.."), 2),
    "no such folder": (("--data_dir", "nowhere"), 2),
}


@pytest.mark.parametrize("word", REFUSED)
def test_wrong_options_are_refused(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    more, code = REFUSED[word]
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    ended = call(finetune.main, "--task", "sts-embeddings", "--model", finished.folder, "--output_dir", "out", *more)
    assert_refused(ended, code, word)


def test_a_diverged_training_ends_with_its_own_code(finished: Finished, similar: Path, tmp_path: Path) -> None:
    where = ("--data_dir", similar, "--model", finished.folder, "--output_dir", tmp_path)
    ended = call(finetune.main, "--task", "sts-embeddings", *where, "--learning_rate", 1e30)
    assert_refused(ended, 5, "lower --learning_rate")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra_albert.apps.finetune.embeddings.find_spec", lambda name: None)
    assert_refused(call(finetune.main, "--task", "sts-embeddings"), 2, "pip install sentence-transformers accelerate")


def test_a_format_without_heads_refuses_a_kind(finished: Finished, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="remove --kind"):
        ea.export(finished.folder, tmp_path, kind="generator", format="sentence-transformers")
    for options in ({"max_seq_length": 0, "format": "sentence-transformers"}, {"max_seq_length": 16}):
        with pytest.raises(UsageError, match="max_seq_length"):
            ea.export(finished.folder, tmp_path, **options)


def test_another_format_in_the_folder_removes_the_modules(finished: Finished, tmp_path: Path) -> None:
    ea.export(finished.folder, tmp_path, format="sentence-transformers")
    assert (tmp_path / "modules.json").exists()
    ea.export(finished.folder, tmp_path, kind="discriminator")
    assert not (tmp_path / "modules.json").exists()
