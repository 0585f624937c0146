"""Periods worth a harmonic: natural ones that the data can resolve, and ones that the values show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.series import SeriesStore

DAY = 86400.0
NATURAL = (DAY, 7 * DAY, 365.2425 * DAY)
CYCLES = 2.0  # cycles that the longest series must show
RESOLVED = 3.0  # median gaps that a period must span


def natural_periods(gap: float, longest: float) -> tuple[float, ...]:
    """Day, week and year, where a cycle spans three median gaps and the longest series two cycles (seconds)."""
    return tuple(p for p in NATURAL if p >= RESOLVED * gap and longest >= CYCLES * p)


def detected_periods(store: SeriesStore, known: tuple[float, ...]) -> tuple[float, ...]:
    return ()
