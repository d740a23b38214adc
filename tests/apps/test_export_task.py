"""A fine-tuned folder is a stock one: the classes transformers names for it give our numbers and our labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from electra_albert.apps.export.models import export_task_model
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import train_tokenizer
from electra_albert.hub import names as huggingface
from electra_albert.hub.load import build_task_model, load_task_model, locate_encoder
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.corpus.tokenizer_kinds import PROSE
from tests.model.twins import SHAPE

LABELS = ["entailment", "neutral", "contradiction"]
TEXTS = ["The river sings at night.", "The old road ends at the water, and the dog is older still."]
FORMS: dict[str, tuple[TaskHead, dict[str, Any], str]] = {
    "sequence": (TaskHead("sequence", 3), {"labels": LABELS}, "SequenceClassification"),
    "regression": (TaskHead("sequence", 1), {"labels": [], "is_regression": True}, "SequenceClassification"),
    "choice": (TaskHead("choice", 1), {"labels": []}, "MultipleChoice"),
    "span": (TaskHead("span", 2), {"labels": []}, "QuestionAnswering"),
    "token": (TaskHead("token", 3), {"labels": ["O", "B-LOC", "I-LOC"]}, "TokenClassification"),
}
ELECTRA = TaskHead("sequence", 3, "electra")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(PROSE, 120, do_lower_case=True)


def make_model(head: TaskHead, tokenizer: Any) -> TaskModel:
    torch.manual_seed(7)
    return build_task_model(replace(SHAPE, vocab_size=len(tokenizer)), head, None)[0].eval()


def encoded(folder: Path) -> Any:
    """The texts as the folder's own tokenizer gives them, cut to the positions of the shape."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    return tokenizer(TEXTS, TEXTS[::-1], return_tensors="pt", padding=True, truncation=True, max_length=16)


def ours(model: TaskModel, rows: Any) -> torch.Tensor:
    return model(rows["input_ids"], rows["attention_mask"].bool(), rows["token_type_ids"])[0]


@pytest.mark.parametrize("name", FORMS)
def test_auto_class_of_the_kind_loads_the_folder_whole_and_gives_our_logits(
    tokenizer: Any, tmp_path: Path, name: str
) -> None:
    import transformers

    head, details, auto = FORMS[name]
    model = make_model(head, tokenizer)
    export_task_model(model, tokenizer, tmp_path, details)
    stock, report = getattr(transformers, f"AutoModelFor{auto}").from_pretrained(
        str(tmp_path), output_loading_info=True
    )
    assert {kind: keys for kind, keys in report.items() if keys} == {}
    rows = encoded(tmp_path)
    nested = {key: value[None] if head.kind == "choice" else value for key, value in rows.items()}
    with torch.no_grad():
        found, wanted = stock.eval()(**nested), ours(model, rows)
    logits = torch.stack([found.start_logits, found.end_logits], -1) if head.kind == "span" else found.logits
    torch.testing.assert_close(wanted.view(logits.shape), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*FORMS, "no pooler"])
def test_folder_loads_here_with_head_and_details(tokenizer: Any, tmp_path: Path, name: str) -> None:
    head, details, _ = FORMS.get(name, (ELECTRA, {"labels": LABELS}, ""))
    model = make_model(replace(head, dropout=0.25), tokenizer)
    export_task_model(model, tokenizer, tmp_path / "model", {**details, "task": "mine", "max_seq_length": 16})
    loaded, found = load_task_model(locate_encoder(tmp_path))
    assert found == {**details, "task": "mine", "max_seq_length": 16, "kind": head.kind, "style": head.style}
    assert loaded.head == model.head
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_without_a_pooler_automodel_loads_the_encoder(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = make_model(ELECTRA, tokenizer)
    export_task_model(model, tokenizer, tmp_path, {"labels": LABELS})
    stock, report = AutoModel.from_pretrained(str(tmp_path), output_loading_info=True)
    assert set(report["unexpected_keys"]) == {"electra_classifier.weight", "electra_classifier.bias"}
    assert set(report["missing_keys"]) == {"pooler.weight", "pooler.bias"}
    rows = encoded(tmp_path)
    with torch.no_grad():
        first = stock.eval()(**rows).last_hidden_state[:, 0]
        torch.testing.assert_close(model.output(first), ours(model, rows), rtol=1e-4, atol=1e-5)


def test_pipeline_names_the_label_we_predict(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import pipeline

    model = make_model(FORMS["sequence"][0], tokenizer)
    export_task_model(model, tokenizer, tmp_path, {"labels": LABELS})
    with torch.no_grad():
        model.output.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    export_task_model(model, tokenizer, tmp_path, {"labels": LABELS})
    found = pipeline("text-classification", model=str(tmp_path), device="cpu")(TEXTS[0], truncation=True, max_length=16)
    assert found[0]["label"] == "neutral"
    assert found[0]["score"] > 0.9


@pytest.mark.parametrize(
    ("name", "problem_type"), [("sequence", "single_label_classification"), ("regression", "regression")]
)
def test_config_tells_the_problem_and_the_dropout(tokenizer: Any, tmp_path: Path, name: str, problem_type: str) -> None:
    head, details, _ = FORMS[name]
    export_task_model(make_model(replace(head, dropout=0.3), tokenizer), tokenizer, tmp_path, details)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["problem_type"] == problem_type
    assert config["classifier_dropout_prob"] == 0.3
    assert len(config["id2label"]) == head.num_labels
    assert {str(number): label for label, number in config["label2id"].items()} == config["id2label"]


@pytest.mark.parametrize("name", [*FORMS, "no pooler"])
def test_folder_that_transformers_reads_otherwise_is_never_written(
    tokenizer: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the weights of the values are written with another sign. All names and shapes are right."""
    to_stock = huggingface.to_stock
    monkeypatch.setattr(
        huggingface,
        "to_stock",
        lambda state: {n: -t if "value.weight" in n else t for n, t in to_stock(state).items()},
    )
    head, details, _ = FORMS.get(name, (ELECTRA, {"labels": LABELS}, ""))
    with pytest.raises(CheckpointError, match="transformers computes other values"):
        export_task_model(make_model(head, tokenizer), tokenizer, tmp_path, details)
    assert list(tmp_path.iterdir()) == []


def test_details_of_another_head_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of a head of kind sequence with 3"):
        export_task_model(make_model(FORMS["sequence"][0], tokenizer), tokenizer, tmp_path, {"labels": ["a", "b"]})


def test_folder_that_cannot_be_written_is_a_usage_error(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        export_task_model(make_model(ELECTRA, tokenizer), tokenizer, tmp_path / "file", {"labels": LABELS})
