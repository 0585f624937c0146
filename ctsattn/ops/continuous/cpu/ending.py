"""Numba: the last knot of each query, merged with what a stock kernel answers for the knots before it.

The maths are those of `first_order.py` and `stock.py`.
"""

from __future__ import annotations

import math

from numba import njit

from ctsattn.ops.continuous.cpu.places import rows_of
from ctsattn.ops.continuous.cpu.rows import load_at, product_of_rows, store_at, sum_rows
from ctsattn.ops.continuous.cpu.smoothing import AS_END, HIDDEN, TO_LAST, TO_NEXT


@njit(nogil=True)
def merge_head(table, numbers, layout, weights, scale, share, batch, head):
    """Add the ends to what the stock kernel answered for a head, and write their shares."""
    real, kv_head = table.dtype.type, head // (layout.heads // layout.kv_heads)
    leans = (real(1 - share), real(share))
    k, k_step = rows_of(numbers, 0, batch, kv_head)
    v, v_step = rows_of(numbers, 1, batch, kv_head)
    q, q_step = rows_of(numbers, 2, batch, head)
    out, out_step = rows_of(numbers, 3, batch, head)
    lses, lse_step = rows_of(numbers, 4, batch, head)
    start = (batch * layout.heads + head) * layout.queries
    for i in range(layout.queries):
        knot = i + 1 - layout.hidden
        lse_at, weight = lses + i * lse_step, real(0)
        if knot == 0:  # a single knot takes all
            weight = real(1)
            store_at(table, lse_at, -HIDDEN)  # then what the stock kernel makes of hidden keys is 0
        elif table[batch, AS_END, knot] > -math.inf:
            k_at = k + knot * k_step
            score = product_of_rows(table, q + i * q_step, (k_at, k_at - k_step), leans, layout.head_dim)
            score = score * real(scale) + table[batch, AS_END, knot]
            lse = load_at(table, lse_at)
            small = math.exp(-abs(score - lse))
            weight = (real(1) if score >= lse else small) / (real(1) + small)
            store_at(table, lse_at, max(score, lse) + math.log(real(1) + small))
        weights[start + i] = weight
        if weight != 0:
            out_at, pair = out + i * out_step, (real(1) - weight, weight)
            sum_rows(table, out_at, (out_at, v + knot * v_step), pair, layout.value_dim)


@njit(nogil=True)
def slope_ends(table, numbers, layout, weights, slopes, leans, batch, head):
    """Slopes of the loss in the scores of the ends of a head, scale included; adds what they give to dq."""
    real, kv_head, hidden = table.dtype.type, head // (layout.heads // layout.kv_heads), layout.hidden
    k, k_step = rows_of(numbers, 0, batch, kv_head)
    v, v_step = rows_of(numbers, 1, batch, kv_head)
    out, out_step = rows_of(numbers, 3, batch, head)
    grad, grad_step = rows_of(numbers, 4, batch, head)
    dq, dq_step = rows_of(numbers, 7, batch, head)
    start = (batch * layout.heads + head) * layout.queries
    slopes[:hidden] = 0  # a query that sees one knot
    for i in range(hidden, layout.queries):
        slope, knot = weights[start + i], i + 1 - hidden
        if slope != 0:
            pair = (v + knot * v_step, out + i * out_step)
            slope *= product_of_rows(table, grad + i * grad_step, pair, (real(1), real(-1)), layout.value_dim)
            k_at, dq_at = k + knot * k_step, dq + i * dq_step
            factors = (real(1), slope * leans[0], slope * leans[1])
            sum_rows(table, dq_at, (dq_at, k_at, k_at - k_step), factors, layout.head_dim)
        slopes[i] = slope


@njit(nogil=True)
def add_keys(table, numbers, layout, slopes, leans, batch, head):
    """Write the gradient of keys from a head whose queries have ends, or add to it.

    It may be in the place of the stock kernel's if a row is hidden: what is read lies at or beyond it.
    """
    group, real, offset = layout.heads // layout.kv_heads, table.dtype.type, 1 - layout.hidden
    zero, one, seen = real(0), real(1), layout.knots - 1
    given, given_step = rows_of(numbers, 5, batch, head)
    given += layout.hidden * given_step
    q, q_step = rows_of(numbers, 2, batch, head)
    dk, dk_step = rows_of(numbers, 8, batch, head // group)
    more = zero if head % group == 0 else one
    for j in range(layout.knots):
        # A row that is not there is another one with the factor 0.
        i = j - offset  # the query that ends at this knot; the next one's end leans to it
        here = given + min(j, seen - 1) * given_step
        places = (
            dk if more > 0 else here,
            here,
            given + max(j - 1, 0) * given_step,
            given + min(j + 1, seen - 1) * given_step,
            q + max(i, 0) * q_step,
            q + min(i + 1, layout.queries - 1) * q_step,
        )
        factors = (
            more,
            one - table[batch, TO_LAST, j] - table[batch, TO_NEXT, j] if j < seen else zero,
            table[batch, TO_NEXT, j - 1] if j > 0 else zero,
            table[batch, TO_LAST, j + 1] if j + 1 < seen else zero,
            slopes[i] * leans[0] if i >= 0 else zero,
            slopes[i + 1] * leans[1],
        )
        sum_rows(table, dk, places, factors, layout.head_dim)
        dk += dk_step


@njit(nogil=True)
def add_values(table, numbers, layout, weights, batch, head):
    """Write the gradient of values from a head whose queries have ends, or add to it; as `add_keys`."""
    group, real, offset = layout.heads // layout.kv_heads, table.dtype.type, 1 - layout.hidden
    zero, one, seen = real(0), real(1), layout.knots - 1
    given, given_step = rows_of(numbers, 6, batch, head)
    given += layout.hidden * given_step
    grad, grad_step = rows_of(numbers, 4, batch, head)
    dv, dv_step = rows_of(numbers, 9, batch, head // group)
    more = zero if head % group == 0 else one
    start = (batch * layout.heads + head) * layout.queries
    for j in range(layout.knots):
        i, here = j - offset, given + min(j, seen - 1) * given_step
        places = (dv if more > 0 else here, here, grad + max(i, 0) * grad_step)
        factors = (more, one if j < seen else zero, weights[start + i] if i >= 0 else zero)
        sum_rows(table, dv, places, factors, layout.value_dim)
        dv += dv_step
