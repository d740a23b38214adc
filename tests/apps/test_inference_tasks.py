"""A fine-tuned model in a program: what stock gives for the same folder, of any head, one text or many at once."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from tests.apps.test_inference import LONGEST, TOLERANCE, make_stock, numbers, tokenizer_of

TEXTS = ["The old bridge fell into the river .", "A dog", "", "People say a great many things , and the river sings ."]
PAIRS = [("Was it built ?", "It was not ; the road ends ."), ("A dog", "The moon")]
QUESTIONS = ["What fell ?", "Who barked at the moon ?"]
CONTEXTS = ["The old bridge fell into the river .", "A dog barked at the moon , and the river sings ."]
OPTIONS = [["the bridge", "a dog", "nobody"], ["a dog", "the river", "the old road"]]
LABELS = {0: "bad", 1: "odd", 2: "good"}


def stock_and_ours(folder: Path, name: str, **more: Any) -> tuple[Any, InferenceModel]:
    """A stock model with a random head, and what is loaded here of its folder."""
    sizes = {"embedding_size": 11} if name.startswith("Albert") else {}
    stock = make_stock(folder, name, **sizes, **more)
    return stock, load_model(folder, "cpu")


@pytest.mark.parametrize("name", ["Albert", "Bert"])
def test_classes_are_those_of_the_pipeline(tmp_path: Path, name: str) -> None:
    from transformers import pipeline

    names = {"id2label": LABELS, "label2id": {label: number for number, label in LABELS.items()}}
    stock, model = stock_and_ours(tmp_path, f"{name}ForSequenceClassification", **names)
    classify = pipeline("text-classification", model=stock, tokenizer=tokenizer_of(tmp_path), device="cpu", top_k=None)
    given = [*TEXTS, *PAIRS]
    asked = [{"text": it} if isinstance(it, str) else {"text": it[0], "text_pair": it[1]} for it in given]
    for ours, theirs in zip(model.classify(given), classify(asked), strict=True):
        assert ours.label == theirs[0]["label"]
        assert ours.score == pytest.approx(theirs[0]["score"], abs=TOLERANCE)
        assert list(ours.scores) == list(LABELS.values())
        assert ours.scores == pytest.approx({one["label"]: one["score"] for one in theirs}, abs=TOLERANCE)


def test_a_regression_gives_its_number(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForSequenceClassification", num_labels=1, problem_type="regression")
    with torch.no_grad():
        wanted = float(stock(**tokenizer_of(tmp_path)(TEXTS[0], return_tensors="pt")).logits)
    assert model.classify(TEXTS[0]) == ("score", pytest.approx(wanted, abs=TOLERANCE), model.classify(TEXTS[0]).scores)


def test_tags_are_those_of_the_pipeline_at_the_first_token_of_each_word(tmp_path: Path) -> None:
    from transformers import pipeline

    stock, model = stock_and_ours(tmp_path, "BertForTokenClassification", id2label=LABELS)
    tag = pipeline(
        "token-classification", model=stock, tokenizer=tokenizer_of(tmp_path), device="cpu", ignore_labels=[]
    )
    for text, ours in zip(TEXTS, model.tag(TEXTS), strict=True):
        assert [word for word, _, _ in ours] == text.split()
        firsts = [one for one in tag(text) if one["start"] == 0 or text[one["start"] - 1] == " "] if text else []
        assert [label for _, label, _ in ours] == [one["entity"] for one in firsts]
        assert [score for _, _, score in ours] == pytest.approx([one["score"] for one in firsts], abs=TOLERANCE)


def test_an_answer_is_the_best_stretch_of_the_stock_logits(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForQuestionAnswering")
    for question, context, ours in zip(QUESTIONS, CONTEXTS, model.answer(QUESTIONS, CONTEXTS), strict=True):
        row = tokenizer_of(tmp_path)(question, context, return_tensors="pt", return_offsets_mapping=True)
        spans = row.pop("offset_mapping")[0].tolist()
        inside = [place for place, owner in enumerate(row.sequence_ids(0)) if owner == 1]
        with torch.no_grad():
            found = stock(**row)
        start, end = found.start_logits[0].double(), found.end_logits[0].double()
        best = max((float(start[i] + end[j]), i, j) for i in inside for j in inside if i <= j < i + 30)
        assert (ours.start, ours.end) == (spans[best[1]][0], spans[best[2]][1])
        assert ours.text == context[ours.start : ours.end]
        assert ours.score == pytest.approx(best[0], abs=TOLERANCE)
        assert ours.no_answer is None


def test_the_option_chosen_is_stocks(tmp_path: Path) -> None:
    stock, model = stock_and_ours(tmp_path, "AlbertForMultipleChoice")
    found = model.choose(CONTEXTS, QUESTIONS, OPTIONS)
    for context, question, options, ours in zip(CONTEXTS, QUESTIONS, OPTIONS, found, strict=True):
        second = [f"{question} {option}" for option in options]
        rows = tokenizer_of(tmp_path)([context] * len(options), second, return_tensors="pt", padding=True)
        with torch.no_grad():
            wanted = stock(**{name: tensor[None] for name, tensor in rows.items()}).logits[0].softmax(-1)
        assert ours.scores == pytest.approx(wanted.tolist(), abs=TOLERANCE)
        assert (ours.number, ours.option) == (int(wanted.argmax()), options[int(wanted.argmax())])


CALLS = {
    "AlbertForSequenceClassification": lambda model: model.classify([*TEXTS, *PAIRS]),
    "AlbertForTokenClassification": lambda model: model.tag([*TEXTS, "dog " * 100]),
    "AlbertForQuestionAnswering": lambda model: model.answer(QUESTIONS, [CONTEXTS[0], "A dog barked . " * 40]),
    "AlbertForMultipleChoice": lambda model: model.choose(CONTEXTS, QUESTIONS, OPTIONS),
}


@pytest.mark.parametrize("name", CALLS)
def test_batches_threads_and_pickling_change_nothing(tmp_path: Path, name: str) -> None:
    _, model = stock_and_ours(tmp_path, name)
    together = CALLS[name](model)
    others = [load_model(tmp_path, "cpu", batch_tokens=1), pickle.loads(pickle.dumps(model))]
    with ThreadPoolExecutor(4) as threads:
        found = [*map(CALLS[name], others), *threads.map(lambda _: CALLS[name](model), range(4))]
    for one in found:
        assert numbers(one) == pytest.approx(numbers(together), abs=TOLERANCE)


@pytest.mark.parametrize("name", CALLS)
def test_what_a_model_was_not_fine_tuned_for_is_refused(tmp_path: Path, name: str) -> None:
    _, model = stock_and_ours(tmp_path, name)
    able = {"Sequence": "classify", "Token": "tag", "Question": "answer", "Multiple": "choose"}
    mine = next(call for part, call in able.items() if part in name)
    assert mine in repr(model)
    for call in able.values():
        if call != mine:
            given = {"answer": ("a", "b"), "choose": ("a", "b", ["c"])}.get(call, ("a",))
            with pytest.raises(UsageError, match=f"^{call} needs a model fine-tuned for it; this one can {mine}$"):
                getattr(model, call)(*given)


def test_an_encoder_classifies_nothing(tmp_path: Path) -> None:
    _, model = stock_and_ours(tmp_path, "AlbertModel")
    with pytest.raises(UsageError, match=r"^classify needs a fine-tuned model: .*names no fine-tuned model"):
        model.classify("a")


REFUSED = {
    "a text": ("AlbertForSequenceClassification", lambda model, **more: model.classify(["dog", "dog " * 60], **more)),
    "a word": ("AlbertForTokenClassification", lambda model, **more: model.tag(["dog", "a" * 90], **more)),
    "a question": (
        "AlbertForQuestionAnswering",
        lambda model, **more: model.answer(["Who ?", "dog " * 60], CONTEXTS, **more),
    ),
    "a passage": (
        "AlbertForMultipleChoice",
        lambda model, **more: model.choose(["A dog .", "dog " * 60], QUESTIONS, OPTIONS, **more),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_too_long_is_refused_unless_it_may_be_cut(tmp_path: Path, case: str) -> None:
    name, ask = REFUSED[case]
    _, model = stock_and_ours(tmp_path, name)
    with pytest.raises(
        DataError, match=rf"^texts\[1\]: .* too long: the model reads sequences of {LONGEST} tokens; .* truncate=True$"
    ):
        ask(model)
    assert len(ask(model, truncate=True)) == 2


def test_questions_without_their_contexts_or_options_are_refused(tmp_path: Path) -> None:
    _, model = stock_and_ours(tmp_path, "AlbertForQuestionAnswering")
    for questions, contexts in ((QUESTIONS, CONTEXTS[:1]), (QUESTIONS[0], CONTEXTS), (QUESTIONS[:1], CONTEXTS[0])):
        with pytest.raises(UsageError, match="give a str of each, or lists of the same length"):
            model.answer(questions, contexts)  # type: ignore[call-overload]
    _, model = stock_and_ours(tmp_path / "choice", "AlbertForMultipleChoice")
    for options in (OPTIONS[:1], "the river", ["the", "river"], [[], []], [["a"], [3]]):
        with pytest.raises(UsageError, match="options are not a list of str for each question"):
            model.choose(CONTEXTS, QUESTIONS, options)  # type: ignore[arg-type]
