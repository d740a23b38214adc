"""The same weights in every form files come in: old names, no prefix, several files, pickles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from electra_albert.contracts import CheckpointError
from electra_albert.hub.load import ModelFiles, load_generator, locate
from electra_albert.hub.weights import all_files
from tests.model.stock_models import make, save
from tests.model.test_relatives import CASES, assert_parity, ids, of_generator
from tests.model.twins import SHAPE

Tensors = dict[str, Tensor]
FAMILIES = {
    "albert": "AlbertForMaskedLM",
    "bert": "BertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "electra of one width": "ElectraForMaskedLM",
}
DECODERS = {"albert": "predictions.decoder", "bert": "cls.predictions.decoder", "electra": "generator_lm_head"}
TABLES = {family: f"{family}.embeddings.word_embeddings.weight" for family in DECODERS}


def with_old_names(tensors: Tensors) -> Tensors:
    """As files of 2019 name a LayerNorm's vectors."""
    endings = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    for new, old in endings:
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    return tensors


def with_counters(tensors: Tensors) -> Tensors:
    """As files of transformers 3 hold them."""
    family = next(iter(tensors)).split(".")[0]
    return {**tensors, f"{family}.embeddings.position_ids": torch.arange(SHAPE.max_position_embeddings)[None]}


def rewrite(files: ModelFiles, change: Callable[[Tensors], Tensors]) -> None:
    save_file(change(load_file(files.weights)), files.weights, metadata={"format": "pt"})


@pytest.mark.parametrize("change", [with_old_names, with_counters])
@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_older_files_are_read(family: str, change: Callable[[Tensors], Tensors], tmp_path: Path) -> None:
    theirs = make(family, FAMILIES[family])
    files = save(theirs, tmp_path)
    before = load_file(files.weights)
    rewrite(files, lambda tensors: change(dict(sorted(tensors.items()))))
    assert load_file(files.weights).keys() != before.keys()
    assert_parity(load_generator(files), theirs, of_generator)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_prefix_of_the_family_may_be_missing(case: tuple[str, str], tmp_path: Path) -> None:
    theirs = make(*case)
    files, (load, outputs) = save(theirs, tmp_path), CASES[case]
    prefix = f"{theirs.base_model_prefix}."
    rewrite(files, lambda tensors: {name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    assert not any(name.startswith(prefix) for name in load_file(files.weights))
    assert_parity(load(files), theirs, outputs)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_model_in_several_files_is_that_of_one(case: tuple[str, str], tmp_path: Path) -> None:
    theirs = make(*case)
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    files = locate(tmp_path, "generator")
    assert files.weights.name == "model.safetensors.index.json"
    assert len(all_files(files.weights)) > 2
    load, outputs = CASES[case]
    assert_parity(load(files), theirs, outputs)


@pytest.mark.parametrize("in_several", [False, True])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_pickled_state_dict_with_its_tied_decoder_is_read(
    case: tuple[str, str], in_several: bool, tmp_path: Path
) -> None:
    theirs = make(*case)
    files = save(theirs, tmp_path)
    files.weights.unlink()
    state = theirs.state_dict()  # with the ties and the counters that a safetensors file lacks
    names = sorted(state)
    parts = [names[::2], names[1::2]] if in_several else [names]
    places = {name: f"pytorch_model-{number}.bin" for number, part in enumerate(parts) for name in part}
    for number, part in enumerate(parts):
        file = f"pytorch_model-{number}.bin" if in_several else "pytorch_model.bin"
        torch.save({name: state[name] for name in part}, tmp_path / file)
    if in_several:
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    load, outputs = CASES[case]
    assert_parity(load(locate(tmp_path, "generator")), theirs, outputs)


@pytest.mark.parametrize("family", DECODERS)
def test_decoder_that_is_not_the_token_table_is_refused_by_name(family: str, tmp_path: Path) -> None:
    files = save(make(family, FAMILIES[family]), tmp_path)
    decoder = f"{DECODERS[family]}.weight"
    rewrite(files, lambda tensors: {**tensors, decoder: tensors[TABLES[family]].clone()})
    load_generator(files)  # the same numbers a second time are no reason
    rewrite(files, lambda tensors: {**tensors, decoder: tensors[decoder] * (1 + 1e-6)})
    with pytest.raises(CheckpointError, match="decoder") as refused:
        load_generator(files)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_decoder_bias_of_its_own_is_the_one_stock_adds(family: str, tmp_path: Path) -> None:
    theirs = make(family, FAMILIES[family])
    files = save(theirs, tmp_path)
    rewrite(files, lambda tensors: {**tensors, f"{DECODERS[family]}.bias": torch.linspace(-3, 3, SHAPE.vocab_size)})
    again = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_parity(load_generator(files), again, of_generator)
