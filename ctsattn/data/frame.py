"""From a user's frames to a checked `Panel`: who, when, and the columns, with nothing guessed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.clock import Clock, Ticks, read_times
from ctsattn.data.dialects import recognise
from ctsattn.data.errors import examples
from ctsattn.data.schema import Columns
from ctsattn.data.tables import Library, Table, write_table


@dataclass(frozen=True)
class Rows:
    """Rows of one frame.

    Attributes:
        series: `[rows]` position of the row's series among the ids.
        ticks: `[rows]` time of the row.
        columns: The columns beside id and time.
    """

    series: NDArray[np.int64]
    ticks: Ticks
    columns: Table


@dataclass(frozen=True)
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
            columns[self.columns.id] = pd.Series(self.ids.take(np.asarray(series, np.int64)))
        columns[self.columns.time] = self.clock.restore(ticks)
        for name, value in values.items():
            columns[name] = value if isinstance(value, pd.Series) else pd.Series(value)
        return write_table(columns, self.library)

    def describe(self, series: NDArray[np.int64], ticks: Ticks, limit: int = 3) -> str:
        """Name the id and time of the first few of some rows."""
        times = self.clock.restore(np.asarray(ticks)[:limit])
        if self.columns.id is None:
            places = [f"{self.columns.time} {time}" for time in times]
        else:
            ids = self.ids.take(np.asarray(series, np.int64)[:limit])
            places = [
                f"{self.columns.id} {i!r} at {self.columns.time} {t}" for i, t in zip(ids, times, strict=True)
            ]
        return "; ".join(places) + ("; ..." if len(series) > limit else "")


@dataclass(frozen=True)
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
    if not table[found.time].size:
        raise ValueError("The frame has no rows. Give at least one observation.")
    ticks, clock = read_times(table[found.time], found.time)
    codes, ids = _read_ids(table, found)
    rest = {n: c for n, c in table.items() if n not in (found.id, found.time)}
    source = Source(found, clock, library, ids)
    extra = (static_df, future_df) if cold_start else ()
    source = replace(source, ids=_more_ids(source, extra))
    return Panel(
        source,
        Rows(codes, ticks, rest),
        read_rows(past_df, source),
        read_rows(future_df, source),
        read_static(static_df, source),
    )


def _read_ids(table: Table, columns: Columns) -> tuple[NDArray[np.int64], pd.Index]:
    if columns.id is None:
        return np.zeros(len(table[columns.time]), np.int64), pd.RangeIndex(1)
    column = table[columns.id]
    codes, uniques = pd.factorize(column)
    missing = np.flatnonzero(codes < 0)
    if missing.size:
        raise ValueError(
            f"Id column {columns.id!r} has {missing.size} missing value(s), first at row(s) "
            f"{examples(missing)}. Every row needs an id. Drop them: df = df.dropna(subset=[{columns.id!r}])."
        )
    return codes.astype(np.int64, copy=False), pd.Index(uniques, copy=False)


def _more_ids(source: Source, frames: tuple[Any, ...]) -> pd.Index:
    """Append ids that only frames of covariates have."""
    ids = source.ids
    for df in frames:
        if df is None or source.columns.id is None:
            continue
        table = _columns_of(df, source.columns)
        if source.columns.id in table:
            fresh = pd.Index(pd.unique(table[source.columns.id].dropna()))
            fresh = fresh[_positions(ids, fresh) < 0]
            ids = pd.Index([*ids, *fresh]) if len(fresh) else ids
    return ids


def _positions(ids: pd.Index, wanted: pd.Index) -> NDArray[np.int64]:
    """Find ids by value, whatever dtypes the two frames use; -1 where absent."""
    plain = [i.astype(object) if isinstance(i, pd.CategoricalIndex) else i for i in (ids, wanted)]
    return np.asarray(plain[0].get_indexer(plain[1]), np.int64)


def _columns_of(df: Any, columns: Columns) -> Table:
    """Columns of a frame without targets; an id in the index counts."""
    if isinstance(df, (pd.DataFrame, pd.Series)) and (df.index.name == columns.id or df.index.nlevels > 1):
        df = df.reset_index()
    from ctsattn.data.tables import open_table

    return open_table(df)[0]


def read_rows(df: Any, source: Source, *, unknown: str = "error") -> Rows | None:
    """Read a frame of covariates or asked times against the ids and clock of a history.

    Args:
        df: Frame with a time column, and an id column unless its rows are meant for every series.
        source: The history's names, ids and clock.
        unknown: What to do with ids that the history lacks: "error" or "drop".

    Returns:
        Its rows, or `None` if `df` is `None`.

    Raises:
        ValueError: If times or ids cannot be read, or ids are unknown.
        TypeError: If its clock is of another kind than the history's.
    """
    if df is None:
        return None
    table, found, _ = recognise(df, replace(source.columns, past=(), future=()), need_targets=False)
    ticks, clock = read_times(table[found.time], found.time)
    ticks = source.clock.convert(ticks, clock)
    rest = {n: c for n, c in table.items() if n not in (source.columns.id, found.time)}
    if source.columns.id is None or source.columns.id not in table:
        return _for_every_series(Rows(np.zeros(len(ticks), np.int64), ticks, rest), len(source.ids))
    codes, uniques = _read_ids(table, replace(found, id=source.columns.id))
    series = _positions(source.ids, uniques)[codes]
    absent = uniques[_positions(source.ids, uniques) < 0]
    if len(absent) and unknown == "error":
        raise ValueError(
            f"{len(absent)} id(s) have no history, for example {examples(absent)}; known are "
            f"{examples(source.ids)} ({source.ids.dtype}, here {uniques.dtype}). Give their history in `df`, "
            f"or leave them out."
        )
    keep = series >= 0
    if keep.all():
        return Rows(series, ticks, rest)
    return Rows(series[keep], ticks[keep], {n: c[keep].reset_index(drop=True) for n, c in rest.items()})


def _for_every_series(rows: Rows, num_series: int) -> Rows:
    length = len(rows.ticks)
    again = {n: pd.concat([c] * num_series, ignore_index=True) for n, c in rows.columns.items()}
    series = np.repeat(np.arange(num_series), length)
    return Rows(series, np.tile(rows.ticks, num_series), again)


def read_static(df: Any, source: Source) -> Table | None:
    """Read static covariates: one row for each id, in the order of the history's ids.

    Ids without a row get missing values; rows of unknown ids are left out.

    Raises:
        ValueError: If an id has more than one row, or the id column is absent.
    """
    if df is None:
        return None
    table = _columns_of(df, source.columns)
    identity = source.columns.id
    if identity is None:
        place, names = np.zeros(1, np.int64), list(table)
        rows = len(next(iter(table.values()))) if table else 0
        if rows != 1:
            raise ValueError(f"The history is one series, but `static_df` has {rows} rows. Give one row.")
        return {name: table[name] for name in names}
    if identity not in table:
        raise ValueError(f"`static_df` has no id column {identity!r}; it has {examples(table)}.")
    ids = pd.Index(table[identity])
    twice = ids[ids.duplicated()].unique()
    if len(twice):
        raise ValueError(
            f"`static_df` has more than one row for {len(twice)} id(s), for example {examples(twice)}. Keep "
            f"one: static_df = static_df.drop_duplicates({identity!r}, keep='last')."
        )
    place = _positions(ids, source.ids)
    return {
        name: column.reindex(place.astype(object)).reset_index(drop=True)
        if (place < 0).any()
        else column.take(place).reset_index(drop=True)
        for name, column in table.items()
        if name not in (identity, source.columns.time)
    }
