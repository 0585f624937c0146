"""Triton: the backward pass, in two kernels without atomic operations, so that it gives the same bits each time.

One kernel holds a block of knots and walks over the queries: gradients of keys, values and gaps. The other holds a
block of queries and walks over the knots: gradients of queries. Both find the weights again from the log-sum-exp. The
formulas are in `api.py` and `primitives.py`; `g` below is `dO·v - D` with `D = dO·O - dlse`.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.forward import hide, load_rows, visible_tiles
from ctsattn.ops.continuous.triton.primitives import (
    CEILING,
    LOG2E,
    RUNS,
    gaps_of_rows,
    join_four,
    join_two,
    load_gaps,
    piece_curvature,
    piece_weights,
    read_first,
    split_in_four,
    split_in_two,
    tile_offsets,
)


@triton.jit
def gradient_step(
    s,
    g,
    gap,
    lse,
    s1,
    g1,
    e1,
    w1,
    h1,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    FAST: tl.constexpr,
    GAPS: tl.constexpr,
):
    """One group's pieces: completes weight and score gradient of its right knots, begins those of its left knots."""
    e = tl.exp2(tl.minimum(s * LOG2E - lse[:, None], CEILING))
    d = s1 - s
    if GAPS:
        left, right, r = piece_weights(d, e, e1, 1.0, 0.0, TERMS, RADIUS, FAST)
        per_gap = left * g + right * g1
        left = gap * left
        right = gap * right
    else:
        left, right, r = piece_weights(d, e, e1, gap, 0.0, TERMS, RADIUS, FAST)
        per_gap = left
    h = piece_curvature(d, e, gap, left, right, r, TERMS, RADIUS) * (g1 - g)
    w1 = w1 + right
    return w1, w1 * g1 + (h1 - h), e, left, h, per_gap


@triton.jit
def four_gradient_steps(
    s, g, gap, lse, s4, g4, e, w, h,
    M: tl.constexpr, N: tl.constexpr, LAST: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr,
    GAPS: tl.constexpr,
):  # fmt: skip
    """Pieces of four groups, from the last to the first; the last of all begins none."""
    s0, s1, s2, s3 = split_in_four(s, M, N)
    g0, g1, g2, g3 = split_in_four(g, M, N)
    p0, p1, p2, p3 = split_in_four(gap, M, N)
    if LAST:
        e = tl.exp2(tl.minimum(s3 * LOG2E - lse[:, None], CEILING))
        w4 = w
        a4 = w
        t3 = w
    else:
        w4, a4, e, w, h, t3 = gradient_step(s3, g3, p3, lse, s4, g4, e, w, h, TERMS, RADIUS, FAST, GAPS)
    w3, a3, e, w, h, t2 = gradient_step(s2, g2, p2, lse, s3, g3, e, w, h, TERMS, RADIUS, FAST, GAPS)
    w2, a2, e, w, h, t1 = gradient_step(s1, g1, p1, lse, s2, g2, e, w, h, TERMS, RADIUS, FAST, GAPS)
    w1, a1, e, w, h, t0 = gradient_step(s0, g0, p0, lse, s1, g1, e, w, h, TERMS, RADIUS, FAST, GAPS)
    t = join_four(t0, t1, t2, t3, M, N) if GAPS else t0
    return w, w1, w2, w3, w4, w * g0 + h, a1, a2, a3, a4, s0, g0, e, h, t


@triton.jit
def tile_gradients(
    s, g, gap, lse,
    M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, GAPS: tl.constexpr,
):  # fmt: skip
    """Weights, gradients of scores, and gradient per gap, [M, N], of a tile's columns."""
    none = tl.zeros((M, RUNS), tl.float32)
    s_low, s_high = split_in_two(s, M, N)
    g_low, g_high = split_in_two(g, M, N)
    p_low, p_high = split_in_two(gap, M, N)
    if N == 64:
        w4, w5, w6, w7, _w, a4, a5, a6, a7, _a, s, g, e, h, t_high = four_gradient_steps(
            s_high, g_high, p_high, lse, none, none, none, none, none, M, 32, True, TERMS, RADIUS, FAST, GAPS
        )
        w0, w1, w2, w3, w4, a0, a1, a2, a3, a4, s, g, e, h, t_low = four_gradient_steps(
            s_low, g_low, p_low, lse, s, g, e, w4, h, M, 32, False, TERMS, RADIUS, FAST, GAPS
        )
        w = join_two(join_four(w0, w1, w2, w3, M, 32), join_four(w4, w5, w6, w7, M, 32), M, 64)
        a = join_two(join_four(a0, a1, a2, a3, M, 32), join_four(a4, a5, a6, a7, M, 32), M, 64)
        return w, a, join_two(t_low, t_high, M, 64) if GAPS else t_low
    else:
        s0, s4 = split_in_two(s_low, M, 64)
        s8, s12 = split_in_two(s_high, M, 64)
        g0, g4 = split_in_two(g_low, M, 64)
        g8, g12 = split_in_two(g_high, M, 64)
        p0, p4 = split_in_two(p_low, M, 64)
        p8, p12 = split_in_two(p_high, M, 64)
        w12, w13, w14, w15, _w, a12, a13, a14, a15, _a, s, g, e, h, t12 = four_gradient_steps(
            s12, g12, p12, lse, none, none, none, none, none, M, 32, True, TERMS, RADIUS, FAST, GAPS
        )
        w8, w9, w10, w11, w12, a8, a9, a10, a11, a12, s, g, e, h, t8 = four_gradient_steps(
            s8, g8, p8, lse, s, g, e, w12, h, M, 32, False, TERMS, RADIUS, FAST, GAPS
        )
        w4, w5, w6, w7, w8, a4, a5, a6, a7, a8, s, g, e, h, t4 = four_gradient_steps(
            s4, g4, p4, lse, s, g, e, w8, h, M, 32, False, TERMS, RADIUS, FAST, GAPS
        )
        w0, w1, w2, w3, w4, a0, a1, a2, a3, a4, s, g, e, h, t0 = four_gradient_steps(
            s0, g0, p0, lse, s, g, e, w4, h, M, 32, False, TERMS, RADIUS, FAST, GAPS
        )
        w_low = join_two(join_four(w0, w1, w2, w3, M, 32), join_four(w4, w5, w6, w7, M, 32), M, 64)
        w_high = join_two(join_four(w8, w9, w10, w11, M, 32), join_four(w12, w13, w14, w15, M, 32), M, 64)
        a_low = join_two(join_four(a0, a1, a2, a3, M, 32), join_four(a4, a5, a6, a7, M, 32), M, 64)
        a_high = join_two(join_four(a8, a9, a10, a11, M, 32), join_four(a12, a13, a14, a15, M, 32), M, 64)
        t = join_four(t0, t4, t8, t12, M, 128) if GAPS else t0
        return join_two(w_low, w_high, M, 128), join_two(a_low, a_high, M, 128), t


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_bwd_prepare_kernel(
    out_ptr, grad_out_ptr, lse_ptr, grad_lse_ptr, first_ptr, last_ptr, delta_ptr, lse2_ptr, limits_ptr,
    stride_gb, stride_gh, stride_gn, heads, num_queries, num_knots, value_dim,
    BM: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """`D = dO·O - dlse`, the log-sum-exp in base 2, and the extreme limits of a block of queries.

    Limits `[batch, 4, blocks]`: smallest and largest first knot, smallest and largest last knot.
    """
    blocks = tl.cdiv(num_queries, BM)
    block = tl.program_id(0) % blocks
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    row = block * BM + tl.arange(0, BM)
    inside = row < num_queries
    col = tl.arange(0, DV)
    mask = inside[:, None] & (col[None, :] < value_dim)
    out = tl.load(
        out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :], mask=mask, other=0.0
    )
    grad_at = (
        grad_out_ptr + b * stride_gb + h * stride_gh + row.to(tl.int64)[:, None] * stride_gn + col[None, :]
    )
    grad_out = tl.load(grad_at, mask=mask, other=0.0)
    at = bh * num_queries + row
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1) - tl.load(
        grad_lse_ptr + at, mask=inside, other=0.0
    )
    lse = tl.load(lse_ptr + at, mask=inside, other=0.0)
    tl.store(delta_ptr + at, delta, mask=inside)
    tl.store(lse2_ptr + at, tl.where(lse == float("-inf"), 1.0e30, lse * LOG2E), mask=inside)
    if h == 0:
        first, flat = read_first(first_ptr + b * num_queries + row, inside)
        last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
        limits_ptr += b * 4 * blocks + block
        tl.store(limits_ptr, tl.min(tl.where(inside, first, num_knots), 0))
        tl.store(limits_ptr + blocks, tl.max(first, 0))
        # -1 where the block is not full or not ordinary: then it is not whole.
        tl.store(limits_ptr + 2 * blocks, tl.min(tl.where(flat | (first == last), -1, last), 0))
        tl.store(limits_ptr + 3 * blocks, tl.max(last, 0))


@triton.jit
def query_blocks(limits_ptr, n0, blocks, STEP: tl.constexpr, CHUNK: tl.constexpr):
    """Blocks of queries that see a tile of knots, [low, high), and within them those that see it whole."""
    low = blocks
    high = 0
    whole_low = blocks
    whole_high = 0
    wholes = 0
    for start in range(0, blocks, CHUNK):
        i = start + tl.arange(0, CHUNK)
        ok = i < blocks
        first_min = tl.load(limits_ptr + i, mask=ok, other=2147483647)
        first_max = tl.load(limits_ptr + blocks + i, mask=ok, other=2147483647)
        last_min = tl.load(limits_ptr + 2 * blocks + i, mask=ok, other=-1)
        last_max = tl.load(limits_ptr + 3 * blocks + i, mask=ok, other=-1)
        some = (last_max >= n0) & (first_min < n0 + STEP)
        whole = (first_max <= n0) & (last_min >= n0 + STEP)
        low = tl.minimum(low, tl.min(tl.where(some, i, blocks), 0))
        high = tl.maximum(high, tl.max(tl.where(some, i + 1, 0), 0))
        whole_low = tl.minimum(whole_low, tl.min(tl.where(whole, i, blocks), 0))
        whole_high = tl.maximum(whole_high, tl.max(tl.where(whole, i + 1, 0), 0))
        wholes += tl.sum(whole.to(tl.int32), 0)
    high = tl.maximum(high, low)
    if (wholes == 0) | (wholes != whole_high - whole_low):
        whole_low = low
        whole_high = low
    return low, whole_low, whole_high, high


@triton.jit
def knot_gradients_tile(
    dk, dv, dgap, k, v, gap, end,
    q_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr, first_ptr, last_ptr, stride_q, stride_g,
    m0, n0, num_queries, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    EVEN: tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr,
    GAPS: tl.constexpr, SINGLE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one block of queries gives to the gradients of a tile of knots."""
    here = tl.arange(0, BM)
    row = m0 + here
    inside = row < num_queries
    q = load_rows(q_ptr, stride_q, here, head_dim, m0, num_queries, MASK, EVEN, D)
    grad_out = load_rows(grad_out_ptr, stride_g, here, value_dim, m0, num_queries, MASK, EVEN_V, DV)
    if MASK:
        lse = tl.load(lse_ptr + row, mask=inside, other=1.0e30)
        delta = tl.load(delta_ptr + row, mask=inside, other=0.0)
    else:
        lse = tl.load(lse_ptr + row)
        delta = tl.load(delta_ptr + row)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    g = tl.dot(grad_out, tl.trans(v), input_precision=PRECISION) - delta[:, None]
    if not SCALED:
        s = s * scale
    if MASK:
        first, flat = read_first(first_ptr + row, inside)
        last = tl.load(last_ptr + row, mask=inside, other=-1)
        gap, end = gaps_of_rows(gap, end, flat, BM, BN, FILL)
        s = hide(s, n0, first, last, end, BN, SIMPLE)
    else:
        gap = tl.broadcast_to(gap[None, :], (BM, BN))
    w, a, t = tile_gradients(s, g, gap, lse, BM, BN, TERMS, RADIUS, FAST, GAPS)
    if MASK and FILL:
        t = tl.where(flat[:, None], 0.0, t)
        # The only knot that a query sees has the weight 1; of its two columns, the one with a piece.
        only = tl.where((first == last) & inside, first - n0, -1)
        column = tl.where(tl.arange(0, BN) < BN - RUNS, tile_offsets(BN), -2)
        w = tl.where(column[None, :] == only[:, None], 1.0, w)
    dv = tl.dot(tl.trans(grad_out), w.to(q.dtype), dv, input_precision=PRECISION)
    a = a.to(q.dtype)
    dk = tl.dot(tl.trans(q), a, dk, input_precision=PRECISION)
    if GAPS:
        dgap += tl.sum(t, 0)
    if SINGLE:
        dq = tl.dot(a, k, input_precision=PRECISION)
        if not SCALED:  # else the keys are
            dq = dq * scale
        col = tl.arange(0, D)
        at = dq_ptr + row.to(tl.int64)[:, None] * head_dim + col[None, :]
        tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < head_dim))
    return dk, dv, dgap


@triton.jit
def store_knots(
    grad,
    ptr,
    edge_ptr,
    edge_size,
    block,
    width,
    n0,
    num_knots,
    BN: tl.constexpr,
    W: tl.constexpr,
    SINGLE: tl.constexpr,
):
    """Write gradients [W, BN] of a tile of knots.

    A knot that two runs share has a part in the last group of one and in the first group of the next. The last of all
    belongs to the next tile, and the first knot of a tile lacks what the tile before has: both go to the edge buffer
    `[2, blocks, width]` in float32.
    """
    if BN == 64:
        x0, x1, x2, x3 = split_in_four(grad, W, 64)
        first, y0 = split_in_two(x0, W, 16)
        y3, last = split_in_two(x3, W, 16)
    else:
        x0, x1, x2, x3 = split_in_four(grad, W, 128)
        z0, z1 = split_in_two(x0, W, 32)
        first, y0 = split_in_two(z0, W, 16)
        z2, z3 = split_in_two(x3, W, 32)
        y3, last = split_in_two(z3, W, 16)
    j = tl.arange(0, RUNS)
    to_next = (j[:, None] + 1 == j[None, :])[None, :, :]
    first += tl.sum(tl.where(to_next, last[:, :, None], 0.0), 1)
    if BN == 64:
        grad = join_four(join_two(first, y0, W, 16), x1, x2, x3, W, 64)
    else:
        grad = join_four(join_two(join_two(first, y0, W, 16), z1, W, 32), x1, x2, x3, W, 128)
    c = tl.arange(0, BN)
    knot = n0 + tile_offsets(BN)
    col = tl.arange(0, W)[:, None]
    ok = (col < width) & (knot[None, :] < num_knots) & (c < BN - RUNS)[None, :]
    tl.store(ptr + knot.to(tl.int64)[None, :] * width + col, grad.to(ptr.dtype.element_ty), mask=ok)
    if not SINGLE:
        edge = edge_ptr + block * width + col
        tl.store(edge + 0 * c[None, :], grad, mask=ok & (c == 0)[None, :])
        tl.store(edge + edge_size + 0 * c[None, :], grad, mask=(col < width) & (c == BN - 1)[None, :])


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_bwd_knots_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, limits_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    dq_ptr, dk_ptr, dv_ptr, dgap_ptr, k_edge_ptr, v_edge_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, batches, kv_heads, groups, num_queries, num_knots, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr,
    EVEN_V: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, GAPS: tl.constexpr, SINGLE: tl.constexpr,
    TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of keys, values and gaps of one tile of knots, over all query heads that share it.

    `SINGLE`: the tile holds all knots, so the gradient of the queries is complete as well.
    """
    STEP: tl.constexpr = BN - RUNS
    tiles = tl.num_programs(0) // batches
    tile = tl.program_id(0) % tiles
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    b = bh // kv_heads
    kv_head = bh % kv_heads
    n0 = tile * STEP
    query_tiles = tl.cdiv(num_queries, BM)
    first_ptr += b * num_queries
    last_ptr += b * num_queries
    local = tile_offsets(BN)
    k_at = k_ptr + b * stride_kb + kv_head * stride_kh
    v_at = v_ptr + b * stride_vb + kv_head * stride_vh
    k = load_rows(k_at, stride_kn, local, head_dim, n0, num_knots, True, EVEN, D)
    if SCALED:
        k = (k * scale).to(k.dtype)
    v = load_rows(v_at, stride_vn, local, value_dim, n0, num_knots, True, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr + b * num_knots, n0, num_knots, BN)
    if GAPS:  # a gap of 0 has a gradient too
        end = local
    low, whole_low, whole_high, high = query_blocks(
        limits_ptr + b * 4 * query_tiles, n0, query_tiles, STEP, 128
    )
    if SINGLE:  # every query needs its gradient written
        low = 0
        high = query_tiles
        if whole_low >= whole_high:
            whole_low = 0
            whole_high = 0

    dk = tl.zeros((D, BN), tl.float32)
    dv = tl.zeros((DV, BN), tl.float32)
    dgap = tl.zeros((BN,), tl.float32)
    for i in range(groups):
        head = kv_head * groups + i
        q_at = q_ptr + b * stride_qb + head * stride_qh
        grad_at = grad_out_ptr + b * stride_gb + head * stride_gh
        row0 = (bh * groups + i) * num_queries
        for step in tl.range(0, high - low - (whole_high - whole_low)):
            m0 = tl.where(step < whole_low - low, low + step, whole_high + step - (whole_low - low)) * BM
            dk, dv, dgap = knot_gradients_tile(
                dk, dv, dgap, k, v, gap, end, q_at, grad_at, lse_ptr + row0, delta_ptr + row0, dq_ptr + row0 * head_dim,
                first_ptr, last_ptr, stride_qn, stride_gn, m0, n0, num_queries, head_dim, value_dim, scale, BM, BN, D, DV,
                EVEN, EVEN_V, True, FILL, SIMPLE, SCALED, GAPS, SINGLE, TERMS, RADIUS, FAST, PRECISION,
            )  # fmt: skip
        for step in tl.range(0, whole_high - whole_low):
            m0 = (whole_low + step) * BM
            dk, dv, dgap = knot_gradients_tile(
                dk, dv, dgap, k, v, gap, end, q_at, grad_at, lse_ptr + row0, delta_ptr + row0, dq_ptr + row0 * head_dim,
                first_ptr, last_ptr, stride_qn, stride_gn, m0, n0, num_queries, head_dim, value_dim, scale, BM, BN, D, DV,
                EVEN, EVEN_V, False, FILL, SIMPLE, SCALED, GAPS, SINGLE, TERMS, RADIUS, FAST, PRECISION,
            )  # fmt: skip
    all_tiles = tl.num_programs(0).to(tl.int64)
    at = bh * tiles + tile
    dk_ptr += bh * num_knots * head_dim
    dv_ptr += bh * num_knots * value_dim
    store_knots(
        dk * scale, dk_ptr, k_edge_ptr, all_tiles * head_dim, at, head_dim, n0, num_knots, BN, D, SINGLE
    )
    store_knots(dv, dv_ptr, v_edge_ptr, all_tiles * value_dim, at, value_dim, n0, num_knots, BN, DV, SINGLE)
    if GAPS:
        right_knot = n0 + local + 1
        is_piece = (right_knot < num_knots) & (tl.arange(0, BN) < STEP)
        tl.store(dgap_ptr + bh * num_knots + right_knot, dgap, mask=is_piece)


@triton.jit(do_not_specialize=["num_knots"])
def attention_bwd_edges_kernel(
    dk_ptr, dv_ptr, k_edge_ptr, v_edge_ptr, batches, num_knots, head_dim, value_dim,
    BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Add what the tile before gives to the first knot of each tile."""
    tiles = tl.num_programs(0) // batches
    tile = tl.program_id(0) % tiles
    at = tl.program_id(0).to(tl.int64)
    row = at // tiles * num_knots + tile * (BN - RUNS)
    all_tiles = tl.num_programs(0).to(tl.int64)
    col = tl.arange(0, D)
    own = tl.load(k_edge_ptr + at * head_dim + col, mask=col < head_dim, other=0.0)
    before = k_edge_ptr + (all_tiles + at - 1) * head_dim + col
    own += tl.load(before, mask=col < tl.where(tile > 0, head_dim, 0), other=0.0)
    tl.store(dk_ptr + row * head_dim + col, own.to(dk_ptr.dtype.element_ty), mask=col < head_dim)
    col = tl.arange(0, DV)
    own = tl.load(v_edge_ptr + at * value_dim + col, mask=col < value_dim, other=0.0)
    before = v_edge_ptr + (all_tiles + at - 1) * value_dim + col
    own += tl.load(before, mask=col < tl.where(tile > 0, value_dim, 0), other=0.0)
    tl.store(dv_ptr + row * value_dim + col, own.to(dv_ptr.dtype.element_ty), mask=col < value_dim)


@triton.jit
def query_gradients_tile(
    dq, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_k, stride_v,
    n0, first, last, flat, num_knots, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    EVEN: tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr,
    TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one tile of knots gives to the gradients of a block of queries."""
    local = tile_offsets(BN)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    v = load_rows(v_ptr, stride_v, local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    g = tl.dot(grad_out, tl.trans(v), input_precision=PRECISION) - delta[:, None]
    if not SCALED:
        s = s * scale
    gap, end = gaps_of_rows(gap, end, flat, BM, BN, MASK and FILL)
    if MASK:
        s = hide(s, n0, first, last, end, BN, SIMPLE)
    _w, a, _t = tile_gradients(s, g, gap, lse, BM, BN, TERMS, RADIUS, FAST, False)
    return tl.dot(a.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, heads, groups, num_queries, num_knots, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr,
    EVEN_V: tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr,
    FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries of one head."""
    blocks = tl.cdiv(num_queries, BM)
    block = blocks - 1 - tl.program_id(0) % blocks
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    b = bh // heads
    h = bh % heads
    k_ptr += b * stride_kb + h // groups * stride_kh
    v_ptr += b * stride_vb + h // groups * stride_vh
    gap_ptr += b * num_knots
    m0 = block * BM
    row = m0 + tl.arange(0, BM)
    inside = row < num_queries
    first, flat = read_first(first_ptr + b * num_queries + row, inside)
    last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
    lse = tl.load(lse_ptr + bh * num_queries + row, mask=inside, other=1.0e30)
    delta = tl.load(delta_ptr + bh * num_queries + row, mask=inside, other=0.0)
    here = tl.arange(0, BM)
    q = load_rows(
        q_ptr + b * stride_qb + h * stride_qh, stride_qn, here, head_dim, m0, num_queries, True, EVEN, D
    )
    grad_at = grad_out_ptr + b * stride_gb + h * stride_gh
    grad_out = load_rows(grad_at, stride_gn, here, value_dim, m0, num_queries, True, EVEN_V, DV)
    if SCALED:
        q = (q * scale).to(q.dtype)
    STEP: tl.constexpr = BN - RUNS
    low, whole_low, whole_high, high = visible_tiles(
        first, last, tl.where(flat, -1, last), inside, num_knots, STEP
    )

    dq = tl.zeros((BM, D), tl.float32)
    on_the_right = tl.cdiv(high - whole_high, STEP)
    for i in tl.range(0, on_the_right + (whole_low - low) // STEP):
        n0 = tl.where(i < on_the_right, whole_high + i * STEP, low + (i - on_the_right) * STEP)
        dq = query_gradients_tile(
            dq, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, flat, num_knots, head_dim,
            value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, True, FILL, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // STEP):
        n0 = whole_low + i * STEP
        dq = query_gradients_tile(
            dq, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, flat, num_knots, head_dim,
            value_dim, scale, BM, BN, D, DV, EVEN, EVEN_V, False, FILL, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    col = tl.arange(0, D)
    at = dq_ptr + (bh * num_queries + row)[:, None] * head_dim + col[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < head_dim))
