"""Figures of the verdict from the committed rows: a forest of data sets, and the dose of irregularity.

python -m experiments.hypotheses.figures
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ctsattn.plotting.style import BLUE, CYCLE, GREY, INK, VERMILION, legend_below, panels
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.control_figures import FIGURES
from experiments.hypotheses.control_figures import draw as draw_controls
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.rows import conditions, ratios, read, tested
from experiments.hypotheses.statistics import Interval, bootstrap, slope


def draw(rows: pd.DataFrame, plan: Plan, folder: Path = FIGURES) -> list[Path]:
    """Write every figure that there are rows for; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    return [*draw_controls(rows, folder), forest(rows, plan, folder), dose(rows, plan, folder)]


def forest(rows: pd.DataFrame, plan: Plan, folder: Path) -> Path:
    """Every data set of the primary contrasts with its interval, and the mean over them."""
    contrasts = plan.tables["contrasts"]
    figure, axes = panels(len(contrasts), columns=len(contrasts), figsize=(11.5, 5.2))
    for ax, facts in zip(axes, contrasts, strict=True):
        table, names = tested(rows, facts["regime"]), conditions(plan, facts["conditions"])
        found = ratios(table, facts["arm"], facts["baseline"], names, list(plan.tables["data"]))
        _branches(ax, found, plan.tables["study"]["margin_percent"])
        pair = f"{_NAMES[facts['arm']]} / {_NAMES[facts['baseline']]}"
        ax.set_title(f"{facts['name']}, {facts['conditions']}: {pair}", fontsize=10)
        ax.set_xlabel("change of test MSE, percent")
    path = folder / "forest.png"
    figure.savefig(path, dpi=120)
    return path


_NAMES = {"A0": "softmax", "A1": "trapezoid", "A3": "unit gaps", "A4": "real gaps"}


def _branches(ax: Axes, found: pd.DataFrame, margin: float) -> None:
    """One line for each data set, seeds and stretches of time drawn anew; the mean over all at the foot."""
    single = {name: bootstrap(part, draws=4000) for name, part in found.groupby("data")}
    order = sorted(single, key=lambda name: single[name].mean, reverse=True)
    _interval(ax, 0, Finding.of("all", found).interval, VERMILION)
    for place, name in enumerate(order, start=1):
        _interval(ax, place, single[name], BLUE)
    ax.axvspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0)
    ax.axvline(0.0, color=GREY, linewidth=0.8)
    ax.set_yticks(range(len(order) + 1), ["all sets", *order])
    widest = max(abs(end) for interval in single.values() for end in interval.percent())
    ax.set_xlim(-1.05 * widest, 1.05 * widest)
    ax.grid(False)


def _interval(ax: Axes, place: int, interval: Interval, colour: str) -> None:
    mean, low, high = interval.percent()
    ax.plot([low, high], [place, place], color=colour, linewidth=1.6)
    ax.plot([mean], [place], "o", color=colour, markersize=4.5)


def dose(rows: pd.DataFrame, plan: Plan, folder: Path) -> Path:
    """Mean log ratio under each condition against the irregularity of the gaps, and the slope within sets."""
    names = conditions(plan, "regular", "irregular", "unseen")
    arms = [("A4", "A0"), ("A4", "A1")]
    figure, axes = panels(len(arms), columns=len(arms), figsize=(11.5, 4.4))
    for ax, (arm, baseline) in zip(axes, arms, strict=True):
        found = ratios(tested(rows, "thinned"), arm, baseline, names, list(plan.tables["data"]))
        for kind, colour in zip(("regular", "irregular", "unseen"), CYCLE, strict=False):
            part = found[found["condition"].isin(conditions(plan, kind))]
            means = part.groupby(["data", "condition"])[["r", "irregularity"]].mean()
            percent = 100 * np.expm1(means["r"])
            ax.plot(means["irregularity"], percent, "o", color=colour, markersize=3.5, alpha=0.7, label=kind)
        fitted, _ = slope(found, "irregularity")
        span = np.array([0.0, found["irregularity"].max()])
        centre = found["r"].mean() - fitted.mean * found["irregularity"].mean()
        ax.plot(span, 100 * np.expm1(centre + fitted.mean * span), color=INK, label="slope within data sets")
        ax.axhline(0.0, color=GREY, linewidth=0.8)
        ax.set(title=f"{_NAMES[arm]} / {_NAMES[baseline]}", xlabel="coefficient of variation of the gaps")
    axes[0].set_ylabel("change of test MSE, percent")
    legend_below(figure, axes)
    path = folder / "dose.png"
    figure.savefig(path, dpi=120)
    return path


def main() -> int:
    """Draw from the committed rows."""
    for path in draw(read(), Plan.read()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
