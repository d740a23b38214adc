"""Fine-tune an encoder for sentence vectors with the trainer of sentence-transformers: --task sts-embeddings.

electra-albert finetune --task sts-embeddings --data_dir GLUE --model runs/mine --seeds 3
"""

import json
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from electra_albert.apps.command_line import check_can_write, format_table, make_parser, parse, print_results
from electra_albert.apps.default_model import default_model
from electra_albert.contracts import LOG, DataError, DivergedError, Metrics, RunResult, UsageError
from electra_albert.files import read_json, write_json
from electra_albert.finetuning_config import EMBEDDINGS, DataConfig
from electra_albert.model_config import COUNT, COUNT_OR_0, require, require_filled, require_within

_PACKAGES = ("sentence_transformers", "accelerate")
_PARAPHRASE = 0.8  # share of the highest score from which a pair counts as paraphrases in the contrastive loss
_METRICS = ("spearman", "pearson")
_RESULTS, _ZERO_SHOT = "results.json", "zero_shot"


@dataclass(frozen=True)
class EmbeddingsConfig:
    """Fine-tuning for sentence vectors."""

    task: Literal["sts-embeddings"] = "sts-embeddings"
    """Similarity of two texts as the cosine of their vectors, trained and evaluated on STS-B."""
    data_dir: str | None = None
    """Folder of STS-B or of GLUE."""
    model: str | None = None
    """Encoder: a run or a model folder; by default the newest run, else the shipped model."""
    output_dir: str | None = None
    """Output folder; by default runs/sts-embeddings-<model>."""
    loss: Literal["cosine", "contrastive"] = "cosine"
    """cosine: squared difference of cosine and score; contrastive: paraphrases against the other texts of the batch."""
    num_train_epochs: float = 4.0
    """Number of training epochs; 0 only evaluates."""
    per_device_train_batch_size: int = 32
    """Number of pairs per step."""
    learning_rate: float = 3e-4
    """Peak learning rate, after warmup over a tenth of the steps."""
    max_seq_length: int | None = None
    """Maximum number of tokens of a text, by default the model's; longer texts are truncated."""
    seeds: int = 1
    """Number of fine-tuning runs, with consecutive seeds."""
    seed: int = 42
    """First random seed."""

    def __post_init__(self) -> None:
        require_filled(self, "data_dir model output_dir")
        require_within(self, COUNT, "per_device_train_batch_size max_seq_length seeds")
        require_within(self, COUNT_OR_0, "num_train_epochs seed")
        require_within(self, "(0, inf)", "learning_rate")


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert finetune --task sts-embeddings`; returns the exit code."""
    return print_results(finetune(parse_embeddings(argv)))


def parse_embeddings(argv: Sequence[str]) -> EmbeddingsConfig:
    """Parse the command line; UsageError for a wrong option."""
    purpose = "Fine-tune an encoder for sentence vectors."
    parser = make_parser("Finetuning.py", purpose, f"--task {EMBEDDINGS} [--option ...]")
    parser.add_class_arguments(EmbeddingsConfig)
    options = parse(parser, argv).as_dict()
    return EmbeddingsConfig(**{name: options[name] for name in EmbeddingsConfig.__dataclass_fields__})


def finetune(config: EmbeddingsConfig) -> RunResult:
    """Evaluate the encoder as it is, fine-tune it with each seed, and save the best model.

    Raises UsageError without sentence-transformers, DataError, CheckpointError, DivergedError.
    """
    if missing := [name.replace("_", "-") for name in _PACKAGES if find_spec(name) is None]:
        raise UsageError(f"--task {EMBEDDINGS} needs {', '.join(missing)}: pip install {' '.join(missing)}")
    from electra_albert.apps.export import export
    from electra_albert.apps.finetune.job import model_name
    from electra_albert.hub.onnx import quiet

    source = Path(config.model) if config.model else default_model("--model")
    folder = Path(config.output_dir or f"runs/{EMBEDDINGS}-{model_name(source)}")
    check_can_write(folder)
    is_continued = config.num_train_epochs > 0 and _ZERO_SHOT in read_json(folder / _RESULTS)
    if ((folder / "model").exists() and not is_continued) or source.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{folder} holds a model, of which files or results would be overwritten; name another folder")
    pairs = _read(config)
    export(source, folder / "encoder", format="sentence-transformers", max_seq_length=config.max_seq_length)
    zero_shot = _evaluate(_load(folder / "encoder"), pairs["dev"])
    rows = [("x 100", *_METRICS), _row("without fine-tuning", [zero_shot])]
    tuned: list[Metrics] = []
    for seed in range(config.seed, config.seed + config.seeds * (config.num_train_epochs > 0)):
        model, steps = _train(config, seed, pairs["train"], folder)
        tuned.append(_evaluate(model, pairs["dev"]) | {"step": steps})
        rows.append(_row(f"seed {seed}", tuned[-1:]))
        LOG.info(f"seed {seed}: {json.dumps(tuned[-1])}")
        if tuned[-1]["spearman"] == max(scores["spearman"] for scores in tuned):
            shutil.rmtree(folder / "model", ignore_errors=True)
            with quiet():
                model.save(str(folder / "model"), create_model_card=False)
    if len(tuned) > 1:
        rows.append(_row("mean", tuned))
    results = {_ZERO_SHOT: zero_shot, "seeds": tuned, "config": asdict(config) | {"model": str(source)}}
    write_json(folder / _RESULTS, results)
    written = "results.json, encoder/ (without fine-tuning)" + ", model/ (best seed)" * bool(tuned)
    best = max(tuned or [zero_shot], key=lambda scores: scores["spearman"])
    summary = f"{format_table(rows)}\nwritten to {folder}: {written}"
    return RunResult(folder, best, int(best.get("step", 0)), summary=summary)


def _row(name: str, scores: Sequence[Metrics]) -> tuple[str, ...]:
    """A line of the table: mean scores x 100, of several with their standard deviation."""
    cells = []
    for metric in _METRICS:
        values = [100 * each[metric] for each in scores]
        deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.2f}{deviation}")
    return name, *cells


def _read(config: EmbeddingsConfig) -> dict[str, dict[str, list[Any]]]:
    """Columns a and b of texts and score from 0 to 1, of the sets train and dev of STS-B."""
    from electra_albert.tasks import reading, registry

    require(config.data_dir is not None, f"--task {EMBEDDINGS} needs --data_dir, the folder of STS-B or of GLUE")
    task = registry.find_task("stsb")
    files = DataConfig(task=task.name, data_dir=config.data_dir)
    data = reading.read_data(task, files, needs_test=False, seed=config.seed)
    assert task.score_range is not None
    most = task.score_range[1]

    def columns(examples: Sequence[Any]) -> dict[str, list[Any]]:
        texts = {"a": [example.text for example in examples], "b": [example.text_pair for example in examples]}
        return texts | {"score": [example.label / most for example in examples]}

    (dev,) = data.evaluation.values()
    return {"train": columns(data.train), "dev": columns(dev)}


def _load(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    from electra_albert.hub.onnx import quiet

    with quiet():
        return SentenceTransformer(str(folder), local_files_only=True)


def _evaluate(model: Any, pairs: dict[str, list[Any]]) -> Metrics:
    """Correlations of cosines and scores."""
    import numpy as np
    from sentence_transformers.util import pairwise_cos_sim

    from electra_albert.tasks.metrics import regression

    first, second = (model.encode(pairs[name], convert_to_tensor=True, show_progress_bar=False) for name in "ab")
    cosines = pairwise_cos_sim(first, second).double().cpu().numpy()
    if not np.isfinite(cosines).all():
        raise DivergedError("the sentence vectors are not finite; lower --learning_rate")
    scores = regression(np.stack([cosines, np.asarray(pairs["score"])], axis=1))
    return {metric: scores[metric] for metric in _METRICS}


def _train(config: EmbeddingsConfig, seed: int, pairs: dict[str, list[Any]], folder: Path) -> tuple[Any, int]:
    """A fine-tuned copy of folder/encoder, and its steps. Raises DataError if the loss has no pairs."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer import losses
    from transformers import PrinterCallback

    from electra_albert.hub.onnx import quiet

    model, examples = _load(folder / "encoder"), Dataset.from_dict(pairs)
    loss: Any = losses.CosineSimilarityLoss(model)
    if config.loss == "contrastive":
        kept = [index for index, score in enumerate(pairs["score"]) if score >= _PARAPHRASE]
        if len(kept) < 2:
            raise DataError("the training data has fewer than two paraphrases; use --loss cosine")
        examples = examples.select(kept).remove_columns("score")
        loss = losses.MultipleNegativesRankingLoss(model)
    names = ("num_train_epochs", "per_device_train_batch_size", "learning_rate")
    options: dict[str, Any] = {"seed": seed, "warmup_steps": 0.1, **{name: getattr(config, name) for name in names}}
    options |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}
    arguments = SentenceTransformerTrainingArguments(output_dir=str(folder), **options)
    with quiet():
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=examples, loss=loss)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return model, trainer.state.global_step
