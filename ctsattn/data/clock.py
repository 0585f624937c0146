"""The caller's time column: read to exact integer ticks, and written back as it came."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.errors import examples

MICRO, NANO = 10**6, 10**9
_PER_SECOND = {"s": 1, "ms": 10**3, "us": MICRO, "ns": NANO}
_SAFE = 2**62  # differences of ticks below this cannot overflow int64
_ISO_LIKE = re.compile(
    r"\s*\d{4}[-/]\d{1,2}([-/]\d{1,2}([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d{1,9})?)?\s*(?P<zone>Z|[+-]\d{2}(:?\d{2})?)?)?)?\s*"
)
_ACCEPTED = (
    "Accepted are datetimes of any unit and zone, integers, finite floats, timedeltas, periods, and text "
    "that begins with the year, such as '2024-03-31' or '2024-03-31T14:00:00+02:00'."
)

Ticks = NDArray[np.int64] | NDArray[np.float64]


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
        dtype: The caller's dtype, as text of the caller's library; "date" for date objects.
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
        """Turn seconds (or units) into differences of ticks, rounded for integer ticks."""
        scaled = np.asarray(seconds, np.float64) * self.per_second
        return scaled if self.kind == "float" else np.rint(scaled).astype(np.int64)

    def convert(self, ticks: Ticks, other: Clock) -> Ticks:
        """Express ticks of `other`, a clock of the same kind, in ticks of this one.

        Raises:
            TypeError: If one clock is a calendar and the other is not.
        """
        if other.kind != self.kind and not {other.kind, self.kind} <= {"integer", "float"}:
            raise TypeError(
                f"Times of kind {other.kind} were given ({other.dtype}), but the data's clock is {self.kind} "
                f"({self.dtype}). Give times of the same kind as the history."
            )
        if other.per_second == self.per_second:
            return ticks
        if other.per_second < self.per_second:
            return ticks * (self.per_second // other.per_second)
        return ticks // (other.per_second // self.per_second)

    def restore(self, ticks: Ticks) -> pd.Series:
        """Write ticks as a pandas column in the caller's kind, unit, zone and dtype.

        Where that dtype cannot hold the times (fractions in an integer clock, hours in dates), the
        narrowest one that can is used.
        """
        if self.kind == "integer" and not np.array_equal(ticks, np.rint(ticks)):
            return pd.Series(np.asarray(ticks, np.float64))
        if not self.is_physical:
            return _as_dtype(pd.Series(np.asarray(ticks)), self.dtype)
        unit = "us" if self.per_second == MICRO else "ns"
        if self.kind == "timedelta":
            index: Any = pd.TimedeltaIndex(np.asarray(ticks).view(f"m8[{unit}]"))
        else:
            index = pd.DatetimeIndex(np.asarray(ticks).view(f"M8[{unit}]"))
            index = index if self.zone is None else index.tz_localize("UTC").tz_convert(self.zone)
        coarse = index.as_unit(self.unit or unit)
        index = coarse if (coarse == index).all() else index
        return _as_dtype(pd.Series(index), self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return self.__dict__.copy()


def _as_dtype(column: pd.Series, dtype: str) -> pd.Series:
    if dtype.startswith("period["):
        return column.dt.to_period(dtype[len("period[") : -1])
    if dtype == "date" or dtype == "date32[day][pyarrow]":
        whole = (column == column.dt.normalize()).all()
        dates = column.dt.date if whole else column
        return dates.astype(dtype) if whole and dtype != "date" else dates
    if not dtype or dtype == str(column.dtype) or dtype in ("object", "str", "string"):
        return column
    try:
        return column.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return column


def read_times(column: pd.Series, name: Hashable) -> tuple[Ticks, Clock]:
    """Read a time column of any accepted kind.

    Args:
        column: The caller's column; it is not changed.
        name: Its name, for messages.

    Returns:
        Ticks, one a row, and the clock that explains them.

    Raises:
        ValueError: If times are missing, infinite, out of range, or text that is not plainly a date.
        TypeError: If the column holds no times at all.
    """
    missing = np.asarray(column.isna(), bool)
    if missing.any():
        rows = np.flatnonzero(missing)
        raise ValueError(
            f"Time column {name!r} has {len(rows)} missing value(s), first at row(s) {examples(rows)}. "
            f"Every row needs a time. Drop them: df = df.dropna(subset=[{name!r}])."
        )
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    return _read_kind(column, name, _kind(column))


def _kind(column: pd.Series) -> str:
    kind = getattr(column.dtype, "kind", "O")
    if isinstance(column.dtype, pd.PeriodDtype):
        return "period"
    if kind in "Mmiuf":
        return {"M": "datetime", "m": "timedelta", "i": "integer", "u": "integer", "f": "floating"}[kind]
    return pd.api.types.infer_dtype(column, skipna=True)


def _read_kind(column: pd.Series, name: Hashable, kind: str) -> tuple[Ticks, Clock]:
    dtype = str(column.dtype)
    if kind in ("integer", "floating", "mixed-integer-float", "decimal"):
        return _read_numbers(column, name, dtype, integer=kind == "integer")
    if kind == "string":
        return _read_text(column, name)
    if kind in ("timedelta", "timedelta64"):
        index: Any = pd.TimedeltaIndex(column)
        return _read_index(index, Clock("timedelta", unit=index.unit, dtype=dtype), name)
    if kind == "period":
        column = pd.Series(pd.PeriodIndex(column))
        dtype, column = str(column.dtype), column.dt.to_timestamp()
    if kind in ("date", "datetime", "datetime64", "period"):
        index = _datetimes(column, name)
        dtype = "date" if kind == "date" else dtype
        return _read_index(index, Clock("datetime", 1, index.unit, _zone_name(index.tz), dtype), name)
    raise TypeError(
        f"Time column {name!r} holds {kind} values of dtype {dtype}, for example "
        f"{examples(column.iloc[:3])}. {_ACCEPTED} Convert it: df[{name!r}] = pd.to_datetime(df[{name!r}])."
    )


def _datetimes(column: pd.Series, name: Hashable) -> pd.DatetimeIndex:
    try:
        if column.dtype == object:
            offsets = {getattr(value, "utcoffset", lambda: None)() for value in column}
            return pd.DatetimeIndex(pd.to_datetime(column, utc=len(offsets) > 1 and None not in offsets))
        return pd.DatetimeIndex(column)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Time column {name!r} cannot be read as datetimes: {error}. {_ACCEPTED} "
            f"Convert it: df[{name!r}] = pd.to_datetime(df[{name!r}], utc=True)."
        ) from error


def _read_index(index: Any, clock: Clock, name: Hashable) -> tuple[NDArray[np.int64], Clock]:
    raw = np.asarray(index.asi8)
    per_second = _PER_SECOND[clock.unit]
    if per_second == NANO:
        finest = NANO if (raw % 1000).any() and np.abs(raw).max() < _SAFE else MICRO
        ticks = raw if finest == NANO else raw // 1000
        return ticks, replace(clock, per_second=finest)
    factor = MICRO // per_second
    if raw.size and max(abs(int(raw.min())), abs(int(raw.max()))) > _SAFE // factor:
        raise ValueError(
            f"Time column {name!r} reaches beyond what microseconds can count, for example "
            f"{raw.max()} {clock.unit} since 1970. Give such times as floats in a unit of your own."
        )
    return raw * factor, replace(clock, per_second=MICRO)


def _read_numbers(column: pd.Series, name: Hashable, dtype: str, integer: bool) -> tuple[Ticks, Clock]:
    if not integer:
        values = column.to_numpy(np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(
                f"Time column {name!r} has {bad.size} infinite value(s), first at row(s) {examples(bad)}. "
                f"Accepted are finite numbers. Drop them: df = df[np.isfinite(df[{name!r}])]."
            )
        return values, Clock("float", dtype=dtype)
    try:
        ticks = column.to_numpy(np.int64)
        wide = ticks.size and max(abs(int(ticks.min())), abs(int(ticks.max()))) >= _SAFE
    except OverflowError:
        ticks, wide = np.zeros(0, np.int64), True
    if wide or (getattr(column.dtype, "kind", "") == "u" and (column > _SAFE).any()):
        raise ValueError(
            f"Integer times in column {name!r} must lie within ±2**62, but reach {column.abs().max()}. "
            f"Subtract an origin first: df[{name!r}] -= df[{name!r}].min()."
        )
    return ticks, Clock("integer", dtype=dtype)


def _read_text(column: pd.Series, name: Hashable) -> tuple[Ticks, Clock]:
    codes, uniques = pd.factorize(column)  # timestamps repeat over series: parse each once
    texts = pd.Series(uniques, dtype=object)
    matches = [_ISO_LIKE.fullmatch(text) for text in texts]
    refused = [text for text, match in zip(texts, matches, strict=True) if match is None]
    if refused:
        raise ValueError(
            f"Time column {name!r} is text, and {len(refused)} distinct value(s) do not read as a date in "
            f"one way only, for example {examples(refused)}. {_ACCEPTED} Say what they mean: "
            f"df[{name!r}] = pd.to_datetime(df[{name!r}], format='%d.%m.%Y')."
        )
    zones = {match["zone"] for match in matches if match is not None}
    if None in zones and len(zones) > 1:
        raise ValueError(
            f"Time column {name!r} is text with a zone in some rows and none in others, for example "
            f"{examples(texts)}. Give all of them a zone, or none."
        )
    clean = texts.str.strip().str.replace("/", "-").str.replace(",", ".")
    try:
        parsed = pd.DatetimeIndex(pd.to_datetime(clean, format="ISO8601", utc=len(zones) > 1))
    except ValueError as error:
        raise ValueError(
            f"Time column {name!r} is text that looks like dates, but does not name real ones: {error}. "
            f"{_ACCEPTED}"
        ) from error
    ticks, clock = _read_index(parsed, Clock("datetime", 1, parsed.unit, _zone_name(parsed.tz)), name)
    return ticks[codes], clock


def _zone_name(tz: Any) -> str | None:
    if tz is None:
        return None
    name = getattr(tz, "key", None) or getattr(tz, "zone", None) or str(tz)
    inside = re.search(r"zoneinfo/([\w/+-]+)", name)
    return inside[1] if inside else name
