"""Models of every kind at toy size, and what a stock class reports of the keys in their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.hub.config import stock_config
from electra_albert.hub.names import to_stock
from electra_albert.hub.save import save_model
from electra_albert.model.electra import Generator
from electra_albert.model.task_model import TaskHead
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, SPECIAL_IDS, make_body, make_masked_lm, make_pair

LABELS = ["entailment", "neutral", "contradiction"]
_POOLER = ("pooler.bias", "pooler.weight")
_DETECTION = tuple(
    f"discriminator_predictions.{name}.{part}" for name in ("dense", "dense_prediction") for part in ("bias", "weight")
)
_ORDER = ("sop_classifier.classifier.bias", "sop_classifier.classifier.weight")
_ELECTRA_HEAD = ("electra_classifier.bias", "electra_classifier.weight")


class Form(NamedTuple):
    """One kind of model and of folder."""

    make: Callable[[ModelConfig], Any]
    architecture: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    details: Mapping[str, Any] | None = None


def generator_with_pooler(config: ModelConfig) -> Generator:
    """A masked language model that came with a pooler, as the hub's ALBERT does."""
    model = make_masked_lm(config, with_sentence_order=False)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model.pooler = nn.Linear(config.hidden_size, config.hidden_size)
    return model


def _task(kind: Any, labels: list[str], count: int = 0, style: Any = "albert", **details: Any) -> Any:
    head = TaskHead(kind, count or len(labels), style, dropout=0.25)
    return lambda config: make_task_model(head, config), {"labels": labels, "is_regression": False, **details}


def _form(task: Any, architecture: str, *keys: tuple[str, ...]) -> Form:
    return Form(task[0], architecture, *(keys or ((), ())), details=task[1])


FORMS = {
    "generator": Form(lambda shape: make_pair(shape).generator, "AlbertForMaskedLM"),
    "generator with pooler": Form(
        generator_with_pooler, "AlbertForMaskedLM", unexpected=("albert.pooler.bias", "albert.pooler.weight")
    ),
    "generator with order": Form(make_masked_lm, "AlbertForPreTraining"),
    "discriminator": Form(lambda shape: make_pair(shape).discriminator, "AlbertModel", _POOLER, _DETECTION),
    "discriminator with order": Form(
        lambda shape: make_pair(shape, with_sentence_order=True).discriminator,
        "AlbertModel",
        unexpected=(*_DETECTION, *_ORDER),
    ),
    "encoder": Form(lambda shape: make_body(shape, with_pooler=False), "AlbertModel", _POOLER),
    "encoder with pooler": Form(lambda shape: make_body(shape, with_pooler=True), "AlbertModel"),
    "sequence": _form(_task("sequence", LABELS), "AlbertForSequenceClassification"),
    "regression": _form(_task("sequence", [], 1, is_regression=True), "AlbertForSequenceClassification"),
    "choice": _form(_task("choice", [], 1), "AlbertForMultipleChoice"),
    "span": _form(_task("span", [], 2), "AlbertForQuestionAnswering"),
    "token": _form(_task("token", LABELS), "AlbertForTokenClassification"),
    "sequence, electra": _form(_task("sequence", LABELS, style="electra"), "AlbertModel", _POOLER, _ELECTRA_HEAD),
    "choice, electra": _form(_task("choice", [], 1, "electra"), "AlbertModel", _POOLER, _ELECTRA_HEAD),
}


def save(name: str, tokenizer: Any, folder: Path, **options: Any) -> Any:
    """Write a model of one form with groups of its own; returns it."""
    form = FORMS[name]
    model = form.make(replace(SHAPE, vocab_size=len(tokenizer), num_hidden_groups=2))
    save_model(model, tokenizer, folder, form.details, **options)
    return model


def write(folder: Path, model: nn.Module) -> Path:
    """A stock folder of a model of SHAPE, without a hash, a tokenizer or a card."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_stock(model.state_dict()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(stock_config(SHAPE, "AlbertModel", SPECIAL_IDS)))
    return folder


def assert_same_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def run_code_of(folder: Path) -> dict[str, Any]:
    """The names that the card's code defines once it has run."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = {}
    exec(code.replace("THIS_FOLDER", str(folder)), found)
    return found
