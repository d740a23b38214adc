"""What a user gives is loaded or refused in one line: no file runs code, and none costs more time than it is large."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from electra_albert.contracts import CheckpointError, UsageError
from electra_albert.hub.names import to_stock
from electra_albert.hub.load import ModelFiles, load_discriminator, load_generator, locate
from electra_albert.hub.config import stock_config
from electra_albert.hub.weights import read_tensors
from tests.model.twins import SHAPE, SPECIAL_IDS, make_masked_lm, make_pair, padded_batch, stock

BOUND_SECONDS = 10.0  # a hostile configuration would take minutes or for ever


def write_folder(folder: Path, kind: str = "generator", **changes: Any) -> Path:
    """A stock folder without a tokenizer; `changes` go to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_stock(getattr(make_pair(SHAPE), kind).state_dict()), folder / "model.safetensors")
    contents = stock_config(SHAPE, "AlbertForMaskedLM", SPECIAL_IDS) | changes
    (folder / "config.json").write_text(json.dumps(contents))
    return folder


def weights() -> dict[str, Tensor]:
    return to_stock(make_pair(SHAPE).generator.state_dict())


def guess(path: Path) -> Tensor:
    """Logits of the generator at `path` on the test batch."""
    model, batch = load_generator(locate(path, "generator")), padded_batch()
    return model.logits(model(batch.input_ids, batch.attention_mask, batch.token_type_ids))


class Harmful:
    """Pickles to a call that leaves a mark."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.canary),)


def test_generator_and_discriminator_of_a_run_compute_what_was_saved(tmp_path: Path) -> None:
    write_folder(tmp_path / "generator")
    write_folder(tmp_path / "discriminator", "discriminator")
    pair, batch = make_pair(SHAPE), padded_batch()
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    # float32: where a tensor lies in memory decides, on some processors, the order of a product's additions.
    torch.testing.assert_close(guess(tmp_path), pair.generator.logits(pair.generator(*inputs)), rtol=1e-5, atol=1e-6)
    detector = load_discriminator(locate(tmp_path, "discriminator"))
    torch.testing.assert_close(detector(*inputs), pair.discriminator(*inputs), rtol=1e-5, atol=1e-6)
    assert not detector.training


def assert_loads_as_saved(model: nn.Module, folder: Path, load: Callable[[ModelFiles], nn.Module]) -> None:
    """AssertionError unless `folder` gives the very tensors of the model."""
    save_file(to_stock(model.state_dict()), write_folder(folder) / "model.safetensors")
    loaded, wanted = load(locate(folder, "generator")).state_dict(), model.state_dict()
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("with_sentence_order", [False, True])
def test_sentence_order_head_is_loaded_where_the_file_holds_one(tmp_path: Path, with_sentence_order: bool) -> None:
    masked_lm = make_masked_lm(SHAPE, with_sentence_order=with_sentence_order)
    assert_loads_as_saved(masked_lm, tmp_path / "one", load_generator)
    pair = make_pair(SHAPE, with_sentence_order=with_sentence_order)
    assert_loads_as_saved(pair.discriminator, tmp_path / "two", load_discriminator)


def test_sentence_order_head_of_a_stock_model_is_loaded(tmp_path: Path) -> None:
    from transformers import AlbertForPreTraining

    AlbertForPreTraining(stock(SHAPE)).save_pretrained(tmp_path)
    assert load_generator(locate(tmp_path, "generator")).sentence_order is not None


def test_pooler_alone_makes_no_sentence_order_head(tmp_path: Path) -> None:
    folder, size = write_folder(tmp_path), SHAPE.hidden_size
    pooler = {"albert.pooler.weight": torch.zeros(size, size), "albert.pooler.bias": torch.zeros(size)}
    save_file(weights() | pooler, folder / "model.safetensors")
    assert load_generator(locate(folder, "generator")).sentence_order is None


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_pt_file_gives_the_same_model_flat_or_nested(tmp_path: Path, wrapper: str | None) -> None:
    folder = write_folder(tmp_path)
    expected = guess(folder)
    (folder / "model.safetensors").unlink()
    torch.save(weights() if wrapper is None else {wrapper: weights(), "step": 7}, folder / "weights.pt")
    torch.testing.assert_close(guess(folder), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(guess(folder / "weights.pt"), expected, rtol=1e-5, atol=1e-6)


def test_tables_of_a_loaded_model_are_its_own_and_trainable(tmp_path: Path) -> None:
    model = load_generator(locate(write_folder(tmp_path), "generator"))
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    assert len(set(pointers)) == len(pointers)
    assert not any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("nested", [False, True])
def test_pickle_with_code_is_refused_and_not_run(tmp_path: Path, nested: bool) -> None:
    canary, file = tmp_path / "canary", tmp_path / "weights.pt"
    torch.save({"model": {"a": Harmful(canary)}} if nested else Harmful(canary), file)
    with pytest.raises(CheckpointError, match="anything that could run code is refused"):
        read_tensors(file)
    assert not canary.exists()
    # The same file does run code where it is trusted: so the canary would have told.
    torch.load(file, weights_only=False)
    assert canary.exists()


@pytest.mark.parametrize(
    "contents", [{}, [1, 2], {"a": 1}, {1: torch.zeros(2)}, {"a": {"b": torch.zeros(2)}}, {"model": {}}], ids=str
)
def test_file_of_anything_but_named_tensors_is_refused(tmp_path: Path, contents: object) -> None:
    torch.save(contents, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"weights\.pt"):
        read_tensors(tmp_path / "weights.pt")


@pytest.mark.parametrize("name", ["model.safetensors", "weights.pt"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_truncated_file_is_refused(tmp_path: Path, name: str, share: float) -> None:
    file = tmp_path / name
    save_file(weights(), file) if name.endswith("safetensors") else torch.save(weights(), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=name) as refused:
        read_tensors(file)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, on what the damage made of the file
@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("place", range(20, 900, 40))
def test_damaged_pickle_is_read_or_refused_never_a_traceback(tmp_path: Path, place: int, is_zip: bool) -> None:
    # Regression: torch.load raises IndexError, TypeError, AssertionError and struct.error on such files too.
    file = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(3), "b": torch.ones(2)}, file, _use_new_zipfile_serialization=is_zip)
    damaged = bytearray(file.read_bytes())
    for offset in range(place, min(place + 40, len(damaged)), 3):
        file.write_bytes(bytes(damaged[:offset]) + b"R" + bytes(damaged[offset + 1 :]))
        try:
            outcome: object = read_tensors(file)
        except CheckpointError as refused:
            outcome = str(refused)
        assert isinstance(outcome, dict) or "\n" not in str(outcome)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"vocab_size": 10**17},
        {"vocab_size": 2**31 - 1},
        {"hidden_size": 3 << 18, "intermediate_size": 1 << 20},
        {"max_position_embeddings": 1 << 20, "type_vocab_size": 1 << 20},
        # Regression: a million blocks were built before the file was looked at.
        {"num_hidden_layers": 1024, "num_hidden_groups": 1024, "inner_group_num": 1024},
    ],
    ids=str,
)
def test_configuration_far_larger_than_its_weights_is_refused_at_once(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = write_folder(tmp_path, **change)
    start = time.monotonic()
    with pytest.raises(CheckpointError):
        load_generator(locate(folder, "generator"))
    assert time.monotonic() - start < BOUND_SECONDS


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"model_type": "gpt2"}', "\x00", "1" * 5000])
def test_file_that_is_no_albert_configuration_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_folder(tmp_path)
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json") as refused:
        load_generator(locate(folder, "generator"))
    assert "\n" not in str(refused.value)


def test_configuration_of_megabytes_is_refused_unread(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "config.json").write_text(" " * (1 << 21))
    with pytest.raises(CheckpointError, match="too large"):
        load_generator(locate(folder, "generator"))


def test_configuration_in_another_encoding_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "config.json").write_text("{}", encoding="utf-16")
    with pytest.raises(CheckpointError, match="is not JSON"):
        load_generator(locate(folder, "generator"))


def test_path_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        locate(tmp_path / "none", "generator")


def test_folder_without_weights_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds none of"):
        locate(tmp_path, "generator")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="has not ended yet"):
        locate(tmp_path, "generator")


def test_weights_without_a_configuration_tell_the_option_that_names_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    config = (folder / "config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(UsageError, match="--config"):
        locate(folder, "generator")
    files = locate(folder / "model.safetensors", "generator", config=config, tokenizer=tmp_path)
    assert load_generator(files).config == SHAPE
    assert files.tokenizer == tmp_path


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, hidden_size=24)
    with pytest.raises(CheckpointError, match="its configuration says"):
        load_generator(locate(folder, "generator"))


def test_generator_is_no_discriminator(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="discriminator_predictions"):
        load_discriminator(locate(write_folder(tmp_path), "discriminator"))
