"""A card has front matter that the hub reads, code that runs, and stays once its maker changed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import EvalResult, ModelCard

from electra_albert.corpus.tokenizer import train_tokenizer
from electra_albert.hub.card import OWN_CODE, Facts, write_card
from tests.corpus.tokenizer_kinds import PROSE
from tests.hub.forms import run_code_of, save

CARD = "README.md"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(PROSE, 120, do_lower_case=True)


CASES = {  # form: the class that the card loads, the hub's task, and what the card says
    "generator with pooler": ("AlbertForMaskedLM", "fill-mask", ("also hold a pooler",)),
    "discriminator with order": (
        "AlbertModel",
        "feature-extraction",
        ("discriminator_predictions", "`sop_classifier`"),
    ),
    "sequence": ("AlbertForSequenceClassification", "text-classification", ()),
    "sequence, electra": ("AlbertModel", "feature-extraction", ("`electra_classifier`", "add_pooling_layer=False")),
}
NOTED = {word for *_, words in CASES.values() for word in words}


@pytest.mark.parametrize("name", CASES)
def test_card_of_a_stock_folder_is_valid_names_what_stock_ignores_and_its_code_loads_it(
    tokenizer: Any, tmp_path: Path, name: str
) -> None:
    loaded, task, words = CASES[name]
    save(name, tokenizer, tmp_path, facts=Facts({"license": "mit", "language": "en"}, "Trained on *tales*."))
    card = ModelCard.load(tmp_path / CARD)
    fields = card.data.to_dict()
    assert (fields["pipeline_tag"], fields["library_name"]) == (task, "transformers")
    assert (fields["license"], fields["language"], fields["tags"]) == ("mit", "en", ["albert", "electra"])
    assert {word for word in NOTED if word in card.text} == set(words)
    assert "Trained on *tales*." in card.text
    assert type(run_code_of(tmp_path)["model"]).__name__ == loaded


@pytest.mark.parametrize(("name", "file_format"), [("sequence", "pt"), ("discriminator", "onnx")])
def test_card_of_a_folder_that_stock_does_not_load_has_other_code(
    tokenizer: Any, tmp_path: Path, name: str, file_format: str
) -> None:
    if file_format == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    save(name, tokenizer, tmp_path, file_format=file_format)
    card = ModelCard.load(tmp_path / CARD)
    assert "library_name" not in card.data.to_dict()
    assert "unexpected" not in card.text or file_format == "pt"
    found = run_code_of(tmp_path)
    assert list(found["outputs"]) == ["logits"] if file_format == "onnx" else found["model"].tokenizer


def test_results_are_in_the_front_matter_and_the_command_in_the_text(tmp_path: Path) -> None:
    result = EvalResult("text-classification", "cola", "cola", "matthews", 0.25, dataset_split="validation")
    fields = {"model_name": "mine", "eval_results": [result], "datasets": ["nyu-mll/glue"], "base_model": None}
    write_card(tmp_path, Facts(fields, "Scores {{ braces }}."), OWN_CODE, "python Finetuning.py --task cola")
    card = ModelCard.load(tmp_path / CARD)
    assert card.data.eval_results == [result]
    assert card.data.to_dict()["datasets"] == ["nyu-mll/glue"]
    assert "base_model" not in card.data.to_dict()
    assert card.text.lstrip().startswith(f"# {tmp_path.name}\n")
    assert "Made by `python Finetuning.py --task cola`." in card.text
    assert "Scores {{ braces }}." in card.text


CHANGES = {
    "front matter": lambda card: card.replace(b"tags:", b"license: mit\ntags:"),
    "another file": lambda card: b"# My project\r\n\xff\n",
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_a_card_as_it_was_written_is_replaced(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    save("generator", tokenizer, tmp_path)
    written = (tmp_path / CARD).read_bytes()
    mine = CHANGES[change](written)
    assert mine != written
    (tmp_path / CARD).write_bytes(mine)
    save("encoder", tokenizer, tmp_path)
    assert (tmp_path / CARD).read_bytes() == mine
    assert "it stays" in caplog.text
    (tmp_path / CARD).write_bytes(written)
    save("encoder", tokenizer, tmp_path)
    assert "AlbertModel.from_pretrained" in (tmp_path / CARD).read_text()
