"""A folder of an exported model: written beside, read again, and only then put in place.

A model that stock classes do not compute is written under our own names, with a config.json of our own.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_albert.apps.command_line import check_can_write
from electra_albert.contracts import UsageError
from electra_albert.corpus.tokenizer import save_tokenizer

if TYPE_CHECKING:
    from electra_albert.apps.export.model_card import Facts
    from electra_albert.hub.outputs import Model

CARD = "README.md"
_WEIGHTS = {"safetensors": "model.safetensors", "pt": "weights.pt"}
_CHECKED_AS = {"weights.pt": "pytorch_model.bin"}  # the name under which stock classes read such a file
LARGEST_CARD_BYTES = 1 << 16


class Form(NamedTuple):
    """What a folder is written as."""

    architecture: str
    file_format: str = "safetensors"
    settings: Mapping[str, Any] = {}  # of config.json, beside those of the shape
    details: Mapping[str, Any] | None = None  # of the task, in a file of their own
    facts: Facts | None = None  # of the model, in its card


def publish(folder: Path, model: Model, tokenizer: Any, form: Form) -> None:
    """Write beside, check there, then put the files in place, weights last; older weights of another format go.

    A README.md that is no card of ours, or was changed since, stays, and that is said. Raises UsageError where the
    folder cannot be written, CheckpointError where what was written gives other values than the model.
    """
    from electra_albert.hub.load import TASK_FILE

    check_can_write(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".writing-", dir=folder) as name:
            beside = Path(name)
            weights = _write(beside, model, tokenizer, form)
            if is_anothers(folder / CARD):
                (beside / CARD).unlink()
                print(f"notice: {folder / CARD} was not written here, or changed since; it stays", file=sys.stderr)
            files = sorted(beside.iterdir(), key=lambda path: path == weights)
            for file in files:
                os.replace(file, folder / file.name)
        for other in sorted(_weight_files() - {file.name for file in files}):
            if (folder / other).exists():
                (folder / other).unlink()
                print(f"notice: removed {folder / other}, which was of another model or format", file=sys.stderr)
        if form.details is None:
            (folder / TASK_FILE).unlink(missing_ok=True)  # of a fine-tuned model that lay here
    except OSError as error:
        raise UsageError(f"cannot write the model into {folder} ({error.strerror or error}); make room") from None


def is_anothers(card: Path) -> bool:
    """Whether a file with the name of the card lies there that is not one as it was written here."""
    from electra_albert.apps.export.model_card import is_our_card

    if not card.is_file():
        return False
    with card.open("rb") as opened:
        content = opened.read(LARGEST_CARD_BYTES + 1)
    return len(content) > LARGEST_CARD_BYTES or not is_our_card(content.decode("utf-8", errors="replace"))


def _weight_files() -> set[str]:
    from electra_albert.apps.export.onnx import DATA_FILE, ONNX_FILE
    from electra_albert.hub.weights import WEIGHT_FILES

    return {*WEIGHT_FILES, ONNX_FILE, DATA_FILE}


def _write(folder: Path, model: Model, tokenizer: Any, form: Form) -> Path:
    """Write card, configuration, tokenizer and weights, and check the weights; returns their file."""
    from electra_albert.apps.export.model_card import model_card
    from electra_albert.hub.config import native_config, stock_config
    from electra_albert.hub.load import CONFIG_FILE, TASK_FILE
    from electra_albert.model.attention import stock_computes

    is_stock, ids = stock_computes(model.config), special_ids(tokenizer)
    config = stock_config(model.config, form.architecture, ids) if is_stock else native_config(model.config, ids)
    (folder / CONFIG_FILE).write_text(json.dumps({**config, **form.settings}, indent=2) + "\n", encoding="utf-8")
    card = model_card(model, form.architecture, form.file_format if is_stock else "native", form.facts)
    (folder / CARD).write_text(card, encoding="utf-8")
    if form.details is not None:
        (folder / TASK_FILE).write_text(json.dumps(form.details, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    if form.file_format == "onnx":
        from electra_albert.apps.export.onnx import write_onnx

        return write_onnx(model, folder)
    return _write_tensors(folder, model, form)


def special_ids(tokenizer: Any) -> dict[str, int]:
    """What config.json says of the tokenizer."""
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }


def _write_tensors(folder: Path, model: Model, form: Form) -> Path:
    """Write the weights into a folder that holds all else, read them again and compare."""
    import torch

    from electra_albert.apps.export.checks import check_against_stock, read_back
    from electra_albert.hub.names import to_native, to_stock
    from electra_albert.hub.weights import write_safetensors
    from electra_albert.model.attention import stock_computes

    is_stock = stock_computes(model.config)
    tensors = to_stock(model.state_dict()) if is_stock else to_native(model.state_dict())
    weights = folder / _WEIGHTS[form.file_format]
    if form.file_format == "pt":
        content = io.BytesIO()  # into a file torch would write with errors of its own where the disk is full
        torch.save(tensors, content)
        weights.write_bytes(content.getbuffer())
    else:
        write_safetensors(tensors, weights)
    written = read_back(tensors, weights)
    if not is_stock:
        return weights
    read_by_stock = weights.rename(folder / _CHECKED_AS.get(weights.name, weights.name))
    check_against_stock(model, written, folder, form.architecture)
    return read_by_stock.rename(weights)
