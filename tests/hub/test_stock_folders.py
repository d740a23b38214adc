"""Stock ALBERT, BERT and ELECTRA folders of every class, form and precision give what the stock class computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra_albert.contracts import Batch, CheckpointError
from electra_albert.hub.config import stock_config
from electra_albert.hub.load import (
    ModelFiles,
    load_body,
    load_discriminator,
    load_generator,
    load_task_model,
    locate,
    read_stored,
)
from electra_albert.hub.names import to_stock
from electra_albert.hub.weights import all_files, write_safetensors
from tests.hub.stock_models import batches, body_of, config_of, make, save, stock_outputs
from tests.model.twins import SHAPE, SPECIAL_IDS, assert_same_outputs, make_body, make_masked_lm, make_pair

Outputs = Callable[[Any, Batch], dict[str, Tensor]]
Tensors = dict[str, Tensor]


def of_body(model: Any, batch: Batch) -> dict[str, Tensor]:
    hidden = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return {"last_hidden_state": hidden} | ({} if model.pooler is None else {"pooler_output": model.pooled(hidden)})


def of_generator(model: Any, batch: Batch) -> dict[str, Tensor]:
    hidden = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    if model.sentence_order is None:
        return {"logits": model.logits(hidden)}
    return {"prediction_logits": model.logits(hidden), "sop_logits": model.sentence_order(hidden)}


def of_pretrained_bert(model: Any, batch: Batch) -> dict[str, Tensor]:
    return {"prediction_logits": of_generator(model, batch)["logits"]}


def of_discriminator(model: Any, batch: Batch) -> dict[str, Tensor]:
    return {"logits": model(batch.input_ids, batch.attention_mask, batch.token_type_ids)}


def of_task(model: Any, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch.input_ids, batch.attention_mask, batch.token_type_ids)[0]
    return {"logits": logits.T if model.head.kind == "choice" else logits}  # stock choices [1, B]


def load_task(files: ModelFiles) -> nn.Module:
    return load_task_model(files)[0]


_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
CASES: dict[tuple[str, str], tuple[Callable[[ModelFiles], nn.Module], Outputs]] = {
    ("albert", "AlbertModel"): (load_body, of_body),
    ("albert", "AlbertForMaskedLM"): (load_generator, of_generator),
    ("albert", "AlbertForPreTraining"): (load_generator, of_generator),
    **{("albert", f"Albert{task}"): (load_task, of_task) for task in _TASKS},
    ("bert", "BertModel"): (load_body, of_body),
    ("bert", "BertForMaskedLM"): (load_generator, of_generator),
    ("bert", "BertForPreTraining"): (load_generator, of_pretrained_bert),
    **{("bert", f"Bert{task}"): (load_task, of_task) for task in _TASKS},
    ("electra", "ElectraModel"): (load_body, of_body),
    ("electra of one width", "ElectraModel"): (load_body, of_body),
    ("electra", "ElectraForMaskedLM"): (load_generator, of_generator),
    ("electra", "ElectraForPreTraining"): (load_discriminator, of_discriminator),
    ("electra", "ElectraForTokenClassification"): (load_task, of_task),
    ("electra", "ElectraForQuestionAnswering"): (load_task, of_task),
}
MASKED_LM = {"albert": "AlbertForMaskedLM", "bert": "BertForMaskedLM", "electra": "ElectraForMaskedLM"}
DECODERS = {"albert": "predictions.decoder", "bert": "cls.predictions.decoder", "electra": "generator_lm_head"}


def ids(case: tuple[str, ...]) -> str:
    return f"{case[1]} of {case[0]}"


def assert_parity(ours: nn.Module, theirs: Any, outputs: Outputs) -> None:
    """AssertionError unless both compute the same under every mask, in float32 and in float64."""
    for dtype in (torch.float32, torch.float64):
        ours.to(dtype), theirs.to(dtype)
        for batch in batches():
            found, wanted = outputs(ours, batch), stock_outputs(theirs, batch)
            assert found.keys() <= wanted.keys()
            for name, tensor in found.items():
                assert_same_outputs(tensor, wanted[name])


def rewrite(files: ModelFiles, change: Callable[[Tensors], Tensors]) -> ModelFiles:
    tensors = change(load_file(files.weights))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, files.weights, {"format": "pt"})
    return files


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_model_of_a_stock_folder_computes_what_its_stock_class_does(case: tuple[str, str], tmp_path: Path) -> None:
    (family, name), (load, outputs) = case, CASES[case]
    theirs = make(family, name)
    ours = load(save(theirs, tmp_path))
    assert not any(part.training for part in ours.modules())
    assert_parity(ours, theirs, outputs)


def test_comparison_sees_two_projections_that_changed_places(tmp_path: Path) -> None:
    # Planted: key and value of one layer of the stock model change places after it is saved.
    theirs = make("bert", "BertModel")
    files = save(theirs, tmp_path)
    attention = theirs.encoder.layer[1].attention.self
    attention.key, attention.value = attention.value, attention.key
    with pytest.raises(AssertionError, match=r"^\d"), torch.no_grad():
        assert_parity(load_body(files), theirs, of_body)


@pytest.mark.parametrize("form", ["safetensors", "pickle"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_weights_of_any_precision_are_read_as_float32(dtype: torch.dtype, form: str, tmp_path: Path) -> None:
    theirs = make("albert", "AlbertForMaskedLM").to(dtype)
    files = save(theirs, tmp_path)
    if form == "pickle":
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
        files = files._replace(weights=tmp_path / "pytorch_model.bin")
    else:
        assert {tensor.dtype for tensor in load_file(files.weights).values()} == {dtype}
    ours = load_generator(files)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    assert_parity(ours, theirs.float(), of_generator)


def test_one_tensor_of_another_precision_is_read_too(tmp_path: Path) -> None:
    theirs = make("bert", "BertModel")
    theirs.encoder.layer[1].half()
    files = save(theirs, tmp_path)
    assert len({tensor.dtype for tensor in load_file(files.weights).values()}) == 2
    assert_parity(load_body(files), theirs.float(), of_body)


@pytest.mark.parametrize("number", [float("nan"), 1e300])
def test_numbers_that_float32_cannot_hold_are_refused(number: float, tmp_path: Path) -> None:
    theirs = make("albert", "AlbertModel").double()
    theirs.pooler.bias.data[3] = number
    with pytest.raises(CheckpointError, match="finite"):
        load_body(save(theirs, tmp_path))


def with_old_names(tensors: Tensors) -> Tensors:
    """As files of 2019 name a LayerNorm's vectors."""
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    return tensors


def with_counters(tensors: Tensors) -> Tensors:
    """As files of transformers 3 hold them."""
    family = min(tensors).split(".")[0]
    return {**tensors, f"{family}.embeddings.position_ids": torch.arange(SHAPE.max_position_embeddings)[None]}


def without_prefix(tensors: Tensors) -> Tensors:
    return {name.removeprefix("albert.").removeprefix("electra."): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", [with_old_names, with_counters, without_prefix])
@pytest.mark.parametrize("family", ["albert", "electra"])
def test_names_of_other_files_are_read(family: str, change: Callable[[Tensors], Tensors], tmp_path: Path) -> None:
    theirs = make(family, MASKED_LM[family])
    files = save(theirs, tmp_path)
    before = load_file(files.weights).keys()
    assert load_file(rewrite(files, change).weights).keys() != before
    assert_parity(load_generator(files), theirs, of_generator)


@pytest.mark.parametrize("form", ["safetensors in several", "pickle", "pickles in several"])
def test_model_in_another_form_of_files_is_the_same(form: str, tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM")
    if form == "safetensors in several":
        theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    else:
        save(theirs, tmp_path).weights.unlink()
        state = theirs.state_dict()  # with the ties and the counters that a safetensors file lacks
        parts = [sorted(state)] if form == "pickle" else [sorted(state)[::2], sorted(state)[1::2]]
        for number, part in enumerate(parts):
            torch.save({name: state[name] for name in part}, tmp_path / f"part{number}.bin")
        if form == "pickle":
            (tmp_path / "part0.bin").rename(tmp_path / "pytorch_model.bin")
        else:
            files = {name: f"part{number}.bin" for number, part in enumerate(parts) for name in part}
            (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    files_found = locate(tmp_path, "generator")
    assert (len(all_files(files_found.weights)) > 1) == (form != "pickle")
    assert_parity(load_generator(files_found), theirs, of_generator)


@pytest.mark.parametrize("family", DECODERS)
def test_decoder_that_is_not_the_token_table_is_refused_by_name(family: str, tmp_path: Path) -> None:
    files, decoder = save(make(family, MASKED_LM[family]), tmp_path), f"{DECODERS[family]}.weight"
    table = f"{family}.embeddings.word_embeddings.weight"
    load_generator(rewrite(files, lambda tensors: {**tensors, decoder: tensors[table].clone()}))  # a copy is no reason
    rewrite(files, lambda tensors: {**tensors, decoder: tensors[decoder] * (1 + 1e-6)})
    with pytest.raises(CheckpointError, match="decoder"):
        load_generator(files)


def test_decoder_bias_of_its_own_is_the_one_stock_adds(tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM")
    bias = torch.linspace(-3, 3, SHAPE.vocab_size)
    files = rewrite(save(theirs, tmp_path), lambda tensors: {**tensors, "cls.predictions.decoder.bias": bias})
    again = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_parity(load_generator(files), again, of_generator)


@pytest.mark.parametrize(
    ("name", "word"),
    [("ForSequenceClassification", "classifier.dense"), ("ForMultipleChoice", "sequence_summary")],
)
def test_head_that_is_not_computed_here_is_refused_and_its_encoder_is_read(
    name: str, word: str, tmp_path: Path
) -> None:
    theirs = make("electra", f"Electra{name}")
    files = save(theirs, tmp_path)
    with pytest.raises(CheckpointError, match=word):
        load_task_model(files)
    assert any(word in head for head in read_stored(files).left_aside)
    assert_parity(load_body(files), body_of(theirs), of_body)


def test_next_sentence_head_of_bert_is_left_aside_and_named(tmp_path: Path) -> None:
    stored = read_stored(save(make("bert", "BertForPreTraining"), tmp_path))
    assert (stored.left_aside, stored.has_mlm_head, stored.has_pooler) == (["cls.seq_relationship"], True, True)


def test_encoder_without_a_pooler_has_none_here(tmp_path: Path) -> None:
    theirs = make("bert", "BertModel", add_pooling_layer=False)
    ours = load_body(save(theirs, tmp_path))
    assert ours.pooler is None
    assert_parity(ours, theirs, of_body)


@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
def test_activation_is_the_one_the_configuration_names_or_refused(activation: str, tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM", config_of("bert", hidden_act=activation))
    assert_parity(load_generator(save(theirs, tmp_path / "bert")), theirs, of_generator)
    # Stock computes this head with gelu whatever the configuration says.
    files = save(make("electra", "ElectraForMaskedLM", config_of("electra", hidden_act=activation)), tmp_path / "other")
    with pytest.raises(CheckpointError, match=activation):
        load_generator(files)


@pytest.mark.parametrize("count", [1, 2])
def test_regression_and_classification_of_bert_are_told_apart(count: int, tmp_path: Path) -> None:
    theirs = make("bert", "BertForSequenceClassification", config_of("bert", num_labels=count))
    model, details = load_task_model(save(theirs, tmp_path))
    assert (details["is_regression"], len(details["labels"])) == (count == 1, 0 if count == 1 else count)
    assert_parity(model, theirs, of_task)


def test_a_pooler_without_an_order_head_is_handed_on_to_the_bit(tmp_path: Path) -> None:
    # Regression: as a masked language model the hub's ALBERT, which has no classifier of the order, lost its pooler.
    files = save(make("albert", "AlbertForPreTraining"), tmp_path)
    rewrite(files, lambda tensors: {name: t for name, t in tensors.items() if not name.startswith("sop_")})
    stored, model = load_file(files.weights), load_generator(files)
    written = to_stock(model.state_dict())
    assert model.sentence_order is None
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("case", [case for case in CASES if case[0] == "albert"], ids=ids)
def test_stock_albert_comes_out_as_it_came_in_bit_for_bit(case: tuple[str, str], tmp_path: Path) -> None:
    files = save(make(*case), tmp_path)
    wanted = without_prefix(load_file(files.weights))
    found = without_prefix(to_stock(CASES[case][0](files).state_dict()))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_relative_exported_as_albert_gives_stock_albert_the_same_outputs(family: str, tmp_path: Path) -> None:
    from transformers import AlbertModel

    theirs = make(family, f"{family.capitalize()}Model")
    body = load_body(save(theirs, tmp_path / "in"))
    (tmp_path / "out").mkdir()
    write_safetensors(to_stock(body.state_dict()), tmp_path / "out/model.safetensors")
    contents = stock_config(body.config, "AlbertModel", SPECIAL_IDS)
    (tmp_path / "out/config.json").write_text(json.dumps(contents))
    albert = AlbertModel.from_pretrained(tmp_path / "out", add_pooling_layer=body.pooler is not None)
    assert_parity(albert.eval(), theirs, lambda model, batch: stock_outputs(model, batch))


Making = tuple[Callable[[Any], nn.Module], Callable[[ModelFiles], nn.Module]]
OURS: dict[str, Making] = {
    "generator": (lambda c: make_pair(c).generator, load_generator),
    "masked LM with sentence order": (make_masked_lm, load_generator),
    "discriminator": (lambda c: make_pair(c).discriminator, load_discriminator),
    "discriminator with order": (lambda c: make_pair(c, with_sentence_order=True).discriminator, load_discriminator),
    "encoder with a pooler": (lambda c: make_body(c, with_pooler=True), load_body),
}
SHAPES = {
    "inner-grouped": replace(SHAPE, num_hidden_groups=2, inner_group_num=2),
    "E = H": replace(SHAPE, embedding_size=SHAPE.hidden_size),
    "unshared": replace(SHAPE, num_hidden_groups=SHAPE.num_hidden_layers),
}


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((kind, SHAPE) for kind in OURS), *(("generator", shape) for shape in SHAPES.values())],
    ids=[*OURS, *SHAPES],
)
def test_going_into_a_stock_folder_and_back_changes_no_bit(kind: str, shape: Any, tmp_path: Path) -> None:
    make_ours, load = OURS[kind]
    model = make_ours(shape)
    write_safetensors(to_stock(model.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(stock_config(shape, "AlbertModel", SPECIAL_IDS)))
    state, found = model.state_dict(), load(locate(tmp_path, "generator"))
    assert found.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.state_dict().items())
    assert len({parameter.data_ptr() for parameter in found.parameters()}) == len(list(found.parameters()))


RELEASED = {
    "albert-base-v2": ("AlbertForPreTraining", load_generator, of_generator),
    "bert-base-uncased": ("BertForPreTraining", load_generator, of_pretrained_bert),
    "electra-small-discriminator": ("ElectraForPreTraining", load_discriminator, of_discriminator),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RELEASED)
def test_shape_of_a_released_model_is_read_with_parity(name: str, tmp_path: Path) -> None:
    import transformers

    stock_class, load, outputs = RELEASED[name]
    family = name.split("-")[0]
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    config = getattr(transformers, f"{family.capitalize()}Config")(**sizes if family == "albert" else {})
    theirs, batch = make(family, stock_class, config), batches()[1]
    found, wanted = outputs(load(save(theirs, tmp_path)), batch), stock_outputs(theirs, batch)
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[key], rtol=1e-5, atol=1e-5)
