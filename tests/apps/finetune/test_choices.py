"""The model, head, recipe, data and tasks that fine-tuning may be given: the user's own table, all of GLUE, nothing."""

import json
import shutil
import traceback
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pytest
import yaml
from pyarrow import csv, parquet

import electra_albert as ea
from electra_albert import contracts as ea_errors
from electra_albert.apps.finetune import main as finetune
from electra_albert.apps.finetune.main import parse_finetuning
from electra_albert.hub.load import load_task_model, locate
from electra_albert.training import loop
from tests.apps.conftest import Finished
from tests.apps.tiny_run import Ended, assert_refused, call, copy_as_learned, rows, untimed_rows
from tests.apps.tiny_tasks import SEED, Tiny, cola, losses, mnli, options, results, rte, stories, stsb, tune

QUICK: tuple[object, ...] = ("--max_steps", 3, "--logging_steps", 1)


def train(tiny: Tiny, model: Path, output: Path, *more: object) -> Ended:
    return tune(*tiny.options(model, output, *QUICK, *more))


# The model.


def test_a_run_begins_with_its_discriminator(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    for part in ("", "discriminator", "generator"):
        train(tiny, finished.folder / part, tmp_path / f"out-{part}")
    assert losses(tmp_path / "out-") == losses(tmp_path / "out-discriminator") != losses(tmp_path / "out-generator")


def test_from_scratch_takes_the_shape_and_not_the_weights(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny, finished.folder, tmp_path / "begun")
    ended = train(tiny, finished.folder, tmp_path / "scratch", "--from_scratch")
    assert losses(tmp_path / "begun") != losses(tmp_path / "scratch")
    assert [results(tmp_path / name)["from_scratch"] for name in ("begun", "scratch")] == [False, True]
    assert "encoder" in ended.err
    shapes = [json.loads((tmp_path / name / "model" / "config.json").read_text()) for name in ("begun", "scratch")]
    assert shapes[0] == shapes[1]


def test_the_newest_run_is_taken_and_named_where_none_is(finished: Finished, tiny: Tiny, in_folder: Path) -> None:
    copy_as_learned(finished.folder, in_folder / "runs" / "mine")
    assert "runs/mine" in tune(*tiny.options(None, None, *QUICK)).err
    assert (in_folder / "runs" / "cola-mine" / "results.json").is_file()


# Its head and settings.


def test_a_head_of_electra_has_no_pooler_and_is_loaded_again(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    from transformers import AutoModel

    dropout = ("--hidden_dropout_prob", 0.3, "--classifier_dropout_prob", 0.3)
    train(tiny, finished.folder, tmp_path / "out", "--head", "electra", *dropout)
    model, details = load_task_model(locate(tmp_path / "out" / "model"))
    names = [name for name, _ in model.named_parameters()]
    assert details["style"] == "electra"
    assert not any(name.startswith(("pooler", "classifier")) for name in names)
    AutoModel.from_pretrained(str(tmp_path / "out" / "model"), local_files_only=True, add_pooling_layer=False)
    tune(*tiny.options(tmp_path / "out" / "model", tmp_path / "again", "--head", "electra", "--num_train_epochs", 0))
    again, first = (results(tmp_path / name)["metrics"]["loss"]["values"] for name in ("again", "out"))
    assert again == pytest.approx(first, rel=1e-6)


@pytest.fixture
def stock(finished: Finished, tmp_path: Path) -> Path:
    """A folder that transformers itself has written, wider than the published small models, with random weights."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    folder = tmp_path / "stock"
    for file in (finished.folder / "generator").glob("*token*"):
        folder.mkdir(exist_ok=True)
        shutil.copy(file, folder)
    vocab_size = json.loads((finished.folder / "generator" / "config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 264, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
    config = AlbertConfig(vocab_size=vocab_size, embedding_size=16, max_position_embeddings=64, **sizes)
    AlbertForMaskedLM(config).save_pretrained(str(folder))
    return folder


def test_recipes_follow_model_and_task_and_yield_to_flags(
    finished: Finished, stock: Path, tiny: Tiny, tmp_path: Path
) -> None:
    def settings(model: Path, name: str, *more: object) -> dict[str, Any]:
        output = tmp_path / name
        bare = ("--task", "cola", "--data_dir", tiny.folder, "--output_dir", output, "--device", "cpu", *QUICK)
        tune(*bare, "--model", model, "--max_seq_length", 32, *more)
        return dict(yaml.safe_load((output / "config.yaml").read_text(encoding="utf-8")))

    detector, encoder = settings(finished.folder, "detector"), settings(stock, "encoder")
    assert (detector["learning_rate"], detector["layer_decay"]) == (3e-4, 0.8)
    assert (encoder["learning_rate"], encoder["layer_decay"]) == (1e-5, 1.0)
    assert settings(finished.folder, "other", "--recipe", "albert")["learning_rate"] == 1e-5
    assert settings(finished.folder, "own", "--learning_rate", 0.002)["learning_rate"] == 0.002


def test_a_stock_folder_learns_a_task(stock: Path, tiny: Tiny, tmp_path: Path) -> None:
    tune(*tiny.options(stock, tmp_path / "out", "--learning_rate", 0.001))
    assert results(tmp_path / "out")["metrics"][tiny.main_metric]["median"] >= tiny.good_score


def test_a_recorded_configuration_repeats_the_sweep(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny, finished.folder, tmp_path / "out", "--hidden_dropout_prob", 0.1)
    tune("--config", tmp_path / "out" / "config.yaml", "--output_dir", tmp_path / "again")
    assert untimed_rows(tmp_path / "again" / f"seed-{SEED}") == untimed_rows(tmp_path / "out" / f"seed-{SEED}")


def test_early_stopping_ends_a_run_that_learns_nothing_and_keeps_its_best(
    finished: Finished, tiny: Tiny, tmp_path: Path
) -> None:
    more = ("--early_stopping_patience", 2, "--learning_rate", 1e-9, "--num_train_epochs", 9)
    tune(*tiny.options(finished.folder, tmp_path / "out", *more))
    assert results(tmp_path / "out")["updates"] == [30]  # the first of three scorings, ten updates apart, was the best
    assert not list((tmp_path / "out").rglob("best*"))


def test_early_stopping_reports_the_weights_it_kept(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    more = ("--early_stopping_patience", 3, "--num_train_epochs", 14, "--hidden_dropout_prob", 0.1)
    tune(*tiny.options(finished.folder, tmp_path / "out", *more))
    log = [row for row in rows(tmp_path / "out" / f"seed-{SEED}") if f"eval_{tiny.main_metric}" in row]
    best = max(log, key=lambda row: row[f"eval_{tiny.main_metric}"])  # the first of equal ones
    assert best is not log[-1]
    found = results(tmp_path / "out")["metrics"]
    assert found[tiny.main_metric]["values"] == [best[f"eval_{tiny.main_metric}"]]
    assert found["loss"]["values"] == pytest.approx([best["eval_loss"]], rel=1e-6)


def test_fewer_examples_are_drawn_by_the_seed_and_reported(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny, finished.folder, tmp_path / "out", "--max_train_examples", 50, "--max_eval_examples", 20)
    found = results(tmp_path / "out")
    assert (found["train_examples"], found["evaluation_examples"]) == (50, {"dev": 20})
    assert sum("160" in line or "48" in line or "28" in line or "110" in line for line in found["noticed"]) == 2


# The user's own table.


def write_table(file: Path, columns: dict[str, list[Any]]) -> None:
    table = pyarrow.table(columns)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
    else:
        {".csv": csv.write_csv, ".parquet": parquet.write_table}[file.suffix](table, file)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_users_own_table_gives_the_same_in_every_format(finished: Finished, tmp_path: Path, suffix: str) -> None:
    found = stories(60, 1)
    kinds = sorted({story.place for story in found})
    table: dict[str, list[Any]] = {
        "said": [f"{story.text} So, it was." for story in found],
        "then": [story.kind for story in found],
        "where": [story.place for story in found],
    }
    for kind in (".jsonl", suffix):
        for name in ("train", "dev"):
            write_table(tmp_path / f"{name}{kind}", table)
        files = ("--train_file", tmp_path / f"train{kind}", "--validation_file", tmp_path / f"dev{kind}")
        columns = ("--text_column", "said", "--text_pair_column", "then", "--label_column", "where")
        tune(*options("custom", None, finished.folder, tmp_path / f"out{kind}", *QUICK, *files, *columns))
    header = (tmp_path / f"out{suffix}" / "confusion.tsv").read_text().split("\n")[0]
    assert header.split("\t")[1:] == kinds
    assert losses(tmp_path / f"out{suffix}") == losses(tmp_path / "out.jsonl")
    model = tmp_path / f"out{suffix}"  # it knows its columns
    tune("--model", model, "--predict", tmp_path / f"dev{suffix}", "--precision", "fp32")
    labelled = [(model / name).read_text().splitlines() for name in ("predictions.tsv", "predicted.tsv")]
    evaluated, alone = ([row.split("\t")[2:] for row in rows] for rows in labelled)
    assert alone == evaluated


# From a program, and nothing at all.


def test_a_program_gets_what_the_command_reports(finished: Finished, tiny: Tiny, tmp_path: Path) -> None:
    train(tiny, finished.folder, tmp_path / "command")
    argv = tiny.options(finished.folder, tmp_path / "program", *QUICK)
    named = zip(argv[::2], map(yaml.safe_load, argv[1::2]), strict=True)
    run = ea.finetune(**{name.removeprefix("--"): value for name, value in named})
    assert losses(tmp_path / "program") == losses(tmp_path / "command")
    assert (run.folder, run.step, run.is_stopped) == (tmp_path / "program", 3, False)
    of_command = results(tmp_path / "command")["metrics"]
    assert run.metrics == {name: metric["values"][0] for name, metric in of_command.items()}
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
def test_a_program_gets_an_exception(
    finished: Finished, in_folder: Path, named: dict[str, Any], error: type[Exception]
) -> None:
    Path("no.jsonl").write_text("[")
    with pytest.raises(error):
        ea.finetune(**{"model": str(finished.folder), "output_dir": "out", "device": "cpu"} | named)
    assert not Path("out").exists()


def test_the_command_is_four_calls_from_backward(
    finished: Finished, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> NoReturn:
        raise EOFError

    monkeypatch.setattr(loop, "backward", stop)
    with pytest.raises(EOFError) as reached:
        finetune.main(tiny.options(finished.folder, tmp_path / "out", *QUICK))
    frames = [frame for frame in traceback.extract_tb(reached.value.__traceback__) if "tests" not in frame.filename]
    assert [frame.name for frame in frames][:4] == ["main", "run_finetuning", "train", "update"]  # a rehearsal first


def test_without_data_the_task_that_ships_is_taken(finished: Finished, in_folder: Path) -> None:
    tune("--model", finished.folder, "--device", "cpu", *QUICK, "--max_train_examples", 64)
    assert results(in_folder / "runs" / "topics-run")["task"] == "topics"


# All of GLUE.


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    for make in (cola, rte, mnli, stsb):
        make(tmp_path / "GLUE")
    return tmp_path / "GLUE"


def run_glue(finished: Finished, glue: Path, output: Path, *more: object) -> Ended:
    return tune(*options("glue", glue, finished.folder, output, *QUICK, *more))


def test_glue_runs_what_is_there_and_reports_what_is_not(finished: Finished, glue: Path, tmp_path: Path) -> None:
    ended = run_glue(finished, glue, tmp_path / "out", "--predict", "test")
    tasks = results(tmp_path / "out")["tasks"]
    assert set(tasks) == {"cola", "rte", "mnli", "stsb"}
    averages = results(tmp_path / "out")["averages"]
    mains = [tasks[name]["metrics"][tasks[name]["main_metric"]]["median"] for name in tasks]
    assert averages["electra"]["average"] == pytest.approx(sum(mains) / 4)
    assert set(averages["electra"]["missing"]) == {"sst2", "mrpc", "qqp", "qnli"}
    for name in ("SST-2", "QQP", "WNLI"):
        assert name in ended.err
    assert "NOT over all" in ended.out
    assert {path.name for path in (tmp_path / "out").rglob("submission/*")} == {
        *("CoLA.tsv", "RTE.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv")
    }
    again = run_glue(finished, glue, tmp_path / "out", "--predict", "test")
    assert "updates," not in "".join(line for line in again.err.splitlines() if "new weights" in line)


def test_small_tasks_begin_with_the_model_of_mnli_where_asked(finished: Finished, glue: Path, tmp_path: Path) -> None:
    out, of_mnli = tmp_path / "out", str(tmp_path / "out" / "mnli")
    run_glue(finished, glue, out, "--from_mnli")
    models = {name: found["model"] for name, found in results(out)["tasks"].items()}
    run = str(finished.folder)
    assert models == {"mnli": run, "cola": run, "stsb": of_mnli, "rte": of_mnli}
    record = json.loads((out / "rte" / "environment.json").read_text())
    record["settings"]["weights"] = "other"
    (out / "rte" / "environment.json").write_text(json.dumps(record))
    argv = options("glue", glue, finished.folder, out, *QUICK, "--from_mnli")
    assert_refused(call(finetune.main, *argv), 4, "began with another model")


@pytest.mark.parametrize("has_labels", [True, False])
def test_the_diagnostic_set_is_labelled_by_the_model_of_mnli_and_scored_where_it_can_be(
    finished: Finished, glue: Path, tmp_path: Path, has_labels: bool
) -> None:
    header, *lines = (glue / "MNLI" / "dev_matched.tsv").read_text().splitlines()
    rows_ = [header, *lines] if has_labels else [line.rpartition("\t")[0] for line in [header, *lines]]
    (glue / "diagnostic").mkdir()
    (glue / "diagnostic" / "diagnostic.tsv").write_text("\n".join(rows_) + "\n")
    train(mnli(tmp_path / "GLUE"), finished.folder, tmp_path / "mnli")
    argv = options("ax", glue / "diagnostic", tmp_path / "mnli", tmp_path / "ax", *QUICK, "--predict", "test")
    ended = tune(*argv)
    header, *handed_in = (tmp_path / "ax" / "submission" / "AX.tsv").read_text().splitlines()
    assert (header, len(handed_in)) == ("index\tprediction", len(lines))
    assert (tmp_path / "ax" / "results.json").exists() == has_labels
    assert ("results.json" in ended.out) == has_labels
    if has_labels:
        of_mnli, found = (results(tmp_path / name)["metrics"] for name in ("mnli", "ax"))
        assert found["matthews_correlation"]["values"] == of_mnli["matthews_correlation"]["values"]
    assert not list((tmp_path / "ax").glob("seed-*/metrics.jsonl"))
