"""Pretrain, fine-tune and use small text encoders.

import electra_albert as ea

run = ea.pretrain(corpus="my.txt", output_dir="runs/mine")
model = ea.load_model(run.folder)
model.fill_mask("The capital of France is [MASK].")
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from electra_albert.apps.export import export as export
    from electra_albert.apps.finetune.main import finetune as finetune
    from electra_albert.apps.pretrain.main import pretrain as pretrain
    from electra_albert.apps.score import score as score
    from electra_albert.contracts import CheckpointError as CheckpointError
    from electra_albert.contracts import DataError as DataError
    from electra_albert.contracts import DivergedError as DivergedError
    from electra_albert.contracts import UsageError as UsageError
    from electra_albert.contracts import UserError as UserError
    from electra_albert.inference.model import load_model as load_model

__version__ = "0.1.0"
_MODULES = {  # imported on first use: importing torch takes seconds
    "UserError": "electra_albert.contracts",
    "UsageError": "electra_albert.contracts",
    "DataError": "electra_albert.contracts",
    "CheckpointError": "electra_albert.contracts",
    "DivergedError": "electra_albert.contracts",
    "export": "electra_albert.apps.export",
    "finetune": "electra_albert.apps.finetune.main",
    "load_model": "electra_albert.inference.model",
    "pretrain": "electra_albert.apps.pretrain.main",
    "score": "electra_albert.apps.score",
}
__all__ = ["__version__", *_MODULES]  # noqa: PLE0604
# Of tqdm in a notebook without ipywidgets; the progress bars here need none.
warnings.filterwarnings("ignore", message="IProgress not found")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
