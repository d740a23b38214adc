"""electra-albert prepare: the preparation of a corpus, also by tasks on many machines (docs/cluster.md).

    electra-albert prepare --corpus my.txt
    electra-albert prepare --corpus /data/text --engine ray --tasks 64

Tasks are run by the executors of datatrove: processes of one machine, a Ray cluster, or Slurm (examples/slurm). All use
one folder; a task that is started again does only what is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.apps.prepare import (
    open_corpus,
    plain_errors,
    plan_parts,
    prepare,
    ready_tokenizer,
    require_unchanged,
    worker_count,
)
from electra_albert.config import CorpusConfig, TrainingConfig
from electra_albert.contracts import DataError, UsageError
from electra_albert.corpus.parts import write_parts

Engine = Literal["local", "datatrove", "ray"]


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert prepare`; returns the exit code."""
    parser = make_parser("electra-albert prepare", "Build the tokenizer and the token store of a corpus.")
    parser.add_class_arguments(CorpusConfig)
    parser.add_argument("--engine", type=Engine, default="local", help="What runs the tasks; docs/cluster.md.")
    parser.add_argument("--tasks", type=int | None, default=None, help="Number of tasks of datatrove or Ray.")
    parser.add_argument("--verify", action="store_true", help="Compare the hashes of all files, changed or not.")
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed, help="Random seed, as of pretraining.")
    options = parse(parser, argv).as_dict()
    seed, engine, tasks, verify = map(options.pop, ("seed", "engine", "tasks", "verify"))
    if tasks is not None and (engine == "local" or tasks < 1):
        raise UsageError("--tasks takes a number above 0, with --engine datatrove or ray")
    try:
        config = CorpusConfig(**options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if engine != "local":
        # Ray has as many workers as its cluster has cores.
        workers = config.preprocessing_num_workers or -1 if engine == "ray" else worker_count(config)
        with plain_errors(config):
            run_engine(engine, config, seed, tasks or worker_count(config), workers)
    print(f"prepared corpus: {prepare(config, seed, verify=verify).folder}")
    return 0


@dataclass(frozen=True)
class PrepareStep:
    """Does the share of one task: "write" and "split" the parts of a corpus; "merge", in a single task, completes it.

    Called as datatrove calls the functions of a pipeline. All tasks of a stage must have ended before the next stage
    starts. Raises the errors of `prepare`.
    """

    config: CorpusConfig
    seed: int
    stage: Literal["write", "split", "merge"]

    def __call__(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        from electra_albert.corpus.store import ready_store, split_parts

        if self.stage == "merge":
            prepare(self.config, self.seed)
            return data
        corpus = open_corpus(self.config, self.seed)
        plan = plan_parts(corpus, ready_tokenizer(corpus))
        if ready_store(plan.folder.parent, plan.fingerprint) is None:
            stage = {"write": write_parts, "split": split_parts}[self.stage]
            stage(plan, range(rank, len(plan.units), world_size), 1)
        return data


def run_engine(engine: str, config: CorpusConfig, seed: int, tasks: int, workers: int) -> None:
    """Write and split all parts with `tasks` tasks, `workers` at once, by datatrove or its Ray executor."""
    from electra_albert.corpus.store import ready_store

    try:
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor

        if engine == "ray":
            import ray
    except ImportError as error:
        advice = "run pip install '.[cluster]' in the checkout"
        raise UsageError(f"--engine {engine} needs more packages ({error}); {advice}") from None
    corpus = open_corpus(config, seed)
    plan = plan_parts(corpus, ready_tokenizer(corpus))
    if ready_store(plan.folder.parent, plan.fingerprint):
        return
    if engine == "ray":
        ray.init(ignore_reinit_error=True, log_to_driver=False)  # the cluster of RAY_ADDRESS, or a new one
    for stage in ("write", "split"):
        steps: list[Any] = [PrepareStep(config, seed, stage)]
        logs = str(corpus.folder / "datatrove" / stage)
        run = RayPipelineExecutor if engine == "ray" else LocalPipelineExecutor
        run(steps, tasks=tasks, workers=workers, logging_dir=logs, skip_completed=False).run()
        if stage == "write" and (missing := [part.number for part in plan.parts() if not part.statistics]):
            raise DataError(f"{len(missing)} of {len(plan.units)} parts are missing; see {logs}, then start again")
        require_unchanged(corpus)
