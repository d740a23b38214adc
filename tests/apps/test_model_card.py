"""A card names what the folder holds, and the code in it runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from electra_albert.apps.export.model_card import is_our_card, model_card
from electra_albert.apps.export.models import export_body, export_discriminator, export_generator, export_task_model
from electra_albert.corpus.tokenizer import train_tokenizer
from electra_albert.model.task_model import TaskHead
from tests.apps.test_export_checks import generator_with_pooler
from tests.corpus.tokenizer_kinds import PROSE
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, make_body, make_masked_lm, make_pair

KINDS = ("generator", "discriminator", "encoder", "task")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(PROSE, 120, do_lower_case=True)


def export(kind: str, tokenizer: Any, folder: Path, file_format: str) -> None:
    shape = replace(SHAPE, vocab_size=len(tokenizer), num_hidden_layers=1)
    if kind == "task":
        model = make_task_model(TaskHead("sequence", 2), shape)
        export_task_model(model, tokenizer, folder, {"labels": ["no", "yes"]}, file_format)
    elif kind == "encoder":
        export_body(make_body(shape, with_pooler=True), tokenizer, folder, file_format)
    else:
        pair = make_pair(shape)
        write = export_generator if kind == "generator" else export_discriminator
        write(getattr(pair, kind), tokenizer, folder, file_format)


def run_code_of(folder: Path) -> dict[str, Any]:
    """What the names in the card's code stand for once it has run."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = {}
    exec(code.replace("THIS_FOLDER", str(folder)), found)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file_format", ["safetensors", "pt"])
def test_code_of_the_card_loads_the_model(tokenizer: Any, tmp_path: Path, kind: str, file_format: str) -> None:
    export(kind, tokenizer, tmp_path, file_format)
    classes = {"generator": "Generator", "discriminator": "Discriminator", "encoder": "Body", "task": "TaskModel"}
    loaded = type(run_code_of(tmp_path)["model"]).__name__
    assert loaded == classes[kind] if file_format == "pt" else loaded.startswith("Albert")


@pytest.mark.parametrize("kind", ["generator", "encoder"])
def test_code_of_an_onnx_card_computes_the_outputs(tokenizer: Any, tmp_path: Path, kind: str) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    export(kind, tokenizer, tmp_path, "onnx")
    found = run_code_of(tmp_path)["outputs"]
    assert list(found) == (["logits"] if kind == "generator" else ["last_hidden_state", "pooler_output"])


@pytest.mark.parametrize("file_format", ["pt", "onnx"])
def test_what_stock_classes_do_not_load_is_not_said_to_be_loaded_by_them(file_format: str) -> None:
    card = model_card(make_masked_lm(SHAPE), "AlbertForPreTraining", file_format)
    assert "AlbertForPreTraining.from_pretrained" not in card
    assert "library_name" not in card
    assert ("LM_DEMO.py --gen" in card) == (file_format == "pt")


def test_a_card_of_plain_tensors_says_nothing_of_what_stock_classes_report() -> None:
    # Regression: beside "stock classes do not look for a file of that name" it said what they report of it.
    card = model_card(make_pair(SHAPE).discriminator, "AlbertModel", "pt")
    assert "`discriminator_predictions`, `embeddings`, `encoder`" in card
    assert "unexpected" not in card
    assert "add_pooling_layer" not in card


@pytest.mark.parametrize("with_sentence_order", [True, False])
def test_an_order_head_that_stock_albert_leaves_aside_is_named(with_sentence_order: bool) -> None:
    discriminator = make_pair(SHAPE, with_sentence_order=with_sentence_order).discriminator
    card = model_card(discriminator, "AlbertModel")
    assert ("`sop_classifier`" in card) == with_sentence_order
    assert ("add_pooling_layer=False" in card) == (not with_sentence_order)


def test_a_pooler_that_a_generator_came_with_is_named() -> None:
    assert "`albert.pooler`" in model_card(generator_with_pooler(SHAPE), "AlbertForMaskedLM")
    assert "pooler" not in model_card(make_masked_lm(SHAPE, with_sentence_order=False), "AlbertForMaskedLM")


def test_a_graph_of_a_detector_is_said_to_detect() -> None:
    card = model_card(make_pair(SHAPE).discriminator, "AlbertModel", "onnx")
    assert "tells which tokens were replaced" in card
    assert "pooler" not in card
    rows = model_card(make_task_model(TaskHead("sequence", 3, "electra")), "AlbertModel", "onnx")
    assert "labels a text" in rows


@pytest.mark.parametrize("change", [("piece", "word"), ("\n", "\r\n"), ("-->\n", "-->\nmine\n"), ("---\n", "")])
def test_only_a_card_as_it_was_written_is_ours(change: tuple[str, str]) -> None:
    card = model_card(make_masked_lm(SHAPE), "AlbertForPreTraining")
    assert is_our_card(card)
    assert card.replace(*change) != card
    assert not is_our_card(card.replace(*change))


@pytest.mark.parametrize("text", ["", "\n", "# Mine\n", "<!-- card by ELECTRA-ALBERT -->\n"])
def test_no_other_text_is_ours(text: str) -> None:
    assert not is_our_card(text)
