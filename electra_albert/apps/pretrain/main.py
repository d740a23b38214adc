"""The command `electra-albert pretrain`, and `pretrain` of the Python interface."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from electra_albert.apps.command_line import print_results, started_as
from electra_albert.apps.pretrain.options import (
    DEFAULT_PRESET,
    parse_pretraining,
    refuse_idle_options,
)
from electra_albert.apps.run_folder import config_options
from electra_albert.apps.settings import flatten
from electra_albert.config.pretraining import PretrainConfig
from electra_albert.contracts import LOG, Callbacks, Metrics, RunResult, UsageError


def main(argv: Sequence[str]) -> int:
    """Entry point of `electra-albert pretrain`; returns the exit code."""
    preset, config = parse_pretraining(argv)
    from electra_albert.apps.pretrain.run import run_pretraining
    from electra_albert.training.distributed import start

    world = start(config.run.device, config.training.ddp_timeout)
    result = run_pretraining(preset, config, world, started_as("pretrain", argv))
    return print_results(result)


def pretrain(
    config: PretrainConfig | Path | str | None = None,
    *,
    on_step: Callable[[Metrics], object] | None = None,
    on_evaluation: Callable[[Metrics], object] | None = None,
    **options: Any,
) -> RunResult:
    """Pretrain an encoder on text, or resume a stopped run.

    `options` are those of `electra-albert pretrain` by name; a group is a mapping:
    model={"num_hidden_layers": 6}. `config` is a YAML file, or an object instead of options.
    `on_step` and `on_evaluation` get each row of metrics.jsonl; if `on_evaluation` returns True,
    the run ends there, is saved and exported. Returns the run's folder, held-out metrics and steps.
    Raises UsageError, DataError, CheckpointError or DivergedError.
    """
    from electra_albert.apps.execution import python_call
    from electra_albert.apps.pretrain.run import run_pretraining

    argv = []
    if isinstance(config, (Path, str)):
        argv = ["--config", str(config)]
        config = None
    if config is not None and options:
        raise UsageError(f"give either a config or options such as {next(iter(options))}, not both")
    values = config_options(config) if config else options
    if values:
        argv += ["--config", json.dumps(values, default=str)]
    preset = DEFAULT_PRESET
    if config is None:
        preset, config = parse_pretraining(argv)
        refuse_idle_options([f"--{name}" for name in flatten(options)], config)
    with python_call(config.run.device, config.training.ddp_timeout) as world:
        callbacks = Callbacks(on_step, on_evaluation)
        command = started_as("pretrain", argv)
        result = run_pretraining(preset, config, world, command, callbacks)
        LOG.info(result.summary)
    return result
