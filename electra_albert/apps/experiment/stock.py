"""The stock composition trained for as long as a run of ours took, on the same rows, and exported as a run is.

    python -m electra_albert.apps.experiment.stock --like runs/mine --output_dir runs/stock

What it is: AlbertForMaskedLM and AlbertModel with ELECTRA's head on one embeddings module, as they come, in a plain
loop; the optimiser, the rates of each part and the batches are those of the run. They follow the run's schedule by the
share of the time that has passed, so that they end where the run's end, whatever number of updates that is.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.apps.command_line import check_can_write, make_parser, parse, parse_pretraining, run_app
from electra_albert.apps.experiment.findings import training_seconds
from electra_albert.apps.run_folder import COMMAND, CONFIG, describe_run, write_whole
from electra_albert.contracts import UsageError
from electra_albert.training.metrics_file import read_metrics

if TYPE_CHECKING:
    from electra_albert.apps.bench.contenders import Contender
    from electra_albert.apps.bench.stock import StockPair
    from electra_albert.apps.pretrain.job import Job
    from electra_albert.contracts import Metrics
    from electra_albert.training.distributed import World

_MODULE = ("-m", "electra_albert.apps.experiment.stock")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    like, folder, asked = _parse(argv)
    check_can_write(folder)
    _check_is_free(folder)
    seconds = asked or training_seconds(read_metrics(like / "metrics.jsonl"))
    if not seconds:
        raise UsageError(f"--like {like}: its metrics.jsonl tells of no update; name a run that was trained")
    from electra_albert.apps.pretrain.job import job_settings, make_job
    from electra_albert.objectives.rtd import ReplacedTokenDetection
    from electra_albert.objectives.rtd_sop import ReplacedTokenDetectionWithOrder
    from electra_albert.training.distributed import start
    from electra_albert.training.guards import RunLock

    preset, config = parse_pretraining(["--config", str(like / CONFIG), "--output_dir", str(folder)], "Pretraining.py")
    config = replace(config, run=replace(config.run, torch_compile="none"))  # the models of ours here only lend weights
    world = start(config.run.device)
    job = make_job(config, world, _say)
    ours = job.objective
    if not isinstance(ours, ReplacedTokenDetection) or isinstance(ours, ReplacedTokenDetectionWithOrder):
        raise UsageError(f"--like {like}: stock has a composition for objective rtd only; name a run of that")
    if config.training.gradient_accumulation_steps > 1:
        raise UsageError(f"--like {like}: it gathers gradients of several micro-batches, stock's loop does not")
    with RunLock(folder):
        describe_run(folder, preset, job.config, [*_MODULE, *argv], job_settings(preset, job, world))
        contender, pair = _contender(job, world)
        row = _train(contender, job, seconds)
        _take_back(pair, job)
        _finish(job, folder, row, world)
    return 0


def _check_is_free(folder: Path) -> None:
    """UsageError where the folder holds anything but an earlier attempt of this, which has nothing to go on from."""
    from electra_albert.training.guards import RunLock

    command = folder / COMMAND
    if command.is_file() and command.read_text(encoding="utf-8").split()[1:3] == list(_MODULE):
        return
    if folder.exists() and any(file.name != RunLock.NAME for file in folder.iterdir()):
        raise UsageError(f"{folder} is not empty and not of this command; choose another --output_dir")


def _contender(job: Job, world: World) -> tuple[Contender, StockPair]:
    """Stock's pair with the run's first weights, seen to compute the same, with the faster of its attentions."""
    from typing import cast

    from electra_albert.apps.bench.config import ATTENTIONS
    from electra_albert.apps.bench.contenders import settle_attention, stock_contender
    from electra_albert.apps.bench.stock import StockPair, check_same_function
    from electra_albert.objectives.rtd import ReplacedTokenDetection

    ours = cast(ReplacedTokenDetection, job.objective)
    batch = job.batches.micro_batches(1)[0]
    probe = StockPair(ours, is_tuned=False).to(world.device)  # which warming up changes
    probe.use_attention(ATTENTIONS[0])
    check_same_function(ours, probe, batch.to(world.device))
    warm = stock_contender(probe, job.config.training, world, job.arithmetic)
    settle_attention(warm, ATTENTIONS, batch, world.device)
    pair = StockPair(ours, is_tuned=False).to(world.device)
    pair.use_attention(warm.attention or ATTENTIONS[0])
    _say(f"stock computes the same losses and gradients; attention: {warm.attention}")
    return stock_contender(pair, job.config.training, world, job.arithmetic), pair


def _train(contender: Contender, job: Job, seconds: float) -> Metrics:
    """Update until the time is over; what the log says of it."""
    from electra_albert.training.schedule import learning_rate

    training, began = job.config.training, time.monotonic()
    tokens, steps = 0, 0
    for micro_batches in job.batches.steps(1):
        share = (time.monotonic() - began) / seconds
        if share >= 1:
            break
        steps += 1
        rate = learning_rate(max(1, math.ceil(share * training.max_steps)), training)
        for group in contender.optimizer.param_groups:
            group["lr"] = rate * group["rate_scale"]
        for batch in micro_batches:
            contender.update(batch, steps)
            tokens += int(batch.attention_mask.sum())
        if steps % training.logging_steps == 0:
            _say(f"update {steps:,}, {share:.0%} of the time, rate {rate:.2e}")
    return {"step": steps, "tokens": tokens, "tokens_per_second": tokens / (time.monotonic() - began)}


def _take_back(pair: StockPair, job: Job) -> None:
    """Put the trained weights into our models, which score and export them."""
    from electra_albert.hub.fill import fill
    from electra_albert.hub.names import from_stock

    state = pair.generator.state_dict()
    generator = {name.removeprefix("albert."): t for name, t in state.items() if "predictions.decoder" not in name}
    head = {f"discriminator_predictions.{name}": t for name, t in pair.discriminator_predictions.state_dict().items()}
    assert job.objective.discriminator is not None
    detector = {**pair.discriminator.state_dict(), **head}
    for model, tensors in ((job.objective.generator, generator), (job.objective.discriminator, detector)):
        fill(model, from_stock(tensors, "albert", model.config, "stock").tensors, "stock")


def _finish(job: Job, folder: Path, row: Metrics, world: World) -> None:
    """Score on held-out text as a run does, write the log, and export both models."""
    import torch

    from electra_albert.apps.export.models import export_discriminator, export_generator
    from electra_albert.apps.pretrain.evaluation import score
    from electra_albert.training.guards import StopSignal
    from electra_albert.training.monitor import EVALUATION_PREFIX, Monitor
    from electra_albert.training.run import Run
    from electra_albert.training.step import autocast

    monitor = Monitor(folder, job.config.training.max_steps, is_main=False)
    run = Run(folder, job.config.training, world, monitor, StopSignal(), job.arithmetic)
    with torch.no_grad(), autocast(world.device, job.arithmetic):
        found = score(job.objective.eval(), job, job.held_out, run) or {}
    evaluation = {"step": row["step"], **{f"{EVALUATION_PREFIX}{name}": value for name, value in found.items()}}
    write_whole(folder / "metrics.jsonl", "".join(json.dumps(each) + "\n" for each in (row, evaluation)))
    tokenizer, objective = job.prepared.tokenizer, job.objective.cpu()
    export_generator(objective.generator, tokenizer, folder / "generator")
    assert objective.discriminator is not None
    export_discriminator(objective.discriminator, tokenizer, folder / "discriminator")
    _say(f"{row['step']:,} updates; exported to {folder}")


def _parse(argv: Sequence[str]) -> tuple[Path, Path, float | None]:
    parser = make_parser("python -m electra_albert.apps.experiment.stock", "Train the stock composition beside a run.")
    parser.add_argument("--like", type=str, required=True, help="The run whose rows, rates and time it is given.")
    parser.add_argument("--output_dir", type=str, required=True, help="A folder for what comes out.")
    parser.add_argument("--seconds", type=float | None, default=None, help="Instead of the time that the run took.")
    options = parse(parser, argv)
    like = Path(options.like)
    if not (like / CONFIG).is_file():
        raise UsageError(f"--like {like} is no run's folder: it has no {CONFIG}")
    if options.seconds is not None and not options.seconds > 0:
        raise UsageError(f"seconds={options.seconds} must be above 0")
    return like, Path(options.output_dir), options.seconds


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
