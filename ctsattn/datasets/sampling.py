"""Sampling conditions: which points of a regular series a model is shown, and at what times.

A condition sees values `[..., length, channels]` and answers which of them are kept; it never changes
one. The future that a model is asked for stays complete. Seeds make conditions repeatable, and random
ones are nested: what is kept at 25 % is kept at 50 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

Keep = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Values `[..., length, channels]` and a generator to a mask of the same shape, true where kept."""

LEAST = 2  # points that every channel keeps, so that it shows a value and a gap


def everything(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Keep every point."""
    return np.ones(values.shape, dtype=bool)


def random(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Keep whole rows at random (missing completely at random)."""
    return _rows(rng.random(values.shape[:-1]) < share, values)


def random_cells(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Keep points at random, each channel by itself."""
    return rng.random(values.shape) < share


def bursty(values: np.ndarray, rng: np.random.Generator, share: float, burst: float = 8.0) -> np.ndarray:
    """Keep rows in bursts: a sensor that is on for `burst` rows in the mean, and off in proportion.

    The two-state Markov chain starts in its stationary law, so `share` of the rows are kept everywhere.
    """
    length = values.shape[-2]
    stop, start = 1.0 / burst, share / (1.0 - share) / burst
    draws = rng.random((length, *values.shape[:-2]))
    on = np.empty(draws.shape, dtype=bool)
    on[0] = draws[0] < share
    for row in range(1, length):
        on[row] = np.where(on[row - 1], draws[row] >= stop, draws[row] < start)
    return _rows(np.moveaxis(on, 0, -1), values)


def moving(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Keep points where the value moves: with a chance that rises with the rank of its local slope.

    A point of rank `r` in (0, 1) is kept with chance `r^(1/share - 1)`, whose mean is `share`.
    """
    slope = np.abs(np.gradient(values, axis=-2))
    rank = (np.argsort(np.argsort(slope, axis=-2), axis=-2) + 0.5) / values.shape[-2]
    return rng.random(values.shape) < rank ** (1.0 / share - 1.0)


def on_change(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Report on change: keep a point when it differs by more than a dead band from the last one kept.

    The band of each channel is the narrowest of a hundred that keeps no more than `share` of its points.
    It is a property of the whole array, as the setting of a logger is. Nothing here is random.
    """
    spread = np.abs(np.diff(values, axis=-2)).reshape(-1, values.shape[-1]).max(0)
    bands = np.geomspace(1e-3, 10.0, 100)
    low, high = np.zeros(values.shape[-1], dtype=int), np.full(values.shape[-1], len(bands) - 1)
    for _ in range(len(bands).bit_length()):
        middle = (low + high) // 2
        kept = _beyond_band(values, bands[middle] * spread).reshape(-1, values.shape[-1]).mean(0)
        low, high = np.where(kept > share, middle + 1, low), np.where(kept > share, high, middle)
        low = np.minimum(low, high)
    return _beyond_band(values, bands[high] * spread)


def _beyond_band(values: np.ndarray, band: np.ndarray) -> np.ndarray:
    """Keep the first point, then each that lies more than `band` from the last kept."""
    keep = np.zeros(values.shape, dtype=bool)
    keep[..., 0, :] = True
    held = values[..., 0, :].copy()
    for row in range(1, values.shape[-2]):
        now = values[..., row, :]
        keep[..., row, :] = fresh = np.abs(now - held) > band
        held = np.where(fresh, now, held)
    return keep


def every(values: np.ndarray, rng: np.random.Generator, stride: int) -> np.ndarray:
    """Keep every `stride`-th row, counted back from the last."""
    back = np.arange(values.shape[-2])[::-1]
    return _rows(np.broadcast_to(back % stride == 0, values.shape[:-1]), values)


def one_in(values: np.ndarray, rng: np.random.Generator, stride: int) -> np.ndarray:
    """Keep one row, drawn at random, of every `stride`: a jittered clock with true values."""
    length = values.shape[-2]
    blocks = -(-length // stride)
    chosen = rng.integers(stride, size=(*values.shape[:-2], blocks))
    back = np.arange(length)[::-1]
    return _rows(np.take(chosen, back // stride, axis=-1) == back % stride, values)


def ends(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Keep both ends, half of `share` each, with one hole between."""
    place = _place(values)
    return _rows((place < share / 2) | (place >= 1 - share / 2), values)


def recent(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Keep the newest rows only."""
    return _rows(_place(values) >= 1 - share, values)


def old(values: np.ndarray, rng: np.random.Generator, share: float) -> np.ndarray:
    """Keep the oldest rows only."""
    return _rows(_place(values) < share, values)


def clusters(values: np.ndarray, rng: np.random.Generator, share: float, count: int = 4) -> np.ndarray:
    """Keep `count` clusters of equal length, one somewhere in each `count`-th of the rows."""
    length = values.shape[-2]
    block = length // count
    width = max(1, round(block * share))
    begins = rng.integers(block - width + 1, size=(*values.shape[:-2], count))
    row = np.arange(length)
    which, within = np.minimum(row // block, count - 1), row - np.minimum(row // block, count - 1) * block
    begin = np.take(begins, which, axis=-1)
    return _rows((within >= begin) & (within < begin + width), values)


def _place(values: np.ndarray) -> np.ndarray:
    """Place of each row in its window, from 0 to below 1."""
    length = values.shape[-2]
    return np.broadcast_to(np.arange(length) / length, values.shape[:-1])


def _rows(keep: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Keep or drop all channels of a row together."""
    return np.broadcast_to(keep[..., None], values.shape).copy()


SHARED: dict[str, Callable[..., np.ndarray]] = {
    "random": random,
    "random_cells": random_cells,
    "bursty": bursty,
    "moving": moving,
    "on_change": on_change,
    "ends": ends,
    "recent": recent,
    "old": old,
    "clusters": clusters,
}
STRIDED: dict[str, Callable[..., np.ndarray]] = {"every": every, "one_in": one_in}


@dataclass(frozen=True)
class Condition:
    """A sampling condition by its name: `all`, `random-50` (percent kept), `every-4` (stride).

    Names before the dash are the keys of `SHARED` and `STRIDED`.

    Attributes:
        name: As above.
    """

    name: str = "all"

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> Keep:
        """The function that decides.

        Raises:
            ValueError: The name is not of the form above, or the number is out of range.
        """
        if self.name == "all":
            return everything
        kind, _, number = self.name.rpartition("-")
        if kind in SHARED and number.isdigit() and 0 < int(number) < 100:
            return partial(SHARED[kind], share=int(number) / 100)
        if kind in STRIDED and number.isdigit() and int(number) >= 1:
            return partial(STRIDED[kind], stride=int(number))
        raise ValueError(
            f"Unknown sampling condition `{self.name}`. Give `all`, a share in percent as in `random-50` "
            f"({', '.join(SHARED)}) or a stride as in `every-4` ({', '.join(STRIDED)})."
        )

    def keep(self, values: np.ndarray, seed: int | list[int]) -> np.ndarray:
        """Mask of what is kept, `[..., length, channels]`; where fewer than two are, the last two."""
        mask = self.rule()(values, np.random.default_rng([*np.atleast_1d(seed), 65]))
        few = mask.sum(-2, keepdims=True) < LEAST
        mask[..., -LEAST:, :] |= few
        return mask


def misrecorded(times: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Times `[..., length]` with normal errors of `share` of the mean gap, put back into ascending order."""
    gap = (times[..., -1:] - times[..., :1]) / max(times.shape[-1] - 1, 1)
    noise = np.random.default_rng([seed, 66]).standard_normal(times.shape)
    return np.sort(times + share * gap * noise, axis=-1)


def irregularity(times: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Coefficient of variation of the gaps between kept points.

    Args:
        times: `[length]` ascending.
        keep: `[..., length, channels]`.

    Returns:
        `[..., channels]`; 0 for a regular clock, NaN where fewer than three points are kept.
    """
    stamps = np.where(keep, times[:, None], np.nan)
    order = np.sort(stamps, axis=-2)  # NaN last
    gaps = np.diff(order, axis=-2)
    count = np.sum(~np.isnan(gaps), axis=-2)
    total = np.nansum(gaps, axis=-2)
    mean = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 1)
    square = np.nansum((gaps - mean[..., None, :]) ** 2, axis=-2)
    return np.sqrt(square / np.maximum(count, 1)) / mean
