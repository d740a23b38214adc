"""ONNX export: onnxruntime computes PyTorch's values; shared weights are stored once."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from torch import Tensor, nn

from electra_albert.config.model import ModelConfig
from electra_albert.hub.onnx import INPUTS, QUANTIZED_FILE, outputs, write_onnx
from electra_albert.hub.save import save_model
from tests.hub.models import FORMS, assert_same_tensors, run_code_of, tokenizer
from tests.model.twins import SHAPE, make_encoder, make_masked_lm
from tests.refusals import assert_refused

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOY = replace(SHAPE, num_hidden_layers=2)  # with shared weights
# With windows: in chunks in PyTorch, with a mask of all pairs in the file.
ONE_BLOCK = replace(SHAPE, num_hidden_layers=1, attention="local", attention_options={"window": 2})
LONGEST = TOY.max_position_embeddings
TOLERANCE = 1e-5  # float32, relative to the largest value: the order of additions differs
INT8_TOLERANCE = 0.15  # relative to the largest value, for weights of 7 bits; 0.075 measured

Inputs = tuple[Tensor, Tensor, Tensor]


def make_inputs(config: ModelConfig, batch: int, length: int) -> Inputs:
    """Ids, mask and segments [B, L] with random lengths; the first sequence has no padding."""
    noise = torch.Generator().manual_seed(100 * batch + length)
    ids = torch.randint(config.vocab_size, (batch, length), generator=noise)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=noise)
    lengths[0] = length
    segments = torch.randint(config.type_vocab_size, (batch, length), generator=noise)
    return ids, (torch.arange(length) < lengths).long(), segments


def open_session(file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def arrays(inputs: Inputs) -> dict[str, Any]:
    return {name: ids.numpy() for name, ids in zip(INPUTS, inputs, strict=True)}


@torch.no_grad()
def assert_same(session: Any, model: Any, inputs: Inputs) -> None:
    expected = outputs(model, *inputs)
    actual = session.run(None, arrays(inputs))
    for output, theirs in zip(session.get_outputs(), actual, strict=True):
        ours = expected[output.name].numpy()
        assert theirs.shape == ours.shape, output.name
        assert np.abs(theirs - ours).max() <= TOLERANCE * max(1.0, np.abs(ours).max()), output.name


def matrices_of(file: Path, model: nn.Module) -> list[Any]:
    """The matrices in a file: as many numbers as in the model's, each once."""
    matrices = [weight for weight in onnx.load(str(file)).graph.initializer if weight.dims[1:]]
    stored = sum(int(np.prod(weight.dims)) for weight in matrices)
    assert stored == sum(tensor.numel() for tensor in model.parameters() if tensor.ndim > 1)
    return matrices


def test_onnxruntime_computes_our_values_and_shared_weights_are_stored_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    model = make_encoder(TOY, with_pooler=True)
    written = write_onnx(model, tmp_path)
    assert (*capfd.readouterr(), [str(warning.message) for warning in recwarn]) == ("", "", [])
    session = open_session(written)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    names = [output.name for output in session.get_outputs()]
    assert names == ["last_hidden_state", "pooler_output"]
    inputs = [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()]
    assert inputs == [(name, "tensor(int64)", ["batch", "sequence"]) for name in INPUTS]
    for shape in ((1, 1), (7, LONGEST)):
        assert_same(session, model, make_inputs(TOY, *shape))
    assert matrices_of(written, model)
    onnx.checker.check_model(str(written), full_check=True)
    assert b".py" not in written.read_bytes()  # no paths of source files


def test_training_model_in_bfloat16_is_not_changed_and_is_written_in_float32(
    tmp_path: Path,
) -> None:
    model = make_masked_lm(ONE_BLOCK).to(torch.bfloat16).train()
    in_float32 = copy.deepcopy(model).float().eval()
    before = copy.deepcopy(model.state_dict())
    session = open_session(write_onnx(model, tmp_path))
    assert model.training
    assert_same_tensors(model.state_dict(), before)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}
    assert [output.name for output in session.get_outputs()] == ["logits", "sop_logits"]
    assert_same(session, in_float32, make_inputs(ONE_BLOCK, 2, LONGEST))


def test_files_for_the_browser_are_exact_and_in_8_bits_and_their_card_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = FORMS["discriminator"].make(replace(TOY, vocab_size=len(tokenizer())))
    save_model(model, tokenizer(), tmp_path, file_format="transformers.js")
    assert capfd.readouterr() == ("", "")
    written = tmp_path / QUANTIZED_FILE
    names = sorted(path.name for path in written.parent.iterdir())
    assert names == ["model.onnx", "model_quantized.onnx"]
    inputs = make_inputs(model.config, 7, LONGEST)
    assert_same(open_session(written.with_name("model.onnx")), model, inputs)
    kinds = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
    matrices = matrices_of(written, model)
    exact = [weight.name for weight in matrices if weight.data_type not in kinds]
    assert exact == ["model.embeddings.position_embeddings.weight"]
    with torch.no_grad():
        expected = outputs(model, *inputs)["logits"].numpy()
    (logits,) = open_session(written).run(["logits"], arrays(inputs))
    assert np.abs(logits - expected).max() <= INT8_TOLERANCE * np.abs(expected).max()
    assert [*run_code_of(tmp_path)["outputs"]] == ["logits"]
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.to_dict()["library_name"] == "transformers.js"
    assert "unexpected" not in card.text


class OtherWhenTraced(nn.Module):
    """Computes other values during export."""

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded * 1.01 if torch.compiler.is_exporting() else embedded


def test_file_with_other_values_is_refused(tmp_path: Path) -> None:
    model = make_encoder(ONE_BLOCK, with_pooler=True)
    model.embeddings.dropout = OtherWhenTraced()  # type: ignore[assignment]
    word = "computes other last_hidden_state"
    assert_refused("CheckpointError", word, write_onnx, model, tmp_path)
