"""A card has front matter that the hub reads, code that runs, and stays once its maker changed it."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import EvalResult, ModelCard

from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.hub.card import Facts
from tests.corpus.tokenizer_kinds import PROSE
from tests.hub.models import run_code_of, save

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
    "sequence, electra": ("AlbertModel", "feature-extraction", ("`electra_classifier`", "add_pooling_layer=False")),
}


@pytest.mark.parametrize("name", CASES)
def test_card_of_a_stock_folder_is_valid_names_what_stock_ignores_and_its_code_loads_it(
    tokenizer: Any, tmp_path: Path, name: str
) -> None:
    loaded, task, words = CASES[name]
    result = EvalResult("text-classification", "cola", "cola", "matthews", 0.25, dataset_split="validation")
    given = {"license": "mit", "language": "en", "model_name": "mine", "eval_results": [result]}
    save(name, tokenizer, tmp_path, facts=Facts(given, "Scores {{ braces }}."))
    card = ModelCard.load(tmp_path / CARD)
    fields = card.data.to_dict()
    assert (fields["pipeline_tag"], fields["library_name"]) == (task, "transformers")
    assert (fields["license"], fields["language"], fields["tags"]) == ("mit", "en", ["albert", "electra"])
    assert all(word in card.text for word in words)
    assert card.data.eval_results == [result]
    assert "Scores {{ braces }}." in card.text
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


def test_only_a_card_as_it_was_written_is_replaced(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save("generator", tokenizer, tmp_path)
    written = (tmp_path / CARD).read_bytes()
    for mine in (written.replace(b"tags:", b"license: mit\ntags:"), b"# My project\r\n\xff\n"):
        caplog.clear()
        (tmp_path / CARD).write_bytes(mine)
        save("encoder", tokenizer, tmp_path)
        assert (tmp_path / CARD).read_bytes() == mine
        assert "it stays" in caplog.text
    (tmp_path / CARD).write_bytes(written)
    save("encoder", tokenizer, tmp_path)
    assert "AlbertModel.from_pretrained" in (tmp_path / CARD).read_text()
