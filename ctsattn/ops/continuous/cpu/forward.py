"""Numba: the forward pass, tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ctsattn.ops.continuous.cpu import pieces
from ctsattn.ops.continuous.cpu.products import multiply, multiply_add
from ctsattn.ops.continuous.cpu.tiles import LN2, LOWEST, MOST_KNOTS, at_token, load_lanes, place, rows_of, up
from ctsattn.ops.continuous.cpu.turning import turn


class Answer(NamedTuple):
    """Where the forward pass writes, flat: `out` like q but `value_dim` wide, the rest a number for a query.

    `peak`, in units of ln 2, and `inverse`, 1 over four times the sum of weights relative to the peak, are
    for the backward pass: where scores are large, `lse` is rounded too much to give weights. `lse` is empty
    if nobody wants it.
    """

    out: np.ndarray
    lse: np.ndarray
    peak: np.ndarray
    inverse: np.ndarray


@njit(nogil=True)
def sum_tile(inputs, sizes, tile, q_columns, scores, sums, peak, total, old, share):
    """Sum weighted values `[value_dim, lanes]` and weights over the knots, relative to each lane's peak.

    `share` is for other rules, see `knots`.
    """
    lanes, k, v = tile.lanes, inputs.k, inputs.v
    sums[: sizes.value_dim * lanes] = 0
    total[:lanes] = 0
    peak[:lanes] = LOWEST
    start, end = tile.firsts.min(), tile.lasts.max()
    while start < end:
        rows = rows_of(start, end)
        k_at, v_at = (
            at_token(k, tile.batch, tile.kv_head, start),
            at_token(v, tile.batch, tile.kv_head, start),
        )
        block = (rows, lanes, inputs.gaps, tile.batch * sizes.knots + start, start, tile.firsts, tile.lasts)
        multiply(scores, 0, lanes, k.flat, k_at, k.token, 1, q_columns, 0, lanes, rows, sizes.head_dim, lanes)
        old[:lanes] = peak[:lanes]
        pieces.raise_peak(*block, scores, peak)
        pieces.rescale(sizes.value_dim, *block[1:], sums, total, old, peak)
        pieces.weigh(*block, scores, peak, total)
        multiply_add(sums, 0, lanes, v.flat, v_at, 1, v.token, scores, 0, lanes, sizes.value_dim, rows, lanes)
        start += rows - 1


@njit(nogil=True, error_model="numpy")
def _store_answer(sizes, tile, sums, peak, total, factors, answer):
    """Write the answer to a tile; a total of 0 gives outputs 0 and `lse` -inf, and NaN stays NaN."""
    largest = np.finfo(total.dtype).max  # the inverse of a subnormal total is held there
    for i in range(tile.queries):
        at = (tile.batch * sizes.heads + tile.head) * sizes.queries + tile.query + i
        divisor, answer.peak[at], answer.inverse[at] = total[i], peak[i], 0
        if divisor == 0:
            divisor = total.dtype.type(1)
        else:
            answer.inverse[at] = min(1 / divisor, largest)
        if len(answer.lse) > 0:
            answer.lse[at] = (peak[i] + np.log2(total[i]) - 2) * LN2  # -inf without weights
        factors[i] = 1 / divisor
    at = ((tile.batch * sizes.heads + tile.head) * sizes.queries + tile.query) * sizes.value_dim
    turn(answer.out, at, sizes.value_dim, sums, 0, tile.lanes, sizes.value_dim, tile.queries, factors)
    for i in range(tile.queries):
        if factors[i] > largest:
            for d in range(sizes.value_dim):
                answer.out[at + i * sizes.value_dim + d] = sums[d * tile.lanes + i] / total[i]


@njit(nogil=True)
def _store_limits(inputs, sizes, tile, total, answer):
    """Write the value of the knot where a query sees one; whether none sees several and no time between."""
    fine = True
    for i in range(tile.queries):
        if total[i] == 0:
            fine = fine and tile.firsts[i] == tile.lasts[i]
            at = ((tile.batch * sizes.heads + tile.head) * sizes.queries + tile.query + i) * sizes.value_dim
            v_at = at_token(inputs.v, tile.batch, tile.kv_head, tile.firsts[i])
            for d in range(sizes.value_dim):
                answer.out[at + d] = inputs.v.flat[v_at + d]
    return fine


def answering(sum_tile: Callable[..., None]) -> Callable[..., Any]:
    """The forward pass by a rule, of which it is told what sums a tile."""

    @njit(nogil=True)
    def answer_tiles(inputs, sizes, factors, part, answer, limits):
        """Answer the tiles of a part; see `kernels`. False if `limits` are wanted that are not known."""
        real, scale, share = inputs.q.flat.dtype, factors[0], factors[1]
        q_columns, sums = (
            np.empty(sizes.head_dim * sizes.tile, real),
            np.empty(sizes.value_dim * sizes.tile, real),
        )
        scales = np.full(sizes.head_dim, real.type(scale / LN2), real)
        scores = np.empty(MOST_KNOTS * sizes.tile, real)
        peak, total, old = np.empty(sizes.tile, real), np.empty(sizes.tile, real), np.empty(sizes.tile, real)
        firsts, lasts = np.empty(sizes.tile, np.int32), np.empty(sizes.tile, np.int32)
        tiles, fine = up(sizes.queries, sizes.tile) // sizes.tile, True
        for index in part:
            row, number = divmod(index, tiles)
            batch, head = divmod(row, sizes.heads)
            tile = place(inputs, sizes, batch, head, number, firsts, lasts)
            load_lanes(q_columns, inputs.q, tile, sizes.head_dim, scales)
            sum_tile(inputs, sizes, tile, q_columns, scores, sums, peak, total, old, share)
            _store_answer(sizes, tile, sums, peak, total, old, answer)
            if limits:
                fine = _store_limits(inputs, sizes, tile, total, answer) and fine
        return fine

    return answer_tiles


answer_tiles = answering(sum_tile)
