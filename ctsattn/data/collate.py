"""Windows of a store become one padded `Batch`; scaling happens here, in float64, from the past only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.calendar import calendar_features
from ctsattn.data.clock import Ticks
from ctsattn.data.scalers import FIXED, LOGS, SCALERS, ScaleLaw, safe_scale
from ctsattn.data.schema import Schema
from ctsattn.data.series import SeriesStore
from ctsattn.data.windows import Past, Windows, cut_past

LARGEST = 1e30  # scaled values are kept within it, and so within float32


@dataclass(frozen=True)
class Collator:
    """Turns windows into batches for a model.

    Attributes:
        schema: What training decided of the columns.
        spec: Sizes and units.
        scaler: Key of `SCALERS`.
        max_tokens: Most observations of a channel that a window shows.
    """

    schema: Schema
    spec: TaskSpec
    scaler: str = "standard"
    max_tokens: int = 512

    def __post_init__(self) -> None:
        if self.scaler not in SCALERS:
            raise ValueError(f"Unknown scaler {self.scaler!r}. Known are {', '.join(SCALERS)}.")

    def __call__(self, store: SeriesStore, windows: Windows, *, truth: bool = False) -> Batch:
        """Collate.

        Args:
            store: Series that the windows point into.
            windows: What to show and to ask.
            truth: Whether to fill `future_values` with what the store knows at the asked times.

        Returns:
            A batch of `len(windows)` rows in the order of the windows.
        """
        past = cut_past(store, self.spec, windows, self.max_tokens)
        layout = _Layout.of(past.counts)
        values, loc, scale = self._scaled(store, past, layout)
        asked = _Layout.of(np.diff(windows.indptr))
        future_values, observed = self._truth(store, windows, asked, loc, scale, truth)
        past_times = self._relative(store, store.past.times[past.at], windows.cutoff, past.counts.sum(1))
        query_times = self._relative(store, windows.times, windows.cutoff, np.diff(windows.indptr))
        known, known_codes = self._known_past(store, past, layout)
        ahead, ahead_codes = self._known_ahead(store, windows, asked)
        is_code = np.array(self.spec.channel_codes)[:, None] > 0
        return Batch(
            past_times=_tensor(layout.times(past_times)),
            past_values=_tensor(np.where(is_code, 0.0, values).astype(np.float32)),
            past_codes=_tensor(np.where(is_code, values, 0.0).astype(np.int64)),
            past_mask=_tensor(layout.mask),
            past_known=_tensor(known),
            past_known_codes=_tensor(known_codes),
            static=_tensor(store.static[windows.series]),
            static_codes=_tensor(store.static_codes[windows.series]),
            future_times=_tensor(asked.times(query_times)),
            future_mask=_tensor(asked.mask),
            future_known=_tensor(ahead),
            future_known_codes=_tensor(ahead_codes),
            future_values=_tensor(future_values),
            future_observed=_tensor(observed),
            loc=_tensor(loc),
            scale=_tensor(scale),
            series=_tensor(windows.series),
            cutoff=_tensor(self._cutoff(store, windows)),
            unit=_tensor(self._unit(loc)),
        )

    def _cutoff(self, store: SeriesStore, windows: Windows) -> NDArray[np.float64]:
        """See `Batch.cutoff`."""
        clock, origin = store.source.clock, self.schema.origin
        since = store.first[windows.series] if origin is None else origin.on(clock)
        return clock.seconds(windows.cutoff - since)

    def _unit(self, loc: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Batch.unit`."""
        if self.scaler not in LOGS:
            return np.zeros(0)
        return np.broadcast_to(self._units_of_log[: loc.shape[1]], loc.shape)

    def _relative(
        self, store: SeriesStore, times: Ticks, cutoff: Ticks, counts: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Model time from the cutoff: subtracted exactly in ticks, then scaled, then narrowed."""
        elapsed = times - np.repeat(cutoff, counts)
        return (store.source.clock.seconds(elapsed) / self.spec.time_unit).astype(np.float32)

    def _scaled(
        self, store: SeriesStore, past: Past, layout: _Layout
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Scaled values of numeric channels and codes of others; offset and scale of the targets."""
        values = self._levels(layout.scatter(store.past.values[past.at]).swapaxes(1, 2)).swapaxes(1, 2)
        loc, scale = self._units(store, past, layout, values)
        is_code = np.array(self.spec.channel_codes) > 0
        loc, scale = np.where(is_code, 0.0, loc), np.where(is_code, 1.0, scale)
        scaled = np.clip((values - loc[..., None]) / scale[..., None], -LARGEST, LARGEST)
        scaled = np.where(layout.mask, scaled, 0.0)
        return scaled, loc[:, : store.num_targets], scale[:, : store.num_targets]

    def _units(
        self, store: SeriesStore, past: Past, layout: _Layout, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Offset and scale `[windows, channels]`, before categories are left out."""
        laws = self._laws
        shown = _something(values, layout.mask, self._levels(np.array([law.level for law in laws])))
        loc, scale = SCALERS[self.scaler](*shown)
        if self.scaler == "channel":
            return loc + [law.centre for law in laws], scale * [law.spread for law in laws]
        if self.scaler in FIXED:
            return loc, scale
        own = layout.last(store.running_scale[past.at])
        level = loc if self.scaler not in LOGS else self._units_of_log * np.sinh(loc)
        expected = np.stack([law(level[:, c]) for c, law in enumerate(laws)], axis=1)
        if self.scaler in LOGS:
            # to first order; spreads beyond a factor e are no smaller in logarithms than 1
            steps = self._units_of_log * np.cosh(loc)
            own, expected = np.minimum(own / steps, 1.0), np.minimum(expected / steps, 1.0)
        return loc, safe_scale(scale, loc, past.counts, own, expected)

    @property
    def _laws(self) -> tuple[ScaleLaw, ...]:
        return self.schema.laws or (ScaleLaw(),) * self.spec.num_channels

    @property
    def _units_of_log(self) -> NDArray[np.float64]:
        return np.array([law.unit if self.scaler == "log" else law.middle for law in self._laws])

    def _levels(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is scaled: values `[..., channels]` of numbers, or their logarithms."""
        if self.scaler not in LOGS:
            return values
        some = values.shape[-1]
        is_code = np.array(self.spec.channel_codes)[:some] > 0
        return np.where(is_code, values, np.arcsinh(values / self._units_of_log[:some]))

    def _truth(
        self,
        store: SeriesStore,
        windows: Windows,
        asked: _Layout,
        loc: NDArray[np.float64],
        scale: NDArray[np.float64],
        truth: bool,
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        shape = (len(windows), store.num_targets, asked.mask.shape[-1])
        values, observed = np.zeros(shape, np.float32), np.zeros(shape, bool)
        if not truth or not len(store.past):
            return values, observed
        owner = windows.queries.segment
        segments = store.segments(windows.series)[owner, : store.num_targets]
        place = store.past.search(segments, windows.times[:, None], after=False)
        at = np.minimum(place, len(store.past) - 1)
        there = (place < store.past.indptr[segments + 1]) & (store.past.times[at] == windows.times[:, None])
        scaled = (self._levels(store.past.values[at]) - loc[owner]) / scale[owner]
        row, column = asked.places
        values[row, :, column] = np.clip(np.where(there, scaled, 0.0), -LARGEST, LARGEST)
        observed[row, :, column] = there
        return values, observed

    def _known_past(
        self, store: SeriesStore, past: Past, layout: _Layout
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Known-future covariates and calendar at the tokens: `[windows, channels, length, ...]`."""
        series = store.past.owner(past.at) // store.num_channels
        numbers, codes = sample_known(store, series, store.past.times[past.at], len(self.spec.known_codes))
        return layout.scatter(numbers), layout.scatter(codes)

    def _known_ahead(
        self, store: SeriesStore, windows: Windows, asked: _Layout
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        series = windows.series[windows.queries.segment]
        numbers, codes = sample_known(store, series, windows.times, len(self.spec.known_codes))
        return asked.scatter(numbers), asked.scatter(codes)


def sample_known(
    store: SeriesStore, series: NDArray[np.int64], times: Ticks, num_codes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Known-future covariates as functions of time, read off at given times.

    Numbers follow straight lines between their own observations and stay level beyond the first and the
    last; categories hold their last value and are 0 (missing) before their first. A covariate that a
    series lacks is 0: its mean, or missing.

    Args:
        store: Holds the covariates.
        series: `[times]` series of each time.
        times: `[times]` ticks.
        num_codes: Categorical covariates; they come last in the store.

    Returns:
        `[times, numbers]` float32, the calendar features last, and `[times, num_codes]` int64.
    """
    split, known = store.num_known - num_codes, store.known
    calendar = calendar_features(times, store.source.clock, store.calendar)
    if not len(known):
        numbers = np.zeros((len(times), split), np.float32)
        return np.concatenate([numbers, calendar], axis=1), np.zeros((len(times), num_codes), np.int64)
    segments = series[:, None] * store.num_known + np.arange(store.num_known)
    begin, last = known.indptr[segments], known.indptr[segments + 1] - 1
    after = known.search(segments, times[:, None])
    left = np.clip(after - 1, begin, np.maximum(last, begin)).clip(max=len(known) - 1)
    right = np.clip(after, begin, np.maximum(last, begin)).clip(max=len(known) - 1)
    gap, elapsed = known.times[right] - known.times[left], times[:, None] - known.times[left]
    share = elapsed / np.where(gap > 0, gap, 1)  # beyond the ends left and right are one
    line = known.values[left] + share * (known.values[right] - known.values[left])
    line, held = np.where(last >= begin, line, 0.0), np.where(after > begin, known.values[left], 0.0)
    numbers = np.concatenate([line[:, :split].astype(np.float32), calendar], axis=1)
    return numbers, held[:, split:].astype(np.int64)


@dataclass(frozen=True)
class _Layout:
    """Where the items of ragged rows stand in a padded array.

    Attributes:
        mask: `[..., length]` true where an item stands; items are on the left.
        places: Row and column of each item, rows counted over all leading axes.
    """

    mask: NDArray[np.bool_]
    places: tuple[NDArray[np.int64], NDArray[np.int64]]

    @staticmethod
    def of(counts: NDArray[np.int64]) -> _Layout:
        flat = counts.reshape(-1)
        row = np.repeat(np.arange(flat.size), flat)
        column = np.arange(flat.sum()) - np.repeat(np.cumsum(flat) - flat, flat)
        length = max(int(flat.max(initial=0)), 1)
        return _Layout(np.arange(length) < counts[..., None], (row, column))

    def scatter(self, items: NDArray) -> NDArray:
        """`[items, ...]` to `[..., length, ...]`, 0 in the padding."""
        *lead, length = self.mask.shape
        out = np.zeros((int(np.prod(lead)), length, *items.shape[1:]), items.dtype)
        out[self.places] = items
        return out.reshape(*lead, length, *items.shape[1:])

    def times(self, items: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `scatter`, with the last real time of each row in its padding."""
        return np.where(self.mask, self.scatter(items), self.last(items)[..., None])

    def last(self, items: NDArray) -> NDArray:
        """Last item of each row; 0 in empty rows."""
        count = self.mask.sum(-1)
        end = np.cumsum(count.reshape(-1)).reshape(count.shape) - 1
        if not len(items):
            return np.zeros(count.shape, items.dtype)
        return np.where(count > 0, items[np.maximum(end, 0)], np.zeros((), items.dtype))


def _something(
    values: NDArray[np.float64], mask: NDArray[np.bool_], level: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Let channels that show nothing show the scaler one observation at their usual level."""
    empty = ~mask.any(-1)
    if not empty.any():
        return values, mask
    values, mask = values.copy(), mask.copy()
    values[empty, 0] = np.broadcast_to(level, empty.shape)[empty]
    mask[empty, 0] = True
    return values, mask


def _tensor(array: NDArray) -> torch.Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # torch warns of read-only memory
