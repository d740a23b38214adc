"""Scores of a text: every token predicted once, stock's own numbers, and nothing that depends on the batch."""

from __future__ import annotations

import json
import lzma
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from electra_albert.apps import score
from electra_albert.contracts import Batch, DataError, UsageError
from electra_albert.inference.model import InferenceModel, load_model
from electra_albert.inference.score_text import ROUNDS, TextScore, mask_rounds, predict_batch, score_text
from electra_albert.model.electra import Generator
from electra_albert.objectives.masking import SpecialIds
from tests.apps.conftest import Finished
from tests.apps.test_inference import make_stock, tokenizer_of
from tests.apps.tiny_run import assert_refused, call, english, finish, sha256, start

TOLERANCE = 1e-5  # of a mean over tokens, in float32: sums of rows in batches of other shapes run otherwise
SENTENCE = "The old bridge fell into the river, but the dog in the house heard it 漢 and barked at the moon."
PAIRS = [{"sentence_good": "The dog barked.", "sentence_bad": "The dog it barked."}] * 2


@pytest.fixture(scope="module")
def model(finished: Finished) -> InferenceModel:
    """The tiny run: a generator and a discriminator."""
    return load_model(finished.folder, device="cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Many short documents, a token without a piece, and the text of a special token."""
    file = tmp_path / "new.txt"
    file.write_text(english(12, seed=5) + "\nA quiet 漢 owl\n\nand [MASK] twice\n", encoding="utf-8")
    return file


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, PAIRS)), encoding="utf-8")
    return file


@pytest.mark.parametrize("length", [1, 5, 7, 53])
def test_the_rounds_mask_every_token_of_the_text_once_and_nothing_else(length: int) -> None:
    is_text = torch.arange(3 * length).view(3, length) % 5 > 0
    rounds = list(mask_rounds(is_text))
    assert len(rounds) == ROUNDS
    assert torch.equal(torch.stack(rounds).sum(0), is_text.long())
    shares = torch.stack(rounds).sum(-1)  # [rounds, B]
    assert int((shares.max(0).values - shares.min(0).values).max()) <= 1


def test_no_token_stands_unmasked_in_the_round_that_predicts_it(model: InferenceModel) -> None:
    """Told by what the model is shown: in each round its row differs from the text at the masks alone."""
    assert model.generator is not None
    shown: list[torch.Tensor] = []
    hook = model.generator.embeddings.register_forward_hook(lambda *given: shown.append(given[1][0]))
    ids = torch.arange(5, 24)[None]
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids), ids[:, 0], ids[:, 0])
    mask = int(model.tokenizer.mask_token_id)
    predict_batch(model.generator, batch, SpecialIds(mask, (mask, 5, 23)), unknown=None)
    hook.remove()
    masked = torch.cat(shown) == mask  # [rounds, L]
    assert masked.sum(0).tolist() == [0] + 17 * [1] + [0]
    assert torch.equal(torch.cat(shown)[~masked], ids.expand(ROUNDS, -1)[~masked])


def test_the_score_of_a_row_is_what_the_stock_model_gives(tmp_path: Path) -> None:
    stock = make_stock(tmp_path, "AlbertForMaskedLM", embedding_size=11)
    file = tmp_path / "one.txt"
    file.write_text(SENTENCE, encoding="utf-8")
    found = score_text(load_model(tmp_path, device="cpu"), file)
    inputs = tokenizer_of(tmp_path)(SENTENCE, return_tensors="pt")
    ids = inputs["input_ids"][0]
    nats, hits, unknown_nats = 0.0, 0, 0.0
    for first in range(1, 1 + ROUNDS):
        places = torch.arange(first, len(ids) - 1, ROUNDS)
        masked = ids.index_fill(0, places, tokenizer_of(tmp_path).mask_token_id)
        with torch.no_grad():
            logits = stock(**{**inputs, "input_ids": masked[None]}).logits[0, places]
        cost = -logits.double().log_softmax(-1).gather(1, ids[places, None]).squeeze(1)
        nats += float(cost.sum())
        unknown_nats += float(cost[ids[places] == tokenizer_of(tmp_path).unk_token_id].sum())
        hits += int((logits.argmax(-1) == ids[places]).sum())
    assert (found.rows, found.tokens, found.words) == (1, len(ids) - 2, len(SENTENCE.split()))
    assert found.nats == pytest.approx(nats, rel=TOLERANCE)
    assert found.unknown_nats == pytest.approx(unknown_nats, rel=TOLERANCE)
    assert found.correct == hits
    assert found.unknown_tokens == 1


def test_how_many_rows_are_read_together_changes_nothing(model: InferenceModel, text: Path, finished: Finished) -> None:
    together = score_text(model, text, 32)
    assert together.rows > 8
    for batch_tokens in (1, 100):
        apart = score_text(load_model(finished.folder, "cpu", batch_tokens), text, 32)
        assert apart.nats_per_token == pytest.approx(together.nats_per_token, abs=TOLERANCE)
        assert apart.unknown_nats == pytest.approx(together.unknown_nats, rel=TOLERANCE)
        sums = {"nats": 0.0, "unknown_nats": 0.0, "correct": 0}
        assert apart._replace(**sums) == together._replace(**sums)


def test_all_of_the_text_is_counted(model: InferenceModel, text: Path) -> None:
    found, raw = score_text(model, text), text.read_text(encoding="utf-8")
    ids = [model.tokenizer(line, split_special_tokens=True)["input_ids"][1:-1] for line in raw.splitlines()]
    flat = [number for line in ids for number in line]
    assert (found.tokens, found.words) == (len(flat), len(raw.split()))
    assert found.unknown_tokens == flat.count(model.tokenizer.unk_token_id)
    assert found.unknown_tokens >= 1
    share = np.unique(flat, return_counts=True)[1] / len(flat)
    assert found.unigram_entropy == pytest.approx(float(-(share * np.log(share)).sum()))


def test_the_length_of_rows_is_the_usual_or_what_the_model_reads(model: InferenceModel, text: Path) -> None:
    assert score_text(model, text).max_seq_length == 64  # the tiny run's positions
    assert score_text(model, text, 16).rows > score_text(model, text, 48).rows


def test_the_form_of_the_file_changes_nothing(model: InferenceModel, tmp_path: Path) -> None:
    documents = [document.replace("\n", " ") for document in english(9).strip().split("\n\n")]
    plain, packed, records = tmp_path / "a.txt", tmp_path / "a.txt.xz", tmp_path / "a.jsonl"
    plain.write_text("\n\n".join(documents), encoding="utf-8")
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    records.write_text("\n".join(json.dumps({"body": document}) for document in documents), encoding="utf-8")
    expected = score_text(model, plain)
    assert score_text(model, packed)._replace(file=plain) == expected
    assert score_text(model, records, text_column="body")._replace(file=plain) == expected


def of_sums(nats: float, unknown_tokens: int = 2) -> TextScore:
    return TextScore(Path("x"), 64, 1, 10, 4, unknown_tokens, nats, 8.0, 5, 2.0)


def test_means_are_sums_by_their_counts() -> None:
    found = of_sums(20.0)
    assert (found.nats_per_token, found.nats_per_word, found.accuracy) == (2.0, 5.0, 0.5)
    assert found.nats_per_known_token == 1.5
    assert of_sums(8.0, unknown_tokens=10).nats_per_known_token is None
    assert found.pseudo_perplexity == pytest.approx(math.exp(5))
    assert of_sums(1e5).pseudo_perplexity is None  # more than a float holds; JSON knows no infinity


def test_a_model_of_one_segment_reads_rows_of_two(tmp_path: Path, text: Path) -> None:
    make_stock(tmp_path / "one", "BertForMaskedLM", type_vocab_size=1)
    found = score_text(load_model(tmp_path / "one", "cpu"), text)
    assert math.isfinite(found.nats)


def test_a_model_without_the_head_is_refused(finished: Finished, text: Path) -> None:
    with pytest.raises(UsageError, match="scored by a masked-token head, and this model has none"):
        score_text(load_model(finished.folder / "discriminator", "cpu"), text)


@pytest.mark.parametrize("length", [0, 7, 65])
def test_rows_that_do_not_suit_the_model_are_refused(model: InferenceModel, text: Path, length: int) -> None:
    with pytest.raises(UsageError, match=f"max_seq_length={length} must be from 8 to the model's 64"):
        score_text(model, text, length)


def test_a_text_that_holds_none_is_refused(model: InferenceModel, tmp_path: Path) -> None:
    blank, unmarked = tmp_path / "blank.txt", tmp_path / "marks.txt"
    blank.write_text(" \n\n", encoding="utf-8")
    unmarked.write_text("\u0301\n", encoding="utf-8")  # an accent alone, which the tokenizer takes off
    for file in (blank, unmarked):
        with pytest.raises(DataError, match="there is no text in it") as refused:
            score_text(model, file)
        assert str(refused.value).startswith(str(file))


# The command.


def run(*argv: object) -> Any:
    return call(score.main, "--device", "cpu", *argv)


def test_the_command_prints_and_writes_what_the_functions_give(
    model: InferenceModel, finished: Finished, text: Path, pairs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "scores.json"
    ended = run("--model", finished.folder, "--text", text, text, "--pairs", pairs, "--output", output)
    assert ended.code == 0, ended.err
    found, expected = json.loads(output.read_text(encoding="utf-8")), score_text(model, text)
    one = found["text"][0]
    assert found["text"] == [one, one]
    assert [one["nats"], one["correct"], one["pseudo_perplexity"]] == [
        expected.nats,
        expected.correct,
        expected.pseudo_perplexity,
    ]
    assert found["pairs"].keys() == {"likelihood", "detection"}
    assert found["pairs"]["detection"]["sets"]["pairs"]["pairs"] == 2
    weights = [finished.folder / name / "model.safetensors" for name in ("discriminator", "generator")]
    assert found["weights"] == {str(file): sha256(file) for file in weights}
    assert (found["model"], found["options"]["text"], found["left_out"]) == (str(finished.folder), [str(text)] * 2, [])
    assert f"{expected.nats_per_token:.4f}" in ended.out
    assert "mean of 1 sets" in ended.out


def test_what_a_model_cannot_do_is_said_and_the_rest_is_done(
    finished: Finished, text: Path, pairs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "scores.json"
    asked = ("--text", text, "--pairs", pairs, "--output", output)
    detector = run("--model", finished.folder / "discriminator", *asked)
    assert detector.code == 0, detector.err
    assert "notice: --text is left out: the model has no masked-token head" in detector.err
    written = json.loads(output.read_text(encoding="utf-8"))
    assert (written["text"], [*written["pairs"]], len(written["left_out"])) == ([], ["detection"], 2)
    generator = run("--model", finished.folder / "generator", *asked)
    assert "notice: --pairs without detection: the model has no detection head" in generator.err
    assert [*json.loads(output.read_text(encoding="utf-8"))["pairs"]] == ["likelihood"]


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "tokenizers", "datasets", "sklearn", "pyarrow")
    program = (
        "import sys\nfrom electra_albert.apps.score import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n"
        f"    print('code', end.code, 'loaded', [name for name in {heavy} if name in sys.modules])\n"
    )
    ended = finish(start(["-c", program], tmp_path))
    assert ended.out.splitlines()[-1] == "code 0 loaded []", ended.err
    assert "--pairs" in ended.out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), ["nothing to score", "--text, --pairs or both"]),
        (("--text", "nowhere.txt"), ["--text nowhere.txt: no such file"]),
        (("--text", "."), ["--text .: no file"]),
        (("--pairs", "nowhere"), ["--pairs nowhere: no such file or folder"]),
        (("--pairs", ""), ["--pairs is empty"]),
        (("--pairs", "p.jsonl", "--max_pairs", 0), ["--max_pairs 0 must be at least 1"]),
        (("--text", "p.jsonl", "--max_pairs", 3), ["--max_pairs has no effect without --pairs"]),
        (("--pairs", "p.jsonl", "--output", "."), ["--output . is no file"]),
        (("--pairs", ".", "--output", "./p.jsonl"), ["p.jsonl is there and holds no scores"]),
        (("--text", "p.jsonl", "--output", "p.jsonl"), ["p.jsonl is there and holds no scores"]),
        (("--pairs", "p.jsonl", "--output", "/proc/no/s.json"), ["/proc/no/s.json cannot be written ("]),
        (("--pairs", "p.jsonl", "--output", "p.jsonl/scores.json"), ["cannot write into", "is a file"]),
        (("--texts", "p.jsonl"), ["there is no option --texts", "did you mean --text?"]),
    ],
)
def test_a_wrong_option_is_refused(
    finished: Finished, in_folder: Path, argv: tuple[object, ...], words: list[str]
) -> None:
    (in_folder / "p.jsonl").write_text(json.dumps(PAIRS[0]), encoding="utf-8")
    assert_refused(run("--model", finished.folder, *argv), 2, *words)


@pytest.mark.parametrize("file", ["generator/model.safetensors", "generator/config.json", "generator/tokenizer.json"])
def test_no_file_of_the_model_is_written_over(finished: Finished, tmp_path: Path, pairs: Path, file: str) -> None:
    run_folder = shutil.copytree(finished.folder, tmp_path / "run")
    before = (run_folder / file).read_bytes()
    refused = run("--model", run_folder, "--pairs", pairs, "--output", run_folder / file)
    assert_refused(refused, 2, f"{file} is there and holds no scores")
    assert (run_folder / file).read_bytes() == before


def test_earlier_scores_are_written_over(finished: Finished, tmp_path: Path, pairs: Path) -> None:
    file = tmp_path / "scores.json"
    for most in (1, 2):
        assert run("--model", finished.folder, "--pairs", pairs, "--max_pairs", most, "--output", file).code == 0
    assert json.loads(file.read_text(encoding="utf-8"))["options"]["max_pairs"] == 2


def test_a_model_without_any_head_asked_for_is_refused(
    finished: Finished, tmp_path: Path, text: Path, pairs: Path
) -> None:
    make_stock(tmp_path / "bare", "AlbertModel", embedding_size=11)
    refused = run("--model", tmp_path / "bare", "--text", text, "--pairs", pairs)
    assert_refused(refused, 2, "no masked-token head and no detection head")
    assert_refused(run("--model", finished.folder / "discriminator", "--text", text), 2, "no masked-token head")


def test_the_generator_alone_scores_a_text_as_the_run_does(
    model: InferenceModel, finished: Finished, text: Path
) -> None:
    alone = load_model(finished.folder / "generator", "cpu")
    assert isinstance(alone.generator, Generator)
    assert score_text(alone, text) == score_text(model, text)
