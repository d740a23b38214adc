"""GLUE-8, the protocol of this project's GLUE scores: rows, settings and one command.

    python -m benchmarks.glue8 --source GLUE --model runs/mine --output_dir runs/mine-glue8

The tasks are the eight of ELECTRA's mean (no WNLI; MNLI matched), in the folders that `source` has.
The sets in glue8.rows.xz have the rows listed there: MNLI's and QNLI's training sets, of which this
project has a part, and the 10,000 rows that QQP is evaluated on, which are not GLUE's. All other
files are copied. STS-B, MRPC and RTE start from the model fine-tuned on MNLI. The learning rates of
MNLI, CoLA, QNLI, STS-B and MRPC are chosen from three on a tenth of the training examples; RTE has
too few for that, QQP and SST-2 take too long. All other settings are the defaults of
`electra-albert finetune`. A score is the mean of three seeds, that of QQP, which takes most of the
time and whose seeds differ little, of one. The same command resumes.
"""

import hashlib
import lzma
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import electra_albert as ea
from electra_albert.apps.command_line import format_table, make_parser, parse, run_app
from electra_albert.contracts import DataError
from electra_albert.files import load_json, write_json, write_text
from electra_albert.tasks.registry import TASKS

ROWS = Path(__file__).with_name("glue8.rows.xz")  # lines of task, split and key
SEEDS = 3
# Columns of the sets with listed rows: those that identify a row, and the label.
COLUMNS = {
    "mnli": ("sentence1", "sentence2", "gold_label"),
    "qnli": ("question", "sentence", "label"),
    "qqp": ("id", "question1", "question2", "is_duplicate"),
}
RATES = {"grid": "learning_rate=1e-4,3e-4,1e-3"}
SETTINGS: dict[str, dict[str, Any]] = {
    "mnli": RATES,
    "cola": RATES,
    "qnli": RATES,
    "sst2": {},
    "qqp": {"seeds": 1},
    "stsb": {"model": "mnli", **RATES},
    "mrpc": {"model": "mnli", **RATES},
    "rte": {"model": "mnli"},
}


def row_key(texts: Sequence[str]) -> str:
    """Ten hex digits that identify a row by its letters and digits, whatever its spaces are."""
    letters = ("".join(filter(str.isalnum, text.lower())) for text in texts)
    return hashlib.sha256("\t".join(letters).encode()).hexdigest()[:10]


def write_data(source: Path, folder: Path) -> None:
    """Write the protocol's sets of all tasks. Raises DataError if a file or a row is missing."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in lzma.decompress(ROWS.read_bytes()).decode().splitlines():
        task, split, key = line.split()
        keys[task, split].add(key)
    for task in SETTINGS:
        name = TASKS[task].files.folders[0]
        (folder / name).mkdir(parents=True, exist_ok=True)
        for split in ("train", "dev"):
            files = sorted((source / name).glob(f"{split}*.tsv"))
            if not files:
                raise DataError(f"{source / name}: there is no {split}*.tsv")
            target = folder / name / f"{split}.tsv"
            if (task, split) in keys:
                _write_listed(COLUMNS[task], files, keys[task, split], target)
            else:
                shutil.copyfile(files[0], target)


def _write_listed(
    columns: Sequence[str], files: Sequence[Path], keys: set[str], target: Path
) -> None:
    """Write the rows with these keys, each once."""
    missing = set(keys)
    lines = ["\t".join(columns)]
    for path in files:
        header, *rows = path.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
        positions = [header.split("\t").index(column) for column in columns]
        for row in rows:
            cells = row.split("\t")
            texts = [cells[position] for position in positions]
            key = row_key(texts[:-1])
            if key in missing:
                missing.remove(key)
                lines.append("\t".join(texts))
    if missing:
        raise DataError(f"{files[0].parent}: {len(missing):,} of {len(keys):,} rows are missing")
    write_text(target, "\n".join(lines) + "\n")


def main(argv: Sequence[str]) -> int:
    """Write the data, fine-tune on every task, and print and write the scores."""
    parser = make_parser("python -m benchmarks.glue8", "The eight tasks of ELECTRA's GLUE mean.")
    for name, text in (
        ("source", "Folder with the downloads of GLUE's tasks, in folders CoLA, MNLI, ...."),
        ("model", "Pretrained model: a run or a model folder."),
        ("output_dir", "Folder for data, fine-tuned models and results.json."),
    ):
        parser.add_argument(f"--{name}", type=str, required=True, help=text)
    options = parse(parser, argv)
    output = Path(options.output_dir)
    write_data(Path(options.source), output / "data")
    scores: dict[str, list[float]] = {}
    for task, settings in SETTINGS.items():
        model = output / settings["model"] if "model" in settings else options.model
        folder = output / task
        changes = {"task": task, "model": str(model), "output_dir": str(folder)}
        ea.finetune(**({"seeds": SEEDS} | settings | changes), data_dir=str(output / "data"))
        results = load_json(folder / "results.json")
        scores[task] = results["metrics"][results["main_metric"]]["values"]
    mean = fmean(map(fmean, scores.values()))
    write_json(output / "results.json", {"model": options.model, "scores": scores, "mean": mean})
    rows = [["x 100", "mean", "std"]]
    for task, values in scores.items():
        std = f"{100 * stdev(values):.2f}" if len(values) > 1 else ""
        rows.append([task, f"{100 * fmean(values):.2f}", std])
    rows.append(["mean", f"{100 * mean:.2f}", ""])
    print(format_table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
