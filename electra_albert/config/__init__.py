"""Settings as frozen dataclasses: the command line, YAML files and records come from them."""

from electra_albert.config.finetuning import DataConfig, FinetuneConfig, TuningConfig
from electra_albert.config.model import ModelConfig
from electra_albert.config.objectives import MlmConfig, RtdConfig, SopConfig
from electra_albert.config.pretraining import CorpusConfig, PretrainConfig, RunConfig
from electra_albert.config.training import OptimizerSpec, TrainingConfig

__all__ = [
    "CorpusConfig",
    "DataConfig",
    "FinetuneConfig",
    "MlmConfig",
    "ModelConfig",
    "OptimizerSpec",
    "PretrainConfig",
    "RtdConfig",
    "RunConfig",
    "SopConfig",
    "TrainingConfig",
    "TuningConfig",
]
