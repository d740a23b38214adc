"""Small models of every kind, ours and stock ones of three families, with random parameters."""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.corpus.tokenizer_training import train_tokenizer
from electra_albert.hub.formats import stock_config, to_stock
from electra_albert.hub.save import save_model
from electra_albert.model.electra import Generator
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, SPECIAL_IDS, make_encoder, make_masked_lm, make_pair, stock
from tests.tokenization.tokenizer_kinds import PROSE

LABELS = ["entailment", "neutral", "contradiction"]
C = 5
_SAME = """vocab_size hidden_size num_attention_heads intermediate_size max_position_embeddings
    initializer_range"""
_SIZES = {name: getattr(SHAPE, name) for name in _SAME.split()} | {"num_hidden_layers": 4}


class Form(NamedTuple):
    """One kind of our models, its stock class, and the heads in its file that the class ignores."""

    make: Callable[[ModelConfig], Any]
    architecture: str
    ignored: tuple[str, ...] = ()


def generator_with_pooler(config: ModelConfig) -> Generator:
    """A generator with a pooler, as the released ALBERT models."""
    model = make_masked_lm(config, with_sentence_order=False)
    model.pooler = make_encoder(config, with_pooler=True).pooler
    return model


def _task(*head: Any) -> Callable[[ModelConfig], TaskModel]:
    return lambda config: make_task_model(TaskHead(*head, dropout=0.25), config)


_DETECTION = "discriminator_predictions"
FORMS = {
    "generator": Form(lambda shape: make_pair(shape).generator, "AlbertForMaskedLM"),
    "generator with pooler": Form(generator_with_pooler, "AlbertForMaskedLM", ("albert.pooler",)),
    "generator with order": Form(make_masked_lm, "AlbertForPreTraining"),
    "discriminator": Form(
        lambda shape: make_pair(shape).discriminator, "AlbertModel", (_DETECTION,)
    ),
    "discriminator with order": Form(
        lambda shape: make_pair(shape, with_sentence_order=True).discriminator,
        *("AlbertModel", (_DETECTION, "sop_classifier")),
    ),
    "discriminator with MLM": Form(
        lambda shape: make_pair(shape, with_mlm=True).discriminator,
        *("AlbertForMaskedLM", (_DETECTION,)),
    ),
    "discriminator with MLM and order": Form(
        lambda shape: make_pair(shape, with_mlm=True, with_sentence_order=True).discriminator,
        *("AlbertForPreTraining", (_DETECTION,)),
    ),
    "encoder": Form(lambda shape: make_encoder(shape, with_pooler=False), "AlbertModel"),
    "encoder with pooler": Form(lambda shape: make_encoder(shape, with_pooler=True), "AlbertModel"),
    "sequence": Form(_task("sequence", 3), "AlbertForSequenceClassification"),
    "regression": Form(_task("sequence", 1), "AlbertForSequenceClassification"),
    "choice": Form(_task("choice", 1), "AlbertForMultipleChoice"),
    "span": Form(_task("span", 2), "AlbertForQuestionAnswering"),
    "token": Form(_task("token", 3), "AlbertForTokenClassification"),
    "sequence, electra": Form(
        _task("sequence", 3, "electra"), "AlbertModel", ignored=("electra_classifier",)
    ),
    "choice, electra": Form(
        _task("choice", 1, "electra"), "AlbertModel", ignored=("electra_classifier",)
    ),
}


@functools.cache
def tokenizer() -> Any:
    return train_tokenizer(PROSE, 120, do_lower_case=True)


def save(name: str, folder: Path, more: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Save a model of a form with two groups and task details with `more`; returns it."""
    shape = replace(SHAPE, vocab_size=len(tokenizer()), num_hidden_groups=2)
    model, details = FORMS[name].make(shape), None
    if isinstance(model, TaskModel):
        labels = LABELS if model.head.num_labels == len(LABELS) else []
        details = {"labels": labels, "is_regression": name == "regression", **(more or {})}
    save_model(model, tokenizer(), folder, details, **options)
    return model


def write(folder: Path, model: nn.Module) -> Path:
    """Write a stock folder for a model of SHAPE, without hash, tokenizer and card."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_stock(model.state_dict()), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(stock_config(SHAPE, "AlbertModel", SPECIAL_IDS)))
    return folder


def assert_same_tensors(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


def run_code_of(folder: Path) -> dict[str, Any]:
    """Run the code of a model card; returns the variables it defines."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    actual: dict[str, Any] = {}
    exec(code.replace("THIS_FOLDER", str(folder)), actual)
    return actual


def config_of(family: str, **changes: Any) -> Any:
    """The stock configuration of a family: albert, bert, electra, or wide: electra with E = D."""
    if family == "albert":
        return stock(SHAPE, **changes)
    options = {**_SIZES, **changes, "attn_implementation": "eager"}
    if family == "bert":
        return transformers.BertConfig(**options)
    size = SHAPE.embedding_size if family == "electra" else SHAPE.hidden_size
    return transformers.ElectraConfig(embedding_size=size, **options)


def make(family: str, name: str, config: Any = None, **options: Any) -> Any:
    """The stock model of class `name` in eval mode; `options` go to its class."""
    has_labels = name.endswith(("SequenceClassification", "TokenClassification"))
    labels = {"num_labels": C} if has_labels else {}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, name)(config or config_of(family, **labels), **options).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, mean=0.5, std=0.2)
    return model
