"""Colours, figures and time axes that every picture of the package shares."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import dates as mdates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Okabe and Ito's palette: told apart with every common kind of colour blindness, and in grey.
BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
)
INK, GREY, PAPER = "#222222", "#7A7A7A", "#ECECEC"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P")

_PANEL_INCHES = (8.0, 2.9)
_HANDLE_INCHES, _LETTER_INCHES = 0.6, 0.07  # of an entry of a legend
_SECONDS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0), ("milliseconds", 1e-3))
_YEAR = ("years", 365.25 * 86400.0)


class Picture(Figure):
    """A figure that a notebook shows by itself; it belongs to no window and no pyplot state."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def panels(
    count: int, columns: int = 1, figsize: tuple[float, float] | None = None
) -> tuple[Picture, list[Axes]]:
    """Make a figure of `count` equal panels in rows of `columns`, with the house style on each.

    Args:
        count: Number of panels, at least 1.
        columns: Panels side by side.
        figsize: Width and height in inches; None takes a size that keeps labels readable.

    Returns:
        The figure and its axes in reading order.
    """
    rows = math.ceil(count / columns)
    if figsize is None:
        width = _PANEL_INCHES[0] if columns == 1 else 5.2 * columns
        figsize = (width, 0.5 + _PANEL_INCHES[1] * rows)
    figure = Picture(figsize=figsize, layout="constrained", facecolor="white")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    for ax in axes:
        _dress(ax)
    return figure, axes


def _dress(ax: Axes) -> None:
    """Take away what carries no information and make the rest readable."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(colors=INK, labelsize=9, length=3)
    ax.grid(True, axis="y", color=PAPER, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.title.set_fontsize(10.5)


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """Put one legend, with each label once, under all panels: it never covers data."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        fit = _columns_that_fit([len(label) for label in entries], columns, figure.get_figwidth())
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=fit,
            frameon=False,
            fontsize=9,
        )


def _columns_that_fit(letters: Sequence[int], most: int, inches: float) -> int:
    """Most columns in which the entries of a legend, filled column by column, fit the width of a figure."""
    for columns in range(min(most, len(letters)), 1, -1):
        rows = math.ceil(len(letters) / columns)
        widths = [max(letters[place : place + rows]) for place in range(0, len(letters), rows)]
        if sum(_HANDLE_INCHES + _LETTER_INCHES * width for width in widths) <= inches:
            return columns
    return 1


class TimeAxis:
    """Turns one kind of timestamp into numbers for matplotlib, and labels an axis with it.

    Datetimes keep their zone: positions are instants, labels are wall-clock time in that zone.
    Timedeltas become numbers of the largest unit that suits their span. Numbers stay.
    """

    def __init__(self, times: pd.Series) -> None:
        times = parse_text(times)
        self.zone = getattr(times.dt, "tz", None) if pd.api.types.is_datetime64_any_dtype(times) else None
        self.is_date = pd.api.types.is_datetime64_any_dtype(times)
        # Seconds, or units of a numeric clock, in one unit of the axis; matplotlib counts dates in days.
        self.unit, self.unit_seconds = "", 86400.0 if self.is_date else 1.0
        if pd.api.types.is_timedelta64_dtype(times):
            span = abs(times.max() - times.min()) / pd.Timedelta(seconds=1) if len(times) else 1.0
            self.unit, self.unit_seconds = next(
                ((name, size) for name, size in _SECONDS if span >= 3 * size), _SECONDS[-1]
            )

    def numbers(self, times: pd.Series | pd.Index | NDArray[Any] | Sequence[Any]) -> NDArray[np.float64]:
        """Positions of `times` on the axis, float64."""
        series = parse_text(pd.Series(times))
        if self.is_date:
            if getattr(series.dt, "tz", None) is not None:
                series = series.dt.tz_convert("UTC").dt.tz_localize(None)
            return np.asarray(mdates.date2num(series.to_numpy("datetime64[us]")), dtype=np.float64)
        if pd.api.types.is_timedelta64_dtype(series):
            return (series / pd.Timedelta(seconds=self.unit_seconds)).to_numpy(np.float64)
        return series.to_numpy(np.float64)

    def unit_of_density(self, span: float) -> tuple[str, float]:
        """A unit in which to count along a span of the axis: its name, and how much of the axis it is."""
        if not self.is_date and not self.unit:
            return "unit of time", 1.0
        seconds = span * self.unit_seconds
        name, size = next(((n, s) for n, s in (_YEAR, *_SECONDS) if seconds >= 3 * s), _SECONDS[-1])
        return name.removesuffix("s"), size / self.unit_seconds

    def label(self, ax: Axes, name: str) -> None:
        """Set ticks and, where the ticks do not say it, the name and unit of the axis."""
        if self.is_date:
            locator = mdates.AutoDateLocator(tz=self.zone, minticks=3, maxticks=8)
            ax.xaxis.set_major_locator(locator)
            ax.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator, tz=self.zone))
            ax.xaxis.get_offset_text().set_fontsize(9)
            ax.set_xlabel(str(self.zone) if self.zone is not None else "", fontsize=9, color=INK)
        else:
            ax.set_xlabel(f"{name} ({self.unit})" if self.unit else name, fontsize=9, color=INK)


def parse_text(times: pd.Series) -> pd.Series:
    """Read timestamps that are still text, as a file gives them; others come back as they are."""
    if not (pd.api.types.is_string_dtype(times) or pd.api.types.is_object_dtype(times)):
        return times
    try:
        return pd.to_datetime(times)
    except ValueError:
        # Offsets that change with the season are one clock only in UTC.
        return pd.to_datetime(times, utc=True)
