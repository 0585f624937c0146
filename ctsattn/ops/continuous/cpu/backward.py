"""Numba: the backward pass, tile by tile, which computes the scores again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ctsattn.ops.continuous.cpu import pieces
from ctsattn.ops.continuous.cpu.products import multiply, multiply_add
from ctsattn.ops.continuous.cpu.tiles import (
    LN2,
    LOWEST,
    MOST_KNOTS,
    Strided,
    at_token,
    load_lanes,
    load_rows,
    place,
    rows_of,
    up,
)
from ctsattn.ops.continuous.cpu.turning import turn


class Slopes(NamedTuple):
    """The answer and its derivatives; the last three are flat `[batch, heads, queries]`, see `Answer`.

    `grad_lse` is empty where it is 0.
    """

    out: Strided
    grad_out: Strided
    grad_lse: np.ndarray
    peak: np.ndarray
    inverse: np.ndarray


class Found(NamedTuple):
    """Where the backward pass writes, flat: `dq` like `q`, and for each task of its own `dk`, `dv`, `dgaps`.

    `dk` is `[tasks, knots, head_lanes]` and `dv` `[tasks, knots, value_lanes]`, with widths of whole strips.
    """

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dgaps: np.ndarray


class Buffers(NamedTuple):
    """What the backward pass holds of a tile: columns `[width, lanes]`, rows `[queries, padded width]`."""

    q_columns: np.ndarray
    q_rows: np.ndarray
    dq_columns: np.ndarray
    grad_columns: np.ndarray
    grad_rows: np.ndarray
    scores: np.ndarray
    slopes: np.ndarray
    peaks: np.ndarray
    inverses: np.ndarray
    means: np.ndarray


@njit(nogil=True)
def _product(x, x_at, y, y_at, size):
    """The product of two rows in float64, by four sums that need not wait for each other."""
    a = b = c = e = 0.0
    whole = size - size % 4
    for d in range(0, whole, 4):
        a += np.float64(x[x_at + d]) * y[y_at + d]
        b += np.float64(x[x_at + d + 1]) * y[y_at + d + 1]
        c += np.float64(x[x_at + d + 2]) * y[y_at + d + 2]
        e += np.float64(x[x_at + d + 3]) * y[y_at + d + 3]
    for d in range(whole, size):
        a += np.float64(x[x_at + d]) * y[y_at + d]
    return (a + b) + (c + e)


@njit(nogil=True)
def _load_answer(sizes, slopes, tile, buffers):
    """Write what turns scores into weights that sum to 1, and slopes of weights into those of scores."""
    for i in range(tile.lanes):
        buffers.peaks[i], buffers.inverses[i], buffers.means[i] = LOWEST, 0, 0
    for i in range(tile.queries):
        query = tile.query + i
        at = (tile.batch * sizes.heads + tile.head) * sizes.queries + query
        buffers.peaks[i], buffers.inverses[i] = slopes.peak[at], slopes.inverse[at]
        out_at = at_token(slopes.out, tile.batch, tile.head, query)
        grad_at = at_token(slopes.grad_out, tile.batch, tile.head, query)
        # An error of the mean is one of all the query's slopes, which adds up in the gradient of the gaps.
        mean = -np.float64(slopes.grad_lse[at]) if len(slopes.grad_lse) > 0 else 0.0
        mean += _product(slopes.out.flat, out_at, slopes.grad_out.flat, grad_at, sizes.value_dim)
        buffers.means[i] = mean


@njit(nogil=True)
def add_tile(inputs, sizes, tile, buffers, found, task, with_gaps, share):
    """Add what a tile gives to the derivatives of keys, values and gaps, and sum that of its queries.

    `share` is for other rules, see `knots`.
    """
    lanes, k, v, b = tile.lanes, inputs.k, inputs.v, buffers
    head_dim, value_dim = sizes.head_dim, sizes.value_dim
    k_lanes, v_lanes = up(head_dim, sizes.strip), up(value_dim, sizes.strip)
    dgaps = found.dgaps[task * sizes.knots : (task + 1) * sizes.knots]
    b.dq_columns[: head_dim * lanes] = 0
    start, end = tile.firsts.min(), tile.lasts.max()
    while start < end:
        rows = rows_of(start, end)
        k_at, v_at = (
            at_token(k, tile.batch, tile.kv_head, start),
            at_token(v, tile.batch, tile.kv_head, start),
        )
        dk_at, dv_at = (task * sizes.knots + start) * k_lanes, (task * sizes.knots + start) * v_lanes
        block = (rows, lanes, inputs.gaps, tile.batch * sizes.knots + start, start, tile.firsts, tile.lasts)
        multiply(b.scores, 0, lanes, k.flat, k_at, k.token, 1, b.q_columns, 0, lanes, rows, head_dim, lanes)
        multiply(
            b.slopes, 0, lanes, v.flat, v_at, v.token, 1, b.grad_columns, 0, lanes, rows, value_dim, lanes
        )
        if with_gaps:
            pieces.differentiate_with_gaps(*block, b.scores, b.slopes, b.peaks, b.inverses, b.means, dgaps)
        else:
            pieces.differentiate(*block, b.scores, b.slopes, b.peaks, b.inverses, b.means)
        n = tile.queries
        multiply_add(
            found.dv, dv_at, v_lanes, b.scores, 0, lanes, 1, b.grad_rows, 0, v_lanes, rows, n, v_lanes
        )
        multiply_add(found.dk, dk_at, k_lanes, b.slopes, 0, lanes, 1, b.q_rows, 0, k_lanes, rows, n, k_lanes)
        multiply_add(
            b.dq_columns, 0, lanes, k.flat, k_at, 1, k.token, b.slopes, 0, lanes, head_dim, rows, lanes
        )
        start += rows - 1


@njit(nogil=True)
def _add_limits(sizes, slopes, tile, found, task):
    """Add what queries that see one knot give to the derivatives of values."""
    v_lanes = up(sizes.value_dim, sizes.strip)
    for i in range(tile.queries):
        if tile.firsts[i] == tile.lasts[i]:
            grad_at = at_token(slopes.grad_out, tile.batch, tile.head, tile.query + i)
            dv_at = (task * sizes.knots + tile.firsts[i]) * v_lanes
            for d in range(sizes.value_dim):
                found.dv[dv_at + d] += slopes.grad_out.flat[grad_at + d]


@njit(nogil=True)
def _buffers(sizes, real):
    """Memory for one tile."""
    tile, k_lanes, v_lanes = sizes.tile, up(sizes.head_dim, sizes.strip), up(sizes.value_dim, sizes.strip)
    return Buffers(
        np.empty(sizes.head_dim * tile, real),
        np.empty(tile * k_lanes, real),
        np.empty(sizes.head_dim * tile, real),
        np.empty(sizes.value_dim * tile, real),
        np.empty(tile * v_lanes, real),
        np.empty(MOST_KNOTS * tile, real),
        np.empty(MOST_KNOTS * tile, real),
        np.empty(tile, real),
        np.empty(tile, real),
        np.empty(tile, real),
    )


def differentiating(add_tile: Callable[..., None]) -> Callable[..., Any]:
    """The backward pass by a rule, of which it is told what adds the derivatives of a tile."""

    @njit(nogil=True)
    def differentiate_tiles(inputs, slopes, sizes, factors, splits, part, found, with_gaps, limits):
        """Do the tasks of a part; see `kernels`."""
        real, width = inputs.q.flat.dtype, sizes.head_dim
        scale, share, one = factors[0], factors[1], real.type(1)
        factor = real.type(scale)
        scales, ones = np.full(width, real.type(scale / LN2), real), np.ones(sizes.value_dim, real)
        of_lanes = np.full(sizes.tile, factor, real)
        buffers = _buffers(sizes, real)
        firsts, lasts = np.empty(sizes.tile, np.int32), np.empty(sizes.tile, np.int32)
        tiles, group = up(sizes.queries, sizes.tile) // sizes.tile, sizes.heads // sizes.kv_heads
        k_lanes, v_lanes = up(width, sizes.strip), up(sizes.value_dim, sizes.strip)
        for task in part:
            kv_row, split = divmod(task, splits)
            batch, kv_head = divmod(kv_row, sizes.kv_heads)
            first, stop = task * sizes.knots, (task + 1) * sizes.knots
            found.dk[first * k_lanes : stop * k_lanes] = 0
            found.dv[first * v_lanes : stop * v_lanes] = 0
            if with_gaps:
                found.dgaps[first:stop] = 0
            for index in range(split, group * tiles, splits):
                member, number = divmod(index, tiles)
                tile = place(inputs, sizes, batch, kv_head * group + member, number, firsts, lasts)
                load_lanes(buffers.q_columns, inputs.q, tile, width, scales)
                load_rows(buffers.q_rows, inputs.q, tile, width, k_lanes, factor)
                load_lanes(buffers.grad_columns, slopes.grad_out, tile, sizes.value_dim, ones)
                load_rows(buffers.grad_rows, slopes.grad_out, tile, sizes.value_dim, v_lanes, one)
                _load_answer(sizes, slopes, tile, buffers)
                add_tile(inputs, sizes, tile, buffers, found, task, with_gaps, share)
                if limits:
                    _add_limits(sizes, slopes, tile, found, task)
                at = ((batch * sizes.heads + tile.head) * sizes.queries + tile.query) * width
                turn(found.dq, at, width, buffers.dq_columns, 0, tile.lanes, width, tile.queries, of_lanes)

    return differentiate_tiles


differentiate_tiles = differentiating(add_tile)
