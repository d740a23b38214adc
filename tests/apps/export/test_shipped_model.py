"""The model that ships is small, opens in stock and is as its card says; half precision works wherever a run does."""

from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

from electra_albert.inference.model import load_model
from tests.apps.tiny_run import ROOT

SHIPPED = ROOT / "data" / "models" / "english-h256-l4"
PARTS = ("generator", "discriminator")
LARGEST_BYTES = 12_000_000
SENTENCE = "The book was written in the nineteenth [MASK]."


def test_stock_transformers_opens_the_shipped_model_and_gives_our_numbers() -> None:
    from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

    ours = load_model(SHIPPED, "cpu")
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "generator")
    generator, report = AutoModelForMaskedLM.from_pretrained(SHIPPED / "generator", output_loading_info=True)
    assert {name: keys for name, keys in report.items() if keys} == {}
    encoder, report = AutoModel.from_pretrained(
        SHIPPED / "discriminator", add_pooling_layer=False, output_loading_info=True
    )
    assert {name.split(".")[0] for name in report["unexpected_keys"]} == {"discriminator_predictions"}
    assert generator.dtype == encoder.dtype == torch.float32
    row = tokenizer([SENTENCE], return_tensors="pt")
    with torch.no_grad():
        logits, vectors = generator.eval()(**row).logits, encoder.eval()(**row).last_hidden_state
    position = row["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    scores, tokens = logits[0, position].softmax(-1).topk(5)
    found: Any = ours.fill_mask(SENTENCE)
    assert [guess["token"] for guess in found] == tokens.tolist()
    assert [guess["score"] for guess in found] == pytest.approx(scores.tolist(), abs=1e-5)
    torch.testing.assert_close(ours.features(SENTENCE).tokens, vectors[0], rtol=1e-4, atol=1e-4)


def test_the_shipped_model_is_small_and_scores_what_was_recorded() -> None:
    model = load_model(SHIPPED, "cpu")
    found: Any = model.fill_mask(SENTENCE)
    assert (found[0]["token_str"], found[0]["score"]) == ("century", pytest.approx(0.96747, abs=1e-4))
    judged: Any = model.replaced_probabilities("The quick brown fox jumps over the lazy dog.")
    assert [each.probability for each in judged[:4]] == pytest.approx([0.0481, 0.0436, 0.1753, 0.2526], abs=1e-4)
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < LARGEST_BYTES
    for folder in (SHIPPED, *(SHIPPED / part for part in PARTS)):
        fields = ModelCard.load(folder / "README.md").data.to_dict()
        assert (fields["license"], fields["language"]) == ("apache-2.0", "en")
