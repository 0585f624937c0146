"""Reading a time column of any kind to ticks, and refusing what could be read in two ways."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.clock import MICRO, NANO, Clock, Ticks
from ctsattn.data.errors import examples

_PER_SECOND = {"s": 1, "ms": 10**3, "us": MICRO, "ns": NANO}
_SAFE = 2**62  # differences of ticks below this cannot overflow int64
_CLOCK = r"[T ]\d{1,2}:\d{2}(:\d{2}([.,]\d{1,9})?)?"
_ISO_LIKE = re.compile(
    rf"\s*\d{{4}}([-/])\d{{1,2}}(\1\d{{1,2}}({_CLOCK}\s*(?P<zone>Z|[+-]\d{{2}}(:?\d{{2}})?)?)?)?\s*"
)
_ACCEPTED = (
    "Accepted are datetimes of any unit and zone, integers, finite floats, timedeltas, periods, and text "
    "that begins with the year, such as '2024-03-31' or '2024-03-31T14:00:00+02:00'."
)


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
        return _read_index(index, Clock("datetime", 1, index.unit, zone_name(index.tz), dtype), name)
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
    """Count microseconds, or nanoseconds where the data use them and their range allows it."""
    raw = np.asarray(index.asi8)
    per_second = _PER_SECOND[clock.unit]
    if per_second == NANO:
        finest = NANO if (raw % 1000).any() and not _reaches(raw, _SAFE) else MICRO
        return raw if finest == NANO else raw // 1000, replace(clock, per_second=finest)
    factor = MICRO // per_second
    if _reaches(raw, _SAFE // factor):
        raise ValueError(
            f"Time column {name!r} reaches beyond what microseconds can count, for example "
            f"{raw.max()} {clock.unit} since 1970. Give such times as floats in a unit of your own."
        )
    return raw * factor, replace(clock, per_second=MICRO)


def _reaches(ticks: NDArray[np.int64], limit: int) -> bool:
    return bool(ticks.size) and max(abs(int(ticks.min())), abs(int(ticks.max()))) >= limit


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
    _refuse_calendar_numbers(column, name)
    if max(abs(int(column.min())), abs(int(column.max()))) >= _SAFE:
        raise ValueError(
            f"Integer times in column {name!r} must lie within ±2**62, but run from {column.min()} to "
            f"{column.max()}. Subtract an origin first: df[{name!r}] -= df[{name!r}].min()."
        )
    return column.to_numpy(np.int64), Clock("integer", dtype=dtype)


def _refuse_calendar_numbers(column: pd.Series, name: Hashable) -> None:
    """Refuse integers that all spell dates, such as 20240131: as numbers 20240201 would be 70 later."""
    low, high = int(column.min()), int(column.max())
    if low == high or low < 1900_01_01 or high > 2200_12_31:
        return
    distinct = pd.Series(column.unique())
    spelled = pd.to_datetime(distinct.astype(np.int64).astype(str), format="%Y%m%d", errors="coerce")
    if spelled.notna().all():
        raise ValueError(
            f"Integer times in column {name!r} all spell dates, for example {examples(distinct)}, but as "
            f"numbers the last of a month and the first of the next lie far apart. Convert them: "
            f"df[{name!r}] = pd.to_datetime(df[{name!r}].astype(str), format='%Y%m%d'); or, if they are "
            f"plain numbers, subtract an origin: df[{name!r}] -= df[{name!r}].min()."
        )


def _read_text(column: pd.Series, name: Hashable) -> tuple[Ticks, Clock]:
    codes, uniques = pd.factorize(column)  # timestamps repeat over series: parse each once
    texts = pd.Series(uniques, dtype=object)
    matches = [_ISO_LIKE.fullmatch(text) for text in texts]
    refused = [text for text, match in zip(texts, matches, strict=True) if match is None]
    if refused:
        raise ValueError(
            f"Time column {name!r} is text, and {len(refused)} distinct value(s) do not read as a date in "
            f"one way only, for example {examples(refused)}. {_ACCEPTED} Say what they mean: "
            f"{_conversion(refused[0], name)}."
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
    ticks, clock = _read_index(parsed, Clock("datetime", 1, parsed.unit, zone_name(parsed.tz)), name)
    return ticks[codes], clock


def _conversion(text: str, name: Hashable) -> str:
    """A line of code that may read a text: as a span if it is one, else by a format with its own marks."""
    place = f"df[{name!r}]"
    if not _is_span(text):
        mark = re.match(r"\d{1,2}([./-])\d{1,2}\1(\d{4}|\d{2})", text.strip())
        day = "%d.%m.%Y" if mark is None else mark[1].join(("%d", "%m", "%Y" if len(mark[2]) == 4 else "%y"))
        clock = re.search(r"\d:\d\d(:\d\d)?", text)
        time = "" if clock is None else " %H:%M" + (":%S" if clock[1] else "")
        return f"{place} = pd.to_datetime({place}, format='{day}{time}')"
    return f"{place} = pd.to_timedelta({place})"


def _is_span(text: str) -> bool:
    """Whether pandas reads a text as a span with a unit, such as '61h'."""
    if not re.search("[A-Za-z]", text):
        return False  # bare numbers, and dates with a clock
    try:
        return not pd.isna(pd.Timedelta(text))
    except ValueError:
        return False


def zone_name(tz: Any) -> str | None:
    """Name a zone so that pandas finds it again; `None` for no zone."""
    if tz is None:
        return None
    name = getattr(tz, "key", None) or getattr(tz, "zone", None) or str(tz)
    inside = re.search(r"zoneinfo/([\w/+-]+)", name)
    return inside[1] if inside else name
