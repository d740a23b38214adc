"""A corpus, settings and a shape so small that the benchmark takes seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from electra_albert.apps.bench.config import BenchConfig
from electra_albert.config import CorpusConfig, ModelConfig, PretrainConfig

L, V = 23, 61
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


def settings(config: BenchConfig) -> PretrainConfig:
    """What a preset would be, in the small shape."""
    corpus = CorpusConfig(
        corpus=config.corpus,
        vocab_size=config.vocab_size,
        max_seq_length=config.max_seq_length,
        prepared_dir=config.prepared_dir,
        preprocessing_num_workers=1,
    )
    return PretrainConfig(corpus=corpus, model=SHAPE)


def silent(message: str) -> None:
    """Say nothing."""
