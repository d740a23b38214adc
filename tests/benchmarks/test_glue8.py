"""The GLUE-8 protocol takes the listed rows, whatever their spaces are, and refuses to lack one."""

import lzma
from pathlib import Path

import pytest

import electra_albert as ea
from benchmarks import glue8
from electra_albert.contracts import DataError
from electra_albert.files import load_json, write_json
from electra_albert.tasks.registry import TASKS

MNLI = (
    "index\tsentence1\tsentence2\tgold_label\n"
    "0\tIt rains .\tIt is wet.\tentailment\n"
    "1\tIt rains.\tIt is dry.\tcontradiction\n"
)
MORE = "sentence2\tgold_label\tsentence1\nIt's wet .\tneutral\tWho knows?\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Downloads in which two of the three rows of MNLI are listed."""
    source = tmp_path / "source"
    for task in glue8.SETTINGS:
        folder = source / TASKS[task].files.folders[0]
        folder.mkdir(parents=True)
        for split in ("train", "dev"):
            (folder / f"{split}.tsv").write_text(f"{task} {split}\n")
    (source / "MNLI" / "train.tsv").write_text(MNLI)
    (source / "MNLI" / "train_more.tsv").write_text(MORE)
    listed = (("It rains.", "It is wet."), ("who knows?", "It's wet."))
    lines = "".join(f"mnli train {glue8.row_key(texts)}\n" for texts in listed)
    monkeypatch.setattr(glue8, "ROWS", tmp_path / "rows.xz")
    glue8.ROWS.write_bytes(lzma.compress(lines.encode()))
    return source


def test_listed_rows_are_taken_from_all_files_and_other_sets_are_complete(
    source: Path, tmp_path: Path
) -> None:
    glue8.write_data(source, tmp_path / "data")
    assert (tmp_path / "data" / "MNLI" / "train.tsv").read_text().splitlines() == [
        "sentence1\tsentence2\tgold_label",
        "It rains .\tIt is wet.\tentailment",
        "Who knows?\tIt's wet .\tneutral",
    ]
    for task, split in (("rte", "train"), ("qqp", "dev")):
        name = TASKS[task].files.folders[0]
        assert (tmp_path / "data" / name / f"{split}.tsv").read_text() == f"{task} {split}\n"


def test_a_missing_row_or_file_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "MNLI" / "train_more.tsv").unlink()
    with pytest.raises(DataError, match="MNLI: 1 of 2 rows are missing"):
        glue8.write_data(source, tmp_path / "data")
    (source / "RTE" / "dev.tsv").unlink()
    (source / "MNLI" / "train_more.tsv").write_text(MORE)
    with pytest.raises(DataError, match="RTE"):
        glue8.write_data(source, tmp_path / "data")


def test_the_mean_weighs_tasks_equally_and_three_tasks_start_from_mnli(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = {}

    def finetune(*, task: str, model: str, output_dir: str, seeds: int, **_: str) -> None:
        starts[task] = model
        values = [1.0] if task == "qqp" else [0.2, 0.4, 0.6]
        assert len(values) == seeds
        metrics = {"score": {"values": values}}
        Path(output_dir).mkdir()
        write_json(Path(output_dir) / "results.json", {"main_metric": "score", "metrics": metrics})

    monkeypatch.setattr(ea, "finetune", finetune)
    output = tmp_path / "glue8"
    argv = ["--source", str(source), "--model", "mine", "--output_dir", str(output)]
    assert glue8.main(argv) == 0
    assert load_json(output / "results.json")["mean"] == pytest.approx((7 * 0.4 + 1) / 8)
    of_mnli = {task for task, model in starts.items() if model == str(output / "mnli")}
    assert of_mnli == {"stsb", "mrpc", "rte"}


def test_the_listed_rows_are_those_of_the_projects_scores() -> None:
    rows = lzma.decompress(glue8.ROWS.read_bytes()).decode().splitlines()
    counts = {("mnli", "train"): 16_758, ("qnli", "train"): 8_999, ("qqp", "dev"): 10_000}
    keys = [tuple(row.split()[:2]) for row in rows]
    assert {key: keys.count(key) for key in counts} == counts
    assert len(set(rows)) == len(rows) == sum(counts.values())
