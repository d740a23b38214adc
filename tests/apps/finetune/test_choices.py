"""Choices of model, head, recipe and data: a user's table, the defaults, a call from Python."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
import yaml
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from transformers import AlbertConfig, AlbertForMaskedLM

import electra_albert as ea
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune import sweep as sweeps
from electra_albert.apps.finetune.base_model import find_base_model
from electra_albert.apps.finetune.main import parse_finetuning
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, copy_as_learned, rows, untimed_rows
from tests.apps.tiny_tasks import SEED, Tiny, losses, options, results, stories, tune
from tests.training.toy import ALONE

QUICK: tuple[object, ...] = ("--max_steps", 3, "--logging_steps", 1)
Train = Callable[..., Path]


@pytest.fixture
def train(finished: Finished, tiny: Tiny, tmp_path: Path) -> Train:
    """Fine-tunes the tiny run, or a part of it, into a folder of this name."""

    def into(name: str, *more: object, part: str = "") -> Path:
        tune(*tiny.options(finished.folder / part, tmp_path / name, *QUICK, *more))
        return tmp_path / name

    return into


# The model.


def test_fine_tuning_starts_from_the_discriminator(train: Train) -> None:
    whole, *parts = (
        losses(train(f"out-{part}", part=part)) for part in ("", "discriminator", "generator")
    )
    assert whole == parts[0] != parts[1]


def test_from_scratch_takes_the_shape_and_not_the_weights(train: Train) -> None:
    folders = train("begun"), train("scratch", "--from_scratch")
    assert losses(folders[0]) != losses(folders[1])
    assert [results(folder)["from_scratch"] for folder in folders] == [False, True]
    assert "encoder" in (folders[1] / "log.txt").read_text()
    shapes = [json.loads((folder / "model" / "config.json").read_text()) for folder in folders]
    assert shapes[0] == shapes[1]


def test_the_newest_run_is_the_default_model(
    finished: Finished, tiny: Tiny, in_folder: Path
) -> None:
    copy_as_learned(finished.folder, in_folder / "runs" / "mine")
    assert "runs/mine" in tune(*tiny.options(None, None, *QUICK)).err
    assert (in_folder / "runs" / "cola-mine" / "results.json").is_file()


# Its head and settings.


@pytest.fixture
def stock(finished: Finished, tmp_path: Path) -> Path:
    """A folder saved by transformers with random weights, wider than the published small models."""
    folder = shutil.copytree(finished.folder / "generator", tmp_path / "stock")
    sizes = {"hidden_size": 264, "num_attention_heads": 2, "intermediate_size": 32}
    config = AlbertConfig.from_pretrained(folder, num_hidden_layers=1, **sizes)
    AlbertForMaskedLM(config).save_pretrained(str(folder))
    return folder


def test_recipes_depend_on_model_task_and_options(
    finished: Finished, stock: Path, tiny: Tiny, tmp_path: Path
) -> None:
    bare = ("--task", "cola", "--data_dir", tiny.folder, "--device", "cpu", *QUICK)
    for model, more, wanted in (
        (finished.folder, (), (3e-4, 0.8)),
        (stock, (), (1e-5, 1.0)),
        (finished.folder, ("--recipe", "albert"), (1e-5, 1.0)),
        (finished.folder, ("--learning_rate", 0.002), (0.002, 0.8)),
    ):
        tune(*bare, "--model", model, "--output_dir", out := tmp_path / f"out-{wanted}", *more)
        config = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
        assert (config["learning_rate"], config["layer_decay"]) == wanted
        shutil.rmtree(out)


HEAD = "discriminator_predictions.dense.bias"


@pytest.mark.parametrize(
    ("file", "head"),
    [
        ("model.safetensors", HEAD),
        ("pytorch_model.bin", HEAD),
        ("model.safetensors.index.json", HEAD),
        ("model.safetensors.index.json", None),
    ],
)
def test_a_wide_discriminator_is_known_by_the_names_of_its_tensors(
    stock: Path, file: str, head: str | None
) -> None:
    tensors = load_file(stock / "model.safetensors")
    tensors |= {} if head is None else {head: torch.zeros(264)}
    (stock / "model.safetensors").unlink()
    if file == "pytorch_model.bin":
        torch.save(tensors, stock / file)
    else:
        shard = "shard.safetensors" if file.endswith("json") else file
        save_file(tensors, stock / shard)
        index = {"weight_map": dict.fromkeys(tensors, shard)}
        (stock / "model.safetensors.index.json").write_text(json.dumps(index))
    config = parse_finetuning(["--model", str(stock)])
    base = find_base_model(config, ALONE)
    assert base.family == ("albert" if head is None else "electra")


def test_a_recorded_configuration_repeats_the_sweep(train: Train, tmp_path: Path) -> None:
    folder = train("out", "--hidden_dropout_prob", 0.1)
    tune("--config", folder / "config.yaml", "--output_dir", tmp_path / "again")
    assert untimed_rows(tmp_path / "again" / f"seed-{SEED}") == untimed_rows(
        folder / f"seed-{SEED}"
    )


def test_early_stopping_ends_a_run_without_improvement(train: Train) -> None:
    more = ("--learning_rate", 1e-9, "--max_steps", 9, "--evals_per_epoch", 10)
    folder = train("out", "--early_stopping_patience", 2, *more)
    # The first of three evaluations, after each update, was the best.
    assert results(folder)["updates"] == [3]
    assert not list(folder.rglob("best*"))


def test_early_stopping_keeps_the_best_weights_not_those_of_the_last_rise(
    train: Train, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, heads = [0.5, 0.7, 0.6, 0.7, 0.7], list[torch.Tensor]()
    score = sweeps.score

    def scripted(job: Any, objective: Any, *others: Any) -> Any:
        result: Any = score(job, objective, *others)
        result.metrics[tiny.main_metric] = scores[len(heads)]
        heads.append(objective.model.classifier.weight.clone())
        return result

    monkeypatch.setattr(sweeps, "score", scripted)
    more = ("--max_steps", 4, "--evals_per_epoch", 10)
    folder = train("out", "--early_stopping_patience", 9, *more)
    *trained, kept = heads
    assert [kept.equal(head) for head in trained] == [False, True, False, False]
    log = [row["eval_loss"] for row in rows(folder / f"seed-{SEED}") if "eval_loss" in row]
    assert results(folder)["metrics"]["loss"]["values"] == pytest.approx([log[1]], rel=1e-6)


def test_plain_tags_have_no_f1_and_all_of_them_are_written(
    finished: Finished, tmp_path: Path
) -> None:
    file, out = tmp_path / "pos.conll", tmp_path / "out"
    file.write_text("owl NOUN\nran VERB\n" * 200)
    files = ("--train_file", file, "--validation_file", file)
    ended = tune(*options("ner", None, finished.folder, out, *QUICK, *files))
    assert ended.err.count("so there is no F1") == 1
    assert results(out)["metrics"].keys() == {"loss", "accuracy"}
    _, gold, predicted, _, text = (out / "predictions.tsv").read_text().splitlines()[1].split("\t")
    assert (gold.count(" "), predicted.count(" "), len(text)) == (399, 399, 502)


# The user's own table.


def test_the_users_own_table_is_read_by_the_columns_named(
    finished: Finished, tmp_path: Path
) -> None:
    found = [
        {"said": f"{one.text} So it was.", "then": one.kind, "where": f"a\t{one.place}"}
        for one in stories(60, 1)
    ]
    table, model = tmp_path / "table.parquet", tmp_path / "out"
    parquet.write_table(pyarrow.Table.from_pylist(found), table)
    columns = ("--text_column", "said", "--text_pair_column", "then", "--label_column", "where")
    files = ("--train_file", table, "--validation_file", table)
    tune(*options("custom", None, finished.folder, model, *QUICK, *files, *columns))
    header = (model / "confusion.tsv").read_text().split("\n")[0]
    assert header.split("\t")[1:] == sorted({" ".join(row["where"].split()) for row in found})
    tune("--model", model, "--predict", table, "--precision", "fp32")  # its columns are recorded
    evaluated, alone = (
        [row.split("\t")[2:] for row in (model / name).read_text().splitlines()]
        for name in ("predictions.tsv", "predicted.tsv")
    )
    assert alone == evaluated
    files = ("--validation_file", table, "--output_dir", tmp_path / "alone")
    score_only = ("--model", model, "--num_train_epochs", 0, *files, *columns[:2], *columns[4:])
    assert_refused(call(finetune.main, *score_only), 2, "on pairs of texts; give")


# From Python, and with defaults.


def test_a_program_gets_what_the_command_reports(
    train: Train, finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    command = train("command")
    argv = tiny.options(finished.folder, tmp_path / "program", *QUICK)
    named = zip(argv[::2], map(yaml.safe_load, argv[1::2]), strict=True)
    run = ea.finetune(**{name.removeprefix("--"): value for name, value in named})
    assert losses(tmp_path / "program") == losses(command)
    assert (run.folder, run.step, run.is_stopped) == (tmp_path / "program", 3, False)
    assert run.metrics == {
        name: metric["values"][0] for name, metric in results(command)["metrics"].items()
    }
    config = parse_finetuning(tiny.options(finished.folder, tmp_path / "config", *QUICK))
    assert ea.finetune(config).metrics == run.metrics
    for idle in ({"learning_rat": 1}, {"task": "cola", "from_mnli": True}):
        with pytest.raises(ea.UsageError):
            ea.finetune(**idle)


def test_the_built_in_task_is_the_default(finished: Finished, in_folder: Path) -> None:
    tune("--model", finished.folder, "--device", "cpu", *QUICK, "--max_train_examples", 64)
    assert results(in_folder / "runs" / "topics-run")["task"] == "topics"
