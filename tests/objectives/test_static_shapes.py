"""Shapes do not depend on values, and no operator of a step synchronises with the device (law 11).

Nor does a step copy lists from the host. The step compiled as one graph computes the same.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from electra_albert.config.objectives import RtdConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import Batch
from electra_albert.model.compilation import compile_for_training
from electra_albert.objectives.rtd import PretrainingModule
from electra_albert.training.optimizer import build_optimizer, learning_rate_dtype
from tests.model.test_compilation_and_checkpointing import compiled, compiled_graphs
from tests.objectives.toy import LENGTHS, OBJECTIVES, build, make_batch, make_objective, ordered
from tests.training.recorder import READS_VALUES

TOLERANCE = 1e-5  # float32 sums in another order


class Float64Trace(TorchDispatchMode):
    """Records the functions of the package that make a tensor in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(tensor.dtype == torch.float64 for tensor in tensors_of(result)):
            frame = sys._getframe()
            while frame and "electra_albert" not in Path(frame.f_code.co_filename).parts:
                frame = frame.f_back
            self.functions.add(frame.f_code.co_qualname.split(".<")[0] if frame else "backward")
        return result


def tensors_of(result: Any) -> list[Tensor]:
    results = result if isinstance(result, tuple | list) else (result,)
    return [each for each in results if isinstance(each, Tensor)]


class ShapeTrace(TorchDispatchMode):
    """Records every operator with its output shapes; AssertionError at one that synchronises or
    copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, tuple[tuple[int, ...], ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.name())
        assert not name.startswith(READS_VALUES), f"{name} reads values"
        assert not name.startswith("aten::lift_fresh"), (
            f"{name} makes a tensor of a list, which synchronises"
        )
        if name.startswith(("aten::_to_copy", "aten::copy_")):
            devices = {tensor.device for tensor in args if isinstance(tensor, Tensor)}
            if kwargs and kwargs.get("device") is not None:
                devices.add(torch.device(kwargs["device"]))
            assert len(devices) == 1, f"{name} copies from one device to another"
        if name.startswith(("aten::index.", "aten::index_put", "aten::_index_put")):
            indices = [index for index in args[1] if isinstance(index, Tensor)]
            assert all(index.dtype != torch.bool for index in indices), (
                f"{name} by a mask reads values"
            )
        result = func(*args, **(kwargs or {}))
        self.steps.append((name, tuple(tuple(each.shape) for each in tensors_of(result))))
        return result


def train(objective: PretrainingModule, batch: Batch) -> None:
    """One forward and backward pass."""
    terms = objective(batch)
    losses = [weight * terms[name].sum for name, weight in objective.weights.items()]
    torch.stack(losses).sum().backward()


def contents() -> list[Batch]:
    """Batches of one shape with different contents: full and nearly empty sequences, order labels,
    tokens and keys.
    """
    full = make_batch(lengths=(23,) * 5)
    nearly_empty = make_batch(lengths=(3,) * 5, salt=1)
    others = nearly_empty._replace(example_id=full.example_id + 10**6)
    return [full, ordered(make_batch(lengths=(23, 17, 9, 4, 3))), others]


def options_of(name: str) -> dict[str, Any]:
    """For two objectives the options of masking that need more operators, else the defaults."""
    return {"mask_unit": "span"} if name.endswith("_sop") else {}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_operators_and_shapes_do_not_depend_on_the_contents_of_the_batch(name: str) -> None:
    traces = []
    for batch in contents():
        with ShapeTrace() as recorded:
            train(build(name, **options_of(name)), batch)
        traces.append(recorded.steps)
    assert len(traces[0]) > 100
    assert traces[0] == traces[1] == traces[2]
    for rate in (0.15, 0.3):  # the number of targets depends on the length only
        for batch in contents():
            labels = build(name, mask_rate=rate).corrupt(batch).targets.labels
            assert labels.shape == (5, round(rate * 21))


@pytest.mark.parametrize(
    ("name", "optimizer", "exceptions"),
    [
        ("rtd_sop", "adamw", set()),
        ("mlm_sop", "lamb", {"Lamb._update"}),
        ("rtd with options", "muon", {"Muon.step"}),
    ],
)
def test_a_step_uses_float64_only_where_mps_is_excepted(
    name: str, optimizer: Any, exceptions: set[str]
) -> None:
    # MPS has no float64 and is not to be had here; these functions ask for the device.
    objective = build(name, **options_of(name))
    batch = ordered(make_batch())
    updates = build_optimizer(objective, TrainingConfig(optimizer=optimizer))
    with Float64Trace() as recorded:
        train(objective, batch)
        updates.step()
    assert recorded.functions == {"target_count"} | exceptions
    # Of learning rates, in Muon.step too.
    assert learning_rate_dtype(torch.device("mps")) == torch.float32


@compiled
# Include the computations of rtd and mlm.
@pytest.mark.parametrize("name", ["rtd_sop", "mlm_sop", "electric"])
def test_the_compiled_step_equals_the_eager_one(name: str) -> None:
    plain, graph = (build(name, **options_of(name)) for _ in range(2))
    batch = ordered(make_batch())
    compile_for_training(graph, "step")
    expected = plain(batch)
    compiled_terms = graph(batch)
    assert compiled_graphs() == 1  # no graph break
    for term, value in expected.items():
        actual = compiled_terms[term]
        assert int(actual.count) == int(value.count)
        torch.testing.assert_close(actual.sum, value.sum, rtol=TOLERANCE, atol=0)
    for objective, terms in ((plain, expected), (graph, compiled_terms)):
        sum(terms[weighted].sum for weighted in objective.weights).backward()
    for one, other in zip(plain.parameters(), graph.parameters(), strict=True):
        difference = (one.grad - other.grad).norm()
        assert difference <= 10 * TOLERANCE * one.grad.norm().clamp(min=1e-6)


@compiled
def test_another_batch_of_the_same_shape_does_not_recompile() -> None:
    objective = make_objective(rtd=RtdConfig(**options_of("rtd_sop")))
    compile_for_training(objective, "step")
    for salt, lengths in enumerate(LENGTHS):
        objective(make_batch(lengths, salt=salt))
    assert compiled_graphs() == 1
