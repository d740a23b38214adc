"""Preparation of a corpus by tasks on many machines (docs/cluster.md).

Tasks are run by the executors of datatrove: processes of one machine, a Ray cluster, or Slurm
(examples/slurm). All use one folder; a task that is started again does only what is missing.
"""

from dataclasses import dataclass
from typing import Any, Literal

from electra_albert.config.pretraining import CorpusConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.folder import open_corpus, plan_parts, ready_tokenizer
from electra_albert.corpus.parts import write_parts
from electra_albert.corpus.prepare import plain_errors, prepare, worker_count
from electra_albert.corpus.store import ready_store, split_parts


@dataclass(frozen=True)
class PrepareStep:
    """The share of one task in a stage: "write" or "split" the parts, or in one task "merge" them.

    Called as datatrove calls the functions of a pipeline. All tasks of a stage must have ended
    before the next stage starts. Raises the errors of `prepare`.
    """

    config: CorpusConfig
    seed: int
    stage: Literal["write", "split", "merge"]

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        if self.stage == "merge":
            prepare(self.config, self.seed)
            return data
        corpus = open_corpus(self.config, self.seed)
        plan = plan_parts(corpus, ready_tokenizer(corpus))
        if ready_store(plan.folder.parent, plan.fingerprint) is None:
            run = write_parts if self.stage == "write" else split_parts
            run(plan, range(rank, len(plan.units), world_size), 1)
        return data


def run_engine(engine: str, config: CorpusConfig, seed: int, tasks: int | None) -> None:
    """Write and split all parts by datatrove, or on Ray; by default a task for each core."""
    try:
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor

        if engine == "ray":
            import ray
    except ImportError as error:
        advice = "run pip install '.[cluster]' in the checkout"
        raise UsageError(f"--engine {engine} needs more packages ({error}); {advice}") from None
    workers = worker_count(config)
    tasks = tasks or workers
    with plain_errors(config):
        corpus = open_corpus(config, seed)
        plan = plan_parts(corpus, ready_tokenizer(corpus))
        if ready_store(plan.folder.parent, plan.fingerprint):
            return
        executor = LocalPipelineExecutor
        if engine == "ray":
            ray.init(ignore_reinit_error=True, log_to_driver=False)  # of RAY_ADDRESS, or a new one
            executor = RayPipelineExecutor
            workers = config.preprocessing_num_workers or -1  # one for each core of the cluster
        for stage in ("write", "split"):
            logs = str(corpus.folder / "datatrove" / stage)
            steps = [PrepareStep(config, seed, stage)]
            executor(
                steps, tasks=tasks, workers=workers, logging_dir=logs, skip_completed=False
            ).run()
            if stage == "write":
                missing = sum(not part.statistics for part in plan.parts())
                if missing:
                    parts = f"{missing} of {len(plan.units)} parts are missing"
                    raise DataError(f"{parts}; see {logs}, then start again")
            corpus.require_unchanged()
