"""Triton: the forward pass.

Tiles that every query of a block sees whole come last and need no running maximum: the reference point of the
exponentials stays where the masked tiles left it, and nothing is rescaled. bfloat16 weights have the range of
float32, so this fails only if a score exceeds that reference point by about 41; the block then sees it in its
sum and starts again, with a running maximum. It does so, too, if it has queries that see several knots and
no time between them: for these the gaps are 1.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.primitives import (
    RUNS,
    exponent_scale,
    gaps_of_rows,
    hide,
    join_eight,
    join_four,
    join_two,
    load_gaps,
    load_rows,
    piece_weights,
    read_limits,
    reciprocal,
    split_in_eight,
    split_in_two,
    split_pairs,
    tile_offsets,
    visible_tiles,
)


@triton.jit
def piece_step(s, gap, m, s1, e1, w1, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """One piece of each run: completes the weight of its right knots, begins that of its left knots."""
    e = tl.exp2(s * exponent_scale(TERMS) - m)
    w, w1 = piece_weights(s1 - s, e, e1, gap, w1, TERMS, RADIUS, FAST)
    return w1, e, w


@triton.jit
def eight_steps(
    s, gap, m, s8, e, w, M: tl.constexpr, LAST: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr,
):  # fmt: skip
    """Pieces of 32 columns, eight knots of each run, from the last to the first; the last of all begins none.

    Returns the weight of the first knots, but for their right pieces; of the other even columns; of the odd
    ones [M, 16]; the completed weight of what was `w`; and score and exponential with which the next eight go
    on.
    """
    s0, s1, s2, s3, s4, s5, s6, s7 = split_in_eight(s, M)
    g0, g1, g2, g3, g4, g5, g6, g7 = split_in_eight(gap, M)
    if LAST:
        e = tl.exp2(s7 * exponent_scale(TERMS) - m)
        w8 = w
    else:
        w8, e, w = piece_step(s7, g7, m, s8, e, w, TERMS, RADIUS, FAST)
    w7, e, w = piece_step(s6, g6, m, s7, e, w, TERMS, RADIUS, FAST)
    w6, e, w = piece_step(s5, g5, m, s6, e, w, TERMS, RADIUS, FAST)
    w5, e, w = piece_step(s4, g4, m, s5, e, w, TERMS, RADIUS, FAST)
    w4, e, w = piece_step(s3, g3, m, s4, e, w, TERMS, RADIUS, FAST)
    w3, e, w = piece_step(s2, g2, m, s3, e, w, TERMS, RADIUS, FAST)
    w2, e, w = piece_step(s1, g1, m, s2, e, w, TERMS, RADIUS, FAST)
    w1, e, w = piece_step(s0, g0, m, s1, e, w, TERMS, RADIUS, FAST)
    return w, w2, w4, w6, join_four(w1, w3, w5, w7, M, 16), w8, s0, e


@triton.jit
def tile_weights(
    s, gap, m, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr,
):  # fmt: skip
    """Weights [M, N] of a tile's columns; `gap` [M, N]."""
    # [M, RUNS] out of [M, 8], so that its layout is that of the scores' parts.
    m, _m = split_pairs(tl.broadcast_to(m[:, None], (M, 8)), M, 8)
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, N)
    gap_low, gap_high = split_in_two(gap, M, N)
    if N == 64:
        w8, w10, w12, w14, high, _w, s8, e = eight_steps(
            s_high, gap_high, m, none, none, none, M, True, TERMS, RADIUS, FAST
        )
        w0, w2, w4, w6, low, w8, _s, _e = eight_steps(
            s_low, gap_low, m, s8, e, w8, M, False, TERMS, RADIUS, FAST
        )
        return join_two(join_eight(w0, w2, w4, w6, low, M), join_eight(w8, w10, w12, w14, high, M), M, 64)
    else:
        s0, s8 = split_in_two(s_low, M, 64)
        s16, s24 = split_in_two(s_high, M, 64)
        g0, g8 = split_in_two(gap_low, M, 64)
        g16, g24 = split_in_two(gap_high, M, 64)
        w24, w26, w28, w30, odd24, _w, s, e = eight_steps(
            s24, g24, m, none, none, none, M, True, TERMS, RADIUS, FAST
        )
        w16, w18, w20, w22, odd16, w24, s, e = eight_steps(
            s16, g16, m, s, e, w24, M, False, TERMS, RADIUS, FAST
        )
        w8, w10, w12, w14, odd8, w16, s, e = eight_steps(s8, g8, m, s, e, w16, M, False, TERMS, RADIUS, FAST)
        w0, w2, w4, w6, odd0, w8, s, e = eight_steps(s0, g0, m, s, e, w8, M, False, TERMS, RADIUS, FAST)
        low = join_two(join_eight(w0, w2, w4, w6, odd0, M), join_eight(w8, w10, w12, w14, odd8, M), M, 64)
        high = join_two(
            join_eight(w16, w18, w20, w22, odd16, M), join_eight(w24, w26, w28, w30, odd24, M), M, 64
        )
        return join_two(low, high, M, 128)


@triton.jit
def forward_tile(
    acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, n0, first, last, flat, num_knots, head_dim,
    value_dim, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN:
    tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr,
    SCALED: tl.constexpr, NORMALISE: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add one tile of knots to the accumulators; the running maximum moves only if `MASK`."""
    local = tile_offsets(BN)
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN)
    gap, end = gaps_of_rows(gap, end, flat, BM, BN, FILL)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not SCALED:
        s = s * scale
    if MASK:
        s = hide(s, n0, first, last, end, BN, SIMPLE)
        peak = tl.maximum(m, tl.max(s, 1) * exponent_scale(TERMS))
        shrink = tl.exp2(m - peak)
        m = peak
        total = total * shrink
    w = tile_weights(s, gap, m, BM, BN, TERMS, RADIUS, FAST)
    total += tl.sum(w, 1)
    if MASK:
        if NORMALISE:
            # Weights of narrow range are kept relative to the sum so far, because gaps may be tiny.
            size = tl.where(total > 0, total, 1.0)
            m += tl.log2(size)
            shrink = shrink / size
            total = total / size
            w = w / size[:, None]
        acc = acc * shrink[:, None]
    v = load_rows(v_ptr, stride_v, local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    return tl.dot(w.to(v.dtype), v, acc, input_precision=PRECISION), total, m


@triton.jit
def masked_tiles(
    acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, tiles, tiles_on_the_right, right, low, first,
    last, flat, num_knots, head_dim, value_dim, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr,
    SCALED: tl.constexpr, NORMALISE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add tiles that not every query sees whole: those from knot `right` on, then those from `low` on."""
    STEP: tl.constexpr = BN - RUNS
    for i in tl.range(0, tiles):
        n0 = tl.where(i < tiles_on_the_right, right + i * STEP, low + (i - tiles_on_the_right) * STEP)
        acc, total, m = forward_tile(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, n0, first, last, flat, num_knots,
            head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, True, FILL, SIMPLE, SCALED, NORMALISE,
            TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    return acc, total, m


@triton.jit(do_not_specialize=["heads", "num_queries", "num_knots", "offset"])
def attention_fwd_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, out_ptr, lse_ptr, stride_qb, stride_qh, stride_qn,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, heads, groups, num_queries,
    num_knots, head_dim, value_dim, scale, offset, limit, BM: tl.constexpr, BN: tl.constexpr, D:
    tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, DENSE: tl.constexpr, SIGHT:
    tl.constexpr, SIMPLE: tl.constexpr, FILL: tl.constexpr, SCALED: tl.constexpr, NORMALISE: tl.constexpr,
    TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs [num_queries, value_dim] and log-sum-exps of one block of queries of one head.

    `FILL`: a query with nothing to integrate gets what `answer` says.
    """
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
    inside = row < num_queries
    first, last, flat = read_limits(
        first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
    )
    q_ptr += b * stride_qb + h * stride_qh
    q = load_rows(q_ptr, stride_qn, here, head_dim, block * BM, num_queries, True, EVEN, D)
    if SCALED:
        q = (q * scale).to(q.dtype)
    STEP: tl.constexpr = BN - RUNS
    low, whole_low, whole_high, high = visible_tiles(first, last, last, inside, num_knots, STEP)

    acc = tl.zeros((BM, DV), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    m = tl.full((BM,), -1.0e30, tl.float32)
    right = tl.maximum(tl.cdiv(high - whole_high, STEP), 0)
    acc, total, m = masked_tiles(
        acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, right + (whole_low - low) // STEP,
        right, whole_high, low, first, last, flat, num_knots, head_dim, value_dim, scale, BM, BN, D, DV,
        EVEN, EVEN_V, False, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
    )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // STEP):
        acc, total, m = forward_tile(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, whole_low + i * STEP, first, last,
            flat, num_knots, head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, False, False, SIMPLE,
            SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    again = tl.max(tl.where(total < limit, 0, 1), 0)  # too large, or NaN
    if FILL:
        again |= tl.max(flat.to(tl.int32), 0)
    if again > 0:
        acc = tl.zeros((BM, DV), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        m = tl.full((BM,), -1.0e30, tl.float32)
        acc, total, m = masked_tiles(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, tl.cdiv(high - low, STEP), 0, low,
            low, first, last, flat, num_knots, head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V,
            FILL, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    some = total > 1.2e-37  # the smallest whose reciprocal is finite
    acc = acc * reciprocal(tl.where(some, total, 1.0), FAST)[:, None]
    col = tl.arange(0, DV)
    if FILL:
        only = inside & (first == last)
        if tl.max(only.to(tl.int32), 0) > 0:
            at = v_ptr + first.to(tl.int64)[:, None] * stride_vn + col[None, :]
            value = tl.load(at, mask=only[:, None] & (col[None, :] < value_dim), other=0.0)
            acc = tl.where(only[:, None], value.to(tl.float32), acc)
    out_at = out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < value_dim))
    lse = tl.where(some, m / exponent_scale(TERMS) + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(lse_ptr + bh * num_queries + row, lse, mask=inside)
