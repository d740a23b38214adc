"""load_model(num_hidden_layers=n): the first n layers, as in stock AlbertModel; other depths are
refused.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from electra_albert.hub.save import save_model
from electra_albert.inference.model import InferenceModel, load_model
from tests.hub.models import save, tokenizer
from tests.inference.stock import TOLERANCE
from tests.model.twins import SHAPE, make_pair
from tests.refusals import assert_refused

TEXT = "the old fox"


def test_features_at_a_depth_are_those_of_stock_with_as_many_layers(tmp_path: Path) -> None:
    shape = replace(SHAPE, vocab_size=len(tokenizer()))  # six shared layers
    save_model(make_pair(shape).discriminator, tokenizer(), tmp_path)
    encoding = tokenizer()(TEXT, return_tensors="pt")
    plain = load_model(tmp_path, "cpu")
    for layers in (1, 6, 9):
        model = load_model(tmp_path, "cpu", num_hidden_layers=layers)
        tokens, is_trained = model.features(TEXT).tokens, layers == 6
        stock = AutoModel.from_pretrained(tmp_path, num_hidden_layers=layers)
        with torch.no_grad():
            expected = stock(**encoding).last_hidden_state[0]
        assert (tokens - expected).abs().max() <= TOLERANCE * expected.abs().max().clamp(min=1.0)
        assert torch.equal(tokens, plain.features(TEXT).tokens) == is_trained
        probabilities = model.replaced_probabilities(TEXT)
        assert (probabilities == plain.replaced_probabilities(TEXT)) == is_trained
        assert f"{layers} layers" in repr(model)


def test_a_generator_keeps_its_depth(
    run: Path, model: InferenceModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "electra_albert")
    deeper = load_model(run, "cpu", num_hidden_layers=4)
    assert deeper.fill_mask("The [MASK] fell.") == model.fill_mask("The [MASK] fell.")
    assert deeper.replaced_probabilities(TEXT) != model.replaced_probabilities(TEXT)
    assert "the generator keeps 2" in caplog.text


def test_a_depth_that_is_no_multiple_of_the_groups_is_refused(tmp_path: Path) -> None:
    save("encoder", tmp_path)  # has two groups
    word = "num_hidden_layers=3 is not a multiple of num_hidden_groups=2"
    assert_refused("UsageError", word, load_model, tmp_path, "cpu", num_hidden_layers=3)
