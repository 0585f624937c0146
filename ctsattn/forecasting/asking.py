"""What a forecast is asked for: steps, a span, timestamps or a future frame become rows (series, time)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.building import build_store
from ctsattn.data.clock import Ticks
from ctsattn.data.errors import examples
from ctsattn.data.frame import Panel, Rows, read_rows
from ctsattn.data.schema import FUTURE, STATIC, TEXT, Schema
from ctsattn.data.series import SeriesStore
from ctsattn.data.steps import future_ticks, parse_duration, series_steps
from ctsattn.data.tables import is_frame
from ctsattn.data.times import read_times

_MAX_STEPS = 100_000


@dataclass(frozen=True)
class Queries:
    """Asked times, by series and ascending in time.

    Attributes:
        series: `[rows]` positions in the store.
        ticks: `[rows]` times.
    """

    series: NDArray[np.int64]
    ticks: Ticks

    @staticmethod
    def of(series: NDArray[np.int64], ticks: Ticks) -> Queries:
        """Sort, and answer what is asked twice once."""
        order = np.lexsort((ticks, series))
        series, ticks = series[order], ticks[order]
        fresh = np.ones(len(series), bool)
        fresh[1:] = (series[1:] != series[:-1]) | (ticks[1:] != ticks[:-1])
        return Queries(series[fresh], ticks[fresh])

    def within(self, start: int, stop: int) -> Queries:
        """Those of a run of series, which are counted from its first."""
        begin, end = np.searchsorted(self.series, [start, stop])
        return Queries(self.series[begin:end] - start, self.ticks[begin:end])

    def __len__(self) -> int:
        return len(self.series)


def ask(
    store: SeriesStore,
    schema: Schema,
    horizon: float,
    *,
    h: int | None = None,
    times: Any = None,
    span: Any = None,
    future: Rows | None = None,
) -> Queries:
    """Resolve one way of asking.

    Args:
        store: The history.
        schema: Decides what a step is where a series shows none.
        horizon: Span in seconds or units that is asked when nothing else is said.
        h: Steps ahead of each series.
        times: Timestamps for every series, or a frame with ids and times.
        span: A duration; steps up to it.
        future: Rows of a future frame; its times are asked when nothing else is said.

    Returns:
        The rows.

    Raises:
        ValueError: More than one way is used, or a number is out of range.
        TypeError: Times are of another kind than the history's.
    """
    given = [n for n, v in (("h", h), ("times", times), ("horizon", span)) if v is not None]
    if len(given) > 1:
        raise ValueError(
            f"Ask in one way, but {' and '.join(map(repr, given))} were given. Leave out all but one."
        )
    if times is not None:
        return _ask_times(store, times)
    if future is not None and not given:
        if not len(future.ticks):
            raise ValueError(
                "`future_df` has no rows, so it asks for nothing. Say what to ask: predict(h=...)."
            )
        return Queries.of(future.series, future.ticks)
    started = _with_starts(store)
    if h is not None:
        return _ask_steps(started, schema, h)
    return _ask_span(started, schema, horizon if span is None else parse_duration(span, store.source.clock))


def _ask_steps(store: SeriesStore, schema: Schema, h: Any) -> Queries:
    """The next `h` steps of every series, each by its own step."""
    if isinstance(h, bool) or not isinstance(h, (int, np.integer)):
        raise TypeError(
            f"`h` counts steps, so it must be an integer, got {h!r}. For a duration use horizon=..."
        )
    if not 1 <= h <= _MAX_STEPS:
        raise ValueError(f"`h` must lie between 1 and {_MAX_STEPS}, got {h}.")
    steps = series_steps(store, schema.step)
    return Queries.of(
        np.repeat(np.arange(store.num_series), h), future_ticks(store, steps, int(h)).reshape(-1)
    )


def _ask_span(store: SeriesStore, schema: Schema, seconds: float) -> Queries:
    """Every step of every series up to a span after its last target; the span's end where no step fits."""
    steps = series_steps(store, schema.step)
    span = store.source.clock.ticks(seconds)
    first = store.source.clock.seconds(future_ticks(store, steps, 1)[:, 0] - store.last_target)
    # Months differ in length by a tenth, so a few steps more than the first one suggests may fit.
    most = int(np.ceil(1.2 * seconds / max(float(first.min()), 1e-300))) + 1
    if most > _MAX_STEPS:
        raise ValueError(
            f"A horizon of {seconds:.6g} would be {most} steps, more than {_MAX_STEPS}. Ask for the "
            f"timestamps you need: predict(times=[...])."
        )
    ahead = future_ticks(store, steps, most)
    inside = ahead <= (store.last_target + span)[:, None]
    none = ~inside.any(axis=1)
    ahead[none, 0] = store.last_target[none] + span
    inside[none, 0] = True
    return Queries.of(np.nonzero(inside)[0], ahead[inside])


def _ask_times(store: SeriesStore, times: Any) -> Queries:
    """Given times of every series, or, in a frame with an id column, of the series named there."""
    source = store.source
    if is_frame(times) and not isinstance(times, pd.Series):
        rows = read_rows(times, source)
        if rows is None or not len(rows.ticks):
            raise ValueError("`times` has no rows. Give at least one time.")
        return Queries.of(rows.series, rows.ticks)
    if isinstance(times, (dict, set)):
        raise TypeError(
            f"`times` must be a list of times, or a frame of ids and times, not a {type(times).__name__}."
        )
    times = list(times) if isinstance(times, Iterator) else times
    column = pd.Series([times] if np.isscalar(times) or np.ndim(times) == 0 else times)
    if not len(column):
        raise ValueError("`times` is empty. Give at least one time.")
    ticks, clock = read_times(column.reset_index(drop=True), "times")
    ticks = source.clock.convert(ticks, clock)
    return Queries.of(np.repeat(np.arange(store.num_series), len(ticks)), np.tile(ticks, store.num_series))


def _with_starts(store: SeriesStore) -> SeriesStore:
    """Let series without history start where the others end."""
    if store.has_history.all():
        return store
    if not store.has_history.any():
        raise ValueError(
            f"No series has an observation of {examples(store.source.columns.targets)}, so steps ahead "
            f"have no start. Ask for timestamps: predict(times=[...])."
        )
    started = replace(store)
    last = np.array(store.last_target)
    last[~store.has_history] = store.last_target[store.has_history].max()
    started.__dict__["last_target"] = last
    return started


def with_known(store: SeriesStore, schema: Schema, future: Rows | None) -> SeriesStore:
    """Add rows of a future frame to what is known ahead; where both have a value the new one holds."""
    features = schema.having(FUTURE)
    if future is None or not features:
        return store
    absent = [f.name for f in features if f.name not in future.columns]
    if len(absent) == len(features):
        raise ValueError(
            f"`future_df` has none of the known-future covariates {examples(absent, 8)}; it has "
            f"{examples(future.columns, 8) or 'only ids and times'}. Add them, or fit without future_cols."
        )
    nothing = pd.Series([], dtype=float)
    columns = {f.name: nothing for f in schema.features if f.role not in (STATIC, "ignored")}
    empty = Rows(np.zeros(0, np.int64), store.past.times[:0], columns)
    static = {
        f.name: pd.Series([None] * store.num_series, dtype=object if f.kind == TEXT else float)
        for f in schema.having(STATIC)
    }
    added = build_store(
        Panel(store.source, empty, future=future, static=static), schema, duplicates="last"
    ).known
    return replace(store, known=store.known.merged(added))


def beyond_known(
    store: SeriesStore, schema: Schema, asked: Queries
) -> tuple[NDArray[np.bool_], list[list[Any]]]:
    """Rows beyond the last known value of a known-future covariate, and which covariates those are."""
    features = schema.known
    if not features:
        return np.zeros(len(asked.series), bool), [[] for _ in asked.series]
    counts = store.known.counts.reshape(-1, len(features))
    ends = store.known.indptr[1:].reshape(-1, len(features)) - 1
    times = store.known.times
    last = times[np.maximum(ends, 0)] if len(times) else np.zeros(ends.shape, asked.ticks.dtype)
    ahead = (asked.ticks[:, None] > last[asked.series]) | (counts[asked.series] == 0)
    names = [[f.name for f, missing in zip(features, row, strict=True) if missing] for row in ahead]
    return ahead.any(axis=1), names
