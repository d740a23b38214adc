"""What was written is read again, by us and by stock transformers, and must give the numbers we give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.contracts import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from electra_albert.config import ModelConfig
    from electra_albert.hub.outputs import Model, Outputs

LOGITS_TOLERANCE = 1e-4  # float32, relative to the largest value: what another order of additions may change
_CHECKED_ROW = 24
_COMPARED = ("logits", "sop_logits", "start_logits", "end_logits")
_STOCK_NAMES = {("AlbertForPreTraining", "logits"): "prediction_logits"}
_DETECTION, _ORDER, _ELECTRA_HEAD = "discriminator_predictions.", "sop_classifier.", "electra_classifier."
# What a stock class has no place for: how our names of it begin, and those in the file.
_ASIDE: dict[str, dict[str, str]] = {
    "AlbertModel": {
        _DETECTION: _DETECTION,
        _ELECTRA_HEAD: _ELECTRA_HEAD,
        "sentence_order.classifier.": f"{_ORDER}classifier.",
        "predictions.": "predictions.",
    },
    "AlbertForMaskedLM": {"pooler.": "albert.pooler."},
}


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


def require_equal(ours: Tensor, theirs: Tensor, refusal: str, way_out: str = "") -> None:
    """CheckpointError, which says `refusal`, unless shapes are the same and values within the tolerance; NaN never."""
    difference = relative_difference(ours, theirs) if ours.shape == theirs.shape else float("inf")
    if not difference <= LOGITS_TOLERANCE:
        raise CheckpointError(f"{refusal} (off by {difference:.1e}){way_out}")


def pooler_of(model: Any) -> nn.Linear | None:
    """The pooler that a model's file holds: its own, or that of its sentence-order head."""
    order = getattr(model, "sentence_order", None)
    pooler: nn.Linear | None = getattr(model, "pooler", None) if order is None else order.pooler
    return pooler


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


def read_back(tensors: Mapping[str, Tensor], weights: Path) -> dict[str, Tensor]:
    """What the file in a folder that is being written holds; CheckpointError unless that is `tensors`, bit for bit."""
    from electra_albert.hub.weights import read_tensors

    written = read_tensors(weights)
    require_same(tensors, written, weights.parent.parent)
    return written


def require_same(tensors: Mapping[str, Tensor], written: Mapping[str, Tensor], folder: Path) -> None:
    """CheckpointError, which names the folder that is being written, unless both are the same, bit for bit."""
    import torch

    other = sorted(tensors.keys() ^ written.keys())
    other = other or [name for name, tensor in tensors.items() if not torch.equal(tensor, written[name])]
    if other:
        raise CheckpointError(f"{folder} is not written: {other[0]} is read otherwise than it was saved")


def check_against_stock(model: Model, written: Mapping[str, Tensor], folder: Path, architecture: str) -> None:
    """CheckpointError unless the stock class `architecture` loads `folder` whole and computes what `model` does.

    `written` are the tensors in its file. It may hold nothing but what the class loads and the heads the class has no
    place for, which are computed from `written`. Leaves the model in eval mode.
    """
    import torch

    from electra_albert.hub.outputs import outputs
    from electra_albert.model.task_model import TaskModel

    rows = probe(model.config, 2, min(_CHECKED_ROW, model.config.max_position_embeddings))
    questions = tuple(row[None] for row in rows)  # of multiple choice, whose rows stand in them
    is_choice = isinstance(model, TaskModel) and model.head.kind == "choice"
    device = next(model.parameters()).device
    with torch.no_grad():
        found = outputs(model.eval(), *(row.to(device) for row in (questions if is_choice else rows)))
        ours = _compared(model, found, architecture)
        stock = _stock(model, written, folder, architecture)
        theirs = dict(stock(*(questions if architecture == "AlbertForMultipleChoice" else rows)))
        if architecture == "AlbertModel":
            theirs |= _heads_aside(model, written, stock.config, theirs)
        elif "pooler_output" in ours:
            theirs |= dict(_stock(model, written, folder, "AlbertModel")(*rows))
    for name, value in ours.items():
        stock_value = theirs[_STOCK_NAMES.get((architecture, name), name)]
        told = f"{folder.parent} is not written: transformers computes other values than we do in {name}"
        require_equal(value.cpu(), stock_value.view(value.shape) if is_choice else stock_value, told)


def _compared(model: Model, ours: Outputs, architecture: str) -> dict[str, Tensor]:
    """What both sides compute: the outputs of heads, and of the encoder where no stock head reads them."""
    values = {name: getattr(ours, name) for name in _COMPARED}
    pooler, last = pooler_of(model), ours.last_hidden_state
    assert last is not None
    if architecture == "AlbertModel":
        values["last_hidden_state"] = last
    if architecture in _ASIDE and pooler is not None:
        values["pooler_output"] = pooler(last[:, 0]).tanh()
    return {name: value for name, value in values.items() if value is not None}


def _stock(model: Model, written: Mapping[str, Tensor], folder: Path, architecture: str) -> Any:
    """The stock model in the folder: all it has must come from there, and what it leaves there be a head of `model`."""
    import transformers

    is_encoder = architecture == "AlbertModel"
    options: dict[str, Any] = {"add_pooling_layer": pooler_of(model) is not None} if is_encoder else {}
    with quiet_transformers():
        stock, told = getattr(transformers, architecture).from_pretrained(
            str(folder), local_files_only=True, attn_implementation="sdpa", output_loading_info=True, **options
        )
    aside = {
        stock_name + name.removeprefix(ours)
        for name in model.state_dict()
        for ours, stock_name in _ASIDE.get(architecture, {}).items()
        if name.startswith(ours)
    }
    lacking = {*told["missing_keys"], *(aside - written.keys())}
    stray = {*told["unexpected_keys"]} - aside
    if lacking or stray:
        fault = f"lacks {min(lacking)}" if lacking else f"would hold {min(stray)}, which the model has not"
        raise CheckpointError(f"{folder.parent} is not written: it {fault}")
    return stock.eval()


def _heads_aside(
    model: Model, written: Mapping[str, Tensor], config: Any, theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the heads in a file that stock AlbertModel leaves aside make of its outputs, by stock's own modules."""
    from torch import nn
    from transformers import ElectraConfig
    from transformers.models.albert.modeling_albert import AlbertSOPHead
    from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

    def computed(head: nn.Module, prefix: str, states: Tensor) -> Tensor:
        head.load_state_dict({name.removeprefix(prefix): t for name, t in written.items() if name.startswith(prefix)})
        return head.eval()(states)

    last, found = theirs["last_hidden_state"], {}
    if f"{_DETECTION}dense.weight" in written:
        electra = ElectraConfig(hidden_size=model.config.hidden_size, hidden_act=model.config.hidden_act)
        found["logits"] = computed(ElectraDiscriminatorPredictions(electra), _DETECTION, last)
    if f"{_ORDER}classifier.weight" in written:
        found["sop_logits"] = computed(AlbertSOPHead(config), _ORDER, theirs["pooler_output"])
    if f"{_ELECTRA_HEAD}weight" in written:
        classes, width = written[f"{_ELECTRA_HEAD}weight"].shape
        found["logits"] = computed(nn.Linear(width, classes), _ELECTRA_HEAD, last[:, 0])
    return found
