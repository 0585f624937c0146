"""Figures of the controls from the committed rows: loss curves, as in the post, and switches.

python -m experiments.hypotheses.control_figures
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctsattn.plotting.style import CYCLE, GREY, INK, legend_below, panels
from experiments.hypotheses.claims import h6_switch
from experiments.hypotheses.rows import RESULTS, read

FIGURES = RESULTS / "figures"
_LABELS = {
    "A0": "softmax",
    "A3": "continuous, unit gaps",
    "A0-none": "softmax, no positions",
    "A3-none": "continuous, no positions",
    "A2": "first order",
    "A5": "learned key filter",
}
_MOMENTS = ("before", "after", "after-1", "after-10")
_PLACES = (-1.0, 0.0, 1.0, 10.0)  # percent of the training since the switch


def draw(rows: pd.DataFrame, folder: Path = FIGURES) -> list[Path]:
    """Write every figure that there are rows for; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    return [*_curves(rows, folder), *_switches(rows, folder)]


def _curves(rows: pd.DataFrame, folder: Path) -> Iterator[Path]:
    """Validation loss against the step, and the ratio to softmax, a row of panels for each data set."""
    found = rows[rows["experiment"].isin(["text", "series"]) & rows["split"].eq("val") & rows["step"].gt(0)]
    names = list(found["data"].unique())
    if not names:
        return
    figure, axes = panels(2 * len(names), columns=2)
    for name, (left, right) in zip(names, zip(axes[::2], axes[1::2], strict=True), strict=True):
        here = found[found["data"].eq(name)]
        factor = 1 / math.log(2) if here["metric"].eq("nats").all() else 1.0
        mean = here.pivot_table("value", "step", "arm") * factor
        for colour, arm in ((c, a) for c, a in zip(CYCLE, _LABELS, strict=True) if a in mean):
            line = mean[arm].dropna()  # arms that are switched are looked at more often
            left.plot(line.index, line, color=colour, label=_LABELS[arm])
            _ratio_to_softmax(right, here, arm, colour)
        unit = "bits per character" if factor != 1.0 else "MSE"
        left.set(title=f"{name}: validation loss", xscale="log", xlabel="step", ylabel=unit)
        right.set(
            title=f"{name}: ratio to softmax",
            xscale="log",
            xlabel="step",
            ylabel="percent",
        )
        right.axhline(0.0, color=GREY, linewidth=0.8)
    legend_below(figure, axes, columns=3)
    path = folder / "loss_curves.png"
    figure.savefig(path, dpi=120)
    yield path


def _ratio_to_softmax(ax: Axes, here: pd.DataFrame, arm: str, colour: str) -> None:
    """Mean over seeds of the ratio to softmax with the same positions, in percent, with twice its error."""
    baseline = "A0-none" if arm.endswith("-none") else "A0"
    if arm == baseline:
        return
    table = here.pivot_table("value", "step", ["arm", "seed"])
    percent = 100 * np.log(table[arm] / table[baseline]).dropna()
    mean, error = percent.mean(axis=1), 2 * percent.std(axis=1) / math.sqrt(percent.shape[1])
    ax.plot(mean.index, mean, color=colour, label=_LABELS[arm])
    ax.fill_between(mean.index, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def _switches(rows: pd.DataFrame, folder: Path) -> Iterator[Path]:
    """Loss around a switch at half of the training, in percent of the loss before, for each data set."""
    table = h6_switch.losses(rows)
    names = list(table["data"].unique())
    if not names:
        return
    figure, axes = panels(len(names), columns=min(3, len(names)))
    for ax, name in zip(axes, names, strict=True):
        here = table[table["data"].eq(name) & table["condition"].str.startswith("50-")]
        groups = list(here.groupby(["arm", "condition"]))
        colours = dict(zip(here["arm"].unique(), CYCLE, strict=False))
        for (arm, condition), group in groups:
            percent = 100 * np.log(group[list(_MOMENTS)].div(group["before"], axis=0))
            kept = condition.endswith("kept")
            label = f"{arm.replace('>', ' to ')}, {'state kept' if kept else 'reset'}"
            style = "-" if kept else "--"
            ax.plot(_PLACES, percent.mean(), style, color=colours[arm], marker="o", markersize=3, label=label)
        stayed = 100 * np.log(here["stayed-10"] / here["before"]).groupby(here["arm"].str[:2]).mean()
        for marker, (start, value) in zip(("x", "+"), stayed.items(), strict=False):
            ax.plot([10.0], [value], marker, color=INK, label=f"{start} not switched")
        ax.set(title=name, xlabel="percent of training since the switch", ylabel="change of loss, percent")
        ax.set_xticks(_PLACES, ["before", "0", "1", "10"])
    legend_below(figure, axes, columns=4)
    path = folder / "switches.png"
    figure.savefig(path, dpi=120)
    yield path


def main() -> int:
    """Draw from the committed rows."""
    for path in draw(read()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
