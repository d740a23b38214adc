"""Complete settings to start from, by name: sizes, rates and batches that belong together."""

from __future__ import annotations

from typing import Final

from electra_albert.config import CorpusConfig, ModelConfig, PretrainConfig, RtdConfig, TrainingConfig

# Differs from ALBERT: ELECTRA's exact GELU. On a CPU the tanh approximation takes several times as long.
_ACTIVATION: Final = "gelu"


def _preset(
    hidden_size: int,
    layers: int,
    heads: int,
    *,
    length: int,
    rows: int,
    micro_batches: int = 1,
    learning_rate: float,
    steps: int,
    mask_rate: float = 0.15,
) -> PretrainConfig:
    """A published shape: ALBERT's blocks (E 128, feed-forward 4 x hidden) with ELECTRA's recipe for its size."""
    return PretrainConfig(
        corpus=CorpusConfig(max_seq_length=length),
        training=TrainingConfig(
            max_steps=steps,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=micro_batches,
            learning_rate=learning_rate,
            warmup_steps=10_000,
        ),
        model=ModelConfig(
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden_size,
            hidden_act=_ACTIVATION,
        ),
        rtd=RtdConfig(mask_rate=mask_rate),
    )


PRESETS: dict[str, PretrainConfig] = {
    # For trying things on two CPU cores: what learned most in a few minutes, see the sweep in docs/results.md.
    "tiny": PretrainConfig(
        corpus=CorpusConfig(vocab_size=8000, max_seq_length=64),
        training=TrainingConfig(
            max_steps=4000,
            per_device_train_batch_size=32,
            learning_rate=5e-4,
            warmup_steps=200,
            eval_steps=1000,
            save_steps=500,
        ),
        model=ModelConfig(
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_act=_ACTIVATION,
            initialization="local",
        ),
        rtd=RtdConfig(mask_rate=0.2, generator_size=0.5, generator_layers=1, generator_rate=4.0),
    ),
    # Batch and rate of small to large: ELECTRA's table for the size; xlarge and xxlarge inherit large's. The batch is
    # rows x micro-batches on one device; on more devices lower gradient_accumulation_steps as much.
    "small": _preset(256, 12, 4, length=128, rows=128, learning_rate=5e-4, steps=1_000_000),
    "base": _preset(768, 12, 12, length=512, rows=32, micro_batches=8, learning_rate=2e-4, steps=766_000),
    "large": _preset(
        1024, 24, 16, length=512, rows=16, micro_batches=128, learning_rate=2e-4, steps=400_000, mask_rate=0.25
    ),
    "xlarge": _preset(
        2048, 24, 16, length=512, rows=8, micro_batches=256, learning_rate=2e-4, steps=400_000, mask_rate=0.25
    ),
    "xxlarge": _preset(
        4096, 12, 64, length=512, rows=4, micro_batches=512, learning_rate=2e-4, steps=400_000, mask_rate=0.25
    ),
}
