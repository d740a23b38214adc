"""Modern blocks: parity with stock ModernBERT (law 1), and their exported folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.modernbert import modeling_modernbert

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.modernbert import to_modernbert, write_modernbert
from electra_albert.hub.onnx import outputs
from electra_albert.model import growth
from electra_albert.model.electra import Electra
from electra_albert.model.initialization import HEAD_OFFSETS
from electra_albert.model.task_model import TaskHead, TaskModel
from electra_albert.training.optimizer import parameter_groups
from tests.model.twins import SHAPE, make_encoder, make_pair, padded_batch

MODERN = replace(SHAPE, block="modern", embedding_size=8, hidden_size=24, num_hidden_groups=2)
CONFIGS = {
    "two groups of two blocks": replace(MODERN, inner_group_num=2),
    "one group": replace(MODERN, num_hidden_groups=1),
    "unshared": replace(MODERN, num_hidden_groups=6, hidden_act="gelu"),
    "E = D": replace(MODERN, embedding_size=24),
}
BATCH = padded_batch()


def rotated_in_their_precision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    """Stock's rotation, which computes in float32 also for float64."""
    half = modeling_modernbert.rotate_half
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + half(q) * sin, k * cos + half(k) * sin


class Roles:
    """Special ids of a tokenizer."""

    pad_token_id, cls_token_id, sep_token_id = 0, 2, 3


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", ["generator", "discriminator", "encoder"])
def test_outputs_equal_those_of_stock(
    config: ModelConfig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotated_in_their_precision)
    model: Any = make_encoder(config, with_pooler=False)
    if kind != "encoder":
        model = getattr(make_pair(config), kind)
    model = model.double()
    stock = to_modernbert(model, Roles)
    expected = stock(BATCH.input_ids, BATCH.attention_mask.long())[0]
    values = outputs(model, BATCH.input_ids, BATCH.attention_mask, BATCH.token_type_ids)
    ours = values.get("logits", values["last_hidden_state"]).view(expected.shape)
    is_token = BATCH.attention_mask
    assert (ours - expected)[is_token].norm() < 1e-9 * expected[is_token].norm()


def test_models_without_a_stock_class_are_refused(tmp_path: Path) -> None:
    wide = replace(MODERN, embedding_size=16)
    models = (make_pair(wide).generator, TaskModel(MODERN, TaskHead("sequence", 2)))
    for model, problem in zip(models, ("no multiple", "fine-tuned head"), strict=True):
        with pytest.raises(CheckpointError, match=problem):
            write_modernbert(model, Roles, tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_distances_of_tokens_matter() -> None:
    """The same tokens after padding, at other positions, have the same hidden states."""
    model = make_encoder(MODERN, with_pooler=False).double()
    ids = BATCH.input_ids[:1]
    moved = F.pad(ids, (3, 0))
    mask = torch.arange(moved.shape[1])[None] >= 3
    alone = model(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    after = model(moved, mask, torch.zeros_like(moved))[:, 3:]
    torch.testing.assert_close(after, alone, rtol=0, atol=1e-6)  # angles are in float32


def test_modern_blocks_grow_deeper_but_not_wider_and_have_heads_of_even_size() -> None:
    wide = replace(MODERN, intermediate_size=2 * MODERN.intermediate_size)
    with pytest.raises(ValueError, match="modern blocks cannot grow wider"):
        growth.describe(MODERN, wide)
    deep = replace(MODERN, num_hidden_layers=2 * MODERN.num_hidden_layers)
    assert growth.describe(MODERN, deep).endswith("since it is deeper")
    longer = replace(MODERN, max_position_embeddings=2 * MODERN.max_position_embeddings)
    assert growth.describe(MODERN, longer).endswith("; the same outputs")
    with pytest.raises(ValueError, match="block=modern needs heads of an even size, not 7"):
        replace(MODERN, hidden_size=21)


def test_no_vector_has_weight_decay() -> None:
    # Regression: the LayerNorm after the projection had a name without "norm".
    model = make_pair(MODERN).discriminator
    for group in parameter_groups(model, 0.1):
        is_decayed = bool(group["weight_decay"])
        assert all(is_decayed == (parameter.ndim > 1) for parameter in group["params"])


def test_heads_attend_to_their_own_offsets_from_the_start() -> None:
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "initializer_range": 0.02}
    config = replace(MODERN, **sizes, initialization="local")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Electra(config, config).discriminator
    seen: list[Tensor] = []

    class Seen(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            seen.append((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1))
            return v

    for group in model.encoder.albert_layer_groups:
        group.albert_layers[0].attention.mixing = Seen()
    ids = torch.arange(40)[None] % config.vocab_size
    model(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    query = torch.arange(3, 37)
    for weights in seen:
        for head, offset in enumerate(HEAD_OFFSETS):
            assert (weights[0, head, query].argmax(-1) == query + offset).double().mean() > 0.9
