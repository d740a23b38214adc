"""Every exported folder loads in transformers 4.57 and 5 with the keys it should, and gives our numbers and ids."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from electra_albert.apps.export.models import export_body, export_discriminator, export_generator, export_task_model
from electra_albert.corpus.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from electra_albert.hub.outputs import outputs
from electra_albert.model.task_model import TaskHead
from tests.apps.test_export_checks import generator_with_pooler
from tests.apps.tiny_run import Ended, environment, finish, start
from tests.corpus.test_tokenizer_identity import RELEASED, RELEASED_KINDS
from tests.corpus.tokenizer_kinds import KINDS, NASTY, PROSE
from tests.model.test_task_model import make_task_model
from tests.model.twins import SHAPE, make_body, make_masked_lm, make_pair

READER = Path(__file__).parent / "read_stock_folders.py"
OLD_VERSION = "4.57.6"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# What that version needs and our own environment lacks or has too new. Torch and numpy are ours.
OLD_PACKAGES = (
    f"transformers=={OLD_VERSION}",
    "tokenizers==0.22.1",
    "huggingface_hub==0.36.0",
    "requests==2.32.5",
    "urllib3==2.5.0",
    "idna==3.10",
    "certifi==2025.8.3",
    "charset-normalizer==3.4.3",
)
VOCAB = 150
L = 16
SENTENCE = "The old [MASK] fell into the river."
PAIRS = [["The river sings at night.", "Nobody heard it."], ["``Old'' roads, 1912", ""], ["", "é and 中文"]]
LABELS = ["entailment", "neutral", "contradiction"]
POOLER = ("pooler.bias", "pooler.weight")
POOLER_BESIDE = ("albert.pooler.bias", "albert.pooler.weight")  # what AlbertModel loads and this class does not
DETECTION = tuple(
    f"discriminator_predictions.{name}.{part}" for name in ("dense", "dense_prediction") for part in ("bias", "weight")
)
ORDER = ("sop_classifier.classifier.bias", "sop_classifier.classifier.weight")
ELECTRA_HEAD = ("electra_classifier.bias", "electra_classifier.weight")


class Form(NamedTuple):
    """One kind of folder: what is exported and what a stock class should report of its keys."""

    make: Callable[[Any], Any]  # of the shape
    architecture: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    labels: list[str] | None = None
    is_regression: bool = False


def task(kind: Any, count: int, style: Any = "albert") -> Callable[[Any], Any]:
    return lambda shape: make_task_model(TaskHead(kind, count, style), shape)


FORMS = {
    "generator": Form(lambda shape: make_pair(shape).generator, "AlbertForMaskedLM"),
    "generator with a pooler": Form(generator_with_pooler, "AlbertForMaskedLM", unexpected=POOLER_BESIDE),
    "generator with sentence order": Form(make_masked_lm, "AlbertForPreTraining"),
    "discriminator": Form(lambda shape: make_pair(shape).discriminator, "AlbertModel", POOLER, DETECTION),
    "discriminator with sentence order": Form(
        lambda shape: make_pair(shape, with_sentence_order=True).discriminator,
        "AlbertModel",
        unexpected=(*DETECTION, *ORDER),
    ),
    "encoder": Form(lambda shape: make_body(shape, with_pooler=False), "AlbertModel", POOLER),
    "encoder with a pooler": Form(lambda shape: make_body(shape, with_pooler=True), "AlbertModel"),
    "sequence": Form(task("sequence", 3), "AlbertForSequenceClassification", labels=LABELS),
    "regression": Form(task("sequence", 1), "AlbertForSequenceClassification", labels=[], is_regression=True),
    "choice": Form(task("choice", 1), "AlbertForMultipleChoice", labels=[]),
    "span": Form(task("span", 2), "AlbertForQuestionAnswering", labels=[]),
    "token": Form(task("token", 3), "AlbertForTokenClassification", labels=LABELS),
    "sequence, style electra": Form(task("sequence", 3, "electra"), "AlbertModel", POOLER, ELECTRA_HEAD, LABELS),
    "choice, style electra": Form(task("choice", 1, "electra"), "AlbertModel", POOLER, ELECTRA_HEAD, []),
    "span, style electra": Form(task("span", 2, "electra"), "AlbertForQuestionAnswering", labels=[]),
    "token, style electra": Form(task("token", 3, "electra"), "AlbertForTokenClassification", labels=LABELS),
}
CASED = "generator, cased"
FOLDERS = {**FORMS, CASED: FORMS["generator"]}
FILLED = ("generator", "generator with sentence order", CASED)


class Exported(NamedTuple):
    folder: Path
    models: dict[str, Any]
    tokenizers: dict[str, Any]  # of every kind, each saved in a folder of its own


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A folder of every form, all with one vocabulary's size."""
    base, models = tmp_path_factory.mktemp("exported"), {}
    tokenizers = {lower: train_tokenizer(PROSE, VOCAB, lower, "albert") for lower in (True, False)}
    for name, form in FOLDERS.items():
        tokenizer = tokenizers[name != CASED]
        model = form.make(replace(SHAPE, vocab_size=len(tokenizer), num_hidden_groups=2))
        if form.labels is not None:
            details = {"labels": form.labels, "is_regression": form.is_regression}
            export_task_model(model, tokenizer, base / name, details)
        elif name.startswith("encoder"):
            export_body(model, tokenizer, base / name)
        else:
            export = export_discriminator if "discriminator" in name else export_generator
            export(model, tokenizer, base / name)
        models[name] = model.eval()
    return Exported(base, models, {name: saved_tokenizer(name, base) for name in (*KINDS, *RELEASED_KINDS)})


def saved_tokenizer(name: str, base: Path) -> Any:
    """One of any kind, as it is loaded here and saved for stock; the released ones where they are at hand."""
    if name in KINDS:
        KINDS[name](base / "given" / name)
        tokenizer = load_tokenizer(base / "given" / name)
    elif RELEASED.is_file():
        tokenizer = load_tokenizer(RELEASED, RELEASED_KINDS[name])
    else:
        tokenizer = train_tokenizer(PROSE, VOCAB, do_lower_case=True)
    save_tokenizer(tokenizer, base / "tokenizers" / name, 64)
    return tokenizer


@pytest.fixture(scope="session")
def old_packages(shared_folder: Path, make_once: Callable[[str, Callable[[], Ended]], Ended]) -> Path:
    """A folder with the old version and what it needs beside torch; without a package registry this fails."""
    folder = shared_folder / "transformers-4"
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *OLD_PACKAGES]
    ended = make_once("transformers-4", lambda: finish(start(command, shared_folder)))
    assert ended.code == 0, ended.err
    return folder


def rows() -> list[list[list[int]]]:
    """Ids, mask and segments of two rows, the second one padded."""
    place = torch.arange(2 * L).view(2, L)
    mask = torch.ones(2, L, dtype=torch.long)
    mask[1, 9:] = 0
    return [(5 + place * 7919 % (VOCAB // 2)).tolist(), mask.tolist(), (place % L > 5).long().tolist()]


@pytest.fixture(scope="module", params=["5", OLD_VERSION])
def reading(request: pytest.FixtureRequest, exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the reader found under one version, in a process of its own."""
    base = tmp_path_factory.mktemp("reading")
    folders = [str(exported.folder / name) for name in FOLDERS]
    plan = {"folders": folders, "rows": rows(), "texts": NASTY, "pairs": PAIRS, "sentence": SENTENCE}
    plan["fill"] = [str(exported.folder / name) for name in FILLED]
    plan["tokenizers"] = [str(exported.folder / "tokenizers" / name) for name in exported.tokenizers]
    (base / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    path = str(request.getfixturevalue("old_packages")) if request.param == OLD_VERSION else ""
    ended = subprocess.run(
        [sys.executable, "-P", str(READER), str(base / "plan.json"), str(base / "found.json")],
        env={**environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads((base / "found.json").read_text(encoding="utf-8"))
    assert found["version"].split(".")[0] == request.param[0]
    return found


def test_choice_head_of_style_electra_is_exported_for_its_encoder(exported: Exported, tmp_path: Path) -> None:
    # Regression: the check of what was written gave a row where this head reads questions of rows.
    from transformers import AlbertModel

    tokenizer = load_tokenizer(exported.folder / "choice")
    model = make_task_model(TaskHead("choice", 1, "electra"), replace(SHAPE, vocab_size=len(tokenizer)))
    export_task_model(model, tokenizer, tmp_path, {"labels": []})
    report = AlbertModel.from_pretrained(tmp_path, add_pooling_layer=False, output_loading_info=True)[1]
    assert sorted(report["unexpected_keys"]) == sorted(ELECTRA_HEAD)
    assert not report["missing_keys"]


def of(reading: Any, exported: Exported, name: str) -> Any:
    return reading["folders"][str(exported.folder / name)]


def test_only_documented_keys_are_missing_or_unexpected(reading: Any, exported: Exported) -> None:
    for name, form in FOLDERS.items():
        found = of(reading, exported, name)
        assert (found["class"], found["dtype"]) == (form.architecture, "torch.float32"), name
        wanted = {"missing_keys": sorted(form.missing), "unexpected_keys": sorted(form.unexpected)}
        assert found["report"] == {kind: keys for kind, keys in wanted.items() if keys}, name


def test_stock_classes_compute_our_numbers(reading: Any, exported: Exported) -> None:
    for name in FOLDERS:
        assert_our_numbers(reading, exported, name)


def assert_our_numbers(reading: Any, exported: Exported, name: str) -> None:
    ids, mask, segments = (torch.tensor(row) for row in rows())
    if name.startswith("choice"):  # whose rows stand in questions
        ids, mask, segments = ids[None], mask[None], segments[None]
    with torch.no_grad():
        ours = outputs(exported.models[name], ids, mask, segments)._asdict()
    theirs = of(reading, exported, name)["outputs"]
    if "pooler_output" in theirs and FOLDERS[name].missing == POOLER:
        del theirs["pooler_output"]  # which no file holds
    if "pooler_output" in theirs and ours["pooler_output"] is None:
        pooler = exported.models[name].sentence_order.pooler
        ours["pooler_output"] = pooler(ours["last_hidden_state"][:, 0]).tanh()
    ours["prediction_logits"] = ours["logits"]
    assert theirs
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], torch.tensor(value), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["generator", CASED])
def test_tokenizer_gives_our_ids_and_segments(reading: Any, exported: Exported, name: str) -> None:
    tokenizer, found = load_tokenizer(exported.folder / name), of(reading, exported, name)
    assert found["tokenizer"].startswith("AlbertTokenizer")
    assert found["longest"] == SHAPE.max_position_embeddings
    for inputs, encodings in (([[text] for text in NASTY], found["texts"]), (PAIRS, found["pairs"])):
        for words, encoding in zip(inputs, encodings, strict=True):
            wanted = tokenizer(*words, return_token_type_ids=True)
            assert {key: encoding[key] for key in wanted} == dict(wanted), words
    assert any(1 in encoding["token_type_ids"] for encoding in found["pairs"])


def test_every_kind_of_tokenizer_gives_our_ids_and_segments(reading: Any, exported: Exported) -> None:
    for name, tokenizer in exported.tokenizers.items():
        found = reading["tokenizers"][str(exported.folder / "tokenizers" / name)]
        wanted = [tokenizer(*words, return_token_type_ids=True) for words in [*([text] for text in NASTY), *PAIRS]]
        for key in ("input_ids", "token_type_ids"):
            assert found[key] == [encoding[key] for encoding in wanted], name


@pytest.mark.parametrize("name", FILLED)
def test_fill_mask_pipeline_predicts_our_words(reading: Any, exported: Exported, name: str) -> None:
    tokenizer = load_tokenizer(exported.folder / name)
    row = tokenizer(SENTENCE, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        ours = outputs(exported.models[name], row["input_ids"], row["attention_mask"], row["token_type_ids"])
    assert ours.logits is not None
    place = row["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    scores, tokens = ours.logits[0, place].softmax(-1).topk(5)
    found = reading["filled"][str(exported.folder / name)]
    assert [guess[0] for guess in found] == tokens.tolist()
    torch.testing.assert_close(scores, torch.tensor([guess[1] for guess in found]), rtol=1e-4, atol=1e-6)
