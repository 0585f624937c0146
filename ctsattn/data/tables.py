"""Frames of any library in, frames of the same library out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

Table = dict[Hashable, pd.Series]  # columns by name, each with a plain index, in the order of the frame


@dataclass(frozen=True)
class Library:
    """Where a frame came from, and the dtypes to give back.

    Attributes:
        name: "pandas", "polars" or "pyarrow".
        dtypes: For other libraries than pandas the dtypes by column name: pyarrow's own, else narwhals'.
    """

    name: str = "pandas"
    dtypes: dict[Hashable, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; dtypes become text."""
        return {"name": self.name, "dtypes": {str(k): str(v) for k, v in (self.dtypes or {}).items()}}

    @staticmethod
    def from_json(state: dict[str, Any]) -> Library:
        """Rebuild what `to_json` wrote; dtypes with parameters (times, enums) are left to the values."""
        find = _arrow_type if state["name"] == "pyarrow" else lambda name: getattr(nw, name, None)
        plain = {k: find(v) for k, v in state["dtypes"].items()}
        known = {k: v for k, v in plain.items() if v is not None}
        return Library(state["name"], known or None)


def _arrow_type(name: str) -> Any:
    """Type of pyarrow by the text it prints, or `None` where it has parameters."""
    import pyarrow

    try:
        return pyarrow.type_for_alias(name)
    except ValueError:
        return None


def is_frame(value: Any) -> bool:
    """Whether `open_table` can read it."""
    if isinstance(value, (pd.DataFrame, pd.Series)):
        return True
    try:
        nw.from_native(value, eager_only=True)
    except TypeError:
        return False
    return True


def open_table(df: Any) -> tuple[Table, Library]:
    """Take the columns out of a frame without changing or copying it where that can be avoided.

    Args:
        df: pandas, polars or pyarrow frame. A pandas index must have been made columns before.

    Raises:
        TypeError: If it is no frame.
        ValueError: If two columns have the same name.
    """
    if isinstance(df, pd.DataFrame):
        twice = df.columns[df.columns.duplicated()].unique()
        if len(twice):
            raise ValueError(
                f"Column name(s) {', '.join(map(repr, twice))} occur more than once. Names must be unique: "
                f"df = df.loc[:, ~df.columns.duplicated()]."
            )
        return {n: pd.Series(df[n].array, dtype=df[n].dtype, copy=False) for n in df.columns}, Library()
    try:
        frame = nw.from_native(df, eager_only=True)
    except TypeError as error:
        raise TypeError(
            f"Expected a pandas, polars or pyarrow frame, got {type(df).__name__}. Lazy frames must be "
            f"collected first; a dictionary of columns becomes one by pd.DataFrame(...)."
        ) from error
    name = frame.implementation.name.lower()
    # pyarrow's own types tell large texts and seconds apart, which those of narwhals do not.
    dtypes = dict(zip(df.column_names, df.schema.types, strict=True)) if name == "pyarrow" else frame.schema
    library = Library(name, dict(dtypes))
    return {name: _to_pandas(frame[name]) for name in frame.columns}, library


def _to_pandas(column: nw.Series[Any]) -> pd.Series:
    """Convert one column; nulls become NaN, NaT or None."""
    dtype = column.dtype
    if isinstance(dtype, (nw.Datetime, nw.Date)):
        return _times_to_pandas(column, dtype)
    if isinstance(dtype, nw.Duration):
        return pd.Series(column.to_numpy(), copy=False)
    if isinstance(dtype, nw.Decimal):
        column = column.cast(nw.Float64)
    elif dtype.is_integer() and column.null_count():
        return pd.Series(pd.array([*column.to_list()], dtype="Int64"))
    elif not (dtype.is_numeric() or isinstance(dtype, nw.Boolean)) or column.null_count():
        values = column.to_list()
        return pd.Series(values, dtype=float if dtype.is_numeric() else object)
    return pd.Series(column.to_numpy(), copy=False)


def _times_to_pandas(column: nw.Series[Any], dtype: Any) -> pd.Series:
    if isinstance(dtype, nw.Date):
        column = column.cast(nw.Datetime("ms"))
        unit, zone = "ms", None
    else:
        unit, zone = ("ms" if dtype.time_unit == "s" else dtype.time_unit), dtype.time_zone
    missing = column.is_null().to_numpy()
    raw = column.dt.timestamp(unit).fill_null(0).to_numpy().astype(np.int64)
    stamps = np.where(missing, np.datetime64("NaT"), raw.view(f"M8[{unit}]"))
    index = pd.DatetimeIndex(stamps)
    return pd.Series(index if zone is None else index.tz_localize("UTC").tz_convert(zone))


def write_table(columns: Table, library: Library) -> Any:
    """Build a frame of the caller's library.

    Args:
        columns: Columns by name, in order; where the caller's frame had a column of this name, it gets
            the caller's dtype if that can hold the values.
        library: What `open_table` said.
    """
    if library.name == "pandas":
        return pd.DataFrame(columns, copy=False)
    native = {str(name): _from_pandas(column) for name, column in columns.items()}
    frame = nw.from_dict(native, backend=library.name)  # pyright: ignore[reportArgumentType]
    zones = {
        n: str(column.dtype.tz)
        for n, column in columns.items()
        if isinstance(column.dtype, pd.DatetimeTZDtype)
    }
    local = [
        nw.col(str(n)).dt.replace_time_zone("UTC").dt.convert_time_zone(zone) for n, zone in zones.items()
    ]
    frame = frame.with_columns(*local) if local else frame
    wanted = {str(n): dtype for n, dtype in (library.dtypes or {}).items() if n in columns}
    if library.name == "pyarrow":
        return _cast_arrow(frame.to_native(), wanted)
    casts = [nw.col(n).cast(dtype) for n, dtype in wanted.items() if _holds(dtype, columns[n])]
    return (frame.with_columns(*casts) if casts else frame).to_native()


def _cast_arrow(table: Any, wanted: dict[str, Any]) -> Any:
    """Cast columns of a pyarrow table where that loses nothing."""
    for name, dtype in wanted.items():
        try:
            column = table[name].cast(dtype)
        except (ValueError, NotImplementedError):  # pyarrow's errors for what does not fit
            continue
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _from_pandas(column: pd.Series) -> Any:
    dtype = column.dtype
    if isinstance(dtype, pd.DatetimeTZDtype):
        return column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    if getattr(dtype, "kind", "O") in "biufMm" and isinstance(dtype, np.dtype):
        return column.to_numpy()
    return column.astype(object).where(column.notna(), None).tolist()


def _holds(wanted: Any, column: pd.Series) -> bool:
    """Whether a narwhals dtype can hold every value of a column exactly."""
    kind = getattr(column.dtype, "kind", "O")
    if isinstance(wanted, nw.Enum):
        return set(column.dropna()) <= set(wanted.categories)
    if isinstance(wanted, nw.Date):
        return kind == "M" and bool((column == column.dt.normalize()).all())
    if isinstance(wanted, (nw.Datetime, nw.Duration)):
        per, have = _NANOSECONDS[wanted.time_unit], _NANOSECONDS[column.dt.unit]
        if per <= have:
            return True
        index = pd.DatetimeIndex(column) if kind == "M" else pd.TimedeltaIndex(column)
        return not (index.asi8 % (per // have)).any()
    return not (wanted.is_integer() and kind == "f")
