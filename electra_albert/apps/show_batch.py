"""Print the batch of a step: tokens, masks, the generator's samples and the discriminator's labels.

Batches and masks depend on the step alone and are reproduced exactly. Samples come from the last
checkpoint before it.
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
from electra_albert.config.checks import require
from electra_albert.contracts import IGNORED_LABEL, Batch
from electra_albert.objectives import spec_of

_ORDERS = {0: ", segments in order", 1: ", segments swapped", IGNORED_LABEL: ", no sentence order"}


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    parser = make_parser("electra-albert show-batch", "Print the batch of one training step.")
    parser.add_function_arguments(show)
    show(**parse(parser, argv).as_dict())
    return 0


def show(step: int, run: str | None = None, rows: int = 4) -> None:
    """Print the first examples of a batch.

    Args:
        step: The step, counted from 1.
        run: The run's folder; by default the newest run.
        rows: Number of examples to print, of one micro-batch.
    """
    folder = Path(run or newest_run())
    require(step >= 1 and rows >= 1, "--step and --rows must be at least 1")
    require((folder / CONFIG).is_file(), f"{folder} is not a run's folder (no {CONFIG}); name one")
    from electra_albert.training.step import autocast

    job, processes, origin = _restore(folder, step)
    spec = spec_of(job.config)
    objective: Any = job.objective
    require(
        hasattr(objective, "corrupt"),
        f"--run {folder}: objective {job.config.run.objective} masks no tokens; nothing to show",
    )
    if spec.generator(job.config) is None:
        origin = spec.generator_text(job.config)
    batches = replace(job.batches, world_size=processes)
    micro_batches = batches.micro_batches(step)
    batch = micro_batches[0]
    with autocast(batch.input_ids.device, job.arithmetic):  # with gradients, as in training
        corruption = objective.corrupt(batch)
    rows = min(rows, len(batch.input_ids))
    total = sum(len(part.input_ids) for part in micro_batches)
    print(f"step {step}: {rows} of {processes * total} examples; generator: {origin}")
    for row in range(rows):
        order = ""
        if spec.has_sentence_order:
            order = _ORDERS[int(batch.sentence_order_label[row])]
        print(f"\nexample {int(batch.example_id[row])}{order}")
        print(_format_example(batch, corruption, row, job.prepared.tokenizer))


def _restore(folder: Path, step: int) -> tuple[Any, int, str]:
    """The job of a run before a step, its processes, and the origin of the weights."""
    import torch

    from electra_albert.apps.pretrain.job import job_settings, make_job
    from electra_albert.training import checkpoint
    from electra_albert.training.distributed import World

    argv = ["--config", str(folder / CONFIG), "--output_dir", str(folder)]
    preset, config = parse_pretraining(argv, "show_batch")
    recorded = recorded_settings(folder)
    training = replace(config.training, cuda_graphs=False)
    config = replace(config, run=replace(config.run, torch_compile="none"), training=training)
    processes = recorded.get(GLOBAL_BATCH, training.step_examples) // training.step_examples
    origin = config.run.init_from or "random initial weights"
    latest = None
    for saved_step, path in checkpoint.list_checkpoints(folder / "checkpoints"):
        if saved_step < step and not checkpoint.find_problem(path):
            latest = path
            origin = f"checkpoint of step {saved_step}"
    world = World(0, 1, torch.device("cpu"))
    resumed = None
    if latest:
        resumed = checkpoint.read_state(latest)["settings"]
    job = make_job(config, world, resumed)
    settings = job_settings(preset, job, world._replace(world_size=processes))
    compare_settings(recorded, settings, folder)
    if latest:
        checkpoint.load_checkpoint(latest, job.objective, None)
    return job, processes, origin


def _format_example(batch: Batch, corruption: Any, row: int, tokenizer: Any) -> str:
    """One line per token: position, segment, token, inputs of the models, and label.

    pos seg  token     generator input  discriminator input  label
      1   0  the       the              the                  original
      2   0  old       [MASK]           new                  replaced
    """
    inputs = {"token": batch.input_ids, "generator input": corruption.masked_ids}
    labels = [""] * batch.input_ids.shape[1]
    positions = corruption.targets.positions[row]
    if hasattr(corruption, "corrupted_ids"):
        inputs["discriminator input"] = corruption.corrupted_ids
        is_replaced = corruption.is_replaced[row].tolist()
        labels = ["replaced" if replaced else "original " for replaced in is_replaced]
        for position in positions[corruption.is_kept[row]].tolist():
            labels[position] = "masked "  # and predicted by the discriminator
    for position in positions[corruption.targets.weight[row] > 0].tolist():
        if labels[position] != "replaced":
            labels[position] += "(target)"
    columns = [tokenizer.convert_ids_to_tokens(ids[row].tolist()) for ids in inputs.values()]
    titles = "".join(f"{title:<20}" for title in inputs)
    lines = [f"{'pos':>4} {'seg':>3}  {titles}label"]
    for position in batch.attention_mask[row].nonzero().flatten().tolist():
        cells = "".join(f"{column[position]:<20}" for column in columns)
        segment = int(batch.token_type_ids[row, position])
        lines.append(f"{position:>4} {segment:>3}  {cells}{labels[position]}".rstrip())
    return "\n".join(lines)
