"""torch.compile for training: each block once, or the step as one graph."""

from __future__ import annotations

from typing import Literal

from torch import nn

from electra_albert.model.encoder import Encoder, pass_through

Compilation = Literal["none", "blocks", "step"]


def compile_for_training(objective: nn.Module, what: Compilation) -> None:
    """Compile training steps: blocks, each group for itself, in seconds; step, the forward pass whole, in minutes."""
    if what != "none":
        # DDP would have graphs cut so that gradients leave early, but a shared block's are whole after its last pass.
        import torch._dynamo

        torch._dynamo.config.optimize_ddp = False
    if what == "blocks":
        for part in objective.modules():
            if isinstance(part, Encoder):
                part.training_pass = torch.compile(pass_through, dynamic=False)
    elif what == "step":
        objective.compile(dynamic=False)
