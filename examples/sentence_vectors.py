"""Train sentence vectors with sentence-transformers, on scored pairs, pairs or triplets of texts.

electra-albert export --model runs/mine --format sentence-transformers --output_dir vectors
python examples/sentence_vectors.py --model vectors --data_dir GLUE/STS-B --output_dir runs/vectors

The trained model is OUTPUT_DIR/model. After a kill the same command resumes the training.
"""

import argparse
import csv
import hashlib
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from filelock import FileLock
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
from sentence_transformers.sentence_transformer import evaluation, losses
from transformers import TrainerCallback, set_seed

COSINE = losses.CosineSimilarityLoss
RANKING = losses.MultipleNegativesRankingLoss
KINDS = {  # loss and evaluator by the columns of the data, which both take in this order
    "sentence1 sentence2 score": (COSINE, evaluation.EmbeddingSimilarityEvaluator),
    "anchor positive negative": (RANKING, evaluation.TripletEvaluator),
    "anchor positive": (RANKING, evaluation.TranslationEvaluator),
}
DEFAULTS = {  # options of the trainer
    "num_train_epochs": 4.0,
    "per_device_train_batch_size": 32,
    "learning_rate": 3e-4,
    "warmup_steps": 0.1,  # of all steps
    "save_steps": 100,
    "seed": 42,
}
MAY_BE_ZERO = ("warmup_steps", "seed")
WITHOUT_POOLER = {"add_pooling_layer": False}
WRONG_INPUT = (OSError, ValueError, TypeError, AttributeError, csv.Error, SafetensorError)
SCORES = "scores.json"
WHOLE = "whole-checkpoint"


def read_examples(file: Path, max_score: float) -> Dataset:
    """The examples of a .csv, .tsv (unquoted) or .jsonl file, with scores scaled to [0, 1]."""
    layout: dict[str, Any] = {"strict": True}
    if file.suffix == ".tsv":
        layout = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with file.open(encoding="utf-8-sig", newline="") as lines:
        is_json = file.suffix == ".jsonl"
        rows = list(map(json.loads, lines) if is_json else csv.DictReader(lines, **layout))
    header = set().union(*rows)
    columns = next((names.split() for names in KINDS if header.issuperset(names.split())), None)
    if columns is None:
        raise ValueError(f"{file} has no examples with the columns {' or '.join(KINDS)}")
    examples = []
    for number, row in enumerate(rows, start=1):
        if not is_json and None in (*row, *row.values()):  # of DictReader, for cells without a pair
            problem = f"{file}, example {number}: not as many cells as columns"
            raise ValueError(f"{problem}; quote cells with commas, or use .jsonl")
        examples.append({name: read_value(name, row.get(name), max_score) for name in columns})
        if None in examples[-1].values():
            limits = f"texts, and a score from 0 to --max_score {max_score:g}"
            raise ValueError(f"{file}, example {number}: {', '.join(columns)} must be {limits}")
    return Dataset.from_list(examples)


def read_value(column: str, value: Any, max_score: float) -> str | float | None:
    """A text, or a score divided by the maximum; None if it is invalid."""
    if column != "score":
        return value if isinstance(value, str) and value.strip() else None
    try:
        score = float(value) / max_score
    except (TypeError, ValueError):
        return None
    return score if 0 <= score <= 1 else None


class CheckpointCallback(TrainerCallback):
    """Renames a checkpoint after its last file is written, and then deletes the former one."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir)
        former = list(folder.glob(f"{WHOLE}-*"))
        checkpoint = folder / f"checkpoint-{state.global_step}"
        checkpoint.rename(folder / f"{WHOLE}-{state.global_step:09}")
        for path in former:
            shutil.rmtree(path)


def content_hash(folder: Path) -> str:
    """A hash of all files of a model but its card."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".md":
            total.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def load_model(folder: Path) -> SentenceTransformer:
    """Load a model whose checkpoints are loaded without a pooler too."""
    model = SentenceTransformer(str(folder), model_kwargs=WITHOUT_POOLER, local_files_only=True)
    model[0].model_args = WITHOUT_POOLER
    model[0].config_keys = [*model[0].config_keys, "model_args"]  # saved, else a checkpoint has one
    return model


def require_positive(options: argparse.Namespace) -> None:
    """Raise ValueError for a number that is not finite, or not in its range."""
    for name in (*DEFAULTS, "max_score"):
        value = getattr(options, name)
        if not 0 <= value < math.inf or (value == 0 and name not in MAY_BE_ZERO):
            raise ValueError(f"--{name} {value:g} must be finite and positive")


def train(
    options: argparse.Namespace, model: SentenceTransformer, sets: dict[str, Dataset], folder: Path
) -> Path:
    """Train with checkpoints in a folder; returns the path of the model in it."""
    columns = {name: " ".join(examples.column_names) for name, examples in sets.items()}
    loss, _ = KINDS[columns["train"]]
    evaluator = None
    if "dev" in sets:
        _, evaluator_class = KINDS[columns["dev"]]
        evaluator = evaluator_class(*sets["dev"].to_dict().values())
    scores = {"training": folder.name, "before": evaluator(model) if evaluator else {}}
    arguments = TrainingArguments(
        output_dir=str(folder),
        batch_sampler="no_duplicates" if loss is RANKING else "batch_sampler",
        eval_strategy="steps" if evaluator else "no",
        eval_steps=options.save_steps,  # after a checkpoint it would change the random state
        report_to="none",
        **{name: getattr(options, name) for name in DEFAULTS},
    )
    parts = {"loss": loss(model), "evaluator": evaluator, "callbacks": [CheckpointCallback()]}
    trainer = SentenceTransformerTrainer(model, arguments, sets["train"], **parts)
    newest = max(map(str, folder.glob(f"{WHOLE}-*")), default=None)
    trainer.train(resume_from_checkpoint=newest)
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise SystemExit("error: the training diverged; lower --learning_rate")
    scores["after"] = evaluator(model) if evaluator else {}
    model.save_pretrained(str(folder / "model"))
    (folder / "model" / SCORES).write_text(json.dumps(scores, indent=2) + "\n")
    return folder / "model"


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; wrong options and data end in one line and exit code 2."""
    parser = argparse.ArgumentParser(description="Train sentence vectors.", allow_abbrev=False)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data_dir", type=Path, help="folder with train.tsv and dev.tsv of STS-B")
    source.add_argument("--train_file", type=Path, help=f"table with columns {' or '.join(KINDS)}")
    parser.add_argument("--validation_file", type=Path, help="table with such columns")
    parser.add_argument("--max_score", type=float, help="maximum score (STS-B: 5, own files: 1)")
    parser.add_argument("--model", type=Path, required=True, help="exported model folder")
    parser.add_argument("--output_dir", type=Path, required=True)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args(argv)
    files = {"train": options.train_file, "dev": options.validation_file}
    if options.data_dir:
        files = {name: file or options.data_dir / f"{name}.tsv" for name, file in files.items()}
    if options.max_score is None:
        options.max_score = 5.0 if options.data_dir else 1.0
    model = options.output_dir / "model"
    record = model / SCORES
    try:
        require_positive(options)
        sets = {}
        for name, file in files.items():
            if file:
                sets[name] = read_examples(file, options.max_score)
        if not (options.model / "config.json").is_file():
            raise ValueError(f"{options.model} has no config.json; give a model folder")
        contents = [examples.to_dict() for examples in sets.values()]
        settings = repr((vars(options), content_hash(options.model), contents))
        digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
        folder = options.output_dir / f"training-{digest}"
        if model.exists() and json.loads(record.read_text()).get("training") != folder.name:
            raise ValueError(
                f"{model} has another base model, settings or data; choose another --output_dir"
            )
        set_seed(options.seed)
        initial = load_model(options.model)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(options.output_dir / "lock")
        lock.acquire(timeout=0)
    except WRONG_INPUT as error:
        parser.error(" ".join(str(error).split()))
    if not model.exists():
        train(options, initial, sets, folder).rename(model)
    print(record.read_text())


if __name__ == "__main__":
    main()
