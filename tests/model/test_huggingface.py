"""Names to and from stock checkpoints lose nothing, and only a possible ALBERT is read from a config.json."""

from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError
from electra_albert.hub.names import (
    from_stock,
    has_sentence_order,
    load_state,
    normalized,
    to_stock,
)
from electra_albert.hub.config import model_config, stock_config
from tests.model.twins import SHAPE, SPECIAL_IDS, make_masked_lm, make_pair, masked_lm_twin, pretraining_twin, stock

CONFIG = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)
CONTENTS = stock_config(CONFIG, "AlbertForMaskedLM", SPECIAL_IDS)


def assert_same_tensors(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("with_sentence_order", [False, True])
@pytest.mark.parametrize("kind", ["generator", "discriminator"])
def test_going_to_stock_and_back_changes_no_bit(kind: str, with_sentence_order: bool) -> None:
    pair = make_pair(CONFIG, with_sentence_order=with_sentence_order)
    state = dict(getattr(pair, kind).state_dict())
    assert_same_tensors(from_stock(to_stock(state)), state)


def test_coming_from_stock_and_going_back_changes_no_bit_of_what_is_used() -> None:
    from transformers import AlbertForPreTraining

    stock_state = AlbertForPreTraining(stock(CONFIG)).state_dict()
    wanted = {name: tensor for name, tensor in stock_state.items() if not name.startswith("predictions.decoder.")}
    assert len(stock_state) - len(wanted) == 2
    stored = normalized(stock_state, "albert", CONFIG, "file").tensors
    assert_same_tensors(to_stock(from_stock(stored)), wanted)


def test_stock_names_are_exactly_those_of_the_stock_class() -> None:
    generator = make_pair(CONFIG).generator
    stock_names = {name for name, _ in masked_lm_twin(generator).named_parameters()}
    assert to_stock(generator.state_dict()).keys() == stock_names


def test_stock_names_with_a_sentence_order_head_are_exactly_those_of_the_stock_pretraining_class() -> None:
    model = make_masked_lm(CONFIG)
    assert to_stock(model.state_dict()).keys() == {name for name, _ in pretraining_twin(model).named_parameters()}


SENTENCE_ORDER = (
    "albert.pooler.weight",
    "albert.pooler.bias",
    "sop_classifier.classifier.weight",
    "sop_classifier.classifier.bias",
)


@pytest.mark.parametrize("prefix", ["albert.", ""])
def test_sentence_order_head_is_seen_only_where_it_is_whole(prefix: str) -> None:
    exported = {name.replace("albert.", prefix): t for name, t in to_stock(make_masked_lm(CONFIG).state_dict()).items()}
    assert has_sentence_order(exported)
    for lacking in SENTENCE_ORDER:
        assert not has_sentence_order({n: t for n, t in exported.items() if n != lacking.replace("albert.", prefix)})
    assert not has_sentence_order(to_stock(make_masked_lm(CONFIG, with_sentence_order=False).state_dict()))


def test_sentence_order_head_the_model_does_not_have_is_left_aside() -> None:
    model, other = make_masked_lm(CONFIG), make_masked_lm(CONFIG, seed=6, with_sentence_order=False)
    load_state(other, to_stock(model.state_dict()), "file")
    wanted = {name: t for name, t in model.state_dict().items() if not name.startswith("sentence_order.")}
    assert_same_tensors(dict(other.state_dict()), wanted)


def test_decoder_of_the_loaded_stock_model_is_its_table() -> None:
    twin: Any = masked_lm_twin(make_pair(CONFIG).generator)
    assert twin.predictions.decoder.weight.data_ptr() == twin.albert.embeddings.word_embeddings.weight.data_ptr()


def test_exported_tensors_are_float32_and_share_no_memory() -> None:
    exported = to_stock(make_pair(CONFIG).generator.bfloat16().state_dict())
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert len({tensor.untyped_storage().data_ptr() for tensor in exported.values()}) == len(exported)


def test_check_of_the_round_trip_rejects_swapped_projections() -> None:
    # Planted: key and value change places on the way out.
    state = dict(make_pair(CONFIG).generator.state_dict())
    exported = to_stock(state)
    swap = {"key": "value", "value": "key"}
    wrong = {".".join(swap.get(part, part) for part in name.split(".")): tensor for name, tensor in exported.items()}
    with pytest.raises(AssertionError, match="qkv"):
        assert_same_tensors(from_stock(wrong), state)


def test_head_of_another_kind_is_left_aside() -> None:
    pair, other = make_pair(CONFIG), make_pair(CONFIG, seed=6)
    foreign_head = pair.discriminator.discriminator_predictions.state_dict(prefix="discriminator_predictions.")
    load_state(other.generator, to_stock(dict(pair.generator.state_dict()) | foreign_head), "file")
    assert_same_tensors(dict(other.generator.state_dict()), dict(pair.generator.state_dict()))


def test_query_without_its_value_is_refused() -> None:
    exported = to_stock(make_pair(CONFIG).generator.state_dict())
    del exported["albert.encoder.albert_layer_groups.0.albert_layers.0.attention.value.bias"]
    with pytest.raises(CheckpointError, match="no key and value of its shape"):
        from_stock(exported)


def test_missing_tensor_is_refused_by_name() -> None:
    exported = to_stock(make_pair(CONFIG).generator.state_dict())
    del exported["predictions.bias"]
    with pytest.raises(CheckpointError, match=r"weights\.pt has no predictions\.bias \(1 of"):
        load_state(make_pair(CONFIG).generator, exported, "weights.pt")


def test_tensor_of_another_shape_is_refused_with_both_shapes() -> None:
    exported = to_stock(make_pair(CONFIG).generator.state_dict())
    exported["predictions.bias"] = torch.zeros(7)
    with pytest.raises(CheckpointError, match=r"predictions\.bias .* has shape \[7\], .* says \[53\]"):
        load_state(make_pair(CONFIG).generator, exported, "weights.pt")


def test_body_with_a_block_too_many_is_refused() -> None:
    exported = to_stock(make_pair(CONFIG).generator.state_dict())
    with pytest.raises(CheckpointError, match="which its configuration has no place for"):
        load_state(make_pair(replace(CONFIG, num_hidden_groups=1)).generator, exported, "weights.pt")


def test_refused_file_leaves_the_model_as_it_was() -> None:
    model = make_pair(CONFIG).generator
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exported = to_stock(make_pair(CONFIG, seed=6).generator.state_dict())
    exported["predictions.bias"] = torch.zeros(7)
    with pytest.raises(CheckpointError):
        load_state(model, exported, "weights.pt")
    assert_same_tensors(dict(model.state_dict()), before)


@pytest.mark.parametrize("act", get_args(get_type_hints(ModelConfig)["hidden_act"]))
def test_configuration_comes_back_as_it_went(act: Any) -> None:
    config = replace(CONFIG, hidden_act=act, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    assert model_config(stock_config(config, "AlbertForMaskedLM", {}), "config.json") == config


def test_configuration_holds_stock_keys_only_and_is_accepted_by_the_strict_stock_class() -> None:
    from transformers import AlbertConfig

    known = AlbertConfig().to_dict().keys() | {"architectures", "dtype"}
    assert CONTENTS.keys() <= known
    assert AlbertConfig(**{k: v for k, v in CONTENTS.items() if k != "model_type"}).hidden_size == CONFIG.hidden_size


def test_silent_keys_are_read_as_transformers_fills_them_in() -> None:
    from transformers import AlbertConfig

    ours, stock_defaults = model_config({"model_type": "albert"}, "config.json"), AlbertConfig()
    for field in fields(ModelConfig):
        if field.name not in ("initialization", "attention", "attention_options"):
            assert getattr(ours, field.name) == getattr(stock_defaults, field.name), field.name


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gpt2"},
        {"model_type": ["albert"]},
        {"model_type": None},
        {"hidden_act": "swish"},
        {"hidden_act": ["gelu"]},
        {"hidden_size": "21"},
        {"hidden_size": True},
        {"hidden_size": 21.0},
        {"hidden_size": -21},
        {"hidden_size": 22},
        {"vocab_size": None},
        {"vocab_size": 10**18},
        {"num_hidden_layers": 10**9},
        {"num_hidden_groups": 0},
        {"num_hidden_groups": 10**9},
        {"inner_group_num": 10**9},
        {"initializer_range": 10**400},
        {"layer_norm_eps": float("nan")},
        {"hidden_dropout_prob": float("inf")},
    ],
    ids=str,
)
def test_configuration_that_cannot_be_is_refused_in_one_line(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        model_config(CONTENTS | change, "config.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "hostile",
    [
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": "evil/kernel:forward"},
        {"_attn_implementation_internal": "evil/kernel"},
    ],
    ids=str,
)
def test_configuration_that_names_code_is_refused(hostile: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="is refused") as refused:
        model_config(CONTENTS | hostile, "config.json")
    assert "\n" not in str(refused.value)


def test_attention_of_torch_itself_may_be_named() -> None:
    assert model_config(CONTENTS | {"_attn_implementation": "sdpa"}, "config.json") == CONFIG
