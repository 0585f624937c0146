"""Pictures of attention over real time: which past moments a forecast looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ctsattn.plotting.attention import AttentionDensity, AttentionShares, watch_attention
from ctsattn.plotting.frames import Columns, as_pandas, cells
from ctsattn.plotting.style import CYCLE, GREY, INK, MARKERS, TimeAxis, legend_below, panels

_READABLE = ("continuous", "softmax")  # mixers whose weights over the past can be drawn


def plot_attention_density(
    density: AttentionDensity | AttentionShares,
    *,
    names: Sequence[str] | None = None,
    signal: tuple[Sequence[float], Sequence[float]] | None = None,
    heads: bool = False,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Draw a density over its own clock, under the signal that was attended to.

    Args:
        density: From `attention_density` or `attention_shares`, of `[heads, queries, points]`.
        names: One label a query; None numbers them.
        signal: Times and values of the observations, drawn above; None draws the density alone.
        heads: Draw each head as a thin line too.
        figsize: Width and height in inches.

    Returns:
        The figure; it opens no window.
    """
    names = names or [f"query {place}" for place in range(density.values.shape[1])]
    figure, axes = panels(2 if signal is not None else 1, figsize=figsize)
    if signal is not None:
        axes[0].plot(*signal, color=INK, linewidth=0.9, marker="o", markersize=2.6, label="observed")
        _share_clock(axes)
    _draw_density(axes[-1], density, names, heads)
    axes[-1].set_xlabel("time", fontsize=9, color=INK)
    legend_below(figure, axes, columns=3)
    return figure


def plot_attention(
    forecaster: Any,
    df: Any,
    times: Sequence[Any],
    *,
    series: Any = None,
    layer: int = -1,
    heads: bool = False,
    figsize: tuple[float, float] | None = None,
) -> Figure:
    """Draw which past moments a forecast looked at, as a density over real time.

    Continuous attention has such a density; softmax attention gives each token a share, drawn as a line at
    its time.

    Args:
        forecaster: A fitted `Forecaster` whose model reads the past with continuous or softmax attention.
        df: History to forecast from.
        times: A few moments after its end to forecast; one colour each.
        series: Series of `df` to look at; None takes its first.
        layer: Which layer of the decoder, counted as in a list.
        heads: Draw each head as a thin line too, not only their mean.
        figsize: Width and height in inches.

    Returns:
        The figure: history and forecasts above, the density below, on one clock. It opens no window.

    Raises:
        ValueError: If the model reads with another operator, or a time is not after the history.

    Examples:
        >>> import numpy as np, pandas as pd
        >>> from ctsattn import Forecaster
        >>> from ctsattn.forecasting import Training
        >>> df = pd.DataFrame({"ds": np.arange(60.0), "y": np.sin(np.arange(60) / 3)})
        >>> forecaster = Forecaster(training=Training(max_steps=2), verbose=False).fit(df)
        >>> figure = plot_attention(forecaster, df, [61.0, 65.0])
        >>> len(figure.axes)
        2
    """
    fitted = forecaster.fitted_
    if getattr(fitted.config, "mixer", None) not in _READABLE:
        raise ValueError(
            f"What a forecast looked at is known of the mixers {' and '.join(_READABLE)}: "
            "fit with models.ContinuousTransformer(mixer='continuous')."
        )
    rows, columns = _rows_of(forecaster, df, series)
    with watch_attention(fitted.network) as readings:
        forecast = as_pandas(forecaster.predict(df=rows, times=list(times)), "forecast", [columns.time])
    axis = TimeAxis(forecast[columns.time])
    cutoff = axis.numbers(rows.loc[rows[columns.targets[0]].notna(), columns.time]).max()
    asked = axis.numbers(forecast[columns.time].drop_duplicates())
    if (asked <= cutoff).any():
        raise ValueError("A forecast looks back from after the end of the history; ask for later times.")
    unit = fitted.spec.time_unit / axis.unit_seconds
    density = _of_times(readings[layer].density(row=0), fitted.network, (asked - cutoff) / unit)
    figure, axes = panels(2, figsize=figsize)
    moments = cutoff + density.times * unit
    counted_in, size = axis.unit_of_density(float(np.ptp(moments)))
    per_unit = 1.0 if isinstance(density, AttentionShares) else size / unit
    density = replace(density, times=moments, values=density.values * per_unit)
    _draw_signal(axes[0], axis, rows, forecast, columns, float(moments.min()))
    _draw_density(axes[1], density, _labels(forecast[columns.time].drop_duplicates()), heads, counted_in)
    _share_clock(axes)
    axis.label(axes[1], columns.time)
    legend_below(figure, axes[1:], columns=3)
    return figure


def _of_times(
    density: AttentionDensity | AttentionShares, network: Any, elapsed: NDArray[np.float64]
) -> AttentionDensity | AttentionShares:
    """The curves of asked times, which share that of their stretch where questions are stretches of time."""
    if getattr(network, "stretches", None) is None:
        return density
    which = network.stretches.number(torch.as_tensor(elapsed)).numpy()
    return replace(density, values=density.values[:, which], on_sink=density.on_sink[:, which])


def _rows_of(forecaster: Any, df: Any, series: Any) -> tuple[pd.DataFrame, Columns]:
    """History of one series, sorted by time, and the names of its columns."""
    source = forecaster.fitted_.schema.columns
    columns = Columns(str(source.id), source.time, list(source.targets))
    frame = as_pandas(df, "df", [columns.time, *columns.targets])
    found = cells(frame, columns)
    wanted = series if series is not None else next(iter(found))[0]
    if (wanted, columns.targets[0]) not in found:
        raise ValueError(f"No series {wanted!r} in the history; it holds {[key[0] for key in found][:3]}.")
    return found[wanted, columns.targets[0]], columns


def _labels(times: pd.Series) -> list[str]:
    """Names of the asked moments, with no more detail than tells them apart."""
    if not pd.api.types.is_datetime64_any_dtype(times):
        return [f"for {time:.6g}" if isinstance(time, float) else f"for {time}" for time in times]
    days = times.dt.strftime("%Y-%m-%d")
    exact = times.dt.strftime("%Y-%m-%d %H:%M")
    return [f"for {name}" for name in (days if days.is_unique else exact)]


def _draw_signal(
    ax: Axes, axis: TimeAxis, rows: pd.DataFrame, forecast: pd.DataFrame, columns: Columns, start: float
) -> None:
    """Draw the part of a history that was looked at, and the forecasts in the colours of their densities."""
    target = columns.targets[0]
    x, y = axis.numbers(rows[columns.time]), rows[target].to_numpy(np.float64, na_value=np.nan)
    seen = (x >= start) & np.isfinite(y)
    style = {"marker": "o", "markersize": 2.4, "markeredgewidth": 0} if seen.sum() <= 300 else {}
    ax.plot(x[seen], y[seen], color=INK, linewidth=0.9, label="observed", **style)
    if "variable" in forecast.columns:
        forecast = forecast[forecast["variable"] == target]
    for place, (moment, value) in enumerate(
        zip(axis.numbers(forecast[columns.time]), forecast[columns.model], strict=True)
    ):
        colour = CYCLE[place % len(CYCLE)]
        ax.plot([moment], [value], MARKERS[place % len(MARKERS)], color=colour, markersize=7)
    ax.set_ylabel(target, fontsize=9)


def _draw_density(
    ax: Axes,
    density: AttentionDensity | AttentionShares,
    names: Sequence[str],
    heads: bool,
    counted_in: str = "unit of time",
) -> None:
    """Draw the mean over heads for each query, and say what share fell on the sink."""
    moments, mean, lost = density.times, density.values.mean(axis=0), density.on_sink.mean(axis=0)
    draw, what = (
        (_draw_shares, "share of attention")
        if isinstance(density, AttentionShares)
        else (_draw_curve, f"attention per {counted_in}")
    )
    for place, name in enumerate(names):
        label = f"{name} ({lost[place]:.0%} on the sink)" if lost[place] > 0.005 else name
        draw(ax, moments, mean[place], place, label)
        if heads:
            ax.plot(moments, density.values[:, place].T, color=_colour(place), linewidth=0.5, alpha=0.5)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(what, fontsize=9)
    ax.spines["left"].set_color(GREY)


def _colour(place: int) -> str:
    """Colour of a query."""
    return CYCLE[place % len(CYCLE)]


def _draw_curve(
    ax: Axes, moments: NDArray[np.float64], values: NDArray[np.float64], place: int, label: str
) -> None:
    """A density: a curve, filled below."""
    ax.fill_between(moments, 0, values, color=_colour(place), alpha=0.2, linewidth=0)
    ax.plot(moments, values, color=_colour(place), linewidth=1.3, label=label)


def _draw_shares(
    ax: Axes, moments: NDArray[np.float64], values: NDArray[np.float64], place: int, label: str
) -> None:
    """Shares of single moments: a line at each, with a mark of the query at its end."""
    ax.vlines(moments, 0, values, color=_colour(place), linewidth=0.9, alpha=0.5)
    ax.plot(moments, values, MARKERS[place % len(MARKERS)], color=_colour(place), markersize=3.2, label=label)


def _share_clock(axes: Sequence[Axes]) -> None:
    """Put the panels on one clock, labelled below."""
    axes[0].sharex(axes[-1])
    axes[0].tick_params(labelbottom=False)
