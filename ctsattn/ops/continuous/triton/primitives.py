"""Triton: group-major tiles, and what one straight piece of the score gives to its two knots.

A tile of `BN` columns is held in **group-major order**: with `G = BN / 8` groups of 8, column `8 g + j`
holds knot `n0 + j (G - 1) + g`. The successor of a knot in group `g` is the same `j` in group `g + 1`. In
the layout of the matrix unit all groups of a row lie in one thread, so moving by one knot renames
registers and moves nothing between lanes. The last group of run `j` is the first of run `j + 1`: each run
of `G` knots has `G - 1` pieces, a tile has `8 (G - 1)`, and the knot that two runs share stands in two
columns, each with the weight from its own side. So pieces never cross a tile.

A piece is named after its left knot. With `δ` the rise of the score over it, `e0`, `e1` the exponentials
at its ends and `Δ` its length, `mass = (e1 - e0) / δ`, and

    left = Δ (mass - e0) / δ      right = Δ (e1 - mass) / δ      c = (right - left) / δ

where `c` is what the gradient needs. All cancel near `δ = 0`. `TERMS = 0` is the way of bfloat16: below
`NEAR` the piece is nearly a trapezoid, and no second branch is needed: with 1/2 in place of `1 / δ` the
formulas give `right = Δ e1 / 2 (1 - δ / 2)` and `left = -Δ e0 / 2 (1 - δ / 2)`, right but for the sign up
to what the rounding of a weight hides. Otherwise a series of `TERMS` terms takes over inside a radius at
which both are as good as float32 allows.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Score of a knot that gives no weight: its exponential is 0, and the slope towards it has the reciprocal 0.
HIDDEN = tl.constexpr(-3.0e38)
# Above this rise of the score its reciprocal counts as 0.
STEEPEST = tl.constexpr(1.0e38)
# A trapezoid below this rise of the score: rounding of e1 - e0 gives 1e-7 / NEAR², the trapezoid NEAR / 2.
NEAR = tl.constexpr(0.008)
# Added to the first knot of a query that sees several knots and no time between them: unit gaps hold for it.
FLAT = tl.constexpr(1 << 30)
# Columns of a group.
RUNS = tl.constexpr(8)
# c = mass / 6 below this rise: rounding gives 1e-7 / NEAR_C³, the approximation NEAR_C² / 60.
NEAR_C = tl.constexpr(0.15)
# Largest exponent of a knot in the backward pass, e^60; only knots without weight exceed it.
CEILING = tl.constexpr(60.0 * 1.4426950408889634)


@triton.jit
def split_in_two(x, M: tl.constexpr, N: tl.constexpr):
    """Split [M, N] into its left and right [M, N / 2]."""
    return tl.split(tl.permute(tl.reshape(x, (M, 2, N // 2)), (0, 2, 1)))


@triton.jit
def join_two(left, right, M: tl.constexpr, N: tl.constexpr):
    """Join two [M, N / 2] into [M, N]."""
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (M, N))


@triton.jit
def split_in_four(x, M: tl.constexpr, N: tl.constexpr):
    """Split [M, N] into four [M, N / 4]."""
    left, right = split_in_two(x, M, N)
    x0, x1 = split_in_two(left, M, N // 2)
    x2, x3 = split_in_two(right, M, N // 2)
    return x0, x1, x2, x3


@triton.jit
def join_four(x0, x1, x2, x3, M: tl.constexpr, N: tl.constexpr):
    """Join four [M, N / 4] into [M, N]."""
    return join_two(join_two(x0, x1, M, N // 2), join_two(x2, x3, M, N // 2), M, N)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """`1 / x` to one unit in the last place, and 0 beyond `STEEPEST`."""
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.where(tl.abs(x) > STEEPEST, 0.0, 1.0 / x)


@triton.jit
def hat_series(d, TERMS: tl.constexpr):
    """`φ2(d)` to `TERMS` terms: the sum of `d^n / (n + 2)!`."""
    total = tl.full(d.shape, 1.0, tl.float32)
    for i in tl.static_range(TERMS - 1, 0, -1):
        total = 1.0 + total * d * (1.0 / (i + 2))
    return 0.5 * total


@triton.jit
def bump_series(d, TERMS: tl.constexpr):
    """Integral of `s (1 - s) e^{s d}` over [0, 1], to `TERMS` terms `d^n / (n! (n + 2) (n + 3))`."""
    total = tl.full(d.shape, 1.0, tl.float32)
    for i in tl.static_range(TERMS - 1, 0, -1):
        total = 1.0 + total * d * ((i + 1.0) / (i * (i + 3.0)))
    return total * (1.0 / 6.0)


@triton.jit
def piece_weights(d, e0, e1, gap, begun, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """`left`, `begun + right` and `1 / d` of a piece."""
    if TERMS == 0:
        near = tl.abs(d) < NEAR
        r = reciprocal(tl.where(near, 2.0, d), FAST)
        p = gap * r
        mass = (e1 - e0) * r
        return tl.abs(p * (mass - e0)), begun + p * (e1 - mass), r
    else:
        near = tl.abs(d) < RADIUS
        r = reciprocal(tl.where(near, 1.0, d), FAST)
        mass = (e1 - e0) * r
        small = tl.where(near, d, 0.0)
        left = tl.where(near, e0 * hat_series(small, TERMS), (mass - e0) * r)
        right = tl.where(near, e1 * hat_series(-small, TERMS), (e1 - mass) * r)
        return gap * left, gap * right + begun, r


@triton.jit
def piece_curvature(d, e0, gap, left, right, r, TERMS: tl.constexpr, RADIUS: tl.constexpr):
    """`c` of a piece: how its mass moves from one end to the other as the score tilts."""
    if TERMS == 0:
        # Written so, the compiler makes one selection of it; with fewer operations it made two, and spilled.
        return tl.where(tl.abs(d) < NEAR_C, (left + right) * (1.0 / 6.0), (right - left) * r)
    else:
        near = tl.abs(d) < RADIUS
        series = gap * e0 * bump_series(tl.where(near, d, 0.0), TERMS)
        return tl.where(near, series, (right - left) * r)


@triton.jit
def tile_offsets(BN: tl.constexpr):
    """Knot of each column of a tile, relative to its first."""
    c = tl.arange(0, BN)
    return (c % RUNS) * (BN // RUNS - 1) + c // RUNS


@triton.jit
def load_gaps(gap_ptr, n0, num_knots, BN: tl.constexpr):
    """Gap after each column of a tile, and the smallest `last - n0` with which its knot has weight.

    A knot has weight for a query if one of its pieces counts and has length. The gaps before and after are
    loaded as one [BN, 2], which is large enough for the compiler to copy it through shared memory instead of
    letting each thread load all that it needs.
    """
    right_end = tile_offsets(BN)[:, None] + tl.arange(0, 2)[None, :]
    knot = n0 + right_end
    gaps = tl.load(gap_ptr + knot, mask=(knot > 0) & (knot < num_knots), other=0.0)
    _before, after = tl.split(gaps)
    return after, tl.min(tl.where(gaps > 0, right_end, 2147483647), 1)


@triton.jit
def read_limits(first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT: tl.constexpr):
    """First and last knots that queries see, and which see several knots and no time between them.

    `SIGHT`, 0: read from [batch, queries], `first` marked by `FLAT`; 1: query i sees the knots up to
    `i + offset`; 2: all. In the last two `first_ptr` has, for each batch row, the first knot before which
    time has passed.
    """
    if SIGHT == 0:
        at = b * num_queries + row
        first = tl.load(first_ptr + at, mask=inside, other=0)
        flat = first >= FLAT
        first = tl.where(flat, first - FLAT, first)
        last = tl.load(last_ptr + at, mask=inside, other=-1)
    else:
        first = row * 0
        last = tl.minimum(row + offset, num_knots - 1) if SIGHT == 1 else first + (num_knots - 1)
        flat = inside & (last > 0) & (last < tl.load(first_ptr + b))
        last = tl.where(inside, last, -1)
    return first, last, flat


@triton.jit
def gaps_of_rows(gap, end, flat, BM: tl.constexpr, BN: tl.constexpr, FILL: tl.constexpr):
    """Gaps and ends of `load_gaps` as [BM, BN]; unit gaps for rows that are flat."""
    gap = tl.broadcast_to(gap[None, :], (BM, BN))
    end = tl.broadcast_to(end[None, :], (BM, BN))
    if FILL:
        gap = tl.where(flat[:, None], 1.0, gap)
        end = tl.where(flat[:, None], tile_offsets(BN)[None, :], end)
    return gap, end


@triton.jit
def hide(s, n0, first, last, end, BN: tl.constexpr, SIMPLE: tl.constexpr):
    """Give knots that have no weight for a query the score `HIDDEN`."""
    visible = end <= (last - n0)[:, None]  # `end` is [1, BN] or [BM, BN]
    if not SIMPLE:
        visible = visible & (tile_offsets(BN)[None, :] >= (first - n0)[:, None])
    return tl.where(visible, s, HIDDEN)


@triton.jit
def load_rows(
    ptr, stride, local, width, n0, num_knots, MASK: tl.constexpr, EVEN: tl.constexpr, W: tl.constexpr
):
    """Rows `n0 + local` of a matrix [num_knots, width], padded with 0 to [.., W]."""
    col = tl.arange(0, W)
    at = ptr + n0.to(tl.int64) * stride + local[:, None] * stride + col[None, :]
    if MASK and EVEN:
        return tl.load(at, mask=(n0 + local)[:, None] < num_knots, other=0.0)
    elif MASK:
        return tl.load(at, mask=((n0 + local)[:, None] < num_knots) & (col[None, :] < width), other=0.0)
    elif EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=col[None, :] < width, other=0.0)


@triton.jit
def visible_tiles(first, last, whole_last, inside, num_knots, STEP: tl.constexpr, WHOLE_STEP: tl.constexpr):
    """Knots between which a block of queries sees pieces, [low, high], and a part of them that all see whole.

    The part consists of tiles of `WHOLE_STEP` pieces, and what is before it of tiles of `STEP`.
    """
    high = tl.max(last, 0)
    low = tl.min(tl.where(inside, first, num_knots), 0)
    whole_low = low + tl.cdiv(tl.max(first, 0) - low, STEP) * STEP
    wholes = (tl.min(tl.where(inside, whole_last, num_knots), 0) - whole_low) // WHOLE_STEP
    if wholes <= 0:
        whole_low = low
        wholes = 0
    return low, whole_low, whole_low + wholes * WHOLE_STEP, high
