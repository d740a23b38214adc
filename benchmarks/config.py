"""Options of the benchmarks, and the pretraining job that most of them measure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from electra_albert.config.presets import PRESETS
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig
from electra_albert.contracts import UsageError
from electra_albert.objectives import OBJECTIVES

if TYPE_CHECKING:
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.training.distributed import World

PRECISIONS = (
    "auto",
    "fp32",
    "bf16",
)  # fp16 is as fast as bf16, and stock's plain loop has no loss scaling
CPU_BATCH_SIZE = 32
_LIKE_STOCK: dict[str, Any] = {
    "optimizer": "adamw",
    "gradient_accumulation_steps": 1,
    "warmup_steps": 0,
    "lr_scheduler_type": "wsd",  # constant for longer than a benchmark takes
}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHORT_LENGTH, SHORT_GPU_BATCH_SIZES, LONG_GPU_BATCH_SIZES = 128, [128, 512, 1024], [32, 64]


@dataclass(frozen=True)
class BenchConfig:
    """Options.

    Some take several values, separated by commas: the step is measured for each, the rest for the
    first.
    """

    corpus: str = CorpusConfig.corpus
    """Text to measure on, as for Pretraining.py."""
    tokenizer: str | None = None
    """Folder of a tokenizer; by default one is trained, which is not timed."""
    vocab_size: int = 30_000
    """Vocabulary of the model, and of the tokenizer that is trained."""
    prepared_dir: str = "data/prepared"
    """Where tokenizers and token stores are kept."""
    preset: str = "small"
    """Preset with the model's shape, or several."""
    objective: str = "rtd"
    """Objective of the step, or several; only rtd is compared with stock."""
    max_seq_length: int | None = None
    """Tokens per example; by default the preset's."""
    per_device_train_batch_size: str = "auto"
    """Examples per step, or several; auto: 32 on a CPU, on a GPU 128,512,1024 of at most 128
    tokens, else 32,64."""
    precision: str = "auto"
    """fp32, bf16 (autocast), auto for the precision of a run on this device, or several."""
    torch_compile: bool | Literal["auto"] = "auto"
    """Also measure the step compiled, ours and stock's; auto: on a GPU only."""
    examples: int = 2048
    """Examples in the epoch of fine-tuning."""
    device: str = "auto"
    """cpu, cuda, or auto for a GPU if there is one."""
    repeats: int = 5
    """Timings of each implementation, in turns; the median is reported."""
    profile: bool = False
    """Also profile a few updates of each of our implementations of the step."""
    seed: int = 42
    """Seed of the weights, the order of examples and the masks."""
    output: str | None = None
    """JSON file for all numbers."""

    def __post_init__(self) -> None:
        for name, known in (
            ("preset", PRESETS),
            ("objective", OBJECTIVES),
            ("precision", PRECISIONS),
        ):
            for value in self.values(name):
                if value not in known:
                    raise UsageError(
                        f"--{name} {value} does not exist; there are {', '.join(known)}"
                    )
        for name in ("repeats", "examples", "per_device_train_batch_size"):
            for value in self.values(name):
                if value != "auto" and not (value.isdecimal() and int(value)):
                    raise UsageError(f"--{name} {value} is not a whole number of at least 1")

    def values(self, name: str) -> list[str]:
        """The values of an option that takes several."""
        return [value.strip() for value in str(getattr(self, name)).split(",")]

    def batch_sizes(self, device_type: str, length: int) -> list[int]:
        """Examples per step: as given, or the default for the device and the length."""
        if self.per_device_train_batch_size != "auto":
            return [int(value) for value in self.values("per_device_train_batch_size")]
        if device_type == "cpu":
            return [CPU_BATCH_SIZE]
        return SHORT_GPU_BATCH_SIZES if length <= SHORT_LENGTH else LONG_GPU_BATCH_SIZES


def pretraining(
    config: BenchConfig, preset: str | None = None, objective: str | None = None
) -> PretrainConfig:
    """Settings of a run that stock can do too: AdamW, one embedding table, uncompiled, no dropout.

    The learning rate is constant, as in stock's plain loop.
    """
    shape = PRESETS[preset or config.values("preset")[0]]
    corpus = {
        name: getattr(config, name)
        for name in ("corpus", "tokenizer", "vocab_size", "prepared_dir")
    }
    length = config.max_seq_length or shape.corpus.max_seq_length
    wanted: Any = objective or config.values("objective")[0]
    try:
        return replace(
            shape,
            run=replace(shape.run, objective=wanted, torch_compile="none"),
            corpus=CorpusConfig(**corpus, max_seq_length=length),
            training=replace(shape.training, seed=config.seed, **_LIKE_STOCK),
            rtd=replace(shape.rtd, embedding_sharing="full"),
            model=replace(shape.model, max_position_embeddings=length, **_NO_DROPOUT),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def bench_job(
    config: BenchConfig, settings: PretrainConfig, world: World, batch_size: int, precision: str
) -> Job:
    """A run's objective and batches, with vocab_size tokens in the model even if the trained
    tokenizer has fewer.
    """
    import torch

    from electra_albert.apps.pretrain.job import make_job
    from electra_albert.objectives.rtd import make_objective
    from electra_albert.tokenization.tokenizer import special_ids

    options: dict[str, Any] = {"per_device_train_batch_size": batch_size, "precision": precision}
    job = make_job(replace(settings, training=replace(settings.training, **options)), world)
    if config.tokenizer or len(job.prepared.tokenizer) >= config.vocab_size:
        return job
    torch.manual_seed(config.seed)
    wanted = replace(job.config, model=replace(job.config.model, vocab_size=config.vocab_size))
    objective = make_objective(wanted, special_ids(job.prepared.tokenizer))
    return job._replace(config=wanted, objective=objective.to(world.device))
