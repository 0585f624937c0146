"""Triton: the forward pass.

Tiles that every query of a block sees whole come last and need no running maximum: the reference point of the
exponentials stays where the masked tiles left it, and nothing is rescaled. bfloat16 weights have the range of float32,
so this fails only if a score exceeds that reference point by about 41; the block then sees it in its sum and starts
again, with a running maximum.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.primitives import (
    HIDDEN,
    LN2,
    LOG2E,
    join_four,
    join_two,
    load_gaps,
    piece_weights,
    reciprocal,
    split_in_four,
    split_in_two,
    tile_offsets,
)


@triton.jit
def piece_step(s, gap, m, s1, e1, w1, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """One group's pieces: completes the weight of its right knots, begins that of its left knots."""
    e = tl.exp2(s * LOG2E - m[:, None])
    w, w1, _r = piece_weights(s1 - s, e, e1, gap, w1, TERMS, RADIUS, FAST)
    return w1, e, w


@triton.jit
def four_steps(
    s, gap, m, s4, e, w, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr
):
    """Four groups' pieces, from the last to the first."""
    s0, s1, s2, s3 = split_in_four(s, M, N)
    g0, g1, g2, g3 = split_in_four(gap, M, N)
    w4, e, w = piece_step(s3, g3, m, s4, e, w, TERMS, RADIUS, FAST)
    w3, e, w = piece_step(s2, g2, m, s3, e, w, TERMS, RADIUS, FAST)
    w2, e, w = piece_step(s1, g1, m, s2, e, w, TERMS, RADIUS, FAST)
    w1, e, w = piece_step(s0, g0, m, s1, e, w, TERMS, RADIUS, FAST)
    return w, w1, w2, w3, w4, s0, e


@triton.jit
def tile_weights(
    s,
    rim,
    gap,
    m,
    M: tl.constexpr,
    N: tl.constexpr,
    G: tl.constexpr,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    FAST: tl.constexpr,
):
    """Weights of a tile's knots from its own pieces: [M, N], and [M, N / G] of the rim."""
    gap = tl.broadcast_to(gap[None, :], (M, N))
    e = tl.exp2(rim * LOG2E - m[:, None])
    none = tl.zeros((M, N // G), tl.float32)
    if G == 4:
        w0, w1, w2, w3, w4, _s, _e = four_steps(s, gap, m, rim, e, none, M, N, TERMS, RADIUS, FAST)
        return join_four(w0, w1, w2, w3, M, N), w4
    else:
        s_low, s_high = split_in_two(s, M, N)
        gap_low, gap_high = split_in_two(gap, M, N)
        w4, w5, w6, w7, w8, s4, e = four_steps(s_high, gap_high, m, rim, e, none, M, N // 2, TERMS, RADIUS, FAST)
        w0, w1, w2, w3, w4, _s, _e = four_steps(s_low, gap_low, m, s4, e, w4, M, N // 2, TERMS, RADIUS, FAST)
        low = join_four(w0, w1, w2, w3, M, N // 2)
        return join_two(low, join_four(w4, w5, w6, w7, M, N // 2), M, N), w8


@triton.jit
def hide(s, rim, n0, first, last, end, BN: tl.constexpr, G: tl.constexpr, SIMPLE: tl.constexpr):
    """Give knots that have no weight for a query the score `HIDDEN`."""
    local, rim_local = tile_offsets(BN, G)
    end = end[None, :]
    last = (last - n0)[:, None]
    if SIMPLE:
        return tl.where(end <= last, s, HIDDEN), tl.where(rim_local[None, :] <= last, rim, HIDDEN)
    first = (first - n0)[:, None]
    s = tl.where((end <= last) & (local[None, :] >= first), s, HIDDEN)
    rim = tl.where((rim_local[None, :] <= last) & (rim_local[None, :] > first), rim, HIDDEN)
    return s, rim


@triton.jit
def load_rows(ptr, stride, local, width, n0, num_knots, MASK: tl.constexpr, EVEN: tl.constexpr, W: tl.constexpr):
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
def forward_tile(
    acc,
    total,
    m,
    q,
    k_ptr,
    v_ptr,
    gap_ptr,
    stride_k,
    stride_v,
    n0,
    first,
    last,
    num_knots,
    head_dim,
    value_dim,
    scale,
    BM: tl.constexpr,
    BN: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    EVEN: tl.constexpr,
    EVEN_V: tl.constexpr,
    MASK: tl.constexpr,
    SIMPLE: tl.constexpr,
    SCALED: tl.constexpr,
    NORMALISE: tl.constexpr,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add one tile of knots to the accumulators; the running maximum moves only if `MASK`."""
    local, rim_local = tile_offsets(BN, G)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    k_rim = load_rows(k_ptr, stride_k, rim_local, head_dim, n0, num_knots, MASK, EVEN, D)
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN, G)
    rim = tl.dot(q, tl.trans(k_rim), input_precision=PRECISION)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not SCALED:
        rim = rim * scale
        s = s * scale
    if MASK:
        s, rim = hide(s, rim, n0, first, last, end, BN, G, SIMPLE)
        peak = tl.maximum(m, tl.maximum(tl.max(s, 1), tl.max(rim, 1)) * LOG2E)
        shrink = tl.exp2(m - peak)
        m = peak
        total = total * shrink
    w, w_rim = tile_weights(s, rim, gap, m, BM, BN, G, TERMS, RADIUS, FAST)
    total += tl.sum(w, 1) + tl.sum(w_rim, 1)
    if MASK:
        if NORMALISE:
            # Weights of narrow range are kept relative to the sum so far, because gaps may be tiny.
            size = tl.where(total > 0, total, 1.0)
            m += tl.log2(size)
            shrink = shrink / size
            total = total / size
            w = w / size[:, None]
            w_rim = w_rim / size[:, None]
        acc = acc * shrink[:, None]
    v_rim = load_rows(v_ptr, stride_v, rim_local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    v = load_rows(v_ptr, stride_v, local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    acc = tl.dot(w_rim.to(v.dtype), v_rim, acc, input_precision=PRECISION)
    acc = tl.dot(w.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, m


@triton.jit
def visible_tiles(first, last, inside, num_knots, BN: tl.constexpr):
    """Knots that a block of queries sees, [low, high), and within it those tiles that all see whole."""
    high = tl.max(last, 0) + 1
    low = tl.min(tl.where(inside, first, num_knots), 0) // BN * BN
    whole_low = tl.cdiv(tl.max(first, 0), BN) * BN
    whole_high = tl.maximum(tl.min(tl.where(inside, last, num_knots), 0), 0) // BN * BN
    if whole_low >= whole_high:
        whole_low = low
        whole_high = low
    return low, whole_low, whole_high, high


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_fwd_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    gap_ptr,
    first_ptr,
    last_ptr,
    out_ptr,
    lse_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_vb,
    stride_vh,
    stride_vn,
    heads,
    groups,
    num_queries,
    num_knots,
    head_dim,
    value_dim,
    scale,
    limit,
    BM: tl.constexpr,
    BN: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    EVEN: tl.constexpr,
    EVEN_V: tl.constexpr,
    SIMPLE: tl.constexpr,
    SCALED: tl.constexpr,
    NORMALISE: tl.constexpr,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Outputs [num_queries, value_dim] and log-sum-exps of one block of queries of one head."""
    blocks = tl.cdiv(num_queries, BM)
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest first, if causal
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    k_ptr += b * stride_kb + h // groups * stride_kh
    v_ptr += b * stride_vb + h // groups * stride_vh
    gap_ptr += b * num_knots
    # [BM]
    row = block * BM + tl.arange(0, BM)
    inside = row < num_queries
    first = tl.load(first_ptr + b * num_queries + row, mask=inside, other=0)
    last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
    q = load_rows(
        q_ptr + b * stride_qb + h * stride_qh, stride_qn, tl.arange(0, BM), head_dim, block * BM, num_queries, True, EVEN, D
    )
    if SCALED:
        q = (q * scale).to(q.dtype)
    low, whole_low, whole_high, high = visible_tiles(first, last, inside, num_knots, BN)

    acc = tl.zeros((BM, DV), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    m = tl.full((BM,), -1.0e30, tl.float32)
    on_the_right = tl.cdiv(high - whole_high, BN)
    for i in tl.range(0, on_the_right + (whole_low - low) // BN):
        n0 = tl.where(i < on_the_right, whole_high + i * BN, low + (i - on_the_right) * BN)
        acc, total, m = forward_tile(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots, head_dim, value_dim,
            scale, BM, BN, G, D, DV, EVEN, EVEN_V, True, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // BN):
        n0 = whole_low + i * BN
        acc, total, m = forward_tile(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots, head_dim, value_dim,
            scale, BM, BN, G, D, DV, EVEN, EVEN_V, False, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    if tl.max(tl.where(total < limit, 0, 1), 0) > 0:  # too large, or NaN
        acc = tl.zeros((BM, DV), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        m = tl.full((BM,), -1.0e30, tl.float32)
        for i in tl.range(0, tl.cdiv(high - low, BN)):
            n0 = low + i * BN
            acc, total, m = forward_tile(
                acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots, head_dim,
                value_dim, scale, BM, BN, G, D, DV, EVEN, EVEN_V, True, SIMPLE, SCALED, NORMALISE, TERMS, RADIUS, FAST,
                PRECISION,
            )  # fmt: skip
    some = total > 1.2e-37  # the smallest whose reciprocal is finite
    acc = acc * reciprocal(tl.where(some, total, 1.0), FAST)[:, None]
    col = tl.arange(0, DV)
    out_at = out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < value_dim))
    lse = tl.where(some, m * LN2 + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(lse_ptr + bh * num_queries + row, lse, mask=inside)
