"""Presets by name: complete settings of a pretraining run (model size, batch size, learning rate, steps)."""

from typing import Any, Literal

from electra_albert.config import CorpusConfig, ModelConfig, PretrainConfig, RtdConfig, TrainingConfig

# Differs from ELECTRA and ALBERT: their Adam with shared embeddings. In the trials (dev/log/2026-11.md) Muon with
# disentangled embeddings learns more per token, and twelve shared layers learn better with outputs that start at zero.
_SHARING: Literal["disentangled"] = "disentangled"
_DEEP_MUON_RATE = 1.0  # at that of tiny, 3, the discriminator of twelve shared layers of width 256 stays near chance


def _shape(
    width: int, layers: int, heads: int, length: int, initialization: Literal["normal", "local"] = "local"
) -> ModelConfig:
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes["max_position_embeddings"] = length
    start: dict[str, Any] = {"initialization": initialization, "zero_init_outputs": True}
    # Differs from ALBERT: ELECTRA's exact GELU. The tanh approximation is several times slower on a CPU.
    return ModelConfig(**sizes, **start, intermediate_size=4 * width, hidden_act="gelu")


def _preset(
    shape: tuple[int, int, int], length: int, batch: tuple[int, int], peak: float, steps: int, mask_rate: float = 0.15
) -> PretrainConfig:
    """A published shape (H, layers, heads), batch and length of run; batch: (micro-batch size, accumulation steps)."""
    sizes: dict[str, Any] = {"per_device_train_batch_size": batch[0], "gradient_accumulation_steps": batch[1]}
    training = TrainingConfig(steps, **sizes, learning_rate=peak, optimizer="muon", muon_rate=_DEEP_MUON_RATE)
    corpus, rtd = CorpusConfig(max_seq_length=length), RtdConfig(mask_rate=mask_rate, embedding_sharing=_SHARING)
    return PretrainConfig(corpus=corpus, training=training, model=_shape(*shape, length, "normal"), rtd=rtd)


_GENERATOR: dict[str, Any] = {"generator_size": 0.5, "generator_layers": 1, "generator_rate": 2.0}
PRESETS: dict[str, PretrainConfig] = {
    # For experiments on two CPU cores: the best settings for a few minutes, see dev/log/2026-11.md.
    "tiny": PretrainConfig(
        corpus=CorpusConfig(vocab_size=8000, max_seq_length=64),
        training=TrainingConfig(
            4000, 32, learning_rate=1e-3, warmup_steps=200, optimizer="muon", eval_steps=1000, save_steps=500
        ),
        model=_shape(128, 3, 4, 64),
        rtd=RtdConfig(mask_rate=0.2, embedding_sharing=_SHARING, **_GENERATOR),
    ),
    # ELECTRA-Small's shape, batch and steps, with the learning rates and the generator of tiny.
    "small": PretrainConfig(
        training=TrainingConfig(learning_rate=1e-3, optimizer="muon", muon_rate=_DEEP_MUON_RATE),
        model=_shape(256, 12, 4, 128),
        rtd=RtdConfig(mask_rate=0.15, embedding_sharing=_SHARING, **_GENERATOR),
    ),
    # Batch size and learning rate of base and large are ELECTRA's; xlarge and xxlarge take large's. They assume one
    # device; with N devices divide gradient_accumulation_steps by N.
    "base": _preset((768, 12, 12), 512, (32, 8), 2e-4, 766_000),
    "large": _preset((1024, 24, 16), 512, (16, 128), 2e-4, 400_000, 0.25),
    "xlarge": _preset((2048, 24, 16), 512, (8, 256), 2e-4, 400_000, 0.25),
    "xxlarge": _preset((4096, 12, 64), 512, (4, 512), 2e-4, 400_000, 0.25),
}
