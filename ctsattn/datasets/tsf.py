"""The TSF text format of the Monash forecasting archive."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from ctsattn.datasets.tables import open_text, ragged

_MONTHS = {"monthly": 1, "quarterly": 3, "yearly": 12}
_SECONDS = {
    "seconds": 1,
    "minutely": 60,
    "minutes": 60,
    "half_hourly": 1800,
    "hourly": 3600,
    "daily": 86400,
    "weekly": 604800,
}
_START = "%Y-%m-%d %H-%M-%S"


@dataclass
class Tsf:
    """A TSF file: its header, one row of attributes for each series, and the series.

    Attributes:
        header: What stands after each `@`: `relation`, `frequency`, `horizon`, `missing`, `equallength`.
        attributes: Names of the attributes of a series and their types, in order.
        static: The attributes, one row for each series.
        values: The observations of each series, NaN where the file has `?`.
    """

    header: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    static: pd.DataFrame = field(default_factory=pd.DataFrame)
    values: list[np.ndarray] = field(default_factory=list)

    @property
    def horizon(self) -> int | None:
        """The horizon that the header states, if it does."""
        return int(self.header["horizon"]) if "horizon" in self.header else None

    def frame(self) -> pd.DataFrame:
        """The series as a long frame.

        `ds` counts from the start stamp in steps of the frequency; where the file has no start stamp
        or no frequency it counts 0, 1, 2, … Attributes beside name and start become columns.
        """
        names = self._names()
        frame = ragged(names, self._times(), self.values)
        for name in self._others():
            frame[name] = self.static[name].to_numpy()[frame["unique_id"].cat.codes]
        return frame

    def _names(self) -> list[str]:
        """Text attribute that names the series, or numbers where there is none."""
        named = next((n for n, kind in self.attributes.items() if kind == "string"), None)
        distinct = named is not None and self.static[named].is_unique
        return self.static[named].tolist() if distinct else [f"T{i + 1}" for i in range(len(self.values))]

    def _others(self) -> list[str]:
        """Attributes that are neither the name nor the start of the series."""
        named = next((n for n, kind in self.attributes.items() if kind == "string"), None)
        return [n for n, kind in self.attributes.items() if kind != "date" and n != named]

    def _times(self) -> list[np.ndarray]:
        """Time of each observation of each series."""
        dated = next((n for n, kind in self.attributes.items() if kind == "date"), None)
        frequency = self.header.get("frequency")
        if dated is None or frequency is None:
            return [np.arange(len(series)) for series in self.values]
        starts = self.static[dated]
        return [clock(s, frequency, len(v)) for s, v in zip(starts, self.values, strict=True)]


def clock(start: Any, frequency: str, length: int) -> np.ndarray:
    """Count `length` steps of a TSF frequency from `start`, as `datetime64[s]`.

    Months, quarters and years are those of the calendar; a day of the month that a month lacks
    becomes its last. `4_seconds`, `10_minutes` and the like count that many.

    Raises:
        ValueError: The frequency is none of those of the archive.
    """
    first = np.datetime64(start, "s")
    steps = np.arange(length)
    if frequency in _MONTHS:
        return _calendar(first, steps * _MONTHS[frequency])
    count, _, unit = frequency.rpartition("_") if frequency[0].isdigit() else ("1", "", frequency)
    if unit not in _SECONDS or not count.isdigit():
        known = ", ".join([*_SECONDS, *_MONTHS])
        raise ValueError(
            f"Unknown TSF frequency `{frequency}`. Known: {known}, or a count as in `10_minutes`."
        )
    return first + steps * np.timedelta64(int(count) * _SECONDS[unit], "s")


def _calendar(first: np.datetime64, months: np.ndarray) -> np.ndarray:
    """Add whole months to a date, keeping the day of the month where there is one."""
    month = first.astype("datetime64[M]")
    within = first - month.astype("datetime64[s]")
    begins = (month + months).astype("datetime64[s]")
    ends = (month + months + 1).astype("datetime64[s]")
    last_day = ends - np.timedelta64(86400, "s") + within % np.timedelta64(86400, "s")
    return np.minimum(begins + within, last_day)


def read_tsf(path: Path, encoding: str = "latin-1") -> Tsf:
    """Read a TSF file, plain or compressed.

    Args:
        path: The file.
        encoding: Files of the archive are not UTF-8 throughout; Latin-1 reads them all.

    Raises:
        ValueError: The file breaks the format; the message names the line.
    """
    tsf = Tsf()
    rows: list[list[str]] = []
    with open_text(path, encoding) as file:
        data_begins = _read_header(file, tsf, path)
        for number, line in enumerate(file, start=data_begins + 1):
            if line.strip() and not line.startswith("#"):
                rows.append(_read_series(line, tsf, f"{path.name}, line {number}"))
    if not rows:
        raise ValueError(f"{path.name} has no series after `@data`.")
    columns = zip(*rows, strict=True) if tsf.attributes else ()
    kinds = tsf.attributes.items()
    tsf.static = pd.DataFrame(
        {name: _typed(list(column), kind) for (name, kind), column in zip(kinds, columns, strict=True)}
    )
    return tsf


def _read_header(file: TextIO, tsf: Tsf, path: Path) -> int:
    """Fill header and attributes up to `@data`; returns the number of that line."""
    for number, line in enumerate(file, start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        key, *rest = words
        if key == "@data":
            return number
        if key == "@attribute" and len(rest) == 2 and rest[1] in ("string", "numeric", "date"):
            tsf.attributes[rest[0]] = rest[1]
        elif key.startswith("@") and key != "@attribute" and rest:
            tsf.header[key[1:]] = " ".join(rest)
        else:
            raise ValueError(
                f"{path.name}, line {number}: expected `@attribute name string|numeric|date` or `@key "
                "value`, "
                f"found `{line.strip()[:60]}`."
            )
    raise ValueError(f"{path.name} has no line `@data`, so it is not a TSF file.")


def _read_series(line: str, tsf: Tsf, where: str) -> list[str]:
    """Split a line into attributes, which are returned, and observations, which are appended."""
    *attributes, series = line.strip().split(":")
    if len(attributes) != len(tsf.attributes):
        raise ValueError(
            f"{where}: {len(attributes)} attributes, but the header names {len(tsf.attributes)}."
        )
    try:
        values = np.array(series.replace("?", "nan").split(","), dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{where}: an observation is neither a number nor `?`: {error}.") from error
    tsf.values.append(values)
    return attributes


def _typed(column: list[str], kind: str) -> pd.Series:
    """Give a column of attributes the type that the header states."""
    if kind == "numeric":
        return pd.Series(np.array([value.replace("?", "nan") for value in column], dtype=np.float64))
    if kind == "date":
        return pd.Series(pd.to_datetime(column, format=_START).astype("datetime64[s]"))
    return pd.Series(column, dtype=object)
