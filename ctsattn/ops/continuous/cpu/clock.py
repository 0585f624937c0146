"""Numba: gaps of an ordinary clock in one pass, as `solve.py` finds them by a dozen tensor operations.

Those cost more than attention over a short series. The rules are in `continuous/clock.py`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ctsattn.ops.continuous.clock import MAX_UNIT
from ctsattn.ops.continuous.cpu.kernels import compiled


def plain_gaps(times: Tensor, wide: torch.dtype) -> Tensor | None:
    """Time before each knot in a power of two near the row's first gap, `[batch, knots]`.

    None if a clock falls or is not finite, which the caller then finds and names.
    """
    gaps = torch.empty(times.shape, dtype=wide)
    ordinary = _write_gaps(times.contiguous().numpy(), gaps.numpy())
    return gaps if ordinary else None


@compiled
def _write_gaps(times, gaps):
    """Write the gaps of all rows; whether every time is finite and none falls."""
    rows, knots = times.shape
    for row in range(rows if knots > 0 else 0):
        if not -math.inf < times[row, 0] < math.inf:
            return False
        factor = 0.0
        gaps[row, 0] = 0
        for place in range(1, knots):
            step = np.float64(times[row, place] - times[row, place - 1])
            if not 0 <= step < math.inf:
                return False
            if factor == 0 and step > 0:
                exponent = math.frexp(step)[1]
                factor = math.ldexp(1.0, -max(-MAX_UNIT, min(exponent, MAX_UNIT)))
            gaps[row, place] = step * factor
    return True
