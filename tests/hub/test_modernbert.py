"""Modern blocks: parity with stock ModernBERT (law 1), and their exported folders."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import ModernBertConfig
from transformers.models.modernbert import modeling_modernbert

from electra_albert.config.model import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.find import ModelFiles
from electra_albert.hub.formats import model_config, stock_details
from electra_albert.hub.load import build, load_task_model, read_stored
from electra_albert.hub.modernbert import to_modernbert, write_modernbert
from electra_albert.hub.onnx import outputs
from electra_albert.model import growth
from electra_albert.model.electra import Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import ARCHITECTURES, TaskHead
from electra_albert.training.optimizer import parameter_groups
from tests.model.test_task_model import make_task_model
from tests.model.twins import (
    SHAPE,
    assert_same_outputs,
    drawn,
    make_encoder,
    make_pair,
    padded_batch,
)
from tests.refusals import rows

MODERN = replace(SHAPE, block="modern", embedding_size=8, hidden_size=24, num_hidden_groups=2)
CONFIGS = {
    "two groups of two blocks": replace(MODERN, inner_group_num=2),
    "one group": replace(MODERN, num_hidden_groups=1),
    "unshared": replace(MODERN, num_hidden_groups=6, hidden_act="gelu"),
    "E = D": replace(MODERN, embedding_size=24),
    "sliding window": replace(
        MODERN,
        num_hidden_groups=6,
        global_attn_every_n_layers=2,  # none of ModernBERT's
        local_attention=6,
        global_rope_theta=20_000.0,
        local_rope_theta=5_000.0,
    ),
}
KINDS: dict[Any, int] = {"sequence": 3, "choice": 1, "span": 2, "token": 3}  # and their outputs
STOCK_TASKS = [name.removeprefix("Albert") for name in ARCHITECTURES.values()]
BATCH = padded_batch()


def rotated_in_their_precision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Any:
    """Stock's rotation, which computes in float32 also for float64."""
    half = modeling_modernbert.rotate_half
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + half(q) * sin, k * cos + half(k) * sin


class Roles:
    """Special ids of a tokenizer."""

    pad_token_id, cls_token_id, sep_token_id = 0, 2, 3


def make(kind: str, config: ModelConfig) -> Any:
    """A model of ours in float64: a head of KINDS, else a part of a pair, or an encoder."""
    if kind in KINDS:
        return make_task_model(TaskHead(kind, KINDS[kind], "modernbert"), config).double()
    model: Any = make_encoder(config, with_pooler=False)
    if kind != "encoder":
        model = getattr(make_pair(config), kind)
    return model.double()


@torch.no_grad()
def assert_parity(model: Any, stock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert equal outputs in float64 for the tokens of a padded batch."""
    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotated_in_their_precision)
    inputs = [BATCH.input_ids, BATCH.attention_mask.long()]
    values = outputs(model, *inputs, BATCH.token_type_ids)
    if type(stock).__name__.endswith("MultipleChoice"):
        inputs = [part[None] for part in inputs]
    expected = stock.double()(*inputs)
    assert expected.keys() <= values.keys()
    for name, tensor in expected.items():
        ours = values[name]
        tensor = tensor.view(ours.shape)
        if len(ours) == len(BATCH.input_ids) and ours.shape[1:2] == BATCH.input_ids.shape[1:]:
            ours, tensor = ours[BATCH.attention_mask], tensor[BATCH.attention_mask]
        assert_same_outputs(ours, tensor)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", ["generator", "discriminator", "encoder", *KINDS])
def test_outputs_equal_those_of_stock(
    config: ModelConfig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(kind, config)
    labels = {"num_labels": KINDS.get(kind, 1)}
    assert_parity(model, to_modernbert(model, Roles, labels), monkeypatch)


@pytest.mark.parametrize("has_biases", [False, True])
@pytest.mark.parametrize("name", ["Model", "ForMaskedLM", *STOCK_TASKS])
def test_a_stock_folder_has_the_outputs_of_its_stock_class(
    name: str, has_biases: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    biases = dict.fromkeys(["norm_bias", "attention_bias", "mlp_bias", "decoder_bias"], has_biases)
    sizes = {"hidden_size": 24, "intermediate_size": 10, "num_attention_heads": 3}
    sizes |= {"num_hidden_layers": 7, "vocab_size": 53, "local_attention": 6}
    labels = dict(enumerate("abcde"[: 1 if name == "ForMultipleChoice" else 2]))
    more = {"pad_token_id": 0, "initializer_range": 0.3, "classifier_pooling": "mean"}
    config = ModernBertConfig(**sizes, **biases, id2label=labels, **more)
    stock = drawn(lambda: getattr(transformers, f"ModernBert{name}")(config))
    stock.save_pretrained(tmp_path)
    files = ModelFiles(tmp_path / "model.safetensors", tmp_path / "config.json", tmp_path)
    if name in STOCK_TASKS:
        model: Any = load_task_model(files)[0]
    else:
        stored = read_stored(files)
        model = build(stored, Generator if "predictions" in stored.parts else EncoderModel)
    assert_parity(model.double(), stock, monkeypatch)


@pytest.mark.parametrize(
    ("name", "ours"), [("layers.3.mlp.Wi", "ffn"), ("embeddings.norm", "LayerNorm")]
)
def test_a_bias_that_only_other_layers_have_is_missing(
    name: str, ours: str, tmp_path: Path
) -> None:
    stock = to_modernbert(make("encoder", CONFIGS["unshared"]).float(), Roles, {})
    weights = stock.state_dict()
    del weights[f"{name}.bias"]
    stock.save_pretrained(tmp_path, state_dict=weights)
    files = ModelFiles(tmp_path / "model.safetensors", tmp_path / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=rf"{ours}\.bias"):
        build(read_stored(files), EncoderModel)


OTHER_LAYERS = """
layer_types      | ["full_attention"]                           | layer_types
layer_types      | ["sliding_attention", "full_attention"]      | layer_types
layer_types      | 3                                            | layer_types
rope_parameters  | {"full_attention": {"rope_type": "yarn"}}    | rope_type
rope_parameters  | {"full_attention": 3}                        | rope_parameters
rope_scaling     | {"rope_type": "linear"}                      | rope_scaling
classifier_activation | "relu"                                  | classifier_activation
hidden_activation | "relu"                                      | classifier_activation
global_rope_theta | "far"                                       | global_rope_theta
local_attention  | 0                                            | local_attention
"""


def test_other_layers_than_modernberts_are_refused() -> None:
    contents = {"model_type": "modernbert", "num_hidden_layers": 2}
    assert model_config(contents, "config.json").global_attn_every_n_layers == 3
    for name, value, problem in rows(OTHER_LAYERS):
        with pytest.raises(CheckpointError, match=problem):
            model_config(contents | {name: json.loads(value)}, "config.json")


def test_pooling_by_cls_is_refused() -> None:
    contents = {"model_type": "modernbert"}  # where transformers 4 leaves out its default
    for name in STOCK_TASKS[:2]:
        with pytest.raises(CheckpointError, match="pooling by the mean"):
            stock_details(contents | {"architectures": [f"ModernBert{name}"]}, "config.json")


def test_heads_that_stock_cannot_have_are_refused(tmp_path: Path) -> None:
    wide = make_pair(replace(MODERN, embedding_size=16)).generator
    with pytest.raises(CheckpointError, match="no multiple"):
        write_modernbert(wide, Roles, tmp_path)
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
    with pytest.raises(ValueError, match="modern blocks cannot grow wider"):
        growth.describe(MODERN, replace(MODERN, intermediate_size=74))
    assert growth.describe(MODERN, replace(MODERN, num_hidden_layers=12)).endswith("is deeper")
    longer = replace(MODERN, max_position_embeddings=34)
    assert growth.describe(MODERN, longer).endswith("; the same outputs")
    windows = CONFIGS["sliding window"]
    with pytest.raises(ValueError, match="group 1 would copy 0"):
        growth.describe(replace(windows, num_hidden_groups=2), windows)
    with pytest.raises(ValueError, match="block=modern needs heads of an even size, not 7"):
        replace(MODERN, hidden_size=21)


def test_no_vector_has_weight_decay() -> None:
    # Regression: the LayerNorm after the projection had a name without "norm".
    model = make_pair(MODERN).discriminator
    for group in parameter_groups(model, 0.1):
        is_decayed = bool(group["weight_decay"])
        assert all(is_decayed == (parameter.ndim > 1) for parameter in group["params"])
