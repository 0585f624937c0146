"""Times asked of series: steps ahead, a span, given times, a frame; and the windows that answer them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.batch import TaskSpec
from ctsattn.data.clock import Ticks, read_times
from ctsattn.data.errors import examples
from ctsattn.data.frame import Source, read_rows
from ctsattn.data.series import Ragged, SeriesStore, spans
from ctsattn.data.steps import Steps, future_ticks
from ctsattn.data.windows import Windows


@dataclass(frozen=True)
class Queries:
    """Asked times, one a row of the answer, by series and ascending in time.

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

    def __len__(self) -> int:
        return len(self.series)


def ask_steps(store: SeriesStore, steps: Steps, h: int) -> Queries:
    """Ask for the next `h` steps of every series, each by its own step."""
    if isinstance(h, bool) or not isinstance(h, (int, np.integer)) or h < 1:
        raise ValueError(f"`h` must be a whole number of steps, at least 1, got {h!r}.")
    return Queries(np.repeat(np.arange(store.num_series), h), future_ticks(store, steps, int(h)).reshape(-1))


def ask_span(store: SeriesStore, steps: Steps, span: float) -> Queries:
    """Ask for every step of every series up to a span after its last target; at least for the span's end.

    Args:
        store: The history.
        steps: Step of each series.
        span: Seconds, or units of a numeric clock.
    """
    clock = store.source.clock
    limit = store.last_target + clock.ticks(span)
    most = (
        max(int(span / max(float(steps.count[steps.kind == 0].min(initial=np.inf)), 1e-300)), 1)
        if (steps.kind == 0).any()
        else 1
    )
    most = max(most, int(span / 86400.0) + 1 if (steps.kind > 0).any() else 1)
    ahead = future_ticks(store, steps, most)
    inside = ahead <= limit[:, None]
    ahead[~inside.any(1), 0] = limit[~inside.any(1)]
    inside[:, 0] = True
    return Queries(np.nonzero(inside)[0], ahead[inside])


def ask_times(store: SeriesStore, times: Any) -> Queries:
    """Ask for given times of every series, or, in a frame with an id column, of the series named there.

    Times without a zone are read on the wall clock of a history that has one.

    Raises:
        ValueError: If no time is given, ids are unknown, or times cannot be read.
        TypeError: If they are of another kind than the history's.
    """
    from ctsattn.data.tables import is_frame

    source = store.source
    if is_frame(times) and not isinstance(times, pd.Series):
        rows = read_rows(times, source)
        assert rows is not None
        return Queries.of(rows.series, rows.ticks)
    column = pd.Series([times] if np.isscalar(times) or isinstance(times, pd.Timestamp) else times)
    if not len(column):
        raise ValueError("`times` is empty. Give at least one time.")
    ticks, clock = read_times(column.reset_index(drop=True), "times")
    ticks = source.clock.convert(ticks, clock)
    series = np.repeat(np.arange(store.num_series), len(ticks))
    return Queries.of(series, np.tile(ticks, store.num_series))


def answer_windows(store: SeriesStore, spec: TaskSpec, queries: Queries) -> tuple[Windows, NDArray[np.bool_]]:
    """Choose the window that answers each query.

    What lies after the last observation is seen from there. What lies at or before it is seen with data on
    both sides, from a cutoff that depends on the series and the asked time alone, so that no answer depends
    on what else is asked.

    Args:
        store: The history.
        spec: Sizes and units.
        queries: What is asked; sorted by series and time.

    Returns:
        Windows whose queries, taken in order, are the rows of `queries`, and `[rows]` flags of those at or
        before the last observed target (in-sample).
    """
    cutoff = store.end[queries.series].copy()
    inside = store.has_history[queries.series] & (queries.ticks <= store.last_target[queries.series])
    back = inside & (queries.ticks <= cutoff)
    cutoff[back] = _surrounding(store, spec, queries.series[back], queries.ticks[back])
    head = np.ones(len(queries), bool)
    head[1:] = (queries.series[1:] != queries.series[:-1]) | (cutoff[1:] != cutoff[:-1])
    indptr = np.append(np.flatnonzero(head), len(queries))
    windows = Windows.of(
        queries.series[head], cutoff[head], Ragged(queries.ticks, np.zeros(len(queries)), indptr)
    )
    return windows, inside


def _surrounding(store: SeriesStore, spec: TaskSpec, series: NDArray[np.int64], ticks: Ticks) -> Ticks:
    """Cutoffs on a grid of half lookbacks from the series' origin, at least a quarter lookback after a time."""
    half = np.asarray(store.source.clock.ticks(spec.lookback * spec.time_unit / 2))
    half = np.maximum(half, 1) if half.dtype.kind == "i" else half
    origin = store.first[series]
    block = np.maximum(np.floor((ticks - origin) / half), 0).astype(ticks.dtype)
    cutoff = origin + (block + 1) * half + (half // 2 if half.dtype.kind == "i" else half / 2)
    return np.minimum(cutoff, store.end[series])


def plan_batches(
    store: SeriesStore, spec: TaskSpec, windows: Windows, *, max_tokens: int = 512, budget: int = 2**17
) -> Iterator[NDArray[np.int64]]:
    """Group windows of similar length, so that padding is small and no batch exceeds a budget.

    Args:
        store: The history.
        spec: Sizes and units.
        windows: What is to be answered.
        max_tokens: As in the collator.
        budget: Most padded tokens and queries in a batch; a single window may exceed it.

    Yields:
        Positions of windows.
    """
    segments = store.segments(windows.series)
    stop = store.past.search(segments, windows.cutoff[:, None])
    span = store.source.clock.ticks(spec.lookback * spec.time_unit)
    start = store.past.search(segments, (windows.cutoff - span)[:, None])
    tokens = np.minimum(stop - start, max_tokens).max(1, initial=1)
    width = np.maximum(tokens, 1) * store.num_channels + np.diff(windows.indptr)
    order = np.argsort(width, kind="stable")
    begin = 0
    while begin < len(order):
        fits = np.arange(1, len(order) - begin + 1) * width[order[begin:]] <= budget
        size = max(int(fits.argmin()) if not fits.all() else len(fits), 1)
        yield order[begin : begin + size]
        begin += size


def missing_future(source: Source, queries: Queries, future_df: Any) -> Any:
    """List the ids and times that are asked for but are not rows of a frame of future covariates.

    Args:
        source: The history's names, ids and clock.
        queries: What is asked.
        future_df: The frame of future covariates.

    Returns:
        A frame in the caller's library with the id and time columns; empty when nothing is missing.
    """
    rows = read_rows(future_df, source)
    have = Ragged.from_rows(rows.series, rows.ticks, np.zeros(len(rows.ticks)), len(source.ids))  # type: ignore[union-attr]
    place = have.search(queries.series, queries.ticks, after=False)
    at = np.minimum(place, max(len(have) - 1, 0))
    there = (
        (place < have.indptr[queries.series + 1]) & (have.times[at] == queries.ticks) if len(have) else False
    )
    absent = np.flatnonzero(~np.broadcast_to(there, len(queries)))
    return source.frame(queries.series[absent], queries.ticks[absent], {})
