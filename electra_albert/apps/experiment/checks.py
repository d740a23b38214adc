"""What can be known to be wrong with an experiment before its first command is run, which may take hours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from electra_albert.apps.experiment.plan import Arm, Plan
from electra_albert.apps.experiment.records import Stage, check_records
from electra_albert.apps.experiment.stages import Site
from electra_albert.contracts import UsageError


def check_experiment(plan: Plan, site: Site, stages: Sequence[Stage], arms: Sequence[Arm]) -> None:
    """UsageError for an option, a task or a path that some stage would refuse, and for what was made otherwise.

    stages are those of the arms that are asked for; what these are like must be among them or have been made.
    """
    _check_paths(site)
    for stage in stages:
        with _told(f"arm {stage.arm}"):
            if stage.command[0] == "Pretraining.py":
                _check_pretraining(plan, stage)
    tasks = {(stage.name, "--from_scratch" in stage.command): stage for stage in stages if _is_task(stage)}
    for stage in tasks.values():
        _check_task(stage)
    _check_order(plan, site, arms)
    check_records(stages)


def _check_paths(site: Site) -> None:
    if site.texts:
        from electra_albert.apps.score_text import require_file

        for text in site.texts:
            require_file(Path(text))
    if site.pairs is not None:
        from electra_albert.apps.score_pairs import pair_files

        pair_files(Path(site.pairs))


def _check_pretraining(plan: Plan, stage: Stage) -> None:
    from electra_albert.apps.command_line import parse_pretraining

    _, config = parse_pretraining(stage.command[1:], "Pretraining.py")
    stock = next((arm for arm in plan.arms if arm.weights == "stock" and arm.like == stage.arm), None)
    if stock is None:
        return
    if config.run.objective != "rtd":
        raise UsageError(
            f"{stock.name} is like it, but stock has a composition for objective rtd only, not {config.run.objective}"
        )
    if config.training.gradient_accumulation_steps > 1:
        raise UsageError(
            f"{stock.name} is like it, but stock's loop gathers no gradients of several micro-batches; set "
            "gradient_accumulation_steps to 1"
        )


def _is_task(stage: Stage) -> bool:
    return stage.command[0] == "Finetuning.py"


def _check_task(stage: Stage) -> None:
    from electra_albert.apps.finetune_options import parse_finetuning, refuse_idle_options
    from electra_albert.tasks.examples import Report
    from electra_albert.tasks.hub import looks_like_hub
    from electra_albert.tasks.locating import locate
    from electra_albert.tasks.registry import find_task

    argv = stage.command[1:]
    with _told(f"task {stage.name}"):
        config = parse_finetuning(argv)
    task = find_task(str(config.data.task))  # which refuses all of GLUE at once
    refuse_idle_options(argv, config)
    folder = str(config.data.data_dir)
    if Path(folder).exists() or not looks_like_hub(folder):  # what is on the hub is fetched when its turn comes
        locate(task, config.data, Report(), needs_test=False, is_trained=config.tuning.is_training)


def _check_order(plan: Plan, site: Site, arms: Sequence[Arm]) -> None:
    """UsageError where an arm is asked for without the one it is like, which has not been made either."""
    names = {arm.name for arm in arms}
    for arm in arms:
        if arm.like is None or arm.like in names:
            continue
        like = plan.arm(arm.like)
        missing = [seed for seed in arm.seeds if not site.weights(like, seed).is_met]
        if missing:
            raise UsageError(
                f"--arms {arm.name}: it is like {like.name}, of which seed {missing[0]} has not been pretrained; "
                f"name {like.name} too"
            )


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors in here with what they are about before them."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
