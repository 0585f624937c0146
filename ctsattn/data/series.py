"""Series as flat arrays: every channel keeps its own times, nothing is padded and nothing narrowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.clock import Ticks
from ctsattn.data.frame import Source, is_sorted


@dataclass(frozen=True, eq=False)
class Ragged:
    """Observations of many segments, one segment after the other, ascending in time within each.

    Attributes:
        times: `[observations]` ticks.
        values: `[observations]` float64.
        indptr: `[segments + 1]` int64, where each segment begins.
    """

    times: Ticks
    values: NDArray[np.float64]
    indptr: NDArray[np.int64]

    @staticmethod
    def from_rows(
        segment: NDArray[np.int64], times: Ticks, values: NDArray[np.float64], num_segments: int
    ) -> Ragged:
        """Sort rows of any order; rows that share segment and time keep their order."""
        if not is_sorted(segment, times):
            order = np.lexsort((times, segment))
            segment, times, values = segment[order], times[order], values[order]
        counts = np.bincount(segment, minlength=num_segments)
        return Ragged(times, values, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    def owner(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Segments of the observations at some positions."""
        return np.searchsorted(self.indptr, at, side="right") - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """`[segments]` observations in each segment."""
        return np.diff(self.indptr)

    @cached_property
    def segment(self) -> NDArray[np.int64]:
        """`[observations]` segment of each observation."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def again(self) -> NDArray[np.bool_]:
        """`[observations]` whether another one of the same segment and time follows."""
        again = np.zeros(len(self), bool)
        again[:-1] = (self.times[1:] == self.times[:-1]) & (self.segment[1:] == self.segment[:-1])
        return again

    def latest(self) -> Ragged:
        """Keep the last of several observations of a segment at one time."""
        return self.keep(~self.again) if self.again.any() else self

    def __len__(self) -> int:
        return len(self.times)

    def search(self, segment: NDArray[np.int64], when: Ticks, *, after: bool = True) -> NDArray[np.int64]:
        """Count, as a position in the flat arrays, the observations up to a time.

        Args:
            segment: Segments to search, any shape.
            when: Time for each, of a shape that broadcasts.
            after: Whether observations at exactly `when` count.

        Returns:
            For each the position of the first observation that does not count; bisection in all segments
            at once, so the cost is the logarithm of the longest.
        """
        segment, when = np.broadcast_arrays(segment, when)
        low, high = self.indptr[segment], self.indptr[segment + 1]
        if not len(self):
            return low
        longest = int((high - low).max(initial=0))
        for _ in range(longest.bit_length()):
            middle = (low + high) // 2
            at = self.times[np.minimum(middle, len(self) - 1)]
            right = (at <= when if after else at < when) & (low < high)
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        return low

    def keep(self, mask: NDArray[np.bool_]) -> Ragged:
        """Keep some observations; segments may become empty."""
        counts = np.bincount(self.segment[mask], minlength=len(self.counts))
        return Ragged(self.times[mask], self.values[mask], np.concatenate([[0], np.cumsum(counts)]))

    def merged(self, other: Ragged) -> Ragged:
        """Add the observations of another of as many segments; where both have one, the other's holds."""
        return Ragged.from_rows(
            np.concatenate([self.segment, other.segment]),
            np.concatenate([self.times, other.times]),
            np.concatenate([self.values, other.values]),
            len(self.counts),
        ).latest()

    def spread(self, place: NDArray[np.int64], width: int, rows: int) -> Ragged:
        """Put each group of `width` segments at another place among `rows` groups; the others are empty."""
        segment = place[self.segment // width] * width + self.segment % width
        return Ragged.from_rows(segment, self.times, self.values, rows * width)

    def take(self, segments: NDArray[np.int64]) -> Ragged:
        """Pick segments, in the order given, repeated if given twice."""
        at, counts = spans(self.indptr[segments], self.indptr[segments + 1])
        return Ragged(self.times[at], self.values[at], np.concatenate([[0], np.cumsum(counts)]))


def spans(start: NDArray[np.int64], stop: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """List the integers of many half-open ranges, one range after the other, and the length of each."""
    counts = np.maximum(stop - start, 0)
    shift = np.repeat(start - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return np.arange(counts.sum()) + shift, counts


@dataclass(frozen=True, eq=False)
class SeriesStore:
    """All that is known of a set of series.

    Segment `series * num_channels + channel` of `past` holds the observations of a channel: targets
    first, then past covariates, in the caller's units; a categorical channel holds its codes. `known`
    likewise holds known-future covariates, numbers first (standardised), then codes.

    Attributes:
        source: Names, ids, clock and library of the frame.
        past: Observations of all channels.
        known: Known-future covariates at their own times.
        num_targets: Target channels.
        num_channels: Targets and past covariates.
        num_known: Numeric and categorical known-future covariates together.
        static: `[series, static]` float32, standardised; 0 where missing.
        static_codes: `[series, static categories]` int64.
        calendar: Names of the calendar features to sample.
    """

    source: Source
    past: Ragged
    known: Ragged
    num_targets: int
    num_channels: int
    num_known: int
    static: NDArray[np.float32]
    static_codes: NDArray[np.int64]
    calendar: tuple[str, ...] = ()

    @property
    def num_series(self) -> int:
        """Series, with or without observations."""
        return len(self.source.ids)

    def segments(self, series: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[..., channels]` segments of `past` of some series."""
        return series[..., None] * self.num_channels + np.arange(self.num_channels)

    @cached_property
    def moments(self) -> Ragged:
        """For each series the distinct times at which any target was observed; values are not used."""
        per_series = self.past.segment // self.num_channels
        target = self.past.segment % self.num_channels < self.num_targets
        series, times = per_series[target], self.past.times[target]
        return Ragged.from_rows(series, times, np.zeros(len(times)), self.num_series).latest()

    @cached_property
    def first(self) -> Ticks:
        """`[series]` first time in any channel, the series' origin; `end` without observations."""
        found, filled = self._bounds(np.minimum, self.past.indptr[:-1])
        return np.where(filled, found, self.end)

    @cached_property
    def end(self) -> Ticks:
        """`[series]` last time in any channel: the cutoff of a forecast.

        A series without observations stands where the last of the others ends; at 0 if there is none.
        """
        found, filled = self._bounds(np.maximum, self.past.indptr[1:] - 1)
        return np.where(filled, found, found[filled].max() if filled.any() else 0)

    def _bounds(self, pick: np.ufunc, at: NDArray[np.int64]) -> tuple[Ticks, NDArray[np.bool_]]:
        """Extreme of the times at some positions, one for each segment; and which series have any."""
        segments = np.flatnonzero(self.past.counts > 0)
        owner = segments // self.num_channels
        found, filled = np.zeros(self.num_series, self.past.times.dtype), np.zeros(self.num_series, bool)
        heads = np.flatnonzero(np.diff(owner, prepend=-1))
        if heads.size:
            found[owner[heads]] = pick.reduceat(self.past.times[at[segments]], heads)
        filled[owner] = True
        return found, filled

    @cached_property
    def last_target(self) -> Ticks:
        """`[series]` last time at which a target was observed, where steps ahead begin; `end` without one."""
        if not len(self.moments):
            return self.end
        last = self.moments.times[np.maximum(self.moments.indptr[1:] - 1, 0)]
        return np.where(self.has_history, last, self.end)

    @cached_property
    def has_history(self) -> NDArray[np.bool_]:
        """`[series]` whether any target was observed; false means a cold start."""
        return self.moments.counts > 0

    @cached_property
    def has_target(self) -> NDArray[np.bool_]:
        """`[series, targets]` whether each target was observed; false means a cold start of that target."""
        return self.past.counts.reshape(-1, self.num_channels)[:, : self.num_targets] > 0

    @cached_property
    def running_scale(self) -> NDArray[np.float64]:
        """`[observations]` standard deviation of each channel from its beginning up to the observation."""
        heads, counts = self.past.indptr[:-1], self.past.counts
        first = np.repeat(heads, counts)
        # Sums within a segment, from its first value: nothing later and no other series enters.
        centred = pd.Series(self.past.values - self.past.values[first])
        rank = np.arange(len(first)) - first + 1
        mean = centred.groupby(self.past.segment, sort=False).cumsum().to_numpy() / rank
        square = (centred**2).groupby(self.past.segment, sort=False).cumsum().to_numpy() / rank
        return np.sqrt(np.maximum(square - mean**2, 0.0))

    # What a store on disk does piece by piece, a store in memory does at once.

    def ranges(self) -> list[tuple[int, int]]:
        """Runs of neighbouring series that fit into memory: all of them."""
        return [(0, self.num_series)]

    def kept(self, name: str, make: Callable[[int, int], NDArray[Any]]) -> NDArray[Any]:
        """Join what `make(first, end)` gives for each run of series."""
        del name
        return make(0, self.num_series)

    @property
    def rows_of_series(self) -> NDArray[np.int64]:
        """`[series]` observations of each, in all channels."""
        return np.diff(self.past.indptr[:: self.num_channels])

    def parts(self) -> Iterator[tuple[int, SeriesStore]]:
        """The first series of each run, and the run in memory."""
        for start, stop in self.ranges():
            yield start, self if stop - start == self.num_series else self.select(np.arange(start, stop))
            self.release()

    def release(self) -> None:
        """Let go of what need not stay in memory: nothing."""

    def sample(self) -> SeriesStore:
        """Series from which statistics of all data are learned: all of them."""
        return self

    def select(self, series: NDArray[np.int64]) -> SeriesStore:
        """Keep some series, in the order given."""
        known = (series[:, None] * self.num_known + np.arange(self.num_known)).reshape(-1)
        return replace(
            self,
            source=replace(self.source, ids=self.source.ids.take(series)),
            past=self.past.take(self.segments(series).reshape(-1)),
            known=self.known.take(known),
            static=self.static[series],
            static_codes=self.static_codes[series],
        )

    def until(self, cutoff: Ticks) -> SeriesStore:
        """Forget every observation after a cutoff for each series; what is known ahead stays known."""
        owner = self.past.segment // self.num_channels
        return replace(self, past=self.past.keep(self.past.times <= cutoff[owner]))

    def append(self, other: SeriesStore) -> SeriesStore:
        """Add the observations of another store of the same columns; new ids go to the end.

        Where both have a value, the other's holds.
        """
        place = self.source.positions(other.source.ids)
        fresh = np.flatnonzero(place < 0)
        place[fresh] = self.num_series + np.arange(len(fresh))
        ids = self.source.ids.append(other.source.ids[fresh]) if len(fresh) else self.source.ids
        mine, rows = np.arange(self.num_series), len(ids)

        def both(one: Ragged, two: Ragged, width: int) -> Ragged:
            two = replace(two, times=self.source.clock.convert(two.times, other.source.clock))
            return one.spread(mine, width, rows).merged(two.spread(place, width, rows)) if width else one

        return replace(
            self,
            source=replace(self.source, ids=ids),
            past=both(self.past, other.past, self.num_channels),
            known=both(self.known, other.known, self.num_known),
            static=_overlaid(self.static, other.static, place, rows),
            static_codes=_overlaid(self.static_codes, other.static_codes, place, rows),
        )


def _overlaid(mine: NDArray[Any], theirs: NDArray[Any], place: NDArray[np.int64], rows: int) -> NDArray[Any]:
    """Rows of both tables; where both have a value, and not the 0 of a missing one, theirs."""
    both = np.concatenate([mine, np.zeros((rows - len(mine), mine.shape[1]), mine.dtype)])
    both[place] = np.where(theirs != 0, theirs, both[place])
    return both
