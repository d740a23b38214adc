"""The exported folders are stock ones: names, keys, tokenizer, and the numbers transformers computes from them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from electra_albert.apps.export import main as export
from electra_albert.apps.export.models import export_generator
from electra_albert.contracts import CheckpointError
from electra_albert.corpus.tokenizer import load_tokenizer
from electra_albert.hub import names as huggingface
from electra_albert.hub.load import load_generator, locate
from electra_albert.hub.weights import DIGEST
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call
from tests.apps.tiny_stock import write_stock

CONFIG_KEYS = (
    "architectures attention_probs_dropout_prob bos_token_id classifier_dropout_prob dtype embedding_size eos_token_id "
    "hidden_act hidden_dropout_prob hidden_size initializer_range inner_group_num intermediate_size layer_norm_eps "
    "max_position_embeddings model_type num_attention_heads num_hidden_groups num_hidden_layers pad_token_id "
    "tie_word_embeddings type_vocab_size vocab_size"
)
LAYER = "encoder.albert_layer_groups.0.albert_layers.0."
WITH_BIAS = (
    "embeddings.LayerNorm",
    "encoder.embedding_hidden_mapping_in",
    *(LAYER + name for name in ("full_layer_layer_norm", "attention.LayerNorm", "ffn", "ffn_output")),
    *(f"{LAYER}attention.{name}" for name in ("query", "key", "value", "dense")),
)
TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
BODY = {f"albert.embeddings.{name}.weight" for name in TABLES}
BODY |= {f"albert.{name}.{part}" for name in WITH_BIAS for part in ("weight", "bias")}
HEADS = {
    "generator": {"predictions.bias"}
    | {f"predictions.{name}.{part}" for name in ("LayerNorm", "dense") for part in ("weight", "bias")},
    "discriminator": {
        f"discriminator_predictions.{name}.{part}"
        for name in ("dense", "dense_prediction")
        for part in ("weight", "bias")
    },
}
NASTY = (
    "Plain words, and 9,000 of them.",
    "Ünïcode Ärger naïve ﬁ ½ İstanbul",
    "``quoted'' text  with   spaces\tand a tab",
    "漢字かな 😀 \u200b\u00ad x\u0301",
    "[MASK] [CLS] <pad> <unk> [mask]",
    "",
)


@pytest.mark.parametrize("kind", HEADS)
def test_tensor_names_are_the_stock_ones(finished: Finished, kind: str) -> None:
    from safetensors import safe_open

    with safe_open(str(finished.folder / kind / "model.safetensors"), "pt") as file:
        assert set(file.keys()) == BODY | HEADS[kind]
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
        assert file.metadata().keys() == {"format", DIGEST}


@pytest.mark.parametrize(
    ("kind", "architecture"), [("generator", "AlbertForMaskedLM"), ("discriminator", "AlbertModel")]
)
def test_config_holds_the_stock_keys_only(finished: Finished, kind: str, architecture: str) -> None:
    config = json.loads((finished.folder / kind / "config.json").read_text())
    assert config.keys() == set(CONFIG_KEYS.split())
    assert [config["model_type"], config["architectures"]] == ["albert", [architecture]]
    assert [config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]] == [0, 2, 3]


def test_generator_loads_in_stock_transformers_without_a_key_too_many_or_too_few(finished: Finished) -> None:
    from transformers import AlbertForMaskedLM, AutoModelForMaskedLM

    model, report = AutoModelForMaskedLM.from_pretrained(str(finished.folder / "generator"), output_loading_info=True)
    assert type(model) is AlbertForMaskedLM
    assert {name: keys for name, keys in report.items() if keys} == {}
    assert model.predictions.decoder.weight.data_ptr() == model.albert.embeddings.word_embeddings.weight.data_ptr()


def test_discriminator_loads_in_stock_transformers_but_for_its_head_and_the_pooler(finished: Finished) -> None:
    from transformers import AutoModel

    _, report = AutoModel.from_pretrained(str(finished.folder / "discriminator"), output_loading_info=True)
    assert set(report["missing_keys"]) == {"pooler.weight", "pooler.bias"}
    assert set(report["unexpected_keys"]) == HEADS["discriminator"]
    assert not report["mismatched_keys"]


@pytest.mark.parametrize("kind", HEADS)
def test_tokenizer_of_an_exported_folder_gives_the_runs_ids_and_segments(finished: Finished, kind: str) -> None:
    from transformers import AutoTokenizer

    stock, ours = (
        AutoTokenizer.from_pretrained(str(finished.folder / kind)),
        load_tokenizer(finished.folder / "tokenizer"),
    )
    for text in NASTY:
        assert stock(text)["input_ids"] == ours(text)["input_ids"], text
    pair = stock("The owl left.", "A lamp fell.")
    assert pair.keys() == {"input_ids", "token_type_ids", "attention_mask"}
    first = pair["input_ids"].index(stock.sep_token_id) + 1
    assert pair["token_type_ids"] == [0] * first + [1] * (len(pair["input_ids"]) - first)
    assert stock.model_max_length == 64


@pytest.mark.parametrize("kind", HEADS)
def test_export_writes_the_stock_folder_into_output_dir_itself(finished: Finished, tmp_path: Path, kind: str) -> None:
    ended = call(export.main, "--model", finished.folder, "--kind", kind, "--output_dir", tmp_path / "a" / "b")
    assert ended.code == 0, ended.err
    written = {path.name: path.read_bytes() for path in (tmp_path / "a" / "b").iterdir()}
    run = {path.name: path.read_bytes() for path in (finished.folder / kind).iterdir()}
    assert {**written, "README.md": run["README.md"]} == run  # whose card has the scores of the run
    assert set(written) == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def test_a_pt_file_holds_plain_tensors_and_the_same_numbers(finished: Finished, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ended = call(export.main, "--model", finished.folder, "--output_dir", tmp_path, "--format", "pt")
    assert ended.code == 0, ended.err
    assert not (tmp_path / "model.safetensors").exists()
    tensors = torch.load(tmp_path / "weights.pt", weights_only=True)
    wanted = load_file(str(finished.folder / "generator" / "model.safetensors"))
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())


def test_a_folder_that_transformers_reads_otherwise_is_never_called_done(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: query and key change places in the file. All names and shapes are right."""
    to_stock = huggingface.to_stock

    def swapped(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = {"query": "key", "key": "query"}
        return {
            re.sub("query|key", lambda found: names[found[0]], name): tensor for name, tensor in to_stock(state).items()
        }

    monkeypatch.setattr(huggingface, "to_stock", swapped)
    generator = load_generator(locate(finished.folder, "generator"))
    with torch.no_grad():
        for name, parameter in generator.named_parameters():  # at the start all heads look alike
            if "qkv" in name:
                parameter.mul_(100)
    with pytest.raises(CheckpointError, match="transformers computes other values"):
        export_generator(generator, load_tokenizer(finished.folder / "tokenizer"), tmp_path / "out")


def test_export_refuses_to_write_over_what_it_reads(finished: Finished) -> None:
    folder = finished.folder / "generator"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert_refused(call(export.main, "--model", folder, "--output_dir", folder), 2, "choose another --output_dir")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(("rows_less", "code"), [(1, 4), (0, 0), (-1, 0)])
def test_a_tokenizer_may_have_fewer_pieces_than_the_model_never_more(
    finished: Finished, tmp_path: Path, rows_less: int, code: int
) -> None:
    pieces = len(load_tokenizer(finished.folder / "generator"))
    write_stock(tmp_path / "stock", "AlbertForMaskedLM", vocab_size=pieces - rows_less)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(finished.folder / "generator" / name, tmp_path / "stock")
    ended = call(export.main, "--model", tmp_path / "stock", "--output_dir", tmp_path / "out")
    assert ended.code == code, ended.err
    if code:
        assert_refused(ended, code, f"has {pieces} pieces, the model {pieces - 1}")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "kind", "left_aside"),
    [
        ("BertForPreTraining", "generator", "cls.seq_relationship"),
        ("AlbertForPreTraining", "encoder", "predictions, sop_classifier"),
        ("AlbertForPreTraining", "generator", ""),
        ("ElectraForPreTraining", "encoder", "discriminator_predictions"),
        ("ElectraForPreTraining", "discriminator", ""),
        ("AlbertForTokenClassification", "task", ""),
    ],
)
def test_heads_that_the_kind_has_no_place_for_are_said(tmp_path: Path, name: str, kind: str, left_aside: str) -> None:
    write_stock(tmp_path / "stock", name)
    ended = call(export.main, "--model", tmp_path / "stock", "--kind", kind, "--output_dir", tmp_path / "out")
    assert ended.code == 0, ended.err
    notice = f"notice: left aside, as --kind {kind} has no place for it: {left_aside}\n"
    assert ended.err == (notice if left_aside else "")


def test_heads_beside_that_of_the_task_are_said(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_stock(tmp_path / "stock", "AlbertForTokenClassification")
    write_stock(tmp_path / "other", "AlbertForMaskedLM")
    other = load_file(tmp_path / "other" / "model.safetensors")
    heads = {name: tensor for name, tensor in other.items() if name.startswith("predictions.")}
    weights = tmp_path / "stock" / "model.safetensors"
    save_file({**load_file(weights), **heads}, weights, metadata={"format": "pt"})
    ended = call(export.main, "--model", tmp_path / "stock", "--kind", "task", "--output_dir", tmp_path / "out")
    assert (ended.code, ended.err) == (0, "notice: left aside, as --kind task has no place for it: predictions\n")
