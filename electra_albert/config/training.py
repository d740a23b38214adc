"""The training loop and the optimizers, for pretraining and fine-tuning."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from electra_albert.config.checks import COUNT, COUNT_OR_0, free, require, require_within

TRACKERS = ("tensorboard", "wandb", "trackio")


class OptimizerSpec(NamedTuple):
    """An optimizer, without importing its class. docs/extending.md adds one."""

    class_path: str  # module:Class, called with the parameter groups, lr, betas and eps
    moments: tuple[str, ...]  # names of its state, each of a parameter's size
    # Of the blocks' matrices, which then have groups of their own.
    matrix_moments: tuple[str, ...] = ()


_ADAM = ("exp_avg", "exp_avg_sq")
OPTIMIZERS = {
    "adamw": OptimizerSpec("electra_albert.training.optimizer:adamw", _ADAM),
    "lamb": OptimizerSpec("electra_albert.training.optimizer:Lamb", _ADAM),
    "muon": OptimizerSpec("electra_albert.training.optimizer:Muon", _ADAM, ("momentum_buffer",)),
}


@dataclass(frozen=True)
class TrainingConfig:
    """Training loop, for pretraining and fine-tuning."""

    max_steps: int = free(1_000_000)
    """Total number of training steps (optimizer updates)."""
    per_device_train_batch_size: int = free(128)
    """Batch size per device for training (one micro-batch)."""
    per_device_eval_batch_size: int = free(128)
    """Batch size per device for evaluation."""
    gradient_accumulation_steps: int = free(1)
    """Number of micro-batches whose gradients are accumulated for one step."""
    learning_rate: float = 5e-4
    """Peak learning rate."""
    warmup_steps: int = 10_000
    """Number of steps of linear learning rate warmup."""
    weight_decay: float = 0.01
    """Decoupled weight decay; not applied to biases and LayerNorm weights."""
    adam_beta1: float = 0.9
    """Beta1 of Adam (decay of the first moment)."""
    adam_beta2: float = 0.999
    """Beta2 of Adam (decay of the second moment)."""
    adam_epsilon: float = 1e-6
    """Epsilon of Adam."""
    optimizer: str = "adamw"
    """adamw; lamb as in ALBERT: a trust ratio for each tensor, for very large batches; muon:
    orthogonal updates for the matrices of the blocks, AdamW for all else."""
    muon_rate: float = 3.0
    """Learning rate of the matrices that muon updates, as a multiple of learning_rate."""
    lr_scheduler_type: Literal["electra", "bert", "linear", "wsd", "cosine"] = "electra"
    """Learning rate schedule: electra (warmup times a linear decay over the whole run), bert
    (warmup, then a drop onto that decay, as in BERT's and ALBERT's code), linear (warmup, then
    linear decay from the peak), wsd (warmup, then constant, then linear decay, as in MiniCPM),
    cosine (warmup, then half a cosine)."""
    lr_decay_share: float = 0.2
    """Fraction of the steps over which the schedule wsd decays; with 0 it stays at the peak."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for gradient clipping."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the matrix products; auto: bf16 if the CPU or CUDA GPU is faster with it. fp16
    uses loss scaling."""
    gradient_checkpointing: bool = free(False)
    """Recompute the activations of each layer in the backward pass: much less memory, one more
    forward pass."""
    cuda_graphs: bool = free(False)
    """Record the step in CUDA graphs, launched without Python; not for fp16. Untried on a GPU."""
    seed: int = 42
    """Random seed."""
    report_to: str = free("tensorboard")
    """Trackers of the metrics, besides metrics.jsonl, separated by commas: tensorboard, wandb,
    trackio; or none."""
    logging_steps: int = free(100)
    """Number of steps between two logs."""
    eval_steps: int = free(10_000)
    """Number of steps between two evaluations; the last step is always evaluated."""
    eval_examples: int = free(4096)
    """Maximum number of held-out examples per evaluation."""
    save_steps: int = free(1000)
    """Number of steps between two checkpoints; the last step is always saved."""
    save_total_limit: int = free(2)
    """Maximum number of checkpoints to keep."""
    save_milestones: int = free(0)
    """Also keep the checkpoints of 1, 2, 4, 8, … times this multiple of save_steps; 0: no others
    than the last ones."""
    ddp_timeout: int = free(300)
    """Seconds that processes wait for one another in a step; the run ends if one needs longer."""

    @property
    def step_examples(self) -> int:
        """Examples per step of one process."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    def __post_init__(self) -> None:
        counts = """max_steps logging_steps eval_steps eval_examples save_steps save_total_limit
            per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps
            ddp_timeout"""
        require_within(self, COUNT, counts)
        require_within(self, "(0, inf)", "learning_rate max_grad_norm muon_rate")
        require_within(self, COUNT_OR_0, "warmup_steps save_milestones")
        require_within(self, "[0, 1)", "weight_decay adam_beta1 adam_beta2")
        require_within(self, "(0, 1)", "adam_epsilon")
        require_within(self, f"[0, {1 << 63})", "seed")
        require_within(self, "[0, 1]", "lr_decay_share")
        require(
            self.optimizer in OPTIMIZERS,
            f"optimizer={self.optimizer} is not one of {', '.join(OPTIMIZERS)}; choose one of them",
        )
        names = self.report_to.split(",")
        is_list = len({*names} & {*TRACKERS}) == len(names)  # each of them once
        require(
            is_list or self.report_to == "none",
            f"report_to={self.report_to} must be none, or from {', '.join(TRACKERS)}, "
            "separated by commas",
        )
        has_default = self.lr_decay_share == TrainingConfig.lr_decay_share
        require(
            self.lr_scheduler_type == "wsd" or has_default,
            f"lr_decay_share={self.lr_decay_share} has no effect with "
            f"lr_scheduler_type={self.lr_scheduler_type}; choose wsd or leave out lr_decay_share",
        )
