"""Clocks: exact integer ticks for the caller's times, wall clocks of zones, and the way back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.errors import examples

MICRO, NANO = 10**6, 10**9
_MOST = 2.0**61  # the sum of this and any time fits into int64

Ticks = NDArray[Any]  # int64, or float64 on a clock of floats


@dataclass(frozen=True)
class Clock:
    """How ticks relate to seconds, and what the caller's time column looked like.

    Datetimes (in UTC) and timedeltas become int64 microseconds, or nanoseconds when the data use them, so
    the unit of the column changes nothing and differences are exact. Integers stay integers and floats
    stay floats: their unit is the caller's.

    Attributes:
        kind: "datetime", "timedelta", "integer" or "float".
        per_second: Ticks in a second, or in one unit of a numeric clock.
        unit: Unit of the caller's datetimes or timedeltas: "s", "ms", "us" or "ns".
        zone: Name of the caller's time zone, or `None`.
        dtype: The caller's dtype, as text; "date" for date objects.
    """

    kind: str
    per_second: int = 1
    unit: str = ""
    zone: str | None = None
    dtype: str = ""

    @property
    def is_physical(self) -> bool:
        """Whether ticks measure physical time, so that seconds and days mean something."""
        return self.kind in ("datetime", "timedelta")

    def seconds(self, ticks: Ticks) -> NDArray[np.float64]:
        """Turn differences of ticks into seconds (or units of a numeric clock)."""
        return np.asarray(ticks, np.float64) / self.per_second

    def ticks(self, seconds: NDArray[np.float64] | float) -> Ticks:
        """Turn seconds (or units) into differences of ticks, rounded for integer ticks and at most 2^61."""
        scaled = np.asarray(seconds, np.float64) * self.per_second
        return scaled if self.kind == "float" else np.rint(np.clip(scaled, -_MOST, _MOST)).astype(np.int64)

    def agrees(self, kind: str) -> bool:
        """Whether times of another kind can be put on this clock: numbers of either kind can."""
        return kind == self.kind or {kind, self.kind} <= {"integer", "float"}

    def convert(self, ticks: Ticks, other: Clock, name: Hashable = "times") -> Ticks:
        """Express ticks of `other` in ticks of this clock.

        Times without a zone are read on the wall clock of this one's zone, if it has one.

        Args:
            ticks: Times of the other clock.
            other: That clock.
            name: Column they came from, for messages.

        Raises:
            TypeError: If the kinds differ, or only the other clock has a zone.
            ValueError: If times are finer than this clock's ticks, or a time without a zone is skipped or
                repeated by a change of clocks.
        """
        if not self.agrees(other.kind):
            raise TypeError(
                f"Times of kind {other.kind} ({other.dtype}) were given in {name!r}, but the clock of the "
                f"history is {self.kind} ({self.dtype}). Give times of the same kind as the history."
            )
        if other.zone is not None and self.zone is None and self.kind == "datetime":
            raise TypeError(
                f"Times in zone {other.zone} were given in {name!r}, but those of the history have no "
                f"zone. Give both a zone, or neither: times.tz_convert(None)."
            )
        if other.per_second < self.per_second:
            ticks = ticks * (self.per_second // other.per_second)
        elif other.per_second > self.per_second:
            ticks = _coarser(ticks, other.per_second // self.per_second, name)
        if other.kind == "datetime" and other.zone is None and self.zone is not None:
            return _localise(ticks, self)
        return ticks

    def wall(self, ticks: Ticks) -> NDArray[Any]:
        """Show ticks of a calendar as datetime64[us] on the wall clock of the zone."""
        index = pd.DatetimeIndex((np.asarray(ticks) // (self.per_second // MICRO)).view("M8[us]"))
        if self.zone is not None:
            index = index.tz_localize("UTC").tz_convert(self.zone).tz_localize(None)
        return index.to_numpy()

    def from_wall(self, wall: NDArray[Any]) -> Ticks:
        """Read wall-clock times back; a skipped one moves forward, a repeated one is the first of the two."""
        index = pd.DatetimeIndex(wall).as_unit("us")
        if self.zone is not None:
            first = np.ones(len(index), bool)
            index = index.tz_localize(self.zone, ambiguous=first, nonexistent="shift_forward")
        return np.asarray(index.asi8) * (self.per_second // MICRO)

    def restore(self, ticks: Ticks) -> pd.Series:
        """Write ticks as a pandas column in the caller's kind, unit, zone and dtype.

        Where that dtype cannot hold the times (fractions in an integer clock, hours in dates), the
        narrowest one that can is used.
        """
        ticks = np.asarray(ticks)
        if self.kind == "integer" and ticks.dtype.kind == "f":
            whole = bool((ticks == np.rint(ticks)).all())
            return _as_dtype(pd.Series(ticks.astype(np.int64)), self.dtype) if whole else pd.Series(ticks)
        if not self.is_physical:
            return _as_dtype(pd.Series(ticks), self.dtype)
        unit = "us" if self.per_second == MICRO else "ns"
        if self.kind == "timedelta":
            index: Any = pd.TimedeltaIndex(ticks.view(f"m8[{unit}]"))
        else:
            index = pd.DatetimeIndex(ticks.view(f"M8[{unit}]"))
            index = index if self.zone is None else index.tz_localize("UTC").tz_convert(self.zone)
        return _as_dtype(pd.Series(_in_unit(index, self.unit or unit)), self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return self.__dict__.copy()


def _coarser(ticks: Ticks, factor: int, name: Hashable) -> Ticks:
    finer = int((ticks % factor != 0).sum())
    if finer:
        raise ValueError(
            f"{finer} time(s) in {name!r} have nanoseconds, but the history counts microseconds. "
            f"Round them: times.round('us'); or give a history in nanoseconds."
        )
    return ticks // factor


def _localise(ticks: Ticks, clock: Clock) -> Ticks:
    index = pd.DatetimeIndex(np.asarray(ticks).view("M8[us]" if clock.per_second == MICRO else "M8[ns]"))
    local = index.tz_localize(clock.zone, ambiguous="NaT", nonexistent="NaT")
    there = local.isna()
    if there.any():
        raise ValueError(
            f"{int(there.sum())} time(s) without a zone are skipped or repeated by a change of clocks in "
            f"{clock.zone}, for example {examples(index[there])}. Give them a zone: "
            f"times.tz_localize({clock.zone!r}, ambiguous=..., nonexistent=...)."
        )
    return np.asarray(local.asi8)


def _in_unit(index: Any, unit: str) -> Any:
    """Change the unit, unless that loses something or leaves the range of the unit."""
    try:
        coarse = index.as_unit(unit)
    except (pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta):
        return index
    return coarse if (coarse == index).all() else index


def _as_dtype(column: pd.Series, dtype: str) -> pd.Series:
    if dtype.startswith("period["):
        periods = column.dt.to_period(dtype[len("period[") : -1])
        return periods if (periods.dt.to_timestamp() == column).all() else column
    if dtype in ("date", "date32[day][pyarrow]"):
        if not (column == column.dt.normalize()).all():
            return column
        dates = column.dt.date
        return dates.astype(object) if dtype == "date" else dates.astype(dtype)
    if not dtype or dtype == str(column.dtype) or dtype in ("object", "str", "string", "category"):
        return column
    try:
        cast = column.astype(dtype)
        return cast if (cast.astype(column.dtype) == column).all() else column
    except (TypeError, ValueError, OverflowError):
        return column
