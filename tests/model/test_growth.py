"""Growth keeps the outputs where it can, separates the copies, and copies layers as documented.

Paper: Net2Net.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from electra_albert.model import growth
from electra_albert.model.electra import Electra
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.initialization import sinusoids
from tests.model.twins import SHAPE, assert_same_outputs, make_encoder, make_pair, padded_batch
from tests.refusals import rows

TABLE = "embeddings.position_embeddings.weight"
BATCH = padded_batch()
INPUTS = BATCH[:3]
SIZES: dict[str, int] = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_groups": 2}
OLD = replace(SHAPE, **SIZES)  # two groups of three layers
LAYERS = "qkv dense ffn ffn_output LayerNorm word_embeddings pooler"
SIZE_NAMES = ("hidden_size", "num_attention_heads", "intermediate_size", "embedding_size")
WIDER = dict(zip(SIZE_NAMES, (72, 12, 74, 33), strict=True))


def pairs(
    changes: dict[str, int], dtype: torch.dtype, *, is_disentangled: bool
) -> tuple[Electra, Electra]:
    """A pair of models with all heads, and the same one after growth."""
    heads = {"is_disentangled": is_disentangled, "with_sentence_order": True, "with_mlm": True}
    old, new = (make_pair(config, **heads).to(dtype) for config in (OLD, replace(OLD, **changes)))
    nn.init.normal_(old.discriminator.embeddings.word_embeddings.weight)
    for small, large in ((old.generator, new.generator), (old.discriminator, new.discriminator)):
        assert growth.describe(small.config, large.config).endswith("; the same outputs")
        large.load_state_dict(growth.grow(small.state_dict(), small.config, large.config, seed=3))
    return old, new


def outputs(model: Electra) -> list[Tensor]:
    """Hidden states and all logits of both models."""
    generator, discriminator = model.generator, model.discriminator
    states, hidden_states = generator.encode(*INPUTS), discriminator.encode(*INPUTS)
    heads = (discriminator.mlm_logits, discriminator.discriminator_predictions)
    logits = [head(hidden_states) for head in (*heads, discriminator.sentence_order)]
    return [states, hidden_states, generator.logits(states), *logits]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("is_disentangled", [False, True])
@pytest.mark.parametrize("changes", [{"num_hidden_groups": 6}, WIDER | {"num_hidden_groups": 6}])
def test_a_wider_model_computes_the_same(
    changes: dict[str, int], is_disentangled: bool, dtype: torch.dtype
) -> None:
    old, new = pairs(changes, dtype, is_disentangled=is_disentangled)
    for number, (before, after) in enumerate(zip(outputs(old), outputs(new), strict=True)):
        if number < 2:  # hidden states
            before = before.repeat(1, 1, after.shape[-1] // before.shape[-1])
        assert_same_outputs(after, before)
        assert "hidden_size" in changes or torch.equal(after, before)


def test_copies_of_a_feature_get_different_gradients() -> None:
    old, new = pairs(WIDER, torch.float64, is_disentangled=False)
    torch.stack([output.square().sum() for output in outputs(new)]).sum().backward()
    checked = set()
    for name, parameter in new.named_parameters():
        before, gradient = old.get_parameter(name), parameter.grad
        if name.endswith("_embeddings.weight"):  # its features are columns
            before, gradient = before.T, gradient.T
        times = len(gradient) // len(before)
        # The copies in an MLM head's LayerNorm are unequal themselves, as its outputs are shares.
        if times > 1 and "predictions.LayerNorm" not in name:
            parts = 3 if ".qkv." in name else 1
            copies = gradient.reshape(parts, times, len(before) // parts, -1)
            difference = (copies[:, 1:] - copies[:, :1]).abs().amax(-1)
            # Not the biases of keys, which change no attention.
            is_trained = copies[:, 1:].abs().amax(-1) > 1e-9
            assert (difference[is_trained] > 1e-9).all(), name
            checked |= {name.split(".")[-2]} if is_trained.any() else set()
    assert checked.issuperset(LAYERS.split())
    name = "encoder.embedding_hidden_mapping_in.weight"
    large = new.generator.config
    state = old.generator.state_dict()
    assert not torch.equal(*(growth.grow(state, OLD, large, seed)[name] for seed in (3, 4)))


@pytest.mark.parametrize(
    # As many groups are applied more often, more are stacked.
    ("old_groups", "new_groups", "order"),
    [(1, 1, "00000000"), (2, 2, "00001111"), (2, 4, "000111000111"), (2, 9, "000111000")],
)
def test_layers_are_copied_in_this_order(old_groups: int, new_groups: int, order: str) -> None:
    old = make_encoder(replace(SHAPE, num_hidden_groups=old_groups), with_pooler=True)
    config = replace(old.config, num_hidden_layers=len(order), num_hidden_groups=new_groups)
    new = EncoderModel(config, with_pooler=True).eval()
    new.load_state_dict(growth.grow(old.state_dict(), old.config, config, seed=3))
    hidden_states = old.encoder.embedding_hidden_mapping_in(
        old.embeddings(BATCH.input_ids, BATCH.token_type_ids)
    )
    for group in order:
        hidden_states = old.encoder.albert_layer_groups[int(group)](
            hidden_states, BATCH.attention_mask
        )
    assert torch.equal(new(*INPUTS), hidden_states)
    assert growth.describe(old.config, config).endswith("; other outputs, since it is deeper")


# Other sizes, and the start of the reason.
REFUSED = """
hidden_size 36 num_attention_heads 6 | hidden_size=36 is not a multiple of 24
embedding_size 12                    | embedding_size=12 is not a multiple of 11
hidden_size 48                       | num_attention_heads=4 changes the size of a head; give 8
num_attention_heads 8                | num_attention_heads=8 changes the size of a head; give 4
inner_group_num 2                    | inner_group_num=2 is not 1
num_hidden_layers 4                  | num_hidden_layers=4 is less than 6
num_hidden_groups 3                  | num_hidden_groups=3 with num_hidden_layers=6
"""


@pytest.mark.parametrize(("sizes", "reason"), rows(REFUSED))
def test_other_sizes_are_refused_with_the_reason(sizes: str, reason: str) -> None:
    names, numbers = sizes.split()[::2], map(int, sizes.split()[1::2])
    with pytest.raises(ValueError, match=f"^{reason}"):
        growth.describe(OLD, replace(OLD, **dict(zip(names, numbers, strict=True))))


def test_positions_are_continued_by_the_sinusoids_of_local_initialization() -> None:
    # Repeated rows, or rows of zeros, are further from the table of a longer model.
    short = replace(SHAPE, embedding_size=32, max_position_embeddings=64)
    longer = replace(short, max_position_embeddings=160)
    assert growth.describe(short, longer).endswith("; the same outputs, up to 64 tokens")
    wanted = sinusoids(torch.arange(160), longer).repeat(1, 4)  # [P, E]
    table = growth.grow({TABLE: wanted[:64]}, short, longer, seed=3)[TABLE]
    assert torch.equal(table[:64], wanted[:64])
    assert float((table - wanted).norm() / wanted.norm()) < 0.1
