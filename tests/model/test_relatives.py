"""Stock ALBERT, BERT and ELECTRA folders of every class give here what the stock class computes from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from electra_albert.contracts import Batch, CheckpointError
from electra_albert.hub.names import to_stock
from electra_albert.hub.load import (
    ModelFiles,
    load_body,
    load_discriminator,
    load_generator,
    load_task_model,
    read_stored,
)
from electra_albert.hub.config import stock_config
from electra_albert.hub.weights import write_safetensors
from tests.model.stock_models import batches, body_of, config_of, make, save, stock_outputs
from tests.model.twins import SPECIAL_IDS, assert_same_outputs

Outputs = Callable[[Any, Batch], dict[str, Tensor]]


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
    **{
        (family, f"Electra{name}"): loaded
        for family in ("electra", "electra of one width")
        for name, loaded in {
            "Model": (load_body, of_body),
            "ForMaskedLM": (load_generator, of_generator),
            "ForPreTraining": (load_discriminator, of_discriminator),
            "ForTokenClassification": (load_task, of_task),
            "ForQuestionAnswering": (load_task, of_task),
        }.items()
    },
}
UNREADABLE = [
    (family, f"Electra{name}", word)
    for family in ("electra", "electra of one width")
    for name, word in (("ForSequenceClassification", "classifier.dense"), ("ForMultipleChoice", "sequence_summary"))
]


def ids(case: tuple[str, ...]) -> str:
    return f"{case[1]} of {case[0]}"


def precisions(*models: nn.Module) -> Iterator[None]:
    """The models as they are, in float32, then in float64."""
    yield
    for model in models:
        model.double()
    yield


def assert_parity(ours: nn.Module, theirs: Any, outputs: Outputs) -> None:
    """AssertionError unless both compute the same under every mask, in float32 and in float64."""
    for _ in precisions(ours, theirs):
        for batch in batches():
            found, wanted = outputs(ours, batch), stock_outputs(theirs, batch)
            assert found.keys() <= wanted.keys()
            for name, tensor in found.items():
                assert_same_outputs(tensor, wanted[name])


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_model_of_a_stock_folder_computes_what_its_stock_class_does(case: tuple[str, str], tmp_path: Path) -> None:
    (family, name), (load, outputs) = case, CASES[case]
    theirs = make(family, name)
    ours = load(save(theirs, tmp_path))
    assert not ours.training
    assert_parity(ours, theirs, outputs)


@pytest.mark.parametrize("case", [*CASES, *(case[:2] for case in UNREADABLE)], ids=ids)
def test_encoder_of_any_stock_class_is_taken_on_its_own(case: tuple[str, str], tmp_path: Path) -> None:
    theirs = make(*case)
    ours = load_body(save(theirs, tmp_path))
    assert (ours.pooler is None) == (getattr(body_of(theirs), "pooler", None) is None)
    assert_parity(ours, body_of(theirs), of_body)


@pytest.mark.parametrize("name", ["BertModel", "AlbertModel"])
def test_encoder_without_a_pooler_has_none_here(name: str, tmp_path: Path) -> None:
    theirs = make(name[:-5].lower(), name, add_pooling_layer=False)
    ours = load_body(save(theirs, tmp_path))
    assert ours.pooler is None
    assert_parity(ours, theirs, of_body)


@pytest.mark.parametrize("case", UNREADABLE, ids=ids)
def test_head_that_is_not_computed_here_is_refused_by_name_and_told_with_the_encoder(
    case: tuple[str, str, str], tmp_path: Path
) -> None:
    files = save(make(*case[:2]), tmp_path)
    with pytest.raises(CheckpointError, match=case[2]) as refused:
        load_task_model(files)
    assert "\n" not in str(refused.value)
    assert any(case[2] in name for name in read_stored(files).left_aside)


def test_next_sentence_head_of_bert_is_left_aside_and_told(tmp_path: Path) -> None:
    stored = read_stored(save(make("bert", "BertForPreTraining"), tmp_path))
    assert sorted(stored.left_aside) == ["cls.seq_relationship"]
    assert stored.has_mlm_head
    assert stored.has_pooler


@pytest.mark.parametrize("name", ["gelu_new", "relu", "gelu"])
@pytest.mark.parametrize("case", [("bert", "BertForMaskedLM"), ("electra", "ElectraForPreTraining")], ids=ids)
def test_activation_is_the_one_the_configuration_names(case: tuple[str, str], name: str, tmp_path: Path) -> None:
    load, outputs = CASES[case]
    theirs = make(*case, config_of(case[0], hidden_act=name))
    assert_parity(load(save(theirs, tmp_path)), theirs, outputs)


@pytest.mark.parametrize("name", ["gelu_new", "relu"])
def test_mlm_head_of_electra_is_refused_where_its_encoder_has_another_activation(name: str, tmp_path: Path) -> None:
    # Stock computes this head with gelu whatever the configuration says.
    theirs = make("electra", "ElectraForMaskedLM", config_of("electra", hidden_act=name))
    files = save(theirs, tmp_path)
    with pytest.raises(CheckpointError, match=name):
        load_generator(files)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_regression_and_classification_of_bert_are_told_apart(count: int, tmp_path: Path) -> None:
    theirs = make("bert", "BertForSequenceClassification", config_of("bert", num_labels=count))
    model, details = load_task_model(save(theirs, tmp_path))
    assert details["is_regression"] is (count == 1)
    assert len(details["labels"]) == (0 if count == 1 else count)
    assert_parity(model, theirs, of_task)


@pytest.mark.parametrize(
    "case", [("bert", "BertModel"), ("electra", "ElectraModel"), ("electra of one width", "ElectraModel")], ids=ids
)
def test_relative_exported_as_albert_gives_stock_albert_the_same_outputs(case: tuple[str, str], tmp_path: Path) -> None:
    from transformers import AlbertModel

    theirs = make(*case)
    body = load_body(save(theirs, tmp_path / "in"))
    (tmp_path / "out").mkdir()
    write_safetensors(to_stock(body.state_dict()), tmp_path / "out/model.safetensors")
    contents = stock_config(body.config, "AlbertModel", SPECIAL_IDS)
    (tmp_path / "out/config.json").write_text(json.dumps(contents))
    albert, report = AlbertModel.from_pretrained(
        tmp_path / "out", add_pooling_layer=body.pooler is not None, output_loading_info=True
    )
    assert {kind: keys for kind, keys in report.items() if keys} == {}
    for _ in precisions(albert, theirs):
        for batch in batches():
            found, wanted = stock_outputs(albert.eval(), batch), stock_outputs(theirs, batch)
            assert found.keys() == wanted.keys()
            for name, tensor in found.items():
                assert_same_outputs(tensor, wanted[name])


V1 = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_dropout_prob": 0.1,
    "down_scale_factor": 1,
    "gap_size": 0,
    "net_structure_type": 0,
    "num_memory_blocks": 0,
    "output_past": True,
    "classifier_dropout_prob": 0.1,
}
V2 = {**V1, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0}


@pytest.mark.parametrize("keys", [V1, V2], ids=["v1", "v2"])
def test_keys_of_released_configurations_that_mean_nothing_are_tolerated(keys: dict[str, Any], tmp_path: Path) -> None:
    theirs = make("albert", "AlbertForPreTraining")
    files = save(theirs, tmp_path)
    contents = json.loads(files.config.read_text())
    files.config.write_text(json.dumps({**contents, **keys}))
    model = load_generator(files)
    assert model.config.hidden_dropout_prob == keys["hidden_dropout_prob"]
    assert_parity(model, theirs, of_generator)


def test_comparison_sees_two_projections_that_changed_places(tmp_path: Path) -> None:
    # Planted: key and value of one layer of the stock model change places before it is saved.
    theirs = make("bert", "BertModel")
    files = save(theirs, tmp_path)
    attention = theirs.encoder.layer[1].attention.self
    attention.key, attention.value = attention.value, attention.key
    with pytest.raises(AssertionError, match=r"^\d"), torch.no_grad():
        assert_parity(load_body(files), theirs, of_body)
