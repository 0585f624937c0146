r"""Conformal calibration of quantiles, separately for near and far horizons.

For a quantile level $q$ and a bucket of elapsed time, the scores are $s_i = (y_i - \hat q_i) / \sigma_i$ on
held-out data, with $\sigma_i$ the scale of the window. The calibrated quantile is
$\hat q + \sigma\,\delta_q$, where $\delta_q$ is an order statistic of the scores: the
$\lceil (n + 1) q \rceil$-th smallest for $q > 1/2$, the $\lfloor (n + 1) q \rfloor$-th for $q < 1/2$. If
scores of the bucket are exchangeable with that of a new point, the chance that the truth lies above the
band (or below it) is at most the nominal one.

References:
    Romano, Patterson and Candès, "Conformalized quantile regression" (2019), theorem 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MIN_PER_BUCKET = 100
_MAX_BUCKETS = 8
GRID = tuple(round(q, 4) for q in (0.005, 0.01, 0.025, *np.arange(1, 20) / 20, 0.975, 0.99, 0.995))


@dataclass(frozen=True)
class Calibration:
    """Corrections of quantiles, in units of a window's scale.

    Attributes:
        levels: Quantile levels `[levels]`, ascending.
        edges: Elapsed times `[buckets - 1]` that separate the buckets, in model units.
        shifts: Corrections `[buckets, levels]`.
        counts: Scores in each bucket `[buckets]`.
    """

    levels: NDArray[np.float64]
    edges: NDArray[np.float64]
    shifts: NDArray[np.float64]
    counts: NDArray[np.int64]

    def apply(
        self,
        quantiles: NDArray[np.float64],
        levels: NDArray[np.float64],
        elapsed: NDArray[np.float64],
        scale: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Calibrate quantiles; between calibrated levels the correction is interpolated.

        Args:
            quantiles: `[..., levels]`, in the caller's units.
            levels: `[levels]`, ascending.
            elapsed: Time since the cutoff `[...]`, in model units.
            scale: Scale of the window `[...]`.

        Returns:
            `[..., levels]`, ascending along the last axis; quantiles at or before the cutoff are unchanged.
        """
        by_level = np.stack([np.interp(levels, self.levels, row) for row in self.shifts])
        shift = by_level[np.searchsorted(self.edges, elapsed, side="left")]
        shift = np.where((elapsed > 0)[..., None], shift, 0.0)
        return np.sort(quantiles + scale[..., None] * shift, axis=-1)


def conformal_shift(scores: NDArray[np.float64], level: float) -> float:
    """Order statistic of `scores` that makes a quantile at `level` valid; the extreme one of too few."""
    count = len(scores)
    if level == 0.5:
        return float(np.median(scores))
    rank = np.ceil((count + 1) * level - 1e-9) if level > 0.5 else np.floor((count + 1) * level + 1e-9)
    index = int(np.clip(rank, 1, count)) - 1
    return float(np.partition(scores, index)[index])


def fit_calibration(
    quantiles: NDArray[np.float64],
    truth: NDArray[np.float64],
    levels: NDArray[np.float64],
    elapsed: NDArray[np.float64],
    scale: NDArray[np.float64],
) -> Calibration:
    """Learn the corrections from held-out forecasts.

    Args:
        quantiles: `[points, levels]`.
        truth: `[points]`.
        levels: `[levels]`, ascending.
        elapsed: `[points]`, positive.
        scale: `[points]`, positive.

    Returns:
        Corrections in buckets of about equal numbers of points.

    Raises:
        ValueError: There is no point to learn from.
    """
    if len(truth) == 0:
        raise ValueError("There is no held-out observation to calibrate on.")
    scores = (truth[:, None] - quantiles) / scale[:, None]
    edges = _bucket_edges(elapsed)
    bucket = np.searchsorted(edges, elapsed, side="left")
    shifts = np.stack(
        [
            [conformal_shift(scores[bucket == b, j], float(q)) for j, q in enumerate(levels)]
            for b in range(len(edges) + 1)
        ]
    )
    counts = np.bincount(bucket, minlength=len(edges) + 1)
    return Calibration(levels, edges, shifts, counts)


def _bucket_edges(elapsed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges that put about equally many points in each bucket, and no fewer than a hundred."""
    buckets = int(np.clip(len(elapsed) // _MIN_PER_BUCKET, 1, _MAX_BUCKETS))
    edges = np.unique(np.quantile(elapsed, np.arange(1, buckets) / buckets))
    return edges[edges < elapsed.max()]
