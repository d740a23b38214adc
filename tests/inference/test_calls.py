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


def difference(ours: Any, theirs: Any) -> str:
    """The first difference between two results of the pipeline, scores within a tolerance."""
    if isinstance(theirs, list):
        if not isinstance(ours, list) or len(ours) != len(theirs):
            return f"{ours}, not {theirs}"
        return next(
            (found for pair in zip(ours, theirs, strict=True) if (found := difference(*pair))), ""
        )
    is_near = abs(ours["score"] - theirs["score"]) <= TOLERANCE
    return (
        ""
        if is_near and {**ours, "score": 0} == {**theirs, "score": 0}
        else f"{ours}, not {theirs}"
    )


def pipeline_of(folder: Path) -> Callable[..., Any]:
    stock = AutoModelForMaskedLM.from_pretrained(str(folder))
    return pipeline(
        "fill-mask", model=stock, tokenizer=tokenizer_of(folder), device=torch.device("cpu")
    )


@pytest.mark.parametrize("name", ["BertForMaskedLM", "ElectraForMaskedLM"])
def test_fill_mask_equals_the_pipeline(tmp_path: Path, run: Path, name: str) -> None:
    make_stock(tmp_path, name)
    albert, ours = pipeline_of(run / "generator"), load_model(run, device="cpu")
    assert difference(ours.fill_mask(SENTENCES), albert(SENTENCES)) == ""
    fill, model = pipeline_of(tmp_path), load_model(tmp_path, device="cpu")
    assert difference(model.fill_mask(SENTENCES), fill(SENTENCES)) == ""
    assert difference(model.fill_mask(SEVERAL, top_k=3), fill(SEVERAL, top_k=3)) == ""
    targets = ["dog", "##e", "bridge", "dog"]
    chosen = model.fill_mask(SENTENCES, targets=targets)
    assert difference(chosen, fill(SENTENCES, targets=targets)) == ""
    assert {prediction["token_str"] for prediction in chosen[0]} == {"dog", "##e", "bridge"}


def test_a_list_of_one_text_returns_a_list(model: InferenceModel) -> None:
    asks = (model.fill_mask, model.pseudo_log_likelihood, model.replaced_probabilities)
    for ask in asks:
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
    pooling: Any = "mean" if name.startswith("Electra") else "pooler"
    found, by_cls, by_mean = (
        model.features(PLAIN, pooling),
        model.features(PLAIN, "cls"),
        model.features(PLAIN),
    )
    for text, ours, cls, mean in zip(PLAIN, found, by_cls, by_mean, strict=True):
        inputs = stock_inputs(tmp_path, text)
        with torch.no_grad():
            theirs = getattr(stock, stock.base_model_prefix, stock)(**inputs)
        hidden_states = theirs.last_hidden_state[0]
        assert ours.subwords == tokenizer_of(tmp_path).convert_ids_to_tokens(
            inputs["input_ids"][0].tolist()
        )
        assert (ours.tokens - hidden_states).abs().max() <= TOLERANCE
        assert not ours.tokens.is_inference()  # else autograd could not use it
        is_text = torch.tensor([token not in ("[CLS]", "[SEP]") for token in ours.subwords])
        expected = hidden_states[is_text if is_text.any() else ~is_text].mean(0)
        assert (mean.pooled - expected).abs().max() <= TOLERANCE
        assert (cls.pooled - hidden_states[0]).abs().max() <= TOLERANCE
        if pooling == "pooler":
            assert (ours.pooled - theirs.pooler_output[0]).abs().max() <= TOLERANCE


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
    for text, ours in zip(
        PLAIN, load_model(tmp_path, device="cpu").replaced_probabilities(PLAIN), strict=True
    ):
        inputs = stock_inputs(tmp_path, text)
        with torch.no_grad():
            theirs = stock(**inputs).logits[0].sigmoid()
        tokens = tokenizer_of(tmp_path).convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        positions = [
            position for position, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")
        ]
        assert [score.token for score in ours] == [tokens[position] for position in positions]
        assert [score.probability for score in ours] == pytest.approx(
            theirs[positions].tolist(), abs=TOLERANCE
        )


def test_character_spans_of_tokens(model: InferenceModel) -> None:
    text = " The  quiet Owl\u0301, near [SEP] the 漢字 and [MASK]"
    scores = model.replaced_probabilities(text)
    for token, start, end, _ in scores:
        assert (
            text[start:end].lower().replace("\u0301", "") == token.removeprefix("▁")
            or token == "<unk>"
        )
    assert "漢字" in [text[score.start : score.end] for score in scores]
    joined = "".join(text[start:end] for _, start, end, _ in scores)
    assert joined == "ThequietOwl\u0301,nearthe漢字and"
    pair = ("The owl", "left the  river")
    found = [(score.start, score.end) for score in model.replaced_probabilities(pair)]
    border = found.index((0, 4))  # offsets of a pair are those in each text
    assert "".join(pair[1][start:end] for start, end in found[border:]) == "lefttheriver"


def reference_likelihood(stock: Any, folder: Path, text: str | tuple[str, str]) -> float:
    """Pseudo-log-likelihood by its definition: one forward pass for each masked token."""
    tokenizer, inputs, total = tokenizer_of(folder), stock_inputs(folder, text), 0.0
    for position, token in enumerate(inputs["input_ids"][0].tolist()):
        if token not in (tokenizer.cls_token_id, tokenizer.sep_token_id):
            masked = inputs["input_ids"].clone()
            masked[0, position] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = stock(**{**inputs, "input_ids": masked}).logits
            total += float(logits[0, position].double().log_softmax(-1)[token])
    return total


def test_pseudo_log_likelihood_equals_its_definition_on_the_stock_model(tmp_path: Path) -> None:
    stock = make_stock(tmp_path, "AlbertForMaskedLM")
    found = load_model(tmp_path, device="cpu").token_log_likelihoods(PLAIN)
    expected = [reference_likelihood(stock, tmp_path, text) for text in PLAIN]
    assert [likelihood.total for likelihood in found] == pytest.approx(expected, abs=NATS_TOLERANCE)
    assert found[1] == Likelihood(0.0, [])
    assert all(
        each.total == pytest.approx(math.fsum(nats for _, nats in each.tokens)) for each in found
    )


TEXTS = [
    "The quiet owl crossed the river.",
    "One lamp",
    "",
    "Every old cat found the key near a garden, at noon.",
] * 3
CALLS: dict[str, Callable[[InferenceModel], Any]] = {
    "fill_mask": lambda model: model.fill_mask([f"{text} [MASK]" for text in TEXTS]),
    "features": lambda model: model.features(TEXTS),
    "replaced_probabilities": lambda model: model.replaced_probabilities(TEXTS),
    "pseudo_log_likelihood": lambda model: model.pseudo_log_likelihood(TEXTS),
}


@pytest.mark.parametrize("call", ["features", "pseudo_log_likelihood"])
def test_results_do_not_depend_on_batches_padding_or_threads(
    model: InferenceModel, run: Path, call: str
) -> None:
    together = numbers(CALLS[call](model))
    assert len(together) >= len(TEXTS)
    others = [load_model(run, "cpu", batch_tokens) for batch_tokens in (1, 37)]
    with ThreadPoolExecutor(4) as threads:
        found = [*map(CALLS[call], others), *threads.map(lambda _: CALLS[call](model), range(8))]
    for one in found:
        assert numbers(one) == pytest.approx(
            together, abs=NATS_TOLERANCE if "likelihood" in call else TOLERANCE
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_results_equal_cpu_results(model: InferenceModel, run: Path) -> None:
    on_gpu = load_model(run, "cuda")
    assert next(on_gpu.encoder.parameters()).device.type == "cuda"
    for ask in CALLS.values():
        assert numbers(ask(on_gpu)) == pytest.approx(numbers(ask(model)), abs=1e-3)
