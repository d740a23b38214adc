"""load_model: unused rows of the word embeddings, and one-line errors of load_model and the
methods.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from tests.inference.stock import LONGEST, NATS_TOLERANCE, TOLERANCE, make_stock, stock_inputs
from tests.tokenization.tokenizer_kinds import wordpiece_vocab

UNUSED, TOKENS = 7, len(wordpiece_vocab(True))
LARGE_BIAS = 30.0  # of an unused row: stock predicts it at every mask
MASKED = ["The old [MASK] fell into the river.", "Every [MASK] dog found a [MASK]."]
PLAIN = ["The old bridge fell into the river.", "A dog barked at the moon."]


def twins(folder: Path, name: str) -> Any:
    """Save the same weights in two folders, with and without unused rows; returns the stock model
    with them.
    """
    padded = make_stock(folder / "padded", name, vocab_size=TOKENS + UNUSED)
    if name.endswith("MaskedLM"):
        with torch.no_grad():
            padded.get_output_embeddings().bias[TOKENS:] = LARGE_BIAS
        padded.save_pretrained(str(folder / "padded"))
    plain, rows = make_stock(folder / "plain", name), TOKENS + UNUSED
    state = {
        name: rest[:TOKENS] if rest.shape[:1] == (rows,) else rest
        for name, rest in padded.state_dict().items()
    }
    plain.load_state_dict(state)
    plain.save_pretrained(str(folder / "plain"))
    return padded


@pytest.mark.parametrize("name", ["AlbertForMaskedLM", "ElectraForMaskedLM"])
def test_unused_rows_are_never_predicted_and_do_not_change_results(
    tmp_path: Path, name: str
) -> None:
    """Probabilities equal stock's softmax over the tokens only; stock itself predicts an unused
    row.
    """
    stock = twins(tmp_path, name)
    padded, plain = (load_model(tmp_path / folder, "cpu") for folder in ("padded", "plain"))
    inputs = stock_inputs(tmp_path / "padded", MASKED[0])
    with torch.no_grad():
        logits = stock(**inputs).logits[
            0, inputs["input_ids"][0].tolist().index(padded.tokenizer.mask_token_id)
        ]
    assert logits.argmax() >= TOKENS
    everything = padded.fill_mask(MASKED[0], top_k=10**6)
    assert sorted(prediction["token"] for prediction in everything) == list(range(TOKENS))
    expected = logits[:TOKENS].softmax(-1)
    scores = [float(expected[prediction["token"]]) for prediction in everything]
    assert [prediction["score"] for prediction in everything] == pytest.approx(
        scores, abs=TOLERANCE
    )
    ours, theirs = padded.pseudo_log_likelihood(PLAIN), plain.pseudo_log_likelihood(PLAIN)
    assert ours == pytest.approx(theirs, abs=NATS_TOLERANCE)
    assert all(
        map(
            torch.equal, *([each.tokens for each in one.features(PLAIN)] for one in (padded, plain))
        )
    )


@pytest.mark.parametrize("unused", [UNUSED, -1])
def test_too_few_word_embeddings_are_refused(tmp_path: Path, unused: int) -> None:
    """Fewer rows than in the configuration, or than the tokenizer has tokens."""
    make_stock(tmp_path, "BertForMaskedLM", vocab_size=TOKENS + unused)
    file, message = tmp_path / "config.json", f"{TOKENS} tokens, the model {TOKENS - 1}"
    if unused >= 0:
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"vocab_size": TOKENS + unused + 2})
        )
        message = rf"shape \[{TOKENS + unused}"
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path, "cpu")


LONG = "owl " * (LONGEST - 1)
Call = Callable[[InferenceModel], Any]
REFUSED: dict[str, tuple[type[ValueError], Call]] = {  # by what the message names
    r"texts\[1\].*truncate=True": (DataError, lambda model: model.features(["owl", LONG])),
    r"texts\[1\]: 'owl' .*\[MASK\]": (DataError, lambda model: model.fill_mask(["[MASK]", "owl"])),
    r"texts\[0\]: 3": (UsageError, lambda model: model.features([3])),
    r"\('a', 'b'\)": (UsageError, lambda model: model.fill_mask([("a", "b")])),
    r"texts\[1\].*surrogate": (DataError, lambda model: model.features(["a", "\ud800"])),
    "pooling='pooler'": (UsageError, lambda model: model.features("a", "pooler")),
    "top_k=0": (UsageError, lambda model: model.fill_mask("[MASK]", top_k=0)),
    "owl moon": (UsageError, lambda model: model.fill_mask("[MASK]", targets="owl moon")),
    "line 1": (DataError, lambda model: model.rewrite("[MASK] " * LONGEST)),
    "mask_rate=0": (UsageError, lambda model: model.rewrite("owl", mask_rate=0)),
    "seed=1.5 must be a whole number": (UsageError, lambda model: model.rewrite("owl", seed=1.5)),
    "classify": (UsageError, lambda model: model.classify("owl")),
    "batch_tokens=0": (UsageError, lambda model: load_model(model.path, "cpu", 0)),
    "cuda:99": (UsageError, lambda model: load_model(model.path, "cuda:99")),
    "nowhere": (UsageError, lambda model: load_model("nowhere", "cpu")),
    r"config\.json": (UsageError, lambda model: load_model(Path(__file__), "cpu")),
    r"model\.safetensors": (UsageError, lambda model: load_model(Path(__file__).parent, "cpu")),
    "detection": (UsageError, lambda model: part(model, "generator").replaced_probabilities("owl")),
    "fill_mask needs": (UsageError, lambda model: part(model, "discriminator").fill_mask("[MASK]")),
    "rewrite needs": (UsageError, lambda model: part(model, "discriminator").rewrite("owl")),
}


def part(model: InferenceModel, name: str) -> InferenceModel:
    return load_model(model.path / name, "cpu")


@pytest.mark.parametrize("named", REFUSED)
def test_invalid_input_is_refused_in_one_line(model: InferenceModel, named: str) -> None:
    error, ask = REFUSED[named]
    with pytest.raises(error, match=named) as refusal:
        ask(model)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("call", ["features", "classify"])
def test_a_pair_is_refused_if_the_model_has_one_segment(tmp_path: Path, call: str) -> None:
    make_stock(tmp_path, "BertForSequenceClassification", type_vocab_size=1)
    ask = getattr(load_model(tmp_path, "cpu"), call)
    assert len(ask(["A dog"])) == 1
    with pytest.raises(UsageError, match="one segment"):
        ask([("A dog", "barked")])
