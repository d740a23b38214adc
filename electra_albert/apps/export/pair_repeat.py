"""What a card tells of how a run is repeated: its command, its options, the code and the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_albert.apps.export.pair_paths import last_name, without_folders
from electra_albert.contracts import CheckpointError

_OPTIONS = "Its options, but for those that are the preset's own, as `--config FILE` takes them:"
_LARGEST_RECORD_BYTES = 1 << 20


def repeat_lines(run: Path, options: Mapping[str, Any]) -> list[str]:
    """Markdown; `options` are those in the run's config.yaml. Raises CheckpointError for files that cannot be read."""
    import yaml

    from electra_albert.apps.run_folder import COMMAND

    lines: list[str] = []
    if (run / COMMAND).is_file():
        lines += ["Repeated by, with the paths of your own machine:", "", "```bash", _command(run / COMMAND), "```", ""]
    lines += [_OPTIONS, "", "```yaml", yaml.safe_dump(chosen_options(options), sort_keys=False).rstrip("\n"), "```", ""]
    return [*lines, _machine_line(run), ""]


def chosen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The preset and all options that differ from its own, of paths the last name. Of no known preset: all of them."""
    from electra_albert.config import as_settings
    from electra_albert.presets import PRESETS

    preset = PRESETS.get(str(options.get("preset")))
    own = as_settings(preset) if preset else {}
    return _differing(options, own)


def _differing(options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        default = own.get(name)
        if isinstance(value, dict):
            inner = _differing(value, default if isinstance(default, dict) else {})
            chosen |= {name: inner} if inner else {}
        elif name not in own or value != default:
            chosen[name] = last_name(value) if isinstance(value, str) else value
    return chosen


def _command(file: Path) -> str:
    try:
        return without_folders(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValueError: an open quotation mark, or no UTF-8
        raise CheckpointError(f"{file} holds no command line ({error}); mend it, or put it elsewhere") from None


def _machine_line(run: Path) -> str:
    """Where and with which code the run was computed, as far as it has recorded that."""
    found = recorded(run)
    packages = found.get("packages")
    versions = packages if isinstance(packages, dict) else {}
    commit = f"commit `{found['commit']}`" if found.get("commit") else "a commit that was not recorded"
    machine = found.get("processor") or "a processor that was not recorded"
    numbers = {name: found[name] for name in ("cores", "threads") if found.get(name)}
    details = [f"{name} {value}" for name, value in {**numbers, **versions}.items()]
    told = f" ({', '.join(details)})" if details else ""
    return f"Computed on {machine}{told}, by the code of {commit}."


def recorded(run: Path) -> dict[str, Any]:
    """What a run's environment.json holds; nothing where it is not there."""
    from electra_albert.apps.run_folder import ENVIRONMENT

    file = run / ENVIRONMENT
    if not file.is_file():
        return {}
    try:
        with file.open("rb") as opened:
            content = json.loads(opened.read(_LARGEST_RECORD_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} cannot be read as JSON ({str(error)[:80]}); mend it, or put it elsewhere"
        ) from None
    return content if isinstance(content, dict) else {}
