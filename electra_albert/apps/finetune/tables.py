"""What a sweep found, as tables for people: scores, predictions, and how labels are taken for one another."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from electra_albert.tasks.task import ChoiceExample, SequenceExample, SpanExample, TokenExample

_UNBALANCED = 0.8  # from this share of one label on it is the likely reason for a collapse onto it
_SHOWN_CHARACTERS = 500  # of a text in predictions.tsv


def format_results(results: Mapping[str, Any]) -> str:
    """The results as a Markdown table: what is official, and what ELECTRA reports, for every evaluation set."""
    sizes = ", ".join(f"{count:,} {name}" for name, count in results["evaluation_examples"].items())
    begun = " with random weights" if results["from_scratch"] else ""
    lines = [
        f"{results['task']}, {results['model']}{begun}: {results['train_examples']:,} examples to train on, "
        f"{sizes} to score, {len(results['seeds'])} seed(s)",
        "",
        "| metric, x 100 | median | mean | std | best | 95 % interval of the mean | each seed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in shown_metrics(results):
        found = results["metrics"][name]
        told = f"**{name}**" if name == results["main_metric"] else name
        low, high = found["interval"]
        std = "-" if found["std"] is None else _percent(found["std"])
        each = " ".join(map(_percent, found["values"]))
        middle = " | ".join(_percent(found[key]) for key in ("median", "mean"))
        best, interval = _percent(found["best"]), f"{_percent(low)} to {_percent(high)}"
        lines.append(f"| {told} | {middle} | {std} | {best} | {interval} | {each} |")
    if results["commonest_share"] is not None:
        lines += ["", f"always the commonest label: accuracy {_percent(results['commonest_share'])}"]
    if len(results["seeds"]) == 1:
        lines += ["", "one seed tells nothing of the spread between seeds: --seeds 5"]
    collapsed = results["collapsed_seeds"]
    if collapsed:
        told = ", ".join(map(str, collapsed))
        lines += [
            "",
            f"warning: collapsed, the same answer whatever was asked: seed {told}{_way_out(results)}",
        ]
    return "\n".join(lines)


def _way_out(results: Mapping[str, Any]) -> str:
    """What may help against a collapse; nothing where nothing was trained."""
    if not any(results["updates"]):
        return ""
    share, accuracies = results["commonest_share"] or 0.0, results["metrics"].get("accuracy", {}).get("values", [])
    scores = dict(zip(results["seeds"], accuracies, strict=False))
    is_commonest = all(scores.get(seed) == share for seed in results["collapsed_seeds"])
    could_have_weights = results["measure"] == "classification" and results["class_weights"] == "none"
    if is_commonest and share >= _UNBALANCED and could_have_weights:
        return f"; {100 * share:.0f} % of the examples have that label: look at macro_f1, try --class_weights balanced"
    return "; try a lower --learning_rate"


def shown_metrics(results: Mapping[str, Any]) -> list[str]:
    """The official metrics and ELECTRA's, on every evaluation set."""
    wanted = dict.fromkeys([results["main_metric"], *results["official_metrics"]])
    sets = [name for name in results["evaluation_examples"] if name != results["deciding_set"]]
    names = [*wanted, *(f"{set_name}_{name}" for set_name in sets for name in wanted)]
    return [name for name in names if name in results["metrics"]]


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def predictions_table(examples: Sequence[Any], predictions: Sequence[Any], probabilities: Sequence[Any] | None) -> str:
    """One line an example: what it is called, its gold label, the predicted one and its probability, and the text.

    Probabilities are lists, one for each label, or numbers: of there being no answer.
    """
    is_of_none = probabilities is not None and isinstance(next(iter(probabilities), None), float)
    lines = [f"id\tgold\tpredicted\t{'no_answer' if is_of_none else 'probability'}\ttext"]
    for number, (example, predicted) in enumerate(zip(examples, predictions, strict=True)):
        sure = "" if probabilities is None else _told_probability(probabilities[number])
        told = _letter(predicted) if isinstance(example, ChoiceExample) else _told(predicted)
        cells = (example.identity, _gold(example), told, sure, _text(example))
        lines.append("\t".join(_one_cell(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def _told_probability(found: Any) -> str:
    return f"{found if isinstance(found, float) else max(found):.4f}"


def _told(prediction: Any) -> str:
    if isinstance(prediction, float):
        return f"{prediction:.4f}"
    return " ".join(map(str, prediction)) if isinstance(prediction, list | tuple) else str(prediction)


def _gold(example: Any) -> str:
    if isinstance(example, SpanExample):
        return "" if example.answers is None else " / ".join(dict.fromkeys(answer.text for answer in example.answers))
    if isinstance(example, ChoiceExample):
        return "" if example.label is None else _letter(example.label)
    label = example.tags if isinstance(example, TokenExample) else example.label
    return "" if label is None else _told(label)


def _letter(option: int) -> str:
    """What an option is called in RACE."""
    return string.ascii_uppercase[option]


def _text(example: Any) -> str:
    if isinstance(example, TokenExample):
        return " ".join(example.words)
    if isinstance(example, SequenceExample):
        return example.text if example.text_pair is None else f"{example.text} ||| {example.text_pair}"
    return f"{example.question} ||| {example.context}"


def _one_cell(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"


def confusion_table(measure: str, labels: Sequence[str], examples: Sequence[Any], predictions: Sequence[Any]) -> str:
    """How often each gold label (lines) was given each label (columns); empty where labels are no classes."""
    if measure == "classification":
        pairs = Counter(zip((example.label for example in examples), predictions, strict=True))
    elif measure == "token":
        pairs = Counter(
            pair
            for example, predicted in zip(examples, predictions, strict=True)
            for pair in zip(example.tags, predicted, strict=True)
        )
    else:
        return ""
    rows = ["\t".join([gold, *(str(pairs[gold, label]) for label in labels)]) for gold in labels]
    return "\n".join(["\t".join(["gold \\ predicted", *labels]), *rows]) + "\n"
