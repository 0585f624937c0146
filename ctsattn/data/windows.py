"""Windows: the one place that cuts the past from the future."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.batch import TaskSpec
from ctsattn.data.clock import Ticks
from ctsattn.data.errors import examples
from ctsattn.data.series import Ragged, SeriesStore, spans

MIN_TOKENS = 16  # observations of a channel that a window shows even where the lookback holds fewer
BEYOND = 4  # observations on the far side of a time between observations, where there are as many
DENSE = 128  # observations by which the cutoffs of windows with data on both sides are apart, at most


@dataclass(frozen=True, eq=False)
class Windows:
    """Series seen from cutoffs, and the times asked of each.

    Attributes:
        series: `[windows]` positions in the store.
        cutoff: `[windows]` ticks; nothing later is shown.
        times: `[queries]` asked ticks of all windows, ascending within each.
        indptr: `[windows + 1]` where the queries of each window begin.
        hide: `[windows]` whether observations at asked times are withheld from the past (imputation).
    """

    series: NDArray[np.int64]
    cutoff: Ticks
    times: Ticks
    indptr: NDArray[np.int64]
    hide: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.series)

    @property
    def queries(self) -> Ragged:
        """The asked times as segments."""
        return Ragged(self.times, np.zeros(len(self.times)), self.indptr)

    def take(self, which: NDArray[np.int64]) -> Windows:
        """Pick windows, in the order given."""
        queries = self.queries.take(which)
        return Windows(
            self.series[which], self.cutoff[which], queries.times, queries.indptr, self.hide[which]
        )

    @staticmethod
    def of(series: NDArray[np.int64], cutoff: Ticks, queries: Ragged) -> Windows:
        """Windows that hide nothing."""
        return Windows(series, cutoff, queries.times, queries.indptr, np.zeros(len(series), bool))


@dataclass(frozen=True, eq=False)
class Past:
    """Observations that windows may see.

    Attributes:
        at: `[tokens]` positions in `store.past`, window by window, channel by channel, ascending.
        counts: `[windows, channels]` how many of them belong to each.
    """

    at: NDArray[np.int64]
    counts: NDArray[np.int64]


def cut_past(store: SeriesStore, spec: TaskSpec, windows: Windows, max_tokens: int) -> Past:
    """Choose what each window sees: never anything after its cutoff, nor anything it hides.

    A channel shows the observations of the lookback span before the cutoff, or the last 16 where the span
    holds fewer, and at most the last `max_tokens`.
    """
    start, stop = visible(store, spec, windows.series, windows.cutoff, max_tokens)
    at, counts = spans(start.reshape(-1), stop.reshape(-1))
    counts = counts.reshape(start.shape)
    return _without_hidden(store, windows, at, counts) if windows.hide.any() else Past(at, counts)


def visible(
    store: SeriesStore, spec: TaskSpec, series: NDArray[np.int64], cutoff: Ticks, max_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in `store.past` the observations that windows show begin and end, `[windows, channels]`."""
    segments = store.segments(series)
    stop = store.past.search(segments, cutoff[:, None])
    span = store.source.clock.ticks(spec.lookback * spec.time_unit)
    start = store.past.search(segments, (cutoff - span)[:, None])
    first = np.maximum(store.past.indptr[segments], stop - max_tokens)
    return np.maximum(np.minimum(start, stop - MIN_TOKENS), first), stop


def _without_hidden(
    store: SeriesStore, windows: Windows, at: NDArray[np.int64], counts: NDArray[np.int64]
) -> Past:
    owner = np.repeat(np.arange(counts.size), counts.reshape(-1))
    hides = windows.hide[:, None] & (np.arange(store.num_channels) < store.num_targets)
    some = np.flatnonzero(np.repeat(hides, counts.reshape(-1)))
    keep = np.ones(len(at), bool)
    keep[some] = ~is_asked(windows, owner[some] // store.num_channels, store.past.times[at[some]])
    left = np.bincount(owner[keep], minlength=counts.size).reshape(counts.shape)
    return Past(at[keep], left)


def is_asked(windows: Windows, window: NDArray[np.int64], times: Ticks) -> NDArray[np.bool_]:
    """Whether a window asks for exactly these times."""
    queries = windows.queries
    place = queries.search(window, times, after=False)
    inside = place < queries.indptr[window + 1]
    there = queries.times[np.minimum(place, max(len(queries) - 1, 0))] if len(queries) else times
    return inside & (there == times)


def answer_windows(store: SeriesStore, spec: TaskSpec, series: NDArray[np.int64], ticks: Ticks) -> Windows:
    """Choose the window that answers each asked time.

    What lies after the last observation is seen from there. What lies before it is seen with data on both
    sides, from a cutoff that depends on the series and the asked time alone, so that no answer depends on
    what else is asked.

    Args:
        store: The history.
        spec: Sizes and units.
        series: `[rows]` positions in the store, ascending.
        ticks: `[rows]` asked times, ascending within a series.

    Returns:
        Windows whose queries, one window after the other, are the rows in their order.
    """
    cutoff = store.end[series].astype(np.result_type(store.end, ticks))
    inside = ticks < cutoff
    cutoff[inside] = _surrounding(store, spec, series[inside], ticks[inside])
    head = np.ones(len(series), bool)
    head[1:] = (series[1:] != series[:-1]) | (cutoff[1:] != cutoff[:-1])
    indptr = np.append(np.flatnonzero(head), len(series)).astype(np.int64)
    return Windows.of(series[head], cutoff[head], Ragged(ticks, np.zeros(len(ticks)), indptr))


def _surrounding(store: SeriesStore, spec: TaskSpec, series: NDArray[np.int64], ticks: Ticks) -> Ticks:
    """Cutoffs a quarter to three quarters of the lookback after a time, on a grid from the series' origin.

    Where a hole is near, the cutoff moves until four observations follow the time and some precede it; where
    observations are so dense that a window cannot show as many, the grid counts observations instead.
    """
    clock, origin = store.source.clock, store.first[series]
    half = spec.lookback * spec.time_unit / 2
    block = np.maximum(np.floor(clock.seconds(ticks - origin) / half), 0.0)
    cutoff = origin + clock.ticks((block + 1.5) * half)
    moments = store.moments
    begin, last = moments.indptr[series], np.maximum(moments.indptr[series + 1] - 1, 0)
    rank = moments.search(series, ticks) - begin
    if len(moments):
        after = moments.times[np.minimum(begin + rank + BEYOND - 1, last)]
        most = moments.times[np.minimum(begin + (rank // DENSE + 2) * DENSE, last)]
        cutoff = np.minimum(np.maximum(cutoff, after), most)
        before = moments.times[np.minimum(begin + np.maximum(rank - BEYOND, 0), last)]
        # A window that begins in a hole ends soon after it, so that its last 16 lie on both sides.
        cutoff = np.where(cutoff - before > clock.ticks(2 * half), after, cutoff)
    return np.minimum(cutoff, store.end[series])


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """All windows that training may draw: a cutoff at each time a target was observed, if others follow.

    Series are drawn with a weight of the square root of their windows, so that long series do not drown
    short ones, and short ones are not repeated without end.

    Attributes:
        store: Series to draw from.
        spec: Sizes and units.
        max_queries: Most queries in a window; a random choice where the horizon holds more.
        impute: Share of windows that also ask for hidden times of their past.
    """

    store: SeriesStore
    spec: TaskSpec
    max_queries: int = 256
    impute: float = 0.0

    def cutoffs(self) -> NDArray[np.int64]:
        """Positions in `store.moments` of every cutoff with a target observed within the horizon after it."""
        return self._cutoffs

    @cached_property
    def _cutoffs(self) -> NDArray[np.int64]:
        return self.store.kept(f"cutoffs-{self.spec.horizon * self.spec.time_unit!r}", self._cutoffs_of)

    def _cutoffs_of(self, start: int, stop: int) -> NDArray[np.int64]:
        """Cutoffs of a run of series."""
        moments = self.store.moments
        begin, end = int(moments.indptr[start]), int(moments.indptr[stop])
        if begin == end:
            return np.zeros(0, np.int64)
        gap = self.store.source.clock.seconds(np.diff(moments.times[begin:end]))
        follows = np.ones(len(gap), bool)
        borders = moments.indptr[start + 1 : stop] - begin - 1
        follows[borders[(borders >= 0) & (borders < len(gap))]] = False
        return begin + np.flatnonzero(follows & (gap <= self.spec.horizon * self.spec.time_unit))

    @cached_property
    def _begin(self) -> NDArray[np.int64]:
        """`[series + 1]` where the cutoffs of each series begin in `_cutoffs`."""
        return np.searchsorted(self._cutoffs, self.store.moments.indptr)

    @property
    def counts(self) -> NDArray[np.int64]:
        """`[series]` cutoffs in each series."""
        return np.diff(self._begin)

    @cached_property
    def _odds(self) -> NDArray[np.float64]:
        """Cumulated odds of the series."""
        odds = np.cumsum(np.sqrt(self.counts))
        return odds / odds[-1]

    def every(self, cutoffs: NDArray[np.int64] | None = None) -> Windows:
        """Windows at the given positions of `store.moments`, or at all that `cutoffs` lists."""
        moments = self.store.moments
        at = self._cutoffs if cutoffs is None else cutoffs
        series, cutoff = moments.owner(at), moments.times[at]
        return Windows.of(series, cutoff, self._ahead(series, cutoff))

    def draw(self, count: int, rng: np.random.Generator) -> Windows:
        """Draw windows at random.

        Raises:
            ValueError: If no series has two observations within the horizon of one another.
        """
        if not self._cutoffs.size:
            targets = examples(self.store.source.columns.targets)
            raise ValueError(
                f"There is nothing to train on: no series has an observation of {targets} within the horizon "
                f"({self._horizon_text()}) after another. Give longer series, a longer horizon, or a model "
                f"that needs no training: model=models.LastValue()."
            )
        odds, begin = self._odds, self._begin
        series = np.searchsorted(odds, rng.random(count), side="right")
        number = begin[series] + (rng.random(count) * (begin[series + 1] - begin[series])).astype(np.int64)
        drawn = self._thin(self.every(self._cutoffs[np.sort(number)]), rng)
        return self._hide(drawn, rng) if self.impute > 0 else drawn

    def _horizon_text(self) -> str:
        units = "s" if self.store.source.clock.is_physical else "units of its clock"
        return f"{self.spec.horizon * self.spec.time_unit:.6g} {units}"

    def _ahead(self, series: NDArray[np.int64], cutoff: Ticks) -> Ragged:
        """Times within the horizon after each cutoff at which a target was observed."""
        moments = self.store.moments
        span = self.store.source.clock.ticks(self.spec.horizon * self.spec.time_unit)
        at, counts = spans(moments.search(series, cutoff), moments.search(series, cutoff + span))
        return Ragged(moments.times[at], np.zeros(len(at)), np.concatenate([[0], np.cumsum(counts)]))

    def _thin(self, windows: Windows, rng: np.random.Generator) -> Windows:
        queries = windows.queries
        if queries.counts.max(initial=0) <= self.max_queries:
            return windows
        order = np.lexsort((rng.random(len(queries)), queries.segment))
        rank = np.empty(len(queries), np.int64)
        rank[order] = np.arange(len(queries)) - queries.indptr[queries.segment[order]]
        left = queries.keep(rank < self.max_queries)
        return replace(windows, times=left.times, indptr=left.indptr)

    def _hide(self, windows: Windows, rng: np.random.Generator) -> Windows:
        """Ask a share of the windows for past times too, singly or as one gap, and hide these."""
        hide = rng.random(len(windows)) < self.impute
        moments = self.store.moments
        span = self.store.source.clock.ticks(self.spec.lookback * self.spec.time_unit)
        stop = moments.search(windows.series, windows.cutoff)
        start = np.maximum(moments.search(windows.series, windows.cutoff - span), stop - self.max_queries)
        at, counts = spans(start, np.where(hide, stop, start))
        window = np.repeat(np.arange(len(windows)), counts)
        place = (np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts) + 0.5) / counts[window]
        share, middle = rng.uniform(0.1, 0.5, len(windows)), rng.random(len(windows))
        singly = rng.random(len(windows)) < 0.5
        chosen = np.where(
            singly[window],
            rng.random(len(at)) < share[window],
            np.abs(place - middle[window]) < share[window] / 2,
        )
        owner = np.concatenate([window[chosen], windows.queries.segment])
        times = np.concatenate([moments.times[at[chosen]], windows.times])
        queries = Ragged.from_rows(owner, times, np.zeros(len(times)), len(windows))
        return replace(windows, times=queries.times, indptr=queries.indptr, hide=hide)
