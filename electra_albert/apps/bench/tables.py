"""The training step's records as tables, and the targets that they are held against."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from electra_albert.apps.bench.config import OURS, STOCK, TUNED_COMPILED, first_of_ours
from electra_albert.apps.bench.roofs import BUSY_SHARE
from electra_albert.apps.bench.timing import shown_seconds

Record = dict[str, Any]

_NOTES = (
    "tokens/s: median, lowest and highest, without padding; ours is: how many times as fast as this the first of ours",
    "is, the median over timings; memory: the highest, with weights, gradients and optimiser; TFLOP/s: matrix products",
    "at all places, padding too, and logits at masked places only, for all alike; GB/s: what the kernels of a step",
    "read and write with nothing fused, which caches may serve faster than memory is copied; with < it is what the",
    "plain code moves, the compiled code moves less, and what binds is judged as if it moved as much; launch and host:",
    f"a GPU computes less than {BUSY_SHARE:.0%} of the time",
)


class Target(NamedTuple):
    """A number to reach, and where it is stated for."""

    wanted: str
    is_stated_for: Callable[[Record], bool]
    value: Callable[[Record], float | None]
    goal: float
    is_ceiling: bool = False


def fastest_of_ours(record: Record) -> str | None:
    """The name of our fastest contender; None where none of ours was measured."""
    found = record["contenders"]
    ours = [name for name in found if name.startswith(OURS)]
    return max(ours, key=lambda name: found[name]["tokens_per_second"]["median"], default=None)


def _times(name: str) -> Callable[[Record], float | None]:
    """How many times as fast as the contender `name` our fastest is: the median of what each timing gives."""

    def ratio(record: Record) -> float | None:
        found, fastest = record["contenders"], fastest_of_ours(record)
        if name not in found or fastest is None:
            return None
        theirs, ours = (found[one]["seconds_a_step"]["values"] for one in (name, fastest))
        return median(their / our for their, our in zip(theirs, ours, strict=True))

    return ratio


def _of_fastest(field: str) -> Callable[[Record], float | None]:
    def value(record: Record) -> float | None:
        fastest = fastest_of_ours(record)
        found = record["contenders"][fastest][field] if fastest else None
        return found["median"] if isinstance(found, dict) else found

    return value


def _is(device: str, preset: str, length: int, precision: str | None = None) -> Callable[[Record], bool]:
    """Whether a record is of replaced-token detection on such a device, by a part of its name, and of such a shape."""

    def claim(record: Record) -> bool:
        shape = record["objective"] == "rtd" and record["preset"] == preset and record["max_seq_length"] == length
        return shape and device in record["device"] and precision in (None, record["precision"])

    return claim


_CPU, _GPU = _is("cpu", "small", 128), _is("H200", "small", 128, "bf16")
TARGETS = (
    Target("1.6 x stock's tokens/s", _CPU, _times(STOCK), 1.6),
    Target("50 % of the matrix rate", _is("cpu", "small", 128, "bf16"), _of_fastest("share_of_matrix_rate"), 0.5),
    Target("0.5 x stock's memory", _CPU, _of_fastest("memory_of_stock"), 0.5, is_ceiling=True),
    Target("0.5 x stock's memory", _GPU, _of_fastest("memory_of_stock"), 0.5, is_ceiling=True),
    Target("4 x stock's tokens/s", _GPU, _times(STOCK), 4.0),
    Target("1.5 x tokens/s of stock tuned and compiled", _GPU, _times(TUNED_COMPILED), 1.5),
    Target(
        "1 million tokens/s at 128 rows",
        lambda record: _GPU(record) and record["rows"] == 128,
        _of_fastest("tokens_per_second"),
        1e6,
    ),
    Target("45 % of the matrix rate", _is("H200", "base", 512, "bf16"), _of_fastest("share_of_matrix_rate"), 0.45),
)
_BEST = Target("2.5 million tokens/s at the best batch", _GPU, _of_fastest("tokens_per_second"), 2.5e6)


def format_step(records: list[Record]) -> str:
    """A pair of tables for each record, what the columns are, and the targets that are stated for these cases."""
    return "\n".join([*(format_case(record) for record in records), format_notes(records)])


def format_notes(records: list[Record]) -> str:
    """What the columns are, and the targets."""
    return "\n".join(["", *_NOTES, *target_lines(records)])


def format_case(record: Record) -> str:
    """A pair of tables: speed and memory, and what is reached of the machine; and what is missing."""
    first = first_of_ours(record["contenders"])
    names = {name: f"{name} ({kind})" for name, kind in record["attention"].items()}
    shown = {names.get(name, name): found for name, found in record["contenders"].items()}
    machine, repeats, updates = record["machine"], record["repeats"], record["updates_a_timing"]
    lines = [
        f"\ntraining step: {record['objective']}, preset {record['preset']}, {record['precision']}, "
        f"{record['rows']} rows of {record['max_seq_length']} ({record['padding']:.1%} padding), "
        f"V {record['vocab_size']:,}, {record['device']}",
        f"timings: {repeats}, of {updates} update{'s' if updates > 1 else ''} each; measured here: "
        f"{machine['matrix_flops_per_second'] / 1e12:.3g} TFLOP/s of matrix products in {record['precision']}, "
        f"{machine['copy_bytes_per_second'] / 1e9:,.0f} GB/s of copying",
        "",
        f"{'':<31}{'tokens/s':>11}{'lowest':>11}{'highest':>11}{'s a step':>10}{'ours is':>9}"
        f"{'memory GB':>11}{'of stock':>10}",
        *(_speed_line(name, found, is_first=found is record["contenders"].get(first)) for name, found in shown.items()),
        "",
        *roof_lines(shown),
    ]
    if record["objective"] != "rtd":
        lines.append(f"stock has no like of {record['objective']}")
    lines += [f"{name} is left out: {reason}" for name, reason in record["left_out"].items()]
    return "\n".join(lines)


def roof_lines(contenders: Record) -> list[str]:
    """A table of what each contender reaches of the machine."""
    heading = f"{'':<31}{'TFLOP/s':>11}{'of matrix rate':>16}{'GB/s':>9}{'of copying':>12}  what binds"
    return [heading, *(_roof_line(name, found) for name, found in contenders.items())]


def _speed_line(name: str, found: Record, *, is_first: bool) -> str:
    rate, memory = found["tokens_per_second"], found["peak_memory_bytes"]
    ratio = None if is_first or found["ratio"] is None else found["ratio"]["median"]
    return (
        f"{name:<31}{rate['median']:>11,.0f}{rate['lowest']:>11,.0f}{rate['highest']:>11,.0f}"
        f"{shown_seconds(found['seconds_a_step']['median']):>10}{_shown(ratio, '.2f', 'x'):>9}"
        f"{_shown(memory and memory / 1e9, '.2f'):>11}{_shown(found['memory_of_stock'], '.2f', 'x'):>10}"
    )


def _roof_line(name: str, found: Record) -> str:
    moved, at_most = found["bytes_per_second"], "<" if found["is_traffic_at_most"] else ""
    return (
        f"{name:<31}{found['flops_per_second'] / 1e12:>11.3g}{found['share_of_matrix_rate']:>16.1%}"
        f"{at_most + _shown(moved and moved / 1e9, ',.0f'):>9}"
        f"{at_most + _shown(found['share_of_bandwidth'], '.1%'):>12}"
        f"  {found['binds'] or '-'}"
    )


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def target_lines(records: list[Record]) -> list[str]:
    """Whether each target is met, for the cases that it is stated for."""
    lines = [_verdict(target, record) for record in records for target in TARGETS if target.is_stated_for(record)]
    stated = [record for record in records if _BEST.is_stated_for(record)]
    if len({record["rows"] for record in stated}) > 1:
        lines.append(_verdict(_BEST, max(stated, key=lambda record: _BEST.value(record) or 0.0)))
    elif stated:
        rows = stated[0]["rows"]
        lines.append(f"target at least {_BEST.wanted}: not measured, only {rows} rows a step were tried")
    return lines


def _verdict(target: Target, record: Record) -> str:
    value, case = target.value(record), f"{record['preset']}, {record['precision']}, {record['rows']} rows"
    bound = "at most" if target.is_ceiling else "at least"
    if value is None:
        return f"target {bound} {target.wanted} ({case}): not measured"
    is_met = value <= target.goal if target.is_ceiling else value >= target.goal
    found = f"{value:,.0f}" if target.goal > 1000 else f"{value:.2f}"
    verdict = "met" if is_met else "missed"
    return f"target {bound} {target.wanted} ({case}): {verdict}, {found} by {fastest_of_ours(record)}"
