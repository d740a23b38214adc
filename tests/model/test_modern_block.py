"""The modern block: parity with stock ModernBERT (law 1), relative positions, local heads."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertForMaskedLM, ModernBertForTokenClassification
from transformers.models.modernbert import modeling_modernbert

from electra_albert.config.model import ModelConfig
from electra_albert.model import attention
from electra_albert.model.electra import Discriminator, Electra, Generator
from electra_albert.model.initialization import HEAD_OFFSETS
from tests.model.twins import SHAPE, L, drawn, padded_batch

MODERN = replace(SHAPE, block="modern", hidden_size=24, num_hidden_groups=2)
CONFIGS = {
    "groups": MODERN,
    "one group": replace(MODERN, num_hidden_groups=1),
    "unshared": replace(MODERN, num_hidden_groups=6, hidden_act="gelu"),
    "E = D": replace(MODERN, embedding_size=24),
}
BATCH = padded_batch()
INPUTS = (BATCH.input_ids, BATCH.attention_mask, BATCH.token_type_ids)
# Parts of stock names of a layer, and ours of a block.
PARTS = {
    "attn.Wqkv": "attention.qkv",
    "attn.Wo": "attention.dense",
    "mlp_norm": "ffn_layer_norm",
    "mlp.Wi": "ffn",
    "mlp.Wo": "ffn_output",
}


def stock_config(config: ModelConfig) -> ModernBertConfig:
    rotary = {"rope_type": "default", "rope_theta": attention.ROTARY_BASE}
    biases = "norm_bias attention_bias mlp_bias classifier_bias decoder_bias"
    return ModernBertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        hidden_activation=config.hidden_act,
        classifier_activation=config.hidden_act,
        norm_eps=config.layer_norm_eps,
        layer_types=["full_attention"] * config.num_hidden_layers,
        rope_parameters={"full_attention": rotary, "sliding_attention": rotary},
        num_labels=1,
        **dict.fromkeys(biases.split(), True),
        **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), 0),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    )


def stock_state(model: Generator | Discriminator) -> dict[str, Tensor]:
    """Our weights by stock names: blocks are repeated, and the table is multiplied out."""
    state = model.state_dict()
    config = model.config
    mapping = model.encoder.embedding_hidden_mapping_in.weight
    stock = {"model.embeddings.tok_embeddings.weight": model.embeddings.table @ mapping.T}
    head, output = "discriminator_predictions", "dense_prediction"
    if isinstance(model, Generator):
        head = "predictions"
        stock["decoder.weight"] = stock["model.embeddings.tok_embeddings.weight"]
        stock["decoder.bias"] = state["predictions.bias"]
    size = config.num_hidden_layers // config.num_hidden_groups
    for end in ("weight", "bias"):
        stock[f"model.embeddings.norm.{end}"] = state[f"encoder.LayerNorm.{end}"]
        for name, ours in {"head.dense": "dense", "head.norm": "LayerNorm"}.items():
            stock[f"{name}.{end}"] = state[f"{head}.{ours}.{end}"]
        if isinstance(model, Discriminator):
            stock[f"classifier.{end}"] = state[f"{head}.{output}.{end}"]
        for layer in range(config.num_hidden_layers):
            block = f"encoder.albert_layer_groups.{layer // size}.albert_layers.0"
            for name, ours in PARTS.items():
                stock[f"model.layers.{layer}.{name}.{end}"] = state[f"{block}.{ours}.{end}"]
            is_last = layer + 1 == config.num_hidden_layers
            norm = "final_norm" if is_last else f"layers.{layer + 1}.attn_norm"
            stock[f"model.{norm}.{end}"] = state[f"{block}.full_layer_layer_norm.{end}"]
    return stock


def rotated_in_their_precision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    """Stock's rotation, which computes in float32 also for float64."""
    half = modeling_modernbert.rotate_half
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + half(q) * sin, k * cos + half(k) * sin


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["generator", "discriminator"])
def test_outputs_equal_those_of_stock(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotated_in_their_precision)
    config = CONFIGS[name]
    ours: Any = getattr(drawn(lambda: Electra(config, config)), kind).double()
    stock_class: Any = ModernBertForTokenClassification
    if kind == "generator":
        stock_class = ModernBertForMaskedLM
    theirs = stock_class(stock_config(config)).double().eval()
    theirs.load_state_dict(stock_state(ours))
    expected = theirs(BATCH.input_ids, BATCH.attention_mask.long()).logits
    logits = ours(*INPUTS)
    logits = ours.logits(logits) if kind == "generator" else logits[..., None]
    is_token = BATCH.attention_mask
    assert (logits - expected)[is_token].norm() < 1e-9 * expected[is_token].norm()


def test_only_distances_of_tokens_matter() -> None:
    """The same tokens after padding, at other positions, have the same hidden states."""
    model = drawn(lambda: Electra(MODERN, MODERN)).discriminator.double()
    ids = BATCH.input_ids[:1]
    moved = torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], 1)
    mask = torch.arange(L + 3)[None] >= 3
    alone = model(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids))
    after = model(moved, mask, torch.zeros_like(moved))[:, 3:]
    torch.testing.assert_close(after, alone, rtol=0, atol=1e-6)  # angles are in float32


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


def test_heads_of_odd_size_are_refused() -> None:
    with pytest.raises(ValueError, match="block=modern needs heads of an even size, not 7"):
        replace(MODERN, hidden_size=21)
