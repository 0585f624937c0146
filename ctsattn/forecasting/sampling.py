r"""Joint paths over the asked times: a Gaussian copula over the marginal quantile functions.

A path is $y_i = Q_i(\Phi(z_i))$, where $Q_i$ is the forecast's quantile function at the i-th asked time and
$z$ a stationary Gaussian process of unit variance with correlation

$$\rho(d) = c + a\,e^{-d/\tau} + (1 - c - a)\,[d = 0]$$

of the elapsed time $d$: a shift of the whole path, an Ornstein-Uhlenbeck part and white noise. Its parameters
are learned from the normal scores of held-out truths. It is Markov but for the shift, so a path costs time
and memory linear in the number of asked times, whatever their spacing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

_BINS = 24
_DECAYS = 25
_GRID_SIZE = 241
_GRID_END = 5.0


@dataclass(frozen=True)
class PathCorrelation:
    r"""Correlation of normal scores over elapsed time.

    Attributes:
        shift: Share $c$ of variance that a whole path has in common.
        drift: Share $a$ of variance that fades with elapsed time.
        decay: Time $\tau$ in which it fades by a factor e, in model units, positive.
    """

    shift: float = 0.0
    drift: float = 1.0
    decay: float = 1.0

    def __call__(self, elapsed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Correlation of two different points `elapsed` apart."""
        return self.shift + self.drift * np.exp(-np.abs(elapsed) / self.decay)

    def draw(self, times: NDArray[np.float64], paths: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw normal scores `[paths, times]` at ascending `times` `[times]`."""
        white = max(0.0, 1.0 - self.shift - self.drift)
        steps = rng.standard_normal((paths, len(times)))
        fade = np.exp(-np.diff(times) / self.decay)
        drift = steps.copy()
        for i, factor in enumerate(fade):
            drift[:, i + 1] = factor * drift[:, i] + np.sqrt(1.0 - factor**2) * steps[:, i + 1]
        scores = np.sqrt(self.shift) * rng.standard_normal((paths, 1)) + np.sqrt(self.drift) * drift
        return scores + np.sqrt(white) * rng.standard_normal((paths, len(times)))


def fit_correlation(
    scores: NDArray[np.float64], times: NDArray[np.float64], windows: NDArray[np.int64], default_decay: float
) -> PathCorrelation:
    r"""Fit $\rho$ by least squares to the mean products of scores in bins of elapsed time.

    Args:
        scores: Normal scores of truths $\Phi^{-1}(\hat F(y))$ `[points]`.
        times: `[points]`, in model units.
        windows: Which window each point belongs to `[points]`; ascending.
        default_decay: Decay to fall back on when there are no pairs.

    Returns:
        The parameters.
    """
    distance, product = _pairs(scores, times, windows)
    size = float(np.mean(scores**2)) if len(scores) else 0.0
    if len(distance) < 2 or size <= 0:
        return PathCorrelation(decay=default_decay)
    edges = np.unique(np.quantile(distance, np.linspace(0, 1, _BINS + 1)))
    which = np.clip(np.searchsorted(edges, distance, side="right") - 1, 0, max(0, len(edges) - 2))
    counts = np.bincount(which)
    used = counts > 0
    centre = (np.bincount(which, distance)[used] / counts[used]).astype(float)
    target = np.bincount(which, product)[used] / counts[used] / size
    decays = np.geomspace(max(distance.min(), distance.max() * 1e-3), distance.max() * 3.0, _DECAYS)
    fits = [_fit_shares(centre, target, counts[used], decay) for decay in decays]
    best = int(np.argmin([error for error, *_ in fits]))
    _, shift, drift = fits[best]
    return PathCorrelation(shift, drift, float(decays[best]))


def _pairs(
    scores: NDArray[np.float64], times: NDArray[np.float64], windows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Elapsed time and product of scores of all pairs at different times inside a window."""
    distances, products = [], []
    for part in np.split(np.arange(len(scores)), np.flatnonzero(np.diff(windows)) + 1):
        part = part[:: max(1, len(part) // 200)]  # enough pairs from each window
        first, second = np.triu_indices(len(part), 1)
        distances.append(np.abs(times[part[second]] - times[part[first]]))
        products.append(scores[part[second]] * scores[part[first]])
    distance, product = np.concatenate(distances), np.concatenate(products)
    apart = distance > 0
    return distance[apart], product[apart]


def _fit_shares(
    elapsed: NDArray[np.float64], target: NDArray[np.float64], weights: NDArray[np.int64], decay: float
) -> tuple[float, float, float]:
    """Best shares (shift, drift) in the triangle shift, drift >= 0, shift + drift <= 1, for one decay."""
    design = np.stack([np.ones_like(elapsed), np.exp(-elapsed / decay)], axis=1)
    root = np.sqrt(weights)

    def error(shift: float, drift: float) -> float:
        return float((weights * (design @ np.array([shift, drift]) - target) ** 2).sum())

    free, *_ = np.linalg.lstsq(design * root[:, None], target * root, rcond=None)
    candidates = [(float(free[0]), float(free[1]))]
    # On an edge of the triangle the problem has one unknown: (x, 0), (0, x) or (1 - x, x).
    for base, direction in (((0, 0), (1, 0)), ((0, 0), (0, 1)), ((1, 0), (-1, 1))):
        along = design @ np.array(direction)
        offset = target - design @ np.array(base)
        norm = float((weights * along**2).sum())
        x = float(np.clip((weights * along * offset).sum() / norm, 0.0, 1.0)) if norm > 0 else 0.0
        candidates.append((base[0] + x * direction[0], base[1] + x * direction[1]))
    inside = [c for c in candidates if min(c) >= 0 and sum(c) <= 1 + 1e-12]
    best = min(inside, key=lambda c: error(*c))
    return error(*best), best[0], best[1]


def score_grid() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Normal scores evenly spaced, and their levels, on which quantile functions are tabulated."""
    scores = np.linspace(-_GRID_END, _GRID_END, _GRID_SIZE)
    return scores, ndtr(scores)


def to_values(scores: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Values $Q(\Phi(z))$ from quantile functions tabulated on `score_grid`.

    Args:
        scores: Normal scores `[paths, times]`.
        quantiles: `[times, grid]`.

    Returns:
        `[paths, times]`, linear in the score between grid points.
    """
    position = (np.clip(scores, -_GRID_END, _GRID_END) + _GRID_END) / (2 * _GRID_END) * (_GRID_SIZE - 1)
    left = np.minimum(position.astype(np.int64), _GRID_SIZE - 2)
    column = np.arange(quantiles.shape[0])[None, :]
    low, high = quantiles[column, left], quantiles[column, left + 1]
    return low + (position - left) * (high - low)


def to_scores(values: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Normal scores $\Phi^{-1}(\hat F(y))$ from quantile functions tabulated on `score_grid`.

    Args:
        values: `[points]`.
        quantiles: `[points, grid]`, ascending along the last axis.

    Returns:
        `[points]`, clipped to the ends of the grid.
    """
    grid, _ = score_grid()
    right = np.clip((quantiles < values[:, None]).sum(axis=-1), 1, _GRID_SIZE - 1)
    row = np.arange(len(values))
    low, high = quantiles[row, right - 1], quantiles[row, right]
    share = np.clip((values - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return grid[right - 1] + share * (grid[right] - grid[right - 1])
