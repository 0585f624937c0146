"""Triton: the gradients of a row's queries, summed by the program that has all its tiles of knots."""

import triton
import triton.language as tl


@triton.jit
def last_of_block(block, num_queries, num_knots, offset, BM: tl.constexpr, SIGHT: tl.constexpr):
    """Last knot that a block of queries sees; one tile holds all knots if `SIGHT` is 0."""
    last = num_knots - 1
    if SIGHT == 0:
        last = -1
    if SIGHT == 1:
        last = tl.minimum(tl.minimum((block + 1) * BM, num_queries) - 1 + offset, last)
    return last


@triton.jit
def add_query_gradients(
    dq, sum_ptr, dq_ptr, block, n0, more, num_queries, head_dim, scale, BM: tl.constexpr, D: tl.constexpr,
    SCALED: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """Add gradients [BM, D] of a block of queries to the sum of the tiles before, if there are (`more`).

    The sum is kept in float32 for the tiles that follow; the last of them, the first of the row, writes it.
    It is stored in the order in which the matrix unit leaves it to the threads, so that each reads and writes
    four numbers at a time and hands none on.
    """
    dq = tl.permute(tl.reshape(dq, (BM // 16, 2, 8, D // 8, 4, 2)), (3, 0, 2, 4, 1, 5))
    dq = tl.reshape(dq, (D // 8, BM // 16, 8, 4, 4))  # groups of columns, warps, rows, threads, numbers
    group = tl.arange(0, D // 8)[:, None, None, None, None] * (BM * 8)
    warp = tl.arange(0, BM // 16)[None, :, None, None, None] * 128
    thread = tl.arange(0, 8)[None, None, :, None, None] * 16 + tl.arange(0, 4)[None, None, None, :, None] * 4
    at = sum_ptr + (group + warp + thread + tl.arange(0, 4)[None, None, None, None, :])
    dq += tl.load(at, mask=more, other=0.0)
    tl.store(at, dq, mask=n0 > 0)
    if n0 == 0:
        factor = 2.0 if TERMS == 0 else 1.0
        if not SCALED:  # else the keys are
            factor = scale
        parts = tl.reshape(dq, (D // 8, BM // 16, 8, 4, 2, 2))
        total = tl.reshape(tl.permute(parts, (1, 4, 2, 0, 3, 5)), (BM, D)) * factor
        col = tl.arange(0, D)[None, :]
        row = (block * BM + tl.arange(0, BM)).to(tl.int64)[:, None]
        mask = (row < num_queries) & (col < head_dim)
        tl.store(dq_ptr + row * head_dim + col, total.to(dq_ptr.dtype.element_ty), mask=mask)
