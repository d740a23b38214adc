"""Presets by name: complete settings of a pretraining run."""

from dataclasses import replace
from typing import Any, Literal

from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import RtdConfig
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig
from electra_albert.config.training import TrainingConfig

# At 3, the muon_rate of tiny, the discriminator of twelve shared layers of width 256 stays near
# chance.
_DEEP_MUON_RATE = 1.0


def _shape(
    width: int,
    layers: int,
    heads: int,
    length: int,
    initialization: Literal["normal", "local"] = "local",
) -> ModelConfig:
    return ModelConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        # Differs from ALBERT: ELECTRA's exact GELU. The tanh approximation is several times slower
        # on a CPU.
        hidden_act="gelu",
        max_position_embeddings=length,
        initialization=initialization,
        zero_init_outputs=True,
    )


def _published(
    width: int,
    layers: int,
    heads: int,
    *,
    batch_size: int,
    accumulation_steps: int,
    max_steps: int = 400_000,
    mask_rate: float = 0.25,
) -> PretrainConfig:
    """A published shape on sequences of 512 tokens, with ELECTRA's learning rate.

    batch_size: of a micro-batch.
    """
    return PretrainConfig(
        corpus=CorpusConfig(max_seq_length=512),
        training=TrainingConfig(
            max_steps,
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation_steps,
            learning_rate=2e-4,
            optimizer="muon",
            muon_rate=_DEEP_MUON_RATE,
        ),
        model=_shape(width, layers, heads, 512, "normal"),
        rtd=RtdConfig(mask_rate=mask_rate, embedding_sharing="disentangled"),
    )


# Differs from ELECTRA and ALBERT: their Adam with shared embeddings. In the trials
# (dev/log/2026-11.md) Muon with disentangled embeddings learns more per token, and twelve shared
# layers learn better with outputs that start at zero.
_GENERATOR: dict[str, Any] = {
    "generator_size": 0.5,
    "generator_layers": 1,
    "generator_rate": 2.0,
    "embedding_sharing": "disentangled",
}
# ELECTRA-Small's shape, batch and steps, with the learning rates and the generator of tiny.
_SMALL = PretrainConfig(
    training=TrainingConfig(learning_rate=1e-3, optimizer="muon", muon_rate=_DEEP_MUON_RATE),
    model=_shape(256, 12, 4, 128),
    rtd=RtdConfig(**_GENERATOR),
)
# For experiments on two CPU cores: the best settings for a few minutes, see the recipe search in
# dev/log/2026-11.md.
_TINY = PretrainConfig(
    corpus=CorpusConfig(vocab_size=8000, max_seq_length=64),
    training=TrainingConfig(
        max_steps=4000,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        warmup_steps=200,
        optimizer="muon",
        eval_steps=1000,
        save_steps=500,
    ),
    model=_shape(128, 3, 4, 64),
    rtd=RtdConfig(mask_rate=0.2, **_GENERATOR),
)


def _modern(preset: PretrainConfig, features: int) -> PretrainConfig:
    """The preset with modern blocks. Their gate makes the feed-forward layer half as large again,
    so two thirds of its features give as many parameters.
    """
    return replace(preset, model=replace(preset.model, block="modern", intermediate_size=features))


# Of presets of one width, folders without settings take the last (apps/pretrain/init_from.py).
PRESETS = {
    "tiny-modern": _modern(_TINY, 340),
    "tiny": _TINY,
    "small-modern": _modern(_SMALL, 680),
    "small": _SMALL,
    # Batch size and learning rate of base and large are ELECTRA's; xlarge and xxlarge take large's.
    # They assume one device; with N devices divide gradient_accumulation_steps by N.
    "base": _published(
        768,
        12,
        12,
        batch_size=32,
        accumulation_steps=8,
        max_steps=766_000,
        mask_rate=0.15,
    ),
    "large": _published(1024, 24, 16, batch_size=16, accumulation_steps=128),
    "xlarge": _published(2048, 24, 16, batch_size=8, accumulation_steps=256),
    "xxlarge": _published(4096, 12, 64, batch_size=4, accumulation_steps=512),
}
