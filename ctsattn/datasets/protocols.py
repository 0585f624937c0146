"""Published evaluation protocols on arrays: windows, scaling, and how errors are averaged.

Every window counts once, whatever the batch; scales come from training data only, unless a protocol says
otherwise, and then its docstring says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from ctsattn.datasets.long_horizon import Table
from ctsattn.datasets.splits import PARTS, FractionSplit, RowSplit, SeriesSplit


def standardise(table: Table, rows: tuple[int, int]) -> Table:
    """Centre and scale each channel by the mean and deviation of some rows; a constant is only centred.

    Args:
        table: The series.
        rows: First and last-but-one row to learn from: the training part.
    """
    known = table.values[slice(*rows)]
    deviation = known.std(0)
    deviation[deviation == 0] = 1.0
    return replace(table, values=(table.values - known.mean(0)) / deviation)


@dataclass(frozen=True)
class RowWindows:
    """Windows of a table with stride 1: `lookback` rows seen, the next `horizon` rows asked.

    Attributes:
        table: The series, scaled.
        origins: `[windows]` first row asked by each.
        lookback: Rows seen.
        horizon: Rows asked.
    """

    table: Table
    origins: np.ndarray
    lookback: int
    horizon: int

    def __len__(self) -> int:
        return len(self.origins)

    def past(self, which: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Rows seen by some windows, `[windows, lookback, channels]`."""
        view = sliding_window_view(self.table.values, self.lookback, axis=0)
        return view[self.origins[which] - self.lookback].swapaxes(1, 2)

    def future(self, which: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Rows asked by some windows, `[windows, horizon, channels]`."""
        view = sliding_window_view(self.table.values, self.horizon, axis=0)
        return view[self.origins[which]].swapaxes(1, 2)

    def batches(self, size: int) -> Iterator[slice]:
        """All windows in order, `size` at a time; the last batch is as short as it must be."""
        return (slice(start, start + size) for start in range(0, len(self), size))


def row_windows(
    table: Table, split: RowSplit | FractionSplit, lookback: int, horizon: int
) -> dict[str, RowWindows]:
    """Windows of the long-horizon protocol, on values standardised by the training rows.

    Validation and test may look back into the part before, so that their first window is asked from
    their first row; a window's asked rows lie in its part throughout. A part of `n` rows has
    `n - horizon + 1` windows, the training part `n - lookback - horizon + 1`.

    Raises:
        ValueError: A part is too short for one window.

    References:
        Zhou et al., "Informer", AAAI (2021); the loaders of Autoformer and PatchTST.
    """
    borders = split.borders(len(table.values))
    scaled = standardise(table, borders["train"])
    parts = {}
    for part in PARTS:
        first, end = borders[part]
        origins = np.arange(max(first, lookback), end - horizon + 1)
        if not len(origins):
            raise ValueError(
                f"The {part} part has rows {first} to {end}: too few to look back {lookback} "
                f"and ahead {horizon}."
            )
        parts[part] = RowWindows(scaled, origins, lookback, horizon)
    return parts


@dataclass
class Errors:
    """Sums of squared and absolute errors by variable, gathered over batches of any size.

    Attributes:
        squared: `[variables]` sum of squared errors.
        absolute: `[variables]` sum of absolute errors.
        count: `[variables]` points counted.
    """

    squared: np.ndarray = field(default_factory=lambda: np.zeros(0))
    absolute: np.ndarray = field(default_factory=lambda: np.zeros(0))
    count: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, forecast: np.ndarray, truth: np.ndarray, observed: np.ndarray | None = None) -> None:
        """Add a batch of `[..., variables]`; where `observed` is false a point does not count.

        Raises:
            ValueError: A forecast that counts is not finite; leaving it out would flatter the model.
        """
        seen = np.ones(truth.shape, dtype=bool) if observed is None else np.asarray(observed, dtype=bool)
        if not np.isfinite(forecast[seen]).all():
            bad = (~np.isfinite(forecast[seen])).sum()
            raise ValueError(f"{bad} of {seen.sum()} forecasts are not finite.")
        error = np.where(seen, np.asarray(forecast, dtype=np.float64) - truth, 0.0)
        axes = tuple(range(error.ndim - 1))
        sums = np.stack([(error**2).sum(axes), np.abs(error).sum(axes), seen.sum(axes)])
        if len(self.count):
            sums = sums + np.stack([self.squared, self.absolute, self.count])
        self.squared, self.absolute, self.count = sums

    def pooled(self) -> dict[str, float]:
        """Plain means over all points: the long-horizon protocol."""
        total = self.count.sum()
        return {"mse": float(self.squared.sum() / total), "mae": float(self.absolute.sum() / total)}

    def by_variable(self) -> dict[str, float]:
        """Mean over variables of their mean over points, variables without points left out: t-PatchGNN's."""
        there = self.count > 0
        counts = self.count[there]
        return {
            "mse": float((self.squared[there] / counts).mean()),
            "mae": float((self.absolute[there] / counts).mean()),
        }


@dataclass(frozen=True)
class Records:
    """Observations of many irregular records as flat arrays, sorted by record, variable and time.

    Attributes:
        record: `[observations]` number of the record.
        variable: `[observations]` number of the variable.
        time: `[observations]` float64 in the unit of the protocol.
        value: `[observations]` float64, scaled.
        variables: How many variables there are.
    """

    record: np.ndarray
    variable: np.ndarray
    time: np.ndarray
    value: np.ndarray
    variables: int


@dataclass(frozen=True)
class RecordWindows:
    """Windows of records: seen from `start` until before `cutoff`, asked from `cutoff` until `end`.

    Attributes:
        records: What was observed.
        record: `[windows]` the record of each window.
        start: `[windows]` first time seen.
        cutoff: `[windows]` first time asked.
        end: `[windows]` end of what is asked.
        closed: `[windows]` whether `end` itself is asked.
    """

    records: Records
    record: np.ndarray
    start: np.ndarray
    cutoff: np.ndarray
    end: np.ndarray
    closed: np.ndarray

    def __len__(self) -> int:
        return len(self.record)

    def members(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations of all windows: the window of each, its place in `records`, and whether it is asked.

        Ordered by window, variable and time.
        """
        bounds = np.searchsorted(self.records.record, [self.record, self.record + 1])
        length = bounds[1] - bounds[0]
        window = np.repeat(np.arange(len(self)), length)
        place = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length) + bounds[0][window]
        time = self.records.time[place]
        end = np.where(self.closed, np.nextafter(self.end, np.inf), self.end)
        inside = (time >= self.start[window]) & (time < end[window])
        window, place = window[inside], place[inside]
        return window, place, time[inside] >= self.cutoff[window]


@dataclass(frozen=True)
class RecordProtocol:
    """How t-PatchGNN cuts windows from the records of a set.

    Attributes:
        unit: Length of the protocol's unit of time in the set's `ds`: a timedelta, or a number.
        history: Units seen.
        ahead: Units asked.
        stride: Units from one window to the next; None: one window for each record, from its beginning.
        length: Units that each record lasts; None: until its last observation.
        scaled: Whether values are brought to [0, 1] by the extremes of the training and validation
            records, so that validation is not quite unseen. This is how the numbers were published.
    """

    unit: np.timedelta64 | float
    history: float
    ahead: float
    stride: int | None = None
    length: float | None = None
    scaled: bool = True


PROTOCOLS: dict[str, RecordProtocol] = {
    "physionet2012": RecordProtocol(np.timedelta64(3600, "s"), 24.0, 24.0, length=48.0),
    "activity": RecordProtocol(np.timedelta64(1, "ms"), 3000.0, 1000.0, stride=1000),
    "ushcn": RecordProtocol(200.0 / 48.0, 24.0, 1.0, stride=1, length=48.0, scaled=False),
    "physiome_goodwin": RecordProtocol(1.0, 100.0, 100.0, length=200.0),
    "physiome_neuron": RecordProtocol(1.0, 75.0, 75.0, length=150.0),
    "physiome_epidemic": RecordProtocol(1.0, 100.0, 100.0, length=200.0),
}


def record_windows(
    frame: pd.DataFrame, protocol: RecordProtocol, split: SeriesSplit
) -> dict[str, RecordWindows]:
    """Windows of t-PatchGNN's protocol for irregular records.

    Args:
        frame: Long frame with `unique_id`, `variable`, `ds`, `y`, sorted, ids and variables categorical.
        protocol: One of `PROTOCOLS`.
        split: The draw of the records.

    Returns:
        For `train`, `val`, `test` the windows; their values are comparable between parts.

    References:
        Zhang et al., "Irregular Multivariate Time Series Forecasting: A Transformable Patching Graph
        Neural Networks Approach", ICML (2024).
    """
    records = _records(frame, protocol.unit)
    count = len(frame["unique_id"].cat.categories)
    members = split.series(count)
    if protocol.scaled:
        seen = np.isin(records.record, np.concatenate([members["train"], members["val"]]))
        records = _to_unit_interval(records, seen)
    last = np.zeros(count)
    np.maximum.at(last, records.record, records.time)
    return {part: _cut(records, members[part], last, protocol) for part in PARTS}


def _records(frame: pd.DataFrame, unit: np.timedelta64 | float) -> Records:
    """Flat arrays of a long frame, times in units of the protocol."""
    ds = frame["ds"].to_numpy()
    time = ds / unit
    return Records(
        record=frame["unique_id"].cat.codes.to_numpy(np.int64),
        variable=frame["variable"].cat.codes.to_numpy(np.int64),
        time=time.astype(np.float64),
        value=frame["y"].to_numpy(np.float64),
        variables=len(frame["variable"].cat.categories),
    )


def _to_unit_interval(records: Records, seen: np.ndarray) -> Records:
    """Shift and scale each variable so that what `seen` marks spans [0, 1]; a constant becomes 0."""
    low, high = np.full(records.variables, np.inf), np.full(records.variables, -np.inf)
    np.minimum.at(low, records.variable[seen], records.value[seen])
    np.maximum.at(high, records.variable[seen], records.value[seen])
    span = np.where(high > low, high - low, 1.0)
    low = np.where(np.isfinite(low), low, 0.0)
    return replace(records, value=(records.value - low[records.variable]) / span[records.variable])


def _cut(records: Records, members: np.ndarray, last: np.ndarray, protocol: RecordProtocol) -> RecordWindows:
    """Cut the windows of some records."""
    whole = protocol.history + protocol.ahead
    length = last if protocol.length is None else np.full(len(last), protocol.length)
    if protocol.stride is None:
        starts = [np.zeros(1) for _ in members]
    else:
        free = int(protocol.history) if protocol.length is None else int(whole) - 1
        starts = [np.arange(0, int(length[m]) - free, protocol.stride, dtype=float) for m in members]
    record = np.repeat(members, [len(s) for s in starts])
    start = np.concatenate(starts) if len(starts) else np.zeros(0)
    end = start + whole
    return RecordWindows(records, record, start, start + protocol.history, end, end >= length[record])


def naive2(series: np.ndarray, season: int, horizon: int) -> np.ndarray:
    """M4's reference forecast: the last value of the seasonally adjusted series, and its seasons put back.

    A series is adjusted by classical multiplicative decomposition where its autocorrelation at the
    season passes a test at 90 %, else not at all.

    Args:
        series: `[length]` history.
        season: Steps in a season.
        horizon: Steps to forecast.

    References:
        Makridakis et al., "The M4 Competition", International Journal of Forecasting 36 (2020), and the
        script "Benchmarks and Evaluation.R" of its repository.
    """
    if season == 1 or not _is_seasonal(series, season):
        return np.full(horizon, series[-1])
    factor = _seasonal_factors(series, season)
    adjusted_last = series[-1] / factor[(len(series) - 1) % season]
    return adjusted_last * factor[(len(series) + np.arange(horizon)) % season]


def _is_seasonal(series: np.ndarray, season: int) -> bool:
    """M4's test: autocorrelation at the season beyond 1.645 of Bartlett's standard error."""
    length = len(series)
    lags = int(10 * np.log10(length))  # how far R's acf looks
    if length < 3 * season or lags < season:
        return False
    centred = series - series.mean()
    variance = centred @ centred
    if variance == 0:
        return False
    acf = np.array([centred[lag:] @ centred[: length - lag] for lag in range(1, season + 1)]) / variance
    limit = 1.645 / np.sqrt(length) * np.sqrt(1 + 2 * (acf[:-1] ** 2).sum())
    return bool(abs(acf[-1]) > limit)


def _seasonal_factors(series: np.ndarray, season: int) -> np.ndarray:
    """Multiplicative seasonal factors of the phases, mean 1, as R's `decompose` finds them."""
    ends = [0.5] if season % 2 == 0 else []
    weights = np.array([*ends, *np.ones(season - len(ends)), *ends]) / season
    trend = np.convolve(series, weights, mode="valid")
    first = len(weights) // 2
    detrended = series[first : first + len(trend)] / trend
    phase = (first + np.arange(len(trend))) % season
    factor = np.bincount(phase, detrended, season) / np.bincount(phase, minlength=season)
    return factor / factor.mean()
