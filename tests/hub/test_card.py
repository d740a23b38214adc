"""Model cards have valid front matter and code that runs; an edited card is kept."""

import re
from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard

from electra_albert.hub.card import Facts
from tests.hub.models import run_code_of, save

CARD = "README.md"
CASES = {  # form: the class in the card's code, the hub's task, and a pattern in the card
    "generator with pooler": ("AlbertForMaskedLM", "fill-mask", "also contain a pooler"),
    "discriminator with order": ("AlbertModel", "feature-extraction", "discriminator_predictions.*`sop_classifier`"),
    "sequence, electra": ("AlbertModel", "feature-extraction", "`electra_classifier`.*add_pooling_layer=False"),
}


@pytest.mark.parametrize("name", CASES)
def test_card_of_a_stock_folder_is_valid_names_ignored_heads_and_its_code_runs(tmp_path: Path, name: str) -> None:
    loaded, task, words = CASES[name]
    result = EvalResult("text-classification", "cola", "cola", "matthews", 0.25, dataset_split="validation")
    given = {"license": "mit", "language": "en", "model_name": "mine", "eval_results": [result]}
    save(name, tmp_path, facts=Facts(given, "Scores {{ braces }}."))
    card = ModelCard.load(tmp_path / CARD)
    wanted = {"pipeline_tag": task, "library_name": "transformers", "tags": ["albert", "electra"]}
    assert card.data.to_dict().items() >= {**wanted, "license": "mit", "language": "en"}.items()
    assert re.search(words, card.text, re.DOTALL)
    assert card.data.eval_results == [result]
    assert "Scores {{ braces }}." in card.text
    assert type(run_code_of(tmp_path)["model"]).__name__ == loaded


def test_card_of_a_folder_without_a_stock_class_has_other_code(tmp_path: Path) -> None:
    save("sequence", tmp_path / "pt", file_format="pt")
    assert run_code_of(tmp_path / "pt")["model"].tokenizer
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    save("discriminator", tmp_path / "onnx", file_format="onnx")
    assert list(run_code_of(tmp_path / "onnx")["outputs"]) == ["logits"]
    assert "unexpected" not in ModelCard.load(tmp_path / "onnx" / CARD).text
    assert not any("library_name" in ModelCard.load(file).data.to_dict() for file in tmp_path.glob(f"*/{CARD}"))


def test_an_edited_card_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save("generator", tmp_path)
    written = (tmp_path / CARD).read_bytes()
    for mine in (written.replace(b"tags:", b"license: mit\ntags:"), b"# My project\r\n\xff\n"):
        caplog.clear()
        (tmp_path / CARD).write_bytes(mine)
        save("encoder", tmp_path)
        assert (tmp_path / CARD).read_bytes() == mine
        assert "is kept" in caplog.text
    (tmp_path / CARD).write_bytes(written)
    save("encoder", tmp_path)
    assert "AlbertModel.from_pretrained" in (tmp_path / CARD).read_text()
