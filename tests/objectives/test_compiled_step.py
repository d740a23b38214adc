"""The step as one graph corrupts the same tokens, has the same losses and the same gradients (laws 3 to 5 and 11)."""

import shutil

import pytest
import torch

from electra_albert.model.compilation import compile_for_training
from tests.objectives.toy import STEP, build, make_batch, make_objective, ordered

pytestmark = [
    pytest.mark.usefixtures("nothing_compiled_yet"),
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
]
TOLERANCE = 1e-5  # float32 sums added up in another order


@pytest.mark.parametrize("name", ["rtd_sop", "mlm_sop"])  # all that rtd and mlm compute, and sentence order
def test_losses_counts_and_gradients_are_those_of_the_plain_step(name: str) -> None:
    plain, compiled, batch = build(name), build(name), ordered(make_batch())
    compile_for_training(compiled, "step")
    expected, found = plain(batch, STEP), compiled(batch, STEP)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # no break in it
    assert {term: int(value.count) for term, value in expected.items()} == {
        term: int(value.count) for term, value in found.items()
    }
    for term, value in expected.items():
        assert float(found[term].sum.detach()) == pytest.approx(float(value.sum.detach()), rel=TOLERANCE)
    for objective, terms in ((plain, expected), (compiled, found)):
        sum(terms[weighted].sum for weighted in objective.weights).backward()
    pairs = zip(plain.parameters(), compiled.parameters(), strict=True)
    far = [float((one.grad - other.grad).norm() / one.grad.norm().clamp(min=1e-6)) for one, other in pairs]
    assert max(far) <= 10 * TOLERANCE


def test_another_batch_of_the_same_shape_is_not_compiled_again() -> None:
    objective = make_objective()
    compile_for_training(objective, "step")
    for salt, lengths in enumerate(((23, 17, 9, 4, 23), (5, 23, 23, 23, 8), (23, 23, 23, 23, 23))):
        objective(make_batch(lengths, salt=salt), STEP + salt)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
