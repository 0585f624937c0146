"""Triton: the forward pass.

Tiles that every query of a block sees whole come last and need no running maximum: the reference point of the
exponentials stays where the masked tiles left it, and nothing is rescaled. bfloat16 weights have the range of
float32, so this fails only if a score exceeds that reference point by about 41; the block then sees it in its
sum and starts again, with a running maximum. A second kernel gives queries with nothing to integrate what
`api.py` says: the value of the only knot they see, or the result with unit gaps.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.primitives import (
    LN2,
    LOG2E,
    RUNS,
    hide,
    join_four,
    join_two,
    load_gaps,
    load_rows,
    piece_weights,
    read_first,
    reciprocal,
    split_in_four,
    split_in_two,
    tile_offsets,
    visible_tiles,
)


@triton.jit
def piece_step(s, gap, m, s1, e1, w1, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr):
    """One group's pieces: completes the weight of its right knots, begins that of its left knots."""
    e = tl.exp2(s * LOG2E - m[:, None])
    w, w1, _r = piece_weights(s1 - s, e, e1, gap, w1, TERMS, RADIUS, FAST)
    return w1, e, w


@triton.jit
def four_steps(
    s, gap, m, s4, e, w, M: tl.constexpr, N: tl.constexpr, LAST: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Pieces of four groups, from the last to the first; the last of all begins none.

    Returns their weights [M, N], but for the first group's right pieces, and the completed weight, score and
    exponential with which the next four go on.
    """
    s0, s1, s2, s3 = split_in_four(s, M, N)
    g0, g1, g2, g3 = split_in_four(gap, M, N)
    if LAST:
        e = tl.exp2(s3 * LOG2E - m[:, None])
        w4 = w
    else:
        w4, e, w = piece_step(s3, g3, m, s4, e, w, TERMS, RADIUS, FAST)
    w3, e, w = piece_step(s2, g2, m, s3, e, w, TERMS, RADIUS, FAST)
    w2, e, w = piece_step(s1, g1, m, s2, e, w, TERMS, RADIUS, FAST)
    w1, e, w = piece_step(s0, g0, m, s1, e, w, TERMS, RADIUS, FAST)
    return w, w1, w2, w3, w4, s0, e


@triton.jit
def tile_weights(
    s, gap, m, M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr,
):  # fmt: skip
    """Weights [M, N] of a tile's columns."""
    gap = tl.broadcast_to(gap[None, :], (M, N))
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, N)
    gap_low, gap_high = split_in_two(gap, M, N)
    if N == 64:
        w4, w5, w6, w7, _w, s4, e = four_steps(
            s_high, gap_high, m, none, none, none, M, 32, True, TERMS, RADIUS, FAST
        )
        w0, w1, w2, w3, w4, _s, _e = four_steps(
            s_low, gap_low, m, s4, e, w4, M, 32, False, TERMS, RADIUS, FAST
        )
        return join_two(join_four(w0, w1, w2, w3, M, 32), join_four(w4, w5, w6, w7, M, 32), M, 64)
    else:
        s0, s4 = split_in_two(s_low, M, 64)
        s8, s12 = split_in_two(s_high, M, 64)
        g0, g4 = split_in_two(gap_low, M, 64)
        g8, g12 = split_in_two(gap_high, M, 64)
        w12, w13, w14, w15, _w, s, e = four_steps(
            s12, g12, m, none, none, none, M, 32, True, TERMS, RADIUS, FAST
        )
        w8, w9, w10, w11, w12, s, e = four_steps(s8, g8, m, s, e, w12, M, 32, False, TERMS, RADIUS, FAST)
        w4, w5, w6, w7, w8, s, e = four_steps(s4, g4, m, s, e, w8, M, 32, False, TERMS, RADIUS, FAST)
        w0, w1, w2, w3, w4, s, e = four_steps(s0, g0, m, s, e, w4, M, 32, False, TERMS, RADIUS, FAST)
        low = join_two(join_four(w0, w1, w2, w3, M, 32), join_four(w4, w5, w6, w7, M, 32), M, 64)
        high = join_two(join_four(w8, w9, w10, w11, M, 32), join_four(w12, w13, w14, w15, M, 32), M, 64)
        return join_two(low, high, M, 128)


@triton.jit
def forward_tile(
    acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, n0, first, last, num_knots, head_dim,
    value_dim, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN:
    tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, UNIT: tl.constexpr, SIMPLE: tl.constexpr,
    SCALED: tl.constexpr, NORMALISE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add one tile of knots to the accumulators; the running maximum moves only if `MASK`."""
    local = tile_offsets(BN)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN)
    if UNIT:
        gap = tl.full((BN,), 1.0, tl.float32)
        end = local
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if not SCALED:
        s = s * scale
    if MASK:
        s = hide(s, n0, first, last, end[None, :], BN, SIMPLE)
        peak = tl.maximum(m, tl.max(s, 1) * LOG2E)
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
    first, _flat = read_first(first_ptr + b * num_queries + row, inside)
    last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
    q = load_rows(
        q_ptr + b * stride_qb + h * stride_qh,
        stride_qn,
        tl.arange(0, BM),
        head_dim,
        block * BM,
        num_queries,
        True,
        EVEN,
        D,
    )
    if SCALED:
        q = (q * scale).to(q.dtype)
    STEP: tl.constexpr = BN - RUNS
    low, whole_low, whole_high, high = visible_tiles(first, last, last, inside, num_knots, STEP)

    acc = tl.zeros((BM, DV), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    m = tl.full((BM,), -1.0e30, tl.float32)
    on_the_right = tl.cdiv(high - whole_high, STEP)
    for i in tl.range(0, on_the_right + (whole_low - low) // STEP):
        n0 = tl.where(i < on_the_right, whole_high + i * STEP, low + (i - on_the_right) * STEP)
        acc, total, m = forward_tile(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots,
            head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, True, False, SIMPLE, SCALED, NORMALISE,
            TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // STEP):
        n0 = whole_low + i * STEP
        acc, total, m = forward_tile(
            acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots,
            head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, False, False, SIMPLE, SCALED,
            NORMALISE, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    if tl.max(tl.where(total < limit, 0, 1), 0) > 0:  # too large, or NaN
        acc = tl.zeros((BM, DV), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        m = tl.full((BM,), -1.0e30, tl.float32)
        for i in tl.range(0, tl.cdiv(high - low, STEP)):
            n0 = low + i * STEP
            acc, total, m = forward_tile(
                acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots,
                head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, True, False, SIMPLE, SCALED,
                NORMALISE, TERMS, RADIUS, FAST, PRECISION,
            )  # fmt: skip
    some = total > 1.2e-37  # the smallest whose reciprocal is finite
    acc = acc * reciprocal(tl.where(some, total, 1.0), FAST)[:, None]
    col = tl.arange(0, DV)
    out_at = out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < value_dim))
    lse = tl.where(some, m * LN2 + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    tl.store(lse_ptr + bh * num_queries + row, lse, mask=inside)


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_fill_kernel(
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
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    EVEN: tl.constexpr,
    EVEN_V: tl.constexpr,
    SCALED: tl.constexpr,
    NORMALISE: tl.constexpr,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Overwrite outputs and log-sum-exps of queries with nothing to integrate; see `answer`.

    A kernel of its own, because in the other it would take registers from the many for the few.
    """
    STEP: tl.constexpr = BN - RUNS
    blocks = tl.cdiv(num_queries, BM)
    block = tl.program_id(0) % blocks
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    row = block * BM + tl.arange(0, BM)
    inside = row < num_queries
    first, flat = read_first(first_ptr + b * num_queries + row, inside)
    last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
    k_ptr += b * stride_kb + h // groups * stride_kh
    v_ptr += b * stride_vb + h // groups * stride_vh
    gap_ptr += b * num_knots
    col = tl.arange(0, DV)
    out_at = out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :]
    single = inside & (first == last)
    if tl.max(single.to(tl.int32), 0) > 0:
        at = v_ptr + first.to(tl.int64)[:, None] * stride_vn + col[None, :]
        mask = single[:, None] & (col[None, :] < value_dim)
        tl.store(out_at, tl.load(at, mask=mask, other=0.0), mask=mask)
    if tl.max(flat.to(tl.int32), 0) > 0:
        last = tl.where(flat, last, -1)
        low = tl.min(tl.where(flat, first, num_knots), 0) // STEP * STEP
        q = load_rows(
            q_ptr + b * stride_qb + h * stride_qh,
            stride_qn,
            tl.arange(0, BM),
            head_dim,
            block * BM,
            num_queries,
            True,
            EVEN,
            D,
        )
        if SCALED:
            q = (q * scale).to(q.dtype)
        acc = tl.zeros((BM, DV), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        m = tl.full((BM,), -1.0e30, tl.float32)
        for i in tl.range(0, tl.cdiv(tl.max(last, 0) + 1 - low, STEP)):
            n0 = low + i * STEP
            acc, total, m = forward_tile(
                acc, total, m, q, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots,
                head_dim, value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, True, True, False, SCALED,
                NORMALISE, TERMS, RADIUS, FAST, PRECISION,
            )  # fmt: skip
        acc = acc * reciprocal(tl.where(flat, total, 1.0), FAST)[:, None]
        mask = flat[:, None] & (col[None, :] < value_dim)
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=mask)
        lse = m * LN2 + tl.log(tl.where(flat, total, 1.0))
        tl.store(lse_ptr + bh * num_queries + row, lse, mask=flat)
