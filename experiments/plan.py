"""Reading a plan's file, and the commands of its stages: pretraining, stock's baseline, scoring and
fine-tuning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.pretrain.options import parse_pretraining
from electra_albert.apps.pretrain.trial import flops_per_step
from electra_albert.contracts import UsageError, redacted
from electra_albert.files import strict_loader
from electra_albert.objectives import spec_of
from electra_albert.tokenization.tokenizer import load_tokenizer

PRETRAINING = "pretraining-"  # followed by the seed: the name of a stage that makes weights
_RUNNER_OPTIONS = {"config", "resume", "dry_run"}  # options that a plan must not have
_PATH_OPTIONS = {
    "prepared_dir",
    "output_dir",
    "output",
    "model",
    "like",
}  # do not change the result
_NO_STOCK = "mlm_share mask_unit"
Options = dict[str, Any]


class Variant(NamedTuple):
    """One variant of an experiment.

    With `like`, it has the options and seeds of that other variant.
    """

    name: str
    seeds: list[int]  # the first is scored and fine-tuned
    options: Options  # of Pretraining.py
    weights: str  # pretrained, random or stock
    like: str | None
    flops: float | None  # of pretraining; max_steps is computed from it


@dataclass(frozen=True)
class Plan:
    """The contents of a plan's file."""

    title: str
    variants: dict[str, Variant]
    warmup_share: float | None = None  # of the updates; warmup_steps is computed from it
    tasks: dict[str, Options] = field(
        default_factory=dict
    )  # of Finetuning.py, each with its own options
    task_options: Options = field(default_factory=dict)  # of every task
    task_seeds: int = 1


@dataclass(frozen=True)
class Site:
    """Options of `python -m experiments`: paths and resources, which differ from machine to
    machine.
    """

    output_dir: str
    """A folder for all runs and the results."""
    corpus: str
    """The text of every variant, as for Pretraining.py."""
    tokenizer: str | None = None
    """A tokenizer for all variants; by default one is trained."""
    prepared_dir: str = "data/prepared"
    """Where token stores are kept."""
    data_dir: str | None = None
    """Folder with the data of the tasks; without it no task is fine-tuned."""
    pairs: str | None = None
    """Minimal pairs to score models on."""
    max_pairs: int | None = None
    """Number of pairs of each set to score, from the first; by default all."""
    jobs: int = 1
    """Commands that run at the same time and share the cores."""
    text: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.jobs < 1 or (self.max_pairs or 1) < 1:
            raise UsageError("--jobs and --max_pairs must be at least 1")

    def folder(self, variant: str) -> Path:
        """The folder of a variant: its name, with a hyphen for each character that is unsafe in a
        path.
        """
        return Path(
            self.output_dir, "".join(c if c.isalnum() or c in ".-+" else "-" for c in variant)
        )


class Stage(NamedTuple):
    """One command. Its log and its record are in the folder `stages` of the variant's folder."""

    variant: str
    name: str
    module: list[str]  # module, and subcommand if any, after `python -m`
    options: Options
    output: Path  # in the variant's folder
    needs: Stage | None = None
    flops_per_step: int = 0  # of a pretraining run; 0 where they are not counted

    @property
    def record(self) -> Path:
        return self.output.parent / "stages" / f"{self.name}.json"

    @property
    def recipe(self) -> list[Any]:
        """Everything that determines the result, as JSON: options without paths, and the recipe of
        the weights.
        """
        options = redacted(self.options)
        options = {name: options[name] for name in options if name not in _PATH_OPTIONS}
        if self.needs and "init_from" in options:
            options["init_from"] = Path(options["init_from"]).name
        return [self.module, options, self.needs.recipe if self.needs else None]


def read_plan(file: Path) -> Plan:
    """Read the plan in a YAML file. Raises UsageError if the file is not a valid plan."""
    import yaml

    variants: dict[str, Variant] = {}
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), strict_loader())
        finetuning, shared = content.pop("finetuning", {}), content.pop("pretraining", {})
        seeds, budget = content.pop("seeds", [42]), content.pop("flops", None)
        for name, given in content.pop("variants").items():
            own = {
                "seeds": seeds,
                "weights": "pretrained",
                "like": None,
                "flops": budget,
                **shared,
                **(given or {}),
            }
            own_seeds, weights, like, flops = (
                own.pop(key) for key in ("seeds", "weights", "like", "flops")
            )
            if like is not None:
                if weights not in ("random", "stock") or given.keys() != {"like", "weights"}:
                    raise ValueError(
                        f"variant {name}: `like` needs weights: random or stock, and no options"
                    )
                if like not in variants:
                    raise ValueError(
                        f"variant {name}: define {like!r}, which it is like, before it"
                    )
                own_seeds, own = (
                    variants[like].seeds[: 1 if weights == "random" else None],
                    variants[like].options,
                )
            elif weights != "pretrained":
                raise ValueError(f"variant {name}: `weights: {weights}` needs like: VARIANT")
            variants[name] = Variant(
                name, list(own_seeds), own, weights, like, flops and float(flops)
            )
        tasks = {name: own or {} for name, own in finetuning.pop("tasks", {}).items()}
        options, task_seeds = finetuning.pop("options", {}), finetuning.pop("seeds", 1)
        rest = {"title": file.stem, **content, **finetuning}
        return Plan(
            variants=variants, tasks=tasks, task_options=options, task_seeds=task_seeds, **rest
        )
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        message = " ".join(f"{type(error).__name__} {error}".split())
        raise UsageError(
            f"--plan {file} is not a valid plan ({message}); see docs/experiments.md"
        ) from None


def all_stages(plan: Plan, site: Site) -> list[Stage]:
    """The commands of every variant, each after the one that it needs.

    Raises UsageError for invalid options.
    """
    folders = [site.folder(name) for name in plan.variants]
    if len({*folders, Path(site.output_dir)}) <= len(folders):
        raise UsageError(
            "two variants would share a folder, or one would use --output_dir itself; rename "
            "one of them"
        )
    trained, scored = dict[str, list[Stage]](), list[Stage]()
    for name, variant in plan.variants.items():
        if variant.weights == "pretrained":
            trained[name] = [
                _pretraining(plan, site, variant, seed, trained) for seed in variant.seeds
            ]
        elif variant.weights == "stock":
            trained[name] = [
                _stock(site.folder(name), name, like) for like in trained[str(variant.like)]
            ]
        scored += _scoring(
            plan, site, variant, trained[name if name in trained else str(variant.like)][0]
        )
    return (
        sorted(
            (stage for some in trained.values() for stage in some),
            key=lambda stage: bool(stage.needs),
        )
        + scored
    )


def _pretraining(
    plan: Plan, site: Site, variant: Variant, seed: int, trained: Mapping[str, list[Stage]]
) -> Stage:
    output, own = site.folder(variant.name) / f"seed-{seed}", dict(variant.options)
    given: Options = {
        "corpus": site.corpus,
        **({"tokenizer": site.tokenizer} if site.tokenizer else {}),
    }
    given |= {"prepared_dir": site.prepared_dir, "seed": seed, "output_dir": output}
    source, _, part = str(own.get("init_from", "")).rpartition("/")
    if weights := trained.get(source, [None])[
        0
    ]:  # does not exist yet, so its sizes must be in the plan
        del own["init_from"]
    if not {"tokenizer", "init_from"}.isdisjoint((*given, *own)):
        own.pop("vocab_size", None)
    try:
        config = parse_pretraining(typed(given | own))[1]
        rtd, folder = config.rtd, config.corpus.tokenizer
        tokens = len(load_tokenizer(Path(folder))) if folder else config.corpus.vocab_size
        per_step = flops_per_step(replace(config, model=replace(config.model, vocab_size=tokens)))
        if variant.flops:
            given["max_steps"] = max(1, round(variant.flops / per_step))
        if plan.warmup_share is not None:
            given["warmup_steps"] = round(
                plan.warmup_share * given.get("max_steps", config.training.max_steps)
            )
        options = _merge(given, own)
        if weights:
            options |= {"init_from": str(weights.output / part)}
            options.pop("vocab_size", None)
        if (
            weights and spec_of(config).has_discriminator and spec_of(config).generator(config)
        ):  # else its folder's
            options |= {
                f"rtd.{name}": getattr(rtd, name) for name in ("generator_layers", "generator_rate")
            }
        has_stock = any(
            other.weights == "stock" and other.like == variant.name
            for other in plan.variants.values()
        )
        words = (
            config.training.optimizer,
            rtd.embedding_sharing,
            rtd.generator,
            config.model.attention,
        )
        has_own = any(getattr(rtd, name) != getattr(type(rtd), name) for name in _NO_STOCK.split())
        is_whole = config.training.gradient_accumulation_steps == 1
        is_plain = is_whole and words == ("adamw", "full", "own", "softmax") and not has_own
        if has_stock and not (
            config.run.objective == "rtd" and is_plain and "init_from" not in variant.options
        ):
            known = (
                "optimizer adamw, embedding_sharing full, no init_from, accumulation, averaging, "
                "generator "
            )
            raise UsageError(
                f"`weights: stock` supports only objective rtd with {known}or attention "
                f"kind, {_NO_STOCK}"
            )
    except UsageError as error:
        raise UsageError(f"variant {variant.name}: {error}") from None
    name, command = f"{PRETRAINING}{seed}", ["electra_albert", "pretrain"]
    return Stage(variant.name, name, command, options, output, weights, per_step)


def _stock(folder: Path, name: str, like: Stage) -> Stage:
    """The stage that trains the stock baseline for the time that the run `like` took."""
    output = folder / like.output.name
    return Stage(
        name,
        like.name,
        ["experiments.stock"],
        {"like": like.output, "output_dir": output},
        output,
        like,
    )


def _scoring(plan: Plan, site: Site, variant: Variant, weights: Stage) -> Iterator[Stage]:
    """The stages that evaluate the first seed: scores without fine-tuning, then fine-tuning on
    every task.
    """
    folder = site.folder(variant.name)
    if (site.text or site.pairs) and variant.weights != "random":
        output = folder / "scores.json"
        given: Options = {"text": list(site.text), "pairs": site.pairs, "max_pairs": site.max_pairs}
        given = {name: value for name, value in given.items() if value} | {
            "model": weights.output,
            "output": output,
        }
        yield Stage(variant.name, "scores", ["electra_albert", "score"], given, output, weights)
    for task, own in plan.tasks.items() if site.data_dir else ():
        given = {
            "task": task,
            "data_dir": site.data_dir,
            "model": weights.output,
            "output_dir": folder / task,
        }
        given |= {"seeds": plan.task_seeds, "from_scratch": variant.weights == "random"}
        options = _merge(given, {**plan.task_options, **own})
        yield Stage(
            variant.name, task, ["electra_albert", "finetune"], options, folder / task, weights
        )


def _merge(given: Options, own: Options) -> Options:
    """The runner's options and the plan's.

    Raises UsageError if the plan sets an option of the runner.
    """
    for option in own.keys() & (given.keys() | _RUNNER_OPTIONS):
        raise UsageError(f"{option} is set by the runner; remove it from the plan")
    return {**given, **own}


def typed(options: Mapping[str, Any]) -> list[str]:
    """The options as command-line arguments."""
    words, names = list[str](), {"None": "null", "True": "true", "False": "false"}
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name}", *(names.get(str(v), str(v)) for v in values)]
    return words
