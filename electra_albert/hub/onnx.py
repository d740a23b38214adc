"""A model as an ONNX file for other runtimes, kept only where onnxruntime computes what PyTorch does.

Dimensions: B rows, L length, V vocabulary, D hidden, C classes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from electra_albert.contracts import UsageError
from electra_albert.hub.outputs import Model, outputs, probe, require_equal
from electra_albert.model.encoder import Body

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

ONNX_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"  # the weights of a model too large for one file
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_OPSET = 20  # the first in which a tanh GELU is one operator
_LARGEST_FOLDED = 64  # numbers: shapes are computed ahead, weights are not, or a shared one would be stored again
_TRACED_SHAPE = (2, 8)  # a dimension of 1 would be taken for a fixed one
_ERRORS_ONLY = 3  # of onnxruntime's levels of logging


def require_packages() -> None:
    """Raise UsageError unless the packages that write and run ONNX files are installed; loads none of them."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"the format onnx needs {', '.join(missing)}: pip install {' '.join(missing)}")


def write_onnx(model: Model, folder: Path) -> Path:
    """Write `model.onnx`, in float32 and for inference, into a new folder; the model stays as it is.

    Inputs are INPUTS, int64 [B, L], any B, L up to max_position_embeddings, attention_mask 1 where a token takes part.
    Outputs are those of `hub.outputs.outputs`, last_hidden_state of a Body alone. A model above 1.5 GiB keeps its
    weights in `model.onnx.data`. Raises UsageError without the packages, CheckpointError where onnxruntime computes
    other values.
    """
    require_packages()
    graph = _Graph(copy.deepcopy(model).cpu().float()).eval()
    with _quiet():
        _trace(graph).save(folder / ONNX_FILE)
    _check(graph, folder / ONNX_FILE)
    return folder / ONNX_FILE


class _Graph(nn.Module):
    """What the file computes: INPUTS in, the model's outputs in a fixed order."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.named_outputs(input_ids, attention_mask, token_type_ids).values())

    def named_outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        found = outputs(self.model, *inputs)
        return {name: t for name, t in found.items() if name != "last_hidden_state" or isinstance(self.model, Body)}


def _trace(graph: _Graph) -> ONNXProgram:
    """The graph in ONNX for every batch and length, each weight in it once, with no trace of where it was made."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript import optimizer

    inputs = probe(graph.model.config, *_TRACED_SHAPE)
    length = torch.export.Dim("sequence", max=graph.model.config.max_position_embeddings)
    shapes = ({0: torch.export.Dim("batch"), 1: length},) * len(inputs)
    options = {"opset_version": _OPSET, "optimize": False, "verbose": False, "dynamo": True}
    with torch.no_grad():
        own = {"input_names": INPUTS, "output_names": list(graph.named_outputs(*inputs)), "dynamic_shapes": shapes}
        program = torch.onnx.export(graph, inputs, **own, **options)  # type: ignore[arg-type]
    assert program is not None
    optimizer.optimize(program.model, input_size_limit=_LARGEST_FOLDED, output_size_limit=_LARGEST_FOLDED)
    ClearMetadataAndDocStringPass()(program.model)
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of the exporter on optional packages and on coming changes of PyTorch."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled)


def _check(graph: _Graph, file: Path) -> None:
    """CheckpointError unless onnxruntime gives PyTorch's outputs, in shapes that were not traced."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    config = graph.model.config
    for batch, length in ((1, config.max_position_embeddings), (3, 5)):
        inputs = probe(config, batch, length)
        with torch.no_grad():
            wanted = graph.named_outputs(*inputs)
        found = session.run(list(wanted), {name: row.numpy() for name, row in zip(INPUTS, inputs, strict=True)})
        for (name, ours), theirs in zip(wanted.items(), found, strict=True):
            refusal = f"{ONNX_FILE} is not written: onnxruntime computes other {name} than PyTorch"
            require_equal(ours, torch.from_numpy(theirs), f"{refusal}; export as safetensors instead")
