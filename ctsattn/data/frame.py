"""From a user's frames to a checked `Panel`: who, when, and the columns, with nothing guessed."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.clock import Clock, Ticks
from ctsattn.data.dialects import columns_of, recognise
from ctsattn.data.errors import examples
from ctsattn.data.schema import Columns, DataWarning
from ctsattn.data.tables import Library, Table, write_table
from ctsattn.data.times import read_times


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one frame, in the frame's order.

    Attributes:
        series: `[rows]` position of the row's series among the ids.
        ticks: `[rows]` time of the row.
        columns: The columns beside id and time.
    """

    series: NDArray[np.int64]
    ticks: Ticks
    columns: Table

    @cached_property
    def order(self) -> NDArray[np.int64] | None:
        """Sorts the rows by series and time, and keeps the order of equal ones; `None` if they are sorted."""
        return None if is_sorted(self.series, self.ticks) else np.lexsort((self.ticks, self.series))

    @cached_property
    def sorted(self) -> tuple[NDArray[np.int64], Ticks]:
        """Series and ticks in that order."""
        return (
            (self.series, self.ticks)
            if self.order is None
            else (self.series[self.order], self.ticks[self.order])
        )


def is_sorted(segment: NDArray[np.int64], times: Ticks) -> bool:
    """Whether rows ascend by segment and, within a segment, by time."""
    same = segment[1:] == segment[:-1]
    return bool(np.all((segment[1:] > segment[:-1]) | (same & (times[1:] >= times[:-1]))))


@dataclass(frozen=True, eq=False)
class Source:
    """What a frame looked like, for the way back.

    Attributes:
        columns: Names of its columns.
        clock: Kind, zone, unit and dtype of its times.
        library: Its library.
        ids: Its distinct ids in order of first appearance, in the caller's dtype.
    """

    columns: Columns
    clock: Clock
    library: Library
    ids: pd.Index

    def frame(self, series: NDArray[np.int64], ticks: Ticks, values: Table) -> Any:
        """Build a frame of the caller's library, names, zone and dtypes.

        Args:
            series: `[rows]` positions among `ids`.
            ticks: `[rows]` times.
            values: Further columns, `[rows]` each.
        """
        columns: Table = {}
        if self.columns.id is not None:
            ids = self.ids.take(np.asarray(series, np.int64))
            columns[self.columns.id] = pd.Series(ids, dtype=ids.dtype)
        columns[self.columns.time] = self.clock.restore(ticks)
        for name, value in values.items():
            columns[name] = value if isinstance(value, pd.Series) else pd.Series(value)
        return write_table(columns, self.library)

    def describe(self, series: NDArray[np.int64], ticks: Ticks, limit: int = 3) -> str:
        """Name the id and time of the first few of some rows."""
        shown = self.clock.restore(np.asarray(ticks)[:limit]).tolist()
        places = [f"{self.columns.time} {time}" for time in shown]
        if self.columns.id is not None:
            ids = self.ids.take(np.asarray(series, np.int64)[:limit]).tolist()
            places = [f"{self.columns.id} {i!r} at {place}" for i, place in zip(ids, places, strict=True)]
        return "; ".join(places) + ("; ..." if len(series) > limit else "")

    def positions(self, wanted: pd.Index) -> NDArray[np.int64]:
        """Find ids by value, whatever dtypes the two frames use; -1 where absent."""
        return np.asarray(self.ids.get_indexer(wanted), np.int64)


@dataclass(frozen=True, eq=False)
class Panel:
    """Frames that belong together, checked, with one list of ids and one clock.

    Attributes:
        source: Names, clock, ids and library of the main frame.
        rows: Rows of the main frame.
        past: Rows of a frame of past covariates with times of their own, or `None`.
        future: Rows of a frame of known-future covariates, or `None`.
        static: Columns of static covariates, one row for each id, or `None`.
    """

    source: Source
    rows: Rows
    past: Rows | None = None
    future: Rows | None = None
    static: Table | None = None

    @property
    def num_series(self) -> int:
        """Series, with or without observations."""
        return len(self.source.ids)


def read_panel(
    df: Any,
    columns: Columns,
    *,
    static_df: Any = None,
    past_df: Any = None,
    future_df: Any = None,
    cold_start: bool = False,
) -> Panel:
    """Read and check a history and the frames of covariates that go with it.

    Args:
        df: Long, wide or indexed frame of pandas, polars or pyarrow; it is not changed.
        columns: Names as the caller gave them.
        static_df: One row for each id.
        past_df: Past covariates at times of their own; without id column they go to every series.
        future_df: Known-future covariates at times of their own, likewise.
        cold_start: Whether ids that only `static_df` or `future_df` has become series without history.

    Returns:
        The panel; no value of a target or covariate has been looked at yet.

    Raises:
        ValueError: If columns, ids or times are absent, missing or unreadable.
        TypeError: If something is no frame, or clocks of two kinds are mixed.
    """
    table, found, library = recognise(df, columns)
    if not len(table[found.time]):
        raise ValueError(
            f"The frame has no rows, only the columns {examples(table, 12)}. Give at least one observation: "
            f"a row with {found.time!r} and {found.targets[0]!r}."
        )
    ticks, clock = read_times(table[found.time], found.time)
    codes, ids = _read_ids(table, found)
    source = Source(found, clock, library, ids)
    if cold_start and found.id is not None:
        source = replace(source, ids=_more_ids(source, [f for f in (static_df, future_df) if f is not None]))
    return Panel(
        source,
        Rows(codes, ticks, _rest(table, found)),
        read_rows(past_df, source),
        read_rows(future_df, source),
        read_static(static_df, source),
    )


def _rest(table: Table, columns: Columns) -> Table:
    return {name: column for name, column in table.items() if name not in (columns.id, columns.time)}


def _read_ids(table: Table, columns: Columns) -> tuple[NDArray[np.int64], pd.Index]:
    if columns.id is None:
        return np.zeros(len(table[columns.time]), np.int64), pd.RangeIndex(1)
    try:
        codes, uniques = pd.factorize(table[columns.id])
    except TypeError as error:
        raise TypeError(
            f"Id column {columns.id!r} holds what no series can be told by ({error}), for example "
            f"{examples(table[columns.id].iloc[:1])}. Give texts, numbers or tuples: df[{columns.id!r}] = "
            f"df[{columns.id!r}].astype(str)."
        ) from error
    missing = np.flatnonzero(codes < 0)
    if missing.size:
        raise ValueError(
            f"Id column {columns.id!r} has {missing.size} missing value(s), first at row(s) "
            f"{examples(missing)}. Every row needs an id. Drop them: df = df.dropna(subset=[{columns.id!r}])."
        )
    return codes.astype(np.int64, copy=False), pd.Index(uniques, dtype=uniques.dtype, copy=False)


def _more_ids(source: Source, frames: Iterable[Any]) -> pd.Index:
    """Append ids that only frames of covariates have."""
    for df in frames:
        table = columns_of(df, source.columns)
        if source.columns.id in table:
            fresh = pd.Index(pd.unique(table[source.columns.id].dropna()))
            fresh = fresh[source.positions(fresh) < 0]
            source = replace(source, ids=source.ids.append(fresh)) if len(fresh) else source
    return source.ids


def read_rows(df: Any, source: Source) -> Rows | None:
    """Read a frame of covariates or asked times against the ids and clock of a history.

    Args:
        df: Frame with a time column, and an id column unless its rows are meant for every series.
        source: The history's names, ids and clock.

    Returns:
        Its rows, or `None` if `df` is `None`.

    Raises:
        ValueError: If times or ids cannot be read, or the history lacks an id.
        TypeError: If its clock is of another kind than the history's.
    """
    if df is None:
        return None
    table, found, _ = recognise(df, replace(source.columns, past=(), future=()), need_targets=False)
    if not len(table[found.time]):  # whatever the dtypes of its empty columns
        return Rows(np.zeros(0, np.int64), np.zeros(0, np.int64), _rest(table, found))
    ticks, clock = read_times(table[found.time], found.time)
    _tell_of_zone(source.clock, clock, found.time)
    ticks = source.clock.convert(ticks, clock, found.time)
    if found.id is None:
        return _for_every_series(ticks, _rest(table, found), len(source.ids))
    codes, uniques = _read_ids(table, found)
    place = source.positions(uniques)
    if (place < 0).any():
        absent = uniques[place < 0]
        raise ValueError(
            f"{len(absent)} id(s) have no history, for example {examples(absent)} ({uniques.dtype}); known "
            f"are {examples(source.ids)} ({source.ids.dtype}). Give their history, or leave them out: "
            f"frame[frame[{found.id!r}].isin(df[{source.columns.id!r}])]."
        )
    return Rows(place[codes], ticks, _rest(table, found))


def _tell_of_zone(history: Clock, other: Clock, name: Hashable) -> None:
    """Warn when datetimes without a zone could mean the wall clock of the history's zone, or UTC."""
    bare = other.kind == "datetime" and other.zone is None and other.dtype != "date"
    if bare and history.zone not in (None, "UTC", "Etc/UTC", "+00:00"):
        warnings.warn(
            f"Times in column {name!r} have no zone, but those of the history do; they are read on the wall "
            f"clock of {history.zone}. Say so, or what else they are: "
            f"frame[{name!r}].dt.tz_localize({history.zone!r}).",
            DataWarning,
            stacklevel=3,
        )


def _for_every_series(ticks: Ticks, columns: Table, num_series: int) -> Rows:
    again = {n: pd.concat([c] * num_series, ignore_index=True) for n, c in columns.items()}
    return Rows(np.repeat(np.arange(num_series), len(ticks)), np.tile(ticks, num_series), again)


def read_static(df: Any, source: Source) -> Table | None:
    """Read static covariates: one row for each id, in the order of the history's ids.

    Ids without a row get missing values, with a warning; rows of unknown ids are left out.

    Raises:
        ValueError: If an id has more than one row, no row is of an id of the history, or no column of ids is
            there.
    """
    if df is None:
        return None
    table = columns_of(df, source.columns)
    identity = source.columns.id
    rest = _rest(table, source.columns)
    if identity is None:
        lengths = {len(column) for column in rest.values()} or {1}
        if lengths != {1}:
            raise ValueError(
                f"The history is one series, but `static_df` has {lengths.pop()} rows. Give one."
            )
        return rest
    if identity not in table:
        raise ValueError(f"`static_df` has no id column {identity!r}; it has {examples(table)}.")
    ids = pd.Index(table[identity])
    twice = ids[ids.duplicated()].unique()
    if len(twice):
        raise ValueError(
            f"`static_df` has more than one row for {len(twice)} id(s), for example {examples(twice)}. Keep "
            f"one: static_df = static_df.drop_duplicates({identity!r}, keep='last')."
        )
    place = replace(source, ids=ids).positions(source.ids)
    _tell_of_rowless(source, ids, place < 0)
    return {name: _pick(column, place) for name, column in rest.items()}


def _tell_of_rowless(source: Source, ids: pd.Index, rowless: NDArray[np.bool_]) -> None:
    """Warn of series that have no row of static covariates; refuse a frame that has one for no series."""
    if not rowless.any():
        return
    absent = source.ids[rowless]
    if rowless.all() and len(ids):
        raise ValueError(
            f"`static_df` has a row for no series: its ids are {examples(ids)} ({ids.dtype}), those of the "
            f"history are {examples(absent)} ({absent.dtype}). Give the ids of the history, in one dtype: "
            f"static_df[{source.columns.id!r}] = ...; or leave static_df out."
        )
    warnings.warn(
        f"`static_df` has no row for {len(absent)} of {len(source.ids)} series, for example "
        f"{examples(absent)}; their static covariates count as missing.",
        DataWarning,
        stacklevel=2,
    )


def _pick(column: pd.Series, place: NDArray[np.int64]) -> pd.Series:
    """Take values by position; missing where the position is -1."""
    return column.reindex(np.where(place < 0, len(column), place)).reset_index(drop=True)
