"""A plan on file, and the commands that it asks for: pretraining, stock's comparison, scores and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from electra_albert.apps.command_line import parse_pretraining
from electra_albert.config import PretrainConfig
from electra_albert.contracts import UsageError
from electra_albert.objectives.registry import spec_of

PRETRAINING = "pretraining-"  # and the seed: the stages that make weights
_RUNNERS = {"config", "resume", "dry_run"}  # options that no plan may hold
_PLACES = {"prepared_dir", "output_dir", "output", "model", "like"}  # no part of what is made
Options = dict[str, Any]


class Arm(NamedTuple):
    """One variant of an experiment; it has the options and seeds of the arm that it is like."""

    name: str
    seeds: Sequence[int]  # the first is scored and fine-tuned
    options: Options  # of Pretraining.py
    weights: str = "pretrained"  # or random, or stock
    like: str | None = None


@dataclass(frozen=True)
class Plan:
    """The contents of a plan's file."""

    title: str
    arms: dict[str, Arm]
    flops: float | None = None  # of pretraining, the same for every arm; max_steps follows
    warmup_share: float | None = None  # of the updates; warmup_steps follows
    tasks: dict[str, Options] = field(default_factory=dict)  # of Finetuning.py, with options of their own
    task_options: Options = field(default_factory=dict)  # of every task
    task_seeds: int = 1


@dataclass(frozen=True)
class Site:
    """Options of the runner."""

    output_dir: str
    """A folder for all runs and the results."""
    corpus: str
    """The text of every arm, as for Pretraining.py."""
    tokenizer: str | None = None
    """A tokenizer for all arms, instead of training one."""
    prepared_dir: str = "data/prepared"
    """Where token stores are kept."""
    data_dir: str | None = None
    """Folder with the data of the tasks; without it none is trained."""
    pairs: str | None = None
    """Minimal pairs to score models on."""
    max_pairs: int | None = None
    """Score the first so many pairs of each set."""
    jobs: int = 1
    """Commands that run at once and share the cores."""
    text: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.jobs < 1 or (self.max_pairs or 1) < 1:
            raise UsageError("--jobs and --max_pairs must be at least 1")
        for name in ("corpus", "tokenizer", "data_dir", "pairs"):  # compared with those of an earlier call
            value = getattr(self, name)
            object.__setattr__(self, name, value and str(Path(value)))

    def folder(self, arm: str) -> Path:
        """The folder of an arm: its name without letters that a path should not hold."""
        return Path(self.output_dir, "".join(one if one.isalnum() or one in ".-+" else "-" for one in arm))


class Stage(NamedTuple):
    """One command; its log and its record are in `stages` of the arm's folder."""

    arm: str
    name: str
    module: list[str]  # what is called after `python -m`
    options: Options
    folder: Path  # of the arm
    output: Path
    needs: Stage | None = None
    flops: float = 0.0  # of an update

    @property
    def words(self) -> list[str]:
        return _words(self.options)

    @property
    def record(self) -> Path:
        return self.folder / "stages" / f"{self.name}.json"

    @property
    def recipe(self) -> list[Any]:
        """All that decides what is made, as JSON: the options that name no place, and the recipe of the weights."""
        options = {name: value for name, value in self.options.items() if name not in _PLACES}
        return [self.module, options, self.needs.recipe if self.needs else None]


def read_plan(file: Path) -> Plan:
    """The plan in a YAML file; UsageError where it is none."""
    content, where, arms = _load(file), f"--plan {file}", dict[str, Arm]()
    finetuning = _mapping(content.pop("finetuning", None), where)
    shared, seeds = _mapping(content.pop("pretraining", None), where), content.pop("seeds", [42])
    for name, given in _mapping(content.pop("arms", None), where).items():
        own = _mapping(given, f"{where}: arm {name}")
        weights, like = own.pop("weights", "pretrained"), own.pop("like", None)
        if weights == "pretrained" and like is None:
            arms[name] = Arm(name, own.pop("seeds", seeds), {**shared, **own})
        elif weights in ("random", "stock") and not own and like in arms and arms[like].like is None:
            of_like = arms[like].seeds
            arms[name] = Arm(name, of_like[:1] if weights == "random" else of_like, arms[like].options, weights, like)
        else:
            raise UsageError(
                f"{where}: arm {name}: weights random and stock take `like:` a pretrained arm before, alone"
            )
    tasks = {name: _mapping(own, where) for name, own in _mapping(finetuning.pop("tasks", None), where).items()}
    options, task_seeds = _mapping(finetuning.pop("options", None), where), finetuning.pop("seeds", 1)
    flops, share, title = content.pop("flops", None), content.pop("warmup_share", None), content.pop("title", file.stem)
    if unknown := [*content, *finetuning]:
        raise UsageError(f"{where}: there is no {unknown[0]!r}; see docs/experiments.md")
    if not arms or not all(value is None or isinstance(value, int | float) for value in (flops, share)):
        raise UsageError(
            f"{where}: it needs arms, and numbers for flops and warmup_share, as 1.0e+15 with point and sign"
        )
    return Plan(str(title), arms, flops, share, tasks, options, task_seeds)


def _load(file: Path) -> Options:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if len({*keys}) < len(keys):
                raise UsageError(f"--plan {file}: a key is there twice {node.start_mark}; leave out one of the two")
            return super().construct_mapping(node, deep)

    try:
        return _mapping(yaml.load(file.read_text(encoding="utf-8"), Loader), f"--plan {file}")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--plan {file} cannot be read: {error}") from None


def _mapping(value: object, where: str) -> Options:
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{where}: {value!r} is no mapping; write one `name: value` a line")
    return dict(value or {})


def all_stages(plan: Plan, site: Site) -> list[list[Stage]]:
    """The commands of every arm in phases, each of which needs the one before; UsageError for wrong options."""
    folders = [site.folder(name) for name in plan.arms]
    if len({*folders, Path(site.output_dir)}) <= len(folders):
        raise UsageError("two arms would have the same folder, or one none of its own; name one of them otherwise")
    made: dict[str, list[Stage]] = {}
    judged: list[Stage] = []
    for name, arm in plan.arms.items():
        if arm.like is None:
            made[name] = [_pretraining(plan, site, arm, seed) for seed in arm.seeds]
        elif arm.weights == "stock":
            made[name] = [_stock(site.folder(name), name, like) for like in made[arm.like]]
        judged += _judging(plan, site, arm, made[arm.like if arm.like and arm.weights == "random" else name][0])
    phases = [
        [stage for some in made.values() for stage in some if (stage.needs is None) == own] for own in (True, False)
    ]
    return [*phases, judged]


def _pretraining(plan: Plan, site: Site, arm: Arm, seed: int) -> Stage:
    folder, output = site.folder(arm.name), site.folder(arm.name) / f"seed-{seed}"
    given: Options = {"corpus": site.corpus, **({"tokenizer": site.tokenizer} if site.tokenizer else {})}
    given |= {"prepared_dir": site.prepared_dir, "seed": seed, "output_dir": output}
    try:
        config = parse_pretraining(_words({**given, **arm.options}), "Pretraining.py")[1]
        flops = update_flops(config, is_stock=False)
        if plan.flops:
            given["max_steps"] = max(1, round(plan.flops / flops))
        if plan.warmup_share is not None:
            given["warmup_steps"] = round(plan.warmup_share * given.get("max_steps", config.training.max_steps))
        options = _together(given, arm.options)
        has_stock = any(other.weights == "stock" and other.like == arm.name for other in plan.arms.values())
        if has_stock and not (spec_of(config).has_stock_pair and config.training.gradient_accumulation_steps == 1):
            raise UsageError("weights: stock can be like rtd without gradient accumulation only")
    except UsageError as error:
        raise UsageError(f"arm {arm.name}: {error}") from None
    module = ["electra_albert", "pretrain"]
    return Stage(arm.name, f"{PRETRAINING}{seed}", module, options, folder, output, None, flops)


def _stock(folder: Path, name: str, like: Stage) -> Stage:
    """Training of stock's composition for the time that another arm's run took."""
    output = folder / like.output.name
    flops = update_flops(parse_pretraining(like.words, "Pretraining.py")[1], is_stock=True)
    options = {"like": like.output, "output_dir": output}
    return Stage(name, like.name, ["experiments.stock"], options, folder, output, like, flops)


def _judging(plan: Plan, site: Site, arm: Arm, weights: Stage) -> Iterator[Stage]:
    """Scores without fine-tuning, then fine-tuning on every task, of the first seed."""
    folder = site.folder(arm.name)
    if (site.text or site.pairs) and arm.weights != "random":
        output = folder / "scores.json"
        given = {"text": list(site.text), "pairs": site.pairs, "max_pairs": site.max_pairs}
        given = {name: value for name, value in given.items() if value}
        given |= {"model": weights.output, "output": output}
        yield Stage(arm.name, "scores", ["electra_albert", "score"], given, folder, output, weights)
    for task, own in plan.tasks.items() if site.data_dir else ():
        given = {"task": task, "data_dir": site.data_dir, "model": weights.output, "output_dir": folder / task}
        given |= {"seeds": plan.task_seeds, "from_scratch": arm.weights == "random"}
        options = _together(given, {**plan.task_options, **own})
        yield Stage(arm.name, task, ["electra_albert", "finetune"], options, folder, folder / task, weights)


def _together(given: Options, own: Options) -> Options:
    """Options given by the runner and those of the plan; UsageError where the plan has one that is the runner's."""
    for option in own.keys() & (given.keys() | _RUNNERS):
        raise UsageError(f"{option} is given by the runner; leave it out of the plan")
    return {**given, **own}


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        typed = {None: "null", True: "true", False: "false"}
        words += [f"--{name}", *(typed[one] if one is None or isinstance(one, bool) else str(one) for one in values)]
    return words


def update_flops(config: PretrainConfig, *, is_stock: bool) -> int:
    """FLOPs of matrix products of an update, from shapes; stock scores the vocabulary at all positions."""
    from electra_albert.corpus.tokenizer import load_tokenizer
    from electra_albert.model import flops
    from electra_albert.objectives.masking import slots

    corpus, training, spec = config.corpus, config.training, spec_of(config)
    vocab_size = len(load_tokenizer(Path(corpus.tokenizer))) if corpus.tokenizer else corpus.vocab_size
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    length, generator, rate = corpus.max_seq_length, spec.generator(config), spec.mask_rate(config)
    masked = length if is_stock else slots(length, rate) if rate else 0
    example = flops.encoder_flops(generator, length) + flops.mlm_head_flops(generator, masked)
    if spec.has_discriminator:
        example += flops.encoder_flops(config.model, length) + flops.rtd_head_flops(config.model, length)
    if spec.has_sentence_order:
        example += flops.sentence_order_head_flops(config.model)
    return flops.TRAINING_PASSES * training.per_device_train_batch_size * training.gradient_accumulation_steps * example
