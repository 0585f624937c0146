"""Numba: the clock, and keys that lean to their neighbours, for `first_order` on a stock kernel.

Over a short series the dozens of small tensor operations that this takes cost more than the attention. The
maths are those of `first_order.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ctsattn.ops.continuous.cpu.places import is_placed, rows_of
from ctsattn.ops.continuous.cpu.rows import store_at, sum_rows

# Bias of a key that no query sees: finite, as the kernels are not all safe with -inf.
HIDDEN = -1e30
# What stands in a table `[batch, 3, knots]`: how far a key leans to the one before it and to the one after
# it, and the logarithm of the time that is its own as the last knot of a query.
TO_LAST, TO_NEXT, AS_END = range(3)


@njit(nogil=True)
def clear(kind, to, begin, end, itemsize):
    """Write zeros to columns of a row."""
    for d in range(begin, end):
        store_at(kind, to + d * itemsize, 0.0)


@njit(nogil=True)
def weigh(gaps, share, layout, table, bias, batch):
    """Write the table and the logarithmic widths of a row; whether there is time where several are seen.

    `gaps` are those of the row, and `bias` the address of its logarithmic widths, the hidden row in front.
    """
    real, some, before = table.dtype.type, gaps[1] > 0, table.dtype.type(0)
    for place in range(layout.hidden):
        store_at(table, bias + place * layout.itemsize, HIDDEN)
    for j in range(layout.knots):
        after = gaps[j + 1] if j + 1 < layout.knots else real(0)
        both = before + after
        unit = real(share) / (both if both > 0 else real(1))
        table[batch, TO_LAST, j], table[batch, TO_NEXT, j] = unit * before, unit * after
        table[batch, AS_END, j] = math.log(before / 2) if layout.ends and before > 0 else -math.inf
        place = j + layout.hidden
        if place < layout.rows:
            width = math.log(both / 2) if both > 0 else real(HIDDEN)
            store_at(table, bias + place * layout.itemsize, width)
        some = some or (both > 0 and not layout.ends)
        before = after
    return some


@njit(nogil=True)
def smooth(table, numbers, layout, batch, head):
    """Write the keys of a head that lean to their neighbours, with zeros in hidden rows and beyond."""
    k, k_step = rows_of(numbers, 0, batch, head // (layout.heads // layout.kv_heads))
    to, to_step = rows_of(numbers, 2, batch, head)
    one, last_knot = table.dtype.type(1), layout.knots - 1
    for _ in range(layout.hidden):
        clear(table, to, 0, layout.width, layout.itemsize)
        to += to_step
    for j in range(layout.rows - layout.hidden):
        to_last, to_next = table[batch, TO_LAST, j], table[batch, TO_NEXT, j]
        three = (k, k - k_step if j > 0 else k, k + k_step if j < last_knot else k)
        sum_rows(table, to, three, (one - to_last - to_next, to_last, to_next), layout.head_dim)
        clear(table, to, layout.head_dim, layout.width, layout.itemsize)
        k += k_step
        to += to_step


@njit(nogil=True)
def copy(table, numbers, layout, batch, head):
    """Write the values of a head, with zeros in hidden rows and beyond."""
    v, v_step = rows_of(numbers, 1, batch, head // (layout.heads // layout.kv_heads))
    to, to_step = rows_of(numbers, 3, batch, head)
    one = (table.dtype.type(1),)
    for _ in range(layout.hidden):
        clear(table, to, 0, layout.width, layout.itemsize)
        to += to_step
    for _ in range(layout.rows - layout.hidden):
        sum_rows(table, to, (v,), one, layout.value_dim)
        clear(table, to, layout.value_dim, layout.width, layout.itemsize)
        v += v_step
        to += to_step


@njit(nogil=True)
def prepare_row(numbers, layout, table, gaps, share, batch):
    """Do all that stands before the stock kernel in one row; see `passes.prepare`."""
    bias, _ = rows_of(numbers, 4, batch, 0)
    if not weigh(gaps, share, layout, table, bias, batch):
        return False
    for head in range(layout.heads):
        if is_placed(numbers, 2):
            smooth(table, numbers, layout, batch, head)
        if is_placed(numbers, 3):
            copy(table, numbers, layout, batch, head)
    return True


@njit(nogil=True)
def lean_back(table, numbers, layout, saved, batch, head):
    """Write the gradient of keys from that of smoothed ones, or add to it, where nothing is hidden.

    It may be in the place of the other: two rows of that are `saved`.
    """
    group, real, knots = layout.heads // layout.kv_heads, table.dtype.type, layout.knots
    zero, one, more = real(0), real(1), real(0 if head % group == 0 else 1)
    given, given_step = rows_of(numbers, 5, batch, head)
    dk, dk_step = rows_of(numbers, 8, batch, head // group)
    rows = np.int64(saved.ctypes.data)
    last, here = rows, rows + layout.head_dim * layout.itemsize
    sum_rows(table, last, (given,), (one,), layout.head_dim)
    for j in range(knots):
        sum_rows(table, here, (given,), (one,), layout.head_dim)
        places = (dk if more > 0 else here, here, last, given + given_step if j + 1 < knots else here)
        factors = (
            more,
            one - table[batch, TO_LAST, j] - table[batch, TO_NEXT, j],
            table[batch, TO_NEXT, j - 1] if j > 0 else zero,
            table[batch, TO_LAST, j + 1] if j + 1 < knots else zero,
        )
        sum_rows(table, dk, places, factors, layout.head_dim)
        last, here = here, last
        given += given_step
        dk += dk_step


@njit(nogil=True)
def sum_values(table, numbers, layout, batch, head):
    """Write the gradient of values from that of a head's copy, or add to it, where nothing is hidden."""
    group, real = layout.heads // layout.kv_heads, table.dtype.type
    given, given_step = rows_of(numbers, 6, batch, head)
    dv, dv_step = rows_of(numbers, 9, batch, head // group)
    factors = (real(0 if head % group == 0 else 1), real(1))
    for _ in range(layout.knots):
        sum_rows(table, dv, (dv if factors[0] > 0 else given, given), factors, layout.value_dim)
        given += given_step
        dv += dv_step
