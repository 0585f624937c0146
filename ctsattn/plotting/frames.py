"""Reading long frames for pictures: panels, bands and gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray

# A hole in the record is a gap beyond its rhythm: so many times the median gap, and so many times the gap
# that nine in ten do not exceed. The second rule keeps random sampling from looking like a row of holes.
HOLE_OF_MEDIAN, HOLE_OF_TENTH = 5.0, 2.5


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a long frame, in the caller's words.

    Attributes:
        id: Column that names the series; a frame without it is one series.
        time: Column of the timestamps.
        target: Column of the values, or several of them.
        model: Column of the point forecast, and the stem of its band columns.
    """

    id: str = "unique_id"
    time: str = "ds"
    target: str | Sequence[str] = "y"
    model: str = "ctsattn"

    @property
    def targets(self) -> list[str]:
        """Names of the target columns, always as a list."""
        return [self.target] if isinstance(self.target, str) else list(self.target)


def as_pandas(frame: Any, name: str, needed: Sequence[str]) -> pd.DataFrame:
    """Take any eager frame as pandas and check that it has the `needed` columns.

    Raises:
        TypeError: If `frame` is no data frame.
        ValueError: If a column is missing; the message lists those that are there.
    """
    if not isinstance(frame, pd.DataFrame):
        try:
            frame = nw.from_native(frame, eager_only=True).to_pandas()
        except TypeError:
            raise TypeError(f"`{name}` must be a data frame; got {type(frame).__name__}.") from None
    missing = [column for column in needed if column not in frame.columns]
    if missing:
        raise ValueError(
            f"`{name}` has no column {missing[0]!r}; it has {list(map(str, frame.columns))}. "
            "Say which columns to use with id_col=, time_col=, target_col=."
        )
    return frame


def cells(frame: pd.DataFrame, columns: Columns) -> dict[tuple[Any, str], pd.DataFrame]:
    """Split a frame into one frame per (series, target), each sorted by time, ids in order of appearance.

    A wide frame (one column per target) and a forecast of several targets (column `variable`)
    give the same keys.
    """
    by_id = frame.groupby(columns.id, sort=False, observed=True) if columns.id in frame.columns else None
    groups: Iterable[tuple[Any, pd.DataFrame]] = by_id if by_id is not None else [(None, frame)]
    found: dict[tuple[Any, str], pd.DataFrame] = {}
    for key, group in groups:
        group = group.sort_values(columns.time, kind="stable")
        stacked = "variable" in group.columns and len(columns.targets) > 1
        for target in columns.targets:
            part: pd.DataFrame = group.loc[group["variable"] == target] if stacked else group
            if len(part):
                found[key, target] = part
    return found


def bands(frame: pd.DataFrame, model: str) -> list[tuple[float, str, str]]:
    """Find the interval columns of a forecast: `(level in percent, low column, high column)`, widest first.

    Both spellings count: `model-lo-80` with `model-hi-80`, and `model-q0.1` with `model-q0.9`.
    """
    found: dict[float, tuple[str, str]] = {}
    for column in map(str, frame.columns):
        if (hit := re.fullmatch(re.escape(model) + r"-lo-([\d.]+)", column)) is not None:
            high = f"{model}-hi-{hit[1]}"
            if high in frame.columns:
                found[float(hit[1])] = (column, high)
    by_level = quantile_columns(frame, model)
    for level, column in by_level.items():
        if level < 0.5 and (mirror := by_level.get(round(1 - level, 10))) is not None:
            found.setdefault(round(100 * (1 - 2 * level), 8), (column, mirror))
    return [(level, *found[level]) for level in sorted(found, reverse=True)]


def quantile_columns(frame: pd.DataFrame, model: str) -> dict[float, str]:
    """Find the quantile columns `model-q0.1` … of a forecast, by level, ascending."""
    pattern = re.compile(re.escape(model) + r"-q([\d.]+)")
    hits = ((pattern.fullmatch(column), column) for column in map(str, frame.columns))
    return dict(sorted((round(float(hit[1]), 10), column) for hit, column in hits if hit))


def levels_below(frame: pd.DataFrame, model: str) -> dict[float, str]:
    """All columns that claim a probability of the truth lying below them, by that probability."""
    found = quantile_columns(frame, model)
    for level, low, high in bands(frame, model):
        found.setdefault(round(0.5 - level / 200, 10), low)
        found.setdefault(round(0.5 + level / 200, 10), high)
    if model in frame.columns:
        found.setdefault(0.5, model)
    return dict(sorted(found.items()))


def holes(positions: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Gaps in a record that stand out from its own rhythm.

    Args:
        positions: Ascending times of the observations, as numbers.

    Returns:
        Start and end of each hole, in order.
    """
    gaps = np.diff(positions)
    positive = gaps[gaps > 0]
    if positive.size < 3:
        return []
    median, tenth = np.quantile(positive, [0.5, 0.9])
    where = np.flatnonzero(gaps > max(HOLE_OF_MEDIAN * median, HOLE_OF_TENTH * tenth))
    return [(float(positions[i]), float(positions[i + 1])) for i in where]


def broken_at(
    positions: NDArray[np.float64], values: NDArray[np.float64], breaks: list[tuple[float, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Insert a NaN inside each hole, so that a line does not cross what nobody measured."""
    if not breaks:
        return positions, values
    where = np.searchsorted(positions, [end for _, end in breaks])
    middle = np.array([(start + end) / 2 for start, end in breaks])
    return np.insert(positions, where, middle), np.insert(values, where, np.nan)
