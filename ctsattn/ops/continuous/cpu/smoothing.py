"""Numba: what `first_order` does around a stock kernel, in one pass over memory before it and one after it.

Over a short series the dozens of small tensor operations that this takes cost more than the attention. The
maths are those of `first_order.py` and `stock.py`. What a function is told to do is a range of rows, one head
of one series each. Tensors are told by numbers, see `placed`: to make an array of each costs as much as a
pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from ctsattn.ops.continuous.cpu.kernels import SOURCES, compiled
from ctsattn.ops.continuous.cpu.rows import load_at, product_of_rows, store_at, sum_rows

# Bias of a key that no query sees: finite, as the kernels are not all safe with -inf.
HIDDEN = -1e30
# What stands in a table `[batch, 3, knots]`: how far a key leans to the one before it and to the one after
# it, and the logarithm of the time that is its own as the last knot of a query.
TO_LAST, TO_NEXT, AS_END = range(3)


class Layout(NamedTuple):
    """Sizes of a problem, in the order in which they stand before the places of tensors.

    Attributes:
        heads: Query heads.
        kv_heads: Key heads.
        queries: Queries.
        knots: Knots.
        head_dim: Width of queries and keys.
        value_dim: Width of values.
        width: Width that the stock kernel is given, the larger of the two.
        ends: 1 if the interval of query i ends at knot `i + 1 - hidden`, and the stock kernel answers for the
            knots before that one; 0 if all queries see all knots.
        hidden: Rows without a weight in front of the knots, 0 or 1: the stock kernel's query i sees its rows
            up to i, and it loses much on one row less than a multiple of 8.
        rows: Keys that the stock kernel is given.
        itemsize: Bytes of a number.
    """

    heads: int
    kv_heads: int
    queries: int
    knots: int
    head_dim: int
    value_dim: int
    width: int
    ends: int
    hidden: int
    rows: int
    itemsize: int


def placed(*tensors: Tensor | None) -> list[int]:
    """Address and first three strides of each tensor, whose columns are neighbours; zeros where none is."""
    numbers = []
    for x in tensors:
        if x is None:
            numbers += (0, 0, 0, 0)
        else:
            numbers.append(x.data_ptr())
            numbers += x.stride()[:3]
    return numbers


@njit(nogil=True)
def _at(numbers, tensor, batch, head, row):
    """Address of a row of a tensor."""
    n = 11 + 4 * tensor
    return numbers[n] + numbers[10] * (batch * numbers[n + 1] + head * numbers[n + 2] + row * numbers[n + 3])


@compiled
def weigh(gaps, share, ends, hidden, table, bias):
    """Write the table and the logarithmic widths of all rows; whether there is time where several are seen.

    `gaps` is `[batch, knots]` and `bias` `[batch, 1, 1, rows]`, whose first `hidden` rows are no knots.
    """
    real, knots, ordinary = gaps.dtype.type, gaps.shape[1], True
    for batch in range(gaps.shape[0]):
        some, before = gaps[batch, 1] > 0, real(0)
        for place in range(hidden):
            bias[batch, 0, 0, place] = HIDDEN
        for j in range(knots):
            after = gaps[batch, j + 1] if j + 1 < knots else real(0)
            both = before + after
            unit = real(share) / (both if both > 0 else real(1))
            table[batch, TO_LAST, j], table[batch, TO_NEXT, j] = unit * before, unit * after
            table[batch, AS_END, j] = math.log(before / 2) if ends and before > 0 else -math.inf
            if j + hidden < bias.shape[3]:
                bias[batch, 0, 0, j + hidden] = math.log(both / 2) if both > 0 else HIDDEN
            some = some or (both > 0 and not ends)
            before = after
        ordinary = ordinary and some
    return ordinary


@njit(nogil=True)
def _clear(kind, to, begin, end, itemsize):
    """Write zeros to columns of a row."""
    for d in range(begin, end):
        store_at(kind, to + d * itemsize, 0.0)


def _entries(sources: str) -> tuple[Callable[..., None], ...]:
    """The compiled entry points; numba's cache on disk sees a change in `sources`, but not in other files."""

    @compiled
    def prepare(numbers, table, begin, end):
        """Write smoothed keys, and values beside them where there is a place for them.

        After the `Layout` stand the places of k, v, and of the keys and values of the stock kernel.
        """
        if sources == "":
            return
        heads, kv_heads, _, knots, head_dim, value_dim, width, _, hidden, rows, size = numbers[:11]
        copies, one = numbers[11 + 4 * 3] != 0, table.dtype.type(1)
        for row in range(begin, end):
            batch, head = row // heads, row % heads
            kv_head = head // (heads // kv_heads)
            for place in range(rows):
                j, to = place - hidden, _at(numbers, 2, batch, head, place)
                if j < 0:
                    _clear(table, to, 0, width, size)
                else:
                    k_at = _at(numbers, 0, batch, kv_head, j)
                    last = _at(numbers, 0, batch, kv_head, max(j - 1, 0))
                    following = _at(numbers, 0, batch, kv_head, min(j + 1, knots - 1))
                    to_last, to_next = table[batch, TO_LAST, j], table[batch, TO_NEXT, j]
                    factors = (one - to_last - to_next, to_last, to_next)
                    sum_rows(table, to, (k_at, last, following), factors, head_dim)
                    _clear(table, to, head_dim, width, size)
                if copies:
                    to = _at(numbers, 3, batch, head, place)
                    if j >= 0:
                        sum_rows(table, to, (_at(numbers, 1, batch, kv_head, j),), (one,), value_dim)
                    _clear(table, to, value_dim if j >= 0 else 0, width, size)

    @compiled
    def merge(numbers, table, weights, scale, share, begin, end):
        """Add the ends to what the stock kernel answered, and write their shares; a single knot takes all.

        After the `Layout` stand the places of k, v, q, and of the outputs and logarithms to be changed.
        """
        if sources == "":
            return
        heads, kv_heads, queries, _, head_dim, value_dim, _, _, hidden, _, _ = numbers[:11]
        real = table.dtype.type
        leans = (real(1 - share), real(share))
        for row in range(begin, end):
            batch, head = row // heads, row % heads
            kv_head = head // (heads // kv_heads)
            for i in range(queries):
                knot, lse_at = i + 1 - hidden, _at(numbers, 4, batch, head, i)
                weight = real(0)
                if knot == 0:
                    weight = real(1)
                    store_at(table, lse_at, -HIDDEN)  # then what the stock kernel makes of hidden keys is 0
                elif table[batch, AS_END, knot] > -math.inf:
                    pair = _at(numbers, 0, batch, kv_head, knot), _at(numbers, 0, batch, kv_head, knot - 1)
                    q_at = _at(numbers, 2, batch, head, i)
                    score = product_of_rows(table, q_at, pair, leans, head_dim) * real(scale)
                    score += table[batch, AS_END, knot]
                    lse = load_at(table, lse_at)
                    small = math.exp(-abs(score - lse))
                    weight = (real(1) if score >= lse else small) / (real(1) + small)
                    store_at(table, lse_at, max(score, lse) + math.log1p(small))
                weights[row * queries + i] = weight
                if weight > 0:
                    out_at = _at(numbers, 3, batch, head, i)
                    pair = (out_at, _at(numbers, 1, batch, kv_head, knot))
                    sum_rows(table, out_at, pair, (real(1) - weight, weight), value_dim)

    @njit(nogil=True)
    def slope_ends(numbers, table, weights, slopes, leans, batch, head):
        """Slopes of the loss in the scores of the ends, scale included; adds what they give to dq."""
        heads, kv_heads, queries, _, head_dim, value_dim, _, _, hidden, _, _ = numbers[:11]
        kv_head, real = head // (heads // kv_heads), table.dtype.type
        for i in range(queries):
            knot, weight = i + 1 - hidden, weights[(batch * heads + head) * queries + i]
            slopes[i] = real(0)
            if knot == 0 or weight == 0:
                continue
            pair = _at(numbers, 1, batch, kv_head, knot), _at(numbers, 3, batch, head, i)
            grad_at = _at(numbers, 4, batch, head, i)
            rise = product_of_rows(table, grad_at, pair, (real(1), real(-1)), value_dim)
            slope = weight * rise
            slopes[i] = slope
            to = _at(numbers, 7, batch, head, i)
            k_at, last = _at(numbers, 0, batch, kv_head, knot), _at(numbers, 0, batch, kv_head, knot - 1)
            factors = (real(1), slope * leans[0], slope * leans[1])
            sum_rows(table, to, (to, k_at, last), factors, head_dim)

    @compiled
    def finish(numbers, table, weights, scale, share, begin, end):
        """Turn gradients of what the stock kernel was given into those of k and v; add what the ends give.

        After the `Layout` stand the places of k, v, q, out, its gradient, those of the stock kernel's keys,
        values and queries, dk and dv. The gradient of queries is changed in place. Rows are those of key
        heads.
        """
        if sources == "":
            return
        heads, kv_heads, queries, knots, head_dim, value_dim, _, ends, hidden, _, _ = numbers[:11]
        group, real = heads // kv_heads, table.dtype.type
        zero, one, offset = real(0), real(1), 1 - hidden
        leans = (real(scale * (1 - share)), real(scale * share))
        # Of a query that is not there, slope is 0.
        slopes = np.zeros(queries + 1, table.dtype)
        seen = knots - ends
        for row in range(begin, end):
            batch, kv_head = row // kv_heads, row % kv_heads
            for head in range(kv_head * group, (kv_head + 1) * group):
                if ends:
                    slope_ends(numbers, table, weights, slopes, leans, batch, head)
                more = one if head > kv_head * group else zero
                for j in range(knots):
                    here, there = one if j < seen else zero, j + 1 < seen
                    row_at = _at(numbers, 5, batch, head, min(j, seen - 1) + hidden)
                    to = _at(numbers, 8, batch, kv_head, j)
                    # A row that is not there is another one with the factor 0.
                    five = (
                        to if more > 0 else row_at,
                        row_at,
                        _at(numbers, 5, batch, head, max(j - 1, 0) + hidden),
                        _at(numbers, 5, batch, head, min(j + 1, seen - 1) + hidden),
                    )
                    factors = (
                        more,
                        here * (one - table[batch, TO_LAST, j] - table[batch, TO_NEXT, j]),
                        table[batch, TO_NEXT, j - 1] if j > 0 else zero,
                        table[batch, TO_LAST, j + 1] if there else zero,
                    )
                    i = j - offset  # the query that ends at this knot; the next one's end leans to it
                    own_at = _at(numbers, 2, batch, head, max(i, 0))
                    if ends:
                        next_at = _at(numbers, 2, batch, head, min(i + 1, queries - 1))
                        own = slopes[i] * leans[0] if i >= 0 else zero
                        places = (*five, own_at, next_at)
                        sum_rows(table, to, places, (*factors, own, slopes[i + 1] * leans[1]), head_dim)
                    else:
                        sum_rows(table, to, five, factors, head_dim)
                    to = _at(numbers, 9, batch, kv_head, j)
                    value_at = _at(numbers, 6, batch, head, min(j, seen - 1) + hidden)
                    base = to if more > 0 else value_at
                    if ends:
                        grad_at = _at(numbers, 4, batch, head, max(i, 0))
                        weight = weights[(batch * heads + head) * queries + i] if i >= 0 else zero
                        sum_rows(table, to, (base, value_at, grad_at), (more, here, weight), value_dim)
                    else:
                        sum_rows(table, to, (base, value_at), (more, one), value_dim)

    return prepare, merge, finish


prepare, merge, finish = _entries(SOURCES)
