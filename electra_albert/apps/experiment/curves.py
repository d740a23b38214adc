"""The curves of an experiment as a picture: held-out scores of every arm over the operations spent on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_albert.apps.experiment.findings import Findings, Pretrained

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = {  # by the name in the metrics: what the axis says
    "generator_loss": "generator's loss on held-out text (nats)",
    "mlm_loss": "masked-token loss on held-out text (nats)",
    "discriminator_auc": "discriminator's ROC-AUC on held-out text",
    "sop_accuracy": "sentence order, share right",
}
_FLOOR = "unigram_loss"
_WIDTH, _HEIGHT = 6.0, 4.2  # inches of one panel
_MOST_COLOURS = 10  # after which lines are dashed, then dotted


def draw_curves(title: str, found: Sequence[Findings], file: Path) -> bool:
    """Write the picture (PNG); False, with none written, where no arm has been evaluated twice."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [name for name in _PANELS if any(len(_points(run, name)[0]) > 1 for each in found for run in each.runs)]
    if not panels:
        return False
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(_WIDTH * len(panels), _HEIGHT), squeeze=False, layout="constrained"
    )
    for panel, name in zip(axes[0], panels, strict=True):
        _draw_panel(panel, name, found)
    handles = {label: line for panel in axes[0] for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize="small", frameon=False)
    figure.suptitle(title)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return True


def _draw_panel(panel: Axes, name: str, found: Sequence[Findings]) -> None:
    for number, each in enumerate(found):
        style: dict[str, Any] = {
            "color": f"C{number % _MOST_COLOURS}",
            "linestyle": ("-", "--", ":")[number // _MOST_COLOURS % 3],
            "linewidth": 1.3,
        }
        for run in each.runs:
            flops, values = _points(run, name)
            if values:
                panel.plot(flops, values, label=each.arm.name, **style)
    floors = [row.get(f"eval_{_FLOOR}") for each in found for run in each.runs for row in run.rows]
    floor = next((value for value in floors if value), None)
    if floor and name.endswith("_loss"):
        panel.axhline(floor, color="grey", linewidth=0.8, linestyle=(0, (1, 3)), label="token frequencies alone")
    panel.set_xlabel("operations in matrix products (FLOPs)")
    panel.set_ylabel(_PANELS[name])
    panel.spines[["top", "right"]].set_visible(False)


def _points(run: Pretrained, name: str) -> tuple[list[float], list[float]]:
    """Operations spent and the score, wherever it was evaluated."""
    steps = max(row["step"] or 0 for row in run.rows)
    points = [(row["step"], row.get(f"eval_{name}")) for row in run.rows]
    known = [(run.flops * step / steps, value) for step, value in points if step and value is not None]
    return [flops for flops, _ in known], [value for _, value in known]
