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
    join_four,
    join_two,
    load_gaps,
    piece_curvature,
    piece_weights,
    split_in_four,
    split_in_two,
    tile_offsets,
)


@triton.jit
def gradient_step(
    s, g, gap, lse, s1, g1, e1, w1, h1, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, GAPS: tl.constexpr
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
    M: tl.constexpr, N: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, GAPS: tl.constexpr,
):  # fmt: skip
    """Four groups' pieces, from the last to the first."""
    s0, s1, s2, s3 = split_in_four(s, M, N)
    g0, g1, g2, g3 = split_in_four(g, M, N)
    p0, p1, p2, p3 = split_in_four(gap, M, N)
    w4, a4, e, w, h, t3 = gradient_step(s3, g3, p3, lse, s4, g4, e, w, h, TERMS, RADIUS, FAST, GAPS)
    w3, a3, e, w, h, t2 = gradient_step(s2, g2, p2, lse, s3, g3, e, w, h, TERMS, RADIUS, FAST, GAPS)
    w2, a2, e, w, h, t1 = gradient_step(s1, g1, p1, lse, s2, g2, e, w, h, TERMS, RADIUS, FAST, GAPS)
    w1, a1, e, w, h, t0 = gradient_step(s0, g0, p0, lse, s1, g1, e, w, h, TERMS, RADIUS, FAST, GAPS)
    t = join_four(t0, t1, t2, t3, M, N) if GAPS else t0
    return w, w1, w2, w3, w4, w * g0 + h, a1, a2, a3, a4, s0, g0, e, h, t


@triton.jit
def tile_gradients(
    s, rim, g, g_rim, gap, lse,
    M: tl.constexpr, N: tl.constexpr, G: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr,
    GAPS: tl.constexpr,
):  # fmt: skip
    """Weights, gradients of scores, and gradient per gap, [M, N], of a tile; the first two also of the rim."""
    gap = tl.broadcast_to(gap[None, :], (M, N))
    e = tl.exp2(tl.minimum(rim * LOG2E - lse[:, None], CEILING))
    none = tl.zeros((M, N // G), tl.float32)
    if G == 4:
        w0, w1, w2, w3, w4, a0, a1, a2, a3, a4, _s, _g, _e, _h, t = four_gradient_steps(
            s, g, gap, lse, rim, g_rim, e, none, none, M, N, TERMS, RADIUS, FAST, GAPS
        )
        return join_four(w0, w1, w2, w3, M, N), w4, join_four(a0, a1, a2, a3, M, N), a4, t
    else:
        s_low, s_high = split_in_two(s, M, N)
        g_low, g_high = split_in_two(g, M, N)
        gap_low, gap_high = split_in_two(gap, M, N)
        w4, w5, w6, w7, w8, _a, a5, a6, a7, a8, s4, g4, e, h, t_high = four_gradient_steps(
            s_high, g_high, gap_high, lse, rim, g_rim, e, none, none, M, N // 2, TERMS, RADIUS, FAST, GAPS
        )
        w0, w1, w2, w3, w4, a0, a1, a2, a3, a4, _s, _g, _e, _h, t_low = four_gradient_steps(
            s_low, g_low, gap_low, lse, s4, g4, e, w4, h, M, N // 2, TERMS, RADIUS, FAST, GAPS
        )
        w = join_two(join_four(w0, w1, w2, w3, M, N // 2), join_four(w4, w5, w6, w7, M, N // 2), M, N)
        a = join_two(join_four(a0, a1, a2, a3, M, N // 2), join_four(a4, a5, a6, a7, M, N // 2), M, N)
        t = join_two(t_low, t_high, M, N) if GAPS else t_low
        return w, w8, a, a8, t


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
    out = tl.load(out_ptr + (bh * num_queries + row)[:, None] * value_dim + col[None, :], mask=mask, other=0.0)
    grad_at = grad_out_ptr + b * stride_gb + h * stride_gh + row.to(tl.int64)[:, None] * stride_gn + col[None, :]
    grad_out = tl.load(grad_at, mask=mask, other=0.0)
    at = bh * num_queries + row
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1) - tl.load(grad_lse_ptr + at, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + at, mask=inside, other=0.0)
    tl.store(delta_ptr + at, delta, mask=inside)
    tl.store(lse2_ptr + at, tl.where(lse == float("-inf"), 1.0e30, lse * LOG2E), mask=inside)
    if h == 0:
        first = tl.load(first_ptr + b * num_queries + row, mask=inside, other=0)
        last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
        at = limits_ptr + b * 4 * blocks + block
        tl.store(at, tl.min(tl.where(inside, first, num_knots), 0))
        tl.store(at + blocks, tl.max(first, 0))
        tl.store(at + 2 * blocks, tl.min(tl.where(inside, last, num_knots), 0))
        tl.store(at + 3 * blocks, tl.max(last, 0))


@triton.jit
def query_blocks(limits_ptr, n0, blocks, BN: tl.constexpr, CHUNK: tl.constexpr):
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
        some = (last_max > n0) & (first_min < n0 + BN)
        whole = (first_max <= n0) & (last_min >= n0 + BN)
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
    dk, dk_rim, dv, dv_rim, dgap, k, k_rim, v, v_rim, gap, end,
    q_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr, first_ptr, last_ptr, stride_q, stride_g,
    m0, n0, num_queries, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    EVEN: tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr,
    GAPS: tl.constexpr, SINGLE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one block of queries gives to the gradients of a tile of knots."""
    row = m0 + tl.arange(0, BM)
    inside = row < num_queries
    q = load_rows(q_ptr, stride_q, tl.arange(0, BM), head_dim, m0, num_queries, True, EVEN, D)
    grad_out = load_rows(grad_out_ptr, stride_g, tl.arange(0, BM), value_dim, m0, num_queries, True, EVEN_V, DV)
    lse = tl.load(lse_ptr + row, mask=inside, other=1.0e30)
    delta = tl.load(delta_ptr + row, mask=inside, other=0.0)[:, None]
    if SCALED:
        q = (q * scale).to(q.dtype)
    rim = tl.dot(q, tl.trans(k_rim), input_precision=PRECISION)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    g_rim = tl.dot(grad_out, tl.trans(v_rim), input_precision=PRECISION) - delta
    g = tl.dot(grad_out, tl.trans(v), input_precision=PRECISION) - delta
    if not SCALED:
        rim = rim * scale
        s = s * scale
    if MASK:
        first = tl.load(first_ptr + row, mask=inside, other=0)
        last = tl.load(last_ptr + row, mask=inside, other=-1)
        s, rim = hide(s, rim, n0, first, last, end, BN, G, SIMPLE)
    w, w_rim, a, a_rim, t = tile_gradients(s, rim, g, g_rim, gap, lse, BM, BN, G, TERMS, RADIUS, FAST, GAPS)
    dv_rim = tl.dot(tl.trans(grad_out), w_rim.to(q.dtype), dv_rim, input_precision=PRECISION)
    dv = tl.dot(tl.trans(grad_out), w.to(q.dtype), dv, input_precision=PRECISION)
    a = a.to(q.dtype)
    a_rim = a_rim.to(q.dtype)
    dk_rim = tl.dot(tl.trans(q), a_rim, dk_rim, input_precision=PRECISION)
    dk = tl.dot(tl.trans(q), a, dk, input_precision=PRECISION)
    if GAPS:
        dgap += tl.sum(t, 0)
    if SINGLE:
        dq = tl.dot(a_rim, k_rim, input_precision=PRECISION)
        dq = tl.dot(a, k, dq, input_precision=PRECISION) * scale
        col = tl.arange(0, D)
        at = dq_ptr + row.to(tl.int64)[:, None] * head_dim + col[None, :]
        tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < head_dim))
    return dk, dk_rim, dv, dv_rim, dgap


@triton.jit
def store_knots(
    grad, rim, ptr, edge_ptr, edge_size, block, stride, width, n0, num_knots,
    BN: tl.constexpr, G: tl.constexpr, W: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """Write gradients [W, BN] of a tile of knots, after adding those of the rim [W, BN / G].

    Rim knot j is knot j + 1 of group 0. The last belongs to the next tile, and the first knot of a tile lacks what the
    tile before has: both go to the edge buffer `[2, blocks, width]` in float32.
    """
    NJ: tl.constexpr = BN // G
    j = tl.arange(0, NJ)
    to_next = (j[:, None] + 1 == j[None, :])[None, :, :]
    shifted = tl.sum(tl.where(to_next, rim[:, :, None], 0.0), 1)
    if G == 4:
        x0, x1, x2, x3 = split_in_four(grad, W, BN)
        grad = join_four(x0 + shifted, x1, x2, x3, W, BN)
    else:
        low, high = split_in_two(grad, W, BN)
        x0, x1, x2, x3 = split_in_four(low, W, BN // 2)
        grad = join_two(join_four(x0 + shifted, x1, x2, x3, W, BN // 2), high, W, BN)
    local, rim_local = tile_offsets(BN, G)
    col = tl.arange(0, W)[:, None]
    knot = n0 + local
    ok = (col < width) & (knot[None, :] < num_knots)
    tl.store(ptr + knot.to(tl.int64)[None, :] * stride + col, grad.to(ptr.dtype.element_ty), mask=ok)
    if not SINGLE:
        tl.store(edge_ptr + block * width + col + 0 * local[None, :], grad, mask=ok & (local[None, :] == 0))
        border = (col < width) & (rim_local[None, :] == BN)
        tl.store(edge_ptr + edge_size + block * width + col + 0 * rim_local[None, :], rim, mask=border)


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_bwd_knots_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, limits_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    dq_ptr, dk_ptr, dv_ptr, dgap_ptr, k_edge_ptr, v_edge_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, kv_heads, groups, num_queries, num_knots, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr,
    EVEN_V: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, GAPS: tl.constexpr, SINGLE: tl.constexpr,
    TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of keys, values and gaps of one tile of knots, over all query heads that share it.

    `SINGLE`: the tile holds all knots, so the gradient of the queries is complete as well.
    """
    tiles = tl.cdiv(num_knots, BN)
    tile = tl.program_id(0) % tiles
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    b = bh // kv_heads
    kv_head = bh % kv_heads
    n0 = tile * BN
    query_tiles = tl.cdiv(num_queries, BM)
    first_ptr += b * num_queries
    last_ptr += b * num_queries
    local, rim_local = tile_offsets(BN, G)
    k_at = k_ptr + b * stride_kb + kv_head * stride_kh
    v_at = v_ptr + b * stride_vb + kv_head * stride_vh
    k = load_rows(k_at, stride_kn, local, head_dim, n0, num_knots, True, EVEN, D)
    k_rim = load_rows(k_at, stride_kn, rim_local, head_dim, n0, num_knots, True, EVEN, D)
    v = load_rows(v_at, stride_vn, local, value_dim, n0, num_knots, True, EVEN_V, DV)
    v_rim = load_rows(v_at, stride_vn, rim_local, value_dim, n0, num_knots, True, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr + b * num_knots, n0, num_knots, BN, G)
    if GAPS:  # a gap of 0 has a gradient too
        end = local
    low, whole_low, whole_high, high = query_blocks(limits_ptr + b * 4 * query_tiles, n0, query_tiles, BN, 128)
    if SINGLE:  # every query needs its gradient written
        low = 0
        high = query_tiles
        if whole_low >= whole_high:
            whole_low = 0
            whole_high = 0

    dk = tl.zeros((D, BN), tl.float32)
    dv = tl.zeros((DV, BN), tl.float32)
    dk_rim = tl.zeros((D, BN // G), tl.float32)
    dv_rim = tl.zeros((DV, BN // G), tl.float32)
    dgap = tl.zeros((BN,), tl.float32)
    for i in range(groups):
        head = kv_head * groups + i
        q_at = q_ptr + b * stride_qb + head * stride_qh
        grad_at = grad_out_ptr + b * stride_gb + head * stride_gh
        row0 = (bh * groups + i) * num_queries
        for step in tl.range(0, high - low - (whole_high - whole_low)):
            m0 = tl.where(step < whole_low - low, low + step, whole_high + step - (whole_low - low)) * BM
            dk, dk_rim, dv, dv_rim, dgap = knot_gradients_tile(
                dk, dk_rim, dv, dv_rim, dgap, k, k_rim, v, v_rim, gap, end, q_at, grad_at, lse_ptr + row0,
                delta_ptr + row0, dq_ptr + row0 * head_dim, first_ptr, last_ptr, stride_qn, stride_gn, m0, n0, num_queries,
                head_dim, value_dim, scale, BM, BN, G, D, DV, EVEN, EVEN_V, True, SIMPLE, SCALED, GAPS, SINGLE, TERMS,
                RADIUS, FAST, PRECISION,
            )  # fmt: skip
        for step in tl.range(0, whole_high - whole_low):
            m0 = (whole_low + step) * BM
            dk, dk_rim, dv, dv_rim, dgap = knot_gradients_tile(
                dk, dk_rim, dv, dv_rim, dgap, k, k_rim, v, v_rim, gap, end, q_at, grad_at, lse_ptr + row0,
                delta_ptr + row0, dq_ptr + row0 * head_dim, first_ptr, last_ptr, stride_qn, stride_gn, m0, n0,
                num_queries, head_dim, value_dim, scale, BM, BN, G, D, DV, EVEN, EVEN_V, False, SIMPLE, SCALED, GAPS,
                SINGLE, TERMS, RADIUS, FAST, PRECISION,
            )  # fmt: skip
    if not SCALED:
        dk = dk * scale
        dk_rim = dk_rim * scale
    all_tiles = (tl.num_programs(0)).to(tl.int64)
    store_knots(
        dk, dk_rim, dk_ptr + bh * num_knots * head_dim, k_edge_ptr, all_tiles * head_dim, bh * tiles + tile, head_dim,
        head_dim, n0, num_knots, BN, G, D, SINGLE,
    )  # fmt: skip
    store_knots(
        dv, dv_rim, dv_ptr + bh * num_knots * value_dim, v_edge_ptr, all_tiles * value_dim, bh * tiles + tile, value_dim,
        value_dim, n0, num_knots, BN, G, DV, SINGLE,
    )  # fmt: skip
    if GAPS:
        right_knot = n0 + local + 1
        tl.store(dgap_ptr + bh * num_knots + right_knot, dgap, mask=right_knot < num_knots)


@triton.jit(do_not_specialize=["num_knots"])
def attention_bwd_edges_kernel(
    dk_ptr, dv_ptr, k_edge_ptr, v_edge_ptr, num_knots, head_dim, value_dim,
    BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Add what the tile before gives to the first knot of each tile."""
    tiles = tl.cdiv(num_knots, BN)
    tile = tl.program_id(0) % tiles
    at = tl.program_id(0).to(tl.int64)
    row = at // tiles * num_knots + tile * BN
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
    n0, first, last, num_knots, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    EVEN: tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr,
    TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one tile of knots gives to the gradients of a block of queries."""
    local, rim_local = tile_offsets(BN, G)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    k_rim = load_rows(k_ptr, stride_k, rim_local, head_dim, n0, num_knots, MASK, EVEN, D)
    v = load_rows(v_ptr, stride_v, local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    v_rim = load_rows(v_ptr, stride_v, rim_local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN, G)
    rim = tl.dot(q, tl.trans(k_rim), input_precision=PRECISION)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    g_rim = tl.dot(grad_out, tl.trans(v_rim), input_precision=PRECISION) - delta[:, None]
    g = tl.dot(grad_out, tl.trans(v), input_precision=PRECISION) - delta[:, None]
    if not SCALED:
        rim = rim * scale
        s = s * scale
    if MASK:
        s, rim = hide(s, rim, n0, first, last, end, BN, G, SIMPLE)
    _w, _w_rim, a, a_rim, _t = tile_gradients(s, rim, g, g_rim, gap, lse, BM, BN, G, TERMS, RADIUS, FAST, False)
    dq = tl.dot(a_rim.to(k.dtype), k_rim, dq, input_precision=PRECISION)
    return tl.dot(a.to(k.dtype), k, dq, input_precision=PRECISION)


@triton.jit(do_not_specialize=["num_queries", "num_knots"])
def attention_bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, heads, groups, num_queries, num_knots, head_dim, value_dim, scale,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr,
    EVEN_V: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr,
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
    first = tl.load(first_ptr + b * num_queries + row, mask=inside, other=0)
    last = tl.load(last_ptr + b * num_queries + row, mask=inside, other=-1)
    lse = tl.load(lse_ptr + bh * num_queries + row, mask=inside, other=1.0e30)
    delta = tl.load(delta_ptr + bh * num_queries + row, mask=inside, other=0.0)
    here = tl.arange(0, BM)
    q = load_rows(q_ptr + b * stride_qb + h * stride_qh, stride_qn, here, head_dim, m0, num_queries, True, EVEN, D)
    grad_at = grad_out_ptr + b * stride_gb + h * stride_gh
    grad_out = load_rows(grad_at, stride_gn, here, value_dim, m0, num_queries, True, EVEN_V, DV)
    if SCALED:
        q = (q * scale).to(q.dtype)
    low, whole_low, whole_high, high = visible_tiles(first, last, inside, num_knots, BN)

    dq = tl.zeros((BM, D), tl.float32)
    on_the_right = tl.cdiv(high - whole_high, BN)
    for i in tl.range(0, on_the_right + (whole_low - low) // BN):
        n0 = tl.where(i < on_the_right, whole_high + i * BN, low + (i - on_the_right) * BN)
        dq = query_gradients_tile(
            dq, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots, head_dim,
            value_dim, scale, BM, BN, G, D, DV, EVEN, EVEN_V, True, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // BN):
        n0 = whole_low + i * BN
        dq = query_gradients_tile(
            dq, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn, n0, first, last, num_knots, head_dim,
            value_dim, scale, BM, BN, G, D, DV, EVEN, EVEN_V, False, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    col = tl.arange(0, D)
    at = dq_ptr + (bh * num_queries + row)[:, None] * head_dim + col[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < head_dim))
