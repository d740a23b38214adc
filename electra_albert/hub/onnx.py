"""Outputs by their stock names; ONNX export. B batch, L length, V vocab, D hidden, C classes."""

import copy
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import TaskModel

Model = EncoderModel | Generator | Discriminator | TaskModel

ONNX_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"  # weights of a model that is too large for one file
BROWSER_FORMAT = "transformers.js"
QUANTIZED_FILE = "onnx/model_quantized.onnx"  # with onnx/model.onnx, the names of transformers.js
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_OPSET = 20  # the first with an operator for GELU with tanh
# In elements: fold constant shapes, but no weights, or shared ones would be stored twice.
_MAX_FOLDED_SIZE = 64
_TRACED_SHAPE = (2, 8)  # torch.export treats a dimension of 1 as static
_ERRORS_ONLY = 3  # log level of onnxruntime
_TOLERANCE = 1e-4  # float32, relative to the largest value: the order of additions differs


def outputs(
    model: Model, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
) -> dict[str, Tensor]:
    """Compute all outputs of a model. Ids int64, mask bool or 0 and 1, each [B, L].

    For choice, B counts options. Returns last_hidden_state [B, L, D]; logits of a generator
    [B, L, V], a discriminator [B, L] or a head for sequence [B, C], choice [B, 1] or token
    [B, L, C]; start_logits and end_logits [B, L] of a span head; sop_logits [B, 2], pooler_output
    [B, D] and a discriminator's prediction_logits [B, L, V] if the model has the layers.
    """
    last = model.encode(input_ids, attention_mask.bool(), token_type_ids)  # [B, L, D]
    values = {"last_hidden_state": last}
    if isinstance(model, TaskModel):
        scores = model.output(model.features(last, attention_mask))
        if model.head.kind != "span":
            return values | {"logits": scores}
        start, end = scores.unbind(-1)
        return values | {"start_logits": start, "end_logits": end}
    if isinstance(model, Generator):
        values["logits"] = model.logits(last)
    if isinstance(model, Discriminator):
        if model.predictions is not None:
            values["prediction_logits"] = model.mlm_logits(last)
        values["logits"] = model.discriminator_predictions(last)
    if isinstance(model, Generator | Discriminator) and model.sentence_order is not None:
        values["sop_logits"] = model.sentence_order(last)
    if model.pooler is not None:
        values["pooler_output"] = model.pooler(last[:, 0]).tanh()
    return values


def probe(config: ModelConfig, batch: int = 2, length: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """Fixed ids, mask and segments, each int64 [B, L], L at most the model's maximum.

    They have all segments, and padding in the last sequence.
    """
    length = min(length, config.max_position_embeddings)
    ids = (torch.arange(batch * length) * 7919 % config.vocab_size).view(batch, length)
    mask = torch.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    segments = (torch.arange(length) * config.type_vocab_size // length).repeat(batch, 1)
    return ids, mask, segments


def require_close(ours: Tensor, theirs: Tensor, message: str) -> None:
    """Raise CheckpointError with `message` unless shapes are equal and values close; NaN is not."""
    difference = math.inf
    if ours.shape == theirs.shape:
        scale = ours.abs().max().clamp(min=1)
        difference = float((ours - theirs).abs().max() / scale)
    if not difference <= _TOLERANCE:
        raise CheckpointError(f"{message} (off by {difference:.1e})")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings, and progress bars of transformers."""
    from transformers.utils import logging as stock_logging

    disabled = logging.root.manager.disable
    had_bars = stock_logging.is_progress_bar_enabled()
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
    """Raise UsageError unless the packages for ONNX are installed; imports none of them."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the format onnx needs {', '.join(missing)}: pip install {' '.join(missing)}"
        )


def write_onnx(model: Model, folder: Path) -> Path:
    """Write `model.onnx` in float32 into a new folder.

    A model above 1.5 GiB also gets `model.onnx.data`. Inputs are INPUTS, int64 [B, L] for any B and
    L up to max_position_embeddings; attention_mask is 1 for tokens and 0 for padding. Outputs are
    those of `outputs`, with last_hidden_state only for an EncoderModel. Raises UsageError without
    the packages, CheckpointError if onnxruntime computes other values than PyTorch.
    """
    require_packages()
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxscript import optimizer

    graph = _Graph(copy.deepcopy(model).cpu().float()).eval()
    file = folder / ONNX_FILE
    inputs = probe(model.config, *_TRACED_SHAPE)
    length = torch.export.Dim("sequence", max=model.config.max_position_embeddings)
    shape = {0: torch.export.Dim("batch"), 1: length}
    with quiet(), torch.no_grad():
        program: Any = torch.onnx.export(
            graph,
            inputs,
            input_names=INPUTS,
            output_names=list(graph(*inputs)),
            dynamic_shapes=(shape,) * len(inputs),
            opset_version=_OPSET,
            optimize=False,
            verbose=False,
            dynamo=True,
        )
        size = _MAX_FOLDED_SIZE
        optimizer.optimize(program.model, input_size_limit=size, output_size_limit=size)
        ClearMetadataAndDocStringPass()(program.model)  # no file names of this machine
        program.save(file)
    _check(graph, file)
    return file


def write_for_browser(model: Model, folder: Path) -> Path:
    """Write the layout of transformers.js: `onnx/model.onnx` as write_onnx does, and int8.

    In QUANTIZED_FILE, matrices have one scale per output channel and 7 bits, so that sums do not
    overflow on processors without 8-bit dot products; the token table has 8 bits. Biases, norms and
    positions stay in float32, activations until they are used.
    """
    file = folder / QUANTIZED_FILE
    file.parent.mkdir()
    exact = write_onnx(model, file.parent)
    from onnxruntime.quantization import QuantType, quant_pre_process, quantize_dynamic

    with quiet():
        # Stores a shared matrix once in transposed form.
        quant_pre_process(exact, file, skip_symbolic_shape=True)
        quantize_dynamic(
            file, file, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True
        )
    return file


class _Graph(nn.Module):
    """The exported computation: `outputs`, with last_hidden_state only for an EncoderModel."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> dict[str, Tensor]:
        values = outputs(self.model, input_ids, attention_mask, token_type_ids)
        if not isinstance(self.model, EncoderModel):
            del values["last_hidden_state"]
        return values


def _check(graph: _Graph, file: Path) -> None:
    """Raise CheckpointError unless onnxruntime computes PyTorch's outputs.

    For shapes that were not traced.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _ERRORS_ONLY
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(file), options, providers=providers)
    for shape in ((1, graph.model.config.max_position_embeddings), (3, 5)):
        inputs = probe(graph.model.config, *shape)
        with torch.no_grad():
            ours = graph(*inputs)
        arrays = {name: ids.numpy() for name, ids in zip(INPUTS, inputs, strict=True)}
        theirs = session.run(list(ours), arrays)
        for name, values in zip(ours, theirs, strict=True):
            message = (
                f"{ONNX_FILE} is not written: onnxruntime computes other {name} than PyTorch; "
                "export as safetensors instead"
            )
            require_close(ours[name], torch.from_numpy(values), message)
