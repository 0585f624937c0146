"""Numba: gaps of an ordinary clock in one pass, as `solve.py` finds them by a dozen tensor operations.

Those cost more than attention over a short series. The rules are in `continuous/clock.py`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import carray, njit  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor

from ctsattn.ops.continuous.clock import MAX_UNIT
from ctsattn.ops.continuous.cpu.addresses import pointer_to
from ctsattn.ops.continuous.cpu.caching import compiled
from ctsattn.ops.continuous.cpu.places import CLOCK, CLOCK_KIND, CLOCK_STEP

# What a clock may hold: gaps in the dtype of the keys, or times.
GAPS, FLOAT64, FLOAT32, INT64 = range(4)
KIND_OF_TIMES = {torch.float64: FLOAT64, torch.float32: FLOAT32, torch.int64: INT64}


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
    for row in range(times.shape[0]):  # noqa: SIM110 (numba compiles no generator here)
        if not write_row(times[row], gaps[row]):
            return False
    return True


@njit(nogil=True)
def write_row(times, gaps):
    """Write the gaps of one row; whether every time is finite and none falls."""
    if len(times) > 0 and not -math.inf < times[0] < math.inf:
        return False
    factor = 0.0
    gaps[:1] = 0
    for place in range(1, len(times)):
        step = np.float64(times[place] - times[place - 1])
        if not 0 <= step < math.inf:
            return False
        if factor == 0 and step > 0:
            exponent = math.frexp(step)[1]
            factor = math.ldexp(1.0, -max(-MAX_UNIT, min(exponent, MAX_UNIT)))
        gaps[place] = step * factor
    return True


@njit(nogil=True)
def write_gaps(call, batch, gaps):
    """Write the gaps of a row of a call's clock, which lies where the call says; whether it is a clock."""
    kind, row, sizes = call[CLOCK_KIND], pointer_to(call[CLOCK] + batch * call[CLOCK_STEP]), gaps.shape
    if kind == FLOAT64:
        return write_row(carray(row, sizes, np.float64), gaps)
    if kind == FLOAT32:
        return write_row(carray(row, sizes, np.float32), gaps)
    if kind == INT64:
        return write_row(carray(row, sizes, np.int64), gaps)
    gaps[:] = carray(row, sizes, gaps.dtype)
    return True
