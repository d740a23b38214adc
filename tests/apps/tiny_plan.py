"""A plan of arms of every kind whose commands are never run, with what is noted of them."""

from __future__ import annotations

from pathlib import Path

from electra_albert.apps.experiment.plan import Plan, read_plan
from electra_albert.apps.experiment.records import Record, Stage, write_record
from electra_albert.apps.experiment.stages import Site, all_stages

PLAN = """
pretraining: {preset: tiny}
arms: {a: {seeds: [1, 2]}, r: {like: a, weights: random}, s: {like: a, weights: stock}}
finetuning: {tasks: {cola: }}
"""


def planned(folder: Path, text: str = PLAN, **given: object) -> tuple[Plan, Site, list[Stage]]:
    """The plan, a site of `given` with a corpus, and all stages."""
    file, corpus = folder / "plan.yaml", folder / "corpus.txt"
    file.write_text(text, encoding="utf-8")
    corpus.write_text("The owl left.\n", encoding="utf-8")
    site = Site(**{"output_dir": folder / "out", "corpus": str(corpus), **given})  # type: ignore[arg-type]
    plan = read_plan(file)
    return plan, site, [made for phase in all_stages(plan, site) for made in phase]


def find_stage(stages: list[Stage], arm: str, name: str) -> Stage:
    """The stage of that name."""
    (made,) = [each for each in stages if (each.arm, each.name) == (arm, name)]
    return made


def note(made: Stage, exit_code: int | None = 0, error: str = "") -> None:
    """A record, and an output, as if the stage had been run now."""
    write_record(made.record, Record(made.command, exit_code, error, made_of=made.made_of))
    file = made.output / made.result if made.result else made.output
    if file.suffix:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}", encoding="utf-8")
    else:
        file.mkdir(parents=True, exist_ok=True)
