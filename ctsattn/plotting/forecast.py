"""Pictures of forecasts and of their cross-validation, at true timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ctsattn.plotting.frames import Columns, as_pandas, bands, broken_at, cells, holes
from ctsattn.plotting.style import (
    BLUE,
    CYCLE,
    GREY,
    INK,
    MARKERS,
    PAPER,
    VERMILION,
    TimeAxis,
    legend_below,
    panels,
)

# Up to so many observations in a panel, each one is drawn as a dot: sampling should be seen.
_DOTS = 300
# Unless the caller says, a history is drawn over so many spans of the forecast, and so many rows at least.
_HISTORY_SPANS, _FEWEST = 4.0, 30


@dataclass(frozen=True)
class _Panel:
    """One series of one target: where it is drawn, on which clock, under which names."""

    ax: Axes
    axis: TimeAxis
    columns: Columns
    target: str

    def points(self, frame: pd.DataFrame, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Positions and values of the rows where `column` is known."""
        values = pd.to_numeric(frame[column]).to_numpy(np.float64, na_value=np.nan)
        known = np.isfinite(values)
        return self.axis.numbers(frame[self.columns.time])[known], values[known]


def plot_forecast(
    history: Any,
    forecast: Any = None,
    truth: Any = None,
    *,
    id_col: str = "unique_id",
    time_col: str = "ds",
    target_col: str | Sequence[str] = "y",
    model: str = "ctsattn",
    ids: Sequence[Any] | None = None,
    max_series: int = 6,
    last: int | None = None,
    title: str | None = None,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Draw history, forecast, bands and, if known, what came, each at its own timestamps.

    Long gaps in the record are shaded and no line crosses them. One panel per series and target.

    Args:
        history: Long frame of observations, as given to `Forecaster.fit`.
        forecast: Long frame from `Forecaster.predict`; bands are drawn for every
            `model-lo-*`/`model-hi-*` or mirrored `model-q*` pair of columns. None draws the history alone.
        truth: Long frame of the values that came after the history; optional.
        id_col: Column that names the series; may be absent.
        time_col: Column of the timestamps: datetimes of any zone, timedeltas or numbers.
        target_col: Column of the values, or several.
        model: Column of the point forecast.
        ids: Series to draw; None draws the first `max_series`.
        max_series: Most panels to draw; the title says what is left out.
        last: Draw only so many observations of each history; None draws four times the forecast's span.
        title: Title of the figure.
        figsize: Width and height in inches.

    Returns:
        The figure. It opens no window; a notebook shows it, `savefig` writes it.

    Raises:
        ValueError: If a column is missing, or no series is left to draw.
        TypeError: If a frame is no data frame.

    Examples:
        >>> import pandas as pd
        >>> days = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-05", "2024-01-06"])
        >>> history = pd.DataFrame({"ds": days[:3], "y": [1.0, 2.0, 4.0]})
        >>> forecast = pd.DataFrame({"ds": days[3:], "ctsattn": [5.0]})
        >>> figure = plot_forecast(history, forecast)
        >>> len(figure.axes)
        1
    """
    columns = Columns(id_col, time_col, target_col, model)
    past = cells(as_pandas(history, "history", [time_col, *columns.targets]), columns)
    ahead = {} if forecast is None else cells(as_pandas(forecast, "forecast", [time_col, model]), columns)
    known = {} if truth is None else cells(as_pandas(truth, "truth", [time_col, *columns.targets]), columns)
    shown, left_out = _choose(list(past if forecast is None else ahead), ids, max_series)
    figure, axes = panels(len(shown), columns=1 if len(shown) <= 3 else 2, figsize=figsize)
    for ax, key in zip(axes, shown, strict=True):
        panel = _Panel(ax, TimeAxis((ahead if key in ahead else past)[key][time_col]), columns, key[1])
        before = _recent(panel, past.get(key), ahead.get(key), last)
        if before is not None:
            _draw_history(panel, before)
        if key in ahead:
            _draw_forecast(panel, ahead[key], before)
        if key in known:
            _draw_truth(panel, known[key])
        panel.axis.label(ax, time_col)
        ax.set_title(_name(key, len(columns.targets)), loc="left")
    _finish(figure, axes, title, left_out)
    return figure


def plot_cross_validation(
    cv: Any,
    history: Any = None,
    *,
    id_col: str = "unique_id",
    time_col: str = "ds",
    target_col: str | Sequence[str] = "y",
    cutoff_col: str = "cutoff",
    model: str = "ctsattn",
    ids: Sequence[Any] | None = None,
    max_series: int = 6,
    last: int | None = None,
    title: str | None = None,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Draw the forecasts of a cross-validation over the truth, with a mark at each cutoff.

    Args:
        cv: Long frame from `Forecaster.cross_validation`: time, cutoff, truth, forecast, bands.
        history: Long frame of observations to draw before and between the windows; optional.
        id_col: Column that names the series; may be absent.
        time_col: Column of the timestamps.
        target_col: Column of the true values, or several.
        cutoff_col: Column of the last moment that each forecast knew.
        model: Column of the point forecast.
        ids: Series to draw; None draws the first `max_series`.
        max_series: Most panels to draw; the title says what is left out.
        last: Draw only so many observations of each history; None draws all.
        title: Title of the figure.
        figsize: Width and height in inches.

    Returns:
        The figure; it opens no window.

    Raises:
        ValueError: If a column is missing, or no series is left to draw.
    """
    columns = Columns(id_col, time_col, target_col, model)
    known = [] if "variable" in getattr(cv, "columns", ()) else columns.targets
    windows = cells(as_pandas(cv, "cv", [time_col, cutoff_col, model, *known]), columns)
    past = (
        {} if history is None else cells(as_pandas(history, "history", [time_col, *columns.targets]), columns)
    )
    shown, left_out = _choose(list(windows), ids, max_series)
    figure, axes = panels(len(shown), columns=1 if len(shown) <= 3 else 2, figsize=figsize)
    for ax, key in zip(axes, shown, strict=True):
        frame = windows[key]
        truth = key[1] if key[1] in frame.columns else "y"
        before = past.get(key)
        before = before.tail(last) if before is not None and last is not None else before
        if before is None:
            before = frame.drop_duplicates(time_col).rename(columns={truth: key[1]})
        panel = _Panel(ax, TimeAxis(frame[time_col]), columns, key[1])
        _draw_history(panel, before)
        for place, (cutoff, window) in enumerate(frame.groupby(cutoff_col, sort=True)):
            colour = CYCLE[place % 2]
            ax.axvline(
                panel.axis.numbers([cutoff])[0],
                color=GREY,
                linewidth=0.9,
                linestyle=(0, (3, 2)),
                label="cutoff",
            )
            _draw_window(panel, window, colour, MARKERS[place % 2])
        panel.axis.label(ax, time_col)
        ax.set_title(_name(key, len(columns.targets)), loc="left")
    _finish(figure, axes, title, left_out)
    return figure


def _choose(
    keys: list[tuple[Any, str]], ids: Sequence[Any] | None, most: int
) -> tuple[list[tuple[Any, str]], int]:
    """Pick the panels to draw and count those left out."""
    if ids is not None:
        unknown = [wanted for wanted in ids if all(wanted != key[0] for key in keys)]
        if unknown:
            some = [key[0] for key in keys[:3]]
            raise ValueError(f"No series {unknown[0]!r} to draw; there are {len(keys)}, such as {some}.")
        keys = [key for wanted in ids for key in keys if key[0] == wanted]
    if not keys:
        raise ValueError("There is no series to draw: the frame has no row.")
    return keys[:most], max(0, len(keys) - most)


def _recent(
    panel: _Panel, past: pd.DataFrame | None, ahead: pd.DataFrame | None, last: int | None
) -> pd.DataFrame | None:
    """The end of a history that is drawn: `last` rows, or a span that leaves a fifth to the forecast."""
    if past is None or (last is None and ahead is None):
        return past
    if last is not None or ahead is None:
        return past.tail(last if last is not None else len(past))
    time_col = panel.columns.time
    x, asked = panel.axis.numbers(past[time_col]), panel.axis.numbers(ahead[time_col])
    if not len(x):
        return past
    start = x[-1] - _HISTORY_SPANS * max(asked.max() - x[-1], asked.max() - asked.min())
    few = x[max(0, len(x) - _FEWEST)]
    return past[x >= min(start, few, asked.min())]


def _name(key: tuple[Any, str], num_targets: int) -> str:
    """Title of a panel: the series, and the target where there are several."""
    parts = [] if key[0] is None else [str(key[0])]
    return " · ".join([*parts, key[1]] if num_targets > 1 or key[0] is None else parts)


def _finish(figure: Figure, axes: Sequence[Axes], title: str | None, left_out: int) -> None:
    """Add the legend and a title that says when series were left out."""
    legend_below(figure, axes)
    note = f"{left_out} more series not drawn" if left_out else ""
    words = " — ".join(part for part in (title, note) if part)
    if words:
        figure.suptitle(words, fontsize=11.5, color=INK)


def _draw_history(panel: _Panel, frame: pd.DataFrame) -> None:
    """Draw observations joined by straight lines, as the operator reads them, and shade the holes."""
    x, y = panel.points(frame, panel.target)
    breaks = holes(x)
    for start, end in breaks:
        panel.ax.axvspan(start, end, color=PAPER, linewidth=0, label="no observations", zorder=0)
    style = {"marker": "o", "markersize": 2.4, "markeredgewidth": 0} if len(x) <= _DOTS else {}
    panel.ax.plot(*broken_at(x, y, breaks), color=INK, linewidth=0.9, label="observed", **style)


def _draw_forecast(panel: _Panel, frame: pd.DataFrame, before: pd.DataFrame | None) -> None:
    """Draw the forecast with its bands, and a line at the last moment known."""
    if before is not None and len(before):
        cutoff = panel.axis.numbers(before[panel.columns.time].tail(1))[0]
        if (panel.axis.numbers(frame[panel.columns.time]) > cutoff).all():
            panel.ax.axvline(cutoff, color=GREY, linewidth=0.9, linestyle=(0, (3, 2)))
    _draw_window(panel, frame, BLUE, MARKERS[0])


def _draw_window(panel: _Panel, frame: pd.DataFrame, colour: str, marker: str) -> None:
    """Draw one run of forecasts: bands from the widest in, then the line; few points get marks."""
    model = panel.columns.model
    x = panel.axis.numbers(frame[panel.columns.time])
    found = bands(frame, model)
    for place, (level, low, high) in enumerate(found):
        opacity = 0.18 + 0.17 * place / max(1, len(found) - 1)
        lower, upper = frame[low].to_numpy(np.float64), frame[high].to_numpy(np.float64)
        label = f"{level:g} % band" if colour == BLUE else None
        panel.ax.fill_between(x, lower, upper, color=colour, alpha=opacity, linewidth=0, label=label)
    dots = {"marker": marker, "markersize": 3.2} if len(x) <= 60 else {}
    label = "forecast" if colour == BLUE else "from the next cutoff"
    panel.ax.plot(x, frame[model].to_numpy(np.float64), color=colour, linewidth=1.5, label=label, **dots)


def _draw_truth(panel: _Panel, frame: pd.DataFrame) -> None:
    """Draw what came: hollow marks, so that the forecast under them stays visible."""
    x, y = panel.points(frame, panel.target)
    size = 3.6 if len(x) <= 120 else 2.6
    panel.ax.plot(
        x,
        y,
        "o",
        color=VERMILION,
        markersize=size,
        markerfacecolor="white",
        markeredgewidth=0.9,
        label="what came",
    )
