"""What was written is read again: a head, a pooler or a file that is not as it should be is never called done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_albert.apps.export.models import export_discriminator, export_generator, export_task_model
from electra_albert.contracts import CheckpointError
from electra_albert.corpus.tokenizer import train_tokenizer
from electra_albert.hub import names as huggingface
from electra_albert.hub.load import load_generator, locate
from electra_albert.hub.outputs import outputs
from electra_albert.model.electra import Generator
from electra_albert.model.task_model import TaskHead
from tests.corpus.tokenizer_kinds import PROSE
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, make_masked_lm, make_pair, padded_batch

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(PROSE, 120, do_lower_case=True)


def generator_with_pooler(config: Any) -> Generator:
    """A masked language model that came with a pooler, as the hub's ALBERT does."""
    model = make_masked_lm(config, with_sentence_order=False)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model.pooler = nn.Linear(config.hidden_size, config.hidden_size)
    return model


def export(name: str, tokenizer: Any, folder: Path, file_format: str = "safetensors") -> Any:
    """Write a model of one kind; returns it."""
    shape = replace(SHAPE, vocab_size=len(tokenizer))
    if name == "discriminator":
        model: Any = make_pair(shape, with_sentence_order=True).discriminator
        export_discriminator(model, tokenizer, folder, file_format)
    elif name in ("sequence", "choice"):
        model = make_task_model(TaskHead(name, 3 if name == "sequence" else 1, "electra"), shape)  # type: ignore[arg-type]
        labels = ["a", "b", "c"] if name == "sequence" else []
        export_task_model(model, tokenizer, folder, {"labels": labels}, file_format)
    else:
        model = generator_with_pooler(shape)
        export_generator(model, tokenizer, folder, file_format)
    return model


def fault_in(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensors], Tensors]) -> None:
    """Plant a fault in the tensors that are written."""
    to_stock = huggingface.to_stock
    monkeypatch.setattr(huggingface, "to_stock", lambda state: change(to_stock(state)))


@pytest.mark.parametrize("file_format", ["safetensors", "pt"])
@pytest.mark.parametrize("name", ["discriminator", "sequence", "choice", "generator"])
def test_every_model_that_stock_classes_read_in_part_is_written(
    tokenizer: Any, tmp_path: Path, name: str, file_format: str
) -> None:
    export(name, tokenizer, tmp_path, file_format)
    weights = "weights.pt" if file_format == "pt" else "model.safetensors"
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".pt", ".bin", ".safetensors")] == [weights]


@pytest.mark.parametrize(
    ("name", "part", "output"),
    [
        ("discriminator", "sop_classifier.classifier.weight", "sop_logits"),
        ("discriminator", "discriminator_predictions.dense.bias", "logits"),
        ("discriminator", "albert.pooler.weight", "pooler_output|sop_logits"),
        ("sequence", "electra_classifier.weight", "logits"),
        ("choice", "electra_classifier.weight", "logits"),
        ("generator", "albert.pooler.weight", "pooler_output"),
        ("generator", "predictions.dense.weight", "logits"),
    ],
)
def test_a_part_that_computes_other_values_is_never_called_done(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str, output: str
) -> None:
    fault_in(monkeypatch, lambda tensors: {**tensors, part: -tensors[part]})
    with pytest.raises(CheckpointError, match=rf"transformers computes other values than we do in ({output}) "):
        export(name, tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("discriminator", "sop_classifier.classifier.bias"),
        ("sequence", "electra_classifier.bias"),
        ("generator", "albert.pooler.bias"),
        ("generator", "albert.embeddings.LayerNorm.bias"),
    ],
)
def test_a_part_that_is_missing_is_never_called_done(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    fault_in(monkeypatch, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != part})
    with pytest.raises(CheckpointError, match=r"is not written: it lacks "):
        export(name, tokenizer, tmp_path)


@pytest.mark.parametrize("stray", ["junk.weight", "discriminator_predictions.dense.more", "albert.junk"])
@pytest.mark.parametrize("name", ["discriminator", "sequence", "generator"])
def test_a_tensor_that_belongs_to_no_part_is_never_called_done(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stray: str
) -> None:
    fault_in(monkeypatch, lambda tensors: {**tensors, stray: torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"is not written: it would hold .*, which the model has not"):
        export(name, tokenizer, tmp_path)


def test_a_pt_file_is_computed_by_the_stock_class_too(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault_in(monkeypatch, lambda tensors: {name: 2 * tensor for name, tensor in tensors.items()})
    with pytest.raises(CheckpointError, match="transformers computes other values"):
        export("generator", tokenizer, tmp_path, "pt")
    assert list(tmp_path.iterdir()) == []


def test_a_pt_file_that_differs_in_the_last_bit_is_never_called_done(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, name = torch.save, "predictions.bias"

    def save_another(tensors: Tensors, file: Any) -> None:
        save({**tensors, name: torch.nextafter(tensors[name], torch.tensor(9.0))}, file)

    monkeypatch.setattr(torch, "save", save_another)
    with pytest.raises(CheckpointError, match=f"is not written: {name} is read otherwise"):
        export("generator", tokenizer, tmp_path, "pt")
    assert list(tmp_path.iterdir()) == []


def test_a_pooler_that_a_generator_came_with_is_loaded_by_stock_and_by_us(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModel

    model = export("generator", tokenizer, tmp_path)
    ids, mask, segments = padded_batch(model.config)[:3]
    stock, report = AutoModel.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not report["missing_keys"]
    assert {name.split(".")[0] for name in report["unexpected_keys"]} == {"predictions"}
    with torch.no_grad():
        last = outputs(model, ids, mask, segments).last_hidden_state
        assert last is not None
        pooled = stock.eval()(ids, mask.long(), segments).pooler_output
    torch.testing.assert_close(model.pooler(last[:, 0]).tanh(), pooled, rtol=1e-5, atol=1e-5)
    again = load_generator(locate(tmp_path, "generator")).state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
