"""A model written as ONNX gives PyTorch's numbers in onnxruntime, at any batch and length, and holds each weight once.

Dimensions: B rows, L length.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra_albert.apps.export.onnx import INPUTS, write_onnx
from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.model.compilation import compile_for_training
from electra_albert.model.encoder import Body
from electra_albert.model.task_model import TaskHead, TaskModel
from tests.apps.test_export_checks import generator_with_pooler
from tests.model.twins import SHAPE, make_masked_lm, make_pair

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOY = replace(SHAPE, num_hidden_layers=2)
ONE_BLOCK = replace(SHAPE, num_hidden_layers=1)
LONGEST = TOY.max_position_embeddings
BATCHES = ((1, 1), (7, 1), (1, LONGEST), (7, LONGEST), (2, 5))
TOLERANCE = 1e-5  # float32, of the largest value: another order of additions
BASE_V2 = ModelConfig(vocab_size=30000, embedding_size=128, hidden_size=768, num_attention_heads=12)

Outputs = dict[str, Tensor]
Rows = tuple[Tensor, Tensor, Tensor]


def make_body(config: ModelConfig, *, with_pooler: bool = True) -> Body:
    torch.manual_seed(3)
    return Body(config, with_pooler=with_pooler).eval()


def make_task_model(head: TaskHead) -> TaskModel:
    torch.manual_seed(3)
    return TaskModel(TOY, head).eval()


def of_body(model: Any, rows: Rows) -> Outputs:
    hidden_states = model(*rows)
    return {"last_hidden_state": hidden_states, "pooler_output": model.pooler(hidden_states[:, 0]).tanh()}


def of_generator(model: Any, rows: Rows) -> Outputs:
    hidden_states = model(*rows)
    return {"logits": model.logits(hidden_states), "sop_logits": model.sentence_order(hidden_states)}


def of_detector(model: Any, rows: Rows) -> Outputs:
    return {"logits": model(*rows), "sop_logits": model.sentence_order(model.encode(*rows))}


def of_task(model: Any, rows: Rows) -> Outputs:
    return {"logits": model(*rows)[0]}


def of_span(model: Any, rows: Rows) -> Outputs:
    return {"start_logits": model(*rows)[0, :, :, 0], "end_logits": model(*rows)[0, :, :, 1]}


def of_pooled_generator(model: Any, rows: Rows) -> Outputs:
    hidden_states = model(*rows)
    return {"logits": model.logits(hidden_states), "pooler_output": model.pooler(hidden_states[:, 0]).tanh()}


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, Rows], Outputs]]] = {
    "body": (lambda: make_body(TOY, with_pooler=False), lambda model, rows: {"last_hidden_state": model(*rows)}),
    "body with pooler": (lambda: make_body(TOY), of_body),
    "generator": (
        lambda: make_masked_lm(TOY, with_sentence_order=False),
        lambda model, rows: {"logits": model.logits(model(*rows))},
    ),
    "generator with a pooler alone": (lambda: generator_with_pooler(TOY), of_pooled_generator),
    "generator with order": (lambda: make_masked_lm(TOY), of_generator),
    "discriminator": (lambda: make_pair(TOY).discriminator, lambda model, rows: {"logits": model(*rows)}),
    "discriminator with order": (lambda: make_pair(TOY, with_sentence_order=True).discriminator, of_detector),
    "sequence": (lambda: make_task_model(TaskHead("sequence", 3)), of_task),
    "sequence without pooler": (lambda: make_task_model(TaskHead("sequence", 1, "electra")), of_task),
    "choice": (lambda: make_task_model(TaskHead("choice", 1)), of_task),
    "token": (lambda: make_task_model(TaskHead("token", 5)), of_task),
    "span": (lambda: make_task_model(TaskHead("span", 2)), of_span),
}
ENCODERS = {
    "inner groups": replace(SHAPE, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
    "unshared": replace(TOY, num_hidden_groups=2, embedding_size=21, hidden_act="gelu", type_vocab_size=1),
}


def make_rows(config: ModelConfig, batch: int, length: int) -> Rows:
    """Rows [B, L] that end in padding of different lengths, the first in none; the mask bool as our models take it."""
    noise = torch.Generator().manual_seed(100 * batch + length)
    ids = torch.randint(config.vocab_size, (batch, length), generator=noise)
    kept = torch.randint(1, length + 1, (batch, 1), generator=noise)
    kept[0] = length
    segments = torch.randint(config.type_vocab_size, (batch, length), generator=noise)
    return ids, torch.arange(length) < kept, segments


def open_session(file: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run(session: Any, rows: Rows) -> dict[str, NDArray[np.float32]]:
    names = [output.name for output in session.get_outputs()]
    arrays = (row.long().numpy() for row in rows)
    return dict(zip(names, session.run(None, dict(zip(INPUTS, arrays, strict=True))), strict=True))


def assert_same(found: dict[str, NDArray[np.float32]], wanted: Outputs) -> None:
    assert list(found) == list(wanted)
    for name, ours in wanted.items():
        assert found[name].shape == ours.shape, name
        expected = ours.detach().numpy()
        allowed = TOLERANCE * max(1.0, np.abs(expected).max())
        assert np.abs(found[name] - expected).max() <= allowed, name


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests look at and leave as it is."""
    return write_onnx(make_body(ONE_BLOCK), tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_our_values_at_any_batch_and_length(tmp_path: Path, kind: str) -> None:
    make, compute = KINDS[kind]
    model = make()
    session = open_session(write_onnx(model, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    for batch, length in BATCHES:
        rows = make_rows(TOY, batch, length)
        assert_same(run(session, rows), compute(model, rows))


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_of_other_shapes_give_our_values(tmp_path: Path, name: str) -> None:
    config = ENCODERS[name]
    model = make_body(config)
    session = open_session(write_onnx(model, tmp_path))
    rows = make_rows(config, 3, 11)
    assert_same(run(session, rows), of_body(model, rows))
    assert numbers_stored(tmp_path / "model.onnx") == numbers_of(model)


def test_padding_and_what_stands_in_it_change_nothing(tmp_path: Path) -> None:
    session = open_session(write_onnx(make_masked_lm(TOY), tmp_path))
    ids, _, segments = make_rows(TOY, 3, 9)
    alone = run(session, (ids, torch.ones_like(ids), segments))
    for filling in (0, 7):
        tail = torch.full((3, 4), filling)
        mask = torch.cat([torch.ones_like(ids), torch.zeros_like(tail)], 1)
        padded = run(session, (torch.cat([ids, tail], 1), mask, torch.cat([segments, tail.clamp(max=1)], 1)))
        np.testing.assert_allclose(padded["logits"][:, :9], alone["logits"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(padded["sop_logits"], alone["sop_logits"], rtol=0, atol=1e-5)


def test_row_longer_than_the_positions_is_refused(written: Path) -> None:
    session = open_session(written)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail):
        run(session, make_rows(ONE_BLOCK, 2, LONGEST + 1))


def test_inputs_are_the_stock_ones_and_the_graph_is_valid(written: Path) -> None:
    onnx.checker.check_model(str(written), full_check=True)
    found = [(each.name, each.type, each.shape) for each in open_session(written).get_inputs()]
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert found == [(name, "tensor(int64)", ["batch", "sequence"]) for name in names]


def numbers_stored(file: Path) -> int:
    """Numbers in the matrices of a file; vectors and scalars are shapes too."""
    matrices = [weight for weight in onnx.load(str(file)).graph.initializer if len(weight.dims) > 1]
    return sum(int(np.prod(weight.dims)) for weight in matrices)


def numbers_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


def test_shared_weights_and_the_tied_table_are_stored_once(tmp_path: Path) -> None:
    model = make_masked_lm(TOY)
    assert numbers_stored(write_onnx(model, tmp_path)) == numbers_of(model)


def test_file_tells_nothing_of_the_machine_that_wrote_it(written: Path) -> None:
    contents = written.read_bytes()
    package = sys.modules["electra_albert"].__file__
    assert package is not None
    assert str(Path(package).parent).encode() not in contents
    assert b".py" not in contents


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
    assert_same(run(session, rows), of_generator(in_float32, rows))


def test_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    write_onnx(make_body(ONE_BLOCK), tmp_path)
    assert (*capfd.readouterr(), [str(warning.message) for warning in recwarn]) == ("", "", [])


class OtherWhenTraced(nn.Module):
    """Gives what a runtime cannot know: values that are others while the graph is taken down."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded * self.factor if torch.compiler.is_exporting() else embedded


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_file_with_other_values_is_refused_and_the_old_one_stays(tmp_path: Path, factor: float) -> None:
    model = make_body(ONE_BLOCK)
    model.embeddings.dropout = OtherWhenTraced(factor)  # type: ignore[assignment]
    (tmp_path / "model.onnx").write_bytes(b"old")
    with pytest.raises(CheckpointError, match=r"onnxruntime computes other last_hidden_state than PyTorch") as raised:
        write_onnx(model, tmp_path)
    assert "\n" not in str(raised.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model.onnx": b"old"}


def test_weights_of_a_larger_model_that_lay_there_go(tmp_path: Path) -> None:
    (tmp_path / "model.onnx.data").write_bytes(b"old")
    write_onnx(make_body(ONE_BLOCK), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_a_package_the_way_to_install_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what stands there for a package that is not installed
    with pytest.raises(UsageError, match=f"there is no {package}: pip install {package}$"):
        write_onnx(make_body(ONE_BLOCK), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_base_v2_has_the_size_of_its_weights_and_our_values(tmp_path: Path) -> None:
    model = make_masked_lm(BASE_V2)
    file = write_onnx(model, tmp_path)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert weights < file.stat().st_size < 1.01 * weights
    session = open_session(file)
    for batch, length in ((1, 512), (2, 37)):
        rows = make_rows(BASE_V2, batch, length)
        with torch.no_grad():
            wanted = of_generator(model, rows)
        assert_same(run(session, rows), wanted)
