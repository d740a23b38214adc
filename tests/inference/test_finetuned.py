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

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from tests.inference.stock import TOLERANCE, make_stock, numbers, tokenizer_of

TEXTS = [
    "The old bridge fell into the river .",
    "A dog",
    "",
    "People say a great many things , and the river sings .",
]
PAIRS = [("Was it built ?", "It was not ; the road ends ."), ("A dog", "The moon")]
QUESTIONS = ["What fell ?", "Who barked at the moon ?"]
CONTEXTS = [
    "The old bridge fell into the river .",
    "A dog barked at the moon , and the river sings .",
]
OPTIONS = [["the bridge", "a dog", "nobody"], ["a dog", "the river", "the old road"]]
LABELS = {0: "bad", 1: "odd", 2: "good"}


def stock_and_ours(folder: Path, name: str, **more: Any) -> tuple[Any, InferenceModel]:
    """A stock model with a random head, and our model loaded from its folder."""
    return make_stock(folder, name, **more), load_model(folder, "cpu")


def test_classify_equals_the_pipeline(tmp_path: Path) -> None:
    names = {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}
    stock, model = stock_and_ours(tmp_path, "BertForSequenceClassification", **names)
    classify = pipeline(
        "text-classification",
        model=stock,
        tokenizer=tokenizer_of(tmp_path),
        device="cpu",
        top_k=None,
    )
    given = [*TEXTS, *PAIRS]
    asked = [
        {"text": it} if isinstance(it, str) else {"text": it[0], "text_pair": it[1]} for it in given
    ]
    for ours, theirs in zip(model.classify(given), classify(asked), strict=True):
        assert ours.label == theirs[0]["label"]
        assert ours.score == pytest.approx(theirs[0]["score"], abs=TOLERANCE)
        assert list(ours.scores) == list(LABELS.values())
        assert ours.scores == pytest.approx(
            {one["label"]: one["score"] for one in theirs}, abs=TOLERANCE
        )


def test_tag_equals_the_pipeline_at_the_first_token_of_each_word(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "BertForTokenClassification", id2label=LABELS)
    tokenizer = tokenizer_of(tmp_path)
    tag = pipeline(
        "token-classification", model=stock, tokenizer=tokenizer, device="cpu", ignore_labels=[]
    )
    for text, ours in zip(TEXTS, model.tag(TEXTS), strict=True):
        assert [word for word, _, _ in ours] == text.split()
        firsts = (
            [one for one in tag(text) if one["start"] == 0 or text[one["start"] - 1] == " "]
            if text
            else []
        )
        assert [label for _, label, _ in ours] == [one["entity"] for one in firsts]
        assert [score for _, _, score in ours] == pytest.approx(
            [one["score"] for one in firsts], abs=TOLERANCE
        )


@pytest.mark.parametrize("longest", [1, 30])
def test_answer_is_the_best_span_of_the_stock_logits(tmp_path: Path, longest: int) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForQuestionAnswering")
    plan = model.task.plan._replace(max_answer_length=longest)
    model = replace(model, task=model.task._replace(plan=plan))
    for question, context, ours in zip(
        QUESTIONS, CONTEXTS, model.answer(QUESTIONS, CONTEXTS), strict=True
    ):
        encoded = tokenizer_of(tmp_path)(
            question, context, return_tensors="pt", return_offsets_mapping=True
        )
        spans = encoded.pop("offset_mapping")[0].tolist()
        inside = [position for position, owner in enumerate(encoded.sequence_ids(0)) if owner == 1]
        with torch.no_grad():
            found = stock(**encoded)
        start, end = found.start_logits[0].double(), found.end_logits[0].double()
        pairs = ((i, j) for i in inside for j in inside if i <= j < i + longest)
        best = max((float(start[i] + end[j]), i, j) for i, j in pairs)
        assert (ours.start, ours.end) == (spans[best[1]][0], spans[best[2]][1])
        assert ours.text == context[ours.start : ours.end]
        assert ours.score == pytest.approx(best[0], abs=TOLERANCE)
        assert ours.no_answer is None


def test_chosen_option_equals_stock(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForMultipleChoice")
    found = model.choose(CONTEXTS, QUESTIONS, OPTIONS)
    with pytest.raises(UsageError, match="one or more"):
        model.choose("c", "q", [])
    for context, question, options, ours in zip(CONTEXTS, QUESTIONS, OPTIONS, found, strict=True):
        second = [f"{question} {option}" for option in options]
        encoded = tokenizer_of(tmp_path)(
            [context] * len(options), second, return_tensors="pt", padding=True
        )
        with torch.no_grad():
            wanted = (
                stock(**{name: tensor[None] for name, tensor in encoded.items()})
                .logits[0]
                .softmax(-1)
            )
        assert ours.scores == pytest.approx(wanted.tolist(), abs=TOLERANCE)
        assert (ours.number, ours.option) == (int(wanted.argmax()), options[int(wanted.argmax())])


LONG = "dog " * 60
# Stock class: method, arguments with texts of different lengths, and arguments with one that is too
# long.
CALLS: dict[str, tuple[str, Any, Any]] = {
    "AlbertForSequenceClassification": ("classify", ([*TEXTS, *PAIRS],), (["dog", LONG],)),
    "AlbertForTokenClassification": ("tag", ([*TEXTS, LONG],), (["dog", "a" * 90],)),
    "AlbertForQuestionAnswering": (
        "answer",
        (QUESTIONS, [CONTEXTS[0], LONG]),
        (["Who ?", LONG], CONTEXTS),
    ),
    "AlbertForMultipleChoice": (
        "choose",
        (CONTEXTS, QUESTIONS, OPTIONS),
        (["A dog .", LONG], QUESTIONS, OPTIONS),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_batches_threads_or_pickling(tmp_path: Path, name: str) -> None:
    """tag and answer read long texts in windows."""
    call, given, _ = CALLS[name]
    _, model = stock_and_ours(tmp_path, name)
    together = getattr(model, call)(*given)
    others = [load_model(tmp_path, "cpu", batch_tokens=1), pickle.loads(pickle.dumps(model))]
    with ThreadPoolExecutor(4) as threads:
        found = [getattr(other, call)(*given) for other in others]
        found += threads.map(lambda _: getattr(model, call)(*given), range(4))
    for one in found:
        assert numbers(one) == pytest.approx(numbers(together), abs=TOLERANCE)


@pytest.mark.parametrize("name", CALLS)
def test_other_methods_and_too_long_texts_are_refused(tmp_path: Path, name: str) -> None:
    call, _, too_long = CALLS[name]
    _, model = stock_and_ours(tmp_path, name)
    assert call in repr(model)
    given = {"classify": ("a",), "tag": ("a",), "answer": ("a", "b"), "choose": ("a", "b", ["c"])}
    for other in given.keys() - {call}:
        with pytest.raises(UsageError, match=f"^{other} needs .* this one supports {call}$"):
            getattr(model, other)(*given[other])
    with pytest.raises(DataError, match=r"^texts\[1\]: .* too long: .* truncate=True$"):
        getattr(model, call)(*too_long)
    assert len(getattr(model, call)(*too_long, truncate=True)) == 2
