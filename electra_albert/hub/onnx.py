"""Outputs of a model under stock names, and its ONNX file. B batch, L length, V vocabulary, D hidden, C classes."""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import TaskModel

Model = EncoderModel | Generator | Discriminator | TaskModel

ONNX_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"  # the weights of a model too large for one file
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_OPSET = 20  # the first in which a tanh GELU is one operator
_LARGEST_FOLDED = 64  # numbers: shapes are computed ahead, weights are not, or a shared one would be stored again
_TRACED_SHAPE = (2, 8)  # a dimension of 1 would be taken for a fixed one
_ERRORS_ONLY = 3  # of onnxruntime's levels of logging
_TOLERANCE = 1e-4  # float32, relative to the largest value: what another order of additions may change


def outputs(model: Model, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
    """All outputs of a model. Ids int64, mask bool or 0 and 1, each [B, L]; a row of multiple choice is one choice.

    Returns last_hidden_state [B, L, D]; logits of a masked language model [B, L, V], of a discriminator [B, L], of
    sentences [B, C], of a choice [B, 1], of tokens [B, L, C]; start_logits and end_logits [B, L] of a span; sop_logits
    [B, 2] and pooler_output [B, D] where the model has the layers.
    """
    last = model.encode(input_ids, attention_mask.bool(), token_type_ids)  # [B, L, D]
    found = {"last_hidden_state": last}
    if isinstance(model, TaskModel):
        scores = model.output(model.features(last))
        if model.head.kind == "span":
            return found | dict(zip(("start_logits", "end_logits"), scores.unbind(-1), strict=True))
        return found | {"logits": scores}
    if isinstance(model, Generator | Discriminator):
        found["logits"] = model.logits(last) if isinstance(model, Generator) else model.discriminator_predictions(last)
        if model.sentence_order is not None:
            found["sop_logits"] = model.sentence_order(last)
    if model.pooler is not None:
        found["pooler_output"] = model.pooler(last[:, 0]).tanh()
    return found


def probe(config: ModelConfig, batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fixed ids, mask and segments, each int64 [B, L], with every segment and, in the last row, padding."""
    ids = (torch.arange(batch * length) * 7919 % config.vocab_size).view(batch, length)
    mask = torch.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    segments = (torch.arange(length) * config.type_vocab_size // length).repeat(batch, 1)
    return ids, mask, segments


def require_equal(ours: Tensor, theirs: Tensor, refusal: str) -> None:
    """Raise CheckpointError with the text `refusal` unless shapes are equal and values close; NaN is not."""
    same_shape = ours.shape == theirs.shape
    difference = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1)) if same_shape else float("inf")
    if not difference <= _TOLERANCE:
        raise CheckpointError(f"{refusal} (off by {difference:.1e})")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars."""
    from transformers.utils import logging as stock_logging

    disabled, had_bars = logging.root.manager.disable, stock_logging.is_progress_bar_enabled()
    logging.disable(logging.WARNING)
    stock_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)
        if had_bars:
            stock_logging.enable_progress_bar()


def require_packages() -> None:
    """Raise UsageError unless the packages that write and run ONNX files are installed; loads none of them."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"the format onnx needs {', '.join(missing)}: pip install {' '.join(missing)}")


def write_onnx(model: Model, folder: Path) -> Path:
    """Write `model.onnx`, in float32, into a new folder, with `model.onnx.data` for a model above 1.5 GiB.

    Inputs are INPUTS, int64 [B, L], any B, L up to max_position_embeddings, attention_mask 1 where a token takes part.
    Outputs are those of `outputs`, last_hidden_state of an EncoderModel alone. Raises UsageError without the packages,
    CheckpointError where onnxruntime computes other values.
    """
    require_packages()
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript import optimizer

    graph, file = _Graph(copy.deepcopy(model).cpu().float()).eval(), folder / ONNX_FILE
    inputs = probe(model.config, *_TRACED_SHAPE)
    length = torch.export.Dim("sequence", max=model.config.max_position_embeddings)
    shapes = ({0: torch.export.Dim("batch"), 1: length},) * len(inputs)
    options: Any = {"opset_version": _OPSET, "optimize": False, "verbose": False, "dynamo": True}
    with quiet(), torch.no_grad():
        options |= {"input_names": INPUTS, "output_names": list(graph(*inputs)), "dynamic_shapes": shapes}
        program: Any = torch.onnx.export(graph, inputs, **options)
        optimizer.optimize(program.model, input_size_limit=_LARGEST_FOLDED, output_size_limit=_LARGEST_FOLDED)
        ClearMetadataAndDocStringPass()(program.model)  # no trace of where it was made
        program.save(file)
    _check(graph, file)
    return file


class _Graph(nn.Module):
    """The computation of the file."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        found = outputs(self.model, input_ids, attention_mask, token_type_ids)
        return {
            name: t for name, t in found.items() if name != "last_hidden_state" or isinstance(self.model, EncoderModel)
        }


def _check(graph: _Graph, file: Path) -> None:
    """CheckpointError unless onnxruntime gives PyTorch's outputs, in shapes that were not traced."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    for batch, length in ((1, graph.model.config.max_position_embeddings), (3, 5)):
        inputs = probe(graph.model.config, batch, length)
        with torch.no_grad():
            wanted = graph(*inputs)
        found = session.run(list(wanted), {name: row.numpy() for name, row in zip(INPUTS, inputs, strict=True)})
        for (name, ours), theirs in zip(wanted.items(), found, strict=True):
            refusal = f"{ONNX_FILE} is not written: onnxruntime computes other {name} than PyTorch"
            require_equal(ours, torch.from_numpy(theirs), f"{refusal}; export as safetensors instead")
