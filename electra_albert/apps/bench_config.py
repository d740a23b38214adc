"""What the benchmark is told, and what its numbers depend on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from electra_albert.config import CorpusConfig, PretrainConfig
from electra_albert.contracts import UsageError
from electra_albert.presets import PRESETS

# No `if TYPE_CHECKING` here: to read BenchConfig's types, jsonargparse would make its imports, heavy ones included.
Say = Callable[[str], None]


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


def spread(values: Sequence[float]) -> dict[str, float]:
    """What is reported of repeated measurements."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
