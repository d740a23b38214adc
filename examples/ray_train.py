"""Pretraining by Ray Train: each worker is one process of a distributed run, on the nodes of a Ray
cluster.

python examples/ray_train.py 8 /data/ray --corpus /data/text --prepared_dir /data/prepared
--output_dir /data/runs/mine

The first arguments are the number of workers, one per GPU, and a folder for Ray's own records. All
nodes must see the folders. After the loss of a worker, Ray starts all of them again (max_failures),
and the run resumes from its newest checkpoint.
"""

import os
import sys
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config: dict[str, Any]) -> None:
    """Run by each worker: Ray has set the variables of torchrun."""
    from electra_albert.apps.pretrain.main import main

    # The toolkit joins one that also has gloo, for tensors on the host.
    torch.distributed.destroy_process_group()
    if code := main(config["argv"]):
        raise RuntimeError(f"pretraining ended with code {code}; see log.txt in the output folder")


def fit(workers: int, argv: list[str], storage: str) -> None:
    """Start the workers and wait for them. storage: a folder for Ray's own records."""
    scaling = ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available())
    run = RunConfig(
        storage_path=os.path.abspath(storage), failure_config=FailureConfig(max_failures=3)
    )
    TorchTrainer(
        train, train_loop_config={"argv": argv}, scaling_config=scaling, run_config=run
    ).fit()


if __name__ == "__main__":
    ray.init()
    fit(int(sys.argv[1]), sys.argv[3:], sys.argv[2])
