"""Triton: gradients of keys, values and gaps. A program holds a tile of knots and walks over the queries."""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.gradients import (
    tile_gradients,
)
from ctsattn.ops.continuous.triton.primitives import (
    RUNS,
    begins_piece,
    gaps_of_rows,
    hide,
    join_four,
    join_pairs,
    join_two,
    load_gaps,
    load_rows,
    pieces_seen,
    read_limits,
    split_in_four,
    split_in_two,
    split_pairs,
    tile_offsets,
)


@triton.jit
def query_blocks(limits_ptr, n0, blocks, plain, STEP: tl.constexpr, CHUNK: tl.constexpr):
    """Blocks of queries that see a tile of knots, [low, high), and within them those that see it whole.

    `plain`: whether all knots of the tile have weight; if not, it counts as whole for none.
    """
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
        whole = (first_max <= n0) & (last_min >= n0 + STEP) & plain
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
    dk, dv, dgap, k, v, gap, end, q_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr, first_ptr, last_ptr, b,
    stride_q, stride_g, block, n0, num_queries, num_knots, head_dim, value_dim, scale, offset, BM:
    tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V:
    tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, SIGHT: tl.constexpr, SIMPLE: tl.constexpr,
    SCALED: tl.constexpr, GAPS: tl.constexpr, SINGLE: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what one block of queries gives to the gradients of a tile of knots."""
    here = tl.arange(0, BM)
    m0 = block * BM
    row = m0 + here
    inside = row < num_queries
    q = load_rows(q_ptr, stride_q, here, head_dim, m0, num_queries, MASK, EVEN, D)
    grad_out = load_rows(grad_out_ptr, stride_g, here, value_dim, m0, num_queries, MASK, EVEN_V, DV)
    UNIT: tl.constexpr = 0.25 if TERMS == 0 else 1.0
    if MASK:
        lse = tl.load(lse_ptr + row, mask=inside, other=1.0e30)
        delta = tl.load(delta_ptr + row, mask=inside, other=0.0)
    else:
        lse = tl.load(lse_ptr + row)
        delta = tl.load(delta_ptr + row)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    g = tl.dot(grad_out, tl.trans(v), input_precision=PRECISION) - delta[:, None]
    if not SCALED:
        s = s * (0.5 * scale if TERMS == 0 else scale)
    if MASK:
        first, last, flat = read_limits(
            first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
        )
        gap, end = gaps_of_rows(gap, end, flat, BM, BN, FILL, UNIT)
        if TERMS == 0:
            seen = pieces_seen(s, n0, first, last, BN, SIMPLE)
            gap = tl.where(seen, gap, 0.0)
        else:
            s = hide(s, n0, first, last, end, BN, SIMPLE)
    else:
        gap = tl.broadcast_to((gap * UNIT)[None, :], (BM, BN))
    w, a, t = tile_gradients(s, g, gap, lse, BM, BN, TERMS, RADIUS, FAST, GAPS, MASK or GAPS)
    if MASK and GAPS and TERMS == 0:
        t = tl.where(seen, t, 0.0)
    if MASK and FILL:
        t = tl.where(flat[:, None], 0.0, t)
        # The only knot that a query sees has the weight 1; of its two columns, the one with a piece.
        only = tl.where((first == last) & inside, first - n0, -1)
        column = tl.where(begins_piece(BN), tile_offsets(BN), -2)
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
        elif TERMS == 0:
            dq = dq * 2.0
        col = tl.arange(0, D)
        at = dq_ptr + row.to(tl.int64)[:, None] * head_dim + col[None, :]
        mask = inside[:, None] & (col[None, :] < head_dim)
        tl.store(at, dq.to(dq_ptr.dtype.element_ty), mask=mask)
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

    A knot that two runs share has a part in the last group of one and in the first of the next. The
    last of all belongs to the next tile, and the first knot of a tile lacks what the tile before has:
    both go to the edge buffer `[2, blocks, width]` in float32.
    """
    x0, x1, x2, x3 = split_in_four(grad, W, BN)
    if BN == 64:
        x0, y0 = split_in_two(x0, W, 16)
        _y3, x3_last = split_in_two(x3, W, 16)
    else:
        x0, y0, y1, y2 = split_in_four(x0, W, 32)
        _y3, _y4, _y5, x3_last = split_in_four(x3, W, 32)
    first, odd = split_pairs(x0, W, 8)
    _even, last = split_pairs(x3_last, W, 8)
    j = tl.arange(0, RUNS)
    to_next = (j[:, None] + 1 == j[None, :])[None, :, :]
    first += tl.sum(tl.where(to_next, last[:, :, None], 0.0), 1)
    x0 = join_pairs(first, odd, W, 8)
    x0 = join_two(x0, y0, W, 16) if BN == 64 else join_four(x0, y0, y1, y2, W, 32)
    grad = join_four(x0, x1, x2, x3, W, BN)
    c = tl.arange(0, BN)
    knot = n0 + tile_offsets(BN)
    col = tl.arange(0, W)[:, None]
    ok = (col < width) & (knot[None, :] < num_knots) & begins_piece(BN)[None, :]
    tl.store(ptr + knot.to(tl.int64)[None, :] * width + col, grad.to(ptr.dtype.element_ty), mask=ok)
    if not SINGLE:
        edge = edge_ptr + block * width + col
        tl.store(edge + 0 * c[None, :], grad, mask=ok & (c == 0)[None, :])
        tl.store(edge + edge_size + 0 * c[None, :], grad, mask=(col < width) & (c == BN - 1)[None, :])


@triton.jit(do_not_specialize=["batches", "kv_heads", "num_queries", "num_knots", "offset"])
def attention_bwd_knots_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, limits_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    dq_ptr, dk_ptr, dv_ptr, dgap_ptr, k_edge_ptr, v_edge_ptr, stride_qb, stride_qh, stride_qn, stride_kb,
    stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_gb, stride_gh, stride_gn, batches,
    kv_heads, groups, num_queries, num_knots, head_dim, value_dim, scale, offset, BM: tl.constexpr, BN:
    tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, DENSE:
    tl.constexpr, FILL: tl.constexpr, SIGHT: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, GAPS:
    tl.constexpr, SINGLE: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of keys, values and gaps of one tile of knots, over all query heads that share it.

    `SINGLE`: the tile holds all knots, so the gradient of the queries is complete as well.
    """
    if DENSE:
        stride_qn = D
        stride_kn = D
        stride_vn = DV
        stride_gn = DV
    STEP: tl.constexpr = BN - RUNS
    tiles = tl.num_programs(0) // batches
    tile = tl.program_id(0) % tiles
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    b = bh // kv_heads
    kv_head = bh % kv_heads
    n0 = tile * STEP
    blocks = tl.cdiv(num_queries, BM)
    local = tile_offsets(BN)
    k_at = k_ptr + b * stride_kb + kv_head * stride_kh
    v_at = v_ptr + b * stride_vb + kv_head * stride_vh
    k = load_rows(k_at, stride_kn, local, head_dim, n0, num_knots, True, EVEN, D)
    if SCALED:
        k = (k * (0.5 * scale if TERMS == 0 else scale)).to(k.dtype)
    v = load_rows(v_at, stride_vn, local, value_dim, n0, num_knots, True, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr + b * num_knots, n0, num_knots, BN)
    plain = tl.max(tl.where(begins_piece(BN), end, 0), 0) < 2147483647
    if GAPS:  # a gap of 0 has a gradient too
        end = local
        plain = True
    limits_ptr += b * 4 * blocks
    low, whole_low, whole_high, high = query_blocks(limits_ptr, n0, blocks, plain, STEP, 128)
    if SINGLE:  # every query needs its gradient written
        low = 0
        high = blocks
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
            block = tl.where(step < whole_low - low, low + step, whole_high + step - (whole_low - low))
            dk, dv, dgap = knot_gradients_tile(
                dk, dv, dgap, k, v, gap, end, q_at, grad_at, lse_ptr + row0, delta_ptr + row0, dq_ptr +
                row0 * head_dim, first_ptr, last_ptr, b, stride_qn, stride_gn, block, n0, num_queries,
                num_knots, head_dim, value_dim, scale, offset, BM, BN, D, DV, EVEN, EVEN_V, True, FILL,
                SIGHT, SIMPLE, SCALED, GAPS, SINGLE, TERMS, RADIUS, FAST, PRECISION,
            )  # fmt: skip
        for step in tl.range(0, whole_high - whole_low):
            block = whole_low + step
            dk, dv, dgap = knot_gradients_tile(
                dk, dv, dgap, k, v, gap, end, q_at, grad_at, lse_ptr + row0, delta_ptr + row0, dq_ptr +
                row0 * head_dim, first_ptr, last_ptr, b, stride_qn, stride_gn, block, n0, num_queries,
                num_knots, head_dim, value_dim, scale, offset, BM, BN, D, DV, EVEN, EVEN_V, False, FILL,
                SIGHT, SIMPLE, SCALED, GAPS, SINGLE, TERMS, RADIUS, FAST, PRECISION,
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
        is_piece = (right_knot < num_knots) & begins_piece(BN)
        dgap_ptr += bh * num_knots
        tl.store(dgap_ptr + right_knot, dgap, mask=is_piece)
        tl.store(dgap_ptr, 0.0, mask=tile == 0)  # no piece ends there


@triton.jit(do_not_specialize=["num_knots"])
def attention_bwd_edges_kernel(
    dk_ptr, dv_ptr, k_edge_ptr, v_edge_ptr, batches, num_knots, head_dim, value_dim, BN: tl.constexpr, D:
    tl.constexpr, DV: tl.constexpr,
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
