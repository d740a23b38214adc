"""Pretraining objectives by name. --help reads this table: do not import torch here, not even for types."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra_albert.config import MlmConfig, ModelConfig, PretrainConfig, RtdConfig, SopConfig
from electra_albert.model_config import require_within


@dataclass(frozen=True)
class ElectricConfig:
    """Noise-contrastive estimation of energies. Paper: Clark et al. 2020 (Electric), section 2."""

    noise_share: float = 0.5
    """Fraction of the selected tokens, all [MASK] for the generator, that its samples replace; the others stay."""

    def __post_init__(self) -> None:
        require_within(self, "(0, 1)", "noise_share")


@dataclass(frozen=True)
class ObjectiveSpec:
    """Description of an objective, without importing its class. docs/extending.md adds one."""

    class_path: str  # module:Class, called with model, special, seed and each group of `options` as a keyword
    description: str  # for help and model card: pretrained by …
    options: Mapping[str, type[Any]]  # option groups by name on the command line
    has_discriminator: bool = False  # then RtdConfig determines the generator's architecture, otherwise ModelConfig
    has_sentence_order: bool = False  # whether sequences have two segments, swapped in half of them

    def __post_init__(self) -> None:
        assert "rtd" in self.options or not self.has_discriminator, "a discriminator needs the option group rtd"

    def groups(self, config: PretrainConfig) -> dict[str, Any]:
        """The objective's options by group."""
        found = {**vars(config), **config.own}
        return {name: found[name] if name in found else kind() for name, kind in self.options.items()}

    def mask_rate(self, config: PretrainConfig) -> float | None:
        """Fraction of the tokens predicted, by the first group with mask_rate, else None."""
        return next((group.mask_rate for group in self.groups(config).values() if hasattr(group, "mask_rate")), None)

    def generator(self, config: PretrainConfig) -> ModelConfig | None:
        """The architecture of the trained generator, None without one. Raises ValueError if it is impossible."""
        return config.rtd.generator_config(config.model) if self.has_discriminator else config.model

    def generator_text(self, config: PretrainConfig) -> str:
        """The source of the replacements, for plan and model card; empty if it is a generator of its own."""
        kind, shape = config.rtd.generator, self.generator(config)
        if kind == "own" or not self.has_discriminator:
            return ""
        of = config.model.num_hidden_layers
        layers = shape and f"the first {shape.num_hidden_layers} of the discriminator's {of} layers, with an MLM head"
        return layers or f"{'/'.join(Path(kind).parts[-2:])}, not trained"


_RTD = "electra_albert.objectives.rtd:ReplacedTokenDetection"
_MLM = "electra_albert.objectives.mlm:MaskedLanguageModeling"
_ELECTRIC = "electra_albert.objectives.electric:Electric"
_DETECTION, _MASKING, _ORDER = "replaced-token detection", "masked language modelling", " and sentence order"
_ENERGIES = "noise-contrastive estimation of token energies"
OBJECTIVES = {
    "rtd": ObjectiveSpec(_RTD, _DETECTION, {"rtd": RtdConfig}, has_discriminator=True),
    "rtd_sop": ObjectiveSpec(_RTD, _DETECTION + _ORDER, {"rtd": RtdConfig, "sop": SopConfig}, True, True),
    "electric": ObjectiveSpec(_ELECTRIC, _ENERGIES, {"rtd": RtdConfig, "electric": ElectricConfig}, True),
    "mlm": ObjectiveSpec(_MLM, _MASKING, {"mlm": MlmConfig}),
    "mlm_sop": ObjectiveSpec(_MLM, _MASKING + _ORDER, {"mlm": MlmConfig, "sop": SopConfig}, has_sentence_order=True),
}


def spec_of(config: PretrainConfig) -> ObjectiveSpec:
    """The entry for config.run.objective."""
    return OBJECTIVES[config.run.objective]
