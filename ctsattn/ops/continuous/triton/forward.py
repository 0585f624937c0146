"""Triton: the forward pass.

A block of queries visits its tiles from the last to the first: those at the end that not every query sees
whole, which move the running maximum, then whole ones, which need none: the reference point of the
exponentials stays where the masked tiles left it, and nothing is rescaled. (If series are packed, masked
ones follow again.) bfloat16 weights have the range of float32, so this fails only if a score exceeds that
reference point by about 41; the block then sees it in its sum and starts again, with a running maximum. It
does so, too, if it has queries that see several knots and no time between them: for these the gaps are 1.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.columns import (
    RUNS,
    first_of_runs,
    is_last_run,
    join_eight,
    join_four,
    join_two,
    over_runs,
    split_in_eight,
    split_in_two,
    tile_offsets,
    turn,
)
from ctsattn.ops.continuous.triton.primitives import (
    exponent_scale,
    piece_weights,
    reciprocal,
    times_power_of_two,
)
from ctsattn.ops.continuous.triton.views import (
    HIDDEN,
    any_flat,
    block_limits,
    gaps_of_rows,
    hide,
    load_gaps,
    load_rows,
    read_limits,
    whole_tiles,
)


@triton.jit
def piece_step(s, gap, m, s1, e1, w1, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """One piece of each run: completes the weight of its right knots, begins that of its left knots."""
    e = tl.exp2(s * exponent_scale(TERMS) - m)
    w, w1 = piece_weights(s1 - s, e, e1, gap, w1, TERMS, RADIUS, FAST)
    return w1, e, w


@triton.jit
def eight_steps(
    s, gap, m, s8, e, M: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr
):
    """Pieces of 32 columns, eight of each run, from the last to the first, [M, RUNS] each.

    Returns the weights of their right knots, of which the last lacks its right piece; the begun weight of
    the first left knot, its score and its exponential.
    """
    s0, s1, s2, s3, s4, s5, s6, s7 = split_in_eight(s, M)
    g0, g1, g2, g3, g4, g5, g6, g7 = split_in_eight(gap, M)
    w8, e, w = piece_step(s7, g7, m, s8, e, 0.0, TERMS, RADIUS, FAST)
    w7, e, w = piece_step(s6, g6, m, s7, e, w, TERMS, RADIUS, FAST)
    w6, e, w = piece_step(s5, g5, m, s6, e, w, TERMS, RADIUS, FAST)
    w5, e, w = piece_step(s4, g4, m, s5, e, w, TERMS, RADIUS, FAST)
    w4, e, w = piece_step(s3, g3, m, s4, e, w, TERMS, RADIUS, FAST)
    w3, e, w = piece_step(s2, g2, m, s3, e, w, TERMS, RADIUS, FAST)
    w2, e, w = piece_step(s1, g1, m, s2, e, w, TERMS, RADIUS, FAST)
    w1, e, w = piece_step(s0, g0, m, s1, e, w, TERMS, RADIUS, FAST)
    return w1, w2, w3, w4, w5, w6, w7, w8, w, s0, e


@triton.jit
def tile_weights(
    s, gap, m, s_next, w_next, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Weights [M, N] of the knots after a tile's columns, from the scores of these and what `turned` carries.

    `s_next`, `w_next` [M, RUNS]: in the last column, score and begun weight of the knot after the tile.
    Returned are the same for the tile before: there, those of this tile's first knot.
    """
    m = over_runs(m, M)
    s_low, s_high = split_in_two(s, M, N)
    gap_low, gap_high = split_in_two(gap, M, N)
    s_next, end = turn(first_of_runs(s_low, M, N // 2), s_next, M, FAST)
    e = tl.exp2(end * exponent_scale(TERMS) - m)
    if N == 64:
        w9, w10, w11, w12, w13, w14, w15, w16, w8, s8, e = eight_steps(
            s_high, gap_high, m, end, e, M, TERMS, RADIUS, FAST
        )
        w1, w2, w3, w4, w5, w6, w7, right8, w0, _s, _e = eight_steps(
            s_low, gap_low, m, s8, e, M, TERMS, RADIUS, FAST
        )
        w_next, begun = turn(w0, w_next, M, FAST)
        w8 += right8
        w16 += begun
        low = join_eight(w1, w3, w5, w7, join_four(w2, w4, w6, w8, M, 16), M)
        high = join_eight(w9, w11, w13, w15, join_four(w10, w12, w14, w16, M, 16), M)
        return join_two(low, high, M, 64), s_next, w_next
    else:
        s0, s8 = split_in_two(s_low, M, 64)
        s16, s24 = split_in_two(s_high, M, 64)
        g0, g8 = split_in_two(gap_low, M, 64)
        g16, g24 = split_in_two(gap_high, M, 64)
        w25, w26, w27, w28, w29, w30, w31, w32, w24, s, e = eight_steps(
            s24, g24, m, end, e, M, TERMS, RADIUS, FAST
        )
        w17, w18, w19, w20, w21, w22, w23, right24, w16, s, e = eight_steps(
            s16, g16, m, s, e, M, TERMS, RADIUS, FAST
        )
        w9, w10, w11, w12, w13, w14, w15, right16, w8, s, e = eight_steps(
            s8, g8, m, s, e, M, TERMS, RADIUS, FAST
        )
        w1, w2, w3, w4, w5, w6, w7, right8, w0, _s, _e = eight_steps(s0, g0, m, s, e, M, TERMS, RADIUS, FAST)
        w_next, begun = turn(w0, w_next, M, FAST)
        w8 += right8
        w16 += right16
        w24 += right24
        w32 += begun
        w1 = join_eight(w1, w3, w5, w7, join_four(w2, w4, w6, w8, M, 16), M)
        w9 = join_eight(w9, w11, w13, w15, join_four(w10, w12, w14, w16, M, 16), M)
        w17 = join_eight(w17, w19, w21, w23, join_four(w18, w20, w22, w24, M, 16), M)
        w25 = join_eight(w25, w27, w29, w31, join_four(w26, w28, w30, w32, M, 16), M)
        return join_four(w1, w9, w17, w25, M, 128), s_next, w_next


@triton.jit
def load_tile(
    k_ptr, v_ptr, stride_k, stride_v, n0, num_knots, head_dim, value_dim, BN: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Keys of a tile, and values of the knots after them; `MASK` as in `load_rows`."""
    local = tile_offsets(BN, BN)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    v = load_rows(v_ptr, stride_v, local, value_dim, n0, num_knots, MASK, EVEN_V, DV, True)
    return k, v


@triton.jit
def forward_tile(
    acc, total, m, s_next, w_next, q, k, v, gap_ptr, n0, first, last, flat, num_knots, scale, BM:
    tl.constexpr, BN: tl.constexpr, START: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, SIMPLE:
    tl.constexpr, SCALED: tl.constexpr, NORMALISE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr,
    FAST: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """Add one tile of pieces to the accumulators; the running maximum moves only if `MASK`.

    `START`: nothing has been added yet. `WHOLE`: nothing has to be hidden even if `MASK`.
    """
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN, BN)
    gap, end = gaps_of_rows(gap, end, flat, BM, BN, BN, FILL)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not SCALED:
        s = s * scale
    if MASK:
        if not WHOLE:
            s = hide(s, n0, first, last, end, BN, BN, SIMPLE)
        peak = tl.maximum(m, tl.max(s, 1) * exponent_scale(TERMS))
        if not START:
            shrink = tl.exp2(m - peak)
            total = total * shrink
            w_next = w_next * over_runs(shrink, BM)
        m = peak
    w, s_next, w_next = tile_weights(s, gap, m, s_next, w_next, BM, BN, TERMS, RADIUS, FAST)
    total += tl.sum(w, 1)
    if MASK:
        if NORMALISE:
            # Weights of narrow range are kept relative to the sum so far, because gaps may be tiny.
            size = tl.where(total > 0, total, 1.0)
            m += tl.log2(size)
            total = total / size
            if not START:
                shrink = shrink / size
            w = w / size[:, None]
            w_next = w_next / over_runs(size, BM)
        if not START:
            acc = acc * shrink[:, None]
    return tl.dot(w.to(v.dtype), v, acc, input_precision=PRECISION), total, m, s_next, w_next


@triton.jit
def masked_tiles(
    acc, total, m, s_next, w_next, q, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, begin, tiles, first, last,
    flat, num_knots, head_dim, value_dim, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV:
    tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr,
    SCALED: tl.constexpr, NORMALISE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr, PRECISION: tl.constexpr, PEEL: tl.constexpr,
):  # fmt: skip
    """Add tiles that not every query sees whole, from knot `begin` on, from the last to the first."""
    for i in tl.range(0, tiles, num_stages=1 if PEEL else None):
        n0 = begin + (tiles - 1 - i) * BN
        k, v = load_tile(
            k_ptr, v_ptr, stride_k, stride_v, n0, num_knots, head_dim, value_dim, BN, D, DV, EVEN,
            EVEN_V, True,
        )  # fmt: skip
        acc, total, m, s_next, w_next = forward_tile(
            acc, total, m, s_next, w_next, q, k, v, gap_ptr, n0, first, last, flat, num_knots, scale, BM, BN,
            False, True, FILL, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    return acc, total, m, s_next, w_next


@triton.jit(do_not_specialize=["heads", "num_queries", "num_knots", "offset"])
def attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, out_ptr, lse_ptr, stride_qb, stride_qh, stride_qn,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, heads, groups, num_queries,
    num_knots, head_dim, value_dim, scale, offset, limit, BM: tl.constexpr, BN: tl.constexpr, D:
    tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, DENSE: tl.constexpr, SIGHT:
    tl.constexpr, SIMPLE: tl.constexpr, FILL: tl.constexpr, SCALED: tl.constexpr, NORMALISE: tl.constexpr,
    TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, PEEL:
    tl.constexpr, EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Outputs [num_queries, value_dim] and log-sum-exps of one block of queries of one head.

    `FILL`: a query with nothing to integrate gets what `answer` says. `PEEL`: the first tile, which most
    often is the only masked one, has code of its own. `EXACT`: blocks and tiles are full. `EARLY`: the
    program may begin before gaps and `first` are written.
    """
    FULL: tl.constexpr = PEEL and SIGHT == 2  # then the first tile is whole, with a last piece of length 0
    if EARLY:  # at once: a wait between loads would keep the later ones back
        tl.extra.cuda.gdc_wait()
    if DENSE:  # known when compiled, strides cost neither registers nor additions
        stride_qn = D
        stride_kn = D
        stride_vn = DV
    blocks = tl.cdiv(num_queries, BM)
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest first, if causal
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    k_ptr += b * stride_kb + h // groups * stride_kh
    v_ptr += b * stride_vb + h // groups * stride_vh
    gap_ptr += b * num_knots
    # [BM]
    here = tl.arange(0, BM)
    row = block * BM + here
    inside = row >= 0 if EXACT else row < num_queries
    if SIGHT == 0:
        first, last, flat = read_limits(
            first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
        )
    else:
        first = row
        last = row
    low, first_max, last_min, high = block_limits(
        first, last, inside, block * BM, num_queries, num_knots, offset, BM, SIGHT
    )
    if FULL:
        whole_low = low
        whole_high = (num_knots - 1) // BN * BN
        masked = low
    else:
        whole_low, whole_high = whole_tiles(low, first_max, last_min, BN)
        masked = tl.cdiv(high + 1 - whole_high, BN)
        if PEEL:
            masked = tl.maximum(masked, 1) - 1

    acc = tl.zeros((BM, DV), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    m = tl.full((BM,), -1.0e30, tl.float32)
    s_next = tl.full((BM, RUNS), HIDDEN, tl.float32)
    w_next = tl.zeros((BM, RUNS), tl.float32)
    if PEEL:
        n0 = whole_high + masked * BN
        k, v = load_tile(
            k_ptr, v_ptr, stride_kn, stride_vn, n0, num_knots, head_dim, value_dim, BN, D, DV, EVEN,
            EVEN_V, 2 if FULL else 1,
        )  # fmt: skip
    q_ptr += b * stride_qb + h * stride_qh
    q = load_rows(q_ptr, stride_qn, here, head_dim, block * BM, num_queries, not EXACT, EVEN, D)
    if SCALED:
        q = times_power_of_two(q, scale, FAST)
    if SIGHT != 0:
        first, last, flat = read_limits(
            first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
        )
    some_flat = any_flat(first_ptr, flat, b, last_min, high, SIGHT)
    if PEEL:
        acc, total, m, s_next, w_next = forward_tile(
            acc, total, m, s_next, w_next, q, k, v, gap_ptr, n0, first, last, flat, num_knots, scale, BM, BN,
            True, True, False, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION, FULL,
        )  # fmt: skip
    if not FULL:
        acc, total, m, s_next, w_next = masked_tiles(
            acc, total, m, s_next, w_next, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, whole_high, masked,
            first, last, flat, num_knots, head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, False,
            SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION, PEEL,
        )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // BN):
        n0 = whole_high - (i + 1) * BN
        k, v = load_tile(
            k_ptr, v_ptr, stride_kn, stride_vn, n0, num_knots, head_dim, value_dim, BN, D, DV, EVEN,
            EVEN_V, False,
        )  # fmt: skip
        acc, total, m, s_next, w_next = forward_tile(
            acc, total, m, s_next, w_next, q, k, v, gap_ptr, n0, first, last, flat, num_knots, scale, BM, BN,
            False, False, False, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    if not SIMPLE:
        acc, total, m, s_next, w_next = masked_tiles(
            acc, total, m, s_next, w_next, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, low,
            (whole_low - low) // BN, first, last, flat, num_knots, head_dim, value_dim, scale, BM, BN, D, DV,
            EVEN, EVEN_V, False, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION, PEEL,
        )  # fmt: skip
    col = tl.arange(0, DV)
    exists = tl.where(low < num_knots, value_dim, 0)
    value_low = tl.load(v_ptr + low.to(tl.int64) * stride_vn + col, mask=col < exists, other=0.0)
    begun = tl.sum(tl.where(is_last_run(BM), w_next, 0.0), 1)
    fits = total + begun < limit  # not if it is NaN
    if FULL:  # too small, if the largest score so far belongs to a knot without weight
        fits = fits & ((total + begun) * limit > 1.0)
    again = tl.max(tl.where(fits, 0, 1), 0)
    if FILL:
        again |= some_flat.to(tl.int32)
    if again > 0:
        acc = tl.zeros((BM, DV), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        m = tl.full((BM,), -1.0e30, tl.float32)
        s_next = tl.full((BM, RUNS), HIDDEN, tl.float32)
        w_next = tl.zeros((BM, RUNS), tl.float32)
        acc, total, m, s_next, w_next = masked_tiles(
            acc, total, m, s_next, w_next, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, low, tl.cdiv(high +
            1 - low, BN), first, last, flat, num_knots, head_dim, value_dim, scale, BM, BN, D, DV, EVEN,
            EVEN_V, FILL, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION, PEEL,
        )  # fmt: skip
        begun = tl.sum(tl.where(is_last_run(BM), w_next, 0.0), 1)
    acc += begun[:, None] * value_low.to(tl.float32)[None, :]
    total += begun
    some = total > 1.2e-37  # the smallest whose reciprocal is finite
    acc = acc * reciprocal(tl.where(some, total, 1.0), FAST)[:, None]
    if FILL:
        only = inside & (first == last)
        if (tl.max(only.to(tl.int32), 0) > 0) if SIGHT == 0 else (last_min <= 0):
            at = v_ptr + first.to(tl.int64)[:, None] * stride_vn + col[None, :]
            value = tl.load(at, mask=only[:, None] & (col[None, :] < value_dim), other=0.0)
            acc = tl.where(only[:, None], value.to(tl.float32), acc)
    out_at = out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < value_dim))
    lse = m * (1.0 / exponent_scale(TERMS)) + tl.log(tl.where(some, total, 1.0))
    lse = tl.where(some, lse, float("-inf"))
    tl.store(lse_ptr + bh * num_queries + row, lse, mask=inside)
