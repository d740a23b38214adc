"""Saved folders load in stock transformers with our outputs and ids; cards are valid."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import EvalResult, ModelCard
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.hub import formats
from electra_albert.hub.card import Facts
from electra_albert.hub.load import load_task_model, locate
from electra_albert.hub.modernbert import write_modernbert
from electra_albert.hub.onnx import outputs
from electra_albert.hub.save import save_model
from electra_albert.hub.weights import DIGEST, read_tensors, write_safetensors
from electra_albert.tokenization.tokenizer import load_tokenizer, save_tokenizer
from tests.apps.tiny_run import environment
from tests.hub.models import FORMS, LABELS, assert_same_tensors, run_code_of, save, tokenizer
from tests.hub.read_stock_folders import encode, read
from tests.hub.test_modernbert import CONFIGS
from tests.model.twins import SHAPE, make_encoder
from tests.refusals import assert_refused, rows
from tests.tokenization.tokenizer_kinds import KINDS, NASTY

READER = Path(__file__).parent / "read_stock_folders.py"
OLD_VERSION = "4.57.6"
# Requirements of that version that our environment lacks or has too new. Torch and numpy are ours.
OLD_PACKAGES = f"""transformers=={OLD_VERSION} tokenizers==0.22.1 huggingface_hub==0.36.0
    requests==2.32.5 urllib3==2.5.0 idna==3.10 certifi==2025.8.3 charset-normalizer==3.4.3"""
L = 16
TEXTS = [
    *([text] for text in NASTY),
    ["The river sings at night.", "Nobody heard it."],
    ["", "é and 中文"],
]
Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Tensors]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A folder and the model of every form; tests must not change them."""
    base = tmp_path_factory.mktemp("saved")
    return {name: (base / name, save(name, base / name)) for name in FORMS}


def inputs() -> list[Tensor]:
    """Ids, mask and segments of two sequences, the second padded."""
    position = torch.arange(2 * L).view(2, L)
    mask = torch.ones(2, L, dtype=torch.long)
    mask[1, 9:] = 0
    return [5 + position * 7919 % 60, mask, (position % L > 5).long()]


INPUTS = [ids.tolist() for ids in inputs()]


def read_here(folder: Path) -> dict[str, Any]:
    return read(str(folder), INPUTS, TEXTS)


@pytest.mark.parametrize("name", FORMS)
def test_stock_class_loads_a_folder_with_the_expected_keys_and_computes_our_outputs(
    saved: Any, name: str
) -> None:
    form, (folder, model) = FORMS[name], saved[name]
    actual = read_here(folder)
    assert (actual["class"], actual["dtype"]) == (form.architecture, "torch.float32")
    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        assert file.metadata().keys() == {"format", DIGEST}
        keys = [*file.keys()]
    expected = {}
    has_pooler = form.architecture != "AlbertModel" or "albert.pooler.bias" in keys
    if not has_pooler:
        expected["missing_keys"] = ["pooler.bias", "pooler.weight"]
    if form.ignored:
        expected["unexpected_keys"] = sorted(key for key in keys if key.startswith(form.ignored))
    assert actual["report"] == expected
    with torch.no_grad():
        ours = outputs(model, *inputs())
    theirs = actual["outputs"]
    if not has_pooler:
        del theirs["pooler_output"]  # its weights are random
    if name == "discriminator with order":
        ours["pooler_output"] = model.sentence_order.pooler(ours["last_hidden_state"][:, 0]).tanh()
    ours["prediction_logits"] = ours["logits"] = ours.get("prediction_logits", ours.get("logits"))
    assert theirs
    for key, value in theirs.items():
        numbers = torch.tensor(value).view(ours[key].shape)
        torch.testing.assert_close(ours[key], numbers, rtol=1e-5, atol=1e-5)
    assert actual["longest"] == SHAPE.max_position_embeddings
    assert actual["input_ids"] == [tokenizer()(*words)["input_ids"] for words in TEXTS]
    assert any(1 in segments for segments in actual["token_type_ids"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_transformers_4_reads_as_5_does(saved: Any, tmp_path: Path) -> None:
    old = tmp_path / "transformers-4"
    pip = f"-m pip install --quiet --no-deps --target {old} {OLD_PACKAGES}"
    environ = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([sys.executable, *pip.split()], env=environ, check=True)
    folders, tokenizers = [str(folder) for folder, _ in saved.values()], []
    for name in ("sliding window", "one group"):
        config = replace(CONFIGS[name], vocab_size=len(tokenizer()))
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        model = make_encoder(config, with_pooler=False)
        save_file(write_modernbert(model, tokenizer(), folder), folder / "model.safetensors")
        folders.append(str(folder))
    for name, write in KINDS.items():
        write(tmp_path / name)
        tokenizers.append(str(tmp_path / "saved" / name))
        save_tokenizer(load_tokenizer(tmp_path / name), Path(tokenizers[-1]), 64)
    plan = {"folders": folders, "tokenizers": tokenizers, "texts": TEXTS, "inputs": INPUTS}
    files = [str(tmp_path / name) for name in ("plan.json", "found.json")]
    Path(files[0]).write_text(json.dumps(plan), encoding="utf-8")
    environ = {**environment(), "PYTHONPATH": f"{old}:{os.environ['PYTHONPATH']}"}
    subprocess.run([sys.executable, "-P", str(READER), *files], env=environ, check=True)
    result = json.loads(Path(files[1]).read_text(encoding="utf-8"))
    assert result["version"] == OLD_VERSION
    for folder in folders:
        theirs, ours = result["found"][folder], read_here(Path(folder))
        values, expected = theirs.pop("outputs"), ours.pop("outputs")
        assert theirs == ours
        if "missing_keys" in ours["report"]:
            del expected["pooler_output"]
        for key in expected:
            numbers = (torch.tensor(values[key]), torch.tensor(expected[key]))
            torch.testing.assert_close(*numbers, rtol=1e-5, atol=1e-5)
    for folder in tokenizers:
        assert result["found"][folder] == encode(folder, TEXTS)


@pytest.mark.parametrize("name", ["sequence", "regression", "span", "sequence, electra"])
def test_a_fine_tuned_folder_is_loaded_with_head_and_details(tmp_path: Path, name: str) -> None:
    more = {"task": "mine", "max_seq_length": 16}
    model = save(name, tmp_path / "model", more)
    loaded, details = load_task_model(locate(tmp_path))
    labels = LABELS if name.startswith("sequence") else []
    more |= {"labels": labels, "is_regression": name == "regression"}
    assert details == more | {"kind": model.head.kind, "style": model.head.style}
    assert loaded.head == model.head
    assert_same_tensors(loaded.state_dict(), model.state_dict())
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    problem = "single_label_classification" if labels else None
    assert config.get("problem_type") == ("regression" if name == "regression" else problem)
    assert config["classifier_dropout_prob"] == 0.25
    names = ["score"] if name == "regression" else labels  # which pipelines show
    assert [*config.get("id2label", {}).values()] == names


def test_weights_in_half_precision_are_rounded_once_or_refused(tmp_path: Path) -> None:
    half = torch.float16
    model = save("discriminator with order", tmp_path / "half", dtype=half)
    exact = formats.to_stock(model.state_dict())  # the model keeps its own weights
    rounded = {name: tensor.to(half).float() for name, tensor in exact.items()}
    assert any(not torch.equal(exact[name], rounded[name]) for name in exact)
    weights = tmp_path / "half" / "model.safetensors"
    assert_same_tensors(read_tensors(weights), rounded)
    assert {tensor.dtype for tensor in load_file(weights).values()} == {half}
    model.embeddings.LayerNorm.weight.data[3] = 70_000
    arguments = (save_model, model, tokenizer(), tmp_path / "large")
    assert "LayerNorm" in assert_refused("CheckpointError", "float16", *arguments, dtype=half)
    assert not [*tmp_path.glob("large/*")]


def negated(part: str) -> Change:
    return lambda tensors: {k: -tensor if part in k else tensor for k, tensor in tensors.items()}


def without(part: str) -> Change:
    return lambda tensors: {name: tensors[name] for name in tensors if name != part}


def swapped(tensors: Tensors) -> Tensors:
    """Swap query and key: all names and shapes stay valid."""
    names = {name: name.replace("query", "?").replace("key", "query") for name in tensors}
    return {names[name].replace("?", "key"): tensors[name] for name in tensors}


OTHER, DISAGREE = "computes other ", "disagree on "
FAULTS: dict[str, tuple[Change, str]] = {
    "generator": (swapped, OTHER),
    "span": (negated("qa_outputs.weight"), OTHER + "start_logits"),
    "generator with pooler": (negated("albert.pooler.weight"), OTHER + "pooler_output"),
    "discriminator with order": (negated("sop_classifier"), OTHER + "sop_logits"),
    "discriminator": (negated("dense_prediction"), OTHER + "logits"),
    "generator with order": (negated("predictions.dense.weight"), OTHER + "logits"),
    "sequence": (negated("classifier.weight"), OTHER + "logits"),
    "choice, electra": (negated("electra_classifier"), OTHER + "logits"),
    "discriminator with order, without a bias": (
        without("sop_classifier.classifier.bias"),
        DISAGREE + "sop_classifier",
    ),
    "encoder with pooler": (without("albert.pooler.bias"), DISAGREE + "pooler"),
    "encoder": (lambda tensors: {**tensors, "junk.weight": torch.ones(2)}, DISAGREE + "junk"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_other_outputs_in_stock_are_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, word = FAULTS[name]
    to_stock = formats.to_stock
    monkeypatch.setattr(formats, "to_stock", lambda state: change(to_stock(state)))
    form = name.removesuffix(", without a bias")
    assert_refused("CheckpointError", word, save, form, tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_weights_that_change_when_read_again_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_slightly_off(tensors: Tensors, file: Path) -> None:  # by less than the tolerance
        write_safetensors({name: tensor * (1 + 1e-6) for name, tensor in tensors.items()}, file)

    monkeypatch.setattr("electra_albert.hub.save.write_safetensors", write_slightly_off)
    word = "differs from the model"
    assert_refused("CheckpointError", word, save, "generator", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_weights_of_another_format_are_removed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save("sequence", tmp_path, file_format="pt")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_quantized.onnx").touch()
    (tmp_path / "model.onnx").touch()
    save("generator", tmp_path)
    assert not (tmp_path / "electra_albert.json").exists()
    for name in ("weights.pt", "model.onnx", "onnx/model_quantized.onnx"):
        assert not (tmp_path / name).exists()
        assert name in caplog.text


def test_a_full_disk_is_a_usage_error_and_leaves_no_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # larger files cannot be written
    try:
        assert_refused("UsageError", str(tmp_path), save, "generator", tmp_path, file_format="pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*tmp_path.iterdir()] == []


CARD = "README.md"
# A form, the class in its card's code, the hub's task, and a pattern in the card.
CASES = """
generator with pooler|AlbertForMaskedLM|fill-mask|also contain a pooler
discriminator with order|AlbertModel|feature-extraction|discriminator_predictions.*`sop_classifier`
sequence, electra|AlbertModel|feature-extraction|`electra_classifier`.*add_pooling_layer=False
"""


@pytest.mark.parametrize(("name", "loaded", "task", "words"), rows(CASES))
def test_card_of_a_stock_folder_is_valid_names_ignored_heads_and_its_code_runs(
    tmp_path: Path, name: str, loaded: str, task: str, words: str
) -> None:
    result = EvalResult("text-classification", "cola", "cola", "matthews", 0.25)
    fields = {"license": "mit", "language": "en", "model_name": "mine", "eval_results": [result]}
    save(name, tmp_path, facts=Facts(fields, "Scores {{ braces }}."))
    card = ModelCard.load(tmp_path / CARD)
    expected = {"pipeline_tag": task, "library_name": "transformers", "tags": ["albert", "electra"]}
    assert card.data.to_dict().items() >= {**expected, "license": "mit", "language": "en"}.items()
    assert re.search(words, card.text, re.DOTALL)
    assert card.data.eval_results == [result]
    assert "Scores {{ braces }}." in card.text
    model = run_code_of(tmp_path)["model"]
    assert type(model).__name__ == loaded
    has_pooler = getattr(model, "pooler", None) is not None
    assert has_pooler == (name == "discriminator with order")


def test_card_of_a_folder_without_a_stock_class_has_other_code(tmp_path: Path) -> None:
    save("sequence", tmp_path, file_format="pt")
    assert run_code_of(tmp_path)["model"].tokenizer
    assert "library_name" not in ModelCard.load(tmp_path / CARD).data.to_dict()


def test_an_edited_card_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save("generator", tmp_path)
    written = (tmp_path / CARD).read_bytes()
    for edited in (written.replace(b"tags:", b"license: mit\ntags:"), b"# My project\r\n\xff\n"):
        caplog.clear()
        (tmp_path / CARD).write_bytes(edited)
        save("encoder", tmp_path)
        assert (tmp_path / CARD).read_bytes() == edited
        assert "is kept" in caplog.text
    (tmp_path / CARD).write_bytes(written)
    save("encoder", tmp_path)
    assert "AlbertModel.from_pretrained" in (tmp_path / CARD).read_text()
