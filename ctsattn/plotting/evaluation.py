"""Pictures of how good forecasts are: calibration, error by elapsed time, losses of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ctsattn.plotting.frames import as_pandas, levels_below
from ctsattn.plotting.style import CYCLE, GREY, INK, MARKERS, TimeAxis, legend_below, panels, parse_text


def plot_calibration(
    cv: Any,
    *,
    time_col: str = "ds",
    target_col: str = "y",
    cutoff_col: str = "cutoff",
    model: str = "ctsattn",
    parts: int = 3,
    figsize: tuple[float, float] = (5.6, 5.4),
) -> Figure:
    """Draw how often the truth fell below each forecast quantile, near and far from the cutoff.

    A calibrated forecast lies on the diagonal: of all values, a share `p` falls below the `p` quantile.

    Args:
        cv: Long frame from `Forecaster.cross_validation` with `level=` or `quantiles=`.
        time_col: Column of the timestamps.
        target_col: Column of the true values.
        cutoff_col: Column of the last moment that each forecast knew.
        model: Stem of the forecast columns.
        parts: Number of equal shares of elapsed time, each a line of its own; 1 draws one line.
        figsize: Width and height in inches.

    Returns:
        The figure; it opens no window.

    Raises:
        ValueError: If a column is missing, or the frame holds no quantile besides the median.
    """
    frame = as_pandas(cv, "cv", [time_col, cutoff_col, target_col])
    frame = frame[frame[target_col].notna()]
    columns = levels_below(frame, model)
    if len(columns) < 2:
        raise ValueError(
            f"`cv` holds no quantiles of {model!r}. "
            "Forecast with level=[50, 80] or quantiles=[0.1, 0.5, 0.9]."
        )
    levels = np.array(list(columns))
    elapsed, unit = _elapsed(frame, time_col, cutoff_col)
    figure, (ax,) = panels(1, figsize=figsize)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (3, 2)), label="calibrated")
    for place, (name, rows) in enumerate(_shares(elapsed, unit, parts)):
        below = [(frame[target_col][rows] <= frame[column][rows]).mean() for column in columns.values()]
        ax.plot(
            levels, below, color=CYCLE[place], marker=MARKERS[place], markersize=4, linewidth=1.4, label=name
        )
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set_xlabel("quantile that was forecast", fontsize=9)
    ax.set_ylabel("share of values below it", fontsize=9)
    legend_below(figure, [ax], columns=2)
    return figure


def plot_error_by_elapsed(
    cv: Any,
    *,
    time_col: str = "ds",
    target_col: str = "y",
    cutoff_col: str = "cutoff",
    models: Sequence[str] = ("ctsattn",),
    bins: int = 10,
    figsize: tuple[float, float] = (7.2, 3.8),
) -> Figure:
    """Draw the mean absolute error against the time that passed since the cutoff.

    The step number says little where steps differ in length; elapsed time compares what is alike.

    Args:
        cv: Long frame from `Forecaster.cross_validation`, or several such joined by columns.
        time_col: Column of the timestamps.
        target_col: Column of the true values.
        cutoff_col: Column of the last moment that each forecast knew.
        models: Forecast columns to compare.
        bins: Number of stretches of elapsed time, each with about as many rows.
        figsize: Width and height in inches.

    Returns:
        The figure, with two standard errors of the mean as a band, as if rows were independent.

    Raises:
        ValueError: If a column is missing.
    """
    frame = as_pandas(cv, "cv", [time_col, cutoff_col, target_col, *models])
    elapsed, unit = _elapsed(frame, time_col, cutoff_col)
    stretch = pd.qcut(elapsed, min(bins, len(np.unique(elapsed))), labels=False, duplicates="drop")
    figure, (ax,) = panels(1, figsize=figsize)
    for place, model in enumerate(models):
        error = (frame[target_col].astype(float) - frame[model]).abs().to_numpy()
        table = (
            pd.DataFrame({"elapsed": elapsed, "error": error, "stretch": stretch}).dropna().groupby("stretch")
        )
        mean, spread = table["error"].mean(), 2 * table["error"].sem().fillna(0.0)
        middle = table["elapsed"].mean()
        ax.fill_between(middle, mean - spread, mean + spread, color=CYCLE[place], alpha=0.18, linewidth=0)
        ax.plot(
            middle, mean, color=CYCLE[place], marker=MARKERS[place], markersize=4, linewidth=1.5, label=model
        )
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"time since the cutoff ({unit})" if unit else "time since the cutoff", fontsize=9)
    ax.set_ylabel("mean absolute error", fontsize=9)
    legend_below(figure, [ax])
    return figure


def plot_losses(losses: Any, *, figsize: tuple[float, float] = (7.2, 3.6)) -> Figure:
    """Draw the losses of a fit against its steps.

    Args:
        losses: A fitted `Forecaster`, or a frame with a column `step` and one column per loss, as `train`
            and `val`; rows where a loss was not measured hold NaN. `Forecaster.losses_` is one.
        figsize: Width and height in inches.

    Returns:
        The figure, with a mark at the lowest point of each loss but the first; it opens no window.

    Raises:
        ValueError: If there is no column `step` or no loss, as after a fit of a model without parameters.

    Examples:
        >>> import numpy as np, pandas as pd
        >>> from ctsattn import Forecaster
        >>> from ctsattn.forecasting import Training
        >>> df = pd.DataFrame({"ds": np.arange(60.0), "y": np.sin(np.arange(60) / 3)})
        >>> training = Training(max_steps=4, validate_every=2)
        >>> figure = plot_losses(Forecaster(training=training, verbose=False).fit(df))
        >>> [line.get_label() for line in figure.axes[0].get_lines()][:2]
        ['train', 'val']
    """
    frame = as_pandas(getattr(losses, "losses_", losses), "losses", ["step"])
    names = [column for column in frame.columns if column != "step" and frame[column].notna().any()]
    if not names:
        raise ValueError(f"`losses` holds no loss beside 'step'; its columns are {list(frame.columns)}.")
    figure, (ax,) = panels(1, figsize=figsize)
    for place, name in enumerate(names):
        known = frame[frame[name].notna()]
        x, y = known["step"].to_numpy(np.float64), known[name].to_numpy(np.float64)
        few = len(x) <= 40
        ax.plot(
            x,
            y,
            color=CYCLE[place],
            linewidth=1.4,
            label=name,
            marker=MARKERS[place] if few else "",
            markersize=4,
        )
        if place > 0:
            _mark_lowest(ax, x, y, CYCLE[place])
    ax.set_xlabel("step", fontsize=9)
    ax.set_ylabel("loss", fontsize=9)
    legend_below(figure, [ax])
    return figure


def _mark_lowest(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64], colour: str) -> None:
    """Ring the lowest point of a loss: the weights that a fit keeps."""
    best = int(np.argmin(y))
    ax.plot(x[best], y[best], "o", color=colour, markersize=9, markerfacecolor="none", markeredgewidth=1.3)
    ax.annotate(
        f"{y[best]:.3g}", (x[best], y[best]), (0, 9), textcoords="offset points", fontsize=8.5, color=INK
    )


def _elapsed(frame: pd.DataFrame, time_col: str, cutoff_col: str) -> tuple[NDArray[np.float64], str]:
    """Time from cutoff to each row, as numbers, and their unit ("" where the clock has none)."""
    passed = parse_text(frame[time_col]) - parse_text(frame[cutoff_col])
    axis = TimeAxis(passed)
    return axis.numbers(passed), axis.unit


def _shares(elapsed: NDArray[np.float64], unit: str, parts: int) -> list[tuple[str, NDArray[np.bool_]]]:
    """Split rows into equal shares by elapsed time; each with a name that says its range."""
    if parts == 1:
        return [("all", np.ones(len(elapsed), dtype=bool))]
    edges = np.unique(np.quantile(elapsed, np.linspace(0, 1, parts + 1)))
    pairs = list(pairwise(edges))
    if not pairs:
        return [(" ".join(f"{_short(edges[0])} {unit} ahead".split()), np.ones(len(elapsed), dtype=bool))]
    rows = [
        (elapsed >= low if place == 0 else elapsed > low) & (elapsed <= high)
        for place, (low, high) in enumerate(pairs)
    ]
    names = [
        f"{_short(low)} to {_short(high)}" if place else f"up to {_short(high)}"
        for place, (low, high) in enumerate(pairs)
    ]
    names = [" ".join(f"{name} {unit} ahead".split()) for name in names]
    return list(zip(names, rows, strict=True))


def _short(number: float) -> str:
    """Two digits, or all before the point where there are more."""
    return f"{number:,.0f}" if 100 <= abs(number) < 1e6 else f"{number:.2g}"
