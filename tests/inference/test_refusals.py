"""What `load_model` and its calls refuse: in one line, of the right class, with the word that matters."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from tests.inference.stock import LONGEST

LONG = "owl " * (LONGEST - 1)
REFUSED: dict[str, tuple[Callable[[InferenceModel], Any], type[ValueError], str]] = {
    "too long": (lambda model: model.features(["owl", LONG]), DataError, r"^texts\[1\]: 'owl.*truncate=True"),
    "no mask": (lambda model: model.fill_mask(["[MASK]", "owl"]), DataError, r"^texts\[1\]: 'owl' .*\[MASK\]"),
    "a number": (lambda model: model.features([3]), UsageError, r"texts\[0\]: 3 is no text"),
    "a list in a list": (lambda model: model.replaced_probabilities([["owl"]]), UsageError, r"texts\[0\]"),
    "a pair to fill": (lambda model: model.fill_mask([("a", "b")]), UsageError, "give a str or"),
    "half a character": (lambda model: model.features(["a", "\ud800"]), DataError, r"texts\[1\].*half"),
    "no pooler": (lambda model: model.features("a", "pooler"), UsageError, "mean, cls$"),
    "top_k": (lambda model: model.fill_mask("[MASK]", top_k=0), UsageError, "top_k=0"),
    "targets": (lambda model: model.fill_mask("[MASK]", targets="owl moon"), UsageError, "cut into ▁owl "),
    "no rate": (lambda model: model.rewrite("owl", mask_rate=0), UsageError, "mask_rate=0"),
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


def test_a_model_is_loaded_only_from_what_is_there_as_what_can_be_computed(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "generator" / "config.json").unlink()
    (books := tmp_path / "books.txt").write_text("The owl crossed the river.\n", encoding="utf-8")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"path": "nowhere"}, "nowhere"),
        ({"path": copy / "generator"}, "config.json"),
        ({"path": books}, "config.json"),
        ({"path": tmp_path}, "model.safetensors"),
    ]
    for options, word in refused:
        with pytest.raises(UsageError, match=re.escape(word)) as refusal:
            load_model(**{"path": run, "device": "cpu", **options})
        assert "\n" not in str(refusal.value)
