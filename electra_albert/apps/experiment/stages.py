"""What is done for each arm: the commands a user would type, in three phases, each of which needs the one before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from electra_albert.apps.experiment.plan import Arm, Options, Plan
from electra_albert.apps.experiment.records import PRETRAINING, Stage
from electra_albert.contracts import UsageError

if TYPE_CHECKING:
    from electra_albert.config import PretrainConfig

TASK_RESULTS = "results.json"  # which Finetuning.py writes last


@dataclass(frozen=True)
class Site:
    """What this machine adds to a plan: where its texts lie, where results go, how much runs at once."""

    output_dir: Path
    corpus: str
    tokenizer: str | None = None
    prepared_dir: str = "data/prepared"
    data_dir: str | None = None  # of the tasks
    texts: tuple[str, ...] = ()  # to be scored on
    pairs: str | None = None
    max_pairs: int | None = None
    jobs: int = 1
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)

    def folder(self, arm: Arm) -> Path:
        """Everything that is made of an arm."""
        return self.output_dir / arm.folder_name

    def run(self, arm: Arm, seed: int | None = None) -> Path:
        """The folder of an arm's pretraining, by default of the seed that is judged further: the first."""
        return self.folder(arm) / f"seed-{arm.seeds[0] if seed is None else seed}"


def all_stages(plan: Plan, site: Site) -> list[list[Stage]]:
    """The stages of every arm, phase by phase."""
    ours = pretraining_stages(plan, site)
    stock = stock_stages(plan, site, ours)
    return [ours, stock, judging_stages(plan, site, [*ours, *stock])]


def pretraining_stages(plan: Plan, site: Site) -> list[Stage]:
    """Pretraining of every arm that has one, with each of its seeds."""
    pretrained = [arm for arm in plan.arms if arm.weights == "pretrained"]
    return [_pretraining(plan, site, arm, seed) for arm in pretrained for seed in arm.seeds]


def stock_stages(plan: Plan, site: Site, made: Sequence[Stage]) -> list[Stage]:
    """Training of the stock composition, for the time that the pretraining of another arm took, seed by seed.

    made: the stages of phase one.
    """
    stages = []
    for arm in plan.arms:
        if arm.weights != "stock" or arm.like is None:
            continue
        like, folder = plan.arm(arm.like), site.folder(arm)
        for seed in arm.seeds:
            run = site.run(arm, seed)
            told = _words({"like": site.run(like, seed), "output_dir": run})
            command = ["-m", "electra_albert.apps.experiment.stock", *told]
            stages.append(Stage(arm.name, f"{PRETRAINING}{seed}", command, folder, run, _weights(made, like, seed)))
    return stages


def judging_stages(plan: Plan, site: Site, made: Sequence[Stage]) -> list[Stage]:
    """Scores without fine-tuning, then fine-tuning on every task; of each arm's first seed.

    made: the stages of the phases before.
    """
    stages = []
    for arm in plan.arms:
        needs, folder = judged_weights(plan, arm, made), site.folder(arm)
        if (site.texts or site.pairs) and arm.weights != "random":
            file = folder / "scores.json"
            stages.append(Stage(arm.name, "scores", _scoring(site, needs.output, file), folder, file, needs))
        for task in plan.tasks if site.data_dir is not None else ():
            stages.append(task_stage(plan, site, arm, task, needs))
    return stages


def task_stage(plan: Plan, site: Site, arm: Arm, task: str, needs: Stage) -> Stage:
    """Fine-tuning of the weights that `needs` makes on one task, or of random ones of their shape."""
    output = site.folder(arm) / task
    command = finetuning_command(plan, task, {"data_dir": site.data_dir, "model": needs.output, "output_dir": output})
    command += ["--from_scratch", "true"] if arm.weights == "random" else []
    return Stage(arm.name, task, command, site.folder(arm), output, needs, TASK_RESULTS)


def finetuning_command(plan: Plan, task: str, places: Options) -> list[str]:
    """What trains a task of the plan, with where its data, the model and the results lie."""
    told = {"task": task, **places, "seeds": plan.task_seeds, **plan.task_options, **plan.tasks[task]}
    return ["Finetuning.py", *_words(told)]


def judged_weights(plan: Plan, arm: Arm, made: Sequence[Stage]) -> Stage:
    """The stage that makes the weights an arm is judged by; of random ones, those whose shape they have.

    made: the stages that make weights, maybe among others.
    """
    begun = plan.arm(arm.like) if arm.weights == "random" and arm.like else arm
    return _weights(made, begun, begun.seeds[0])


def _weights(made: Sequence[Stage], arm: Arm, seed: int) -> Stage:
    """The stage that makes the weights of an arm."""
    return next(stage for stage in made if (stage.arm, stage.name) == (arm.name, f"{PRETRAINING}{seed}"))


def _pretraining(plan: Plan, site: Site, arm: Arm, seed: int) -> Stage:
    run = site.run(arm, seed)
    options = {
        "corpus": site.corpus,
        **({"tokenizer": site.tokenizer} if site.tokenizer is not None else {}),
        "prepared_dir": site.prepared_dir,
        **arm.options,
        "seed": seed,
        "output_dir": run,
    }
    try:
        if plan.flops is not None:
            options["max_steps"] = steps_for(plan.flops, options)
        if plan.warmup_share is not None:
            options["warmup_steps"] = round(plan.warmup_share * _config(options).training.max_steps)
    except UsageError as error:
        raise UsageError(f"arm {arm.name}: {error}") from None
    command = ["Pretraining.py", *_words(options)]
    return Stage(arm.name, f"{PRETRAINING}{seed}", command, site.folder(arm), run)


def steps_for(flops: float, options: Options) -> int:
    """The updates that so many operations pay for, counted from the shapes that the options give; 1 at least."""
    from electra_albert.apps.pretrain.estimate import step_flops
    from electra_albert.corpus.tokenizer import load_tokenizer

    config = _config({**options, "max_steps": 1})
    training, corpus = config.training, config.corpus
    vocab_size = len(load_tokenizer(Path(corpus.tokenizer))) if corpus.tokenizer else corpus.vocab_size
    rows = training.per_device_train_batch_size * training.gradient_accumulation_steps
    return max(1, round(flops / step_flops(replace(config, model=replace(config.model, vocab_size=vocab_size)), rows)))


def _config(options: Options) -> PretrainConfig:
    from electra_albert.apps.command_line import parse_pretraining

    return parse_pretraining(_words(options), "Pretraining.py")[1]


def _scoring(site: Site, model: Path, file: Path) -> list[str]:
    words = ["-m", "electra_albert", "score", *_words({"model": model, "output": file})]
    words += ["--text", *site.texts] if site.texts else []
    words += ["--pairs", site.pairs] if site.pairs else []
    return words + (["--max_pairs", str(site.max_pairs)] if site.pairs and site.max_pairs else [])


def _words(options: Options) -> list[str]:
    """Options as they are typed."""
    return [word for name, value in options.items() for word in (f"--{name}", _word(value))]


def _word(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
