"""What was written is read again by stock transformers, and must give the numbers we give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.contracts import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from electra_albert.config import ModelConfig
    from electra_albert.model.electra import Discriminator
    from electra_albert.model.outputs import Model, Outputs

LOGITS_TOLERANCE = 1e-4  # float32, relative to the largest value: what another order of additions may change
_CHECKED_ROW = 24
_COMPARED = ("logits", "sop_logits", "start_logits", "end_logits")
_STOCK_NAMES = {("AlbertForPreTraining", "logits"): "prediction_logits"}


def probe(config: ModelConfig, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and segments, each int64 [B, L], that use all of what a model reads; the last row ends in padding."""
    import torch

    ids = (torch.arange(batch * length) * 7919 % config.vocab_size).view(batch, length)
    mask = torch.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    segments = (torch.arange(length) * config.type_vocab_size // length).repeat(batch, 1)
    return ids, mask, segments


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of our largest value, where that is above 1; NaN where a value is."""
    return float((ours - theirs).abs().max()) / max(1.0, float(ours.abs().max()))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, and no report of the detection head, which the stock encoder has no place for."""
    from transformers.utils import logging

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def check_against_stock(model: Model, folder: Path, architecture: str) -> None:
    """CheckpointError unless the stock class `architecture` loads `folder` whole and computes what `model` does.

    Leaves the model in eval mode. A detection head is compared with stock ELECTRA's.
    """
    import torch

    from electra_albert.model.electra import Discriminator
    from electra_albert.model.outputs import outputs
    from electra_albert.model.task_model import TaskModel

    rows = probe(model.config, 2, min(_CHECKED_ROW, model.config.max_position_embeddings))
    questions = [row[None] for row in rows]  # of multiple choice, whose rows stand in them
    is_choice = isinstance(model, TaskModel) and model.head.kind == "choice"
    device = next(model.parameters()).device
    with torch.no_grad():
        stock = _stock(folder, architecture, _has_pooler(model))
        theirs = stock(*(questions if architecture == "AlbertForMultipleChoice" else rows))
        ours = outputs(model.eval(), *(row.to(device) for row in (questions if is_choice else rows)))
        for name, value in _compared(model, ours, architecture).items():
            stock_name = _STOCK_NAMES.get((architecture, name), name)
            _require_equal(value.cpu(), getattr(theirs, stock_name), folder, name)
        if isinstance(model, Discriminator):
            head = _stock_detection_head(model, folder)
            assert ours.logits is not None
            _require_equal(ours.logits.cpu(), head(theirs.last_hidden_state), folder, "detection")


def _compared(model: Model, ours: Outputs, architecture: str) -> dict[str, Tensor]:
    """What both sides compute."""
    if architecture != "AlbertModel":
        values = {name: getattr(ours, name) for name in _COMPARED}
    else:
        last = ours.last_hidden_state
        assert last is not None
        values = {"last_hidden_state": last, "pooler_output": _pooler_output(model, last)}
    return {name: value for name, value in values.items() if value is not None}


def _require_equal(ours: Tensor, theirs: Tensor, folder: Path, name: str) -> None:
    """CheckpointError, which says that the folder around `folder` is not written, unless the numbers are the same."""
    difference = relative_difference(ours, theirs)
    if not difference <= LOGITS_TOLERANCE:
        raise CheckpointError(
            f"{folder.parent} is not written: transformers computes other values than we do ({name}, off by "
            f"{difference:.1e})"
        )


def _stock(folder: Path, architecture: str, has_pooler: bool) -> Any:
    """The stock model in the folder, every parameter of which must have come from there."""
    import transformers

    options: dict[str, Any] = {"add_pooling_layer": has_pooler} if architecture == "AlbertModel" else {}
    with quiet_transformers():
        stock, told = getattr(transformers, architecture).from_pretrained(
            str(folder), local_files_only=True, attn_implementation="sdpa", output_loading_info=True, **options
        )
    if told["missing_keys"]:
        raise CheckpointError(f"{folder.parent} is not written: it lacks {min(told['missing_keys'])}")
    return stock.eval()


def _has_pooler(model: Any) -> bool:
    return getattr(model, "pooler", None) is not None or getattr(model, "sentence_order", None) is not None


def _pooler_output(model: Any, last: Tensor) -> Tensor | None:
    """What a stock encoder pools out of our file, where the sentence-order head's pooler is the encoder's."""
    order = getattr(model, "sentence_order", None)
    pooler = getattr(model, "pooler", None) if order is None else order.pooler
    return None if pooler is None else pooler(last[:, 0]).tanh()


def _stock_detection_head(model: Discriminator, folder: Path) -> Any:
    """Stock ELECTRA's detection head out of the folder's weights."""
    from transformers import ElectraConfig
    from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

    from electra_albert.model.weight_files import read_tensors

    prefix = "discriminator_predictions."
    written = read_tensors(folder / "model.safetensors")
    head = ElectraDiscriminatorPredictions(
        ElectraConfig(hidden_size=model.config.hidden_size, hidden_act=model.config.hidden_act)
    )
    head.load_state_dict({name.removeprefix(prefix): t for name, t in written.items() if name.startswith(prefix)})
    return head.eval()
