"""Triton: the backward pass, without atomic operations, so that it gives the same bits each time.

Two kernels find the weights again from the log-sum-exp. One holds a tile of knots and walks over the
queries: `backward_knots.py`. The other, here, holds a block of queries and walks over the knots. With `g =
dO·v - D`, `D = dO·O - dlse`, weights `w` relative to their sum, and for each piece its shares `left` and
`right` and its `c` (`primitives.py`), the score of a knot has the gradient

    w g + h_after - h_before,     h = c (g1 - g0)

where `h_before` and `h_after` belong to the pieces before and after the knot.
"""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.clock import CHUNK
from ctsattn.ops.continuous.triton.columns import RUNS, is_last_run, tile_offsets
from ctsattn.ops.continuous.triton.gradients import open_tile_gradients, tile_gradients
from ctsattn.ops.continuous.triton.primitives import LOG2E, times_power_of_two
from ctsattn.ops.continuous.triton.views import (
    HIDDEN,
    any_flat,
    block_limits,
    gaps_of_rows,
    hide,
    load_gaps,
    load_rows,
    pieces_seen,
    read_limits,
    whole_tiles,
)


@triton.jit(do_not_specialize=["heads", "num_queries", "num_knots", "offset"])
def attention_bwd_prepare_kernel(
    out_ptr, grad_out_ptr, lse_ptr, grad_lse_ptr, first_ptr, last_ptr, delta_ptr, lse2_ptr, limits_ptr,
    stride_gb, stride_gh, stride_gn, heads, num_queries, num_knots, value_dim, offset, BM: tl.constexpr, DV:
    tl.constexpr, SIGHT: tl.constexpr, WITH_LSE: tl.constexpr, LIMITS: tl.constexpr,
):  # fmt: skip
    """`D = dO·O - dlse`, the log-sum-exp in base 2, and if `LIMITS` the extreme limits of a block of queries.

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
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
    if WITH_LSE:
        delta -= tl.load(grad_lse_ptr + at, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + at, mask=inside, other=0.0)
    tl.store(delta_ptr + at, delta, mask=inside)
    tl.store(lse2_ptr + at, tl.where(lse == float("-inf"), 1.0e30, lse * LOG2E), mask=inside)
    if LIMITS and h == 0:
        first, last, flat = read_limits(
            first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
        )
        limits_ptr += b * 4 * blocks + block
        tl.store(limits_ptr, tl.min(tl.where(inside, first, num_knots), 0))
        tl.store(limits_ptr + blocks, tl.max(first, 0))
        # -1 where the block is not full or not ordinary: then it is not whole.
        tl.store(limits_ptr + 2 * blocks, tl.min(tl.where(flat | (first == last), -1, last), 0))
        tl.store(limits_ptr + 3 * blocks, tl.max(last, 0))


@triton.jit
def query_gradients_tile(
    dq, s_next, g_next, a_next, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, n0, first,
    last, flat, num_knots, head_dim, value_dim, scale, BM: tl.constexpr, BN: tl.constexpr, PIECES:
    tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, MASK:
    tl.constexpr, FILL: tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, TERMS: tl.constexpr, RADIUS:
    tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr, CLAMP: tl.constexpr, LAST: tl.constexpr =
    False,
):  # fmt: skip
    """Add what one tile of pieces gives to the gradients of a block of queries.

    `PIECES`: as many as columns, then each gradient belongs to the knot after its column, and the keys are
    loaded twice; or fewer by `RUNS`, then runs share their end knots. The former suits short rows. `LAST`:
    even if not `MASK`, the knot after the tile may not exist.
    """
    local = tile_offsets(BN, PIECES)
    k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK, EVEN, D)
    v = load_rows(v_ptr, stride_v, local, value_dim, n0, num_knots, MASK, EVEN_V, DV)
    gap, end = load_gaps(gap_ptr, n0, num_knots, BN, PIECES)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    g = tl.dot(grad_out, tl.trans(v), input_precision=PRECISION) - delta[:, None]
    if not SCALED:
        s = s * (0.5 * scale if TERMS == 0 else scale)
    gap, end = gaps_of_rows(gap, end, flat, BM, BN, PIECES, MASK and FILL, 0.25 if TERMS == 0 else 1.0)
    if MASK:
        if TERMS == 0:
            gap = tl.where(pieces_seen(s, n0, first, last, BN, PIECES, SIMPLE), gap, 0.0)
        else:
            s = hide(s, n0, first, last, end, BN, PIECES, SIMPLE)
    if PIECES == BN:
        a, s_next, g_next, a_next = open_tile_gradients(
            s, g, gap, lse, s_next, g_next, a_next, BM, BN, TERMS, RADIUS, FAST, MASK or CLAMP
        )
        k = load_rows(k_ptr, stride_k, local, head_dim, n0, num_knots, MASK or LAST, EVEN, D, True)
    else:
        _w, a, _t = tile_gradients(s, g, gap, lse, BM, BN, TERMS, RADIUS, FAST, False, MASK or CLAMP)
    return tl.dot(a.to(k.dtype), k, dq, input_precision=PRECISION), s_next, g_next, a_next


@triton.jit
def masked_query_gradients(
    dq, s_next, g_next, a_next, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_k, stride_v, begin,
    tiles, first, last, flat, num_knots, head_dim, value_dim, scale, BM: tl.constexpr, BN: tl.constexpr,
    PIECES: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN: tl.constexpr, EVEN_V: tl.constexpr, FILL:
    tl.constexpr, SIMPLE: tl.constexpr, SCALED: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST:
    tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add tiles that not every query sees whole, from knot `begin` on, from the last to the first."""
    for i in tl.range(0, tiles):
        dq, s_next, g_next, a_next = query_gradients_tile(
            dq, s_next, g_next, a_next, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_k, stride_v,
            begin + (tiles - 1 - i) * PIECES, first, last, flat, num_knots, head_dim, value_dim, scale, BM,
            BN, PIECES, D, DV, EVEN, EVEN_V, True, FILL, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION, True,
        )  # fmt: skip
    return dq, s_next, g_next, a_next


@triton.jit
def every_knot_has_weight(ptr, chunks, MANY: tl.constexpr):
    """Whether all of `chunks` marks of a row are 0; see `clock.gaps_kernel`."""
    weightless = 0
    for start in range(0, chunks, MANY):
        i = start + tl.arange(0, MANY)
        weightless |= tl.max(tl.load(ptr + i, mask=i < chunks, other=0), 0)
    return weightless == 0


@triton.jit(do_not_specialize=["heads", "num_queries", "num_knots", "offset"])
def attention_bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, gap_ptr, first_ptr, last_ptr, grad_out_ptr, lse_ptr, delta_ptr, dq_ptr, stride_qb,
    stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_gb,
    stride_gh, stride_gn, heads, groups, num_queries, num_knots, head_dim, value_dim, scale, offset, BM:
    tl.constexpr, BN: tl.constexpr, PIECES: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, EVEN:
    tl.constexpr, EVEN_V: tl.constexpr, DENSE: tl.constexpr, FILL: tl.constexpr, SIGHT: tl.constexpr, SIMPLE:
    tl.constexpr, SCALED: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries of one head; `PIECES`: see `query_gradients_tile`."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if DENSE:
        stride_qn = D
        stride_kn = D
        stride_vn = DV
        stride_gn = DV
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
    first, last, flat = read_limits(
        first_ptr, last_ptr, b, row, inside, num_queries, num_knots, offset, SIGHT
    )
    lse = tl.load(lse_ptr + bh * num_queries + row, mask=inside, other=1.0e30)
    delta = tl.load(delta_ptr + bh * num_queries + row, mask=inside, other=0.0)
    here = tl.arange(0, BM)
    q = load_rows(
        q_ptr + b * stride_qb + h * stride_qh, stride_qn, here, head_dim, m0, num_queries, True, EVEN, D
    )
    grad_at = grad_out_ptr + b * stride_gb + h * stride_gh
    grad_out = load_rows(grad_at, stride_gn, here, value_dim, m0, num_queries, True, EVEN_V, DV)
    if SCALED:
        q = times_power_of_two(q, 0.5 * scale if TERMS == 0 else scale, FAST)
    low, first_max, last_min, high = block_limits(
        first, last, inside, m0, num_queries, num_knots, offset, BM, SIGHT
    )
    some_flat = any_flat(first_ptr, flat, b, last_min, high, SIGHT)
    # Sought even where known to be 0: if the compiler knows where tiles begin, it counts up a pointer for
    # each load of the loop (917 instead of 884 instructions).
    low = tl.min(tl.where(inside, first, num_knots), 0)
    if SIGHT != 0:
        chunks = tl.cdiv(num_knots, CHUNK)
        some_flat |= not every_knot_has_weight(last_ptr + b * chunks, chunks, 128)
    FULL: tl.constexpr = SIGHT == 2 and TERMS == 0 and PIECES == BN
    if FULL:  # a last piece of length 0 makes the last tile of a row whole
        last_min += 1
    whole_low, whole_high = whole_tiles(low, first_max, tl.where(some_flat, -1, last_min), PIECES)

    dq = tl.zeros((BM, D), tl.float32)
    s_next = tl.full((BM, RUNS), 0.0 if TERMS == 0 else HIDDEN, tl.float32)
    if FULL:  # the score of the knot after the last counts for nothing, but must have an exponential
        s_next += tl.where(lse < 1.0e29, lse * (0.5 / LOG2E), 0.0)[:, None]
    g_next = tl.zeros((BM, RUNS), tl.float32)
    a_next = tl.zeros((BM, RUNS), tl.float32)
    dq, s_next, g_next, a_next = masked_query_gradients(
        dq, s_next, g_next, a_next, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn,
        whole_high, tl.cdiv(high + 1 - whole_high, PIECES), first, last, flat, num_knots, head_dim, value_dim,
        scale, BM, BN, PIECES, D, DV, EVEN, EVEN_V, FILL, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION,
    )  # fmt: skip
    for i in tl.range(0, (whole_high - whole_low) // PIECES):
        dq, s_next, g_next, a_next = query_gradients_tile(
            dq, s_next, g_next, a_next, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn,
            whole_high - (i + 1) * PIECES, first, last, flat, num_knots, head_dim, value_dim, scale, BM, BN,
            PIECES, D, DV, EVEN, EVEN_V, False, FILL, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION, SIGHT ==
            0, FULL,
        )  # fmt: skip
    if not SIMPLE:
        dq, s_next, g_next, a_next = masked_query_gradients(
            dq, s_next, g_next, a_next, q, grad_out, lse, delta, k_ptr, v_ptr, gap_ptr, stride_kn, stride_vn,
            low, (whole_low - low) // PIECES, first, last, flat, num_knots, head_dim, value_dim, scale, BM,
            BN, PIECES, D, DV, EVEN, EVEN_V, FILL, SIMPLE, SCALED, TERMS, RADIUS, FAST, PRECISION,
        )  # fmt: skip
    col = tl.arange(0, D)
    if PIECES == BN:
        begun = tl.sum(tl.where(is_last_run(BM), a_next, 0.0), 1)
        exists = tl.where(low < num_knots, head_dim, 0)
        k_low = tl.load(k_ptr + low.to(tl.int64) * stride_kn + col, mask=col < exists, other=0.0)
        dq += begun[:, None] * k_low.to(tl.float32)[None, :]
    at = dq_ptr + (bh * num_queries + row)[:, None] * head_dim + col[None, :]
    tl.store(at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=inside[:, None] & (col[None, :] < head_dim))
