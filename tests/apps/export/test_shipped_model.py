"""The shipped model is small, loads in stock transformers, and gives the recorded predictions."""

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


def test_stock_transformers_loads_the_shipped_model_with_equal_outputs() -> None:
    from transformers import AutoModel, pipeline

    options: Any = {"add_pooling_layer": False, "output_loading_info": True}
    encoder, report = AutoModel.from_pretrained(SHIPPED / "discriminator", **options)
    assert {name.split(".")[0] for name in report["unexpected_keys"]} == {"discriminator_predictions"}
    ours, fill_mask = load_model(SHIPPED, "cpu"), pipeline("fill-mask", str(SHIPPED / "generator"), device="cpu")
    assert fill_mask.model.dtype == encoder.dtype == torch.float32
    inputs = fill_mask.tokenizer([SENTENCE], return_tensors="pt")
    with torch.no_grad():
        vectors = encoder.eval()(**inputs).last_hidden_state
    found: Any = ours.fill_mask(SENTENCE)
    for mine, theirs in zip(found, fill_mask(SENTENCE), strict=True):
        assert (mine["token"], mine["score"]) == (theirs["token"], pytest.approx(theirs["score"], abs=1e-5))
    torch.testing.assert_close(ours.features(SENTENCE).tokens, vectors[0], rtol=1e-4, atol=1e-4)


def test_the_shipped_model_is_small_and_gives_the_recorded_scores() -> None:
    model = load_model(SHIPPED, "cpu")
    found: Any = model.fill_mask(SENTENCE)
    assert (found[0]["token_str"], found[0]["score"]) == ("century", pytest.approx(0.96747, abs=1e-4))
    scored: Any = model.replaced_probabilities("The quick brown fox jumps over the lazy dog.")
    assert [each.probability for each in scored[:4]] == pytest.approx([0.0481, 0.0436, 0.1753, 0.2526], abs=1e-4)
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) < LARGEST_BYTES
    for folder in (SHIPPED, *(SHIPPED / part for part in PARTS)):
        fields = ModelCard.load(folder / "README.md").data.to_dict()
        assert (fields["license"], fields["language"]) == ("apache-2.0", "en")
