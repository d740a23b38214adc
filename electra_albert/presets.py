"""Presets by name: complete settings of a pretraining run (model size, batch size, learning rate, steps)."""

from typing import Any, Literal

from electra_albert.config import CorpusConfig, ModelConfig, PretrainConfig, RtdConfig, TrainingConfig


def _shape(width: int, layers: int, heads: int, initialization: Literal["normal", "local"] = "normal") -> ModelConfig:
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    # Differs from ALBERT: ELECTRA's exact GELU. The tanh approximation is several times slower on a CPU.
    return ModelConfig(**sizes, intermediate_size=4 * width, hidden_act="gelu", initialization=initialization)


def _preset(
    shape: tuple[int, int, int], length: int, batch: tuple[int, int], peak: float, steps: int, mask_rate: float = 0.15
) -> PretrainConfig:
    """A published shape (H, layers, heads) with ELECTRA's recipe; batch: (micro-batch size, accumulation steps)."""
    training = TrainingConfig(steps, batch[0], gradient_accumulation_steps=batch[1], learning_rate=peak)
    corpus, rtd = CorpusConfig(max_seq_length=length), RtdConfig(mask_rate=mask_rate)
    return PretrainConfig(corpus=corpus, training=training, model=_shape(*shape), rtd=rtd)


PRESETS: dict[str, PretrainConfig] = {
    # For experiments on two CPU cores: the best settings for a few minutes, see the recipe search in docs/lab-log.md.
    "tiny": PretrainConfig(
        corpus=CorpusConfig(vocab_size=8000, max_seq_length=64),
        training=TrainingConfig(4000, 32, learning_rate=5e-4, warmup_steps=200, eval_steps=1000, save_steps=500),
        model=_shape(128, 3, 4, "local"),
        rtd=RtdConfig(mask_rate=0.2, generator_size=0.5, generator_layers=1, generator_rate=4.0),
    ),
    # Batch size and learning rate of small to large are ELECTRA's; xlarge and xxlarge take large's. They assume one
    # device; with N devices divide gradient_accumulation_steps by N.
    "small": _preset((256, 12, 4), 128, (128, 1), 5e-4, 1_000_000),
    "base": _preset((768, 12, 12), 512, (32, 8), 2e-4, 766_000),
    "large": _preset((1024, 24, 16), 512, (16, 128), 2e-4, 400_000, 0.25),
    "xlarge": _preset((2048, 24, 16), 512, (8, 256), 2e-4, 400_000, 0.25),
    "xxlarge": _preset((4096, 12, 64), 512, (4, 512), 2e-4, 400_000, 0.25),
}
