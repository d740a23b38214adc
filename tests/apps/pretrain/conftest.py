"""Fixture: runs in this process that count FLOPs once and do not wait for the disk."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from electra_albert.apps.pretrain import trial

COUNTED: dict[str, int] = {}  # FLOPs of a step by what they depend on


@pytest.fixture(scope="module", autouse=True)
def quick_runs() -> Iterator[None]:
    """Count the FLOPs of equal shapes once, and leave files to the page cache."""
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
