"""Numba: tiles, of which the forward and the backward pass are made.

A tile is some queries of one head, the lanes; it meets the knots in blocks. Neighbouring blocks share a knot,
so that every piece lies in one block. What a lane sees is told by the first and the last of its knots, and
blocks that no lane of the tile sees are not visited.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

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
def load_lanes(columns, strided, tile, width, factor):
    """Write a tile's tokens as columns `[width, lanes]`, times a factor; 0 in lanes beyond its queries."""
    for i in range(tile.lanes):
        if i < tile.queries:
            at = at_token(strided, tile.batch, tile.head, tile.query + i)
            for d in range(width):
                columns[d * tile.lanes + i] = strided.flat[at + d] * factor
        else:
            for d in range(width):
                columns[d * tile.lanes + i] = 0


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
def unpack(q, k, v, gaps, first, last, numbers):
    """Inputs and sizes: `numbers` are the strides of q, k and v, then the sizes."""
    n = numbers
    strided_k, strided_v = Strided(k, n[3], n[4], n[5]), Strided(v, n[6], n[7], n[8])
    inputs = Inputs(Strided(q, n[0], n[1], n[2]), strided_k, strided_v, gaps, first, last)
    return inputs, Sizes(n[9], n[10], n[11], n[12], n[13], n[14], n[15], n[16])
