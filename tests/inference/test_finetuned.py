"""Methods of fine-tuned models: results equal those of stock transformers for every head and
batching.
"""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import pipeline

from electra_albert.inference.model import InferenceModel, load_model
from tests.inference.stock import TOLERANCE, make_stock, numbers, tokenizer_of
from tests.refusals import assert_refused

TEXTS = [
    "The old bridge fell into the river .",
    "A dog",
    "",
    "People say a great many things , and the river sings .",
]
PAIRS = [("Was it built ?", "It was not ; the road ends ."), ("A dog", "The moon")]
QUESTIONS = ["What fell ?", "Who barked at the moon ?"]
CONTEXTS = [TEXTS[0], "A dog barked at the moon , and the river sings ."]
OPTIONS = [["the bridge", "a dog", "nobody"], ["a dog", "the river", "the old road"]]
LABELS = {0: "bad", 1: "odd", 2: "good"}


def stock_and_ours(folder: Path, name: str, **more: Any) -> tuple[Any, InferenceModel]:
    """A stock model with a random head, and our model loaded from its folder."""
    return make_stock(folder, name, **more), load_model(folder, "cpu")


def test_classify_equals_the_pipeline(tmp_path: Path) -> None:
    names = {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}
    stock, model = stock_and_ours(tmp_path, "BertForSequenceClassification", **names)
    options = {"tokenizer": tokenizer_of(tmp_path), "device": "cpu", "top_k": None}
    classify = pipeline("text-classification", model=stock, **options)
    asked = [{"text": text} for text in TEXTS]
    asked += [{"text": first, "text_pair": second} for first, second in PAIRS]
    for ours, theirs in zip(model.classify([*TEXTS, *PAIRS]), classify(asked), strict=True):
        expected = {result["label"]: result["score"] for result in theirs}
        assert list(ours.scores) == list(LABELS.values())
        assert ours.scores == pytest.approx(expected, abs=TOLERANCE)
        assert (ours.label, ours.score) == (theirs[0]["label"], max(ours.scores.values()))


def test_tag_equals_the_pipeline_at_the_first_token_of_each_word(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "BertForTokenClassification", id2label=LABELS)
    options = {"tokenizer": tokenizer_of(tmp_path), "device": "cpu", "ignore_labels": []}
    tag = pipeline("token-classification", model=stock, **options)
    for text, ours in zip(TEXTS, model.tag(TEXTS), strict=True):
        tokens = tag(text) if text else []
        firsts = [token for token in tokens if f" {text}"[token["start"]] == " "]
        expected = [
            (word, token["entity"], pytest.approx(token["score"], abs=TOLERANCE))
            for word, token in zip(text.split(), firsts, strict=True)
        ]
        assert [*map(tuple, ours)] == expected


@pytest.mark.parametrize("longest", [1, 30])
def test_answer_is_the_best_span_of_the_stock_logits(tmp_path: Path, longest: int) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForQuestionAnswering")
    plan = model.task.plan._replace(max_answer_length=longest)
    model = replace(model, task=model.task._replace(plan=plan))
    tokenizer, answers = tokenizer_of(tmp_path), model.answer(QUESTIONS, CONTEXTS)
    for *texts, ours in zip(QUESTIONS, CONTEXTS, answers, strict=True):
        encoded = tokenizer(*texts, return_tensors="pt", return_offsets_mapping=True)
        spans = encoded.pop("offset_mapping")[0].tolist()
        inside = [position for position, owner in enumerate(encoded.sequence_ids(0)) if owner == 1]
        with torch.no_grad():
            logits = stock(**encoded)
        start, end = logits.start_logits[0].double(), logits.end_logits[0].double()
        pairs = ((i, j) for i in inside for j in inside if i <= j < i + longest)
        best, i, j = max((float(start[i] + end[j]), i, j) for i, j in pairs)
        assert ours[1:3] == (spans[i][0], spans[j][1])
        assert ours.text == texts[1][ours.start : ours.end]
        assert ours.score == pytest.approx(best, abs=TOLERANCE)
        assert ours.no_answer is None


def test_chosen_option_equals_stock(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForMultipleChoice")
    assert_refused("UsageError", "one or more", model.choose, "c", "q", [])
    tokenizer, choices = tokenizer_of(tmp_path), model.choose(CONTEXTS, QUESTIONS, OPTIONS)
    for context, question, options, ours in zip(CONTEXTS, QUESTIONS, OPTIONS, choices, strict=True):
        pairs = [(context, f"{question} {option}") for option in options]
        encoded = tokenizer(pairs, return_tensors="pt", padding=True)
        with torch.no_grad():
            (logits,) = stock(**{name: values[None] for name, values in encoded.items()}).logits
        assert ours.scores == pytest.approx(logits.softmax(-1).tolist(), abs=TOLERANCE)
        best = int(logits.argmax())
        assert (ours.number, ours.option) == (best, options[best])


LONG = "dog " * 60
CALLS: dict[str, tuple[str, Any, Any]] = {
    "SequenceClassification": ("classify", ([*TEXTS, *PAIRS],), (["dog", LONG],)),
    "TokenClassification": ("tag", ([*TEXTS, LONG],), (["dog", "a" * 90],)),
    "QuestionAnswering": ("answer", (QUESTIONS, ["A dog .", LONG]), (["Who ?", LONG], CONTEXTS)),
    "MultipleChoice": ("choose", (CONTEXTS, QUESTIONS, OPTIONS), (["A", LONG], QUESTIONS, OPTIONS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_batches_threads_or_pickling(tmp_path: Path, name: str) -> None:
    """tag and answer read long texts in windows."""
    call, arguments, _ = CALLS[name]

    def results(model: InferenceModel) -> list[float]:
        return numbers(getattr(model, call)(*arguments))

    _, model = stock_and_ours(tmp_path, f"AlbertFor{name}")
    expected = pytest.approx(results(model), abs=TOLERANCE)
    for other in (load_model(tmp_path, "cpu", batch_tokens=1), pickle.loads(pickle.dumps(model))):
        assert results(other) == expected
    with ThreadPoolExecutor(4) as threads:
        assert all(result == expected for result in threads.map(results, [model] * 4))


@pytest.mark.parametrize("name", CALLS)
def test_other_methods_and_too_long_texts_are_refused(tmp_path: Path, name: str) -> None:
    call, _, too_long = CALLS[name]
    _, model = stock_and_ours(tmp_path, f"AlbertFor{name}")
    assert call in repr(model)
    given = {"classify": ("a",), "tag": ("a",), "answer": ("a", "b"), "choose": ("a", "b", ["c"])}
    for other in given.keys() - {call}:
        word = f"this one supports {call}"
        assert_refused("UsageError", word, getattr(model, other), *given[other])
    method = getattr(model, call)
    assert assert_refused("DataError", "too long", method, *too_long).startswith("texts[1]: ")
    assert len(method(*too_long, truncate=True)) == 2
