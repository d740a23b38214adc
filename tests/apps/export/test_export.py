"""The export command detects the kind of a model, writes it as a stock folder, and never modifies a
run.
"""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from sklearn.metrics import roc_auc_score
from transformers import AlbertForMaskedLM, AlbertModel, AutoModel, AutoTokenizer, pipeline

from electra_albert.apps import export
from electra_albert.contracts import CheckpointError, DataError
from electra_albert.hub.load import locate, read_stored
from electra_albert.inference.model import load_model
from electra_albert.tokenization.tokenizer import load_tokenizer
from tests.apps.conftest import Finished
from tests.apps.tiny_run import ROOT, Ended, assert_refused, call, sha256
from tests.apps.tiny_stock import write_stock

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
    model, folder = (
        max((finished.folder / part).glob("step-*"), default=finished.folder),
        tmp_path / "a" / "b",
    )
    ended = run(model, folder, *(("--kind", kind) if kind == "discriminator" else ()))
    assert (ended.code, ended.err, ended.out) == (0, "", f"{kind} written to {folder}\n")
    assert files_in(folder) == files_in(finished.folder / kind)


def test_a_modified_checkpoint_is_refused(finished: Finished, tmp_path: Path) -> None:
    copied = shutil.copytree(
        max(finished.folder.glob("checkpoints/step-*")), tmp_path / "checkpoints" / "step-1"
    )
    content = bytearray((copied / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "model.safetensors").write_bytes(content)
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
FOUND = {
    "AlbertForMaskedLM": ("generator", "", ""),
    "AlbertForPreTraining": ("generator", "encoder", "predictions, sentence_order"),
    "BertForPreTraining": ("generator", "generator", "cls.seq_relationship"),
    "ElectraForPreTraining": ("discriminator", "encoder", "discriminator_predictions"),
    "AlbertForSequenceClassification": ("task", "", ""),
    "BertForTokenClassification": ("task", "", ""),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_kind_of_a_folder_is_detected_and_heads_not_exported_are_reported(
    tmp_path: Path, name: str
) -> None:
    found, named, not_exported = FOUND[name]
    write_stock(tmp_path / "stock", name)
    ended = run(tmp_path / "stock", tmp_path / "out")
    assert (ended.code, ended.out) == (0, f"{found} written to {tmp_path / 'out'}\n"), ended.err
    assert (ended.err == "") == (found != named)
    assert (
        run(tmp_path / "out", tmp_path / "again").out
        == f"{found} written to {tmp_path / 'again'}\n"
    )
    assert files_in(tmp_path / "again") == files_in(tmp_path / "out")
    if named:
        ended = run(tmp_path / "stock", tmp_path / "named", "--kind", named)
        warning = (
            f"warning: not exported, because a model of kind {named} does not use it: "
            f"{not_exported}"
        )
        assert (ended.code, ended.err.startswith(warning)) == (0, True)


def test_a_half_precision_export_has_the_license_and_rounded_weights(
    finished: Finished, shipped: Path, tmp_path: Path
) -> None:
    assert (
        run(finished.folder, tmp_path, "--dtype", "float16", "--license", "cc-by-sa-4.0").code == 0
    )
    assert files_in(tmp_path) == files_in(shipped / "generator")
    assert ModelCard.load(tmp_path / "README.md").data.to_dict()["license"] == "cc-by-sa-4.0"
    for kind in ("generator", "discriminator"):
        exact, found = (
            read_stored(locate(path, kind)).tensors for path in (finished.folder, shipped)
        )
        assert all(
            torch.equal(found[name], tensor.half().float()) for name, tensor in exact.items()
        )


def test_a_run_is_never_overwritten(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "environment.json").touch()
    for folder in (tmp_path, tmp_path / "generator"):
        assert_refused(run(finished.folder, folder), 2, "belongs to a run")
    assert [path.name for path in tmp_path.iterdir()] == ["environment.json"]
    assert run(finished.folder, tmp_path / "exported").code == 0


# Options after --model and --output_dir.
REFUSED: dict[str, tuple[tuple[object, ...], int, str]] = {
    "the source": (("--output_dir", "stock"), 2, "the model's own folder"),
    "empty output": (("--output_dir", ""), 2, "--output_dir"),
    "a broken link": (("--output_dir", "nowhere"), 2, "cannot write"),
    "another kind": (("--kind", "task"), 4, "architecture"),
    "a missing head": (("--kind", "discriminator"), 4, "discriminator_predictions"),
    "vectors of a generator": (("--format", VECTORS, "--kind", "generator"), 2, "remove --kind"),
    "vectors of no tokens": (("--format", VECTORS, "--max_seq_length", 0), 2, "max_seq_length"),
    "a length for another format": (("--max_seq_length", 16), 2, "max_seq_length"),
    "half precision in ONNX": (("--format", "onnx", "--dtype", "float16"), 2, "--dtype"),
    "half precision in a browser": (
        ("--format", "transformers.js", "--dtype", "float16"),
        2,
        "--dtype",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_export_is_refused_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options, code, word = REFUSED[case]
    write_stock(Path("stock"), "AlbertForMaskedLM")
    Path("nowhere").symlink_to("gone")
    before = files_in(Path("stock"))
    assert_refused(
        call(export.main, "--model", "stock", "--output_dir", "out", *options), code, word
    )
    assert files_in(Path("stock")) == before
    assert {path.name for path in tmp_path.iterdir()} == {"nowhere", "stock"}


SHIPPED = ROOT / "data" / "models" / "english-h256-l4"
PARTS = ("generator", "discriminator")
LENGTH = 128  # of the examples that it was trained on
LARGEST_BYTES = 12_000_000
# Of probabilities in int8 and float32: 0.069 and 0.005 measured.
LARGEST_DIFFERENCE, MEAN_DIFFERENCE = 0.15, 0.01
SENTENCE = "The book was written in the nineteenth [MASK]."


def test_stock_transformers_loads_the_shipped_model_with_equal_outputs() -> None:
    options: Any = {"add_pooling_layer": False, "output_loading_info": True}
    encoder, report = AutoModel.from_pretrained(SHIPPED / "discriminator", **options)
    assert {name.split(".")[0] for name in report["unexpected_keys"]} == {
        "discriminator_predictions"
    }
    ours, fill_mask = (
        load_model(SHIPPED, "cpu"),
        pipeline("fill-mask", str(SHIPPED / "generator"), device="cpu"),
    )
    assert fill_mask.model.dtype == encoder.dtype == torch.float32
    inputs = fill_mask.tokenizer([SENTENCE], return_tensors="pt")
    with torch.no_grad():
        vectors = encoder.eval()(**inputs).last_hidden_state
    found: Any = ours.fill_mask(SENTENCE)
    for mine, theirs in zip(found, fill_mask(SENTENCE), strict=True):
        assert (mine["token"], mine["score"]) == (
            theirs["token"],
            pytest.approx(theirs["score"], abs=1e-5),
        )
    torch.testing.assert_close(ours.features(SENTENCE).tokens, vectors[0], rtol=1e-4, atol=1e-4)


def test_the_shipped_model_is_small_and_gives_the_recorded_scores() -> None:
    model = load_model(SHIPPED, "cpu")
    found: Any = model.fill_mask(SENTENCE)
    assert (found[0]["token_str"], found[0]["score"]) == (
        "century",
        pytest.approx(0.87236, abs=1e-4),
    )
    scored: Any = model.replaced_probabilities("The quick brown fox jumps over the lazy dog.")
    assert [each.probability for each in scored[:4]] == pytest.approx(
        [0.0482, 0.1418, 0.0939, 0.0841], abs=1e-4
    )
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < LARGEST_BYTES
    for folder in (SHIPPED, *(SHIPPED / part for part in PARTS)):
        fields = ModelCard.load(folder / "README.md").data.to_dict()
        assert (fields["license"], fields["language"]) == ("apache-2.0", "en")


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_shipped_model_is_refused(part: str, tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED / part, tmp_path / part)
    content = (file := folder / "model.safetensors").read_bytes()
    third = len(content) // 3
    for damaged in (
        content[:-1] + bytes([content[-1] ^ 1]),
        content[:third] + bytes(third) + content[2 * third :],
    ):
        file.write_bytes(damaged)
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
    stock, tokenizer = (
        stock_class.from_pretrained(folder, **options).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    assert tokenizer.model_max_length == stock.config.max_position_embeddings == LENGTH
    model, text = load_model(folder, "cpu"), "the " * LENGTH
    encoded = tokenizer(text, truncation=True, return_tensors="pt")
    assert encoded["input_ids"].shape == (1, LENGTH)
    wanted = stock(**encoded, output_hidden_states=True).hidden_states[-1][0]
    ours: Any = model.features(text, truncate=True)
    torch.testing.assert_close(ours.tokens, wanted, atol=1e-5, rtol=1e-5)
    longer = "the " * (LENGTH - 1)
    with pytest.raises(DataError, match=f"{LENGTH + 1} tokens long, the maximum is {LENGTH}"):
        model.features(longer)
    with pytest.raises((IndexError, RuntimeError)):
        stock(**tokenizer(longer, return_tensors="pt"))


def test_sentence_vectors_are_exported_without_warning_and_with_the_terms_of_the_model(
    tmp_path: Path,
) -> None:
    assert run(SHIPPED, tmp_path, "--format", "sentence-transformers").err == ""
    fields = ModelCard.load(tmp_path / "README.md").data.to_dict()
    assert (fields["license"], fields["language"]) == ("apache-2.0", "en")
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 128


def corrupted(texts: list[str], tokenizer: Any) -> tuple[list[Any], list[int]]:
    """Encodings of texts in which a word is replaced by one of the next text, and for each text
    token 1 if it is.
    """
    encodings, labels = [], list[int]()
    for text, other in pairwise(texts):
        before, (word, *after) = text.split()[:4], text.split()[4:]
        start = len(" ".join(before)) + 1
        new = next(each for each in other.split()[4:] if each != word)
        encodings.append(
            tokenizer(
                " ".join([*before, new, *after]), return_token_type_ids=True, return_tensors="np"
            )
        )
        spans = (
            encodings[-1].token_to_chars(i)
            for i in range(1, encodings[-1]["input_ids"].shape[1] - 1)
        )
        labels += [int(start <= span.start < start + len(new)) for span in spans]
    return encodings, labels


@pytest.mark.slow
def test_the_shipped_detector_in_int8_ranks_tokens_as_in_float32(tmp_path: Path) -> None:
    onnxruntime, _ = pytest.importorskip("onnxruntime"), pytest.importorskip("onnxscript")
    assert (
        run(SHIPPED, tmp_path, "--kind", "discriminator", "--format", "transformers.js").err == ""
    )
    lines = (ROOT / "data" / "topics" / "dev.csv").read_text(encoding="utf-8").splitlines()[1:201]
    encodings, labels = corrupted(lines, load_tokenizer(tmp_path))
    scores = {}
    for name in ("model", "model_quantized"):
        session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / f"{name}.onnx"))
        inputs = (
            {key: value.astype(np.int64) for key, value in encoded.items()} for encoded in encodings
        )
        logits = np.concatenate([session.run(["logits"], given)[0][0, 1:-1] for given in inputs])
        scores[name] = 1 / (1 + np.exp(-logits))
    difference = np.abs(scores["model"] - scores["model_quantized"])
    areas = [roc_auc_score(labels, found) for found in scores.values()]
    assert difference.max() <= LARGEST_DIFFERENCE
    assert difference.mean() <= MEAN_DIFFERENCE
    assert areas[1] == pytest.approx(areas[0], abs=0.005)
