"""Pretraining objectives by name.

--help reads this table: do not import torch here, not even for types.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra_albert.config.checks import require_within
from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import MlmConfig, RtdConfig, SopConfig
from electra_albert.config.pretraining import PretrainConfig


@dataclass(frozen=True)
class ElectricConfig:
    """Noise-contrastive estimation of energies. Paper: Clark et al. 2020 (Electric), section 2."""

    noise_share: float = 0.5
    """Fraction of the selected tokens, all [MASK] for the generator, that its samples replace; the
    others stay."""

    def __post_init__(self) -> None:
        require_within(self, "(0, 1)", "noise_share")


@dataclass(frozen=True)
class ObjectiveSpec:
    """Description of an objective, without importing its class. docs/extending.md adds one.

    class_path: module:Class, called with model, special, seed and each option group as a keyword.
    description: for help and model card, pretrained by …
    options: option groups by name on the command line.
    has_discriminator: RtdConfig determines the generator's architecture, otherwise ModelConfig.
    has_sentence_order: sequences have two segments, swapped in half of them.
    """

    class_path: str
    description: str
    options: Mapping[str, type[Any]]
    has_discriminator: bool = False
    has_sentence_order: bool = False

    def __post_init__(self) -> None:
        has_rtd = "rtd" in self.options or not self.has_discriminator
        assert has_rtd, "a discriminator needs the option group rtd"

    def groups(self, config: PretrainConfig) -> dict[str, Any]:
        """The objective's options by group."""
        groups = {**vars(config), **config.own}
        return {name: groups.get(name) or kind() for name, kind in self.options.items()}

    def mask_rate(self, config: PretrainConfig) -> float | None:
        """Fraction of the tokens predicted, by the first group with mask_rate, else None."""
        groups = self.groups(config).values()
        return next((group.mask_rate for group in groups if hasattr(group, "mask_rate")), None)

    def generator(self, config: PretrainConfig) -> ModelConfig | None:
        """The architecture of the trained generator, None without one.

        Raises ValueError if it is impossible.
        """
        if not self.has_discriminator:
            return config.model
        return config.rtd.generator_config(config.model)

    def generator_text(self, config: PretrainConfig) -> str:
        """The source of the replacements, for plan and model card, if it is not a generator."""
        if config.rtd.generator == "own" or not self.has_discriminator:
            return ""
        shape = self.generator(config)
        if shape is None:
            return f"{'/'.join(Path(config.rtd.generator).parts[-2:])}, not trained"
        layers = f"the first {shape.num_hidden_layers} of the discriminator's"
        return f"{layers} {config.model.num_hidden_layers} layers, with an MLM head"


_RTD = "electra_albert.objectives.rtd:ReplacedTokenDetection"
_MLM = "electra_albert.objectives.mlm:MaskedLanguageModeling"
_ELECTRIC = "electra_albert.objectives.electric:Electric"
OBJECTIVES = {
    "rtd": ObjectiveSpec(
        _RTD,
        "replaced-token detection",
        {"rtd": RtdConfig},
        has_discriminator=True,
    ),
    "rtd_sop": ObjectiveSpec(
        _RTD,
        "replaced-token detection and sentence order",
        {"rtd": RtdConfig, "sop": SopConfig},
        has_discriminator=True,
        has_sentence_order=True,
    ),
    "electric": ObjectiveSpec(
        _ELECTRIC,
        "noise-contrastive estimation of token energies",
        {"rtd": RtdConfig, "electric": ElectricConfig},
        has_discriminator=True,
    ),
    "mlm": ObjectiveSpec(
        _MLM,
        "masked language modelling",
        {"mlm": MlmConfig},
    ),
    "mlm_sop": ObjectiveSpec(
        _MLM,
        "masked language modelling and sentence order",
        {"mlm": MlmConfig, "sop": SopConfig},
        has_sentence_order=True,
    ),
}


def spec_of(config: PretrainConfig) -> ObjectiveSpec:
    """The entry for config.run.objective."""
    return OBJECTIVES[config.run.objective]
