"""A corpus, settings and a shape so small that the benchmark takes seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from electra_albert.apps.bench import machine, roofs
from electra_albert.apps.bench.config import BenchConfig, length_of
from electra_albert.config import CorpusConfig, ModelConfig, PretrainConfig

L, V = 23, 61
MATRIX_RATE, BANDWIDTH = 5e9, 8e6  # a second
SEED = 5
SHAPE = ModelConfig(
    vocab_size=V,
    embedding_size=13,
    hidden_size=28,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=34,
    max_position_embeddings=37,
    initializer_range=0.2,  # far from where every loss is that of guessing, so that weights show in it
)
FRESH_SHAPE = replace(SHAPE, initializer_range=ModelConfig().initializer_range)  # as a run wants its first weights
WORDS = ("river", "bridge", "house", "people", "night", "water", "road", "hill", "moon", "dog", "stone", "wind", "old")


def write_corpus(folder: Path) -> Path:
    """Documents of three sentences of nine words each, in a file of `folder`."""
    drawn = np.random.default_rng(1).integers(len(WORDS), size=(40, 3, 9))
    documents = ["\n".join(" ".join(WORDS[w] for w in sentence) + "." for sentence in document) for document in drawn]
    file = folder / "corpus.txt"
    file.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return file


def bench_config(corpus: Path, **changes: object) -> BenchConfig:
    """What is measured, on the corpus, with everything kept beside it."""
    options = {"repeats": 2, "per_device_train_batch_size": 3, "vocab_size": V, "max_seq_length": L, "seed": SEED}
    paths = {"corpus": str(corpus), "prepared_dir": str(corpus.parent / "prepared")}
    return BenchConfig(**{**options, **paths, "device": "cpu", "precision": "fp32", **changes})  # type: ignore[arg-type]


def settings(config: BenchConfig, shape: ModelConfig = SHAPE) -> PretrainConfig:
    """What a preset would be, in the small shape."""
    corpus = CorpusConfig(
        corpus=config.corpus,
        vocab_size=config.vocab_size,
        max_seq_length=length_of(config),
        prepared_dir=config.prepared_dir,
        preprocessing_num_workers=1,
    )
    return PretrainConfig(corpus=corpus, model=shape)


def set_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the machine roofs that are known, and take no seconds to measure."""
    for module in (machine, roofs):
        monkeypatch.setattr(module, "matrix_rate", lambda device, arithmetic: MATRIX_RATE)
        monkeypatch.setattr(module, "copy_bandwidth", lambda device: BANDWIDTH)


def silent(message: str) -> None:
    """Say nothing."""
