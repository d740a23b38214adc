"""Stock ALBERT, BERT and ELECTRA folders of every class, form and precision give what the stock class computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError
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
from electra_albert.hub.outputs import outputs
from electra_albert.hub.weights import all_files
from tests.hub.stock_models import batches, body_of, config_of, make, save, stock_outputs
from tests.model.twins import SHAPE, assert_same_outputs

Tensors = dict[str, Tensor]


def load_task(files: ModelFiles) -> nn.Module:
    return load_task_model(files)[0]


CASES: dict[Callable[[ModelFiles], nn.Module], tuple[str, ...]] = {
    load_body: ("albert AlbertModel", "bert BertModel", "electra ElectraModel", "wide ElectraModel"),
    load_generator: (
        *("albert AlbertForMaskedLM", "albert AlbertForPreTraining", "bert BertForMaskedLM", "bert BertForPreTraining"),
        "electra ElectraForMaskedLM",
    ),
    load_discriminator: ("electra ElectraForPreTraining",),
    load_task: (
        *("albert AlbertForSequenceClassification", "albert AlbertForQuestionAnswering"),
        *("albert AlbertForTokenClassification", "albert AlbertForMultipleChoice"),
        *("bert BertForSequenceClassification", "electra ElectraForTokenClassification"),
    ),
}
MASKED_LM = {"albert": "AlbertForMaskedLM", "bert": "BertForMaskedLM", "electra": "ElectraForMaskedLM"}
DECODERS = {"albert": "predictions.decoder", "electra": "generator_lm_head"}


def assert_parity(ours: Any, theirs: Any) -> None:
    """AssertionError unless both compute the same under every mask, in float32 and in float64."""
    for dtype in (torch.float32, torch.float64):
        ours.to(dtype), theirs.to(dtype)
        for batch in batches():
            found = outputs(ours, batch.input_ids, batch.attention_mask, batch.token_type_ids)
            wanted = stock_outputs(theirs, batch)
            wanted.pop("seq_relationship_logits", None)  # BERT's head of the next sentence, which is left aside
            assert wanted.keys() <= found.keys()
            for name, tensor in wanted.items():
                assert_same_outputs(found[name].view(tensor.shape), tensor)


def rewrite(files: ModelFiles, change: Callable[[Tensors], Tensors]) -> ModelFiles:
    tensors = change(load_file(files.weights))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, files.weights, {"format": "pt"})
    return files


@pytest.mark.parametrize(("load", "case"), [(load, case) for load, cases in CASES.items() for case in cases])
def test_model_of_a_stock_folder_computes_what_its_stock_class_does(load: Any, case: str, tmp_path: Path) -> None:
    theirs = make(*case.split())
    ours = load(save(theirs, tmp_path))
    assert not any(part.training for part in ours.modules())
    assert_parity(ours, theirs)


@pytest.mark.parametrize(
    ("dtype", "form"), [(torch.float16, "safetensors"), (torch.bfloat16, "pickle"), (torch.float64, "safetensors")]
)
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
    assert_parity(ours, theirs.float())


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


@pytest.mark.parametrize(
    ("family", "change"), [("albert", with_old_names), ("electra", with_counters), ("electra", without_prefix)]
)
def test_names_of_other_files_are_read(family: str, change: Callable[[Tensors], Tensors], tmp_path: Path) -> None:
    theirs = make(family, MASKED_LM[family])
    files = save(theirs, tmp_path)
    before = load_file(files.weights).keys()
    assert load_file(rewrite(files, change).weights).keys() != before
    assert_parity(load_generator(files), theirs)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_model_in_several_files_is_the_same(form: str, tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM")
    if form == "safetensors":
        theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    else:
        save(theirs, tmp_path).weights.unlink()
        state = theirs.state_dict()  # with the ties and the counters that a safetensors file lacks
        files = {name: f"part{number % 2}.bin" for number, name in enumerate(sorted(state))}
        for part in set(files.values()):
            torch.save({name: state[name] for name in files if files[name] == part}, tmp_path / part)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    found = locate(tmp_path, "generator")
    assert len(all_files(found.weights)) > 1
    assert_parity(load_generator(found), theirs)


@pytest.mark.parametrize("family", ["albert", "electra"])
def test_decoder_that_is_not_the_token_table_is_refused_by_name(family: str, tmp_path: Path) -> None:
    files, decoder = save(make(family, MASKED_LM[family]), tmp_path), f"{DECODERS[family]}.weight"
    table = f"{family}.embeddings.word_embeddings.weight"
    load_generator(rewrite(files, lambda tensors: {**tensors, decoder: tensors[table].clone()}))  # a copy is no reason
    rewrite(files, lambda tensors: {**tensors, decoder: tensors[decoder] * (1 + 1e-6)})
    with pytest.raises(CheckpointError, match="decoder"):
        load_generator(files)


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
    assert_parity(load_body(files), body_of(theirs))


def test_activation_is_the_one_the_configuration_names_or_refused(tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM", config_of("bert", hidden_act="relu"))
    assert_parity(load_generator(save(theirs, tmp_path / "bert")), theirs)
    # Stock computes this head with gelu whatever the configuration says.
    files = save(make("electra", "ElectraForMaskedLM", config_of("electra", hidden_act="relu")), tmp_path / "other")
    with pytest.raises(CheckpointError, match="relu"):
        load_generator(files)


def test_a_pooler_without_an_order_head_is_handed_on_to_the_bit(tmp_path: Path) -> None:
    # Regression: as a masked language model the hub's ALBERT, which has no classifier of the order, lost its pooler.
    files = save(make("albert", "AlbertForPreTraining"), tmp_path)
    rewrite(files, lambda tensors: {name: t for name, t in tensors.items() if not name.startswith("sop_")})
    stored, model = load_file(files.weights), load_generator(files)
    written = to_stock(model.state_dict())
    assert model.sentence_order is None
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())
