"""Numba: weights of knots to first order in the differences of scores, and their derivative.

The exponent of a knot leans to its neighbours, as `first_order.py` derives it, and so do its derivatives. A
lane is a query and a row is a knot, as in `pieces`. The weight of a knot needs the scores on both sides of
it: so blocks share two knots, and each weighs those whose neighbours it has. What it adds to the scores of
its outermost knots, other blocks add to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils

from ctsattn.ops.continuous.cpu.backward import differentiating
from ctsattn.ops.continuous.cpu.forward import answering
from ctsattn.ops.continuous.cpu.lanes import INDEX, VECTOR_BYTES, Array, Lanes, Shape
from ctsattn.ops.continuous.cpu.pieces import Pieces, over_lanes, relative, rescale
from ctsattn.ops.continuous.cpu.products import multiply, multiply_add
from ctsattn.ops.continuous.cpu.tiles import LOWEST, at_token, rows_of, up


class Own(NamedTuple):
    """What a lane has of a knot: its share of the time, and how far its score leans to both sides."""

    width: Lanes
    to_last: Lanes
    to_next: Lanes


class _Rows:
    """The rows that a block weighs, and what lanes have of their knots, in a function that is generated.

    Where all lanes see both pieces of a knot, what they have of it is the same and stands in tables.

    Args:
        shape: Kind of the lanes.
        pieces: The pieces between the rows.
        lane: First lane of the vector.
        arrays: Rows that are weighed, see `_limit`; those of each vector, see `_bound`; the share; and the
            tables, see `write_tables`.
    """

    def __init__(self, shape: Shape, pieces: Pieces, lane: ir.Value, arrays: list[Array]):
        limits, bounds, shares, *self.tables = arrays
        builder, self.shape, self.pieces = shape.builder, shape, pieces
        self.share = Lanes(shape, shape.spread(shares.scalar(ir.Constant(INDEX, 0))))
        self.begin, self.end = (
            builder.sext(limits.scalar(ir.Constant(INDEX, place)), INDEX) for place in (0, 1)
        )
        at = builder.mul(lane, ir.Constant(INDEX, 3))
        self.alike, self.apart, self.unseen = (
            builder.sext(bounds.scalar(builder.add(at, ir.Constant(INDEX, place))), INDEX)
            for place in (0, 1, 2)
        )

    def each(self, body: Callable[[ir.Value, Own], None]) -> None:
        """Generate what is done for each row that a lane sees."""
        for begin, end, own in (
            (self.begin, self.alike, self._own),
            (self.alike, self.apart, self._same),
            (self.apart, self.unseen, self._own),
        ):
            with self.between(begin, end) as (row, _):
                body(row, own(row))

    def between(self, begin: ir.Value, end: ir.Value):
        """A loop over rows."""
        return cgutils.for_range_slice(self.shape.builder, begin, end, ir.Constant(INDEX, 1), INDEX)

    def _same(self, row: ir.Value) -> Own:
        """What all lanes have."""
        return Own(*(Lanes(self.shape, self.shape.spread(table.scalar(row))) for table in self.tables))

    def _own(self, row: ir.Value) -> Own:
        """What each lane has, 0 in lanes that see none of the pieces beside the knot."""
        shape, pieces = self.shape, self.pieces
        before = pieces.length(row)
        after = pieces.length_after(shape.builder.add(row, ir.Constant(INDEX, 1)))
        both = before + after
        unit = self.share / shape.where(shape.lanes(0.0) < both, both, shape.lanes(1.0))
        return Own(both * 0.5, unit * before, unit * after)


class _Scores:
    """Scores at a row and beside it, as they are; where there is no neighbour, nothing leans to it."""

    def __init__(self, shape: Shape, scores: Array, at: Callable, begin: ir.Value, rows: ir.Value):
        self.shape, self.scores, self.at, self.rows = shape, scores, at, rows
        builder, zero, one = shape.builder, ir.Constant(INDEX, 0), ir.Constant(INDEX, 1)
        before = builder.select(builder.icmp_signed(">", begin, zero), builder.sub(begin, one), zero)
        self.last, self.here = shape.variable(scores.load(at(before))), shape.variable(scores.load(at(begin)))

    def lean(self, row: ir.Value, own: Own) -> Lanes:
        """The exponent of the next row; call it for one after the other."""
        builder, one = self.shape.builder, ir.Constant(INDEX, 1)
        after = builder.add(row, one)
        after = builder.select(builder.icmp_signed("<", after, self.rows), after, row)
        below, here, last = self.scores.load(self.at(after)), self.here.get(), self.last.get()
        self.last.set(here)
        self.here.set(below)
        return here + own.to_last * (last - here) + own.to_next * (below - here)


def _lean(shape, arrays, pieces, lane, at, rows):
    """Turn scores into exponents, and raise each lane's peak to those that count."""
    scores, peaks, *others = arrays
    block, peak = _Rows(shape, pieces, lane, others), shape.variable(peaks.load(lane))
    leaning = _Scores(shape, scores, at, block.begin, rows)

    def body(row: ir.Value, own: Own) -> None:
        exponent = leaning.lean(row, own)
        scores.store(at(row), exponent)
        matters = shape.lanes(0.0) < own.width
        peak.set(shape.where(matters, peak.get().max(exponent), peak.get()))

    block.each(body)
    peaks.store(lane, peak.get())


def _weigh(shape, arrays, pieces, lane, at, rows):
    """Turn exponents into weights, less the peak, and add their sum to a total."""
    scores, peaks, totals, *others = arrays
    block, peak, total = _Rows(shape, pieces, lane, others), peaks.load(lane), shape.variable(0.0)

    def body(row: ir.Value, own: Own) -> None:
        weight = own.width * relative(scores.load(at(row)), peak).exp2()
        scores.store(at(row), weight)
        total.set(total.get() + weight)

    block.each(body)
    with block.between(block.unseen, block.end) as (row, _):
        scores.store(at(row), shape.lanes(0.0))
    totals.store(lane, totals.load(lane) + total.get())


def _differentiate(shape, arrays, pieces, lane, at, rows):
    """Turn scores into weights that sum to 1, and derivatives of the weights into those of the scores."""
    scores, slopes, peaks, inverses, means, *others = arrays
    builder, one, zero = shape.builder, ir.Constant(INDEX, 1), ir.Constant(INDEX, 0)
    peak, inverse, mean = peaks.load(lane), inverses.load(lane), means.load(lane)
    block = _Rows(shape, pieces, lane, others)
    leaning = _Scores(shape, scores, at, block.begin, rows)
    given, next_given = shape.variable(0.0), shape.variable(0.0)  # to the row before this one, and to this

    def body(row: ir.Value, own: Own) -> None:
        exponent = relative(leaning.lean(row, own), peak)
        weight = own.width * inverse * exponent.exp2()
        slope = weight * (slopes.load(at(row)) - mean)
        scores.store(at(row), weight)
        to_last, to_next = own.to_last * slope, own.to_next * slope
        with builder.if_then(builder.icmp_signed(">", row, zero)):
            slopes.store(at(builder.sub(row, one)), given.get() + to_last)
        given.set(next_given.get() + (slope - to_last - to_next))
        next_given.set(to_next)

    block.each(body)
    with block.between(block.unseen, rows) as (row, _):
        slopes.store(at(row), next_given.get())
        next_given.set(shape.lanes(0.0))
        scores.store(at(row), shape.lanes(0.0))
    with builder.if_then(builder.icmp_signed(">", block.unseen, zero)):
        slopes.store(at(builder.sub(block.unseen, one)), given.get())


lean, weigh, differentiate = over_lanes(_lean), over_lanes(_weigh), over_lanes(_differentiate)


@njit(nogil=True)
def write_tables(gaps, knots, share, tables):
    """Write what lanes that see both pieces of a knot have of it: `Own`, in this order, of all rows."""
    real = gaps.dtype.type
    half, unit, size = real(0.5), real(share), len(gaps)
    for place in range(size):
        before = gaps[place] if place % knots > 0 else real(0)
        after = gaps[place + 1] if place % knots + 1 < knots else real(0)
        both = before + after
        scale = unit / both if both > 0 else real(0)
        tables[place], tables[size + place], tables[2 * size + place] = (
            half * both,
            scale * before,
            scale * after,
        )


@njit(nogil=True)
def _extremes(tile, width, seen):
    """Write for each vector of lanes the last of their first knots, and the first and last of their last."""
    for lane in range(0, tile.lanes, width):
        first, low, high = tile.firsts[lane], tile.lasts[lane], tile.lasts[lane]
        for i in range(lane + 1, lane + width):
            first = max(first, tile.firsts[i])
            low, high = min(low, tile.lasts[i]), max(high, tile.lasts[i])
        seen[3 * lane], seen[3 * lane + 1], seen[3 * lane + 2] = first + 1, low, high + 1


@njit(nogil=True)
def _bound(seen, start, limits, lanes, width, bounds):
    """Write for each vector of lanes which rows all see alike, from and to, and the first that none sees."""
    for lane in range(0, lanes, width):
        begin = limits[0]
        for place in range(3 * lane, 3 * lane + 3):
            bounds[place] = begin = min(max(seen[place] - start, begin), limits[1])


@njit(nogil=True)
def _limit(limits, start, rows, first, end):
    """Write the rows that a block weighs, from begin to before end."""
    limits[0] = 0 if start == first else 1
    limits[1] = rows if start + rows - 1 == end else rows - 1


@njit(nogil=True)
def _clear_others(scores, lanes, limits, rows):
    """Write zeros to rows that a block does not weigh."""
    if limits[0] > 0:
        scores[:lanes] = 0
    if limits[1] < rows:
        scores[(rows - 1) * lanes : rows * lanes] = 0


@njit(nogil=True)
def sum_tile(inputs, sizes, tile, q_columns, scores, sums, peak, total, old, share):
    """Sum weighted values `[value_dim, lanes]` and weights over the knots, relative to each lane's peak."""
    lanes, k, v, real, tables = tile.lanes, inputs.k, inputs.v, scores.dtype.type, inputs.tables
    limits, shares = np.empty(2, np.int32), np.full(1, real(share), scores.dtype)
    seen, bounds, width = (
        np.empty(3 * lanes, np.int32),
        np.empty(3 * lanes, np.int32),
        VECTOR_BYTES // scores.itemsize,
    )
    _extremes(tile, width, seen)
    size = len(inputs.gaps)
    sums[: sizes.value_dim * lanes] = 0
    total[:lanes] = 0
    peak[:lanes] = LOWEST
    start = first = tile.firsts.min()
    end, done = tile.lasts.max(), start >= tile.lasts.max()
    while not done:
        rows = rows_of(start, end)
        k_at, v_at = (
            at_token(k, tile.batch, tile.kv_head, start),
            at_token(v, tile.batch, tile.kv_head, start),
        )
        block = (rows, lanes, inputs.gaps, tile.batch * sizes.knots + start, start, tile.firsts, tile.lasts)
        multiply(scores, 0, lanes, k.flat, k_at, k.token, 1, q_columns, 0, lanes, rows, sizes.head_dim, lanes)
        old[:lanes] = peak[:lanes]
        _limit(limits, start, rows, first, end)
        _bound(seen, start, limits, lanes, width, bounds)
        knot = tile.batch * sizes.knots + start
        own = (tables[knot:], tables[size + knot :], tables[2 * size + knot :])
        lean(*block, scores, peak, limits, bounds, shares, *own)
        rescale(sizes.value_dim, *block[1:], sums, total, old, peak)
        weigh(*block, scores, peak, total, limits, bounds, shares, *own)
        _clear_others(scores, lanes, limits, rows)
        multiply_add(sums, 0, lanes, v.flat, v_at, 1, v.token, scores, 0, lanes, sizes.value_dim, rows, lanes)
        done = start + rows - 1 == end
        start += rows - 2


@njit(nogil=True)
def add_tile(inputs, sizes, tile, buffers, found, task, with_gaps, share):
    """Add what a tile gives to the derivatives of keys and values, and sum that of its queries."""
    lanes, k, v, b, tables = tile.lanes, inputs.k, inputs.v, buffers, inputs.tables
    real = b.scores.dtype.type
    limits, shares = np.empty(2, np.int32), np.full(1, real(share), buffers.scores.dtype)
    seen, bounds, width = (
        np.empty(3 * lanes, np.int32),
        np.empty(3 * lanes, np.int32),
        VECTOR_BYTES // b.scores.itemsize,
    )
    _extremes(tile, width, seen)
    size = len(inputs.gaps)
    head_dim, value_dim, n = sizes.head_dim, sizes.value_dim, tile.queries
    k_lanes, v_lanes = up(head_dim, sizes.strip), up(value_dim, sizes.strip)
    b.dq_columns[: head_dim * lanes] = 0
    start = first = tile.firsts.min()
    end, done = tile.lasts.max(), start >= tile.lasts.max()
    while not done:
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
        _limit(limits, start, rows, first, end)
        _bound(seen, start, limits, lanes, width, bounds)
        knot = tile.batch * sizes.knots + start
        own = (tables[knot:], tables[size + knot :], tables[2 * size + knot :])
        differentiate(*block, b.scores, b.slopes, b.peaks, b.inverses, b.means, limits, bounds, shares, *own)
        _clear_others(b.scores, lanes, limits, rows)
        multiply_add(
            found.dv, dv_at, v_lanes, b.scores, 0, lanes, 1, b.grad_rows, 0, v_lanes, rows, n, v_lanes
        )
        multiply_add(found.dk, dk_at, k_lanes, b.slopes, 0, lanes, 1, b.q_rows, 0, k_lanes, rows, n, k_lanes)
        multiply_add(
            b.dq_columns, 0, lanes, k.flat, k_at, 1, k.token, b.slopes, 0, lanes, head_dim, rows, lanes
        )
        done = start + rows - 1 == end
        start += rows - 2


answer_tiles, differentiate_tiles = answering(sum_tile), differentiating(add_tile)
