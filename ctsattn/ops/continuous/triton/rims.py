"""Triton: what a tile of knots needs of its neighbours, if tiles do not overlap.

The knots before and after it stand in eight columns, so that a product with them leaves each to the thread
that has the run to which it is next: two columns of the first run have the one, all others the other.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.columns import RUNS, split_pairs
from ctsattn.ops.continuous.triton.views import HIDDEN, load_rows


@triton.jit
def rim_offsets(BN: tl.constexpr):
    """Which knot each column has, relative to the first of the tile."""
    return tl.where(tl.arange(0, 2 * RUNS) < 2, -1, BN)


@triton.jit
def load_rims(ptr, stride, width, n0, num_knots, BN: tl.constexpr, EVEN: tl.constexpr, W: tl.constexpr):
    """Rows of the knots before and after a tile, [2 RUNS, W]; at the ends of a row, its own end again."""
    local = tl.maximum(tl.minimum(rim_offsets(BN), num_knots - 1 - n0), -n0)
    return load_rows(ptr, stride, local, width, n0, num_knots, 0, EVEN, W)


@triton.jit
def load_rim_gaps(gap_ptr, n0, num_knots, BN: tl.constexpr):
    """Gap before the first knot of each run, twice; `end` of `views.load_gaps` of the rims.

    And whether these have weight, as far as they exist.
    """
    knot = n0 + tl.arange(0, 2 * RUNS) // 2 * (BN // RUNS)
    gap = tl.load(gap_ptr + knot, mask=(knot > 0) & (knot < num_knots), other=0.0)
    local = rim_offsets(BN)
    right_end = local[:, None] + tl.arange(0, 2)[None, :]
    knot = n0 + right_end
    gaps = tl.load(gap_ptr + knot, mask=(knot > 0) & (knot < num_knots), other=0.0)
    end = tl.min(tl.where(gaps > 0, right_end, 2147483647), 1)
    weightless = (end == 2147483647) & (n0 + local >= 0) & (n0 + local < num_knots)
    return gap, end, tl.max(weightless.to(tl.int32), 0) == 0


@triton.jit
def gaps_before_runs(
    gap, s, n0, first, last, flat, BM: tl.constexpr, BN: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Gaps before the first knots of runs, [BM, RUNS], times `UNIT`; 0 where a query does not see the piece.

    `gap`, `s`: each of four twice. That `s` is a number is asked for its layout.
    """
    gap = tl.broadcast_to((gap * UNIT)[None, :], (BM, 2 * RUNS))
    if MASK:
        local = (tl.arange(0, 2 * RUNS) // 2 * (BN // RUNS))[None, :]
        if FILL:
            gap = tl.where(flat[:, None], UNIT, gap)
        seen = (local <= (last - n0)[:, None]) & (local > (first - n0)[:, None]) & (s == s)
        gap = tl.where(seen, gap, 0.0)
    gap, _same = split_pairs(gap, BM, 2 * RUNS)
    return gap


@triton.jit
def hide_rims(
    s, n0, first, last, flat, end, BM: tl.constexpr, BN: tl.constexpr, FILL: tl.constexpr, SIMPLE:
    tl.constexpr,
):  # fmt: skip
    """As `views.hide`, for the scores [BM, 2 RUNS] of rims."""
    end = tl.broadcast_to(end[None, :], (BM, 2 * RUNS))
    if FILL:
        end = tl.where(flat[:, None], rim_offsets(BN)[None, :], end)
    visible = end <= (last - n0)[:, None]
    if not SIMPLE:
        visible = visible & (rim_offsets(BN)[None, :] >= (first - n0)[:, None])
    return tl.where(visible, s, HIDDEN)
