"""The cross-entropy that keeps less is PyTorch's own, in value and in gradient."""

import pytest
import torch
from torch import Tensor

from electra_albert.objectives.prediction import cross_entropy

M, V = 7, 31


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [M, V] that need a gradient, labels [M], and the weight of each, some of them 0."""
    generator = torch.Generator().manual_seed(3)
    logits = (10 * torch.randn(M, V, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    return logits, torch.randint(V, (M,), generator=generator), (torch.arange(M) % 3).to(dtype)


# Both add up the same exponentials, in other orders: a few units in the last place of each type.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_values_and_gradients_are_those_of_pytorch(dtype: torch.dtype, tolerance: float) -> None:
    logits, labels, weight = inputs(dtype)
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    found = cross_entropy(logits, labels)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    gradients = [torch.autograd.grad((nats * weight).sum(), logits)[0] for nats in (expected, found)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=tolerance, atol=tolerance)


def test_backward_leaves_the_logits_as_they_are() -> None:
    logits, labels, weight = inputs(torch.float32)
    before = logits.detach().clone()
    (cross_entropy(logits, labels) * weight).sum().backward()
    assert torch.equal(logits, before)


def test_gradient_is_that_of_finite_differences() -> None:
    logits, labels, _ = inputs(torch.float64)
    assert torch.autograd.gradcheck(lambda scores: cross_entropy(scores, labels), (logits,))
