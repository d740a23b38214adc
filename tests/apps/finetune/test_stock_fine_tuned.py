"""A stock model that was fine-tuned elsewhere predicts new text."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification

from electra_albert.apps.finetune import main as finetune
from electra_albert.tokenization.tokenizer import load_tokenizer
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call
from tests.hub.models import config_of, make

TEXTS = ("The owl left the house.", "A lamp fell into the river.", "Nobody saw it.")
LABELS = ("bad", "good", "odd")


@pytest.fixture
def stock(finished: Finished, tmp_path: Path) -> Path:
    """A stock BERT of three labels with the tokenizer of a run."""
    folder = shutil.copytree(finished.folder / "tokenizer", tmp_path / "stock")
    size = len(load_tokenizer(folder))
    config = config_of("bert", vocab_size=size, max_position_embeddings=64)
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {name: i for i, name in enumerate(LABELS)}
    make("bert", "BertForSequenceClassification", config).save_pretrained(folder)
    return folder


def label(stock: Path, tmp_path: Path, *more: object) -> Ended:
    known, new = tmp_path / "known.csv", tmp_path / "new.txt"
    known.write_text("text,label\n" + "".join(f"{text},good\n" for text in TEXTS))
    new.write_text("".join(f"{text}\n" for text in TEXTS))
    argv = ["--model", stock, "--train_file", known, "--validation_file", known, "--predict", new]
    argv += ["--num_train_epochs", 0, "--output_dir", tmp_path / "out"]
    return call(finetune.main, *argv, "--device", "cpu", *more)


def test_its_predictions_equal_those_of_stock(stock: Path, tmp_path: Path) -> None:
    # Regression: a folder without a recorded task was reported as fine-tuned on None.
    ended = label(stock, tmp_path, "--precision", "fp32", "--max_seq_length", 32)
    assert ended.code == 0, ended.err
    model = BertForSequenceClassification.from_pretrained(stock).eval()
    tokenizer = load_tokenizer(stock)
    with torch.no_grad():
        rows = [tokenizer(text, return_tensors="pt", return_token_type_ids=True) for text in TEXTS]
        wanted = [LABELS[int(model(**row).logits.argmax())] for row in rows]
    written = (tmp_path / "out" / "predicted.tsv").read_text()
    assert [line.split("\t")[2] for line in written.splitlines()[1:]] == wanted
    (stock / "predicted.tsv").write_text("of the user")
    ended = call(finetune.main, "--model", stock, "--predict", tmp_path / "new.txt")
    assert_refused(ended, 2, "was not written by")


def test_labels_without_names_are_reported_with_where_to_name_them(
    stock: Path, tmp_path: Path
) -> None:
    # Regression: the message asked for another --model, or a change of the data.
    content = json.loads((stock / "config.json").read_text())
    content["id2label"] = {number: f"LABEL_{number}" for number in content["id2label"]}
    (stock / "config.json").write_text(json.dumps(content))
    assert_refused(label(stock, tmp_path, "--regression"), 4, "labels LABEL_0, LABEL_1, LABEL_2")
    wanted = "its labels have no names (LABEL_0, LABEL_1, ...); write id2label into its config.json"
    assert_refused(label(stock, tmp_path), 4, "label 'good'", wanted)
    asked = ("--task", "mnli", "--predict", tmp_path / "new.txt", "--output_dir", tmp_path / "out")
    assert_refused(call(finetune.main, "--model", stock, *asked), 4, wanted)
