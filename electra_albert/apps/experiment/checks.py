"""What can be known to be wrong with an experiment before its first command is run, which may take hours."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from electra_albert.apps.experiment.plan import Plan
from electra_albert.apps.experiment.records import PRETRAINING, Stage, check_records, records_of
from electra_albert.apps.experiment.stages import Site, finetuning_command
from electra_albert.config import BUILT_IN_CORPUS, ModelConfig
from electra_albert.contracts import UsageError
from electra_albert.objectives.registry import spec_of


def check_experiment(plan: Plan, site: Site, stages: Sequence[Stage]) -> None:
    """UsageError for an option, a task or a path that some stage would refuse, and for what was made otherwise.

    stages are those of the arms that are asked for; what these are like must be among them or have been made. Raises
    DataError for a corpus or pairs that cannot be read, CheckpointError for a damaged record.
    """
    for arm in plan.arms:
        records_of(site.folder(arm))
    if any(stage.name.startswith(PRETRAINING) and not stage.is_done for stage in stages):
        _check_corpus(site.corpus)
        _check_tokenizer(site)
    _check_judges(site)
    for stage in stages:
        with _told(f"arm {stage.arm}"):
            if stage.command[0] == "Pretraining.py":
                _check_pretraining(plan, stage)
    for task in plan.tasks:
        with _told(f"task {task}"):
            _check_task(plan, site, task)
    _check_order(stages)
    check_records(stages)


def _check_corpus(corpus: str) -> None:
    """Raises as Pretraining.py would where it has no such text; what is on the hub is fetched when its turn comes."""
    from electra_albert.corpus.mixture import read_sources
    from electra_albert.corpus.sources import find_files
    from electra_albert.data_files import hub_name

    for source in read_sources(corpus, "text"):
        name = source.corpus
        is_here = os.path.lexists(name) or Path(name).parent.exists() or hub_name(name) is None
        if is_here and name != BUILT_IN_CORPUS:
            find_files(name, Counter())


def _check_tokenizer(site: Site) -> None:
    if site.tokenizer is not None:
        from electra_albert.corpus.tokenizer import vocabulary_file

        vocabulary_file(Path(site.tokenizer))


def _check_judges(site: Site) -> None:
    """Raises as apps.score would for texts that are not there and for pairs that are none."""
    if site.texts:
        from electra_albert.inference.score_text import require_file

        for text in site.texts:
            require_file(Path(text))
    if site.pairs is not None:
        from electra_albert.inference.score_pairs import pair_files, read_pairs

        for file in pair_files(Path(site.pairs)):
            read_pairs(file)


def _check_pretraining(plan: Plan, stage: Stage) -> None:
    from electra_albert.apps.command_line import parse_pretraining

    _, config = parse_pretraining(stage.command[1:], "Pretraining.py")
    stock = next((arm for arm in plan.arms if arm.weights == "stock" and arm.like == stage.arm), None)
    if stock is None:
        return
    if not spec_of(config).has_stock_pair:
        raise UsageError(f"{stock.name} is like it, but stock has no composition for objective {config.run.objective}")
    if config.model.attention != ModelConfig.attention:
        raise UsageError(f"{stock.name} is like it, but stock has no attention {config.model.attention}")
    if config.training.gradient_accumulation_steps > 1:
        raise UsageError(
            f"{stock.name} is like it, but stock's loop gathers no gradients of several micro-batches; set "
            "gradient_accumulation_steps to 1"
        )


def _check_task(plan: Plan, site: Site, name: str) -> None:
    """A task's options, and its data where these are on this machine."""
    from electra_albert.apps.finetune.options import parse_finetuning, refuse_idle_options
    from electra_albert.data_files import hub_name
    from electra_albert.tasks.examples import Report
    from electra_albert.tasks.locating import locate
    from electra_albert.tasks.registry import find_task

    argv = finetuning_command(plan, name, {"data_dir": site.data_dir})[1:]
    config = parse_finetuning(argv)
    task = find_task(str(config.data.task))  # which refuses all of GLUE at once
    refuse_idle_options(argv, config)
    if not config.tuning.is_training:
        raise UsageError("it would only be scored, and a pretrained model cannot be; train it, or leave it out")
    folder = site.data_dir
    if folder is not None and (Path(folder).exists() or not hub_name(folder)):  # the hub's is fetched later
        locate(task, config.data, Report(), needs_test=False, is_trained=True)


def _check_order(stages: Sequence[Stage]) -> None:
    """UsageError where an arm is asked for without the one it is like, which has not been made as it is now either."""
    asked = {stage.arm for stage in stages}
    for stage in stages:
        needed = stage.needs
        if needed is not None and needed.arm not in asked and not needed.is_done:
            raise UsageError(
                f"--arms {stage.arm}: it is like {needed.arm}, of which {needed.name} "
                f"{needed.trouble() or 'has not been made'}; name {needed.arm} too"
            )


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors in here with what they are about before them."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
