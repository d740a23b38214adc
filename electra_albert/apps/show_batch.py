"""Print the batch of a step: tokens, masks, the generator's samples and the discriminator's labels.

Batches and masks depend on the step alone and are reproduced exactly. Samples come from the last checkpoint before it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from electra_albert.apps.command_line import make_parser, parse
from electra_albert.apps.default_model import newest_run
from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.run_folder import CONFIG
from electra_albert.apps.settings import GLOBAL_BATCH, compare_settings, recorded_settings
from electra_albert.contracts import IGNORED_LABEL, Batch, UsageError
from electra_albert.model_config import require
from electra_albert.objectives import spec_of

_ORDERS = {0: ", segments in order", 1: ", segments swapped", IGNORED_LABEL: ", no sentence order"}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("electra-albert show-batch", "Print the batch of one training step of a run.")
    parser.add_argument("--run", type=str | None, default=None, help="The run's folder; by default the newest run.")
    parser.add_argument("--step", type=int, required=True, help="The step, counted from 1.")
    parser.add_argument("--rows", type=int, default=4, help="Number of examples to print, of one micro-batch.")
    options = parse(parser, argv)
    folder = Path(options.run) if options.run else newest_run()
    require(options.step >= 1 and options.rows >= 1, "--step and --rows must be at least 1")
    require((folder / CONFIG).is_file(), f"{folder} is not a run's folder (no {CONFIG}); name one")
    _show(folder, options.step, options.rows)
    return 0


def _show(folder: Path, step: int, rows: int) -> None:
    import torch

    from electra_albert.apps.pretrain.job import job_settings, make_job
    from electra_albert.training.checkpoint import find_problem, list_checkpoints, load_checkpoint, read_state
    from electra_albert.training.distributed import World
    from electra_albert.training.step import autocast

    preset, config = parse_pretraining(["--config", str(folder / CONFIG), "--output_dir", str(folder)], "show_batch")
    recorded, training, world = recorded_settings(folder), config.training, World(0, 1, 0, torch.device("cpu"))
    own = training.per_device_train_batch_size * training.gradient_accumulation_steps
    processes = recorded.get(GLOBAL_BATCH, own) // own
    checkpoints = list_checkpoints(folder / "checkpoints")
    before = [(at, path) for at, path in checkpoints if at < step and not find_problem(path)]
    job = make_job(config, world, read_state(before[-1][1])["settings"] if before else None)
    compare_settings(recorded, job_settings(preset, job, world._replace(world_size=processes)), folder)
    if before:
        load_checkpoint(before[-1][1], job.objective, None)
    origin = f"checkpoint of step {before[-1][0]}" if before else config.run.init_from or "random initial weights"
    micro_batches = replace(job.batches, world_size=processes).micro_batches(step)
    batch, total = micro_batches[0], processes * sum(len(each.input_ids) for each in micro_batches)
    origin = origin if spec_of(config).generator(config) is not None else spec_of(config).generator_text(config)
    objective: Any = job.objective
    if not hasattr(objective, "corrupt"):
        raise UsageError(f"--run {folder}: objective {config.run.objective} masks no tokens; nothing to show")
    with autocast(world.device, job.arithmetic):  # with gradients enabled, as in training
        corruption = objective.corrupt(batch)
    rows, spec = min(rows, len(batch.input_ids)), spec_of(config)
    print(f"step {step}: {rows} of {total} examples; generator: {origin}")
    for row in range(rows):
        order = _ORDERS[int(batch.sentence_order_label[row])] if spec.has_sentence_order else ""
        print(f"\nexample {int(batch.example_id[row])}{order}")
        print(_format_example(batch, corruption, row, job.prepared.tokenizer))


def _format_example(batch: Batch, corruption: Any, row: int, tokenizer: Any) -> str:
    """One line per token: position, segment, token, input of generator and discriminator, and label."""
    targets = set(corruption.targets.positions[row][corruption.targets.weight[row] > 0].tolist())
    shown = {"token": batch.input_ids, "generator input": corruption.masked_ids}
    labels = [""] * batch.input_ids.shape[1]
    if hasattr(corruption, "corrupted_ids"):
        shown["discriminator input"] = corruption.corrupted_ids
        labels = ["replaced" if is_replaced else "original " for is_replaced in corruption.is_replaced[row].tolist()]
        for position in corruption.targets.positions[row][corruption.is_kept[row]].tolist():
            labels[position] = "masked "  # and predicted by the discriminator
    columns = [tokenizer.convert_ids_to_tokens(ids[row].tolist()) for ids in shown.values()]
    lines = [f"{'pos':>4} {'seg':>3}  " + "".join(f"{title:<20}" for title in shown) + "label"]
    for position in batch.attention_mask[row].nonzero().flatten().tolist():
        label = labels[position] + ("(target)" if position in targets and labels[position] != "replaced" else "")
        cells = "".join(f"{column[position]:<20}" for column in columns)
        lines.append(f"{position:>4} {int(batch.token_type_ids[row, position]):>3}  {cells}{label}".rstrip())
    return "\n".join(lines)
