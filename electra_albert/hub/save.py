"""Models as folders that stock transformers opens: written beside, loaded again and compared, then moved into place.

A model that stock classes do not compute is written under our own names, with a config.json of our own.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.corpus.tokenizer import save_tokenizer
from electra_albert.hub import names
from electra_albert.hub.card import Facts, describe, write_card
from electra_albert.hub.config import native_config, stock_config
from electra_albert.hub.find import CONFIG_FILE
from electra_albert.hub.load import TASK_FILE, head_of
from electra_albert.hub.onnx import DATA_FILE, ONNX_FILE, write_onnx
from electra_albert.hub.outputs import Model, outputs, pooler_of, probe, require_equal
from electra_albert.hub.weights import WEIGHT_FILES, read_tensors, write_safetensors
from electra_albert.model.attention import stock_computes
from electra_albert.model.electra import Generator
from electra_albert.model.task_model import TaskModel

LOG = logging.getLogger(__name__)

_PT_FILE, _READ_BY_STOCK_AS = "weights.pt", "pytorch_model.bin"
_NUMBER_LABEL = "score"  # the one output of a regression
_CHECKED_LENGTH = 24


def save_model(
    model: Model,
    tokenizer: Any,
    folder: Path,
    details: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    *,
    file_format: str = "safetensors",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write model, tokenizer and card; `file_format` is safetensors, pt or onnx, `dtype` that of the stored weights.

    `details` are for `load_task_model`, among them the labels (and is_regression) of a task's head. Older weights of
    another format are removed. Leaves the model in eval mode. Raises CheckpointError where stock classes or onnxruntime
    compute other values than the model, UsageError where the folder cannot be written.
    """
    architecture, is_stock = _architecture(model), stock_computes(model.config)
    settings, details = _task_settings(model, details)
    model.eval()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=folder) as temporary:
            beside = Path(temporary)
            names_of_ids = {"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"}
            ids = {key: getattr(tokenizer, f"{name}_token_id") for key, name in names_of_ids.items()}
            config = stock_config(model.config, architecture, ids) if is_stock else native_config(model.config, ids)
            _write_json({**config, **settings}, beside / CONFIG_FILE)
            if details is not None:
                _write_json(details, beside / TASK_FILE)
            save_tokenizer(tokenizer, beside, model.config.max_position_embeddings)
            weights = write_onnx(model, beside) if file_format == "onnx" else _write(model, beside, file_format, dtype)
            written = {file.name for file in beside.iterdir()}
            for file in sorted(beside.iterdir(), key=lambda file: file == weights):
                os.replace(file, folder / file.name)
        for other in sorted({*WEIGHT_FILES, ONNX_FILE, DATA_FILE} - written):
            if (folder / other).exists():
                (folder / other).unlink()
                LOG.warning(f"removed {folder / other}, which was of another model or format")
        if details is None:
            (folder / TASK_FILE).unlink(missing_ok=True)  # of a fine-tuned model that was here
        write_card(folder, *describe(model, architecture, file_format if is_stock else "native", dtype, facts))
    except OSError as error:
        raise UsageError(f"cannot write the model into {folder} ({error.strerror or error}); make room") from None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and reports of heads that a stock class does not have."""
    from transformers.utils import logging as stock_logging

    verbosity, had_bars = stock_logging.get_verbosity(), stock_logging.is_progress_bar_enabled()
    stock_logging.set_verbosity_error()
    stock_logging.disable_progress_bar()
    try:
        yield
    finally:
        stock_logging.set_verbosity(verbosity)
        if had_bars:
            stock_logging.enable_progress_bar()


def _architecture(model: Model) -> str:
    """The stock class that computes the most of a model."""
    if isinstance(model, Generator):
        return "AlbertForMaskedLM" if model.sentence_order is None else "AlbertForPreTraining"
    return model.head.architecture if isinstance(model, TaskModel) else "AlbertModel"


def _task_settings(model: Model, details: Mapping[str, Any] | None) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """The head's settings in config.json, and the contents of TASK_FILE."""
    if not isinstance(model, TaskModel) or details is None:
        return {}, details
    head = model.head
    details = {**details, "kind": head.kind, "style": head.style}
    if head_of(details, head.dropout) != head:
        raise ValueError(f"labels {details['labels']} are none of a head of kind {head.kind} with {head.num_labels}")
    settings: dict[str, Any] = {"classifier_dropout_prob": head.dropout}
    if head.kind in ("sequence", "token"):
        names = details["labels"] or [_NUMBER_LABEL]
        settings["id2label"] = {str(number): name for number, name in enumerate(names)}
        settings["label2id"] = {name: number for number, name in enumerate(names)}
    if head.kind == "sequence":
        settings["problem_type"] = "regression" if details.get("is_regression") else "single_label_classification"
    return settings, details


def _write_json(contents: Mapping[str, Any], file: Path) -> None:
    file.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _write(model: Model, folder: Path, file_format: str, dtype: torch.dtype) -> Path:
    """Write the weights into a folder that holds all else, read them again and compare; returns their file."""
    is_stock = stock_computes(model.config)
    state = names.to_stock(model.state_dict()) if is_stock else names.to_native(model.state_dict())
    tensors = {name: tensor.to(dtype) for name, tensor in state.items()}
    too_large = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if too_large:
        raise CheckpointError(f"{folder.parent} is not written: {dtype} cannot hold {too_large[0]}; export as float32")
    weights = folder / WEIGHT_FILES[0]
    if file_format == "pt":
        weights = folder / _READ_BY_STOCK_AS
        content = io.BytesIO()  # into a file torch would write with errors of its own where the disk is full
        torch.save(tensors, content)
        weights.write_bytes(content.getbuffer())
    else:
        write_safetensors(tensors, weights)
    written = read_tensors(weights)
    other = sorted(tensors.keys() ^ written.keys())
    other = other or [name for name, tensor in tensors.items() if not torch.equal(tensor.float(), written[name])]
    if other:
        raise CheckpointError(f"{folder.parent} is not written: {other[0]} is read otherwise than it was saved")
    if is_stock:
        rounded = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype).float()
        _check_against_stock(rounded, written, folder)
    return weights.rename(folder / _PT_FILE) if file_format == "pt" else weights


def _check_against_stock(model: Model, written: Mapping[str, Tensor], folder: Path) -> None:
    """CheckpointError unless the stock class loads all of its weights and computes what `model` does.

    The file may hold nothing else but heads that the class has no place for, which stock's own layers compute.
    """
    import transformers

    refusal, architecture = f"{folder.parent} is not written", _architecture(model)
    options = {"add_pooling_layer": pooler_of(model) is not None} if architecture == "AlbertModel" else {}
    with quiet_transformers():
        stock, report = getattr(transformers, architecture).from_pretrained(
            str(folder), local_files_only=True, dtype=torch.float32, output_loading_info=True, **options
        )
    heads = _heads_aside(model, stock.config)
    known = {f"{prefix}.{name}" for prefix, head in heads.items() for name in head.state_dict()}
    faults = sorted({*report["missing_keys"], *(known - written.keys())} | ({*report["unexpected_keys"]} - known))
    if faults:
        raise CheckpointError(f"{refusal}: its weights and {architecture} do not agree on {faults[0]}")
    for prefix, head in heads.items():
        head.load_state_dict({name: written[f"{prefix}.{name}"] for name in head.state_dict()})
    inputs = probe(model.config, 2, min(_CHECKED_LENGTH, model.config.max_position_embeddings))
    device = next(model.parameters()).device
    with torch.no_grad():
        ours = outputs(model, *(row.to(device) for row in inputs))
        is_choice = architecture == "AlbertForMultipleChoice"
        found = stock.eval()(*(row[None] if is_choice else row for row in inputs), output_hidden_states=True)
        theirs = _all_outputs(dict(found), {prefix: head.eval() for prefix, head in heads.items()})
    for name, value in ours.items():
        same = theirs[name].view(value.shape) if is_choice else theirs[name]
        require_equal(value.cpu(), same, f"{refusal}: transformers computes other values than we do in {name}")


def _heads_aside(model: Model, config: Any) -> dict[str, nn.Module]:
    """Stock's own layers for the parts of a model that its stock class leaves aside, by their names in the file."""
    from transformers import ElectraConfig
    from transformers.models.albert.modeling_albert import AlbertSOPHead
    from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

    parts, width = {name for name, _ in model.named_children()}, model.config.hidden_size
    heads: dict[str, nn.Module] = {}
    if isinstance(model, Generator):
        return {"albert.pooler": nn.Linear(width, width)} if "pooler" in parts else heads
    if "discriminator_predictions" in parts:
        electra = ElectraConfig(hidden_size=width, hidden_act=model.config.hidden_act)
        heads["discriminator_predictions"] = ElectraDiscriminatorPredictions(electra)
    if "sentence_order" in parts:
        heads["sop_classifier"] = AlbertSOPHead(config)
    if isinstance(model, TaskModel) and "electra_classifier" in parts:
        heads["electra_classifier"] = nn.Linear(width, model.head.num_labels)
    return heads


def _all_outputs(found: dict[str, Any], heads: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The outputs of a stock class under our names, with those of the heads beside it."""
    last = found.get("last_hidden_state", found.get("hidden_states", (None,))[-1])  # [B, L, D]
    theirs = {**found, "last_hidden_state": last}
    if "prediction_logits" in found:
        theirs["logits"] = found["prediction_logits"]
    for prefix, head in heads.items():
        if prefix == "albert.pooler":
            theirs["pooler_output"] = head(last[:, 0]).tanh()
        elif prefix == "sop_classifier":
            theirs["sop_logits"] = head(found["pooler_output"])
        else:
            theirs["logits"] = head(last[:, 0] if prefix == "electra_classifier" else last)
    return theirs
