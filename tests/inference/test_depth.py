"""load_model(num_hidden_layers=n): the first n layers, as in stock AlbertModel; other depths are
refused.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from electra_albert.contracts import UsageError
from electra_albert.hub.save import save_model
from electra_albert.inference.model import InferenceModel, load_model
from tests.hub.models import save, tokenizer
from tests.inference.stock import TOLERANCE
from tests.model.twins import SHAPE, make_pair

TEXT = "the old fox"


def test_features_at_a_depth_are_those_of_stock_with_as_many_layers(tmp_path: Path) -> None:
    shape = replace(SHAPE, vocab_size=len(tokenizer()))  # six shared layers
    save_model(make_pair(shape).discriminator, tokenizer(), tmp_path)
    encoding = tokenizer()(TEXT, return_tensors="pt")
    with torch.no_grad():
        deep = AutoModel.from_pretrained(tmp_path, num_hidden_layers=12)(
            **encoding, output_hidden_states=True
        )
    plain = load_model(tmp_path, "cpu")
    for layers in (1, 4, 6, 9):
        model = load_model(tmp_path, "cpu", num_hidden_layers=layers)
        found, is_trained = model.features(TEXT).tokens, layers == 6
        with torch.no_grad():
            stock = AutoModel.from_pretrained(tmp_path, num_hidden_layers=layers)(
                **encoding
            ).last_hidden_state[0]
        for expected in (stock, deep.hidden_states[layers][0]):  # 0: before the first layer
            assert (found - expected).abs().max() <= TOLERANCE * max(
                1.0, float(expected.abs().max())
            )
        assert torch.equal(model.features(TEXT, "cls").pooled, found[0])
        assert torch.equal(found, plain.features(TEXT).tokens) == is_trained
        assert (
            model.replaced_probabilities(TEXT) == plain.replaced_probabilities(TEXT)
        ) == is_trained
        assert f"{layers} layers" in repr(model)


def test_a_generator_keeps_its_depth(
    run: Path, model: InferenceModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "electra_albert")
    deeper = load_model(run, "cpu", num_hidden_layers=4)
    assert deeper.fill_mask("The [MASK] fell.") == model.fill_mask("The [MASK] fell.")
    assert deeper.replaced_probabilities("The owl fell.") != model.replaced_probabilities(
        "The owl fell."
    )
    assert "num_hidden_layers is for the encoder; the generator keeps 2" in caplog.text


def test_a_depth_that_is_no_multiple_of_the_groups_is_refused(tmp_path: Path) -> None:
    save("encoder", tmp_path)  # has two groups
    assert load_model(tmp_path, "cpu", num_hidden_layers=4).encoder.config.num_hidden_layers == 4
    with pytest.raises(
        UsageError, match=r"^num_hidden_layers=3 is not a multiple of num_hidden_groups=2"
    ):
        load_model(tmp_path, "cpu", num_hidden_layers=3)
