"""Triton: group-major tiles, and what one straight piece of the score gives to its two knots.

A tile of `BN` columns holds four runs of `L = BN / 4` successive knots. Column `8 g + 2 j + p` holds knot
`2 g + p` of run `j`, which is knot `n0 + j (L - 1) + 2 g + p` of all. In the layout of the matrix unit a
thread has the columns `8 g + 2 j` and `8 g + 2 j + 1` for every `g`: all knots of a run, so moving by one
knot renames registers and moves nothing between lanes. The last knot of run `j` is the first of run `j + 1`:
each run has `L - 1` pieces, a tile `BN - 4`, and the knot that two runs share stands in two columns, each
with the weight from its own side. So pieces never cross a tile.

A piece is named after its left knot. With `δ` the rise of the score over it, `e0`, `e1` the exponentials at
its ends and `Δ` its length, its shares and what the gradient needs are

    left = Δ (e1 - e0 - e0 δ) / δ²    right = Δ (e1 δ - e1 + e0) / δ²    c = (right - left) / δ

which cancel near `δ = 0`. `TERMS = 0` is the way of bfloat16: numerator and denominator are shifted so that
their quotient goes to the limit by itself, without a second branch (comparisons run at half the rate, and the
shifts cost nothing, because they ride on multiplications and additions in one): see `piece_weights` and
`piece_gradients`. Otherwise a series of `TERMS` terms takes over inside a radius at which both are as good as
float32 allows.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
# Score of a knot that gives no weight: its exponential is 0, and the slope towards it has the reciprocal 0.
HIDDEN = tl.constexpr(-3.0e38)
# Above this rise of the score its reciprocal counts as 0.
STEEPEST = tl.constexpr(1.0e38)
# Shift of the shares: below a rise of the score of about sqrt(2 SHIFT) they are blended with their series.
SHIFT = tl.constexpr(3.0e-4)
# Shift of the gradients', in which the rise is halved.
SHIFT_C = tl.constexpr(2.0e-5)
# Added to the first knot of a query that sees several knots and no time between them: unit gaps hold for it.
FLAT = tl.constexpr(1 << 30)
# Runs of a tile: columns that begin no piece.
RUNS = tl.constexpr(4)
# Largest exponent of 2 of a knot in the backward pass; only knots without weight exceed it.
CEILING = tl.constexpr(60.0)


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
    """`φ2(d)` and `φ2(-d)` to `TERMS` terms, an even number: the sum of `d^n / (n + 2)!`."""
    even = tl.full(d.shape, 1.0, tl.float32)
    odd = even
    square = d * d
    for i in tl.static_range(TERMS // 2 - 1, 0, -1):
        even = 1.0 + even * square * (1.0 / ((2 * i + 1) * (2 * i + 2)))
        odd = 1.0 + odd * square * (1.0 / ((2 * i + 2) * (2 * i + 3)))
    even = 0.5 * even
    odd = d * odd * (1.0 / 6.0)
    return even + odd, even - odd


@triton.jit
def bump_series(d, TERMS: tl.constexpr):
    """Integral of `s (1 - s) e^{s d}` over [0, 1], to `TERMS` terms `d^n / (n! (n + 2) (n + 3))`."""
    total = tl.full(d.shape, 1.0, tl.float32)
    for i in tl.static_range(TERMS - 1, 0, -1):
        total = 1.0 + total * d * ((i + 1.0) / (i * (i + 3.0)))
    return total * (1.0 / 6.0)


@triton.jit
def exponent_scale(TERMS: tl.constexpr):
    """Factor from a score to the exponent of 2; see `piece_weights`."""
    return LOG2E * (1.0 + SHIFT / 3.0) if TERMS == 0 else LOG2E


@triton.jit
def piece_weights(d, e0, e1, gap, begun, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """`left` and `begun + right` of a piece.

    `TERMS = 0`: with `η = SHIFT`, `left = Δ (e1 - e0 - e0 d + η e0) / (d² + 2 η)` is a mean of the true
    value and of `Δ e0 / 2`, with weights `d²` and `2 η`. With `e1 / e0 = e^d` it would lack `Δ e0 d / 6` near
    0; with the exponentials of `(1 + η / 3) d`, which `exponent_scale` gives them, it has it, and errs by
    `η / 12` of itself at most. Rounding of the exponentials gives `1e-7 / η`.
    """
    if TERMS == 0:
        p = gap * reciprocal(d * d + 2.0 * SHIFT, FAST)
        left = p * ((e1 - (1.0 - SHIFT) * e0) - e0 * d)
        return left, begun + p * (e1 * d - ((1.0 - SHIFT) * e1 - e0))
    else:
        near = tl.abs(d) < RADIUS
        r = reciprocal(tl.where(near, 1.0, d), FAST)
        mass = (e1 - e0) * r
        rising, falling = hat_series(tl.where(near, d, 0.0), TERMS)
        left = tl.where(near, e0 * rising, (mass - e0) * r)
        right = tl.where(near, e1 * falling, (e1 - mass) * r)
        return gap * left, gap * right + begun


@triton.jit
def piece_gradients(d, e0, e1, gap, begun, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """`left`, `begun + right`, and `c`, by which a piece's mass moves to its right end as the score tilts.

    `TERMS = 0`: `d` is half the rise and `gap` a quarter of the gap `Δ`. With `A = e0 + e1`, `D = e1 - e0`
    it is `c = Δ (A d² - D d) / (4 d⁴)`, which is `Δ A / 12` near 0. With `η = SHIFT_C` and `y = d² + η`,
    `(A y - D d) / (y² + 3 η)` is a mean of both with weights `d⁴` and `3 η`, and errs by `sqrt(η) / 3` of
    itself at most. The shares follow: their sum is `Δ A / 2 - 2 c d²`, their difference `2 c d`.
    """
    if TERMS == 0:
        y = d * d + SHIFT_C
        total = e0 + e1
        c = (total * y - (e1 - e0) * d) * (gap * reciprocal(y * y + 3.0 * SHIFT_C, FAST))
        half = total * gap - c * y
        return half - c * d, (begun + half) + c * d, c
    else:
        near = tl.abs(d) < RADIUS
        left, right = piece_weights(d, e0, e1, gap, 0.0, TERMS, RADIUS, FAST)
        series = gap * e0 * bump_series(tl.where(near, d, 0.0), TERMS)
        c = tl.where(near, series, (right - left) * reciprocal(tl.where(near, 1.0, d), FAST))
        return left, begun + right, c


@triton.jit
def split_pairs(x, M: tl.constexpr, N: tl.constexpr):
    """Split [M, N] into its even and odd columns [M, N / 2]."""
    return tl.split(tl.reshape(x, (M, N // 2, 2)))


@triton.jit
def join_pairs(even, odd, M: tl.constexpr, N: tl.constexpr):
    """Join even and odd columns [M, N / 2] into [M, N]."""
    return tl.reshape(tl.join(even, odd), (M, N))


@triton.jit
def split_in_eight(x, M: tl.constexpr):
    """Split 32 columns [M, 32] into eight successive knots of each run, [M, RUNS] each."""
    even, odd = split_pairs(x, M, 32)
    x0, x2, x4, x6 = split_in_four(even, M, 16)
    x1, x3, x5, x7 = split_in_four(odd, M, 16)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def join_eight(x0, x2, x4, x6, odd, M: tl.constexpr):
    """Join even knots of each run [M, RUNS] and the odd ones [M, 16] into 32 columns."""
    return join_pairs(join_four(x0, x2, x4, x6, M, 16), odd, M, 32)


@triton.jit
def place_in_run(BN: tl.constexpr):
    """Which knot of its run each column of a tile holds."""
    c = tl.arange(0, BN)
    return c // 8 * 2 + c % 2


@triton.jit
def tile_offsets(BN: tl.constexpr):
    """Knot of each column of a tile, relative to its first."""
    return tl.arange(0, BN) % 8 // 2 * (BN // RUNS - 1) + place_in_run(BN)


@triton.jit
def begins_piece(BN: tl.constexpr):
    """Whether a piece begins at the knot of each column of a tile: at all but the last of each run."""
    return place_in_run(BN) < BN // RUNS - 1


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
def gaps_of_rows(
    gap, end, flat, BM: tl.constexpr, BN: tl.constexpr, FILL: tl.constexpr, UNIT: tl.constexpr = 1.0
):
    """Gaps times `UNIT` and ends of `load_gaps` as [BM, BN]; unit gaps for rows that are flat."""
    gap = tl.broadcast_to((gap * UNIT)[None, :], (BM, BN))
    end = tl.broadcast_to(end[None, :], (BM, BN))
    if FILL:
        gap = tl.where(flat[:, None], UNIT, gap)
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
def pieces_seen(s, n0, first, last, BN: tl.constexpr, SIMPLE: tl.constexpr):
    """Whether the piece that begins in each column counts for each query, [BM, BN].

    That the score `s` is a number is asked so that all this takes the layout of the scores.
    """
    local = tile_offsets(BN)[None, :]
    seen = (local < (last - n0)[:, None]) & (s == s)
    if not SIMPLE:
        seen = seen & (local >= (first - n0)[:, None])
    return seen


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
def visible_tiles(first, last, whole_last, inside, num_knots, STEP: tl.constexpr):
    """Knots between which a block of queries sees pieces, [low, high], and a part of them that all see whole.

    The part, and what is before it, consist of tiles of `STEP` pieces.
    """
    high = tl.max(last, 0)
    low = tl.min(tl.where(inside, first, num_knots), 0)
    whole_low = low + tl.cdiv(tl.max(first, 0) - low, STEP) * STEP
    wholes = (tl.min(tl.where(inside, whole_last, num_knots), 0) - whole_low) // STEP
    if wholes <= 0:
        whole_low = low
        wholes = 0
    return low, whole_low, whole_low + wholes * STEP, high
