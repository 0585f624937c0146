r"""Periods worth a harmonic: natural ones that the data can resolve, and ones that the values show.

Values are searched by a periodogram of irregular samples (Lomb 1976, Scargle 1982): coarsely on a grid, by
a Fourier transform of the samples spread to a fine clock (Press and Rybicki 1989), then exactly, by least
squares, near the highest peak. What a peak explains is taken out before the next is looked for.

References:
    Lomb, "Least-squares frequency analysis of unequally spaced data", Astrophysics and Space Science 39
    (1976). Scargle, "Studies in astronomical time series analysis II", Astrophysical Journal 263 (1982).
    Press and Rybicki, "Fast algorithm for spectral analysis of unevenly sampled data", Astrophysical
    Journal 338 (1989).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.series import SeriesStore

DAY = 86400.0
NATURAL = (DAY, 7 * DAY, 365.2425 * DAY)
CYCLES = 2.0  # cycles of a natural period that the longest series must show
RESOLVED = 3.0  # median gaps that a natural period must span

MAX_DETECTED = 3
MIN_CYCLES = 4.0  # cycles of a detected period within the longest series
MIN_SHARE = 0.1  # of the variance that a detected period must explain
CANDIDATES = 8  # highest peaks that are compared exactly
PROMINENCE = 13.0  # times the median power around: one chance in a hundred for noise
HARMONICS = 3
_SERIES, _POINTS, _GRID, _OVERSAMPLING = 16, 4096, 2**19, 4
_WORK = 2**20  # frequencies times series that are searched at once
_FEWEST = 12  # observations of a series that is searched

Signal = tuple[NDArray[np.float64], NDArray[np.float64]]


def natural_periods(gap: float, longest: float) -> tuple[float, ...]:
    """Day, week and year in seconds, where a cycle spans three gaps and the longest series two cycles."""
    return tuple(p for p in NATURAL if p >= RESOLVED * gap and longest >= CYCLES * p)


def detected_periods(store: SeriesStore, known: tuple[float, ...]) -> tuple[float, ...]:
    """Periods, in seconds or units, that the targets show beyond the known ones and their harmonics.

    Times are taken from each series' first observation, so a shift of the clock changes nothing. At most 16
    series, the longest, with 4096 observations each, are looked at.

    Args:
        store: Training series.
        known: Natural periods; what they explain is taken out first.

    Returns:
        At most three periods, the strongest first.
    """
    signals = [_standardised(*signal) for signal in _signals(store)]
    signals = [s for s in signals if s[1].any()]
    if not signals:
        return ()
    span = max(float(times[-1]) for times, _ in signals)
    gap = float(np.median(np.concatenate([np.diff(times) for times, _ in signals])))
    found: list[float] = []
    explained = list(known)
    signals = [_without(signal, known) for signal in signals]
    for _ in range(MAX_DETECTED):
        period = _strongest(signals, span, gap, explained)
        if period is None:
            break
        found.append(period)
        explained.append(period)
        signals = [_without(signal, (period,)) for signal in signals]
    return tuple(found)


def _signals(store: SeriesStore) -> list[Signal]:
    """Times from the first observation, and values, of the longest target channels."""
    target = np.arange(len(store.past.counts)) % store.num_channels < store.num_targets
    counts = np.where(target, store.past.counts, 0)
    longest = np.argsort(-counts, kind="stable")[:_SERIES]
    signals = []
    for segment in longest[counts[longest] >= _FEWEST]:
        stop = store.past.indptr[segment + 1]
        at = slice(max(store.past.indptr[segment], stop - _POINTS), stop)
        times = store.past.times[at]
        signals.append((store.source.clock.seconds(times - times[0]), store.past.values[at]))
    return signals


def _standardised(times: NDArray[np.float64], values: NDArray[np.float64]) -> Signal:
    """Take out a straight line and divide by the standard deviation; zeros where nothing is left."""
    line = np.stack([np.ones_like(times), times / max(times[-1], 1e-300)], axis=1)
    left = values - line @ np.linalg.lstsq(line, values, rcond=None)[0]
    std = left.std()
    return times, left / std if std > 1e-9 * max(np.abs(values).max(), 1e-300) else np.zeros_like(left)


def _without(signal: Signal, periods: tuple[float, ...]) -> Signal:
    """Take out what periods with three harmonics explain, where the series shows two cycles of them."""
    times, values = signal
    waves = [_waves(times, n / p) for p in periods if times[-1] >= 2 * p for n in range(1, HARMONICS + 1)]
    if not waves or len(times) <= 4 * len(waves):
        return signal
    basis = np.concatenate([np.ones((len(times), 1)), *waves], axis=1)
    return times, values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]


def _waves(times: NDArray[np.float64], frequency: float) -> NDArray[np.float64]:
    angle = 2 * np.pi * frequency * times
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def _strongest(signals: list[Signal], span: float, gap: float, explained: list[float]) -> float | None:
    """Period of the most prominent peak, refined; `None` when no peak is convincing."""
    step = 1.0 / (_OVERSAMPLING * span)
    size = int(min(0.5 / gap / step, _GRID)) + 1
    if size <= MIN_CYCLES * _OVERSAMPLING:
        return None
    signals = signals[: max(_WORK // size, 1)]
    power = np.mean([_coarse_power(signal, step, size) for signal in signals], axis=0)
    frequency = np.arange(size) * step
    power[frequency < MIN_CYCLES / span] = 0.0
    for period in explained:  # harmonics of what is known are no news
        nearest = np.round(frequency * period)
        power[(np.abs(frequency - nearest / period) <= 1.5 / span) & (nearest >= 1) & (nearest <= 24)] = 0.0
    inner = (power[1:-1] >= power[:-2]) & (power[1:-1] >= power[2:]) & (power[1:-1] > 0)
    peaks = np.flatnonzero(inner) + 1
    peaks = peaks[np.argsort(-power[peaks])][:CANDIDATES]
    peaks = [peak for peak in peaks if power[peak] >= PROMINENCE * _background(power, frequency, peak)]
    # A daily rhythm of observing gives every peak twins of nearly its height: compare them exactly.
    peaks = sorted(peaks, key=lambda peak: -_share(signals, float(frequency[peak])))[:2]
    near = [float(frequency[peak] + step * at) for peak in peaks for at in np.linspace(-1.0, 1.0, 21)]
    share, best = max(((_share(signals, f), f) for f in near), default=(0.0, 1.0))
    return float(1.0 / best) if share >= MIN_SHARE else None


def _coarse_power(signal: Signal, step: float, size: int) -> NDArray[np.float64]:
    r"""Share of variance $2 |\sum_j y_j e^{-2 \pi i f t_j}|^2 / (n \sum_j y_j^2)$ at multiples of `step`."""
    times, values = signal
    cells = 4 << int(np.ceil(np.log2(size)))
    place = times * (cells * step)
    left = np.floor(place).astype(np.int64)
    weight = place - left
    spread = np.bincount(left % cells, values * (1 - weight), cells)
    spread += np.bincount((left + 1) % cells, values * weight, cells)
    total = len(values) * float(values @ values)
    return 2 * np.abs(np.fft.rfft(spread)[:size]) ** 2 / total if total > 0 else np.zeros(size)


def _background(power: NDArray[np.float64], frequency: NDArray[np.floating], peak: int) -> float:
    """Power expected at a peak: the median nearby, or the power law through the medians of octaves.

    The law keeps the slow swings of random walks, whose power falls with the square of frequency, from
    passing for periods.
    """
    low, high = max(peak // 2, 1), min(2 * peak + 8, len(power))
    away = np.abs(np.arange(low, high) - peak) > 2 * _OVERSAMPLING
    around = power[low:high][away & (power[low:high] > 0)]
    if not around.size:
        return np.inf
    there = np.flatnonzero(power > 0)
    octave = np.floor(np.log2(frequency[there] / frequency[there[0]])).astype(np.int64)
    groups = [there[octave == o] for o in np.unique(octave)]
    groups = [g for g in groups if len(g) >= _OVERSAMPLING]
    if len(groups) < 3:
        return float(np.median(around))
    x = np.array([np.log(frequency[g]).mean() for g in groups])
    y = np.array([np.log(np.median(power[g])) for g in groups])
    slope, level = np.polyfit(x, y, 1)
    return max(float(np.median(around)), float(np.exp(level + slope * np.log(frequency[peak]))))


def _share(signals: list[Signal], frequency: float) -> float:
    """Mean share of the variance that one frequency explains by least squares."""
    shares = []
    for times, values in signals:
        basis = np.concatenate([np.ones((len(times), 1)), _waves(times, frequency)], axis=1)
        right = basis.T @ values
        explained = right @ np.linalg.lstsq(basis.T @ basis, right, rcond=None)[0]
        total = float(values @ values)
        shares.append(float(explained) / total if total > 0 else 0.0)
    return float(np.mean(shares))
