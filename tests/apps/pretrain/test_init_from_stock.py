"""--init_from with a stock folder: equal outputs, new parts and words, and refused mismatches."""

import shutil
from pathlib import Path

import pytest
import torch

from electra_albert.apps import show_batch
from electra_albert.apps.pretrain import main as pretrain
from electra_albert.apps.pretrain.job import Job
from electra_albert.hub.formats import TABLE
from electra_albert.hub.save import save_model
from electra_albert.objectives.evaluation import Detections
from electra_albert.tokenization.tokenizer import load_tokenizer
from tests.apps import tiny_stock
from tests.apps.tiny_run import assert_refused, call, rows, succeed, untimed_rows
from tests.apps.tiny_stock import (
    MLM,
    NEW_WORDS,
    VOCAB,
    Toy,
    adapt,
    load_stock,
    masked_held_out,
    stock_mlm_loss,
)

ALBERT = "AlbertForMaskedLM"
MASKED = "--objective mlm"
WIDER = (  # twice
    "--model.hidden_size 64 --model.num_attention_heads 8 --model.intermediate_size 96"
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("toy"))


def test_initializer_range_of_the_folder_is_not_inherited(toy: Toy) -> None:
    # Regression: the random weights, drawn before the folder's are copied, had its
    # initializer_range.
    job, logged = toy.job(toy.stock(ALBERT, initializer_range=0.9), *MLM)
    assert job.config.model.initializer_range == 0.02
    assert "losses of random weights: mlm loss" in logged


def held_out_loss(job: Job, name: str) -> float:
    """Mean of a loss of the run's objective over its held-out examples."""
    with torch.no_grad():
        scores = [
            job.objective.score(masked.batch, job.unigram, Detections())[name]
            for masked in masked_held_out(job)
        ]
    return sum(float(term.sum) for term in scores) / sum(int(term.count) for term in scores)


def test_a_run_from_albert_starts_at_the_loss_of_stock_and_lowers_it(
    toy: Toy, tmp_path: Path
) -> None:
    origin = toy.stock(ALBERT)
    ended = adapt(toy, origin, tmp_path / "run", *MLM, "--max_steps", 8)
    first, last = (row for row in rows(tmp_path / "run") if "eval_mlm_loss" in row)
    assert (first["step"], last["step"]) == (0, 8)
    job, _ = toy.job(origin, *MLM)
    expected = stock_mlm_loss(load_stock(origin, ALBERT), masked_held_out(job))
    assert first["eval_mlm_loss"] == pytest.approx(expected, 1e-5)  # float32 sums in another order
    assert last["eval_mlm_loss"] < first["eval_mlm_loss"]
    for line in (f"initial weights: {origin}; randomly initialized: nothing", "start at step 1"):
        assert line in ended.err


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ElectraForMaskedLM", MASKED),
        ("AlbertForPreTraining", "--objective mlm_sop --max_seq_length 64"),
        ("BertForMaskedLM", f"{MASKED} {WIDER}"),
        ("ModernBertForMaskedLM", MASKED),
    ],
)
def test_masked_token_loss_at_step_0_is_that_of_stock(toy: Toy, kind: str, options: str) -> None:
    job, logged = toy.job(toy.stock(kind), *options.split())
    expected = stock_mlm_loss(load_stock(toy.stock(kind), kind), masked_held_out(job))
    assert held_out_loss(job, "mlm_loss") == pytest.approx(expected, rel=1e-5)
    assert "initialized: nothing" in logged


def test_the_head_of_an_electra_discriminator_is_kept(toy: Toy) -> None:
    kind = "ElectraForPreTraining"
    job, logged = toy.job(toy.stock(kind))
    stock, discriminator = load_stock(toy.stock(kind), kind), job.objective.discriminator
    batch, ids, _ = masked_held_out(job)[0]
    with torch.no_grad():
        expected = stock(**tiny_stock.stock_inputs(batch, ids)).logits
        found = discriminator(ids, batch.attention_mask, batch.token_type_ids)
    mask = batch.attention_mask
    assert torch.allclose(found[mask], expected[mask], atol=1e-5)
    assert (job.lacks_generator, "initialized: generator" in logged) == (True, True)


@pytest.mark.parametrize(
    ("kind", "options", "new", "unused"),
    [
        ("AlbertModel", "", "discriminator_predictions, generator", {"pooler"}),
        ("AlbertForPreTraining", MASKED, "nothing", {"sentence_order", "pooler"}),
        ("ElectraForPreTraining", MASKED, "predictions", {"discriminator_predictions"}),
    ],
)
def test_new_and_unused_parts_are_logged(
    toy: Toy, kind: str, options: str, new: str, unused: set[str]
) -> None:
    origin = toy.stock(kind)
    job, logged = toy.job(origin, *options.split())
    assert f"initial weights: {origin}; randomly initialized: {new}\n" in logged
    (line,) = (line for line in logged.splitlines() if line.startswith("not used: "))
    assert {*line.removeprefix("not used: ").split(", ")} == unused
    assert job.lacks_generator == ("generator" in new)
    assert ("notice: forgetting" in logged, "--old_corpus" in logged) == (True, True)


def test_a_generator_of_the_same_size_gets_the_masked_language_model(
    toy: Toy, tmp_path: Path
) -> None:
    origin, same_size = toy.stock(ALBERT), ("--rtd.generator_size", 1)
    job, logged = toy.job(origin, *same_size)
    assert "initialized: discriminator_predictions\n" in logged
    expected = stock_mlm_loss(load_stock(origin, ALBERT), masked_held_out(job))
    assert held_out_loss(job, "generator_loss") == pytest.approx(expected, rel=1e-5)
    assert job.config.rtd.generator_rate == 1  # the preset's is for random weights
    adapt(toy, origin, tmp_path / "run", *same_size)
    assert not (tmp_path / "run" / "generator_warmup").exists()


def write_pair(toy: Toy, folder: Path, *more: object) -> Path:
    """Write discriminator and generator of an untrained run next to each other, without
    checkpoints.
    """
    job, _ = toy.job(toy.stock("ElectraForPreTraining"), "--rtd.embedding_sharing", "full", *more)
    save_model(job.objective.discriminator, job.prepared.tokenizer, folder / "discriminator")
    save_model(job.objective.generator, job.prepared.tokenizer, folder / "generator")
    return folder


def test_generator_and_discriminator_are_both_loaded_for_any_generator_size(
    toy: Toy, tmp_path: Path
) -> None:
    pair = write_pair(toy, tmp_path / "pair", "--rtd.generator_size", 0.5)
    job, logged = toy.job(pair)
    assert ("initialized: nothing" in logged, job.lacks_generator) == (True, False)
    generator = load_stock(pair / "generator", "AlbertForMaskedLM")
    batch, ids, _ = masked_held_out(job)[0]
    with torch.no_grad():
        expected = generator(**tiny_stock.stock_inputs(batch, ids)).logits
        model = job.objective.generator
        found = model.logits(model(ids, batch.attention_mask, batch.token_type_ids))
    assert torch.allclose(found[batch.attention_mask], expected[batch.attention_mask], atol=1e-5)
    adapt(toy, pair / "discriminator", tmp_path / "run")
    assert not (tmp_path / "run" / "generator_warmup").exists()


def test_only_a_new_generator_starts_at_the_token_frequencies(toy: Toy, tmp_path: Path) -> None:
    job, _ = toy.job(toy.stock("ElectraForPreTraining"))
    assert job.lacks_generator
    bias = job.objective.generator.predictions.bias
    assert torch.equal(bias, job.unigram.entropy - job.unigram.nats)
    pair = write_pair(toy, tmp_path / "pair")
    trained = load_stock(pair / "generator", ALBERT)
    torch.nn.init.normal_(trained.predictions.bias)
    trained.save_pretrained(pair / "generator")
    job, _ = toy.job(pair)
    assert torch.equal(job.objective.generator.predictions.bias, trained.predictions.bias)


def test_a_pair_without_shared_embeddings_is_refused(toy: Toy, tmp_path: Path) -> None:
    pair = write_pair(toy, tmp_path / "pair")
    shutil.rmtree(pair / "generator")
    job, _ = toy.job(toy.stock("ElectraForMaskedLM"), "--objective", "mlm")
    save_model(job.objective.generator, job.prepared.tokenizer, pair / "generator")
    ended = call(pretrain.main, *toy.options(pair, tmp_path / "run"))
    assert_refused(ended, 4, str(pair), "do not share their embeddings")
    shutil.move(pair / "generator", tmp_path / "elsewhere")
    _, logged = toy.job(pair)
    assert "initialized: generator" in logged


def test_the_old_text_is_scored_before_and_after_training(toy: Toy, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = f"{MASKED} --old_corpus {toy.old_text} --max_steps 4 --save_steps 2"
    ended = adapt(toy, toy.stock(ALBERT), run, *more.split())
    first, last = (row for row in rows(run) if "eval_mlm_loss" in row)
    assert (first["step"], last["step"]) == (0, 4)
    for row in (first, last):
        assert row["eval_old_text_mlm_loss"] not in (None, row["eval_mlm_loss"])
    table = ended.out[ended.out.index("at step 0") :]
    row_text = next(line for line in table.splitlines() if line.startswith("mlm loss, old text"))
    printed = [f"{row['eval_old_text_mlm_loss']:.3f}" for row in (first, last)]
    assert row_text.split()[4:6] == printed
    assert "notice: forgetting" not in ended.err
    job, _ = toy.job(toy.stock(ALBERT), *MLM, "--old_corpus", toy.old_text)
    assert job.origin.held_out.table.count > 100  # all of the old text: it is not trained on
    old = masked_held_out(job._replace(held_out=job.origin.held_out))
    expected = stock_mlm_loss(load_stock(toy.stock(ALBERT), ALBERT), old)
    assert first["eval_old_text_mlm_loss"] == pytest.approx(expected, rel=1e-5)


def test_an_invalid_old_corpus_is_refused_before_preparation(toy: Toy, tmp_path: Path) -> None:
    # Regression: the new text was prepared first, which can take hours.
    folders = f"--output_dir {tmp_path}/run --prepared_dir {tmp_path}/prepared"
    alone = f"--corpus {toy.new_text} --old_corpus {toy.old_text} {folders}"
    assert_refused(call(pretrain.main, *alone.split()), 2, "old_corpus", "--init_from")
    more = f"{MASKED} --old_corpus {tmp_path}/gone.txt {folders}"
    argv = toy.options(toy.stock(ALBERT), tmp_path / "run", *more.split())
    assert_refused(call(pretrain.main, *argv), 2, "--old_corpus", "no such file")
    assert not (tmp_path / "prepared").exists()


def test_new_words_extend_embeddings_config_and_tokenizer(toy: Toy, tmp_path: Path) -> None:
    kind = "BertForMaskedLM"
    own = load_tokenizer(toy.stock(kind))
    wanted = len(own) + len(NEW_WORDS)
    ended = adapt(toy, toy.stock(kind), tmp_path / "run", *MLM, "--extend_vocab_to", wanted)
    assert f"{len(NEW_WORDS)} new" in ended.err
    exported = tmp_path / "run" / "generator"
    tokenizer = load_tokenizer(exported)
    assert len(tokenizer) == wanted
    for word in NEW_WORDS:
        assert len(tokenizer.tokenize(word)) == 1 < len(own.tokenize(word))
    assert len(load_stock(exported, ALBERT).get_input_embeddings().weight) == wanted


def test_a_new_token_starts_as_the_mean_of_its_old_subwords(toy: Toy) -> None:
    own = load_tokenizer(toy.stock(ALBERT))
    job, _ = toy.job(toy.stock(ALBERT), *MLM, "--extend_vocab_to", VOCAB + len(NEW_WORDS))
    new = job.objective.generator.state_dict()
    old = load_stock(toy.stock(ALBERT), ALBERT).state_dict()
    for word in NEW_WORDS:
        (number,) = job.prepared.tokenizer.encode(word, add_special_tokens=False)
        before = own.encode(word, add_special_tokens=False)
        assert number >= VOCAB
        for name, prefix in ((TABLE, "albert."), ("predictions.bias", "")):
            assert torch.allclose(new[name][number], old[prefix + name][before].mean(0), atol=1e-6)
    assert torch.equal(new[TABLE][:VOCAB], old[f"albert.{TABLE}"])


def test_an_extended_run_resumes_without_the_original_folder(toy: Toy, tmp_path: Path) -> None:
    origin = shutil.copytree(toy.stock(ALBERT), tmp_path / "origin")
    command = (*MLM, "--extend_vocab_to", VOCAB + 500, "--save_steps", 1)
    adapt(toy, origin, tmp_path / "run", *command)
    expected = untimed_rows(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000002")
    shutil.rmtree(origin)
    assert "after step 1" in adapt(toy, origin, tmp_path / "run", *command).err
    assert untimed_rows(tmp_path / "run") == expected
    succeed(pretrain.main, "--config", tmp_path / "run" / "config.yaml")
    succeed(show_batch.main, "--run", tmp_path / "run", "--step", 2)


def test_vocabulary_is_extended_for_a_model_folder_but_not_for_a_run(
    toy: Toy, tmp_path: Path
) -> None:
    adapt(toy, toy.stock(ALBERT), tmp_path / "first", *MLM)
    first, second = tmp_path / "first", tmp_path / "second"
    for option, value, word in (
        ("--extend_vocab_to", VOCAB + 1, "vocabulary"),
        ("--model.num_attention_heads", 2, "num_attention_heads"),
        ("--model.num_hidden_layers", 1, "num_hidden_layers"),
    ):
        ended = call(pretrain.main, *toy.options(first, second, *MLM, option, value))
        assert_refused(ended, 4, str(first), word)
    adapt(toy, first / "generator", second, *MLM, "--extend_vocab_to", VOCAB + 1)


def test_unused_embedding_rows_are_dropped_and_length_is_limited_by_the_positions(
    toy: Toy, tmp_path: Path
) -> None:
    job, _ = toy.job(toy.stock(ALBERT, vocab_size=VOCAB + 10), *MLM)
    assert job.objective.generator.config.vocab_size == VOCAB
    argv = toy.options(toy.stock(ALBERT, max_position_embeddings=32), tmp_path / "run", *MLM)
    at = argv.index("--max_seq_length")
    del argv[at : at + 2]
    assert "of 32 tokens" in succeed(pretrain.main, *argv, "--dry_run").err


def test_an_incompatible_folder_or_option_is_refused(toy: Toy, tmp_path: Path) -> None:
    fits, small = toy.stock(ALBERT), toy.stock(ALBERT, vocab_size=VOCAB - 10)
    unknown, empty = (shutil.copytree(fits, tmp_path / name) for name in ("unknown", "empty"))
    config = unknown / "config.json"
    config.write_text(config.read_text().replace('pe": "albert"', 'pe": "roberta"'))
    (empty / "model.safetensors").unlink()
    for origin, more, code, word in (
        (fits, ("--model.hidden_size", 64), 4, "num_attention_heads"),
        (fits, ("--model.hidden_act", "relu"), 4, "hidden_act"),
        (fits, ("--tokenizer", toy.stock("BertForMaskedLM")), 2, "--tokenizer"),
        (small, (), 4, str(VOCAB - 10)),
        (unknown, (), 4, "roberta"),
        (empty, (), 2, "model.safetensors"),
    ):
        ended = call(pretrain.main, *toy.options(origin, tmp_path / "run", *MLM, *more))
        assert_refused(ended, code, word)
        assert not (tmp_path / "run" / "checkpoints").exists()
