"""How a series steps in time, and where its next steps fall."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.clock import MICRO, Clock, Ticks
from ctsattn.data.schema import Step
from ctsattn.data.series import SeriesStore, spans

ELAPSED, DAYS, MONTHS, MONTH_ENDS, BUSINESS = "elapsed", "days", "months", "month ends", "business days"
KINDS = (ELAPSED, DAYS, MONTHS, MONTH_ENDS, BUSINESS)
RECENT = 64  # observations that decide a series' step
_DAY = np.timedelta64(1, "D")
_CALENDAR_SPAN = re.compile(r"\d\s*(B|A|[MQY][SE]?)\b")


@dataclass(frozen=True)
class Steps:
    """The typical step of each series.

    Attributes:
        kind: `[series]` indexes `KINDS`.
        count: `[series]` seconds or units, days or months, as `kind` says.
        day: `[series]` day of the month, from 0, that steps of months keep where a month has it; -1: that
            of the last observation.
    """

    kind: NDArray[np.int64]
    count: NDArray[np.float64]
    day: NDArray[np.int64]


def typical_step(store: SeriesStore) -> Step:
    """Return the commonest kind of step among the series that show one, and its median count."""
    steps, shown = _observed_steps(store)
    if not shown.any():
        return Step(ELAPSED, 86400.0 if store.source.clock.is_physical else 1.0)
    kind = int(np.bincount(steps.kind[shown]).argmax())
    count = np.sort(steps.count[shown & (steps.kind == kind)])
    return Step(KINDS[kind], float(count[(len(count) - 1) // 2]))


def series_steps(store: SeriesStore, default: Step) -> Steps:
    """Return the step of each series: its own where it shows one, else the training data's."""
    steps, shown = _observed_steps(store)
    return Steps(
        np.where(shown, steps.kind, KINDS.index(default.kind)),
        np.where(shown, steps.count, default.count),
        steps.day,
    )


def _observed_steps(store: SeriesStore) -> tuple[Steps, NDArray[np.bool_]]:
    """Read steps off the last observations of each series; say which series have two of them."""
    moments, clock, groups = store.moments, store.source.clock, store.num_series
    at, counts = spans(np.maximum(moments.indptr[:-1], moments.indptr[1:] - RECENT), moments.indptr[1:])
    times, segment = moments.times[at], np.repeat(np.arange(groups), counts)
    inner = segment[1:] == segment[:-1]
    owner, shown = segment[1:][inner], counts > 1
    gaps = lower_median(owner, clock.seconds(np.diff(times)[inner]), groups)
    steps = Steps(np.zeros(groups, np.int64), gaps, np.full(groups, -1))
    if clock.kind != "datetime" or clock.per_second != MICRO or not len(times):
        return steps, shown
    return _calendar_steps(steps, _Walls.of(clock.wall(times), segment, inner, owner), shown, clock), shown


@dataclass(frozen=True)
class _Walls:
    """Wall-clock times of observations, and what they share within each series."""

    days: NDArray[Any]
    segment: NDArray[np.int64]
    inner: NDArray[np.bool_]
    owner: NDArray[np.int64]
    same_hour: NDArray[np.bool_]
    groups: int

    @staticmethod
    def of(
        wall: NDArray[Any], segment: NDArray[np.int64], inner: NDArray[np.bool_], owner: NDArray[np.int64]
    ) -> _Walls:
        days = wall.astype("M8[D]")
        hour, groups = wall - days, int(segment[-1]) + 1
        return _Walls(
            days, segment, inner, owner, _every(owner, (hour[1:] == hour[:-1])[inner], groups), groups
        )

    def every(self, flag: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether a flag holds at every observation of a series."""
        return _every(self.segment, flag, self.groups)

    def day_of_month(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Day of the month of each observation, from 0, and the largest of each series."""
        day = (self.days - self.days.astype("M8[M]")).astype(np.int64)
        largest = np.full(self.groups, -1)
        np.maximum.at(largest, self.segment, day)
        return day, largest

    def ends_month(self) -> NDArray[np.bool_]:
        """Whether each observation is on the last day of its month."""
        return (self.days + _DAY).astype("M8[M]") > self.days.astype("M8[M]")

    def gaps(self, dates: NDArray[Any]) -> NDArray[np.int64]:
        """Differences of dates within series, in their own unit."""
        return np.diff(dates).astype(np.int64)[self.inner]


def _calendar_steps(steps: Steps, walls: _Walls, shown: NDArray[np.bool_], clock: Clock) -> Steps:
    kind, count, day = steps.kind.copy(), steps.count.copy(), steps.day.copy()
    day[: walls.groups] = walls.day_of_month()[1]
    readers = [_months, _month_ends, _business_days]
    for read in ([_whole_days] if clock.zone is not None else []) + readers:
        holds, found, name = read(walls)
        at = np.flatnonzero(holds & walls.same_hour & shown[: walls.groups])
        kind[at], count[at] = KINDS.index(name), found[at]
    return Steps(kind, count, np.where(kind == KINDS.index(MONTHS), day, -1))


def _whole_days(walls: _Walls) -> tuple[NDArray[np.bool_], NDArray[np.float64], str]:
    gaps = lower_median(walls.owner, walls.gaps(walls.days).astype(float), walls.groups)
    return gaps >= 1, gaps, DAYS


def _month_gaps(walls: _Walls) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    far = _every(walls.owner, walls.gaps(walls.days) >= 28, walls.groups)
    months = walls.gaps(walls.days.astype("M8[M]")).astype(float)
    return far, lower_median(walls.owner, months, walls.groups)


def _months(walls: _Walls) -> tuple[NDArray[np.bool_], NDArray[np.float64], str]:
    """The same day of each month; in months that are too short for it, their last."""
    far, gaps = _month_gaps(walls)
    day, largest = walls.day_of_month()
    return far & walls.every((day == largest[walls.segment]) | walls.ends_month()), gaps, MONTHS


def _month_ends(walls: _Walls) -> tuple[NDArray[np.bool_], NDArray[np.float64], str]:
    far, gaps = _month_gaps(walls)
    return far & walls.every(walls.ends_month()), gaps, MONTH_ENDS


def _business_days(walls: _Walls) -> tuple[NDArray[np.bool_], NDArray[np.float64], str]:
    """Weekdays only, a day apart, with at least one weekend stepped over."""
    gaps = walls.gaps(walls.days)
    usual = lower_median(walls.owner, gaps.astype(float), walls.groups)
    weekday = (walls.days.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
    friday = weekday[:-1][walls.inner] == 4
    over = np.bincount(walls.owner[friday & (gaps == 3)], minlength=walls.groups) > 0
    return walls.every(weekday < 5) & (usual == 1) & over, usual, BUSINESS


def future_ticks(store: SeriesStore, steps: Steps, h: int) -> Ticks:
    """List the next `h` times of every series after its last observed target.

    Args:
        store: The history.
        steps: Step of each series, from `series_steps`.
        h: How many.

    Returns:
        `[series, h]` ticks.
    """
    clock, ahead = store.source.clock, np.arange(1, h + 1)
    out = store.last_target[:, None] + clock.ticks(steps.count)[:, None] * ahead
    for kind in (k for k in np.unique(steps.kind) if KINDS[k] != ELAPSED):
        rows = np.flatnonzero(steps.kind == kind)
        wall = clock.wall(store.last_target[rows])
        count = steps.count[rows].astype(np.int64)[:, None] * ahead
        moved = _advance(wall, count, KINDS[kind], steps.day[rows])
        out[rows] = clock.from_wall(moved.reshape(-1)).reshape(-1, h)
    return out


def _advance(
    wall: NDArray[Any], count: NDArray[np.int64], kind: str, day_of_month: NDArray[np.int64]
) -> NDArray[Any]:
    """Move wall-clock times `[rows]` on by `[rows, h]` days, business days or months."""
    day = wall.astype("M8[D]")[:, None]
    hour = (wall - wall.astype("M8[D]"))[:, None]
    if kind == DAYS:
        return day + count.astype("m8[D]") + hour
    if kind == BUSINESS:
        return np.busday_offset(day, count, roll="backward") + hour
    month = day.astype("M8[M]") + count.astype("m8[M]")
    last = (month + np.timedelta64(1, "M")).astype("M8[D]") - _DAY
    if kind == MONTH_ENDS:
        return last + hour
    own = (day - day.astype("M8[M]")).astype(np.int64)
    kept = np.where(day_of_month[:, None] < 0, own, day_of_month[:, None])
    return np.minimum(month.astype("M8[D]") + kept.astype("m8[D]"), last) + hour


def parse_duration(value: Any, clock: Clock) -> float:
    """Read a span of time in seconds (or units of a numeric clock): "36h", a Timedelta, a number.

    Raises:
        ValueError: If it is not a positive span, or a bare number on a physical clock.
    """
    bare = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, np.timedelta64)
    if not clock.is_physical:
        if bare and not isinstance(value, bool) and np.isfinite(value) and value > 0:
            return float(value)
        raise ValueError(f"On a numeric clock a span is a positive number, got {value!r}.")
    try:
        if bare:
            raise ValueError("a bare number has no unit")
        if isinstance(value, str) and _CALENDAR_SPAN.search(value):
            raise ValueError("months, quarters, years and business days have no fixed length")
        if isinstance(value, str):
            value = re.sub(r"(?<=[\d ])d\b", "D", value)  # pandas is to give up the small letter
        seconds = pd.Timedelta(value) / pd.Timedelta(1, "s")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{value!r} is not a span of time ({error}). Accepted are texts such as '36h' or '7D', and "
            f"Timedelta; for months or business days ask for steps: predict(h=...)."
        ) from error
    if not seconds > 0:
        raise ValueError(f"A horizon must be positive, got {value!r}.")
    return float(seconds)


def lower_median(owner: NDArray[np.int64], values: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """Median within each group, the lower of two, so that it is a value that occurs; 0 in empty groups."""
    if not len(values):
        return np.zeros(groups)
    order = np.lexsort((values, owner))
    counts = np.bincount(owner, minlength=groups)
    middle = np.cumsum(counts) - counts + np.maximum(counts - 1, 0) // 2
    return np.where(counts > 0, values[order][np.minimum(middle, len(values) - 1)], 0.0)


def _every(owner: NDArray[np.int64], flag: NDArray[np.bool_], groups: int) -> NDArray[np.bool_]:
    return np.bincount(owner[~flag], minlength=groups) == 0
