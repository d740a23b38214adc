"""Environment of all tests and the processes they start: one thread, no network, no hub."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["PYTHONPATH"] = f"{Path(__file__).parent / 'offline'}:{Path(__file__).parents[1]}"
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; tests run in parallel, one per core
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import pytest
import torch

import tests.offline.sitecustomize  # noqa: F401


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
