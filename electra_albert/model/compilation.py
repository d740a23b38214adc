"""torch.compile for training: each block once, or the step as one graph."""

from __future__ import annotations

from typing import Literal

from torch import nn

from electra_albert.model.encoder import Encoder, pass_through

Compilation = Literal["none", "blocks", "step"]


def compile_for_training(objective: nn.Module, what: Compilation) -> None:
    """Make training steps of `objective` run compiled code; evaluation stays as it is.

    blocks: a group is compiled once for each shape of encoder and type of its input, and used at all of its passes, in
    seconds. step: the forward pass with sampling and losses becomes one graph, in minutes. Shapes are static.
    """
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
