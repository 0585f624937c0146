"""Triton: gradients of keys, values and gaps. A program holds a tile of knots and walks over the queries."""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.columns import RUNS, begins_piece, split_pairs, tile_offsets
from ctsattn.ops.continuous.triton.edges import store_closed, store_knots
from ctsattn.ops.continuous.triton.gradients import closed_tile_gradients, tile_gradients
from ctsattn.ops.continuous.triton.primitives import times_power_of_two
from ctsattn.ops.continuous.triton.rims import gaps_before_runs, hide_rims, load_rim_gaps, load_rims
from ctsattn.ops.continuous.triton.views import (
    gaps_of_rows,
    hide,
    load_gaps,
    load_rows,
    pieces_seen,
    read_limits,
)


@triton.jit
def query_blocks(
    limits_ptr, n0, least, first_most, most, blocks, plain, STEP: tl.constexpr, CHUNK: tl.constexpr
):
    """Blocks of queries that see a tile of knots, [low, high), and within them those that see it whole.

    `least`: the first of its knots that they have to see; `first_most`, `most`: where their first knot has to
    be at most, and their last at least, to see it whole. `plain`: whether all knots of the tile have weight;
    if not, it counts as whole for none.
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
        some = (last_max >= least) & (first_min < n0 + STEP)
        whole = (first_max <= first_most) & (last_min >= most) & plain
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
def known_query_blocks(
    first_ptr, b, least, most, num_queries, num_knots, offset, plain, BM: tl.constexpr, SIGHT: tl.constexpr
):
    """As `query_blocks`, where it is known what queries see; whole is a tile for all that see knot `most`."""
    blocks = tl.cdiv(num_queries, BM)
    most = tl.maximum(tl.maximum(most, tl.load(first_ptr + b)), 1)  # who sees less is flat or sees one knot
    low = 0 * blocks
    whole_low = 0 * blocks
    if SIGHT == 1:
        low = tl.minimum(tl.maximum(least - offset, 0) // BM, blocks)
        whole_low = tl.maximum(tl.cdiv(tl.maximum(most - offset, 0), BM), low)
    whole_high = num_queries // BM
    if (whole_low >= whole_high) | (most >= num_knots) | (not plain):
        whole_low = low
        whole_high = low
    return low, whole_low, whole_high, blocks


@triton.jit
def knot_gradients_tile(
    dk, dv, dgap, k, v, gap, end, k_rim, v_rim, gap_rim, end_rim, q_ptr, grad_out_ptr, lse_ptr, delta_ptr,
    dq_ptr, first_ptr, last_ptr, b, stride_q, stride_g, block, n0, num_queries, num_knots, head_dim,
    value_dim, scale, offset, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN:
    tl.constexpr, EVEN_V: tl.constexpr, MASK: tl.constexpr, FILL: tl.constexpr, SIGHT: tl.constexpr, SIMPLE:
    tl.constexpr, SCALED: tl.constexpr, GAPS: tl.constexpr, SINGLE: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Add what one block of queries gives to the gradients of a tile of knots."""
    CLOSED: tl.constexpr = STEP == BN
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
    if CLOSED:
        s_rim = tl.dot(q, tl.trans(k_rim), input_precision=PRECISION)
        g_rim = tl.dot(grad_out, tl.trans(v_rim), input_precision=PRECISION) - delta[:, None]
        if not SCALED:
            s_rim = s_rim * (0.5 * scale if TERMS == 0 else scale)
    if MASK:
        first, last, flat = read_limits(
            first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
        )
        gap, end = gaps_of_rows(gap, end, flat, BM, BN, STEP, FILL, UNIT)
        if TERMS == 0:
            seen = pieces_seen(s, n0, first, last, BN, STEP, SIMPLE)
            gap = tl.where(seen, gap, 0.0)
        else:
            s = hide(s, n0, first, last, end, BN, STEP, SIMPLE)
    else:
        first = row
        last = row
        flat = inside
        gap = tl.broadcast_to((gap * UNIT)[None, :], (BM, BN))
    if CLOSED:
        gap_rim = gaps_before_runs(gap_rim, s_rim, n0, first, last, flat, BM, BN, MASK, FILL, UNIT)
        if MASK and TERMS != 0:
            s_rim = hide_rims(s_rim, n0, first, last, flat, end_rim, BM, BN, FILL, SIMPLE)
        s_rim, _s = split_pairs(s_rim, BM, 2 * RUNS)
        g_rim, _g = split_pairs(g_rim, BM, 2 * RUNS)
        w, a = closed_tile_gradients(s, g, gap, gap_rim, lse, s_rim, g_rim, BM, TERMS, RADIUS, FAST, MASK)
        t = a
    else:
        w, a, t = tile_gradients(s, g, gap, lse, BM, BN, TERMS, RADIUS, FAST, GAPS, MASK or GAPS)
    if MASK and GAPS and TERMS == 0:
        t = tl.where(seen, t, 0.0)
    if MASK and FILL:
        if GAPS:
            t = tl.where(flat[:, None], 0.0, t)
        # The only knot that a query sees has the weight 1; of its two columns, the one with a piece.
        if SIGHT == 0:
            only = tl.where((first == last) & inside, first - n0, -1)
            column = tl.where(CLOSED | begins_piece(BN), tile_offsets(BN, STEP), -2)
            w = tl.where(column[None, :] == only[:, None], 1.0, w)
        else:  # it is the first of all: said so, this costs nothing but in one column of a thread
            only = (last == 0) & (n0 == 0)
            w = tl.where((tl.arange(0, BN) == 0)[None, :] & only[:, None], 1.0, w)
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


@triton.jit(do_not_specialize=["tiles", "kv_heads", "num_queries", "num_knots", "offset"])
def attention_bwd_knots_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, limits_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr,
    dk_ptr, dv_ptr, dgap_ptr, k_edge_ptr, v_edge_ptr, stride_qb, stride_qh, stride_qn, stride_kb, stride_kh,
    stride_kn, stride_vb, stride_vh, stride_vn, stride_gb, stride_gh, stride_gn, tiles, kv_heads, groups,
    num_queries, num_knots, head_dim, value_dim, scale, offset, BM: tl.constexpr, BN: tl.constexpr, D:
    tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, DENSE: tl.constexpr, FILL:
    tl.constexpr, SIGHT: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, GAPS: tl.constexpr, SINGLE:
    tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Gradients of keys, values and gaps of one tile of knots, over all query heads that share it.

    `STEP`: knots from one tile to the next. Fewer by `RUNS` than columns, then the runs share their end
    knots, and `attention_bwd_edges_kernel` adds up what two tiles have of one knot; or as many, then each
    knot is in one tile, and a piece between two tiles is computed for both. The latter suits short rows.

    `SINGLE`: the tile holds all knots, so the gradient of the queries is complete as well.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if DENSE:
        stride_qn = D
        stride_kn = D
        stride_vn = DV
        stride_gn = DV
    CLOSED: tl.constexpr = STEP == BN
    tile = tl.program_id(0) % tiles
    bh = (tl.program_id(0) // tiles).to(tl.int64)
    b = bh // kv_heads
    kv_head = bh % kv_heads
    n0 = tile * STEP
    blocks = tl.cdiv(num_queries, BM)
    local = tile_offsets(BN, STEP)
    k_at = k_ptr + b * stride_kb + kv_head * stride_kh
    v_at = v_ptr + b * stride_vb + kv_head * stride_vh
    k = load_rows(k_at, stride_kn, local, head_dim, n0, num_knots, 2, EVEN, D)
    v = load_rows(v_at, stride_vn, local, value_dim, n0, num_knots, 2, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr + b * num_knots, n0, num_knots, BN, STEP)
    plain = tl.max(tl.where(n0 + local < num_knots, end, 0), 0) < 2147483647
    k_rim = k
    v_rim = v
    gap_rim = gap
    end_rim = end
    if CLOSED:
        k_rim = load_rims(k_at, stride_kn, head_dim, n0, num_knots, BN, EVEN, D)
        v_rim = load_rims(v_at, stride_vn, value_dim, n0, num_knots, BN, EVEN_V, DV)
        gap_rim, end_rim, has_weight = load_rim_gaps(gap_ptr + b * num_knots, n0, num_knots, BN)
        plain = plain & has_weight
    if SCALED:
        k = times_power_of_two(k, 0.5 * scale if TERMS == 0 else scale, FAST)
        if CLOSED:
            k_rim = times_power_of_two(k_rim, 0.5 * scale if TERMS == 0 else scale, FAST)
    if GAPS:  # a gap of 0 has a gradient too
        end = local
        plain = True
    # The first knot alone is no piece of the tile, but may be all that a query sees.
    least = n0 if SIGHT == 0 or CLOSED else tl.where(tile > 0, n0 + 1, 0)
    most = tl.minimum(n0 + STEP, num_knots - 1)
    # In long rows it costs the loop 30 instructions if the compiler knows what these limits hang on.
    if SIGHT == 0 or not CLOSED:
        first_most = tl.maximum(n0 - 1, 0) if CLOSED else n0
        low, whole_low, whole_high, high = query_blocks(
            limits_ptr + b * 4 * blocks, n0, least, first_most, most, blocks, plain, STEP, 128
        )
    else:
        low, whole_low, whole_high, high = known_query_blocks(
            first_ptr, b, least, most, num_queries, num_knots, offset, plain, BM, SIGHT
        )
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
                dk, dv, dgap, k, v, gap, end, k_rim, v_rim, gap_rim, end_rim, q_at, grad_at, lse_ptr + row0,
                delta_ptr + row0, dq_ptr + row0 * head_dim, first_ptr, last_ptr, b, stride_qn, stride_gn,
                block, n0, num_queries, num_knots, head_dim, value_dim, scale, offset, BM, BN, D, DV, EVEN,
                EVEN_V, True, FILL, SIGHT, SIMPLE, SCALED, GAPS, SINGLE, TERMS, RADIUS, FAST,
                PRECISION, STEP,
            )  # fmt: skip
        for step in tl.range(0, whole_high - whole_low):
            block = whole_low + step
            dk, dv, dgap = knot_gradients_tile(
                dk, dv, dgap, k, v, gap, end, k_rim, v_rim, gap_rim, end_rim, q_at, grad_at, lse_ptr + row0,
                delta_ptr + row0, dq_ptr + row0 * head_dim, first_ptr, last_ptr, b, stride_qn, stride_gn,
                block, n0, num_queries, num_knots, head_dim, value_dim, scale, offset, BM, BN, D, DV, EVEN,
                EVEN_V, False, FILL, SIGHT, SIMPLE, SCALED, GAPS, SINGLE, TERMS, RADIUS, FAST,
                PRECISION, STEP,
            )  # fmt: skip
    dk_ptr += bh * num_knots * head_dim
    dv_ptr += bh * num_knots * value_dim
    if CLOSED:
        store_closed(dk * scale, dk_ptr, head_dim, n0, num_knots, BN, D)
        store_closed(dv, dv_ptr, value_dim, n0, num_knots, BN, DV)
    else:
        all_tiles = tl.num_programs(0).to(tl.int64)
        at = bh * tiles + tile
        store_knots(
            dk * scale, dk_ptr, k_edge_ptr, all_tiles * head_dim, at, head_dim, n0, num_knots, BN, D, SINGLE
        )
        store_knots(
            dv, dv_ptr, v_edge_ptr, all_tiles * value_dim, at, value_dim, n0, num_knots, BN, DV, SINGLE
        )
    if GAPS:
        right_knot = n0 + local + 1
        is_piece = (right_knot < num_knots) & begins_piece(BN)
        dgap_ptr += bh * num_knots
        tl.store(dgap_ptr + right_knot, dgap, mask=is_piece)
        tl.store(dgap_ptr, 0.0, mask=tile == 0)  # no piece ends there
