"""Environment of all tests and the processes they start: one thread, no network, no hub.

In pytest's own processes the FLOPs of equal settings are counted once, and fsync does nothing.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["PYTHONPATH"] = f"{Path(__file__).parent / 'offline'}:{Path(__file__).parents[1]}"
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; tests run in parallel, one per core
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import pytest
import torch

import tests.offline.sitecustomize  # noqa: F401
from electra_albert.apps.pretrain import trial

COUNTED: dict[str, int] = {}  # FLOPs of a step by what they depend on


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """Count the FLOPs of equal settings once, and leave files to the page cache.

    Tests that import flops_per_step itself have the function as it is.
    """
    count = trial.flops_per_step

    def flops_per_step(config: Any, world_size: int = 1) -> int:
        training = config.training
        examples = (training.per_device_train_batch_size, training.gradient_accumulation_steps)
        objective = (config.run.objective, config.rtd, config.mlm, config.own)
        shape = (config.model, config.corpus.max_seq_length, training.optimizer, world_size)
        key = repr((examples, objective, shape))
        if key not in COUNTED:
            COUNTED[key] = count(config, world_size)
        return COUNTED[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "flops_per_step", flops_per_step)
        patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture
def nothing_compiled_yet() -> Iterator[None]:
    """Reset torch.compile and its counters before the test, and torch.compile after it."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """Switch them on again after a training: hypothesis needs them."""
    yield
    torch.set_flush_denormal(False)
