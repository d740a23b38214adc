"""Models loaded from stock folders have the outputs of their stock class."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.hub.find import ModelFiles
from electra_albert.hub.formats import NATIVE, for_order_head, from_file, to_native, to_stock
from electra_albert.hub.load import build, load_task_model, locate, read_stored
from electra_albert.hub.onnx import outputs
from electra_albert.model.electra import Discriminator, Generator
from electra_albert.model.encoder import EncoderModel
from electra_albert.model.task_model import TaskModel
from tests.hub.models import FORMS, assert_same_tensors, config_of, make
from tests.model.twins import SHAPE, assert_same_outputs, padded_batch
from tests.refusals import assert_refused, rows

Tensors = dict[str, Tensor]
WEIGHTS = "model.safetensors"
CASES: dict[type[Any], str] = {
    EncoderModel: "albert AlbertModel, bert BertModel, electra ElectraModel, wide ElectraModel",
    Generator: "albert AlbertForMaskedLM, albert AlbertForPreTraining, bert BertForMaskedLM, "
    "bert BertForPreTraining, electra ElectraForMaskedLM",
    Discriminator: "electra ElectraForPreTraining",
    TaskModel: "albert AlbertForSequenceClassification, albert AlbertForQuestionAnswering, "
    "albert AlbertForMultipleChoice, albert AlbertForTokenClassification, "
    "bert BertForSequenceClassification, electra ElectraForTokenClassification",
}
DECODERS = {"albert": "predictions.decoder", "electra": "generator_lm_head"}


def load(files: ModelFiles, model_class: Any = Generator) -> Any:
    if model_class is TaskModel:
        return load_task_model(files)[0]
    return build(read_stored(files), model_class)


def save(model: Any, folder: Path) -> ModelFiles:
    """Save a stock model with save_pretrained."""
    model.save_pretrained(folder)
    return ModelFiles(folder / WEIGHTS, folder / "config.json", folder)


@torch.no_grad()
def assert_parity(ours: Any, theirs: Any) -> None:
    """Assert equal outputs for full, padded and interrupted masks, in float32 and float64."""
    ids, padded, segments = padded_batch()[:3]
    holes = padded & (ids % 3 != 1)
    holes[:, 0] = True
    is_choice = type(theirs).__name__.endswith("MultipleChoice")
    masks = (torch.ones_like(padded), padded, holes)
    for dtype, mask in itertools.product((torch.float32, torch.float64), masks):
        actual = outputs(ours.to(dtype), ids, mask, segments)
        actual["prediction_logits"] = actual.get("logits")
        inputs = (ids, mask.long(), segments)
        expected = theirs.to(dtype)(*(values[None] if is_choice else values for values in inputs))
        # BERT's next-sentence head is not supported.
        names = expected.keys() - {"seq_relationship_logits"}
        assert names
        for name in names:
            assert_same_outputs(actual[name].view(expected[name].shape), expected[name])


def rewrite(files: ModelFiles, change: Callable[[Tensors], Tensors]) -> ModelFiles:
    tensors = change(load_file(files.weights))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, files.weights)
    return files


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind in CASES for case in CASES[kind].split(", ")]
)
def test_model_of_a_stock_folder_has_the_outputs_of_its_stock_class(
    kind: Any, case: str, tmp_path: Path
) -> None:
    theirs = make(*case.split())
    ours = load(save(theirs, tmp_path), kind)
    assert not any(part.training for part in ours.modules())
    assert_parity(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_are_read_as_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = make("albert", "AlbertForMaskedLM").to(dtype)
    files = save(theirs, tmp_path)
    pickled = tmp_path / "pytorch_model.bin"
    torch.save(theirs.state_dict(), pickled)
    for weights in (files.weights, pickled):
        ours = load(files._replace(weights=weights))
        assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    assert_parity(ours, theirs.float())


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): tensors[name] for name in tensors}


POSITIONS = {"electra.embeddings.position_ids": torch.arange(SHAPE.max_position_embeddings)[None]}
OLD_NAMES = {
    "albert, 2019": renamed("Norm.weight", "Norm.gamma"),
    "albert, 2019, biases": renamed("Norm.bias", "Norm.beta"),
    "electra, transformers 3": lambda tensors: tensors | POSITIONS,
    "electra, the encoder alone": renamed("electra.", ""),
}


@pytest.mark.parametrize("case", OLD_NAMES)
def test_old_parameter_names_are_read(case: str, tmp_path: Path) -> None:
    family = case.split(",")[0]
    theirs = make(family, f"{family.capitalize()}ForMaskedLM")
    files = save(theirs, tmp_path)
    before = load_file(files.weights).keys()
    assert load_file(rewrite(files, OLD_NAMES[case]).weights).keys() != before
    assert_parity(load(files), theirs)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_sharded_weights_are_read(form: str, tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM")
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    if form == "bin":
        for old in tmp_path.glob("*.safetensors*"):
            old.unlink()
        state = theirs.state_dict()  # with tied weights and buffers, unlike a safetensors file
        files = {name: f"part{number % 2}.bin" for number, name in enumerate(sorted(state))}
        for part in set(files.values()):
            tensors = {name: state[name] for name in files if files[name] == part}
            torch.save(tensors, tmp_path / part)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    assert len([*tmp_path.glob(f"*.{form}")]) > 1
    assert_parity(load(locate(tmp_path, "generator")), theirs)


@pytest.mark.parametrize("family", DECODERS)
def test_untied_decoder_is_refused_by_name(family: str, tmp_path: Path) -> None:
    files = save(make(family, f"{family.capitalize()}ForMaskedLM"), tmp_path)
    decoder = f"{DECODERS[family]}.weight"
    table = f"{family}.embeddings.word_embeddings.weight"
    # An equal copy is accepted.
    load(rewrite(files, lambda tensors: {**tensors, decoder: tensors[table].clone()}))
    rewrite(files, lambda tensors: {**tensors, decoder: tensors[decoder] * (1 + 1e-6)})
    assert_refused("CheckpointError", "decoder", load, files)


@pytest.mark.parametrize(
    "case", ["SequenceClassification classifier.dense", "MultipleChoice sequence_summary"]
)
def test_unsupported_head_is_refused_and_its_encoder_is_read(case: str, tmp_path: Path) -> None:
    name, word = case.split()
    theirs = make("electra", f"ElectraFor{name}")
    files = save(theirs, tmp_path)
    assert_refused("CheckpointError", word, load_task_model, files)
    assert any(word in head for head in read_stored(files).unsupported_heads)
    assert_parity(load(files, EncoderModel), theirs.electra)


def test_activation_is_that_of_the_configuration_or_refused(tmp_path: Path) -> None:
    theirs = make("bert", "BertForMaskedLM", config_of("bert", hidden_act="relu"))
    assert_parity(load(save(theirs, tmp_path / "bert")), theirs)
    # Stock ELECTRA computes its MLM head with gelu for every hidden_act.
    other = make("electra", "ElectraForMaskedLM", config_of("electra", hidden_act="relu"))
    assert_refused("CheckpointError", "relu", load, save(other, tmp_path / "other"))


def test_a_pooler_without_an_order_head_is_saved_again_bitwise(tmp_path: Path) -> None:
    # Regression: released ALBERT models, which have no order classifier, lost their pooler as a
    # generator.
    files = save(make("albert", "AlbertForPreTraining"), tmp_path)
    rewrite(files, lambda tensors: {k: t for k, t in tensors.items() if not k.startswith("sop_")})
    model = load(files)
    assert model.sentence_order is None
    assert_same_tensors(to_stock(model.state_dict()), load_file(files.weights))


GROUPED = replace(SHAPE, num_hidden_groups=2, inner_group_num=2)


@pytest.mark.parametrize("name", FORMS)
def test_stock_and_native_names_round_trip_bitwise(name: str) -> None:
    model = FORMS[name].make(GROUPED)
    state = dict(model.state_dict())
    for family, tensors in (("albert", to_stock(state)), (NATIVE, to_native(state))):
        actual, _ = from_file(tensors, family, GROUPED, "file")
        assert "sentence_order.pooler.weight" not in actual
        if getattr(model, "sentence_order", None) is not None:
            actual = for_order_head(actual)
        assert_same_tensors(actual, state)


# Names of tensors that no ALBERT model has, and their sizes; GROUP is that of a block's attention.
UNKNOWN = """
GROUP.0.albert_layers.0.attention.key.evil | 3
GROUP.0.albert_layers.0.attention.qkv.bias | 63
GROUP.9.albert_layers.0.attention.key.bias | 21
encoder.embedding_hidden_mapping_in.bias   | 21
predictions.extra                          | 3
"""


def test_unknown_or_duplicate_tensor_is_refused_by_name(tmp_path: Path) -> None:
    files = save(make("albert", "AlbertForMaskedLM"), tmp_path)
    valid = load_file(files.weights)
    wrong = {"predictions.bias": torch.zeros(SHAPE.vocab_size, dtype=torch.int64)}
    for name, size in rows(UNKNOWN.replace("GROUP", "albert.encoder.albert_layer_groups")):
        wrong[name] = torch.zeros(int(size))
    for name, tensor in wrong.items():
        save_file({**valid, name: tensor}, files.weights)
        assert_refused("CheckpointError", name.removeprefix("albert."), load, files)
