"""Scales of windows: from the past only, in float64, safe for any values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scaler = Callable[[NDArray[np.float64], NDArray[np.bool_]], tuple[NDArray[np.float64], NDArray[np.float64]]]

FEW, ENOUGH = 3, 16  # observations up to which the spread of a window is not believed, and from which it is
OWN_FLOOR = 0.1  # share of a series' own long-run spread below which a quiet window does not fall
LEVELS_DIFFER = 0.25  # variance of log level from which on the law follows the levels
_SMALL, _UNIT_SHARE = 0.01, 0.1  # logarithms are taken from a tenth of the smallest hundredth of sizes on
ROUND_OFF = 1e-12  # spread below this share of the level is rounding, not variation


@dataclass(frozen=True)
class ScaleLaw:
    r"""How spread grows with level across the training series: $\log s = a + b \log |m|$ (Taylor's law).

    It gives a scale where a window shows none: one observation, a constant past. `exponent` 0 means that
    all series have about the same spread, 1 that spread is a fixed share of the level.

    Attributes:
        log_factor: $a$.
        exponent: $b$, in `[0, 1]`.
        floor: Smallest level the law is used at.
        level: Median level of the series, for windows that show nothing at all.
        centre: Mean of all training values of the channel, for the scaler "channel".
        spread: Their standard deviation; 1 where they do not vary.
        unit: Size well below the usual ones, up to which the scaler "log" takes values themselves.
        middle: Median size, up to which the scaler "soft_log" does.
    """

    log_factor: float = 0.0
    exponent: float = 0.0
    floor: float = 1.0
    level: float = 0.0
    centre: float = 0.0
    spread: float = 1.0
    unit: float = 1.0
    middle: float = 1.0

    def __call__(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the spread expected at `level`; positive."""
        return np.exp(self.log_factor) * np.maximum(np.abs(level), self.floor) ** self.exponent

    @staticmethod
    def learn(mean: NDArray[np.float64], std: NDArray[np.float64]) -> ScaleLaw:
        """Fit the law to the means and standard deviations of the training series of one channel."""
        typical = float(np.median(mean)) if mean.size else 0.0
        level = np.maximum(np.abs(mean), std)
        varies = (std > ROUND_OFF * np.abs(mean)) & (std > 0)
        if not varies.any():
            spread = float(np.median(level)) if level.size else 0.0
            return ScaleLaw(log_factor=float(np.log(spread)) if spread > 0 else 0.0, level=typical)
        log_std, log_level = np.log(std[varies]), np.log(level[varies])
        centred = log_level - log_level.mean()
        # Shrunk: levels must differ by factors before they are taken to explain the spread.
        slope = float(np.mean(centred * log_std)) / (float(np.mean(centred**2)) + LEVELS_DIFFER)
        exponent = min(max(slope, 0.0), 1.0)
        factor = float(np.median(log_std - exponent * log_level))
        return ScaleLaw(factor, exponent, float(np.exp(log_level.min())), typical)


def standard(
    values: NDArray[np.float64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Masked mean and standard deviation along the last axis; 0 and 0 where nothing is observed."""
    count = np.maximum(mask.sum(-1), 1)
    loc = np.where(mask, values, 0.0).sum(-1) / count
    centred = np.where(mask, values - loc[..., None], 0.0)
    return loc, np.sqrt(np.einsum("...l,...l->...", centred, centred) / count)


def last(
    values: NDArray[np.float64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Last observed value, and the standard deviation: the window is seen from where it ends."""
    _, scale = standard(values, mask)
    at = np.maximum(mask.sum(-1) - 1, 0)[..., None]  # observations stand on the left
    return np.where(mask.any(-1), np.take_along_axis(values, at, -1)[..., 0], 0.0), scale


def robust(
    values: NDArray[np.float64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median, and interquartile range over 1.349; the standard deviation where the quartiles coincide."""
    _, std = standard(values, mask)
    ordered = np.sort(np.where(mask, values, np.inf), axis=-1)
    ordered[~np.isfinite(ordered)] = 0.0  # stands after the observations and is not read
    low, mid, high = (_quantile(ordered, mask.sum(-1), q) for q in (0.25, 0.5, 0.75))
    iqr = (high - low) / 1.349
    return mid, np.where(iqr > ROUND_OFF * np.abs(mid), iqr, std)


def _quantile(ordered: NDArray[np.float64], count: NDArray[np.int64], q: float) -> NDArray[np.float64]:
    place = np.maximum(count - 1, 0) * q
    left = np.floor(place).astype(np.int64)
    right = np.minimum(left + 1, np.maximum(count - 1, 0))
    a, b = (np.take_along_axis(ordered, i[..., None], -1)[..., 0] for i in (left, right))
    return np.where(count > 0, a + (place - left) * (b - a), 0.0)


def mean_abs(
    values: NDArray[np.float64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Offset 0 and the mean absolute value: keeps zero at zero and signs as they are."""
    size = np.where(mask, np.abs(values), 0.0).sum(-1) / np.maximum(mask.sum(-1), 1)
    return np.zeros_like(size), size


def none(
    values: NDArray[np.float64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Offset 0, scale 1: the caller's own units."""
    shape = values.shape[:-1]
    return np.zeros(shape), np.ones(shape)


# "channel" is the mean and deviation of a channel over the whole training data, which `Collator` reads off
# its `ScaleLaw`; an array of windows says nothing of them. "log" is "standard" on logarithms, which
# `Collator` takes: for quantities that vary by factors, as counts and prices do. "soft_log" takes them
# above the median size alone, and the values themselves below: for rare high peaks, as epidemics have.
SCALERS: dict[str, Scaler] = {
    "standard": standard,
    "last": last,
    "robust": robust,
    "mean_abs": mean_abs,
    "none": none,
    "channel": none,
    "log": standard,
    "soft_log": standard,
}
FIXED = ("none", "channel")  # scalers whose units are the same for all windows
LOGS = ("log", "soft_log")  # scalers of logarithms


def log_units(values: NDArray[np.float64]) -> tuple[float, float]:
    """Sizes from which the scalers "log" and "soft_log" take logarithms of a channel with these values."""
    sizes = np.abs(values[values != 0])
    if not len(sizes):
        return 1.0, 1.0
    return _UNIT_SHARE * float(np.quantile(sizes, _SMALL)) or 1.0, float(np.median(sizes)) or 1.0


def law_share(count: Any) -> Any:
    """Share of the law's scale that a window of `count` observations gets at least: 1 up to three, 0 from 16.

    In between it falls with the square of the number.

    Args:
        count: Observations, a NumPy array or a tensor of any shape.
    """
    return (count < ENOUGH) * (FEW / count.clip(min=FEW)) ** 2


def safe_scale(
    scale: NDArray[np.float64],
    loc: NDArray[np.float64],
    count: NDArray[np.int64],
    own: NDArray[np.float64],
    law: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Replace scales that are zero, tiny or badly known.

    A window that is quieter than a tenth of the series' own spread up to the cutoff gets that tenth. Up to
    three observations, and a past without any variation, get at least the law's scale; up to sixteen
    observations get at least a share of it that falls with the square of their number.

    Args:
        scale: Spread of each window, any shape.
        loc: Offset of each window.
        count: Observations in each window.
        own: Spread of the whole past of the series up to the cutoff.
        law: Spread that the training data's `ScaleLaw` expects at the window's level.

    Returns:
        Positive finite scales.
    """
    scale = np.maximum(scale, OWN_FLOOR * own)
    scale = np.maximum(scale, law_share(count) * law)
    flat = ~(scale > ROUND_OFF * np.abs(loc)) | ~np.isfinite(scale)
    scale = np.where(flat, np.maximum(law, ROUND_OFF * np.abs(loc)), scale)
    return np.where(scale > 0, scale, 1.0)
