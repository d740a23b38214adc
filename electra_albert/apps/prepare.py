"""electra-albert prepare: the tokenizer and the token store of a corpus.

electra-albert prepare --corpus my.txt
electra-albert prepare --corpus /data/text --engine ray --tasks 64
"""

from collections.abc import Sequence
from typing import Literal

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.config.pretraining import CorpusConfig
from electra_albert.config.training import TrainingConfig
from electra_albert.contracts import UsageError

Engine = Literal["local", "datatrove", "ray"]


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert prepare`; returns the exit code."""
    parser = make_parser(
        "electra-albert prepare", "Build the tokenizer and the token store of a corpus."
    )
    parser.add_class_arguments(CorpusConfig)
    parser.add_argument(
        "--engine", type=Engine, default="local", help="Runs the tasks; docs/cluster.md."
    )
    parser.add_argument("--tasks", type=int | None, help="Number of tasks of datatrove or Ray.")
    parser.add_argument(
        "--verify", action="store_true", help="Compare the hashes of all files, changed or not."
    )
    parser.add_argument(
        "--seed", type=int, default=TrainingConfig.seed, help="Random seed, as of pretraining."
    )
    options = parse(parser, argv).as_dict()
    seed, engine, tasks, verify = map(options.pop, ("seed", "engine", "tasks", "verify"))
    if tasks is not None and (engine == "local" or tasks < 1):
        raise UsageError("--tasks takes a number above 0, with --engine datatrove or ray")
    config = CorpusConfig(**options)
    from electra_albert.corpus.prepare import prepare

    if engine != "local":
        from electra_albert.corpus.engines import run_engine

        run_engine(engine, config, seed, tasks)
    print(f"prepared corpus: {prepare(config, seed, verify=verify).folder}")
    return 0
