"""Numba: tiles, of which the forward and the backward pass are made.

A tile is some queries of one head, the lanes; it meets the knots in blocks. Neighbouring blocks share a knot,
so that every piece lies in one block. What a lane sees is told by the first and the last of its knots, and
blocks that no lane of the tile sees are not visited.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import carray, njit  # pyright: ignore[reportPrivateImportUsage]

from ctsattn.ops.continuous.cpu.addresses import pointer_to
from ctsattn.ops.continuous.cpu.clock import GAPS, write_gaps
from ctsattn.ops.continuous.cpu.places import BATCH, CLOCK, CLOCK_KIND, FAILED, HEADER
from ctsattn.ops.continuous.cpu.turning import turn

# Knots of a block: with 64 lanes of float32, its scores and their derivatives fill two thirds of 48 KiB.
KNOTS = 64
MOST_KNOTS = 96  # of the last block: what is left is done at once if there is no more
LN2 = math.log(2.0)
LOWEST = -1e30

# What follows in a call, see `places`: the address of scale and share as float64; whether a query that sees
# one knot gets its value here; splits of the tiles of a key head; whether the gradient of the gaps is wanted;
# `Sizes`; addresses of what is flat; places of tensors, each an address and three strides in numbers.
FACTORS, LIMITS, SPLITS, WITH_GAPS, SIZES = range(HEADER, HEADER + 5)
_FLAT = SIZES + 8  # after the fields of `Sizes`
FIRSTS, LASTS, LSE, PEAK, INVERSE, DLSE, DQ, DK, DV, DGAPS, TENSORS = range(_FLAT, _FLAT + 11)
Q, K, V, OUT, DOUT = range(TENSORS, TENSORS + 20, 4)
MOST = DOUT + 4  # numbers of a call


class Strided(NamedTuple):
    """Elements `[batch, heads, length, width]` of a tensor; the last stride is 1."""

    flat: np.ndarray
    batch: int
    head: int
    token: int


class Inputs(NamedTuple):
    """What `reference.core` takes; `gaps`, `first` and `last` are flat and contiguous.

    `tables` are what a rule finds out about the gaps before it begins.
    """

    q: Strided
    k: Strided
    v: Strided
    gaps: np.ndarray
    first: np.ndarray
    last: np.ndarray
    tables: np.ndarray


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
def up(number, step):
    """The next multiple of a step."""
    return (number + step - 1) // step * step


@njit(nogil=True)
def at_token(strided, batch, head, token):
    """Index of the first element of a token."""
    return batch * strided.batch + head * strided.head + token * strided.token


@njit(nogil=True)
def place(inputs, sizes, batch, head, number, firsts, lasts):
    """A tile by its number within a head; lanes beyond its queries see what the last one sees."""
    query = number * sizes.tile
    queries = min(sizes.tile, sizes.queries - query)
    lanes = up(queries, sizes.strip)
    for i in range(lanes):
        at = batch * sizes.queries + query + min(i, queries - 1)
        firsts[i] = inputs.first[at]
        lasts[i] = min(inputs.last[at], sizes.knots - 1)
    kv_head = head // (sizes.heads // sizes.kv_heads)
    return Tile(batch, head, kv_head, query, queries, lanes, firsts[:lanes], lasts[:lanes])


@njit(nogil=True)
def rows_of(start, end):
    """Knots of the block that begins at `start` if the tile's last knot is `end`."""
    left = end - start + 1
    return left if left <= MOST_KNOTS else KNOTS


@njit(nogil=True)
def load_lanes(columns, strided, tile, width, factors):
    """Write a tile's tokens as columns `[width, lanes]`, times factors; 0 in lanes beyond its queries."""
    at = at_token(strided, tile.batch, tile.head, tile.query)
    turn(columns, 0, tile.lanes, strided.flat, at, strided.token, tile.queries, width, factors)
    if tile.queries < tile.lanes:
        for d in range(width):
            columns[d * tile.lanes + tile.queries : (d + 1) * tile.lanes] = 0


@njit(nogil=True)
def load_rows(rows, strided, tile, width, padded, factor):
    """Write a tile's tokens as rows `[queries, padded]`, times a factor; 0 beyond their width."""
    for i in range(tile.queries):
        at = at_token(strided, tile.batch, tile.head, tile.query + i)
        for d in range(width):
            rows[i * padded + d] = strided.flat[at + d] * factor
        for d in range(width, padded):
            rows[i * padded + d] = 0


@njit(nogil=True)
def flat_at(call, place, size, real):
    """The numbers that a call has the address of."""
    return carray(pointer_to(call[place]), (size,), real)


@njit(nogil=True)
def strided_at(call, place, heads, tokens, width, real):
    """The tensor at a place of a call."""
    n = call[place:]
    span = (call[BATCH] - 1) * n[1] + (heads - 1) * n[2] + (tokens - 1) * n[3] + width
    return Strided(flat_at(call, place, span, real), n[1], n[2], n[3])


@njit(nogil=True)
def sizes_of(call):
    """The sizes among the numbers of a call."""
    n = call[SIZES:]
    return Sizes(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7])


@njit(nogil=True)
def gaps_of(call, knots, real):
    """The gaps of all rows; fails the call where a clock is none."""
    if call[CLOCK_KIND] == GAPS:
        return flat_at(call, CLOCK, call[BATCH] * knots, real)
    gaps = np.empty(call[BATCH] * knots, real)
    for batch in range(call[BATCH]):
        if not write_gaps(call, batch, gaps[batch * knots : (batch + 1) * knots]):
            call[FAILED] = 1
    return gaps


@njit(nogil=True)
def inputs_of(call, sizes, gaps, tables, real):
    """Queries, keys, values, gaps, and what queries see."""
    queries = call[BATCH] * sizes.queries
    return Inputs(
        strided_at(call, Q, sizes.heads, sizes.queries, sizes.head_dim, real),
        strided_at(call, K, sizes.kv_heads, sizes.knots, sizes.head_dim, real),
        strided_at(call, V, sizes.kv_heads, sizes.knots, sizes.value_dim, real),
        gaps,
        flat_at(call, FIRSTS, queries, np.int32),
        flat_at(call, LASTS, queries, np.int32),
        tables,
    )
