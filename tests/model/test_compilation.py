"""Compiled blocks compute what the plain ones do, and are compiled once for each shape of encoder (law 11)."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.model.compilation import compile_for_training
from electra_albert.model.encoder import Encoder, set_gradient_checkpointing
from tests.model.twins import SHAPE, make_pair

pytestmark = [
    pytest.mark.usefixtures("nothing_compiled_yet"),
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"),
]
B, L = 3, 13
# Sums of a few hundred float32 products, added up in another order.
TOLERANCE = 1e-5
SHAPES = {
    "one group": SHAPE,
    "inner groups": replace(SHAPE, num_hidden_groups=2, inner_group_num=2),
}


def compiled_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def inputs(rows: int = B) -> tuple[Tensor, Tensor]:
    """Rows of embeddings [B, L, E] and their mask [B, L]."""
    embedded = torch.randn(rows, L, SHAPE.embedding_size, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([L, 8, 3]).repeat(rows)[:rows]
    return embedded, torch.arange(L) < lengths[:, None]


def encoder_of(config: ModelConfig) -> Encoder:
    return make_pair(config).discriminator.encoder.train()


def train_once(encoder: Encoder, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The output of one forward pass and the gradients of its backward pass."""
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = encoder(*inputs())
    output.float().square().sum().backward()
    return [output.detach(), *(parameter.grad for parameter in encoder.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize(("shape", "is_checkpointed"), [*((shape, False) for shape in SHAPES), ("inner groups", True)])
def test_outputs_and_gradients_are_the_same_to_rounding(shape: str, is_checkpointed: bool) -> None:
    plain, compiled = encoder_of(SHAPES[shape]), encoder_of(SHAPES[shape])
    compile_for_training(compiled, "blocks")
    if is_checkpointed:
        set_gradient_checkpointing(compiled)
    one, other = train_once(plain), train_once(compiled)
    assert compiled_graphs() > 0
    assert len(one) == len(other) == 1 + len(list(plain.parameters()))
    for expected, found in zip(one, other, strict=True):
        assert (expected - found).norm() <= TOLERANCE * expected.norm()


@pytest.mark.parametrize("dropout", [0.3])
def test_checkpointed_blocks_compute_again_what_they_computed_in_bfloat16(dropout: float) -> None:
    found = []
    for is_checkpointed in (False, True):
        encoder = encoder_of(replace(SHAPE, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
        compile_for_training(encoder, "blocks")
        if is_checkpointed:
            set_gradient_checkpointing(encoder)
        torch.manual_seed(7)
        found.append(train_once(encoder, torch.bfloat16))
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))


@pytest.mark.parametrize("groups", [1, 6], ids=["shared", "not shared"])
def test_a_block_is_compiled_once_however_often_it_is_passed_and_trained(groups: int) -> None:
    encoder = encoder_of(replace(SHAPE, num_hidden_layers=6, num_hidden_groups=groups))
    compile_for_training(encoder, "blocks")
    for _ in range(3):
        train_once(encoder)
    assert compiled_graphs() == 1


def test_evaluation_compiles_nothing_whatever_the_number_of_rows() -> None:
    encoder = encoder_of(SHAPE)
    compile_for_training(encoder, "blocks")
    encoder.eval()
    with torch.no_grad():
        for rows in (2, 3, 5):
            assert encoder(*inputs(rows)).shape[0] == rows
    assert compiled_graphs() == 0
