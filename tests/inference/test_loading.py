"""load_model: unused rows of the word embeddings, and one-line errors of load_model and the
methods.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.inference.model import InferenceModel, load_model
from tests.apps.tiny_run import ROOT
from tests.inference.stock import LONGEST, NATS_TOLERANCE, TOLERANCE, make_stock, stock_inputs
from tests.refusals import assert_refused, rows
from tests.tokenization.tokenizer_kinds import wordpiece_vocab

UNUSED, TOKENS = 7, len(wordpiece_vocab(True))
LARGE_BIAS = 30.0  # of an unused row: stock predicts it at every mask
MASKED = "The old [MASK] fell into the river."
PLAIN = "A dog barked at the moon."


def twins(folder: Path, name: str) -> Any:
    """Save the same weights in two folders, with and without unused rows; returns the stock model
    with them.
    """
    padded = make_stock(folder / "padded", name, vocab_size=TOKENS + UNUSED)
    with torch.no_grad():
        padded.get_output_embeddings().bias[TOKENS:] = LARGE_BIAS
    padded.save_pretrained(str(folder / "padded"))
    plain = make_stock(folder / "plain", name)
    shapes = plain.state_dict()
    plain.load_state_dict({k: rows[: len(shapes[k])] for k, rows in padded.state_dict().items()})
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
    inputs = stock_inputs(tmp_path / "padded", MASKED)
    with torch.no_grad():
        (logits,) = stock(**inputs).logits[inputs["input_ids"] == padded.tokenizer.mask_token_id]
    assert logits.argmax() >= TOKENS
    scores = {p["token"]: p["score"] for p in padded.fill_mask(MASKED, top_k=10**6)}
    expected = dict(enumerate(logits[:TOKENS].softmax(-1).tolist()))
    assert scores == pytest.approx(expected, abs=TOLERANCE)
    ours, theirs = (one.pseudo_log_likelihood(PLAIN) for one in (padded, plain))
    assert ours == pytest.approx(theirs, abs=NATS_TOLERANCE)
    assert torch.equal(*(one.features(PLAIN).tokens for one in (padded, plain)))


@pytest.mark.parametrize("unused", [UNUSED, -1])
def test_too_few_word_embeddings_are_refused(tmp_path: Path, unused: int) -> None:
    """Fewer rows than in the configuration, or than the tokenizer has tokens."""
    make_stock(tmp_path, "BertForMaskedLM", vocab_size=TOKENS + unused)
    file, word = tmp_path / "config.json", f"{TOKENS} tokens, the model {TOKENS - 1}"
    if unused >= 0:
        contents = json.loads(file.read_text())
        file.write_text(json.dumps(contents | {"vocab_size": TOKENS + unused + 2}))
        word = f"shape [{TOKENS + unused}"
    assert_refused("CheckpointError", word, load_model, tmp_path, "cpu")


LONG = {"LONG": "owl " * (LONGEST - 1), "MASKS": "[MASK] " * LONGEST}
# A method (of a part of the run), its arguments, the class of error, and what it names.
REFUSED = r"""
features                 | [["owl", "LONG"]]       | DataError  | texts[1]
features                 | [["owl", "LONG"]]       | DataError  | truncate=True
fill_mask                | [["[MASK]", "owl"]]     | DataError  | texts[1]: 'owl' has no [MASK]
features                 | [[3]]                   | UsageError | texts[0]: 3
features                 | [["a", "\ud800"]]       | DataError  | surrogate
features                 | ["a", "pooler"]         | UsageError | pooling='pooler'
fill_mask                | ["[MASK]", 0]           | UsageError | top_k=0
fill_mask                | ["[MASK]", 5, []]       | UsageError | targets is empty
fill_mask                | ["[MASK]", 1, "owl dog"] | UsageError | owl dog
rewrite                  | ["MASKS"]               | DataError  | line 1
rewrite                  | ["owl", 0]              | UsageError | mask_rate=0
rewrite                  | ["owl", 1, 1, 1.5]      | UsageError | seed=1.5
classify                 | ["owl"]                 | UsageError | classify
generator.replaced_probabilities | ["owl"]         | UsageError | detection
discriminator.fill_mask  | ["[MASK]"]              | UsageError | fill_mask needs
discriminator.rewrite    | ["owl"]                 | UsageError | rewrite needs
"""
# A path, a device, batch_tokens, and what the message names.
NOT_LOADED = """
RUN                           | cpu     | 0 | batch_tokens=0
RUN                           | cuda:99 | 1 | cuda:99
nowhere                       | cpu     | 1 | nowhere
tests/refusals.py             | cpu     | 1 | config.json
tests                         | cpu     | 1 | model.safetensors
"""


@pytest.mark.parametrize(("call", "arguments", "error", "word"), rows(REFUSED))
def test_invalid_input_is_refused_in_one_line(
    model: InferenceModel, call: str, arguments: str, error: str, word: str
) -> None:
    part, _, method = call.rpartition(".")
    loaded = load_model(model.path / part, "cpu") if part else model
    for name, text in LONG.items():
        arguments = arguments.replace(name, text)
    assert_refused(error, word, getattr(loaded, method), *json.loads(arguments))


def test_a_pair_is_no_text_with_masks(model: InferenceModel) -> None:
    assert_refused("UsageError", "('a', 'b')", model.fill_mask, [("a", "b")])


@pytest.mark.parametrize(("path", "device", "batch_tokens", "word"), rows(NOT_LOADED))
def test_what_cannot_be_loaded_is_refused(
    run: Path, path: str, device: str, batch_tokens: str, word: str
) -> None:
    folder = ROOT / path.replace("RUN", str(run))
    assert_refused("UsageError", word, load_model, folder, device, int(batch_tokens))


@pytest.mark.parametrize("call", ["features", "classify"])
def test_a_pair_is_refused_if_the_model_has_one_segment(tmp_path: Path, call: str) -> None:
    make_stock(tmp_path, "BertForSequenceClassification", type_vocab_size=1)
    ask = getattr(load_model(tmp_path, "cpu"), call)
    assert len(ask(["A dog"])) == 1
    assert_refused("UsageError", "one segment", ask, [("A dog", "barked")])
