"""The curves of an experiment as a picture: held-out scores of every arm over the operations spent on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.experiment.findings import Findings, Pretrained
from electra_albert.files import name_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_PANELS = {  # by the name in the metrics: what the axis says
    "generator_loss": "generator's loss on held-out text (nats)",
    "mlm_loss": "masked-token loss on held-out text (nats)",
    "discriminator_auc": "discriminator's ROC-AUC on held-out text",
    "sop_accuracy": "sentence order, share right",
}
_FLOOR, _ALONE = "unigram_loss", "token frequencies alone"
_WIDTH, _HEIGHT = 6.0, 4.2  # inches of one panel
_MOST_COLOURS = 10  # after which lines are dashed, then dotted


def draw_curves(title: str, found: Sequence[Findings], file: Path) -> None:
    """Write the picture (PNG) at one stroke; where no arm has been evaluated there is none, nor an earlier one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [name for name in _PANELS if any(_points(run, name)[0] for each in found for run in each.runs)]
    if not panels:
        file.unlink(missing_ok=True)
        return
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(_WIDTH * len(panels), _HEIGHT), squeeze=False, layout="constrained"
    )
    lines: dict[str, Line2D] = {}
    for panel, name in zip(axes[0], panels, strict=True):
        lines |= _draw_panel(panel, name, found)
    # Given as arguments, since labels of lines that begin with _ are left out of a legend.
    legend = figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="small", frameon=False)
    for told in legend.get_texts():
        told.set_parse_math(False)  # a name may hold dollar signs
    figure.suptitle(title, parse_math=False)
    beside = name_beside(file)
    figure.savefig(beside, dpi=110, format="png")
    pyplot.close(figure)
    os.replace(beside, file)


def _draw_panel(panel: Axes, name: str, found: Sequence[Findings]) -> dict[str, Line2D]:
    """Draw one score of all arms; returns a line of each, by what the legend calls it."""
    lines = {}
    for number, each in enumerate(found):
        style: dict[str, Any] = {
            "color": f"C{number % _MOST_COLOURS}",
            "linestyle": ("-", "--", ":")[number // _MOST_COLOURS % 3],
            "linewidth": 1.3,
        }
        for run in each.runs:
            flops, values = _points(run, name)
            if values:
                marker = "o" if len(values) == 1 else None  # a line of one point cannot be seen
                lines[each.arm.name] = panel.plot(flops, values, marker=marker, markersize=4, **style)[0]
    floors = [row.get(f"eval_{_FLOOR}") for each in found for run in each.runs for row in run.rows]
    floor = next((value for value in floors if value), None)
    if floor and name.endswith("_loss"):
        lines[_ALONE] = panel.axhline(floor, color="grey", linewidth=0.8, linestyle=(0, (1, 3)))
    panel.set_xlabel("operations in matrix products (FLOPs)")
    panel.set_ylabel(_PANELS[name])
    panel.spines[["top", "right"]].set_visible(False)
    return lines


def _points(run: Pretrained, name: str) -> tuple[list[float], list[float]]:
    """Operations spent and the score, wherever it was evaluated."""
    points = [(row["step"], row.get(f"eval_{name}")) for row in run.rows]
    known = [(run.flops * step / run.updates, value) for step, value in points if step and value is not None]
    return [flops for flops, _ in known], [value for _, value in known]
