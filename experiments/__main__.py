"""Run every variant of a plan with the user's commands, and report the results.

A second call resumes.

    python -m experiments --plan experiments/recipe.yaml --corpus my.txt --output_dir runs/recipe
    python -m experiments --plan experiments/objectives.yaml --corpus my.yaml --data_dir GLUE \\
        --text held_out.txt --pairs blimp --jobs 2 --output_dir runs/objectives

"""

import sys
from collections.abc import Sequence
from pathlib import Path

from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.contracts import STOPPED_BY_SIGNAL, UsageError
from electra_albert.training.signals import run_lock
from experiments.plan import Plan, Site, Stage, all_stages, read_plan, typed
from experiments.report import report
from experiments.running import LOG, check_recipes, is_done, run_stages


def main(argv: Sequence[str]) -> int:
    """Entry point; returns 0, or the exit code of the first command that failed."""
    parser = make_parser(
        "python -m experiments", "Run every variant of a plan and report the results."
    )
    parser.add_argument(
        "--plan", type=str, required=True, help="A YAML file of variants (docs/experiments.md)."
    )
    parser.add_class_arguments(Site, skip={"text"})
    parser.add_argument(
        "--text", type=str, nargs="+", default=[], help="Held-out texts to score models on."
    )
    parser.add_argument(
        "--variants", type=str, nargs="+", default=[], help="Variants to run; by default all."
    )
    options = parse(parser, argv).as_dict()
    plan, asked = read_plan(Path(options.pop("plan"))), options.pop("variants")
    site = Site(**options)
    if unknown := {*asked} - plan.variants.keys():
        raise UsageError(
            f"--variants: the plan has no variant {min(unknown)!r}; it has "
            f"{', '.join(plan.variants)}"
        )
    check_can_write(Path(site.output_dir))
    stages, failed = all_stages(plan, site), list[int]()
    left = [stage for stage in stages if not asked or stage.variant in asked]
    _check(plan, site, left)
    with run_lock(Path(site.output_dir)):
        try:
            while ready := [stage for stage in left if not stage.needs or is_done(stage.needs)]:
                failed += run_stages([stage for stage in ready if not is_done(stage)], site.jobs)
                left = [stage for stage in left if stage not in ready]
                report(plan, site, stages)
        except KeyboardInterrupt:
            LOG.warning("stopped; run the same command again to resume")
            failed = [STOPPED_BY_SIGNAL]
        print(report(plan, site, stages), flush=True)
    return failed[0] if failed else 0


def _check(plan: Plan, site: Site, stages: Sequence[Stage]) -> None:
    """Raise UsageError for options that a command would refuse hours later, and for output made
    with other options.
    """
    from electra_albert.apps.finetune.main import parse_finetuning
    from electra_albert.tasks.registry import find_task

    for stage in {stage.name: stage for stage in stages if stage.name in plan.tasks}.values():
        find_task(str(parse_finetuning(typed(stage.options)).data.task))
    if plan.tasks and not site.data_dir:
        LOG.warning("no task is fine-tuned: --data_dir, the folder of the tasks' data, is missing")
    for needs in (stage.needs for stage in stages if stage.needs):
        if needs not in stages and not is_done(needs):
            raise UsageError(
                f"--variants: the weights of {needs.variant} do not exist; name {needs.variant} too"
            )
    check_recipes(stages)


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
