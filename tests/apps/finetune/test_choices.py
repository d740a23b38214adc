"""Choices of model, head, recipe, data and tasks: a user's table, all of GLUE, the defaults."""

import json
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
import yaml
from pyarrow import csv, parquet
from safetensors.torch import load_file, save_file
from transformers import AlbertConfig, AlbertForMaskedLM, AutoModel

import electra_albert as ea
from electra_albert import contracts as ea_errors
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune import sweep as sweeps
from electra_albert.apps.finetune.base_model import find_base_model
from electra_albert.apps.finetune.main import parse_finetuning
from electra_albert.hub.load import load_task_model, locate
from electra_albert.training import loop
from electra_albert.training.distributed import World
from tests.apps.conftest import Finished
from tests.apps.tiny_run import assert_refused, call, copy_as_learned, rows, untimed_rows
from tests.apps.tiny_tasks import (
    SEED,
    Tiny,
    losses,
    options,
    results,
    stories,
    tune,
)

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


def test_an_electra_head_has_no_pooler_and_can_be_loaded(
    train: Train, tiny: Tiny, tmp_path: Path
) -> None:
    head = ("--head", "electra")
    folder = train("out", *head, "--hidden_dropout_prob", 0.3, "--classifier_dropout_prob", 0.3)
    model, details = load_task_model(locate(folder / "model"))
    assert details["style"] == "electra"
    assert not any(
        name.startswith(("pooler", "classifier")) for name, _ in model.named_parameters()
    )
    AutoModel.from_pretrained(str(folder / "model"), local_files_only=True, add_pooling_layer=False)
    tune(*tiny.options(folder / "model", tmp_path / "again", *head, "--num_train_epochs", 0))
    again, first = (
        results(tmp_path / name)["metrics"]["loss"]["values"] for name in ("again", "out")
    )
    assert again == pytest.approx(first, rel=1e-6)


@pytest.fixture
def stock(finished: Finished, tmp_path: Path) -> Path:
    """A folder saved by transformers with random weights, wider than the published small models."""
    folder = shutil.copytree(finished.folder / "generator", tmp_path / "stock")
    config = {
        "hidden_size": 264,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
    }
    AlbertForMaskedLM(AlbertConfig.from_pretrained(folder, **config)).save_pretrained(str(folder))
    return folder


def test_recipes_depend_on_model_task_and_options(
    finished: Finished, stock: Path, tiny: Tiny, tmp_path: Path
) -> None:
    bare = (
        "--task",
        "cola",
        "--data_dir",
        tiny.folder,
        "--device",
        "cpu",
        *QUICK,
        "--max_seq_length",
        32,
    )
    for name, model, more, wanted in (
        ("electra", finished.folder, (), (3e-4, 0.8)),
        ("stock", stock, (), (1e-5, 1.0)),
        ("albert", finished.folder, ("--recipe", "albert"), (1e-5, 1.0)),
        ("own rate", finished.folder, ("--learning_rate", 0.002), (0.002, 0.8)),
    ):
        tune(*bare, "--model", model, "--output_dir", out := tmp_path / "out" / name, *more)
        config = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
        assert (config["learning_rate"], config["layer_decay"]) == wanted


@pytest.mark.parametrize(
    "file", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"]
)
@pytest.mark.parametrize("head", ["discriminator_predictions.dense.bias", None])
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
    base = find_base_model(
        parse_finetuning(["--model", str(stock)]), World(0, 1, 0, torch.device("cpu"))
    )
    assert base.family == ("albert" if head is None else "electra")


def test_a_recorded_configuration_repeats_the_sweep(train: Train, tmp_path: Path) -> None:
    folder = train("out", "--hidden_dropout_prob", 0.1)
    tune("--config", folder / "config.yaml", "--output_dir", tmp_path / "again")
    assert untimed_rows(tmp_path / "again" / f"seed-{SEED}") == untimed_rows(
        folder / f"seed-{SEED}"
    )


def test_early_stopping_ends_a_run_without_improvement(train: Train) -> None:
    folder = train(
        "out", "--early_stopping_patience", 2, "--learning_rate", 1e-9, "--max_steps", 90
    )
    # The first of three evaluations, ten updates apart, was the best.
    assert results(folder)["updates"] == [30]
    assert not list(folder.rglob("best*"))


def test_early_stopping_reports_the_weights_it_kept(train: Train, tiny: Tiny) -> None:
    folder = train(
        "out", "--early_stopping_patience", 3, "--max_steps", 140, "--hidden_dropout_prob", 0.1
    )
    metric = f"eval_{tiny.main_metric}"
    log = [row for row in rows(folder / f"seed-{SEED}") if metric in row]
    best = max(log, key=lambda row: row[metric])  # the first of equal ones
    assert best is not log[-1]
    found = results(folder)["metrics"]
    assert found[tiny.main_metric]["values"] == [best[metric]]
    assert found["loss"]["values"] == pytest.approx([best["eval_loss"]], rel=1e-6)


def test_early_stopping_keeps_the_best_weights_not_those_of_the_last_rise(
    train: Train, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, heads = [0.5, 0.7, 0.6, 0.65, 0.7], list[torch.Tensor]()
    score = sweeps.score

    def scripted(job: Any, objective: Any, *others: Any) -> Any:
        result: Any = score(job, objective, *others)
        result.metrics[tiny.main_metric] = scores[len(heads)]
        heads.append(objective.model.classifier.weight.clone())
        return result

    monkeypatch.setattr(sweeps, "score", scripted)
    train("out", "--early_stopping_patience", 9, "--max_steps", 4, "--evals_per_epoch", 10)
    *trained, kept = heads
    assert [kept.equal(head) for head in trained] == [False, True, False, False]


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


def test_sampled_examples_are_reported(train: Train) -> None:
    found = results(train("out", "--max_train_examples", 50, "--max_eval_examples", 20))
    assert (found["train_examples"], found["evaluation_examples"]) == (50, {"dev": 20})
    assert (
        sum(
            "160" in line or "48" in line or "28" in line or "110" in line
            for line in found["noticed"]
        )
        == 2
    )


# The user's own table.


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_users_own_table_gives_the_same_in_every_format(
    finished: Finished, tmp_path: Path, suffix: str
) -> None:
    found = [
        {"said": f"{one.text} So it was.", "then": one.kind, "where": f"a\t{one.place}"}
        for one in stories(60, 1)
    ]
    (tmp_path / "table.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in found), encoding="utf-8"
    )
    write = {".csv": csv.write_csv, ".parquet": parquet.write_table}[suffix]
    write(pyarrow.Table.from_pylist(found), tmp_path / f"table{suffix}")
    for kind in (".jsonl", suffix):
        table = tmp_path / f"table{kind}"
        columns = ("--text_column", "said", "--text_pair_column", "then", "--label_column", "where")
        files = ("--train_file", table, "--validation_file", table)
        tune(
            *options(
                "custom", None, finished.folder, tmp_path / f"out{kind}", *QUICK, *files, *columns
            )
        )
    model = tmp_path / f"out{suffix}"  # its columns are recorded
    header = (model / "confusion.tsv").read_text().split("\n")[0]
    assert header.split("\t")[1:] == sorted({" ".join(row["where"].split()) for row in found})
    assert losses(model) == losses(tmp_path / "out.jsonl")
    tune("--model", model, "--predict", table, "--precision", "fp32")
    labelled = [
        (model / name).read_text().splitlines() for name in ("predictions.tsv", "predicted.tsv")
    ]
    evaluated, alone = ([row.split("\t")[2:] for row in rows] for rows in labelled)
    assert alone == evaluated
    alone = (
        "--validation_file",
        table,
        *columns[:2],
        *columns[4:],
        "--output_dir",
        tmp_path / "alone",
    )
    assert_refused(
        call(finetune.main, "--model", model, "--num_train_epochs", 0, *alone),
        2,
        "on pairs of texts; give",
    )


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


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"learning_rat": 1}, ea_errors.UsageError),
        ({"task": "custom"}, ea_errors.UsageError),
        ({"compare": ["a", "b"]}, ea_errors.UsageError),
        ({"task": "cola", "from_mnli": True}, ea_errors.UsageError),  # an option without effect
        ({"train_file": "no.jsonl", "validation_file": "no.jsonl"}, ea_errors.DataError),
    ],
)
def test_errors_are_raised(
    finished: Finished, in_folder: Path, named: dict[str, Any], error: type[Exception]
) -> None:
    Path("no.jsonl").write_text("[")
    with pytest.raises(error):
        ea.finetune(**{"model": str(finished.folder), "output_dir": "out", "device": "cpu"} | named)
    assert not Path("out").exists()


def test_the_command_is_four_calls_from_a_step(
    finished: Finished, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.TrainingStep, "accumulate", None)
    monkeypatch.setattr(loop.TrainingStep, "check", lambda *_: None)
    with pytest.raises(TypeError) as reached:
        finetune.main(tiny.options(finished.folder, tmp_path / "out", *QUICK))
    frames = [
        frame
        for frame in traceback.extract_tb(reached.value.__traceback__)
        if "tests" not in frame.filename
    ]
    assert [frame.name for frame in frames][:4] == ["main", "run_finetuning", "train", "take_step"]


def test_the_built_in_task_is_the_default(finished: Finished, in_folder: Path) -> None:
    tune("--model", finished.folder, "--device", "cpu", *QUICK, "--max_train_examples", 64)
    assert results(in_folder / "runs" / "topics-run")["task"] == "topics"
