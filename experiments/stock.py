"""Train the same networks, composed from stock classes, for as long as a run of ours took, and
export them.

    python -m experiments.stock --like runs/mine --output_dir runs/stock

The loop is plain PyTorch on the run's batches, with its optimizer. The learning rate follows the
elapsed time.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from electra_albert.apps.command_line import make_parser, parse, run_app
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.contracts import UsageError
from electra_albert.training.monitor import read_metrics
from experiments.report import training_seconds


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser(
        "python -m experiments.stock", "Train stock classes for as long as a run took."
    )
    parser.add_argument(
        "--like", type=str, required=True, help="The run that gives batches and training time."
    )
    parser.add_argument(
        "--output_dir", type=str, required=True, help="A folder for metrics and models."
    )
    like, folder = map(Path, parse(parser, argv).as_dict().values())
    seconds = training_seconds(read_metrics(like / "metrics.jsonl"))
    if not (like / "config.yaml").is_file() or seconds <= 0:
        raise UsageError(f"--like {like} is not the folder of a trained run; name one")
    import torch

    from benchmarks.step import implementations, make_ready
    from benchmarks.stock import StockPair, check_same_function
    from benchmarks.timing import LOG, STOCK
    from electra_albert.apps.pretrain.evaluation import score
    from electra_albert.apps.pretrain.job import make_job
    from electra_albert.hub.formats import from_file
    from electra_albert.hub.load import load_weights
    from electra_albert.hub.save import save_model
    from electra_albert.objectives.rtd import ReplacedTokenDetection
    from electra_albert.training.distributed import start
    from electra_albert.training.monitor import Monitor
    from electra_albert.training.optimizer import learning_rate
    from electra_albert.training.signals import StopSignal
    from electra_albert.training.step import RunSettings, autocast

    config = parse_pretraining(
        [f"--config={like}/config.yaml", f"--output_dir={folder}", "--torch_compile=none"]
    )[1]
    world, training = start(config.run.device), config.training
    job = make_job(config, world)
    ours, batch = cast(ReplacedTokenDetection, job.objective), job.batches.micro_batches(1)[0]
    warm = {STOCK: implementations(job, world, is_compiled=False)[STOCK]}
    check_same_function(ours, cast(StockPair, warm[STOCK].module), batch.to(world.device))
    make_ready(warm, batch)  # changes its weights, so the model to train is built again
    stock = implementations(job, world, is_compiled=False)[STOCK]
    pair = cast(StockPair, stock.module)
    pair.use_attention(cast(StockPair, warm[STOCK].module).attention)
    LOG.info(f"stock computes the same losses and gradients; attention: {pair.attention}")
    began, tokens, step, steps = time.monotonic(), 0, 0, job.batches.steps(1)
    while (share := (time.monotonic() - began) / seconds) < 1:
        (batch,), step = next(steps), step + 1
        for group in stock.optimizer.param_groups:
            scheduled = learning_rate(max(1, math.ceil(share * training.max_steps)), training)
            group["lr"].fill_(scheduled * group["lr_multiplier"])
        stock.update(batch)
        tokens += int(batch.attention_mask.sum())
    row = {"step": step, "tokens": tokens, "tokens_per_second": tokens / (time.monotonic() - began)}
    head = {
        f"discriminator_predictions.{name}": t
        for name, t in pair.discriminator_predictions.state_dict().items()
    }
    encoder = pair.discriminator.state_dict() | head
    assert ours.generator is not None
    for model, state in (
        (ours.generator, pair.generator.state_dict()),
        (ours.discriminator, encoder),
    ):
        load_weights(
            model, from_file(state, "albert", model.config, "stock's pair")[0], "stock's pair"
        )
    with torch.no_grad(), autocast(world.device, job.arithmetic):
        run = RunSettings(
            folder, training, world, Monitor(folder, 1, is_main=False), StopSignal(), job.arithmetic
        )
        found = score(job.objective.eval(), job, job.held_out, run) or {}
    evaluation = {"step": step, **{f"eval_{name}": value for name, value in found.items()}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(
        f"{json.dumps(row)}\n{json.dumps(evaluation)}\n", encoding="utf-8"
    )
    ours.cpu()
    save_model(ours.generator, job.prepared.tokenizer, folder / "generator")
    save_model(ours.discriminator, job.prepared.tokenizer, folder / "discriminator")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
