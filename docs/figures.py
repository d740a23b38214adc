"""Draw the curves of docs/curves.md from the metrics.jsonl of some runs, for light and for dark
pages.

python docs/figures.py docs/images "healthy=runs/sample-tiny" "discriminator at chance=runs/chance"
python docs/figures.py docs/images "shipped model=depth" --depth    # of score files, against
num_hidden_layers
"""

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt

from electra_albert.files import read_json
from electra_albert.training.monitor import read_metrics

WIDTH_INCHES = 4.5  # a phone shows the figure at four fifths of that, with 8-point text
STYLES = ["-", (0, (5, 1.5)), (0, (1.5, 1.2))]  # so that the lines differ without colours too
# Foreground, grid, baseline, and a colour for each run, on the page's own background.
SCHEMES = {
    "light": ("#333333", "#dddddd", "#666666", ["#1b6ca8", "#c8321f", "#8a5a00"]),
    "dark": ("#dddddd", "#444a55", "#aaaaaa", ["#6cb8f0", "#ff8a75", "#e6b450"]),
}


class Panel(NamedTuple):
    """One plot: a key of metrics.jsonl, and its baseline."""

    key: str
    title: str
    baseline: float | str  # a number, or the key that holds it
    baseline_label: str


PANELS = [
    Panel(
        "eval_generator_loss",
        "Generator loss, nats per masked token",
        "eval_unigram_loss",
        "token frequencies",
    ),
    Panel("eval_discriminator_auc", "Discriminator ROC-AUC", 0.5, "chance"),
    Panel(
        "discriminator_loss", "Discriminator loss in training, nats per token", math.log(2), "ln 2"
    ),
]
DEPTH = [Panel("detection", "Minimal pairs by the discriminator, accuracy", 0.5, "chance")]


def read_depths(folder: Path) -> list[dict[str, Any]]:
    """Scores by number of layers, from files written by `electra-albert score --pairs P
    --num_hidden_layers N`.
    """
    found = [read_json(file) for file in folder.glob("*.json")]
    rows = [
        {
            "step": one["options"]["num_hidden_layers"],
            **{head: of["mean"] for head, of in one["pairs"].items()},
        }
        for one in found
    ]
    return sorted(rows, key=lambda row: row["step"])


def draw(
    runs: dict[str, list[dict[str, Any]]],
    panels: list[Panel],
    x_label: str,
    scheme: str,
    path: Path,
) -> None:
    """Write one figure of all panels, each with a line for each run."""
    text, grid, base, colors = SCHEMES[scheme]
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = dict.fromkeys(names, text) | {
        "font.size": 10,
        "svg.hashsalt": "curves",
        "axes.titlesize": 10.5,
    }
    with mpl.rc_context(style):
        size = (WIDTH_INCHES, 2.15 * len(panels))
        figure, grid_of_axes = plt.subplots(len(panels), figsize=size, sharex=True, squeeze=False)
        axes = grid_of_axes[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            for (label, rows), color, line in zip(runs.items(), colors, STYLES, strict=False):
                points = [
                    (row["step"], row[panel.key]) for row in rows if row.get(panel.key) is not None
                ]
                axis.plot(
                    *zip(*points, strict=True),
                    color=color,
                    linestyle=line,
                    linewidth=1.8,
                    label=label,
                )
            rows = next(iter(runs.values()))
            key = panel.baseline
            level = (
                next(row[key] for row in reversed(rows) if key in row)
                if isinstance(key, str)
                else key
            )
            axis.axhline(level, color=base, linewidth=1, zorder=1)
            note, where = f"{panel.baseline_label}: {level:.3g}", (0.99, level)
            spot = {
                "xycoords": ("axes fraction", "data"),
                "textcoords": "offset points",
                "ha": "right",
                "va": "top",
            }
            axis.annotate(note, where, (0, -3), color=base, fontsize=9, **spot)
            axis.set_title(panel.title, loc="left", pad=4)
            axis.grid(color=grid, linewidth=0.6)
            axis.margins(y=0.15)  # room for the label
            axis.spines[["top", "right"]].set_visible(False)
        axes[-1].set_xlabel(x_label)
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="upper left",
            ncols=1,
            frameon=False,
            labelcolor=text,
        )
        figure.tight_layout(
            rect=(0, 0, 1, 1 - 0.102 / len(panels) * len(runs)), h_pad=0.9
        )  # the legend above
        figure.savefig(
            path,
            transparent=True,
            metadata={"Date": None} if path.suffix == ".svg" else {},
            dpi=200,
        )
        plt.close(figure)


def main() -> None:
    """Read the runs and write curves-light and curves-dark, or depth-light and depth-dark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="folder of the figures")
    parser.add_argument(
        "runs", nargs="+", metavar="LABEL=FOLDER", help="runs to draw, in the order of the legend"
    )
    parser.add_argument("--format", default="svg", choices=["svg", "png"])
    parser.add_argument(
        "--depth", action="store_true", help="the folders hold scores by number of layers"
    )
    options = parser.parse_args()
    named = [run.rpartition("=") for run in options.runs]
    if options.depth:
        runs = {label: read_depths(Path(folder)) for label, _, folder in named}
    else:
        runs = {label: read_metrics(Path(folder) / "metrics.jsonl") for label, _, folder in named}
    name, panels, x_label = (
        ("depth", DEPTH, "layers") if options.depth else ("curves", PANELS, "step")
    )
    options.output.mkdir(parents=True, exist_ok=True)
    for scheme in SCHEMES:
        draw(runs, panels, x_label, scheme, options.output / f"{name}-{scheme}.{options.format}")


if __name__ == "__main__":
    main()
