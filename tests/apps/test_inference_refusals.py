"""What a program may not hand to the inference calls: each mistake is refused in one line that says what was found."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra_albert.contracts import DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from tests.apps.conftest import Finished

SENTENCE = "The quiet [MASK] crossed the river."


@pytest.fixture(scope="module")
def model(finished: Finished) -> InferenceModel:
    """The tiny run: a generator and a discriminator."""
    return load_model(finished.folder, device="cpu")


REFUSED: dict[str, tuple[Callable[[InferenceModel], Any], type[ValueError], str]] = {
    "too long": (
        lambda model: model.features(["owl", "owl " * 63]),
        DataError,
        r"^texts\[1\]: 'owl.*65 tokens.*reads 64; shorten it or give truncate=True$",
    ),
    "too long alone": (lambda model: model.pseudo_log_likelihood("owl " * 63), DataError, "^'owl .*65 tokens"),
    "too long a pair": (lambda model: model.replaced_probabilities(("owl", "owl " * 61)), DataError, "65 tokens"),
    "too long a mask": (lambda model: model.fill_mask("[MASK] " * 63), DataError, "65 tokens long"),
    "no mask": (lambda model: model.fill_mask(["[MASK]", "owl"]), DataError, r"^texts\[1\]: 'owl' holds no \[MASK\]"),
    "a number": (lambda model: model.features([3]), UsageError, r"texts\[0\]: int is no text"),
    "three": (lambda model: model.features(("a", "b", "c")), UsageError, "tuple is no text"),
    "a pair to fill": (lambda model: model.fill_mask([("a", "b")]), UsageError, "give a str or"),
    "half a character": (lambda model: model.features(["a", "\ud800"]), DataError, r"texts\[1\].*surrogate"),
    "no pooler": (lambda model: model.features("a", "pooler"), UsageError, "give one of mean, cls$"),
    "no such pooling": (lambda model: model.features("a", "max"), UsageError, "'max'"),
    "top_k": (lambda model: model.fill_mask("[MASK]", top_k=0), UsageError, "top_k=0 must be at least 1"),
    "targets": (lambda model: model.fill_mask("[MASK]", targets="owl moon"), UsageError, "is cut into ▁owl "),
    "no targets": (lambda model: model.fill_mask("[MASK]", targets=[]), UsageError, "targets is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(model: InferenceModel, case: str) -> None:
    ask, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as refusal:
        ask(model)
    assert "\n" not in str(refusal.value)


NO_TEXTS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "^NoneType is no text; give a str"),
    "a number": (3, "^int is no text; give a str"),
    "bytes": (b"owl [MASK]", "^bytes is no text; give a str"),
    "nothing in a list": (["owl [MASK]", None], r"^texts\[1\]: NoneType is no text; give a str"),
    "a list in a list": ([["owl [MASK]"]], r"^texts\[0\]: list is no text; give a str"),
    "a set": ({"owl [MASK]"}, "^set is no text; give a str"),
    "half a pair": (("owl [MASK]",), "^tuple is no text; give a str"),
}
CALLS = ["fill_mask", "features", "replaced_probabilities", "pseudo_log_likelihood", "token_log_likelihoods"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", NO_TEXTS)
def test_what_is_no_text_is_refused_by_every_call(model: InferenceModel, call: str, case: str) -> None:
    given, message = NO_TEXTS[case]
    with pytest.raises(UsageError, match=message):
        getattr(model, call)(given)


WRONG_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "top_k nothing": ({"top_k": None}, "top_k=None is NoneType; give a whole number, 1 or more"),
    "top_k text": ({"top_k": "3"}, "top_k='3' is str; give a whole number"),
    "top_k a half": ({"top_k": 2.5}, "top_k=2.5 is float; give a whole number"),
    "top_k a whole float": ({"top_k": 2.0}, "top_k=2.0 is float; give a whole number"),
    "top_k a claim": ({"top_k": True}, "top_k=True is bool; give a whole number"),
    "top_k a list": ({"top_k": [3]}, "top_k=[3] is list; give a whole number"),
    "top_k negative": ({"top_k": -1}, "top_k=-1 must be at least 1"),
    "target a number": ({"targets": [3]}, "target 3 is int, no str; give pieces or words"),
    "target nothing": ({"targets": ["owl", None]}, "target None is NoneType, no str"),
    "target bytes": ({"targets": [b"owl"]}, "target b'owl' is bytes, no str"),
    "target half a character": ({"targets": ["\ud800"]}, "holds half a character"),
    "targets a number": ({"targets": 3}, "targets=3 is int; give a str or a list of them"),
    "targets bytes": ({"targets": b"owl"}, "targets=b'owl' is bytes; give a str or a list of them"),
    "targets empty": ({"targets": ""}, "target '' is no token"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_options_of_a_wrong_type_are_refused_in_one_line(model: InferenceModel, case: str) -> None:
    options, message = WRONG_TYPES[case]
    with pytest.raises(UsageError, match=re.escape(message)) as refusal:
        model.fill_mask(SENTENCE, **options)
    assert "\n" not in str(refusal.value)


def test_any_whole_number_counts_and_any_collection_of_targets_is_taken(model: InferenceModel) -> None:
    two = model.fill_mask(SENTENCE, top_k=2)
    assert len(two) == 2
    for count in (np.int64(2), torch.tensor(2)):
        assert model.fill_mask(SENTENCE, top_k=count) == two
    wanted = model.fill_mask(SENTENCE, targets=["▁owl", "▁the"])
    assert {guess["token_str"] for guess in wanted} == {"owl", "the"}
    for targets in (("▁owl", "▁the"), dict.fromkeys(["▁owl", "▁the"])):
        assert model.fill_mask(SENTENCE, targets=targets) == wanted


# What a model is loaded with.

NOT_LOADED: dict[str, tuple[dict[str, Any], str]] = {
    "batch_tokens text": ({"batch_tokens": "9"}, "batch_tokens='9' is str; give a whole number, 1 or more"),
    "batch_tokens a half": ({"batch_tokens": 0.5}, "batch_tokens=0.5 is float"),
    "batch_tokens a claim": ({"batch_tokens": False}, "batch_tokens=False is bool"),
    "batch_tokens none at all": ({"batch_tokens": 0}, "batch_tokens=0 must be at least 1"),
    "no device": ({"device": "tpu2"}, "device='tpu2' is no device; give cpu, cuda, cuda:1 or auto"),
    "an empty device": ({"device": ""}, "device='' is no device"),
    "half a device": ({"device": "cuda:"}, "device='cuda:' is no device"),
    "a number that wraps": ({"device": "cuda:256"}, "device='cuda:256' is no device"),
    "half a character": ({"device": "\ud800"}, "is no device"),
    "a GPU that is not there": ({"device": "cuda:99"}, "device='cuda:99': PyTorch finds"),
    "a device without numbers": ({"device": "meta"}, "device='meta' is none that models are computed on here"),
    "a device of another kind": ({"device": "mps"}, "device='mps' is none that models are computed on here"),
    "device nothing": ({"device": None}, "device=None is NoneType; give cpu, cuda, cuda:1 or auto"),
    "device a number": ({"device": 0}, "device=0 is int; give cpu"),
    "device bytes": ({"device": b"cpu"}, "device=b'cpu' is bytes; give cpu"),
}


@pytest.mark.parametrize("case", NOT_LOADED)
def test_a_model_is_loaded_only_as_what_can_be_computed(finished: Finished, case: str) -> None:
    options, message = NOT_LOADED[case]
    with pytest.raises(UsageError, match=re.escape(message)) as refusal:
        load_model(finished.folder, **{"device": "cpu", **options})
    assert "\n" not in str(refusal.value)


def test_a_device_may_be_torchs_own(finished: Finished) -> None:
    assert load_model(str(finished.folder), torch.device("cpu")).device == torch.device("cpu")


@pytest.mark.parametrize(("path", "kind"), [(None, "NoneType"), (3, "int"), (b"runs", "bytes"), (["runs"], "list")])
def test_what_is_no_path_is_refused(path: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"path={path!r} is {kind}; give the folder")):
        load_model(path)


@pytest.mark.parametrize("path", ["nowhere", "x" * 5000, "\0", "no\nwhere"])
def test_a_path_where_nothing_is_is_refused(in_folder: Path, path: str) -> None:
    with pytest.raises(UsageError, match="give a run folder"):
        load_model(path)


def incomplete(folder: Path, finished: Finished, what: str) -> Path:
    """Something with weights, or that may be some, and without a configuration."""
    if what == "a text":
        (folder / "books.txt").write_text("The owl crossed the river.\n", encoding="utf-8")
        return folder / "books.txt"
    run = shutil.copytree(finished.folder, folder / "run")
    part = "generator" if what == "generator of a run" else "discriminator"
    (run / part / "config.json").unlink()
    return {"model folder": run / part, "weights": run / part / "model.safetensors"}.get(what, run)


@pytest.mark.parametrize("what", ["a text", "model folder", "weights", "discriminator of a run", "generator of a run"])
def test_a_missing_configuration_is_told_with_what_to_do(finished: Finished, tmp_path: Path, what: str) -> None:
    with pytest.raises(UsageError, match=r"config\.json does not exist; put it there"):
        load_model(incomplete(tmp_path, finished, what), "cpu")


def test_a_folder_without_weights_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds none of model\.safetensors"):
        load_model(tmp_path, "cpu")
