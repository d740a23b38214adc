"""Preparation of a corpus as three Slurm jobs, each after the one before: write parts, split them,
merge.

python examples/slurm/prepare.py 256 cpu --corpus /data/text --prepared_dir /data/prepared
--vocab_size 30000

The first two arguments are the number of tasks and the partition; the others are those of
`electra-albert prepare`. All nodes must see the folders and this environment.
"""

import os
import sys

from datatrove.executor import SlurmPipelineExecutor

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.corpus.engines import PrepareStep


def main(tasks: int, partition: str, argv: list[str]) -> None:
    """Submit the three jobs."""
    parser = make_parser("prepare.py", "Prepare a corpus as Slurm jobs.")
    parser.add_class_arguments(CorpusConfig)
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed)
    options = parse(parser, argv).as_dict()
    seed, job = options.pop("seed"), None
    config = CorpusConfig(**options)
    for stage in ("write", "split", "merge"):
        job = SlurmPipelineExecutor(
            [PrepareStep(config, seed, stage)],
            tasks=1 if stage == "merge" else tasks,
            time="24:00:00",
            partition=partition,
            mem_per_cpu_gb=4,
            job_name=f"{stage}-tokens",
            venv_path=os.path.join(sys.prefix, "bin", "activate"),
            logging_dir=os.path.join(config.prepared_dir, "slurm", stage),
            skip_completed=False,
            depends=job,
        )
    job.run()  # submits the jobs that it depends on first


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
