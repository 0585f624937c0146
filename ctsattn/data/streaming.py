"""From a stream of frames to a store on disk, in memory that grows with the number of series alone.

Each frame is checked and coded as it comes, by the same functions as a frame in memory, and its rows go to
disk; then each block of whole series becomes a part of the store.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.building import build_store, column_values, first_moment, scale_laws, static_values
from ctsattn.data.calendar import check_calendar
from ctsattn.data.clock import Ticks
from ctsattn.data.diskstore import DiskStore, StoreWriter
from ctsattn.data.frame import Panel, Rows, Source, read_panel, read_static
from ctsattn.data.roles import assign_roles
from ctsattn.data.schema import NUMBER, STATIC, TEXT, Columns, DataWarning, Feature, Schema
from ctsattn.data.spool import Scratch, Spool
from ctsattn.data.steps import typical_step


def learn_stream(
    head: Any,
    frames: Iterator[Any],
    columns: Columns,
    *,
    static_df: Any = None,
    calendar: Sequence[str] = (),
    duplicates: str = "error",
) -> tuple[Schema, DiskStore]:
    """As `building.learn_schema`, for a stream.

    Roles and vocabularies are read off the first million rows, scales and steps off as many observations of
    series spread over the whole.

    Args:
        head: The first frames in one.
        frames: All frames.
        columns: Names as the caller gave them.
        static_df: One row for each id.
        calendar: Names of calendar features.
        duplicates: As in `building.build_store`.

    Returns:
        The schema and the store.
    """
    panel = read_panel(head, columns, static_df=static_df)
    source = panel.source
    check_calendar(tuple(calendar), source.clock)
    schema = Schema(source.columns, assign_roles(panel), source.clock.kind, tuple(calendar))
    store = build_stream(frames, columns, schema, static_df=static_df, duplicates=duplicates)
    some = store.sample()
    learned = {"laws": scale_laws(some), "step": typical_step(some), "origin": first_moment(store)}
    return replace(schema, **learned), store


def build_stream(
    frames: Iterator[Any],
    columns: Columns,
    schema: Schema,
    *,
    static_df: Any = None,
    duplicates: str = "error",
) -> DiskStore:
    """As `building.build_store`, for a stream.

    Raises:
        ValueError: As there; or a static column varies, or one mean of texts is asked for.
        TypeError: The clocks of two frames differ in kind.
    """
    if duplicates == "mean" and any(f.kind == TEXT for f in (*schema.channels, *schema.known)):
        raise ValueError(
            "duplicates='mean' cannot join the texts of a stream. Pass duplicates='last', or leave the text "
            "columns out."
        )
    reader = _Reader(columns, schema)
    for frame in frames:
        reader.take(frame)
    return reader.store(static_df, duplicates)


class _Reader:
    """Takes frames one by one, and knows the series seen so far."""

    def __init__(self, columns: Columns, schema: Schema) -> None:
        self.columns = columns
        self.schema = schema
        self.features = (*schema.channels, *schema.known)
        self.places: dict[Hashable, int] = {}
        self.first: Source | None = None
        self.spool: Spool | None = None
        self.static = {f.name: np.zeros(0) for f in schema.having(STATIC)}
        self._told: set[Hashable] = set()

    def take(self, frame: Any) -> None:
        """Check a frame and write its rows to disk."""
        panel = read_panel(frame, self.columns)
        if self.first is None or self.spool is None:
            self.first = panel.source
            self.spool = Spool(Scratch(), len(self.features), panel.rows.ticks.dtype.kind == "f")
        series = self._positions(panel.source.ids)[panel.rows.series]
        ticks = self._ticks(panel)
        columns = [self._column(panel, feature) for feature in self.features]
        self.spool.append(series, ticks, np.stack(columns, axis=1))
        for feature in self.schema.having(STATIC):
            self._keep_static(panel, feature, series)

    def _positions(self, ids: pd.Index) -> NDArray[np.int64]:
        """Numbers of series by their first appearance in the stream."""
        places = self.places
        return np.array([places.setdefault(name, len(places)) for name in ids.tolist()], np.int64)

    def _ticks(self, panel: Panel) -> Ticks:
        assert self.first is not None
        clock, other = self.first.clock, panel.source.clock
        if other.kind != clock.kind:
            raise TypeError(
                f"The first frame of the stream has {clock.kind} times ({clock.dtype}), and a later one "
                f"{other.kind} times ({other.dtype}). Give all frames times of one kind."
            )
        factor = max(1, other.per_second // clock.per_second)
        if factor > 1 and (panel.rows.ticks % factor).any():
            raise ValueError(
                "A later frame of the stream has times finer than microseconds, which the first one has not. "
                "Give all frames times in one unit: df['ds'] = df['ds'].dt.as_unit('us')."
            )
        return clock.convert(panel.rows.ticks, other)

    def _column(self, panel: Panel, feature: Feature) -> NDArray[np.float64]:
        if feature.name not in panel.rows.columns:
            return np.full(len(panel.rows.ticks), np.nan)
        return column_values(panel, panel.rows, feature)

    def _keep_static(self, panel: Panel, feature: Feature, series: NDArray[np.int64]) -> None:
        """Remember the last value of each series, and see that it does not change."""
        if feature.name not in panel.rows.columns:
            return
        values = column_values(panel, panel.rows, feature)
        kept = self.static[feature.name]
        kept = np.concatenate([kept, np.full(len(self.places) - len(kept), np.nan)])
        there = np.flatnonzero(~np.isnan(values))
        before = kept.copy()
        kept[series[there]] = values[there]
        known = ~np.isnan(before[series[there]])
        odd = there[
            (values[there] != kept[series[there]]) | (known & (before[series[there]] != values[there]))
        ]
        if len(odd):
            self._tell_of_change(panel, feature, odd)
        self.static[feature.name] = kept

    def _tell_of_change(self, panel: Panel, feature: Feature, rows: NDArray[np.int64]) -> None:
        text = (
            f"Column {feature.name!r} is static ({feature.why}), but varies within a series, for example "
            f"{panel.source.describe(panel.rows.series[rows], panel.rows.ticks[rows])}."
        )
        if not feature.by_rule:
            raise ValueError(f"{text} Name it in past_cols or future_cols instead.")
        if feature.name not in self._told:
            self._told.add(feature.name)
            warnings.warn(f"{text} Its last value counts. Declare its role.", DataWarning, stacklevel=2)

    def store(self, static_df: Any, duplicates: str) -> DiskStore:
        """The store of all rows that were taken."""
        if self.first is None or self.spool is None:
            raise ValueError("The stream has no frame. Give at least one frame with rows.")
        source = replace(self.first, ids=self._ids())
        schema = self._plain_schema()
        writer = StoreWriter()
        part = None
        for start, stop, rows in self.spool.blocks():
            panel = _panel(source, schema, start, stop, rows)
            part = build_store(panel, schema, duplicates=duplicates)
            writer.add(part)
        assert part is not None
        like = replace(part, source=source, calendar=self.schema.calendar)
        return writer.finish(like, self._static_tables(source, static_df))

    def _ids(self) -> pd.Index:
        assert self.first is not None
        if self.columns.id is None or self.first.columns.id is None:
            return self.first.ids
        names = list(self.places)
        dtype = self.first.ids.dtype
        try:
            return pd.Index(names, dtype=object if isinstance(dtype, pd.CategoricalDtype) else dtype)
        except (TypeError, ValueError):
            return pd.Index(names)

    def _plain_schema(self) -> Schema:
        """What has been coded already is a number now; static columns are kept apart."""
        plain = [replace(f, kind=NUMBER, vocabulary=(), mean=0.0, std=1.0) for f in self.features]
        return replace(self.schema, features=tuple(plain), calendar=())

    def _static_tables(self, source: Source, static_df: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """`[series, static]` standardised numbers, and codes."""
        given = read_static(static_df, source) or {}
        panel = Panel(source, Rows(np.zeros(0, np.int64), np.zeros(0, np.int64), {}), static=given)
        tables = []
        for kind, dtype in ((NUMBER, np.float32), (TEXT, np.int64)):
            features = self.schema.having(STATIC, kind)
            table = static_values(panel, features)
            for number, feature in enumerate(features):
                if feature.name not in given:
                    table[:, number] = self._static_column(feature, len(source.ids))
            tables.append(table.astype(dtype))
        return tables[0], tables[1]

    def _static_column(self, feature: Feature, num_series: int) -> NDArray[np.float64]:
        kept = self.static[feature.name]
        values = np.concatenate([kept, np.full(num_series - len(kept), np.nan)])
        values = (values - feature.mean) / feature.std if feature.kind == NUMBER else values
        return np.nan_to_num(values, nan=0.0)


def _panel(source: Source, schema: Schema, start: int, stop: int, rows: NDArray[Any]) -> Panel:
    """A block of series as the panel that a frame of it would be."""
    columns = {f.name: pd.Series(rows["values"][:, i]) for i, f in enumerate(schema.features)}
    part = replace(source, ids=source.ids[start:stop])
    return Panel(part, Rows(rows["series"] - start, np.ascontiguousarray(rows["tick"]), dict(columns)))
