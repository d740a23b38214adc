"""What the benchmark is told, and what its numbers depend on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from electra_albert.config import CorpusConfig, PretrainConfig
from electra_albert.contracts import UsageError
from electra_albert.objectives.registry import OBJECTIVES
from electra_albert.presets import PRESETS

# No `if TYPE_CHECKING` here: to read BenchConfig's types, jsonargparse would make its imports, heavy ones included.
Say = Callable[[str], None]

OURS, STOCK, TUNED, TUNED_COMPILED = "ours", "stock", "stock, tuned", "stock, tuned, compiled"
ATTENTIONS = ("sdpa", "eager")  # stock's

_PRECISIONS = ("auto", "fp32", "bf16")  # fp16 costs what bf16 does, and needs a loss scale that stock's side has not
AUTO_ROWS = 32  # in a step on a CPU, and in one of fine-tuning
_SHORT = 128  # tokens in a row, up to which a GPU takes many rows
_SHORT_GPU_ROWS, _LONG_GPU_ROWS = (128, 512, 1024), (32, 64)


@dataclass(frozen=True)
class BenchConfig:
    """What is measured, and on what.

    Where several values may be given, separated by commas, the training step is measured for each combination and all
    else with the first.
    """

    corpus: str = "docs"
    """Text files, as for Pretraining.py; docs is measured as one sentence a line and as one paragraph a line."""
    tokenizer: str | None = None
    """Folder of a tokenizer to use; without it one is trained, which is not timed."""
    vocab_size: int = 30_000
    """Rows of the token table, and pieces of the tokenizer that is trained."""
    prepared_dir: str = "data/prepared"
    """Where tokenizers and token stores are kept."""
    preset: str = "small"
    """Shape of the model whose step is measured, and of the one that is fine-tuned where --model names none; or several
    shapes, separated by commas."""
    objective: str = "rtd"
    """What the measured step trains: any that Pretraining.py has; or several, separated by commas."""
    task: str | None = None
    """Task to fine-tune on, such as sst2, with classes of sentences; by default the one made from the documentation."""
    data_dir: str | None = None
    """Folder of the task, as for Finetuning.py."""
    model: str | None = None
    """Model to fine-tune, as for Finetuning.py; random weights without it."""
    examples: int = 2048
    """Examples in a pass of fine-tuning, at most."""
    max_seq_length: int | None = None
    """Tokens in a row; by default as many as the preset has, such as 128 of small and 512 of base."""
    per_device_train_batch_size: int | str = "auto"
    """Rows in a step, or several numbers separated by commas, among which the fastest is looked for; auto: 32 on a CPU
    and for fine-tuning, on a GPU 128,512,1024 for rows of at most 128 tokens and 32,64 for longer ones. Stock's logits
    at all positions take 0.5 GB in float32 for 32 rows of 128."""
    precision: str = "auto"
    """Arithmetic of the matrix products: fp32, bf16 (by autocast), or auto for what a run would take here; or several,
    separated by commas."""
    torch_compile: bool | Literal["auto"] = "auto"
    """Whether the step is measured compiled as well, ours and stock's; auto does so on a GPU."""
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
        for name, found, known in (
            ("preset", self.presets, tuple(PRESETS)),
            ("objective", self.objectives, tuple(OBJECTIVES)),
            ("precision", self.precisions, _PRECISIONS),
        ):
            for one in found:
                if one not in known:
                    raise UsageError(f"{name} {one!r} does not exist; there are {', '.join(known)}")
        for name, values in (
            ("repeats", (self.repeats,)),
            ("per_device_train_batch_size", self.rows),
            ("examples", (self.examples,)),
        ):
            for value in values:
                if value < 1:
                    raise UsageError(f"--{name} {value} must be at least 1")

    @property
    def presets(self) -> tuple[str, ...]:
        """The shapes asked for."""
        return _listed(self.preset)

    @property
    def objectives(self) -> tuple[str, ...]:
        """What steps asked for train."""
        return _listed(self.objective)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The arithmetics asked for; auto is settled where the device is known (machine.py)."""
        return _listed(self.precision)

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of rows in a step asked for; none for auto, see rows_of."""
        if self.per_device_train_batch_size == "auto":
            return ()
        try:
            return tuple(int(one) for one in _listed(str(self.per_device_train_batch_size)))
        except ValueError:
            raise UsageError(
                f"--per_device_train_batch_size {self.per_device_train_batch_size} is no whole number, nor several "
                "separated by commas"
            ) from None


def _listed(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.strip() for one in value.split(",")))


def length_of(config: BenchConfig, name: str | None = None) -> int:
    """Tokens in a row: as asked for, or those of a preset, by default the first."""
    return config.max_seq_length or PRESETS[name or config.presets[0]].corpus.max_seq_length


def rows_of(config: BenchConfig, device_type: str, length: int) -> tuple[int, ...]:
    """The numbers of rows in a step: as asked for, or those usual for rows of `length` tokens on such a device."""
    if config.rows:
        return config.rows
    if device_type == "cpu":
        return (AUTO_ROWS,)
    return _SHORT_GPU_ROWS if length <= _SHORT else _LONG_GPU_ROWS


def settings_of(config: BenchConfig, name: str | None = None) -> PretrainConfig:
    """A preset, by default the first, on the corpus asked for.

    Without dropout: networks that draw their own cannot be compared.
    """
    preset = PRESETS[name or config.presets[0]]
    corpus = {name: getattr(config, name) for name in ("corpus", "tokenizer", "vocab_size", "prepared_dir")}
    try:
        return replace(
            preset,
            corpus=CorpusConfig(**corpus, max_seq_length=length_of(config, name)),
            model=replace(preset.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def ours_named(compilation: str) -> str:
    """The name of ours compiled in such a way, or not at all ("none")."""
    return OURS if compilation == "none" else f"{OURS}, {compilation} compiled"


def plain_of(name: str) -> str:
    """The name of the contender that a compiled one was before it was compiled."""
    return OURS if name.startswith(OURS) else TUNED


def first_of_ours(names: Iterable[str]) -> str | None:
    """The first name of ours, which ratios are against; None where none of ours was measured."""
    return next((name for name in names if name.startswith(OURS)), None)


def spread(values: Sequence[float]) -> dict[str, float]:
    """What is reported of repeated measurements."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
