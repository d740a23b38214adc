"""electra-albert prepare: make the tokenizer and the token store of a corpus, by one job or many.

electra-albert prepare --corpus my.txt
electra-albert prepare --corpus my.txt --num_shards 16 --shard_index 3     one of many jobs
electra-albert prepare --corpus my.txt --num_shards 16 --merge             once they are done
"""

from __future__ import annotations

from collections.abc import Sequence

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.config import CorpusConfig, TrainingConfig
from electra_albert.contracts import UsageError


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert prepare`; returns the exit code."""
    parser = make_parser("electra-albert prepare", "Make the tokenizer and the token store of a corpus.")
    parser.add_class_arguments(CorpusConfig)
    jobs, share = "Jobs that prepare the corpus together.", "Do this share of the work, from 0, and leave the rest."
    parser.add_argument("--num_shards", type=int | None, default=None, help=jobs)
    parser.add_argument("--shard_index", type=int | None, default=None, help=share)
    parser.add_argument("--merge", action="store_true", help="Put the work of all jobs together.")
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed, help="Keys every draw, as in Pretraining.py.")
    options = parse(parser, argv).as_dict()
    from electra_albert.apps.prepare.main import ShardConfig, prepare, prepare_shard

    seed = options.pop("seed")
    try:
        shard = ShardConfig(**{name: options.pop(name) for name in ("num_shards", "shard_index", "merge")})
        config = CorpusConfig(**options)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if shard.shard_index is not None:
        print(f"job {shard.shard_index} of {shard.num_shards} is done in {prepare_shard(config, seed, shard)}")
    else:
        print(f"ready in {prepare(config, seed, shard).folder}")
    return 0
