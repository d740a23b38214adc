"""Checks of settings, and the meaning of an option when a run is resumed."""

import re
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from electra_albert.contracts import UsageError

MAX_WIDTH = 1 << 20
COUNT = f"[1, {1 << 31}]"  # an interval; larger numbers would overflow somewhere
COUNT_OR_0 = f"[0, {1 << 31}]"


def require(condition: bool, message: str) -> None:
    """Raise UsageError, which is a ValueError, unless the condition holds."""
    if not condition:
        raise UsageError(message)


def require_within(config: object, interval: str, names: str) -> None:
    """Require each named field to be in an interval such as [0, 1), or None (use the default)."""
    low, high = map(float, interval[1:-1].split(","))
    for name in names.split():
        value = getattr(config, name)
        if value is None:
            continue
        is_low = value == low and interval[0] == "["
        is_high = value == high and interval[-1] == "]"
        is_within = low < value < high or is_low or is_high
        require(is_within, f"{name}={value} must be in {interval}")


def require_option(name: str, value: float, least: int) -> None:
    """Require an option of an attention kind to be a whole number from `least` to MAX_WIDTH."""
    is_within = isinstance(value, int) and least <= value <= MAX_WIDTH
    interval = f"a whole number from {least} to {MAX_WIDTH}"
    require(is_within, f"model.attention_options.{name}={value} must be {interval}")


def require_multiple(config: object, name: str, divisor: str) -> None:
    """Require the field `name` to be a multiple of the field `divisor`."""
    value = getattr(config, name)
    number = getattr(config, divisor)
    require(value % number == 0, f"{name}={value} is not a multiple of {divisor}={number}")


def require_repository(name: str | None) -> None:
    """Require OWNER/NAME, or None: a repository without owner is created, but not found again."""
    if name is not None and not re.fullmatch("[^/]+/[^/]+", name):
        raise UsageError(f"push_to_hub={name} is not a repository on the hub; give OWNER/NAME")


def require_filled(config: object, names: str) -> None:
    """Require each named field not to be empty, nor to hold a NUL character, which no path does."""
    for name in names.split():
        value = getattr(config, name)
        require(value != "", f"{name} is empty; give a value or leave it out")
        require("\0" not in (value or ""), f"{name}={value!r} holds a NUL character; remove it")


def _setting(on_resume: str) -> Callable[[Any], Any]:
    return lambda default: field(default=default, metadata={"on_resume": on_resume})


# Meaning of another value when a run is resumed; any other field must have the recorded value.
free = _setting("free")  # it does not change the results
by_content = _setting("by_content")  # what it names or reads is compared by a hash
per_call = _setting("per_call")  # it belongs to one call


def names_of(roles: str, *kinds: type[Any]) -> set[str]:
    """The fields of dataclasses that have one of these meanings on resume."""
    names = set()
    for kind in kinds:
        for entry in fields(kind):
            if entry.metadata.get("on_resume") in roles.split():
                names.add(entry.name)
    return names
