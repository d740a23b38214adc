"""Measure what the toolkit is fast at, beside what it is compared with.

    python -m electra_albert.apps.bench store --corpus my.txt
    python -m electra_albert.apps.bench step --precision bf16 --output bench.json
    python -m electra_albert.apps.bench finetune --task sst2 --data_dir GLUE --model runs/mine

store: MB of text a second and core, from file to token store. step: the joint training step beside the same two
networks composed from stock transformers classes, on the same batches, in turns within one process. finetune: whole
passes over a task beside stock's Trainer on the same model, in turns too.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from electra_albert.apps.bench_finetune import format_finetune, has_trainer, measure_finetune
from electra_albert.apps.bench_step import format_step, measure_step, spread
from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.config import CorpusConfig, PretrainConfig
from electra_albert.contracts import UsageError
from electra_albert.presets import PRESETS

# No `if TYPE_CHECKING` here: to read BenchConfig's types, jsonargparse would make its imports, heavy ones included.
WHAT = ("store", "step", "finetune", "all")
TARGET_MEGABYTES = {"sentences": 3.0, "documents": 3.0, "paragraphs": 1.5}  # a second and core
TOKENIZER_CHARACTERS = 4_000_000  # that the tokenizer of a store measurement is trained on; its training is not timed


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, and on what."""

    corpus: str = "docs"
    """Text files, as for Pretraining.py; docs is measured as one sentence a line and as one paragraph a line."""
    tokenizer: str | None = None
    """Folder of a tokenizer to use; without it one is trained, which is not timed."""
    vocab_size: int = 30_000
    """Rows of the token table, and pieces of the tokenizer that is trained."""
    prepared_dir: str = "data/prepared"
    """Where tokenizers and token stores are kept."""
    preset: str = "small"
    """Shape of the model whose step is measured, and of the one that is fine-tuned where --model names none."""
    task: str | None = None
    """Task to fine-tune on, such as sst2, with classes of sentences; by default the one made from the documentation."""
    data_dir: str | None = None
    """Folder of the task, as for Finetuning.py."""
    model: str | None = None
    """Model to fine-tune, as for Finetuning.py; random weights without it."""
    examples: int = 2048
    """Examples in a pass of fine-tuning, at most."""
    max_seq_length: int = 128
    """Tokens in a row."""
    per_device_train_batch_size: int = 32
    """Rows in a step; stock's logits at all positions take 0.5 GB in float32 for 32 rows of 128."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the matrix products; bf16 by autocast."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure the step; auto takes a GPU where there is one."""
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    """Stock's attention: sdpa, eager, or auto for the one that is faster here."""
    repeats: int = 5
    """Measurements of each; the median is reported."""
    seed: int = 42
    """Keys the weights, the order of the rows and the masks."""
    output: str | None = None
    """A JSON file to write the numbers to."""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UsageError(f"preset {self.preset!r} does not exist; there are {', '.join(PRESETS)}")
        for name in ("repeats", "per_device_train_batch_size", "examples"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} {getattr(self, name)} must be at least 1")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser(
        "python -m electra_albert.apps.bench", "Measure store building, the training step and fine-tuning."
    )
    parser.add_argument("what", choices=WHAT, nargs="?", default="all", help="What to measure.")
    parser.add_class_arguments(BenchConfig)
    options = parse(parser, argv).as_dict()
    what = options.pop("what")
    config = BenchConfig(**options)
    settings = settings_of(config)
    check_can_write(Path(config.prepared_dir))
    if config.output:
        check_can_write(Path(config.output).parent)
    results: dict[str, Any] = {"settings": asdict(config), "environment": environment(config)}
    print("  ".join(f"{name} {value}" for name, value in results["environment"].items()), flush=True)
    if what in ("store", "all"):
        results["store"] = measure_store(config, _say)
        print(format_store(results["store"]), flush=True)
    if what in ("step", "all"):
        results["step"] = measure_step(config, settings, _say)
        print(format_step(results["step"]), flush=True)
    if what == "all" and not has_trainer():
        _say("finetune is left out: stock's Trainer needs accelerate, which is not installed")
    elif what in ("finetune", "all"):
        results["finetune"] = measure_finetune(config, settings.model, _say)
        print(format_finetune(results["finetune"]), flush=True)
    if config.output:
        _write(Path(config.output), results)
    return 0


def _write(file: Path, results: dict[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file} ({error.strerror}); choose another --output") from None


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def settings_of(config: BenchConfig) -> PretrainConfig:
    """The preset on the corpus asked for, without dropout: networks that draw their own cannot be compared."""
    preset = PRESETS[config.preset]
    corpus = {name: getattr(config, name) for name in ("corpus", "tokenizer", "vocab_size", "max_seq_length")}
    try:
        return replace(
            preset,
            corpus=CorpusConfig(**corpus, prepared_dir=config.prepared_dir),
            model=replace(preset.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def environment(config: BenchConfig) -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    from importlib.metadata import version

    import torch

    stamp = {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "precision": config.precision,
    }
    if config.device != "cpu" and torch.cuda.is_available():
        stamp["gpu"] = torch.cuda.get_device_name()
    return stamp


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


# The token store.


def measure_store(config: BenchConfig, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One record for each kind of text: MB a second and core of planning, reading, splitting, tokenising, writing."""
    from electra_albert.config import BUILT_IN_CORPUS
    from electra_albert.corpus.sources import find_files
    from electra_albert.corpus.tokenizer import load_tokenizer, train_tokenizer

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        is_built_in = config.corpus == BUILT_IN_CORPUS
        sources = _docs_as_text(config, folder) if is_built_in else [find_files(config.corpus, Counter())]
        if config.tokenizer:
            tokenizer = load_tokenizer(Path(config.tokenizer))
        else:
            say(f"training a tokenizer of {config.vocab_size:,} pieces, which is not timed")
            tokenizer = train_tokenizer(_beginning(sources[0]), config.vocab_size, do_lower_case=True)
        return [_measure_files(files, tokenizer, folder, config, say) for files in sources]


def _docs_as_text(config: BenchConfig, folder: Path) -> list[list[Path]]:
    """The built-in corpus as two text files: one sentence a line, and one document a line that must be split."""
    from electra_albert.config import BUILT_IN_CORPUS
    from electra_albert.corpus.installed_docs import write_installed_docs
    from electra_albert.corpus.sources import plan_units, read_unit

    units = plan_units([write_installed_docs(Path(config.prepared_dir) / BUILT_IN_CORPUS)])
    files = []
    for kind, between in (("sentences", "\n"), ("paragraphs", " ")):
        file = folder / f"{kind}.txt"
        with file.open("w", encoding="utf-8") as text:
            for document in (document for unit in units for document in read_unit(unit, Counter())):
                text.write(between.join(document.sentences) + "\n\n")
        files.append([file])
    return files


def _beginning(files: list[Path]) -> Iterator[str]:
    from electra_albert.corpus.sources import plan_units, read_unit

    left = TOKENIZER_CHARACTERS
    documents = (document for unit in plan_units(files) for document in read_unit(unit, Counter()))
    for sentence in (sentence for document in documents for sentence in document.sentences):
        if left <= 0:
            return
        yield sentence
        left -= len(sentence)


def _measure_files(
    files: list[Path], tokenizer: Any, folder: Path, config: BenchConfig, say: Callable[[str], None]
) -> dict[str, Any]:
    from electra_albert.corpus.parts import PartPlan, token_dtype, write_parts
    from electra_albert.corpus.sources import plan_units
    from electra_albert.corpus.store import build_store
    from electra_albert.corpus.word_encoder import encoder_settings

    rates = []
    for repeat in range(config.repeats):
        began, began_working = time.perf_counter(), time.process_time()
        units = plan_units(files)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            store, vocab_size = Path(name), len(tokenizer)
            plan = PartPlan(units, encoder_settings(tokenizer), store / "parts", "bench", token_dtype(vocab_size))
            write_parts(plan, range(len(units)), 1, say)
            receipt = build_store(
                plan, store, sources=[0] * len(units), vocab_size=vocab_size, seed=config.seed, found=Counter()
            ).receipt
            # Threads of the tokenizer would hide in the one, waiting for the disk in the other: the larger one counts.
            seconds = max(time.perf_counter() - began, time.process_time() - began_working)
        rates.append(receipt["read"]["bytes"] / 1e6 / seconds)
        say(f"{files[0].name}: build {repeat + 1} of {config.repeats}, {rates[-1]:.2f} MB/s")
    kinds = sorted({span.kind for unit in units for span in unit.spans})
    return {
        "kind": "+".join(kinds),
        "corpus": config.corpus,
        "megabytes": receipt["read"]["bytes"] / 1e6,
        "tokens": receipt["written"]["tokens"],
        "vocab_size": len(tokenizer),
        "megabytes_per_second_and_core": spread(rates),
        "target": min(TARGET_MEGABYTES.get(kind, TARGET_MEGABYTES["paragraphs"]) for kind in kinds),
    }


def format_store(records: list[dict[str, Any]]) -> str:
    """The records as a table."""
    lines = [
        "",
        f"token store, one process\n{'text':<12}{'MB':>9}{'MB/s a core':>13}{'lowest':>9}{'highest':>9}{'target':>8}",
    ]
    for record in records:
        rate = record["megabytes_per_second_and_core"]
        columns = f"{rate['median']:>13.2f}{rate['lowest']:>9.2f}{rate['highest']:>9.2f}{record['target']:>8.1f}"
        lines.append(f"{record['kind']:<12}{record['megabytes']:>9.1f}{columns}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(run_app(main))
