"""The tiny run's generator and discriminator in half precision, as a model that comes with the checkout."""

from __future__ import annotations

from pathlib import Path

import torch

from electra_albert.apps.export import main as export
from electra_albert.hub.weight_files import read_tensors, write_safetensors
from tests.apps.tiny_run import Ended, call

PARTS = ("generator", "discriminator")


def export_pair(source: Path, folder: Path) -> Ended:
    for part in PARTS:
        ended = call(export.main, "--model", source, "--kind", part, "--output_dir", folder / part)
        weights = folder / part / "model.safetensors"
        write_safetensors({name: t.to(torch.float16) for name, t in read_tensors(weights).items()}, weights)
    return ended
