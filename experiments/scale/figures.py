"""Draw what the scripts of this folder measured: `python -m experiments.scale.figures`."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from experiments.scale.stamp import RESULTS


def kills(table: pd.DataFrame, path: Path) -> None:
    """When each process was killed, and whether its result was that of one that was not."""
    phases = list(dict.fromkeys(table["phase"]))
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    for same, colour, label in ((1, "C0", "same result, to the bit"), (0, "C3", "another result")):
        rows = table[table["same_result"] == same]
        at_work = rows["hit"] == 1
        height = rows["phase"].map(phases.index)
        if len(rows):
            axes.scatter(
                rows["after_seconds"][at_work], height[at_work], c=colour, marker="|", s=220, label=label
            )
            late = ~at_work
            axes.scatter(
                rows["after_seconds"][late], height[late], edgecolors=colour, facecolors="none", s=30
            )
    axes.set_yticks(range(len(phases)), phases)
    axes.set(xlabel="seconds of work before kill -9", xscale="log", ylim=(-0.6, len(phases) - 0.4))
    lost = int((table["same_result"] == 0).sum())
    axes.set_title(f"{len(table)} kills, {int(table['hit'].sum())} in the midst of work, {lost} lost")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=120)


def long_context(table: pd.DataFrame, path: Path) -> None:
    """Time and peak memory of one step by the length of the context."""
    figure, (time, memory) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for what, rows in table.groupby("what", sort=False):
        time.plot(rows["observations"], rows["seconds"], "o-", label=what)
        memory.plot(rows["observations"], rows["peak_mib"] / 1024, "o-", label=what)
    for axes, name in ((time, "seconds, forward and backward"), (memory, "peak GiB")):
        axes.set(xlabel="observations in context", ylabel=name, xscale="log", yscale="log")
    first, last = table["observations"].min(), table["observations"].max()
    base = float(memory.get_lines()[0].get_ydata()[0])  # pyright: ignore[reportIndexIssue]
    memory.plot([first, last], [base, base * last / first], "--", color="0.6", label="linear")
    memory.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Draw each figure whose rows are there."""
    for name, pattern, draw in (
        ("kills", "kills_[0-9].csv", kills),
        ("long_context", "long_context.csv", long_context),
    ):
        tables = [pd.read_csv(path) for path in sorted(RESULTS.glob(pattern))]
        if tables:
            draw(pd.concat(tables, ignore_index=True), RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
