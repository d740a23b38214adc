"""Pretraining.py from raw text to an encoder: the files and scores of a run, and their
reproducibility.
"""

import base64
import hashlib
import json
import math
import shlex
import subprocess
import sys
import traceback
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from electra_albert.apps.pretrain import alarms, evaluation, trial
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.job import Job, make_job
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.pretrain.run_card import run_facts
from electra_albert.apps.pretrain.samples import SAMPLES, inference_model, sample_predictions
from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import CorpusConfig, RunConfig
from electra_albert.objectives.evaluation import Detections, Unigram
from electra_albert.training import loop
from electra_albert.training.monitor import CLOCK
from tests.apps.conftest import Finished
from tests.apps.tiny_run import (
    ROOT,
    STEPS,
    assert_refused,
    call,
    environment,
    options,
    outcome,
    rows,
    succeed,
)
from tests.hub.models import run_code_of
from tests.training.toy import ALONE

FILES = ("config.yaml", "command.txt", "environment.json", "README.md", "metrics.jsonl", "log.txt")
FOLDERS = ("tokenizer", "tensorboard", "checkpoints", "generator", "discriminator")
POSITION = {"step", "tokens", "epoch", "phase", *CLOCK}
SCORES = {
    *("loss", "generator_loss", "discriminator_loss", "generator_accuracy", "replaced_fraction"),
    *("discriminator_precision", "discriminator_recall"),
}
STEP = {"learning_rate", "grad_norm", "tokens_per_second", "data_wait"}


def job_of(finished: Finished, more: str) -> Job:
    return make_job(parse_pretraining(finished.options(None, *more.split()))[1], ALONE)


def test_a_run_writes_the_documented_files(finished: Finished) -> None:
    assert [name for name in FILES if not (finished.folder / name).is_file()] == []
    assert [name for name in FOLDERS if not any((finished.folder / name).iterdir())] == []
    checkpoints = sorted(path.name for path in (finished.folder / "checkpoints").iterdir())
    assert checkpoints == ["step-0000010", "step-0000020"]
    newest = {path.name for path in (finished.folder / "checkpoints" / checkpoints[-1]).iterdir()}
    assert newest == {"model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"}
    assert not [
        path
        for path in finished.folder.rglob(".*")
        if path.name.startswith((".writing", ".tmp", ".can"))
    ]


def test_metrics_have_one_object_per_logged_step_with_the_documented_names_and_no_nan(
    finished: Finished,
) -> None:
    training, held_out = (
        [row for row in rows(finished.folder) if name in row] for name in ("loss", "eval_loss")
    )
    assert [row["step"] for row in training] == [1, 5, 10, 15, STEPS]
    assert [row["step"] for row in held_out] == [10, STEPS]
    for row in training:
        assert row.keys() == POSITION | SCORES | STEP
    for row in held_out:
        assert row.keys() >= POSITION | {f"eval_{name}" for name in SCORES | {"discriminator_auc"}}
    assert [row["tokens"] for row in training] == sorted(row["tokens"] for row in training)
    for line in (finished.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        assert json.dumps(json.loads(line), allow_nan=False) == line


def test_total_loss_is_generator_plus_fifty_times_discriminator(finished: Finished) -> None:
    """Law 5. In the first step, MLM is near the unigram loss and RTD near ln 2."""
    training = [row for row in rows(finished.folder) if "loss" in row]
    unigram_loss = rows(finished.folder)[-1]["eval_unigram_loss"]
    for row in training:
        total = row["generator_loss"] + 50 * row["discriminator_loss"]
        assert row["loss"] == pytest.approx(total, rel=1e-12)
    assert training[0]["generator_loss"] == pytest.approx(unigram_loss, rel=0.1)
    assert training[0]["discriminator_loss"] == pytest.approx(math.log(2), rel=0.05)
    assert training[-1]["loss"] < 0.95 * training[0]["loss"]


def test_the_baseline_uses_training_frequencies_on_held_out_masked_tokens(
    finished: Finished,
) -> None:
    job = job_of(finished, "")
    tokens = job.prepared.store.train.parts[0].tokens
    counts = np.bincount(tokens, minlength=job.config.model.vocab_size)
    index = torch.arange(job.held_out.table.count)
    targets = job.objective.corrupt(job.held_out.gather(index, index)).targets
    unigram = Unigram.from_counts(counts, job.objective.special.never_masked)
    expected = (unigram.nats[targets.labels] * targets.weight).sum() / targets.weight.sum()
    unigram_loss = rows(finished.folder)[-1]["eval_unigram_loss"]
    assert unigram_loss == pytest.approx(float(expected), rel=1e-5)


def test_energies_start_at_the_entropy_of_the_token_frequencies(finished: Finished) -> None:
    job = job_of(finished, "--objective electric")
    batch = job.held_out.gather(*[torch.arange(job.held_out.table.count)] * 2)
    energies = job.objective.discriminator(*batch[:3])
    assert float(energies.detach().mean()) == pytest.approx(job.unigram.entropy, abs=0.2)


@pytest.mark.parametrize("subfolder", ["", "discriminator"])
def test_model_cards_have_data_and_scores_and_their_code_runs(
    finished: Finished, subfolder: str
) -> None:
    card = ModelCard.load(finished.folder / subfolder / "README.md")
    assert card.data.library_name == "transformers"
    assert f"{rows(finished.folder)[-1]['eval_discriminator_auc']:.4f}" in card.text
    assert "on the corpus `tales.txt` for 20 steps" in card.text
    assert run_code_of(finished.folder / subfolder)["tokenizer"].mask_token == "[MASK]"


def test_a_model_card_has_dataset_language_and_license_if_known() -> None:
    named = {"language": "de", "license": "mit"}
    for corpus, run, known in (
        ("sample", RunConfig(), {"language": "en"}),
        (
            "Salesforce/wikitext:name",
            RunConfig(**named),
            {"datasets": ["Salesforce/wikitext"], **named},
        ),
    ):
        config = replace(PRESETS["tiny"], corpus=CorpusConfig(corpus, max_seq_length=64), run=run)
        facts = run_facts(config, {}, 1)
        assert {name: value for name, value in facts.fields.items() if value} == known


def test_the_same_command_gives_the_same_run(finished: Finished, tmp_path: Path) -> None:
    """All is computed again, in another process: tokenizer, store, masks, samples, weights."""
    succeed(pretrain.main, *options(finished.corpus, tmp_path / "prepared", tmp_path / "run"))
    assert outcome(tmp_path / "run") == outcome(finished.folder)
    parts = ("tokenizer/tokenizer.json", "generator/model.safetensors")
    for name in (*parts, "discriminator/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (finished.folder / name).read_bytes()


def test_a_discriminator_that_learns_nothing_gives_a_warning_during_training(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        alarms.evaluation,
        "is_discriminator_at_chance",
        lambda metrics: "discriminator_auc" in metrics,
    )
    argv = finished.options(tmp_path / "run", "--max_steps", 1, "--rtd.discriminator_rate", 0.5)
    ended = succeed(pretrain.main, *argv)
    warning = "at chance level although the generator learns"
    assert (warning in ended.err, warning in finished.ended.err) == (True, False)
    assert "--rtd.discriminator_rate 0.125" in ended.err


def test_closed_and_full_output_streams_do_not_fail_a_run(tmp_path: Path) -> None:
    text = "ένας μικρός σκύλος κοιμάται στον κήπο.\n" * 300
    (tmp_path / "greek.txt").write_text(text, encoding="utf-8")
    argv = options(
        tmp_path / "greek.txt", tmp_path / "prepared", tmp_path / "run", "--max_steps", 1
    )
    full = "2>/dev/full" if Path("/dev/full").exists() else ""  # only Linux has it
    command = f"{shlex.join([sys.executable, str(ROOT / 'Pretraining.py'), *argv])} >&- {full}"
    narrow = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, shell=True, cwd=tmp_path, env=narrow, timeout=200)
    assert ended.returncode == 0
    assert (tmp_path / "run" / "discriminator" / "config.json").is_file()
    log = (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert "generator accuracy" in log
    assert "[MASK]" in log


def test_a_model_card_that_cannot_be_written_is_a_one_line_error(
    finished: Finished, copied: Path
) -> None:
    (copied / "README.md").unlink()
    (copied / "README.md").mkdir()
    ended = call(pretrain.main, *finished.options(copied))
    assert_refused(ended, 2, "cannot write", "run the same command again")


def test_a_sentence_that_is_too_long_when_tokenized_again_is_skipped(tmp_path: Path) -> None:
    random = base64.b32encode(hashlib.shake_256(b"").digest(25_000)).decode().lower()
    # Tokens are single letters, so a mask splits a word.
    sentences = [
        f"{random[at : at + 20]} {random[at + 20 : at + 40]}." for at in range(0, 36000, 40)
    ]
    corpus = tmp_path / "words.txt"
    corpus.write_text("\n\n".join(sentences), encoding="utf-8")
    more = "--max_steps 1 --vocab_size 39"
    argv = options(corpus, tmp_path / "prepared", tmp_path / "run", *more.split())
    ended = succeed(pretrain.main, *argv)
    assert ended.out.count("[MASK]") < SAMPLES, ended.out
    assert "next: " in ended.out


def test_the_command_is_four_calls_from_a_step(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.TrainingStep, "accumulate", None)
    monkeypatch.setattr(loop.TrainingStep, "check", lambda *_: None)
    with pytest.raises(TypeError, match="NoneType") as reached:
        pretrain.main(finished.options(tmp_path / "run"))
    frames = traceback.extract_tb(reached.value.__traceback__)
    names = [frame.name for frame in frames if f"{ROOT}/electra_albert" in frame.filename]
    assert names[0] == "main"
    assert len(names) <= 4, names  # the last of them calls accumulate


def test_scores_of_a_source_are_those_of_its_own_examples(finished: Finished) -> None:
    sizes = "--max_seq_length 8 --per_device_eval_batch_size 5 --eval_examples 999"
    job = job_of(finished, sizes)
    objective = job.objective
    count = job.held_out.table.count
    sources = {"a": 0, "b": 7, "c": count - 3}
    assert count > 11
    with torch.no_grad():
        run = trial.quiet_run(job, ALONE)
        metrics = evaluation.score(objective, job, job.held_out, run, sources)
        for source, (first, end) in zip(sources, pairwise([*sources.values(), count]), strict=True):
            index = torch.arange(first, end)
            batch = job.held_out.gather(index, index)
            terms = objective.score(batch, job.unigram, Detections())
            assert metrics[f"masked_tokens/{source}"] == int(terms["unigram_loss"].count)
            for name in ("generator_loss", "discriminator_loss", "unigram_loss"):
                mean = float(terms[name].sum / terms[name].count)
                assert metrics[f"{name}/{source}"] == pytest.approx(mean, rel=1e-5), (name, source)


def test_the_token_of_a_sample_is_replaced_by_another_one(finished: Finished) -> None:
    job = job_of(finished, "")
    model = inference_model(job)
    original = next(sample_predictions(job, model)).original
    token = model.tokenizer.convert_tokens_to_ids(f"▁{original}")
    with torch.no_grad():
        model.generator.predictions.bias[token] += 100  # the original is the best prediction
    sample = next(sample_predictions(job, model))
    assert sample.original == original == sample.answer[0]["token_str"] != sample.replacement
    scored = [token.text for token, _ in sample.scores]
    assert scored.count(original) == model.tokenizer.tokenize(sample.text).count(f"▁{original}")
