"""Generator and discriminator in one half-precision file: rounded weights and nothing else come back, shared once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from electra_albert.config import ModelConfig
from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub.config import stock_config
from electra_albert.hub.load import (
    ModelFiles,
    body_of,
    discriminator_of,
    generator_of,
    is_detector,
    load_discriminator,
    load_generator,
    locate,
    locate_encoder,
    read_each,
    read_stored,
)
from electra_albert.hub.names import to_stock
from electra_albert.hub.pair_file import PAIR_FILE, join, write_pair
from electra_albert.hub.weights import write_safetensors
from electra_albert.model.electra import Electra
from electra_albert.presets import PRESETS
from tests.hub.hostile_files import UNREADABLE
from tests.model.twins import SHAPE, SPECIAL_IDS, make_pair, padded_batch

TABLE = "embeddings.word_embeddings.weight"
MAPPING = "generator.encoder.embedding_hidden_mapping_in.weight"
LARGEST_BYTES = 10_000_000  # of a pair of the size that ships
Tensors = dict[str, Tensor]


def plain(model: torch.nn.Module) -> Tensors:
    """Weights under stock names without `albert.`, as `join` takes them."""
    return {name.removeprefix("albert."): tensor for name, tensor in to_stock(model.state_dict()).items()}


def joined(pair: Electra) -> Tensors:
    return join(plain(pair.generator), plain(pair.discriminator), "the pair")


def write_folder(folder: Path, tensors: Tensors, shape: ModelConfig = SHAPE) -> Path:
    """A pair's folder without its tokenizer, which loading weights does not look at."""
    for part, architecture in (("generator", "AlbertForMaskedLM"), ("discriminator", "AlbertModel")):
        (folder / part).mkdir(parents=True, exist_ok=True)
        config = stock_config(shape, architecture, SPECIAL_IDS)
        (folder / part / "config.json").write_text(json.dumps(config))
    write_pair(tensors, folder / PAIR_FILE)
    return folder


@pytest.fixture
def pair() -> Electra:
    return make_pair(SHAPE)


@pytest.fixture
def folder(tmp_path: Path, pair: Electra) -> Path:
    return write_folder(tmp_path / "shipped", joined(pair))


def both(folder: Path) -> list[ModelFiles]:
    return [locate(folder, "generator"), locate(folder, "discriminator")]


@pytest.mark.parametrize("with_sentence_order", [False, True])
def test_what_is_read_is_every_weight_rounded_once(tmp_path: Path, with_sentence_order: bool) -> None:
    pair = make_pair(SHAPE, with_sentence_order=with_sentence_order)
    found = [read_stored(files) for files in both(write_folder(tmp_path, joined(pair)))]
    for stored, model in zip(found, (pair.generator, pair.discriminator), strict=True):
        wanted = {name: tensor.half().float() for name, tensor in plain(model).items()}
        assert stored.tensors.keys() == wanted.keys()
        assert all(torch.equal(stored.tensors[name], wanted[name]) for name in wanted)
        assert any(not torch.equal(tensor, plain(model)[name]) for name, tensor in wanted.items())  # it does round


def test_both_models_give_what_the_rounded_ones_give(folder: Path, pair: Electra) -> None:
    models = load_generator(locate(folder, "generator")), load_discriminator(locate(folder, "discriminator"))
    with torch.no_grad():
        for parameter in pair.parameters():
            parameter.copy_(parameter.half().float())
        batch = padded_batch()
        rows = batch.input_ids, batch.attention_mask, batch.token_type_ids
        for loaded, model in zip(models, (pair.generator, pair.discriminator), strict=True):
            assert torch.equal(loaded(*rows), model(*rows))


def test_tables_that_were_tied_are_one_storage_again(folder: Path) -> None:
    of_generator, of_discriminator = read_each(both(folder))
    generator, discriminator = generator_of(of_generator, "g"), discriminator_of(of_discriminator, "d")
    tables = zip(generator.embeddings.parameters(), discriminator.embeddings.parameters(), strict=True)
    assert all(one.data_ptr() == other.data_ptr() for one, other in tables)
    mappings = [model.encoder.embedding_hidden_mapping_in.weight for model in (generator, discriminator)]
    assert mappings[0].data_ptr() != mappings[1].data_ptr()


def test_a_file_takes_two_bytes_for_every_parameter_and_its_header(folder: Path, pair: Electra) -> None:
    content = (folder / PAIR_FILE).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    assert len(content) == header + 2 * sum(parameter.numel() for parameter in pair.parameters())


def test_a_pair_of_the_small_preset_takes_less_than_ten_megabytes(tmp_path: Path) -> None:
    sizes = PRESETS["small"]
    pair = Electra(sizes.rtd.generator(sizes.model), sizes.model)
    write_pair(joined(pair), tmp_path / PAIR_FILE)
    assert 0.9 * LARGEST_BYTES < (tmp_path / PAIR_FILE).stat().st_size < LARGEST_BYTES


def test_the_same_weights_give_the_same_bytes(tmp_path: Path, pair: Electra) -> None:
    files = [write_folder(tmp_path / name, joined(pair)) / PAIR_FILE for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()


# Where it is found.


@pytest.mark.parametrize("named", ["", PAIR_FILE])
def test_folder_and_file_mean_the_part_that_is_asked_for(folder: Path, named: str) -> None:
    path = folder / named
    parts = [locate(path, "generator"), locate(path, "discriminator"), locate_encoder(path)]
    assert [files.part for files in parts] == ["generator", "discriminator", "discriminator"]
    assert {files.weights for files in parts} == {folder / PAIR_FILE}
    assert [files.config.parent.name for files in parts] == [files.part for files in parts]
    assert {files.tokenizer for files in parts} == {folder}


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_folder_of_a_configuration_means_its_own_model(folder: Path, part: str) -> None:
    assert [locate(folder / part, "generator").part, locate_encoder(folder / part).part] == [part, part]


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_it_does_so_by_whatever_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    (tmp_path / "link").symlink_to(folder / part)
    assert locate_encoder(tmp_path / "link").part == part
    monkeypatch.chdir(folder / part)
    assert [locate_encoder(Path(name)).part for name in (".", f"../{part}")] == [part, part]


def test_a_model_of_its_own_in_such_a_folder_comes_first(folder: Path, pair: Electra) -> None:
    write_safetensors(to_stock(pair.generator.state_dict()), folder / "generator" / "model.safetensors")
    assert locate(folder / "generator", "generator").weights.name == "model.safetensors"


def test_the_encoder_is_the_detectors(folder: Path) -> None:
    files = locate_encoder(folder)
    assert is_detector(files)
    assert not is_detector(locate(folder, "generator"))
    body = body_of(read_stored(files), "x")
    assert torch.equal(body.encoder.embedding_hidden_mapping_in.weight, mapping_of(folder, "discriminator"))


def mapping_of(folder: Path, part: str) -> Tensor:
    return load_file(folder / PAIR_FILE)[MAPPING.replace("generator", part)].float()


def test_a_fine_tuned_model_is_not_looked_for_in_a_pair(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no fine-tuned model; name a folder that Finetuning\.py wrote"):
        locate(folder, "model")


def test_a_fine_tuned_model_beside_a_pair_is_found(folder: Path, pair: Electra) -> None:
    (folder / "model").mkdir()
    shutil.copy(folder / "generator" / "config.json", folder / "model")
    write_safetensors(to_stock(pair.generator.state_dict()), folder / "model" / "model.safetensors")
    assert locate(folder, "model").weights == folder / "model" / "model.safetensors"


def test_a_missing_configuration_is_named(folder: Path) -> None:
    (folder / "discriminator" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"discriminator/config\.json does not exist"):
        locate(folder, "discriminator")


# What is refused.


def refusal(call: Callable[[], object]) -> str:
    """What a CheckpointError says, in one printable line."""
    with pytest.raises(CheckpointError) as raised:
        call()
    assert str(raised.value).isprintable()
    return str(raised.value)


@pytest.mark.parametrize("name", UNREADABLE)
def test_damaged_file_is_refused(folder: Path, name: str) -> None:
    UNREADABLE[name](folder / PAIR_FILE)
    assert PAIR_FILE in refusal(lambda: read_each(both(folder)))


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_flipped_bit_is_seen(folder: Path, place: float) -> None:
    whole = bytearray((folder / PAIR_FILE).read_bytes())
    data = 8 + int.from_bytes(whole[:8], "little")
    whole[data + int(place * (len(whole) - data - 1))] ^= 1
    (folder / PAIR_FILE).write_bytes(whole)
    assert "its hash is another" in refusal(lambda: read_each(both(folder)))


CHANGES: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "float32": (lambda t: t.update({MAPPING: t[MAPPING].float()}), "is float32, only float16 is read"),
    "bfloat16": (lambda t: t.update({TABLE: t[TABLE].bfloat16()}), "is bfloat16, only float16 is read"),
    "whole numbers": (lambda t: t.update({TABLE: t[TABLE].to(torch.int16)}), "holds whole numbers"),
    "no number": (lambda t: t[TABLE].fill_(float("nan")), "not finite"),
    "no table": (lambda t: t.pop(TABLE), f"has no {TABLE}"),
    "no tables at all": (lambda t: [t.pop(name) for name in [*t] if name.startswith("embed")], "has no embeddings."),
    "no generator": (lambda t: [t.pop(name) for name in [*t] if name.startswith("gen")], "has no generator.encoder."),
    "no masked-token head": (
        lambda t: [t.pop(name) for name in [*t] if name.startswith("generator.pred")],
        "has no generator.predictions.",
    ),
    "no detection head": (
        lambda t: [t.pop(name) for name in [*t] if ".discriminator_pred" in name],
        "has no discriminator.discriminator_predictions.",
    ),
    "half a layer": (lambda t: t.pop(MAPPING), "has no encoder.embedding_hidden_mapping_in.weight"),
    "another shape": (lambda t: t.update({MAPPING: t[MAPPING].T.contiguous()}), "has shape"),
    "a third model": (lambda t: t.update({"teacher.encoder.a": t[MAPPING].clone()}), "holds teacher.encoder.a"),
    "a head too many": (
        lambda t: t.update({"generator.classifier.bias": t[MAPPING].clone()}),
        "holds generator.classifier",
    ),
    "a name of nobody": (lambda t: t.update({"generator.encoder.a": t[MAPPING].clone()}), "holds encoder.a"),
    "a table of its own": (lambda t: t.update({f"generator.{TABLE}": t[TABLE].clone()}), f"holds generator.{TABLE}"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_whole_pair_is_refused_with_the_reason(folder: Path, pair: Electra, name: str) -> None:
    change, words = CHANGES[name]
    tensors = joined(pair)
    change(tensors)
    write_safetensors(tensors, folder / PAIR_FILE)
    found = refusal(lambda: [generator_of(read_each(both(folder))[0], PAIR_FILE), *read_each(both(folder))])
    assert words in found


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_configurations_that_read_the_shared_tables_differently_are_refused(folder: Path, part: str) -> None:
    config = folder / "generator" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_norm_eps": 1e-3}))
    assert "share their tables, but layer_norm_eps is" in refusal(
        lambda: read_stored(locate(folder / part, "generator"))
    )


def test_half_precision_anywhere_else_is_refused(folder: Path) -> None:
    config = folder / "generator" / "config.json"
    (folder / PAIR_FILE).rename(folder / "model.safetensors")
    config.rename(folder / "config.json")
    config.parent.rmdir()
    assert "float16, only float32 is read" in refusal(lambda: read_stored(locate(folder, "generator")))


def test_a_weight_beyond_half_precision_is_refused(pair: Electra) -> None:
    with torch.no_grad():
        pair.generator.predictions.bias[3] = 65520  # rounds up to what float16 has no number for
    assert "generator.predictions.bias holds a number that is not finite" in refusal(lambda: joined(pair))


def test_tables_of_two_minds_are_refused(pair: Electra) -> None:
    other = make_pair(SHAPE, seed=6)
    told = refusal(lambda: join(plain(pair.generator), plain(other.discriminator), "the run"))
    assert told.startswith("the run: generator and discriminator have tables of their own")
