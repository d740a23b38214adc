"""Token stores and runs from corpora of several sources and from every kind of tokenizer."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch

from electra_albert.apps import demo
from electra_albert.apps import prepare as prepare_app
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.tokenization.tokenizer import load_tokenizer, special_ids
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, english, options, rows
from tests.corpus.reading import write
from tests.tokenization.tokenizer_kinds import KINDS, train_model

TEXTS = english(120, seed=4).strip().split("\n\n")
PLAIN = ("\n\n".join(TEXTS) + "\n").encode()


def prepared(finished: Finished, corpus: object, folder: Path, *more: object) -> Ended:
    tokenizer = finished.folder / "tokenizer"
    return call(
        prepare_app.main,
        "--corpus",
        corpus,
        "--prepared_dir",
        folder / "p",
        "--tokenizer",
        tokenizer,
        *more,
    )


@pytest.mark.slow
def test_a_mixture_reports_losses_per_source_and_keeps_its_weights(
    finished: Finished, tmp_path: Path
) -> None:
    write(tmp_path, "".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "a.jsonl")
    write(tmp_path, english(60, seed=8), "b.txt")
    listed = write(
        tmp_path, "- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 3}\n", "mix.yaml"
    )

    def run(steps: int) -> Ended:
        settings = [
            "--max_steps",
            steps,
            "--save_steps",
            2,
            "--tokenizer",
            finished.folder / "tokenizer",
        ]
        return call(
            pretrain.main, *options(listed, tmp_path / "prepared", tmp_path / "run", *settings)
        )

    assert run(2).code == 0
    evaluated = [row for row in rows(tmp_path / "run") if "eval_loss" in row][-1]
    counts = [evaluated[f"eval_masked_tokens/{name}"] for name in ("a.jsonl", "b.txt")]
    losses = [evaluated[f"eval_generator_loss/{name}"] for name in ("a.jsonl", "b.txt")]
    assert (min(counts) > 0, sum(counts)) == (True, evaluated["eval_masked_tokens"])
    total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
    assert total / sum(counts) == pytest.approx(evaluated["eval_generator_loss"], rel=1e-6)
    assert run(2).code == 0
    listed.write_text("- {corpus: a.jsonl, weight: 1}\n- {corpus: b.txt, weight: 2}\n")
    assert_refused(run(3), 4, "mix.yaml", "weights")


def test_a_corpus_that_cannot_be_read_is_refused_with_its_exit_code(
    finished: Finished, tmp_path: Path
) -> None:
    table = write(tmp_path, "id,body\n1,One.\n", "t.csv")
    assert_refused(prepared(finished, table, tmp_path), 3, "'body'", "--text_column")
    assert_refused(prepared(finished, "nobody/nothing", tmp_path), 2, "nobody/nothing")
    assert_refused(
        prepared(finished, "memory://nothing/there.txt", tmp_path), 2, "memory://nothing"
    )


def test_a_file_in_two_sources_gives_two_columns_or_is_read_once_or_refused(
    finished: Finished, tmp_path: Path
) -> None:
    half = len(TEXTS) // 2
    pyarrow.parquet.write_table(
        pyarrow.table({"a": TEXTS[:half], "b": TEXTS[half:]}), tmp_path / "t.parquet"
    )
    write(tmp_path, PLAIN, "t.txt")
    lists = {
        "t.parquet, text_column: a, weight: 1|t.parquet, text_column: b, weight: 2": (
            f"documents       {len(TEXTS)}\n"
        ),
        "t.txt|./t.txt": f"documents       {len(TEXTS)}\n",
        "t.txt, weight: 1|./t.txt, weight: 2": "two sources",
    }
    for listed, line in lists.items():
        entries = "".join(f"- {{corpus: {entry}}}\n" for entry in listed.split("|"))
        ended = prepared(finished, write(tmp_path, entries, "s.yaml"), tmp_path)
        assert (ended.code, line in ended.err) == (3 if "sources" in line else 0, True), ended.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SentencePiece", "bert uncased", "roberta"])
def test_exported_tokenizer_gives_the_ids_of_training(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    path, folder = tmp_path / "given", tmp_path / "run"
    path.mkdir()
    if kind in KINDS:
        KINDS[kind](path)
    else:
        train_model(path / "spiece.model", [text.lower() for text in TEXTS], unk_id=0, pad_id=1)
    given = load_tokenizer(path)
    settings = ["--max_steps", 2, "--save_steps", 2, "--tokenizer", path]
    ended = call(
        pretrain.main, *options(write(tmp_path, PLAIN), tmp_path / "prepared", folder, *settings)
    )
    assert ended.code == 0, ended.err
    stock = AutoTokenizer.from_pretrained(folder / "generator", local_files_only=True)
    assert len(stock) == len(given)
    for text in (
        *TEXTS[:20],
        'The Owl said: "naïve [MASK]" – 1,234 cafés, ½ ﬁsh & <mask> 你好 🦉.',
    ):
        assert stock(text)["input_ids"] == given(text)["input_ids"]
    pair = stock("The owl sang.", "The fox ran.")
    special = special_ids(given)
    seps = [position for position, token in enumerate(pair["input_ids"]) if token == special.sep]
    assert (pair["input_ids"][0], len(seps), seps[-1]) == (
        special.cls,
        2,
        len(pair["input_ids"]) - 1,
    )
    assert pair["token_type_ids"] == [0] * (seps[0] + 1) + [1] * (seps[1] - seps[0])
    model = AutoModelForMaskedLM.from_pretrained(folder / "generator", local_files_only=True)
    assert model(input_ids=torch.tensor([pair["input_ids"]])).logits.shape[1:] == (
        seps[-1] + 1,
        len(given),
    )
    cloze = write(tmp_path, f"The owl {given.mask_token} the river.\n", "cloze.txt")
    shown = call(demo.main, "--gen", folder, "--input", cloze, "--top_k", 3)
    assert (shown.code, shown.out.count("%") >= 3) == (0, True), shown.err
