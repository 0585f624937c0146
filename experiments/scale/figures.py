"""Draw what the scripts of this folder measured: `python -m experiments.scale.figures`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from ctsattn.plotting.style import BLUE, CYCLE, GREY, INK, MARKERS, ORANGE, VERMILION, legend_below, panels
from experiments.scale.stamp import RESULTS

LIMIT = 4096  # MiB that the run of 50 million rows may hold
DPI = 130


def kills(table: pd.DataFrame, path: Path) -> None:
    """When each process was killed, and whether its result was that of one that was not."""
    phases = list(dict.fromkeys(table["phase"]))
    figure, (ax,) = panels(1, figsize=(8.0, 2.9))
    lane = table["phase"].map(phases.index)
    spread = (table.groupby("phase").cumcount() % 5 - 2) * 0.11  # so that no two marks hide each other
    for same, colour, marker, what in ((1, BLUE, "o", "same result"), (0, VERMILION, "X", "another result")):
        for hit, face, when in ((1, colour, "killed at work"), (0, "none", "killed after the work")):
            rows = (table["same_result"] == same) & (table["hit"] == hit)
            if rows.any():
                label = f"{when}: {what} ({rows.sum()})"
                at = table["after_seconds"][rows], (lane + spread)[rows]
                ax.scatter(*at, edgecolors=colour, facecolors=face, marker=marker, s=28, label=label)
    ax.set_yticks(range(len(phases)), phases)
    ax.grid(False, axis="y")
    ax.set(xlabel="seconds of work before kill -9", xscale="log", ylim=(len(phases) - 0.5, -0.5))
    lost = int((table["same_result"] == 0).sum())
    ax.set_title(
        f"{len(table)} kills, {int(table['hit'].sum())} in the midst of work, {lost} lost", loc="left"
    )
    legend_below(figure, [ax])
    figure.savefig(path, dpi=DPI)


def memory(curve: pd.DataFrame, path: Path) -> None:
    """Resident memory of the run over more rows than memory shall hold."""
    rows = int(pd.read_csv(path.with_suffix(".csv"))["rows"].iloc[0])
    figure, (ax,) = panels(1, figsize=(8.0, 3.3))
    minutes = curve["seconds"] / 60
    ax.plot(minutes, curve["resident_mib"] / 1024, color=BLUE, label="resident memory")
    files = curve["of_it_files_mib"] / 1024
    ax.fill_between(minutes, files, color=BLUE, alpha=0.2, linewidth=0, label="of it pages of files")
    ax.axhline(LIMIT / 1024, color=VERMILION, linestyle="--", label="limit of 4 GiB")
    change = minutes[(curve["phase"] == "predict").idxmax()]
    ax.axvline(change, color=GREY, linewidth=1)
    for text, side in (("fit ", "right"), (" predict to a folder", "left")):
        ax.annotate(text, (change, 4.15), ha=side, fontsize=9, color=INK)
    ax.set(xlabel="minutes", ylabel="GiB", ylim=(0, 4.6), xlim=(0, None))
    ax.set_title(f"{rows / 1e6:.0f} million rows from a Parquet folder, unsorted, on 2 cores", loc="left")
    legend_below(figure, [ax])
    figure.savefig(path, dpi=DPI)


def long_context(table: pd.DataFrame, path: Path) -> None:
    """Time and peak memory of one step by the length of the context."""
    figure, (time, memory) = panels(2, columns=2, figsize=(10.0, 3.8))
    time.set_yscale("log")
    memory.set_yscale("log", base=2)
    memory.yaxis.set_major_formatter("{x:g}")
    styles = zip(CYCLE, MARKERS, strict=True)
    for (what, rows), (colour, marker) in zip(table.groupby("what", sort=False), styles, strict=False):
        for ax, column in ((time, rows["seconds"]), (memory, rows["peak_mib"] / 1024)):
            ax.plot(rows["observations"], column, color=colour, marker=marker, markersize=5, label=what)
    lengths = sorted(set(table["observations"]))
    first = table[table["what"] == table["what"].iloc[0]].iloc[-1]
    for ax, name, largest, power, label in (
        (time, "seconds of forward and backward", first["seconds"], 2, "as the square of the length"),
        (memory, "peak GiB", first["peak_mib"] / 1024, 1, "as the length"),
    ):
        _in_powers_of_two(ax, lengths)
        ax.set_xlabel("observations in context")
        ax.set_title(name, loc="left")
        ideal = [0.6 * largest * (n / lengths[-1]) ** power for n in lengths]
        ax.plot(lengths, ideal, color=GREY, linestyle=":" if power == 2 else "--", label=label)
    legend_below(figure, [time, memory], columns=5)
    figure.savefig(path, dpi=DPI)


def _in_powers_of_two(ax: Axes, lengths: list[int]) -> None:
    """Ticks of a length at each power of two."""
    ax.set_xscale("log", base=2)
    names = [f"{n // 2**20} Mi" if n >= 2**20 else f"{n // 2**10} Ki" for n in lengths]
    ax.set_xticks(lengths, names)
    ax.set_xticks([], minor=True)


def speedup(table: pd.DataFrame, path: Path) -> None:
    """Windows a second of several devices, in those of one, for each size of the network."""
    key = ["width", "layers", "batches"]  # runs before a thread made batches name no way of making them
    table = table.assign(batches=table["batches"].fillna("between"))
    one = table[table["processes"] == 1].set_index(key)
    several = table[table["processes"] > 1].copy()
    size = pd.MultiIndex.from_frame(several[key])
    several["ratio"] = (
        several["windows_per_second"].to_numpy() / one["windows_per_second"].reindex(size).array
    )
    several["times"] = several["windows_of_a_step"].to_numpy() // one["windows_of_a_step"].reindex(size).array
    one = one.sort_index(ascending=False).sort_values("million_weights", kind="stable")
    sizes = list(one.index)
    figure, (ax,) = panels(1, figsize=(8.0, 3.9))
    bars = list(several.groupby(["strategy", "times"], sort=False))
    for number, ((strategy, times), rows) in enumerate(bars):
        at = [sizes.index(tuple(row)) for row in rows[key].itertuples(index=False)]
        place = [x + (number - (len(bars) - 1) / 2) * 0.8 / len(bars) for x in at]
        label = f"{strategy.upper()}, " + ("as many windows" if times == 1 else f"{times} times the windows")
        colour = BLUE if strategy == "ddp" else ORANGE
        drawn = ax.bar(
            place, rows["ratio"], 0.7 / len(bars), color=colour, alpha=1 / (3 - times), label=label
        )
        ax.bar_label(drawn, fmt="%.2f", fontsize=9, label_type="center", color="white" if times > 1 else INK)
    ax.axhline(1.8, color=VERMILION, linestyle="--", linewidth=1, label="asked: 1.8")
    names = [
        f"{w} wide, {n} layers\n{m:.1f} M weights\n{each} windows\nmade {made}"
        for (w, n, made), m, each in zip(
            one.index, one["million_weights"], one["windows_of_a_step"], strict=True
        )
    ]
    ax.set_xticks(range(len(sizes)), names)
    ax.set(ylabel="times the windows a second of one", ylim=(0, 2.2))
    ax.set_title("Two GPUs beside one, steps after warm-up", loc="left")
    legend_below(figure, [ax], columns=3)
    figure.savefig(path, dpi=DPI)


FIGURES: dict[str, tuple[str, Callable[[pd.DataFrame, Path], None]]] = {
    "kills": ("kills_[0-9].csv", kills),
    "memory": ("memory_curve.csv", memory),
    "long_context": ("long_context.csv", long_context),
    "speedup": ("speedup_*.csv", speedup),
}


def main() -> None:
    """Draw each figure whose rows are there."""
    for name, (pattern, draw) in FIGURES.items():
        tables = [pd.read_csv(path) for path in sorted(RESULTS.glob(pattern))]
        if tables:
            draw(pd.concat(tables, ignore_index=True), RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
