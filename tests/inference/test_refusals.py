"""What `load_model` and its calls refuse: in one line, of the right class, with the word that matters."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import CheckpointError, DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from tests.corpus.tokenizer_kinds import wordpiece_vocab
from tests.inference.stock import LONGEST, make_stock

LONG = "owl " * (LONGEST - 1)
REFUSED: dict[str, tuple[Callable[[InferenceModel], Any], type[ValueError], str]] = {
    "too long": (lambda model: model.features(["owl", LONG]), DataError, r"^texts\[1\]: 'owl.*truncate=True"),
    "too long alone": (lambda model: model.pseudo_log_likelihood(LONG), DataError, f"^'owl .*reads {LONGEST}"),
    "too long a pair": (lambda model: model.replaced_probabilities(("owl", LONG)), DataError, "tokens long"),
    "too long a mask": (lambda model: model.fill_mask("[MASK] " * LONGEST), DataError, "tokens long"),
    "no mask": (lambda model: model.fill_mask(["[MASK]", "owl"]), DataError, r"^texts\[1\]: 'owl' .*\[MASK\]"),
    "a number": (lambda model: model.features([3]), UsageError, r"texts\[0\]: '3' is no text"),
    "nothing": (lambda model: model.fill_mask(None), UsageError, "no text"),
    "bytes": (lambda model: model.rewrite(b"owl"), UsageError, "no text"),
    "a list in a list": (lambda model: model.replaced_probabilities([["owl"]]), UsageError, r"texts\[0\]"),
    "three": (lambda model: model.pseudo_log_likelihood(("a", "b", "c")), UsageError, "no text"),
    "a pair to fill": (lambda model: model.fill_mask([("a", "b")]), UsageError, "give a str or"),
    "half a character": (lambda model: model.features(["a", "\ud800"]), DataError, r"texts\[1\].*half"),
    "no pooler": (lambda model: model.features("a", "pooler"), UsageError, "mean, cls$"),
    "top_k": (lambda model: model.fill_mask("[MASK]", top_k=0), UsageError, "top_k=0"),
    "targets": (lambda model: model.fill_mask("[MASK]", targets="owl moon"), UsageError, "cut into ▁owl "),
    "no targets": (lambda model: model.fill_mask("[MASK]", targets=[]), UsageError, "targets is empty"),
    "no rate": (lambda model: model.rewrite("owl", mask_rate=0), UsageError, "mask_rate=0"),
    "no temperature": (lambda model: model.rewrite("owl", temperature=float("nan")), UsageError, "temperature=nan"),
    "not fine-tuned": (lambda model: model.classify("owl"), UsageError, "classify needs a fine-tuned model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(model: InferenceModel, case: str) -> None:
    ask, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as refusal:
        ask(model)
    assert "\n" not in str(refusal.value)


def test_a_missing_head_is_named(run: Path) -> None:
    generator, discriminator = (load_model(run / part, "cpu") for part in ("generator", "discriminator"))
    with pytest.raises(UsageError, match="needs a detection head"):
        generator.replaced_probabilities("owl")
    for ask in (discriminator.fill_mask, discriminator.pseudo_log_likelihood, discriminator.rewrite):
        with pytest.raises(UsageError, match="needs a masked-token head"):
            ask("[MASK]")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"device": "tpu2"}, "device='tpu2'"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"device": "meta"}, "device='meta'"),
        ({"path": "nowhere"}, "nowhere"),
        ({"path": "x" * 5000}, "too long"),
    ],
)
def test_a_model_is_loaded_only_as_what_can_be_computed(run: Path, options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=re.escape(word)) as refusal:
        load_model(**{"path": run, "device": "cpu", **options})
    assert "\n" not in str(refusal.value)


def spoil(folder: Path, run: Path, what: str) -> Path:
    """A folder or a file from which no model can be loaded."""
    if what == "a text":
        (folder / "books.txt").write_text("The owl crossed the river.\n", encoding="utf-8")
        return folder / "books.txt"
    copy = shutil.copytree(run, folder / "run")
    if what == "no weights":
        (copy / "generator" / "model.safetensors").unlink()
        return copy / "generator"
    part = "generator" if what == "generator of a run" else "discriminator"
    (copy / part / "config.json").unlink()
    return {"model folder": copy / part, "weights": copy / part / "model.safetensors"}.get(what, copy)


@pytest.mark.parametrize(
    "what", ["a text", "model folder", "weights", "discriminator of a run", "generator of a run", "no weights"]
)
def test_a_missing_file_is_named(run: Path, tmp_path: Path, what: str) -> None:
    word = r"model\.safetensors" if what == "no weights" else r"config\.json"
    with pytest.raises(UsageError, match=word):
        load_model(spoil(tmp_path, run, what), "cpu")


@pytest.mark.parametrize("path", [None, 3, b"runs"])
def test_what_is_no_path_is_a_type_error(path: Any) -> None:
    with pytest.raises(TypeError):
        load_model(path)


def test_models_and_tokenizers_of_other_sizes_are_refused(tmp_path: Path) -> None:
    """Rows for no token are left out, of both models alike; a tokenizer from another folder has to have all of them."""
    tokens = len(wordpiece_vocab(True))
    for name, more in (("short", -1), ("padded", 7), ("other", 8), ("fitting", 0)):
        make_stock(tmp_path / name, "ElectraForPreTraining", vocab_size=tokens + more)
    make_stock(tmp_path / "mlm", "AlbertForMaskedLM", vocab_size=tokens + 7)
    for name in ("padded", "fitting"):
        loaded = load_model(tmp_path / "mlm", "cpu", discriminator=tmp_path / name)
        assert loaded.discriminator is not None
        assert len(loaded.fill_mask("[MASK]", top_k=10**6)) == tokens
    for path, options in (
        ("short", {}),
        ("mlm", {"discriminator": tmp_path / "other"}),
        ("mlm", {"tokenizer": tmp_path / "mlm"}),
    ):
        with pytest.raises(CheckpointError, match=f"has {tokens} tokens, the model"):
            load_model(tmp_path / path, "cpu", **options)
