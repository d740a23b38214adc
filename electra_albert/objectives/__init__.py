"""The pretraining objectives by name. Help is derived from this table: import nothing heavy, not even for types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from electra_albert.config import MlmConfig, ModelConfig, PretrainConfig, RtdConfig, SopConfig


@dataclass(frozen=True)
class ObjectiveSpec:
    """An objective as far as it is known before its class is loaded. docs/extending.md adds one."""

    built_by: str  # module:Class, called with model, special, seed and each group of `options` by its name
    learned_from: str  # its name in the model card: pretrained by …
    options: Mapping[str, type[Any]]  # by name on the command line; the first with a mask_rate gives that of the plan
    has_discriminator: bool = False  # then the generator has the shape that group rtd gives, else the model's own
    has_sentence_order: bool = False  # whether its rows have two segments, half of them swapped
    has_stock_pair: bool = False  # whether stock classes can be composed to compute the same

    def __post_init__(self) -> None:
        assert "rtd" in self.options or not self.has_discriminator, "group rtd gives the generator its shape"

    def groups(self, config: PretrainConfig) -> dict[str, Any]:
        """The options it reads, by group."""
        return {name: config.own[name] if name in config.own else getattr(config, name) for name in self.options}

    def mask_rate(self, config: PretrainConfig) -> float | None:
        """Share of the tokens that are predicted from the rest; None where none are masked."""
        return next((group.mask_rate for group in self.groups(config).values() if hasattr(group, "mask_rate")), None)

    def generator(self, config: PretrainConfig) -> ModelConfig:
        """The generator's shape. Raises ValueError where there is no such shape."""
        return config.rtd.generator(config.model) if self.has_discriminator else config.model


_RTD = "electra_albert.objectives.rtd:ReplacedTokenDetection"
_MLM = "electra_albert.objectives.mlm:MaskedLanguageModeling"
_DETECTION, _MASKING, _ORDER = "replaced-token detection", "masked language modelling", " and sentence order"
OBJECTIVES = {
    "rtd": ObjectiveSpec(_RTD, _DETECTION, {"rtd": RtdConfig}, has_discriminator=True, has_stock_pair=True),
    "rtd_sop": ObjectiveSpec(_RTD, _DETECTION + _ORDER, {"rtd": RtdConfig, "sop": SopConfig}, True, True),
    "mlm": ObjectiveSpec(_MLM, _MASKING, {"mlm": MlmConfig}),
    "mlm_sop": ObjectiveSpec(_MLM, _MASKING + _ORDER, {"mlm": MlmConfig, "sop": SopConfig}, has_sentence_order=True),
}


def spec_of(config: PretrainConfig) -> ObjectiveSpec:
    """The entry of the objective that config.run.objective names."""
    return OBJECTIVES[config.run.objective]
