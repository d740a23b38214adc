"""The held-out metrics: their labels, baselines and names on the hub, and the tables of a run."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from electra_albert.apps.command_line import format_table
from electra_albert.contracts import Metrics

# Of scores on the text that the weights of --init_from were trained on.
OLD_TEXT_PREFIX = "old_text_"
MASKED_TOKENS = "masked_tokens"  # number of tokens over which the loss is averaged
# Standard deviation of the loss of one masked token; 2.2 of the unigram baseline.
_SPREAD_NATS = 3.0
_LARGEST_ERROR = 0.1  # nats; a larger standard error gives a warning
_MOST_PRECISION = 0.65  # that learning requires, however many tokens are replaced


class Metric(NamedTuple):
    """A held-out metric."""

    label: str
    baseline: str | float | None = None  # another metric, or a chance level
    baseline_label: str = ""
    least: float | None = None  # times the baseline, from which on the model has learned
    hub: str = ""  # the hub's name of the metric, for the front matter of a card


_UNIGRAM = ("unigram_loss", "loss of the token frequencies")
_FREQUENT = ("most_frequent_accuracy", "most frequent token")
METRICS = {
    "generator_loss": Metric("generator loss (nats)", *_UNIGRAM),
    "generator_accuracy": Metric("generator accuracy", *_FREQUENT, 2.5, "accuracy"),
    "mlm_loss": Metric("masked-token loss (nats)", *_UNIGRAM),
    "mlm_accuracy": Metric("masked-token accuracy", *_FREQUENT, 2.5, "accuracy"),
    "discriminator_mlm_loss": Metric("discriminator's masked-token loss (nats)", *_UNIGRAM),
    "discriminator_mlm_accuracy": Metric(
        "discriminator's masked-token accuracy", *_FREQUENT, hub="accuracy"
    ),
    "discriminator_auc": Metric("discriminator ROC-AUC", 0.5, "chance level", 1.3, "roc_auc"),
    "discriminator_average_precision": Metric(
        "discriminator average precision",
        "replaced_fraction",
        "fraction of replaced tokens",
        1.5,
        "average_precision",
    ),
    "sop_accuracy": Metric(
        "accuracy of the second segment", 0.5, "more frequent class", hub="accuracy"
    ),
    "discriminator_loss": Metric("discriminator loss (nats)"),
}


def baseline_of(name: str, metrics: Metrics) -> float | None:
    """The baseline of a metric; None if it is unknown."""
    if name == "sop_accuracy":
        swapped = metrics.get("swapped_fraction")
        return None if swapped is None else max(swapped, 1 - swapped)
    baseline = METRICS[name].baseline
    return metrics.get(baseline) if isinstance(baseline, str) else baseline


def has_learned(metrics: Metrics) -> bool | None:
    """Whether the metrics are clearly above their baselines; None if none of them has a minimum."""
    minimum: dict[str, float] = {}
    for name, metric in METRICS.items():
        if name in metrics and metric.least:
            baseline = baseline_of(name, metrics)
            minimum[name] = math.nan if baseline is None else metric.least * baseline
    precision = "discriminator_average_precision"
    if precision in minimum:
        minimum[precision] = min(minimum[precision], _MOST_PRECISION)
    if not minimum:
        return None
    values = {name: metrics[name] or 0.0 for name in minimum}
    return all(0 < values[name] < math.inf and values[name] >= minimum[name] for name in minimum)


def format_scores(metrics: Metrics) -> str:
    """Table of the held-out scores of any objective, each next to its baseline."""
    has_detection = "discriminator_auc" in metrics
    rows: list[tuple[str, ...]] = [("held-out scores", "score", "baseline", "ratio", "baseline is")]
    for name, metric in METRICS.items():
        if name not in metrics or (name == "discriminator_loss" and has_detection):
            continue
        value = metrics[name]
        baseline = baseline_of(name, metrics)
        ratio = f"{value / baseline:.2f} x" if value and baseline else "-"
        if not isinstance(metric.baseline, str):
            ratio = ""
        label = metric.baseline_label
        if name == "discriminator_auc":
            label += f" (shuffled labels: {_number(metrics.get('shuffled_labels_auc'))})"
        rows.append((metric.label, _number(value), _number(baseline), ratio, label))
    losses = [name for name in metrics if name.endswith("_loss") and "/" not in name]
    for name in losses:
        if name not in {*METRICS, "unigram_loss", "sop_loss"}:
            label = f"{name.replace('_', ' ')} (nats)"
            rows.append((label, _number(metrics[name]), "-", "", ""))
    lines = [format_table(rows, left=len(rows[0])), *_source_lines(metrics, losses)]
    learned = has_learned(metrics)
    if learned:
        lines.append("scores are clearly above the baselines")
    elif learned is not None:
        bars = ["accuracy 2.5 x"] if "unigram_loss" in metrics else []
        if has_detection:
            bars += ["ROC-AUC 0.65", "average precision 1.5 x"]
        expected = f"(expected: {', '.join(bars)}); train longer or on more text"
        lines.append(f"scores are not yet clearly above the baselines {expected}")
    masked_tokens = metrics.get(MASKED_TOKENS)
    if masked_tokens is not None:
        lines += error_lines(int(masked_tokens))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _source_lines(metrics: Metrics, losses: Sequence[str]) -> list[str]:
    """A table of the losses of each source of a mixture."""
    sources = dict.fromkeys(name.partition("/")[2] for name in metrics if "_loss/" in name)
    if not sources:
        return []
    losses = [name for name in losses if f"{name}/{next(iter(sources))}" in metrics]
    titles = [name.replace("_", " ") for name in losses]
    rows: list[tuple[str, ...]] = [("source", *titles, "masked tokens")]
    for source in sources:
        count = metrics.get(f"{MASKED_TOKENS}/{source}")
        values = [_number(metrics.get(f"{name}/{source}")) for name in losses]
        rows.append((source, *values, "-" if count is None else f"{count:,}"))
    return [f"\n{format_table(rows, left=len(rows[0]))}\n"]


def error_lines(masked_tokens: int) -> list[str]:
    """A warning if the loss over so few masked tokens is too uncertain; else no line."""
    error = _SPREAD_NATS / max(1, masked_tokens) ** 0.5
    if error <= _LARGEST_ERROR:
        return []
    return [
        f"warning: held-out scores use only {masked_tokens:,} masked tokens: the standard error of "
        f"a loss is about {error:.1g} nats; use more text or raise --eval_examples"
    ]


def format_forgetting(evaluations: Sequence[Metrics]) -> str:
    """Table of the losses on the new text and on that of the initial weights, at start and end."""
    if not evaluations:
        return "forgetting is unknown: metrics.jsonl contains no evaluation"
    first = evaluations[0]
    last = evaluations[-1]
    rows = [
        ("held-out losses", f"at step {first['step']:,}", f"at step {last['step']:,}", "change"),
    ]
    for name in last:
        if not name.endswith("_loss") or name == "unigram_loss" or name.startswith(OLD_TEXT_PREFIX):
            continue
        for key, text in ((name, "new text"), (OLD_TEXT_PREFIX + name, "old text")):
            if key in last:
                then = first.get(key)
                now = last[key]
                change = "-" if then is None or now is None else f"{now - then:+.3f}"
                label = f"{name.replace('_', ' ')}, {text}"
                rows.append((label, _number(then), _number(now), change))
    return format_table(rows, left=len(rows[0]))
