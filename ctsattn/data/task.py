"""Sizes and units of a task, read off the training data: `TaskSpec`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.batch import TaskSpec
from ctsattn.data.clock import Clock
from ctsattn.data.periods import DAY, detected_periods, natural_periods
from ctsattn.data.schema import FUTURE, NUMBER, STATIC, TEXT, Schema
from ctsattn.data.series import SeriesStore
from ctsattn.data.steps import parse_duration

YEAR = 365.25 * DAY
PHYSICAL_UNITS = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0, DAY, YEAR / 12, YEAR)
STEPS_AHEAD = 24  # steps that a horizon looks ahead when neither user nor data says more
STEPS_BACK = 128  # steps that a lookback shows at least, where the data have them


def time_unit(gap: float, physical: bool) -> float:
    """Return the natural unit nearest, in its logarithm, to a gap: 1 ns to a year, or a power of ten."""
    if not physical:
        return float(10.0 ** np.round(np.log10(gap)))
    units = np.array(PHYSICAL_UNITS)
    return float(units[np.abs(np.log(units) - np.log(gap)).argmin()])


def median_gap(store: SeriesStore) -> float:
    """Median gap between neighbouring observations of one channel, in seconds or units.

    Without two observations of any channel it is a day, or one unit.
    """
    fallback = DAY if store.source.clock.is_physical else 1.0
    gaps = np.diff(store.past.times)[store.past.segment[1:] == store.past.segment[:-1]]
    return float(np.median(store.source.clock.seconds(gaps))) if gaps.size else fallback


def infer_task(
    store: SeriesStore,
    schema: Schema,
    *,
    horizon: Any = None,
    lookback: Any = None,
    max_tokens: int = 512,
    detect: bool = True,
) -> TaskSpec:
    """Choose unit, lookback, horizon and periods for a data set.

    Args:
        store: Training series.
        schema: Their schema.
        horizon: Steps as an int, a span ("36h", Timedelta, or a float on a numeric clock), or `None`: two
            cycles of the shortest period, or 24 steps, but at most a quarter of the median series.
        lookback: Likewise; `None`: four horizons, 128 steps or two cycles of the longest period with at
            most `max_tokens` steps, whichever is longest, but no longer than the longest series.
        max_tokens: Most observations of a channel in a window.
        detect: Whether to look for periods in the values too.

    Returns:
        The spec.
    """
    clock = store.source.clock
    gap = median_gap(store)
    unit = time_unit(gap, clock.is_physical)
    spans = clock.seconds(store.end - store.first)[store.has_history]
    longest = float(spans.max(initial=0.0))
    periods = natural_periods(gap, longest) if clock.is_physical else ()
    periods += detected_periods(store, periods) if detect else ()
    ahead = _span(horizon, gap, clock) or _default_horizon(gap, spans, periods)
    back = _span(lookback, gap, clock) or _default_lookback(gap, longest, ahead, periods, max_tokens)
    return TaskSpec(
        num_targets=store.num_targets,
        num_channels=store.num_channels,
        channel_codes=tuple(f.num_codes for f in schema.channels),
        num_static=len(schema.having(STATIC, NUMBER)),
        static_codes=tuple(f.num_codes for f in schema.having(STATIC, TEXT)),
        num_known=len(schema.having(FUTURE, NUMBER)) + 2 * len(schema.calendar),
        known_codes=tuple(f.num_codes for f in schema.having(FUTURE, TEXT)),
        time_unit=unit,
        median_gap=gap / unit,
        lookback=back / unit,
        horizon=ahead / unit,
        periods=tuple(period / unit for period in periods),
    )


def _span(value: Any, gap: float, clock: Clock) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"A horizon or lookback of steps must be at least 1, got {value}.")
        return float(value) * gap
    return parse_duration(value, clock)


def _default_horizon(gap: float, spans: NDArray[np.float64], periods: tuple[float, ...]) -> float:
    wanted = max(STEPS_AHEAD * gap, 2 * min(periods, default=0.0))
    typical = float(np.median(spans[spans > 0])) if (spans > 0).any() else wanted
    return max(min(wanted, typical / 4), gap)


def _default_lookback(
    gap: float, longest: float, ahead: float, periods: tuple[float, ...], max_tokens: int
) -> float:
    cycles = [2 * period for period in periods if 2 * period <= max_tokens * gap]
    wanted = max([4 * ahead, STEPS_BACK * gap, *cycles])
    return max(min(wanted, longest), gap)
