"""Triton: what a block of queries sees of the knots, and loads of both."""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.columns import tile_offsets

# Score of a knot that gives no weight: its exponential is 0, and the slope towards it has the reciprocal 0.
HIDDEN = tl.constexpr(-3.0e38)
# Added to the first knot of a query that sees several knots and no time between them: unit gaps hold for it.
FLAT = tl.constexpr(1 << 30)


@triton.jit
def load_gaps(gap_ptr, n0, num_knots, BN: tl.constexpr, PIECES: tl.constexpr):
    """Gap after each column of a tile, and the smallest `last - n0` with which its knot has weight.

    A knot has weight for a query if one of its pieces counts and has length. The gaps before and after are
    loaded as one [BN, 2], which is large enough for the compiler to copy it through shared memory instead of
    letting each thread load all that it needs.
    """
    right_end = tile_offsets(BN, PIECES)[:, None] + tl.arange(0, 2)[None, :]
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
    gap, end, flat, BM: tl.constexpr, BN: tl.constexpr, PIECES: tl.constexpr, FILL: tl.constexpr, UNIT:
    tl.constexpr = 1.0,
):  # fmt: skip
    """Gaps times `UNIT` and ends of `load_gaps` as [BM, BN]; unit gaps for rows that are flat."""
    gap = tl.broadcast_to((gap * UNIT)[None, :], (BM, BN))
    end = tl.broadcast_to(end[None, :], (BM, BN))
    if FILL:
        gap = tl.where(flat[:, None], UNIT, gap)
        end = tl.where(flat[:, None], tile_offsets(BN, PIECES)[None, :], end)
    return gap, end


@triton.jit
def hide(s, n0, first, last, end, BN: tl.constexpr, PIECES: tl.constexpr, SIMPLE: tl.constexpr):
    """Give knots that have no weight for a query the score `HIDDEN`."""
    visible = end <= (last - n0)[:, None]  # `end` is [1, BN] or [BM, BN]
    if not SIMPLE:
        visible = visible & (tile_offsets(BN, PIECES)[None, :] >= (first - n0)[:, None])
    return tl.where(visible, s, HIDDEN)


@triton.jit
def pieces_seen(s, n0, first, last, BN: tl.constexpr, PIECES: tl.constexpr, SIMPLE: tl.constexpr):
    """Whether the piece that begins in each column counts for each query, [BM, BN].

    That the score `s` is a number is asked so that all this takes the layout of the scores.
    """
    local = tile_offsets(BN, PIECES)[None, :]
    seen = (local < (last - n0)[:, None]) & (s == s)
    if not SIMPLE:
        seen = seen & (local >= (first - n0)[:, None])
    return seen


@triton.jit
def load_rows(
    ptr, stride, local, width, n0, num_knots, MASK: tl.constexpr, EVEN: tl.constexpr, W: tl.constexpr, NEXT:
    tl.constexpr = False,
):  # fmt: skip
    """Rows `n0 + local`, or if `NEXT` those after them, of a matrix [num_knots, width], padded to [.., W].

    Beyond the last there is 0 if `MASK` is 1, the last again if it is 2; 0 says that all exist.
    """
    col = tl.arange(0, W)
    if MASK == 2:
        if NEXT:
            local = local + 1
        local = tl.minimum(local, num_knots - 1 - n0)
    at = ptr + n0.to(tl.int64) * stride + local[:, None] * stride + col[None, :]
    if NEXT and MASK != 2:  # last, so that it can become a part of the instruction
        at += stride
        n0 += 1
    if MASK == 1 and EVEN:
        return tl.load(at, mask=(n0 + local)[:, None] < num_knots, other=0.0)
    elif MASK == 1:
        return tl.load(at, mask=((n0 + local)[:, None] < num_knots) & (col[None, :] < width), other=0.0)
    elif EVEN:
        return tl.load(at)
    else:
        return tl.load(at, mask=col[None, :] < width, other=0.0)


@triton.jit
def block_limits(
    first, last, inside, m0, num_queries, num_knots, offset, BM: tl.constexpr, SIGHT: tl.constexpr
):
    """Smallest and largest first knot, smallest and largest last knot of a block.

    Unless `SIGHT` is 0 they are known without looking at each query, whose reductions cost a short row much.
    """
    if SIGHT == 0:
        low = tl.min(tl.where(inside, first, num_knots), 0)
        last_min = tl.min(tl.where(inside, last, num_knots), 0)
        return low, tl.max(first, 0), last_min, tl.max(last, 0)
    else:
        last_min = num_knots - 1
        last_max = num_knots - 1
        if SIGHT == 1:
            last_min = tl.minimum(m0 + offset, last_min)
            last_max = tl.minimum(tl.minimum(m0 + BM, num_queries) - 1 + offset, last_max)
        return num_knots * 0, num_knots * 0, last_min, last_max


@triton.jit
def any_flat(first_ptr, flat, b, last_min, last_max, SIGHT: tl.constexpr):
    """Whether any query of a block is flat; see `read_limits`, `block_limits`."""
    if SIGHT == 0:
        return tl.max(flat.to(tl.int32), 0) > 0
    else:
        more = tl.maximum(last_min, 1)  # last knot of the first query that sees a piece
        return (more <= last_max) & (more < tl.load(first_ptr + b))


@triton.jit
def whole_tiles(low, first_max, last_min, BN: tl.constexpr):
    """A part of the pieces from knot `low` on that all queries of a block see, as knots [low, high].

    It, and what is before it, consist of whole tiles.
    """
    whole_low = low + tl.cdiv(first_max - low, BN) * BN
    wholes = (last_min - whole_low) // BN
    if wholes <= 0:
        whole_low = low
        wholes = 0
    return whole_low, whole_low + wholes * BN
