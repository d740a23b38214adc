"""Held-out scores as tables: beside what it takes no learning to reach, and before and after going on from a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from electra_albert.contracts import Metrics
from electra_albert.objectives.evaluation import has_learned
from electra_albert.training.monitor import CLOCK, read_metrics

OLD_TEXT_PREFIX = "old_text_"  # of scores on the text that the weights of --init_from were trained on
MASKED_TOKENS = "masked_tokens"  # how many the loss is a mean of
_SPREAD_NATS = 3.0  # standard deviation of the loss of one masked token; 2.2 by the token frequencies alone
_LARGEST_ERROR = 0.1  # nats, beyond which a standard error is warned of
_CLEAR = "clear of what takes no learning"
_NOT_CLEAR = "not yet clear of what takes no learning ({bars}): train longer or on more text"


def format_scores(metrics: Metrics) -> str:
    """The held-out scores of any objective, each beside what it takes no learning to reach."""
    rows = [("on held-out text", "reached", "without learning", "")]
    for name in ("generator", "mlm"):
        if f"{name}_loss" in metrics:
            rows += _mask_rows(metrics, name)
    if "discriminator_auc" in metrics:
        rows += _detection_rows(metrics)
    if "sop_accuracy" in metrics:
        rows.append(_order_row(metrics))
    known = ("generator_loss", "mlm_loss", "discriminator_loss", "sop_loss", "unigram_loss")
    losses = [name for name in metrics if name.endswith("_loss") and "/" not in name and name not in known]
    rows += [(f"{name.replace('_', ' ')} (nats)", _tell(metrics, name), "-", "") for name in losses]
    bars = "2.5 x, 0.65 and 1.5 x" if "discriminator_auc" in metrics else "2.5 x"
    lines, learned = [_table(rows)], has_learned(metrics)
    if learned is not None:
        lines.append(_CLEAR if learned else _NOT_CLEAR.format(bars=bars))
    if sources := [name.partition("/")[2] for name in metrics if name.startswith(f"{MASKED_TOKENS}/")]:
        lines.insert(1, f"\n{_source_table(metrics, sources)}\n")
    masked_tokens = metrics.get(MASKED_TOKENS)
    return "\n".join([*lines, *([] if masked_tokens is None else error_lines(masked_tokens))])


def _source_table(metrics: Metrics, sources: Sequence[str]) -> str:
    losses = [name for name in metrics if name.endswith("_loss") and f"{name}/{sources[0]}" in metrics]
    told = ["token frequencies" if name == "unigram_loss" else name.replace("_", " ") for name in losses]
    rows = [("by source", *told, "masked tokens")]
    for source in sources:
        count = f"{metrics[f'{MASKED_TOKENS}/{source}']:,}"
        rows.append((source, *(_tell(metrics, f"{name}/{source}") for name in losses), count))
    return _table(rows)


def error_lines(masked_tokens: int) -> list[str]:
    """A warning where a loss over so many masked tokens is so uncertain that it means little."""
    error = _SPREAD_NATS / max(1, masked_tokens) ** 0.5
    if error <= _LARGEST_ERROR:
        return []
    return [
        f"warning: held-out scores are of {masked_tokens:,} masked tokens only, so that the standard error of a loss "
        f"is about {error:.1g} nats; give more text or raise --eval_examples"
    ]


def _mask_rows(metrics: Metrics, name: str) -> list[tuple[str, str, str, str]]:
    told = "generator" if name == "generator" else "masked-token"
    return [
        (
            f"{told} loss (nats)",
            _tell(metrics, f"{name}_loss"),
            _tell(metrics, "unigram_loss"),
            "token frequencies alone",
        ),
        (
            f"{told} accuracy",
            _tell(metrics, f"{name}_accuracy"),
            _tell(metrics, "most_frequent_accuracy"),
            f"always the most frequent token; {_times(metrics, f'{name}_accuracy', 'most_frequent_accuracy')}",
        ),
    ]


def _detection_rows(metrics: Metrics) -> list[tuple[str, str, str, str]]:
    shuffled = f"shuffled labels: {_tell(metrics, 'shuffled_labels_auc')}"
    precision = "discriminator_average_precision"
    return [
        ("discriminator ROC-AUC", _tell(metrics, "discriminator_auc"), "0.500", shuffled),
        (
            "discriminator average precision",
            _tell(metrics, precision),
            _tell(metrics, "replaced_fraction"),
            f"replaced fraction; {_times(metrics, precision, 'replaced_fraction')}",
        ),
    ]


def _order_row(metrics: Metrics) -> tuple[str, str, str, str]:
    swapped = metrics.get("swapped_fraction")
    chance = "-" if swapped is None else f"{max(swapped, 1 - swapped):.3f}"
    return ("sentence order accuracy", _tell(metrics, "sop_accuracy"), chance, "always the commoner order")


def _tell(metrics: Metrics, name: str) -> str:
    value = metrics.get(name)
    return "-" if value is None else f"{value:.3f}"


def _times(metrics: Metrics, name: str, floor: str) -> str:
    value, base = metrics.get(name), metrics.get(floor)
    return f"{value / base:.2f} x" if value and base else "-"


def read_evaluations(folder: Path, prefix: str) -> list[Metrics]:
    """The evaluation rows of a run's metrics.jsonl, oldest first, names without `prefix`."""
    rows = read_metrics(folder / "metrics.jsonl")
    evaluations = [row for row in rows if any(name.startswith(prefix) for name in row)]
    unscored = ("phase", *CLOCK)
    return [
        {name.removeprefix(prefix): value for name, value in row.items() if name not in unscored} for row in evaluations
    ]


def format_forgetting(evaluations: Sequence[Metrics]) -> str:
    """Losses on the new text and on that of the run begun from, before the first update and after the last."""
    if not evaluations:
        return "what was forgotten cannot be told: metrics.jsonl holds no evaluation"
    before, after = evaluations[0], evaluations[-1]
    rows = [("on held-out text", f"at step {before['step']:,}", f"at step {after['step']:,}", "")]
    for name in after:
        if name.endswith("_loss") and name != "unigram_loss" and not name.startswith(OLD_TEXT_PREFIX):
            told = name.replace("_", " ")
            rows.append((f"{told}, new text", _tell(before, name), _tell(after, name), _change(before, after, name)))
            old = OLD_TEXT_PREFIX + name
            if old in after:
                rows.append((f"{told}, old text", _tell(before, old), _tell(after, old), _change(before, after, old)))
    return _table(rows)


def _change(before: Metrics, after: Metrics, name: str) -> str:
    then, now = before.get(name), after.get(name)
    return "-" if then is None or now is None else f"{now - then:+.3f}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
