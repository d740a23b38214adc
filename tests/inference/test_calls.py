"""Methods of InferenceModel: results equal those of stock transformers for every batching."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, pipeline

from electra_albert.inference.model import InferenceModel, Likelihood, load_model
from tests.inference.stock import (
    LONGEST,
    NATS_TOLERANCE,
    TOLERANCE,
    make_stock,
    numbers,
    stock_inputs,
    tokenizer_of,
)

SEVERAL = "A [MASK] barked at the moon; [MASK] in the house heard [MASK]."
SENTENCES = ["The old bridge [MASK] into the river.", SEVERAL, "[MASK]"]
PAIR = ("Was it built?", "It was not; the road ends.")
PLAIN: list[str | tuple[str, str]] = [
    "The old bridge fell into the river.",
    "",
    "A dog",
    PAIR,
    "x" * 30,
]


def comparable(predictions: Any) -> Any:
    """Predictions of the pipeline, with scores that are compared within a tolerance."""
    if isinstance(predictions, list):
        return [comparable(prediction) for prediction in predictions]
    return {**predictions, "score": pytest.approx(predictions["score"], abs=TOLERANCE)}


def pipeline_of(folder: Path) -> Callable[..., Any]:
    stock = AutoModelForMaskedLM.from_pretrained(str(folder))
    return pipeline("fill-mask", model=stock, tokenizer=tokenizer_of(folder), device="cpu")


@pytest.mark.parametrize("name", ["AlbertForMaskedLM", "BertForMaskedLM", "ElectraForMaskedLM"])
def test_fill_mask_equals_the_pipeline(tmp_path: Path, run: Path, name: str) -> None:
    folder = run if name.startswith("Albert") else tmp_path
    make_stock(tmp_path, name)
    fill = pipeline_of(folder / "generator" if folder == run else folder)
    model = load_model(folder, device="cpu")
    targets = ["dog", "bridge", "dog"] if folder == tmp_path else ["."] * 2
    for options in ({}, {"top_k": 3}, {"targets": targets}):
        expected = fill(SENTENCES, **options)
        assert model.fill_mask(SENTENCES, **options) == comparable(expected)
    assert model.fill_mask(SEVERAL, top_k=3) == comparable(fill(SEVERAL, top_k=3))


def test_a_list_of_one_text_returns_a_list(model: InferenceModel) -> None:
    for ask in (model.fill_mask, model.pseudo_log_likelihood, model.replaced_probabilities):
        assert ask(SENTENCES[:1]) == [ask(SENTENCES[0])]
        assert ask([]) == []
    assert len(model.features(["A dog"])) == 1


def test_top_k_above_the_vocabulary_size_returns_all_tokens(model: InferenceModel) -> None:
    everything = model.fill_mask(SENTENCES[0], top_k=100_000)
    assert len(everything) == len(model.tokenizer)
    assert math.fsum(prediction["score"] for prediction in everything) == pytest.approx(1, abs=1e-5)
    assert model.fill_mask(SENTENCES[0], top_k=np.int64(2)) == everything[:2]


@pytest.mark.parametrize("name", ["BertForPreTraining", "ElectraModel"])
def test_features_equal_those_of_the_stock_encoder(tmp_path: Path, name: str) -> None:
    stock = make_stock(tmp_path, name)
    model = load_model(tmp_path, device="cpu")
    poolings = ("cls", "mean", "pooler")[: 3 if name.startswith("Bert") else 2]
    results = zip(*(model.features(PLAIN, pooling) for pooling in poolings), strict=True)
    for text, ours in zip(PLAIN, results, strict=True):
        inputs = stock_inputs(tmp_path, text)
        with torch.no_grad():
            theirs = getattr(stock, stock.base_model_prefix, stock)(**inputs)
        hidden_states = theirs.last_hidden_state[0]
        assert ours[0].subwords == tokens_of(tmp_path, inputs)
        assert (ours[0].tokens - hidden_states).abs().max() <= TOLERANCE
        assert not ours[0].tokens.is_inference()  # else autograd could not use it
        of_text = hidden_states[positions_of(ours[0].subwords)]
        mean = (of_text if len(of_text) else hidden_states).mean(0)
        expected = (hidden_states[0], mean, theirs.get("pooler_output"))
        for result, vector in zip(ours, expected, strict=False):
            assert (result.pooled - vector).abs().max() <= TOLERANCE


def tokens_of(folder: Path, inputs: dict[str, torch.Tensor]) -> list[str]:
    return tokenizer_of(folder).convert_ids_to_tokens(inputs["input_ids"][0].tolist())


def positions_of(tokens: list[str]) -> list[int]:
    """Positions of all tokens but the special ones."""
    return [at for at, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]


def test_truncation_keeps_the_same_tokens_as_stock(tmp_path: Path, model: InferenceModel) -> None:
    make_stock(tmp_path, "BertModel")
    stock, text = tokenizer_of(tmp_path), ("A dog fell. " * 30, "Into the river.")
    kept = stock(*text, truncation=True, max_length=LONGEST)["input_ids"]
    found = load_model(tmp_path, device="cpu").features([text, "A dog"], truncate=True)
    assert found[0].subwords == stock.convert_ids_to_tokens(kept)
    assert len(found[1].subwords) == 4
    long, cut = "[MASK] owl. " + "owl " * 99, "[MASK] owl. " + "owl " * (LONGEST - 5)
    for ask in (model.fill_mask, model.replaced_probabilities, model.pseudo_log_likelihood):
        expected = pytest.approx(numbers(ask([cut, "[MASK]"])), abs=NATS_TOLERANCE)
        assert numbers(ask([long, "[MASK]"], truncate=True)) == expected


def test_replaced_probabilities_equal_those_of_stock_electra(tmp_path: Path) -> None:
    stock = make_stock(tmp_path, "ElectraForPreTraining")
    model = load_model(tmp_path, device="cpu")
    for text, ours in zip(PLAIN, model.replaced_probabilities(PLAIN), strict=True):
        inputs = stock_inputs(tmp_path, text)
        with torch.no_grad():
            theirs = stock(**inputs).logits[0].sigmoid().tolist()
        tokens = tokens_of(tmp_path, inputs)
        positions = positions_of(tokens)
        assert [score.token for score in ours] == [tokens[at] for at in positions]
        expected = [theirs[at] for at in positions]
        assert [score.probability for score in ours] == pytest.approx(expected, abs=TOLERANCE)


def test_character_spans_of_tokens(model: InferenceModel) -> None:
    text = " The  quiet Owl\u0301, near [SEP] the 漢字 and [MASK]"
    scores = model.replaced_probabilities(text)
    spans = [text[score.start : score.end] for score in scores]
    for score, span in zip(scores, spans, strict=True):
        plain = span.lower().replace("\u0301", "")
        assert score.token in ("<unk>", plain, f"▁{plain}")
    assert "漢字" in spans
    assert "".join(spans) == "ThequietOwl\u0301,nearthe漢字and"
    pair = ("The owl", "left the  river")
    spans = [(score.start, score.end) for score in model.replaced_probabilities(pair)]
    border = spans.index((0, 4))  # offsets of a pair are those in each text
    assert "".join(pair[1][start:end] for start, end in spans[border:]) == "lefttheriver"


def reference_likelihood(stock: Any, folder: Path, text: str | tuple[str, str]) -> float:
    """Pseudo-log-likelihood by its definition: one forward pass for each masked token."""
    inputs, total = stock_inputs(folder, text), 0.0
    for position in positions_of(tokens_of(folder, inputs)):
        masked = inputs["input_ids"].clone()
        masked[0, position] = tokenizer_of(folder).mask_token_id
        with torch.no_grad():
            logits = stock(**{**inputs, "input_ids": masked}).logits[0, position]
        total += float(logits.double().log_softmax(-1)[inputs["input_ids"][0, position]])
    return total


def test_pseudo_log_likelihood_equals_its_definition_on_the_stock_model(tmp_path: Path) -> None:
    stock = make_stock(tmp_path, "AlbertForMaskedLM")
    likelihoods = load_model(tmp_path, device="cpu").token_log_likelihoods(PLAIN)
    for text, likelihood in zip(PLAIN, likelihoods, strict=True):
        expected = reference_likelihood(stock, tmp_path, text)
        assert likelihood.total == pytest.approx(expected, abs=NATS_TOLERANCE)
        assert likelihood.total == pytest.approx(math.fsum(nats for _, nats in likelihood.tokens))
    assert likelihoods[1] == Likelihood(0.0, [])


TEXTS = [
    "The quiet owl crossed the river.",
    "One lamp",
    "",
    "Every old cat found the key near a garden, at noon.",
] * 3
CALLS = ("features", "replaced_probabilities", "pseudo_log_likelihood", "fill_mask")


def call(name: str, model: InferenceModel) -> list[float]:
    return numbers(getattr(model, name)([f"{text} [MASK]" for text in TEXTS]))


@pytest.mark.parametrize("name", ["features", "pseudo_log_likelihood"])
def test_results_do_not_depend_on_batches_padding_or_threads(
    model: InferenceModel, run: Path, name: str
) -> None:
    expected = pytest.approx(call(name, model), abs=NATS_TOLERANCE if "log" in name else TOLERANCE)
    for batch_tokens in (1, 37):
        assert call(name, load_model(run, "cpu", batch_tokens)) == expected
    with ThreadPoolExecutor(4) as threads:
        for result in threads.map(lambda _: call(name, model), range(8)):
            assert result == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_results_equal_cpu_results(model: InferenceModel, run: Path) -> None:
    on_gpu = load_model(run, "cuda")
    assert next(on_gpu.encoder.parameters()).device.type == "cuda"
    for name in CALLS:
        assert call(name, on_gpu) == pytest.approx(call(name, model), abs=1e-3)
