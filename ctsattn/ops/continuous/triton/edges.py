"""Triton: write the gradients of a tile of knots, and add what neighbouring tiles have of the same knot."""

import triton
import triton.language as tl

from ctsattn.ops.continuous.triton.columns import (
    RUNS,
    begins_piece,
    join_four,
    join_pairs,
    join_two,
    split_in_four,
    split_in_two,
    split_pairs,
    tile_offsets,
)


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
    knot = n0 + tile_offsets(BN, BN - RUNS)
    col = tl.arange(0, W)[:, None]
    ok = (col < width) & (knot[None, :] < num_knots) & begins_piece(BN)[None, :]
    tl.store(ptr + knot.to(tl.int64)[None, :] * width + col, grad.to(ptr.dtype.element_ty), mask=ok)
    if not SINGLE:
        edge = edge_ptr + block * width + col
        tl.store(edge + 0 * c[None, :], grad, mask=ok & (c == 0)[None, :])
        tl.store(edge + edge_size + 0 * c[None, :], grad, mask=(col < width) & (c == BN - 1)[None, :])


@triton.jit
def store_closed(grad, ptr, width, n0, num_knots, BN: tl.constexpr, W: tl.constexpr):
    """Write gradients [W, BN] of a tile of knots that no other tile has."""
    knot = n0 + tile_offsets(BN, BN)
    col = tl.arange(0, W)[:, None]
    ok = (col < width) & (knot[None, :] < num_knots)
    tl.store(ptr + knot.to(tl.int64)[None, :] * width + col, grad.to(ptr.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["tiles", "num_knots"])
def attention_bwd_edges_kernel(
    dk_ptr, dv_ptr, k_edge_ptr, v_edge_ptr, tiles, num_knots, head_dim, value_dim, BN: tl.constexpr, D:
    tl.constexpr, DV: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Add what the tile before gives to the first knot of each tile."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
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
