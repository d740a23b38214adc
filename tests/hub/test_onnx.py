"""A model written as ONNX gives PyTorch's numbers in onnxruntime at any batch and length, and holds weights once."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub.onnx import INPUTS, write_onnx
from electra_albert.hub.outputs import outputs
from electra_albert.model.compilation import compile_for_training
from tests.hub.forms import FORMS
from tests.model.twins import SHAPE, make_body, make_masked_lm

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOY = replace(SHAPE, num_hidden_layers=2)
ONE_BLOCK = replace(SHAPE, num_hidden_layers=1)
LONGEST = TOY.max_position_embeddings
BATCHES = ((1, 1), (7, 1), (1, LONGEST), (7, LONGEST))
TOLERANCE = 1e-5  # float32, of the largest value: another order of additions
GIVEN = {
    "encoder": ["last_hidden_state"],
    "encoder with pooler": ["last_hidden_state", "pooler_output"],
    "generator with pooler": ["logits", "pooler_output"],
    "generator with order": ["logits", "sop_logits"],
    "discriminator with order": ["logits", "sop_logits"],
    "sequence, electra": ["logits"],
    "choice": ["logits"],
    "token": ["logits"],
    "span": ["start_logits", "end_logits"],
}
ENCODERS = {
    "inner groups": replace(SHAPE, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
    "unshared": replace(TOY, num_hidden_groups=2, embedding_size=21, hidden_act="gelu", type_vocab_size=1),
}

Rows = tuple[Tensor, Tensor, Tensor]


def make_rows(config: ModelConfig, batch: int, length: int) -> Rows:
    """Ids, mask and segments [B, L] that end in padding of different lengths, the first in none."""
    noise = torch.Generator().manual_seed(100 * batch + length)
    ids = torch.randint(config.vocab_size, (batch, length), generator=noise)
    kept = torch.randint(1, length + 1, (batch, 1), generator=noise)
    kept[0] = length
    segments = torch.randint(config.type_vocab_size, (batch, length), generator=noise)
    return ids, (torch.arange(length) < kept).long(), segments


def open_session(file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run(session: Any, rows: Rows) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    arrays = (row.numpy() for row in rows)
    return dict(zip(names, session.run(None, dict(zip(INPUTS, arrays, strict=True))), strict=True))


def assert_same(found: dict[str, Any], model: Any, rows: Rows) -> None:
    with torch.no_grad():
        wanted = outputs(model, *rows)
    for name, theirs in found.items():
        ours = wanted[name].numpy()
        assert theirs.shape == ours.shape, name
        assert np.abs(theirs - ours).max() <= TOLERANCE * max(1.0, np.abs(ours).max()), name


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests look at and leave as it is."""
    return write_onnx(make_body(ONE_BLOCK, with_pooler=True), tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("name", GIVEN)
def test_every_kind_gives_our_values_at_any_batch_and_length(tmp_path: Path, name: str) -> None:
    model = FORMS[name].make(TOY)
    session = open_session(write_onnx(model, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert [output.name for output in session.get_outputs()] == GIVEN[name]
    for batch, length in BATCHES:
        rows = make_rows(TOY, batch, length)
        assert_same(run(session, rows), model, rows)


def numbers_stored(file: Path) -> int:
    """Numbers in the matrices of a file; vectors and scalars are shapes too."""
    matrices = [weight for weight in onnx.load(str(file)).graph.initializer if len(weight.dims) > 1]
    return sum(int(np.prod(weight.dims)) for weight in matrices)


@pytest.mark.parametrize("name", ENCODERS)
def test_shared_weights_and_the_tied_table_are_stored_once(tmp_path: Path, name: str) -> None:
    model = make_masked_lm(ENCODERS[name])
    session = open_session(write_onnx(model, tmp_path))
    rows = make_rows(ENCODERS[name], 3, 11)
    assert_same(run(session, rows), model, rows)
    assert numbers_stored(tmp_path / "model.onnx") == sum(p.numel() for p in model.parameters() if p.ndim > 1)


def test_inputs_are_the_stock_ones_and_longer_rows_are_refused(written: Path) -> None:
    onnx.checker.check_model(str(written), full_check=True)
    assert b".py" not in written.read_bytes()  # no trace of the code and the folders of the machine
    session = open_session(written)
    found = [(each.name, each.type, each.shape) for each in session.get_inputs()]
    assert found == [(name, "tensor(int64)", ["batch", "sequence"]) for name in INPUTS]
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        run(session, make_rows(ONE_BLOCK, 2, LONGEST + 1))


def test_training_model_in_bfloat16_stays_as_it_was_and_is_written_in_float32(tmp_path: Path) -> None:
    model = make_masked_lm(TOY).to(torch.bfloat16).train()
    compile_for_training(model, "blocks")
    in_float32 = copy.deepcopy(model).float().eval()
    before = copy.deepcopy(model.state_dict())
    training_pass = model.encoder.training_pass
    session = open_session(write_onnx(model, tmp_path))
    assert model.training
    assert model.encoder.training_pass is training_pass
    after = model.state_dict()
    assert all(after[name].dtype == torch.bfloat16 and torch.equal(after[name], before[name]) for name in before)
    rows = make_rows(TOY, 2, 5)
    assert_same(run(session, rows), in_float32, rows)


def test_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    write_onnx(make_body(ONE_BLOCK, with_pooler=False), tmp_path)
    assert (*capfd.readouterr(), [str(warning.message) for warning in recwarn]) == ("", "", [])
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


class OtherWhenTraced(nn.Module):
    """Gives other values while the graph is taken down."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded * self.factor if torch.compiler.is_exporting() else embedded


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_file_with_other_values_is_refused(tmp_path: Path, factor: float) -> None:
    model = make_body(ONE_BLOCK, with_pooler=True)
    model.embeddings.dropout = OtherWhenTraced(factor)  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match=r"onnxruntime computes other last_hidden_state than PyTorch"):
        write_onnx(model, tmp_path)


def test_without_a_package_the_way_to_install_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # stands for a package that is not installed
    with pytest.raises(UsageError, match=r"pip install onnxscript$"):
        write_onnx(make_body(ONE_BLOCK, with_pooler=False), tmp_path)
    assert not list(tmp_path.iterdir())
