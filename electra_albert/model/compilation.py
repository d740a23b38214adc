"""torch.compile and gradient checkpointing of the encoders in a model."""

from typing import Literal

from torch import nn

from electra_albert.model.encoder import Encoder

Compilation = Literal["none", "step"]


def set_gradient_checkpointing(module: nn.Module) -> None:
    """Enable gradient checkpointing in every Encoder of `module`. Gradients stay bitwise equal."""
    for part in module.modules():
        if isinstance(part, Encoder):
            part.gradient_checkpointing = True


def compile_for_training(objective: nn.Module, compilation: Compilation) -> None:
    """Apply torch.compile to the whole step, which takes minutes, or to nothing."""
    if compilation == "step":
        import torch._dynamo

        # DDP would split graphs to reduce gradients early, but those of shared weights are
        # complete only at the end.
        torch._dynamo.config.optimize_ddp = False
        objective.compile(dynamic=False)
