"""Run an experiment: every arm of a plan pretrained, fine-tuned and scored by the commands a user would type.

    python -m electra_albert.apps.experiment --plan experiments/recipe.yaml --corpus my.txt --output_dir runs/recipe
    python -m electra_albert.apps.experiment --plan experiments/objectives.yaml --corpus my.yaml --data_dir GLUE \\
        --text held_out.txt --pairs blimp --jobs 2 --output_dir runs/objectives

Typed again it goes on where it was stopped. results.md, results.json and curves.png tell what has been found so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from pathlib import Path

from electra_albert.apps.command_line import check_can_write, make_parser, parse, run_app
from electra_albert.apps.experiment.checks import check_experiment
from electra_albert.apps.experiment.plan import Plan, read_plan
from electra_albert.apps.experiment.records import Stage
from electra_albert.apps.experiment.running import Ended, run_stages
from electra_albert.apps.experiment.stages import Site, all_stages
from electra_albert.contracts import STOPPED_BY_SIGNAL, UsageError
from electra_albert.training.guards import RunLock


def main(argv: Sequence[str]) -> int:
    """Entry point; returns 0, or the exit code of the first command that failed."""
    plan, site, names = _parse(argv)
    asked = {plan.arm(name).name for name in names or [arm.name for arm in plan.arms]}
    check_can_write(site.output_dir)
    phases = all_stages(plan, site)
    stages = [stage for phase in phases for stage in phase if stage.arm in asked]
    check_experiment(plan, site, stages)
    _tell_idle(plan, site, names, asked - {stage.arm for stage in stages})
    failed: list[Ended] = []
    with RunLock(site.output_dir):
        try:
            for phase in phases:
                ready = [stage for stage in phase if stage.arm in asked and stage.is_ready]
                failed += [ended for ended in run_stages(ready, site, _say) if ended.exit_code]
                text = _tell(plan, site, phases)
        except KeyboardInterrupt:
            _tell(plan, site, phases)
            _say("stopped; the same command goes on")
            return STOPPED_BY_SIGNAL
    print(text, flush=True)
    return failed[0].exit_code if failed else 0


def _tell_idle(plan: Plan, site: Site, names: Sequence[str], idle: Set[str]) -> None:
    """Say what has no effect; UsageError where that is an arm that was asked for by name."""
    lacking = "--data_dir is not given" if plan.tasks else "the plan has no tasks"
    for name in (name for name in names if name in idle):
        raise UsageError(f"--arms {name}: random weights are only fine-tuned, and {lacking}")
    if plan.tasks and site.data_dir is None:
        _say("notice: no task is trained; --data_dir says where their data lie")
    elif idle:
        _say(f"notice: nothing is done for {', '.join(sorted(idle))}, since {lacking}")
    if site.data_dir is not None and not plan.tasks:
        _say("notice: --data_dir has no effect, since the plan has no tasks")


def _tell(plan: Plan, site: Site, phases: Sequence[Sequence[Stage]]) -> str:
    """Write what has been found so far; returns it as Markdown."""
    import json

    from electra_albert.apps.experiment.curves import draw_curves
    from electra_albert.apps.experiment.findings import as_record, find
    from electra_albert.apps.experiment.tables import format_findings
    from electra_albert.apps.run_folder import write_whole

    found = find(plan, site, [stage for phase in phases for stage in phase])
    text = format_findings(plan, found)
    write_whole(site.output_dir / "results.md", text)
    write_whole(site.output_dir / "results.json", json.dumps(as_record(plan, site, found), indent=2) + "\n")
    draw_curves(plan.title, found, site.output_dir / "curves.png")
    return text


def _parse(argv: Sequence[str]) -> tuple[Plan, Site, list[str]]:
    parser = make_parser("python -m electra_albert.apps.experiment", "Run every arm of a plan and tell what was found.")
    parser.add_argument("--plan", type=str, required=True, help="A YAML file of arms (docs/experiments.md).")
    parser.add_argument("--output_dir", type=str, required=True, help="A folder for all runs and what was found.")
    parser.add_argument("--corpus", type=str, required=True, help="The text of every arm, as for Pretraining.py.")
    parser.add_argument("--tokenizer", type=str | None, default=None, help="One for all arms, instead of training it.")
    parser.add_argument("--prepared_dir", type=str, default="data/prepared", help="Where token stores are kept.")
    parser.add_argument("--data_dir", type=str | None, default=None, help="Data of the tasks, or none is trained.")
    parser.add_argument("--text", type=str, nargs="+", default=[], help="Held-out texts to score models on.")
    parser.add_argument("--pairs", type=str | None, default=None, help="Minimal pairs to score models on.")
    parser.add_argument("--max_pairs", type=int | None, default=None, help="Score the first so many of each set.")
    parser.add_argument("--jobs", type=int, default=1, help="Commands that run at once and share the cores.")
    parser.add_argument("--arms", type=str, nargs="+", default=[], help="Arms to run; by default all.")
    options = parse(parser, argv)
    for name in ("jobs", "max_pairs"):
        if options[name] is not None and options[name] < 1:
            raise UsageError(f"{name}={options[name]} must be at least 1")
    if options.max_pairs is not None and options.pairs is None:
        raise UsageError("--max_pairs has no effect without --pairs; leave it out")
    plan = read_plan(Path(options.plan))
    site = Site(
        output_dir=Path(options.output_dir),
        corpus=_plain(options.corpus),
        tokenizer=options.tokenizer and _plain(options.tokenizer),
        prepared_dir=options.prepared_dir,
        data_dir=options.data_dir and _plain(options.data_dir),
        texts=tuple(_plain(text) for text in options.text),
        pairs=options.pairs and _plain(options.pairs),
        max_pairs=options.max_pairs,
        jobs=options.jobs,
    )
    return plan, site, list(options.arms)


def _plain(path: str) -> str:
    """Without "./" and a trailing slash, since paths are compared by it; ".." may go through a link, and stays."""
    return path and str(Path(path))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(run_app(main, sys.argv[1:]))
