"""Numba: the forward and the backward pass, tile by tile, without the interpreter lock.

A tile is some queries of one head, the lanes; it meets the knots in blocks. Neighbouring blocks share a knot,
so that every piece lies in one block. What a lane sees is told by the first and the last of its knots, and
blocks that no lane of the tile sees are not visited.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ctsattn.ops.continuous.cpu import pieces
from ctsattn.ops.continuous.cpu.products import multiply, multiply_add

# Knots of a block: with 64 lanes of float32, its scores and their derivatives fill two thirds of 48 KiB.
KNOTS = 64
LN2 = math.log(2.0)
LOWEST = -1e30


class Strided(NamedTuple):
    """Elements `[batch, heads, length, width]` of a tensor; the last stride is 1."""

    flat: np.ndarray
    batch: int
    head: int
    token: int


class Inputs(NamedTuple):
    """What `reference.core` takes; `gaps`, `first` and `last` are flat and contiguous."""

    q: Strided
    k: Strided
    v: Strided
    gaps: np.ndarray
    first: np.ndarray
    last: np.ndarray


class Sizes(NamedTuple):
    """Sizes of the problem, and of tiles: queries of a tile, and lanes of a strip, which divides it."""

    heads: int
    kv_heads: int
    queries: int
    knots: int
    head_dim: int
    value_dim: int
    tile: int
    strip: int


class Answer(NamedTuple):
    """Where the forward pass writes, flat: `out` like q but `value_dim` wide, the rest a number for a query.

    `peak`, in units of ln 2, and `inverse`, 1 over four times the sum of weights relative to the peak, are
    for the backward pass: where scores are large, `lse` is rounded too much to give weights.
    """

    out: np.ndarray
    lse: np.ndarray
    peak: np.ndarray
    inverse: np.ndarray


class Tile(NamedTuple):
    """Where a tile stands, and what its lanes see."""

    batch: int
    head: int
    kv_head: int
    query: int
    queries: int
    lanes: int
    firsts: np.ndarray
    lasts: np.ndarray


@njit(nogil=True)
def _up(number, step):
    """The next multiple of a step."""
    return (number + step - 1) // step * step


@njit(nogil=True)
def _at(strided, batch, head, token):
    """Index of the first element of a token."""
    return batch * strided.batch + head * strided.head + token * strided.token


@njit(nogil=True)
def _place(inputs, sizes, batch, head, number, firsts, lasts):
    """A tile by its number within a head; lanes beyond its queries see what the last one sees."""
    query = number * sizes.tile
    queries = min(sizes.tile, sizes.queries - query)
    lanes = _up(queries, sizes.strip)
    for i in range(lanes):
        at = batch * sizes.queries + query + min(i, queries - 1)
        firsts[i] = inputs.first[at]
        lasts[i] = min(inputs.last[at], sizes.knots - 1)
    kv_head = head // (sizes.heads // sizes.kv_heads)
    return Tile(batch, head, kv_head, query, queries, lanes, firsts[:lanes], lasts[:lanes])


@njit(nogil=True)
def _load_lanes(columns, strided, tile, width, factor):
    """Write a tile's tokens as columns `[width, lanes]`, times a factor; 0 in lanes beyond its queries."""
    for i in range(tile.lanes):
        if i < tile.queries:
            at = _at(strided, tile.batch, tile.head, tile.query + i)
            for d in range(width):
                columns[d * tile.lanes + i] = strided.flat[at + d] * factor
        else:
            for d in range(width):
                columns[d * tile.lanes + i] = 0


@njit(nogil=True)
def _load_rows(rows, strided, tile, width, padded, factor):
    """Write a tile's tokens as rows `[queries, padded]`, times a factor; 0 beyond their width."""
    for i in range(tile.queries):
        at = _at(strided, tile.batch, tile.head, tile.query + i)
        for d in range(width):
            rows[i * padded + d] = strided.flat[at + d] * factor
        for d in range(width, padded):
            rows[i * padded + d] = 0


@njit(nogil=True)
def _sum_tile(inputs, sizes, tile, q_columns, scores, sums, peak, total, old):
    """Sum weighted values `[value_dim, lanes]` and weights over the knots, relative to each lane's peak."""
    lanes, k, v = tile.lanes, inputs.k, inputs.v
    sums[: sizes.value_dim * lanes] = 0
    total[:lanes] = 0
    peak[:lanes] = LOWEST
    start, end = tile.firsts.min(), tile.lasts.max()
    while start < end:
        rows = min(KNOTS, end - start + 1)
        k_at, v_at = _at(k, tile.batch, tile.kv_head, start), _at(v, tile.batch, tile.kv_head, start)
        block = (rows, lanes, inputs.gaps, tile.batch * sizes.knots + start, start, tile.firsts, tile.lasts)
        multiply(scores, 0, lanes, k.flat, k_at, k.token, 1, q_columns, 0, lanes, rows, sizes.head_dim, lanes)
        old[:lanes] = peak[:lanes]
        pieces.raise_peak(*block, scores, peak)
        pieces.rescale(sizes.value_dim, *block[1:], sums, total, old, peak)
        pieces.weigh(*block, scores, peak, total)
        multiply_add(sums, 0, lanes, v.flat, v_at, 1, v.token, scores, 0, lanes, sizes.value_dim, rows, lanes)
        start += rows - 1


@njit(nogil=True, error_model="numpy")
def _store_answer(sizes, tile, sums, peak, total, answer):
    """Write the answer to a tile; a total of 0 gives outputs 0 and `lse` -inf, and NaN stays NaN."""
    largest = np.finfo(total.dtype).max  # the inverse of a subnormal total is held there
    for i in range(tile.queries):
        at = (tile.batch * sizes.heads + tile.head) * sizes.queries + tile.query + i
        divisor, answer.lse[at], answer.peak[at], answer.inverse[at] = total[i], -np.inf, peak[i], 0
        if divisor == 0:
            divisor = total.dtype.type(1)
        else:
            answer.lse[at] = (peak[i] + np.log2(divisor) - 2) * LN2
            answer.inverse[at] = min(1 / divisor, largest)
        for d in range(sizes.value_dim):
            answer.out[at * sizes.value_dim + d] = sums[d * tile.lanes + i] / divisor


@njit(nogil=True)
def _forward(inputs, sizes, scale, begin, end, answer):
    real = inputs.q.flat.dtype
    q_columns, sums = (
        np.empty(sizes.head_dim * sizes.tile, real),
        np.empty(sizes.value_dim * sizes.tile, real),
    )
    scores = np.empty(KNOTS * sizes.tile, real)
    peak, total, old = np.empty(sizes.tile, real), np.empty(sizes.tile, real), np.empty(sizes.tile, real)
    firsts, lasts = np.empty(sizes.tile, np.int32), np.empty(sizes.tile, np.int32)
    tiles = _up(sizes.queries, sizes.tile) // sizes.tile
    for index in range(begin, end):
        row, number = divmod(index, tiles)
        batch, head = divmod(row, sizes.heads)
        tile = _place(inputs, sizes, batch, head, number, firsts, lasts)
        _load_lanes(q_columns, inputs.q, tile, sizes.head_dim, real.type(scale / LN2))
        _sum_tile(inputs, sizes, tile, q_columns, scores, sums, peak, total, old)
        _store_answer(sizes, tile, sums, peak, total, answer)


class Slopes(NamedTuple):
    """The answer and its derivatives; the last three are flat `[batch, heads, queries]`, see `Answer`."""

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
def _load_answer(sizes, slopes, tile, buffers):
    """Write what turns scores into weights that sum to 1, and slopes of weights into those of scores."""
    for i in range(tile.lanes):
        buffers.peaks[i], buffers.inverses[i], buffers.means[i] = LOWEST, 0, 0
    for i in range(tile.queries):
        query = tile.query + i
        at = (tile.batch * sizes.heads + tile.head) * sizes.queries + query
        buffers.peaks[i], buffers.inverses[i] = slopes.peak[at], slopes.inverse[at]
        out_at = _at(slopes.out, tile.batch, tile.head, query)
        grad_at = _at(slopes.grad_out, tile.batch, tile.head, query)
        # An error of the mean is one of all the query's slopes, which adds up in the gradient of the gaps.
        mean = -np.float64(slopes.grad_lse[at])
        for d in range(sizes.value_dim):
            mean += np.float64(slopes.out.flat[out_at + d]) * slopes.grad_out.flat[grad_at + d]
        buffers.means[i] = mean


@njit(nogil=True)
def _add_tile(inputs, sizes, tile, buffers, found, task, with_gaps):
    """Add what a tile gives to the derivatives of keys, values and gaps, and sum that of its queries."""
    lanes, k, v, b = tile.lanes, inputs.k, inputs.v, buffers
    head_dim, value_dim = sizes.head_dim, sizes.value_dim
    k_lanes, v_lanes = _up(head_dim, sizes.strip), _up(value_dim, sizes.strip)
    dgaps = found.dgaps[task * sizes.knots : (task + 1) * sizes.knots]
    b.dq_columns[: head_dim * lanes] = 0
    start, end = tile.firsts.min(), tile.lasts.max()
    while start < end:
        rows = min(KNOTS, end - start + 1)
        k_at, v_at = _at(k, tile.batch, tile.kv_head, start), _at(v, tile.batch, tile.kv_head, start)
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
def _buffers(sizes, real):
    """Memory for one tile."""
    tile, k_lanes, v_lanes = sizes.tile, _up(sizes.head_dim, sizes.strip), _up(sizes.value_dim, sizes.strip)
    return Buffers(
        np.empty(sizes.head_dim * tile, real),
        np.empty(tile * k_lanes, real),
        np.empty(sizes.head_dim * tile, real),
        np.empty(sizes.value_dim * tile, real),
        np.empty(tile * v_lanes, real),
        np.empty(KNOTS * tile, real),
        np.empty(KNOTS * tile, real),
        np.empty(tile, real),
        np.empty(tile, real),
        np.empty(tile, real),
    )


@njit(nogil=True)
def _backward(inputs, slopes, sizes, scale, splits, begin, end, found, with_gaps):
    real, width = inputs.q.flat.dtype, sizes.head_dim
    factor, one = real.type(scale), real.type(1)
    buffers = _buffers(sizes, real)
    firsts, lasts = np.empty(sizes.tile, np.int32), np.empty(sizes.tile, np.int32)
    tiles, group = _up(sizes.queries, sizes.tile) // sizes.tile, sizes.heads // sizes.kv_heads
    k_lanes, v_lanes = _up(width, sizes.strip), _up(sizes.value_dim, sizes.strip)
    for task in range(begin, end):
        kv_row, split = divmod(task, splits)
        batch, kv_head = divmod(kv_row, sizes.kv_heads)
        first, stop = task * sizes.knots, (task + 1) * sizes.knots
        found.dk[first * k_lanes : stop * k_lanes] = 0
        found.dv[first * v_lanes : stop * v_lanes] = 0
        found.dgaps[first:stop] = 0
        for index in range(split, group * tiles, splits):
            member, number = divmod(index, tiles)
            tile = _place(inputs, sizes, batch, kv_head * group + member, number, firsts, lasts)
            _load_lanes(buffers.q_columns, inputs.q, tile, width, real.type(scale / LN2))
            _load_rows(buffers.q_rows, inputs.q, tile, width, k_lanes, factor)
            _load_lanes(buffers.grad_columns, slopes.grad_out, tile, sizes.value_dim, one)
            _load_rows(buffers.grad_rows, slopes.grad_out, tile, sizes.value_dim, v_lanes, one)
            _load_answer(sizes, slopes, tile, buffers)
            _add_tile(inputs, sizes, tile, buffers, found, task, with_gaps)
            for i in range(tile.queries):
                at = ((batch * sizes.heads + tile.head) * sizes.queries + tile.query + i) * width
                for d in range(width):
                    found.dq[at + d] = buffers.dq_columns[d * tile.lanes + i] * factor


@njit(nogil=True)
def _unpack(q, k, v, gaps, first, last, numbers):
    """Inputs and sizes: `numbers` are the strides of q, k and v, then the sizes."""
    n = numbers
    strided_k, strided_v = Strided(k, n[3], n[4], n[5]), Strided(v, n[6], n[7], n[8])
    inputs = Inputs(Strided(q, n[0], n[1], n[2]), strided_k, strided_v, gaps, first, last)
    return inputs, Sizes(n[9], n[10], n[11], n[12], n[13], n[14], n[15], n[16])


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled entry point, kept on disk where there is a folder that can be written to."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no such folder
        return njit(nogil=True)(function)


def _entries(sources: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """The compiled entry points; numba's cache on disk sees a change in `sources`, but not in other files.

    Their arguments are flat arrays and one array of numbers, because numba takes longer to accept tuples than
    to attend over a short series.
    """

    @compiled
    def forward(q, k, v, gaps, first, last, numbers, scale, begin, end, out, lse, peak, inverse):
        """Answer tiles `begin` to `end`, counted over batch, heads and tiles."""
        if sources != "":
            inputs, sizes = _unpack(q, k, v, gaps, first, last, numbers)
            _forward(inputs, sizes, scale, begin, end, Answer(out, lse, peak, inverse))

    @compiled
    def backward(
        q,
        k,
        v,
        gaps,
        first,
        last,
        numbers,
        scale,
        begin,
        end,
        out,
        grads,
        lse,
        peak,
        inverse,
        dq,
        dk,
        dv,
        dgaps,
    ):
        """Do tasks `begin` to `end`, counted over batch, kv_heads and shares of the tiles of a kv_head.

        The numbers go on with the strides of `out` and of its `grads`, the shares of a kv_head, and whether
        `dgaps` is wanted; `lse` is the gradient of `lse`.
        """
        if sources != "":
            inputs, sizes = _unpack(q, k, v, gaps, first, last, numbers)
            n = numbers[17:]
            strided_out, strided_grads = Strided(out, n[0], n[1], n[2]), Strided(grads, n[3], n[4], n[5])
            slopes = Slopes(strided_out, strided_grads, lse, peak, inverse)
            found = Found(dq, dk, dv, dgaps)
            _backward(inputs, slopes, sizes, scale, n[6], begin, end, found, n[7] != 0)

    return forward, backward


SOURCES = sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()
forward, backward = _entries(SOURCES)
