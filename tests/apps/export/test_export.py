"""The export command detects the kind of a model, writes it as a stock folder, and never modifies a
run.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from transformers import (
    AlbertForMaskedLM,
    AlbertModel,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from electra_albert.apps import export
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.contracts import CheckpointError
from electra_albert.hub.load import locate, read_stored
from electra_albert.inference.model import load_model
from tests.apps.conftest import Finished
from tests.apps.tiny_run import SHIPPED, Ended, assert_refused, call, flip_last_bit, sha256, succeed
from tests.apps.tiny_stock import write_stock
from tests.refusals import rows

VECTORS = "sentence-transformers"
TEXTS = [
    "The old fox crossed the river.",
    "A lamp.",
    "The quiet owl watched the market from the tower today.",
]


def run(model: Path, folder: Path, *more: object) -> Ended:
    return call(export.main, "--model", model, "--output_dir", folder, *more)


def files_in(folder: Path) -> dict[str, str]:
    # A run's has scores.
    return {path.name: sha256(path) for path in folder.iterdir() if path.name != "README.md"}


@pytest.mark.parametrize(
    ("part", "kind"), [("", "generator"), ("", "discriminator"), ("checkpoints", "generator")]
)
def test_an_export_equals_the_one_of_the_run(
    finished: Finished, tmp_path: Path, part: str, kind: str
) -> None:
    model = max((finished.folder / part).glob("step-*"), default=finished.folder)
    folder = tmp_path / "a" / "b"
    ended = run(model, folder, *(("--kind", kind) if kind == "discriminator" else ()))
    assert (ended.code, ended.err, ended.out) == (0, "", f"{kind} written to {folder}\n")
    assert files_in(folder) == files_in(finished.folder / kind)


def test_a_modified_checkpoint_is_refused(finished: Finished, tmp_path: Path) -> None:
    checkpoint = max(finished.folder.glob("checkpoints/step-*"))
    copied = shutil.copytree(checkpoint, tmp_path / "checkpoints" / "step-1")
    flip_last_bit(copied / "model.safetensors")
    assert_refused(run(copied, tmp_path / "out"), 4, "model.safetensors has changed")


def test_vectors_of_sentence_transformers_are_means_over_our_tokens(
    finished: Finished, tmp_path: Path
) -> None:
    assert run(finished.folder, tmp_path, "--format", VECTORS, "--max_seq_length", 30).code == 0
    model = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    ours = load_model(finished.folder, "cpu").features(TEXTS)
    means = torch.stack([features.tokens.mean(dim=0) for features in ours])
    assert torch.allclose(vectors, means, atol=1e-5)  # float32
    assert model.max_seq_length == 30
    assert run(finished.folder, tmp_path, "--kind", "discriminator").code == 0
    assert not (tmp_path / "modules.json").exists()


# Stock class: the detected kind, another requested kind, and the parts that are not exported.
FOUND = """
AlbertForPreTraining       | generator     | encoder   | predictions, sentence_order
BertForPreTraining         | generator     | generator | cls.seq_relationship
ElectraForPreTraining      | discriminator | encoder   | discriminator_predictions
BertForTokenClassification | task          |           |
"""


@pytest.mark.parametrize(("name", "found", "named", "not_exported"), rows(FOUND))
def test_the_kind_of_a_folder_is_detected_and_heads_not_exported_are_reported(
    tmp_path: Path, name: str, found: str, named: str, not_exported: str
) -> None:
    write_stock(tmp_path / "stock", name)
    ended = run(tmp_path / "stock", tmp_path / "out")
    assert (ended.code, ended.out) == (0, f"{found} written to {tmp_path / 'out'}\n"), ended.err
    assert (ended.err == "") == (found != named)
    assert run(tmp_path / "out", tmp_path / "again").code == 0
    assert files_in(tmp_path / "again") == files_in(tmp_path / "out")
    if named:
        ended = run(tmp_path / "stock", tmp_path / "named", "--kind", named)
        assert f"a model of kind {named} does not use it: {not_exported}" in ended.err


def test_a_half_precision_export_has_the_license_and_rounded_weights(
    finished: Finished, shipped: Path, tmp_path: Path
) -> None:
    more = ("--dtype", "float16", "--license", "cc-by-sa-4.0")
    assert run(finished.folder, tmp_path, *more).code == 0
    assert files_in(tmp_path) == files_in(shipped / "generator")
    assert ModelCard.load(tmp_path / "README.md").data.to_dict()["license"] == "cc-by-sa-4.0"
    for kind in ("generator", "discriminator"):
        runs = (finished.folder, shipped)
        exact, found = (read_stored(locate(path, kind)).tensors for path in runs)
        for name, tensor in exact.items():
            assert torch.equal(found[name], tensor.half().float())


def test_modern_blocks_are_exported_as_modernbert(finished: Finished, tmp_path: Path) -> None:
    argv = finished.options(tmp_path / "run", "--model.block", "modern", "--max_steps", 2)
    succeed(pretrain.main, *argv)
    model = load_model(tmp_path / "run", "cpu")
    for kind in ("generator", "discriminator", "encoder"):
        assert run(tmp_path / "run", tmp_path / kind, "--kind", kind).code == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "generator")
    text = TEXTS[0].replace("fox", "[MASK]")
    masked = tokenizer(text, return_tensors="pt")
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator")
    (position,) = (masked["input_ids"][0] == tokenizer.mask_token_id).nonzero()
    scores = stock(**masked).logits[0, position].softmax(-1).max().item()
    assert scores == pytest.approx(model.fill_mask([text], 1)[0][0]["score"], abs=1e-5)
    detector = AutoModelForTokenClassification.from_pretrained(tmp_path / "discriminator")
    logits = detector(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0, 1:-1, 0]
    ours = [token.probability for token in model.replaced_probabilities(TEXTS[:1])[0]]
    assert logits.sigmoid().tolist() == pytest.approx(ours, abs=1e-5)
    longer = " ".join(TEXTS * 3)  # than the examples of the training
    encoder = AutoModel.from_pretrained(tmp_path / "encoder")
    vectors = encoder(**tokenizer(longer, return_tensors="pt")).last_hidden_state[0]
    assert torch.allclose(vectors, model.features([longer])[0].tokens, atol=1e-5)
    assert run(tmp_path / "run", tmp_path / "half", "--dtype", "float16").code == 0
    config = json.loads((tmp_path / "half" / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["dtype"]) == ("modernbert", "float32")
    cards = {}
    for name, more in (("half", ()), ("onnx", ("--format", "onnx"))):
        assert run(tmp_path / "run", tmp_path / name, *more).code == 0
        cards[name] = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    assert "ModernBertForMaskedLM.from_pretrained" in cards["half"]
    assert "onnxruntime" in cards["onnx"]
    assert run(tmp_path / "run", tmp_path / "vectors", "--format", VECTORS).code == 0
    sentences = SentenceTransformer(str(tmp_path / "vectors"), device="cpu")
    assert sentences.encode(TEXTS).shape == (3, encoder.config.hidden_size)


def test_a_run_is_never_overwritten(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "environment.json").touch()
    for folder in (tmp_path, tmp_path / "generator"):
        assert_refused(run(finished.folder, folder), 2, "belongs to a run")
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]
    assert run(finished.folder, tmp_path / "exported").code == 0


# Options after --model and --output_dir.
REFUSED = f"""
2 | --output_dir stock                       | the model's own folder
2 | --output_dir=                            | --output_dir
2 | --output_dir nowhere                     | cannot write
4 | --kind task                              | architecture
4 | --kind discriminator                     | discriminator_predictions
2 | --format {VECTORS} --kind generator      | remove --kind
2 | --format {VECTORS} --max_seq_length 0    | max_seq_length
2 | --max_seq_length 16                      | max_seq_length
2 | --format onnx --dtype float16            | --dtype
2 | --format transformers.js --dtype float16 | --dtype
"""


def test_a_bad_export_is_refused_and_writes_nothing(in_folder: Path) -> None:
    write_stock(Path("stock"), "AlbertForMaskedLM")
    Path("nowhere").symlink_to("gone")
    before = files_in(Path("stock"))
    for code, words, name in rows(REFUSED):
        argv = ("--model", "stock", "--output_dir", "out", *words.split())
        assert_refused(call(export.main, *argv), int(code), name)
        assert files_in(Path("stock")) == before
        assert {path.name for path in in_folder.iterdir()} == {"nowhere", "stock"}


PARTS = ("generator", "discriminator")
LENGTH = 128  # of the examples that it was trained on
LARGEST_BYTES = 12_000_000
SENTENCE = "The book was written in the nineteenth [MASK]."


def test_the_shipped_model_is_small_and_gives_the_recorded_scores() -> None:
    model = load_model(SHIPPED, "cpu")
    found: Any = model.fill_mask(SENTENCE)
    assert found[0]["token_str"] == "century"
    assert found[0]["score"] == pytest.approx(0.87236, abs=1e-4)
    scored: Any = model.replaced_probabilities("The quick brown fox jumps over the lazy dog.")
    expected = pytest.approx([0.0482, 0.1418, 0.0939, 0.0841], abs=1e-4)
    assert [token.probability for token in scored[:4]] == expected
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < LARGEST_BYTES
    for folder in (SHIPPED, *(SHIPPED / part for part in PARTS)):
        fields = ModelCard.load(folder / "README.md").data.to_dict()
        assert (fields["license"], fields["language"]) == ("apache-2.0", "en")


def test_a_damaged_shipped_model_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED / "discriminator", tmp_path / "discriminator")
    flip_last_bit(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="hash"):
        load_model(folder, "cpu")


@pytest.mark.parametrize(
    ("part", "stock_class"), [("generator", AlbertForMaskedLM), ("discriminator", AlbertModel)]
)
def test_stock_reads_the_trained_length_and_computes_the_same_up_to_it(
    part: str, stock_class: Any
) -> None:
    folder = SHIPPED / part
    options = {} if part == "generator" else {"add_pooling_layer": False}
    stock = stock_class.from_pretrained(folder, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert stock.dtype == torch.float32
    assert tokenizer.model_max_length == stock.config.max_position_embeddings == LENGTH
    model, text = load_model(folder, "cpu"), "the " * LENGTH
    encoded = tokenizer(text, truncation=True, return_tensors="pt")
    assert encoded["input_ids"].shape == (1, LENGTH)
    wanted = stock(**encoded, output_hidden_states=True).hidden_states[-1][0]
    ours: Any = model.features(text, truncate=True)
    torch.testing.assert_close(ours.tokens, wanted, atol=1e-5, rtol=1e-5)


def test_sentence_vectors_are_exported_without_warning_and_with_the_terms_of_the_model(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        assert run(SHIPPED, tmp_path, "--format", "sentence-transformers").err == ""
    fields = ModelCard.load(tmp_path / "README.md").data.to_dict()
    assert (fields["license"], fields["language"]) == ("apache-2.0", "en")
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 128
