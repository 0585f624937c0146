"""Calendar features of datetime clocks, on the wall clock of the data's zone; off unless named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctsattn.data.clock import Clock, Ticks

_SECONDS_A_DAY = 86400.0


def _within_day(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return (wall - day) / np.timedelta64(1, "us") * 1e-6


def _second(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return _within_day(wall, day) % 60.0 / 60.0


def _minute(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return _within_day(wall, day) % 3600.0 / 3600.0


def _hour(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return _within_day(wall, day) / _SECONDS_A_DAY


def _weekday(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return ((day.astype(np.int64) + 3) % 7 + _hour(wall, day)) / 7.0  # Monday begins the week


def _day(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return _share(wall, day.astype("M8[M]"))


def _month(wall: NDArray[Any], day: NDArray[Any]) -> NDArray[np.float64]:
    return _share(wall, day.astype("M8[Y]"))


def _share(wall: NDArray[Any], period: NDArray[Any]) -> NDArray[np.float64]:
    """How much of the month or year has passed, in `[0, 1)`."""
    begin, end = period.astype("M8[us]"), (period + 1).astype("M8[us]")
    return (wall - begin) / (end - begin)


# Phase in [0, 1) of the cycle that each name stands for.
CALENDAR: dict[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]]] = {
    "second": _second,
    "minute": _minute,
    "hour": _hour,
    "weekday": _weekday,
    "day": _day,
    "month": _month,
}


def check_calendar(names: tuple[str, ...], clock: Clock) -> None:
    """Refuse unknown names, and calendars on clocks that have none.

    Raises:
        ValueError: In either case.
    """
    unknown = [name for name in names if name not in CALENDAR]
    if unknown:
        raise ValueError(f"Unknown calendar feature(s) {unknown}. Known are {', '.join(CALENDAR)}.")
    if names and clock.kind != "datetime":
        raise ValueError(
            f"Calendar features need datetimes, but the clock is {clock.kind}. Pass calendar=()."
        )


def calendar_features(ticks: Ticks, clock: Clock, names: tuple[str, ...]) -> NDArray[np.float32]:
    """Sine and cosine of the named cycles.

    Args:
        ticks: Times, any shape.
        clock: A datetime clock.
        names: Keys of `CALENDAR`.

    Returns:
        `[..., 2 * names]`.
    """
    if not names:
        return np.zeros((*np.shape(ticks), 0), np.float32)
    wall = clock.wall(np.asarray(ticks).reshape(-1))
    day = wall.astype("M8[D]")
    angles = 2 * np.pi * np.stack([CALENDAR[name](wall, day) for name in names], axis=-1)
    features = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return features.reshape(*np.shape(ticks), 2 * len(names)).astype(np.float32)
