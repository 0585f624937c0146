"""Numba: what `first_order` does around a stock kernel, in one pass over memory before it and one after it.

Over a short series the dozens of small tensor operations that this takes cost more than the attention. The
maths are those of `first_order.py` and `stock.py`. Arrays are flat, with strides as in `kernels`; what a
function is told to do is a range of rows, one head of one series each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy import uintp

from ctsattn.ops.continuous.cpu.kernels import compiled

# Bias of a key that no query sees: finite, as the kernels are not all safe with -inf.
HIDDEN = -1e30


class Layout(NamedTuple):
    """Sizes of a problem, in the order in which they stand before the strides in `numbers`.

    Attributes:
        heads: Query heads.
        kv_heads: Key heads.
        queries: Queries.
        knots: Knots.
        head_dim: Width of queries and keys.
        value_dim: Width of values.
        width: Width that the stock kernel is given, the larger of the two.
        ends: 1 if the interval of query i ends at knot `i + 1 - skip`, and the stock kernel answers for the
            knots before that one; 0 if all queries see all knots.
        skip: 1 if the first query sees nothing but its own knot, and the stock kernel is not asked for it.
        rows: Keys that the stock kernel is given, of knot 0 and on. Its query i sees those up to i if there
            are `ends`.
    """

    heads: int
    kv_heads: int
    queries: int
    knots: int
    head_dim: int
    value_dim: int
    width: int
    ends: int
    skip: int
    rows: int


@njit(nogil=True)
def _lean(gaps, first, j, knots, share):
    """How far key j leans to the one before it and to the one after it, and the time that is its own."""
    real = gaps.dtype.type
    before = gaps[first + j] if j > 0 else real(0)
    after = gaps[first + j + 1] if j + 1 < knots else real(0)
    both = before + after
    unit = real(share) / (both if both > 0 else real(1))
    return unit * before, unit * after, both / 2


@njit(nogil=True)
def _smooth(to, to_at, k, at, last, following, to_last, to_next, size, padded):
    """Write a key that leans to its neighbours, and zeros behind it."""
    to_at, at, last, following = uintp(to_at), uintp(at), uintp(last), uintp(following)
    for d in range(uintp(size)):
        key = k[at + d]
        to[to_at + d] = key + to_next * (k[following + d] - key) + to_last * (k[last + d] - key)
    for d in range(uintp(size), uintp(padded)):
        to[to_at + d] = 0


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _end_score(q, q_at, k, at, last, lean, size):
    """Score of a last knot, which leans to the one before it."""
    q_at, at, last, total = uintp(q_at), uintp(at), uintp(last), q.dtype.type(0)
    for d in range(uintp(size)):
        total += q[q_at + d] * (k[at + d] + lean * (k[last + d] - k[at + d]))
    return total


@njit(nogil=True)
def _mix(to, to_at, x, at, share, v, v_at, size):
    """Write what lies a share of the way from a mean to a value."""
    to_at, at, v_at = uintp(to_at), uintp(at), uintp(v_at)
    for d in range(uintp(size)):
        to[to_at + d] = x[at + d] + share * (v[v_at + d] - x[at + d])


@njit(nogil=True, fastmath={"reassoc", "contract"})
def _rise(v, v_at, out, out_at, grad, grad_at, size):
    """What the loss rises by if an end takes all weight."""
    v_at, out_at, grad_at, total = uintp(v_at), uintp(out_at), uintp(grad_at), v.dtype.type(0)
    for d in range(uintp(size)):
        total += (v[v_at + d] - out[out_at + d]) * grad[grad_at + d]
    return total


@njit(nogil=True)
def _sum_three(to, to_at, x, at, k, f0, at0, f1, at1, size):
    """Write a row plus multiples of two rows of k."""
    to_at, at, at0, at1 = uintp(to_at), uintp(at), uintp(at0), uintp(at1)
    for d in range(uintp(size)):
        to[to_at + d] = x[at + d] + (f0 * k[at0 + d] + f1 * k[at1 + d])


@njit(nogil=True)
def _write_sum(to, to_at, fresh, x, at, factors, y, y0, y1, f0, f1, size):
    """Write, or add, three rows of x and two of y, times their factors."""
    to_at, at, y0, y1 = uintp(to_at), (uintp(at[0]), uintp(at[1]), uintp(at[2])), uintp(y0), uintp(y1)
    for d in range(uintp(size)):
        total = factors[0] * x[at[0] + d] + factors[1] * x[at[1] + d] + factors[2] * x[at[2] + d]
        total += f0 * y[y0 + d] + f1 * y[y1 + d]
        to[to_at + d] = total if fresh else to[to_at + d] + total


@njit(nogil=True)
def _write_scaled(to, to_at, fresh, x, at, factor, y, y_at, share, size):
    """Write, or add, a row of x times a factor and one of y times a share."""
    to_at, at, y_at = uintp(to_at), uintp(at), uintp(y_at)
    for d in range(uintp(size)):
        total = factor * x[at + d] + share * y[y_at + d]
        to[to_at + d] = total if fresh else to[to_at + d] + total


@compiled
def prepare(q, k, gaps, numbers, scale, share, begin, end, keys, bias, scores, no_time):
    """Write smoothed keys as the stock kernel reads them, their logarithmic widths, and scores of ends.

    After the `Layout` stand the strides of q and k. The widths are written with a series' first head. Where a
    query sees several knots and no time between them, `no_time[0]` is set.
    """
    heads, kv_heads, queries, knots, head_dim, _, width, ends, skip, rows = numbers[:10]
    for row in range(begin, end):
        batch, head = row // heads, row % heads
        gaps_at, k_step = batch * knots, numbers[15]
        k_at = batch * numbers[13] + head // (heads // kv_heads) * numbers[14]
        some = gaps[gaps_at + 1] > 0
        for j in range(rows):
            to_last, to_next, own = _lean(gaps, gaps_at, j, knots, share)
            some = some or (own > 0 and not ends)
            if head == 0:
                bias[batch * rows + j] = math.log(own) if own > 0 else HIDDEN
            at = k_at + j * k_step
            last, following = at - k_step * (j > 0), at + k_step * (j + 1 < knots)
            _smooth(keys, (row * rows + j) * width, k, at, last, following, to_last, to_next, head_dim, width)
        if not some:
            no_time[0] = 1
        q_at = batch * numbers[10] + head * numbers[11]
        for i in range(queries * ends):
            knot = i + 1 - skip
            gap, at = gaps[gaps_at + knot], k_at + knot * k_step
            scores[row * queries + i] = -math.inf
            if knot > 0 and gap > 0:
                score = _end_score(
                    q, q_at + i * numbers[12], k, at, at - k_step, q.dtype.type(share), head_dim
                )
                scores[row * queries + i] = score * scale + math.log(gap / 2)


@njit(nogil=True)
def _merge(score, lse):
    """Share of an end in the sum of weights, and the logarithm of the new sum."""
    share = 1 / (1 + math.exp(min(lse - score, 700.0)))
    return share, max(lse, score) + math.log1p(math.exp(-abs(lse - score)))


@compiled
def merge(v, means, lse, scores, numbers, begin, end, out):
    """Add the ends to what the stock kernel answered; a query that sees one knot gets its value.

    After the `Layout` and strides that are not read here stand those of v, out, means and lse.
    """
    heads, kv_heads, queries, value_dim, skip = numbers[0], numbers[1], numbers[2], numbers[5], numbers[8]
    real = out.dtype.type
    for row in range(begin, end):
        batch, head = row // heads, row % heads
        v_at = batch * numbers[16] + head // (heads // kv_heads) * numbers[17]
        for i in range(queries):
            knot, score, share, asked = i + 1 - skip, scores[row * queries + i], 1.0, max(i - skip, 0)
            if knot > 0:
                at = batch * numbers[25] + head * numbers[26] + asked * numbers[27]
                share = 0.0
                if score > -math.inf:
                    share, lse[at] = _merge(score, lse[at])
            to = batch * numbers[19] + head * numbers[20] + i * numbers[21]
            at = batch * numbers[22] + head * numbers[23] + asked * numbers[24]
            _mix(out, to, means, at, real(share), v, v_at + knot * numbers[18], value_dim)


@njit(nogil=True)
def _end_slopes(
    k, v, out, lse, grad, scores, grad_queries, numbers, scale, share, batch, head, weights, slopes, dq
):
    """Weights of the ends and slopes of their scores, and the gradient of queries."""
    heads, kv_heads, queries, _, head_dim, value_dim = numbers[:6]
    kv_head, skip, real = head // (heads // kv_heads), numbers[8], dq.dtype.type
    for i in range(queries):
        knot, asked, at = i + 1 - skip, i - skip, (batch * heads + head) * queries + i
        score, to = scores[at], at * head_dim
        if asked < 0:  # its one knot has all weight, whatever its score
            weights[i], slopes[i] = real(1), real(0)
            dq[to : to + head_dim] = 0
            continue
        grad_at = batch * numbers[28] + head * numbers[29] + i * numbers[30]
        v_at = batch * numbers[16] + kv_head * numbers[17] + knot * numbers[18]
        out_at = batch * numbers[19] + head * numbers[20] + i * numbers[21]
        lse_at = batch * numbers[25] + head * numbers[26] + asked * numbers[27]
        weights[i] = real(math.exp(score - lse[lse_at]))
        slopes[i] = weights[i] * _rise(v, v_at, out, out_at, grad, grad_at, value_dim) * real(scale)
        lean = slopes[i] * real(share)
        at = batch * numbers[37] + head * numbers[38] + asked * numbers[39]
        k_at = batch * numbers[13] + kv_head * numbers[14] + knot * numbers[15]
        _sum_three(dq, to, grad_queries, at, k, slopes[i] - lean, k_at, lean, k_at - numbers[15], head_dim)


@compiled
def finish(
    q, k, v, gaps, out, lse, grad, scores, grad_keys, grad_values, grad_queries,
    numbers, scale, share, begin, end, dq, dk, dv,
):  # fmt: skip
    """Turn gradients of what the stock kernel was given into those of k and v, and add what the ends give.

    After the `Layout` stand the strides of q, k, v, out, of what `merge` was given, which are not read, of
    lse, grad, grad_keys, grad_values and grad_queries; rows are those of key heads, and dq, dk and dv are in
    one piece. dq is written only where there are ends.
    """
    heads, kv_heads, queries, knots, head_dim, value_dim, _, ends, skip, rows = numbers[:10]
    real, group, zero = dk.dtype.type, heads // kv_heads, dk.dtype.type(0)
    # Of a query that is not there, slope and weight are 0.
    weights, slopes = np.zeros(queries + 1, dk.dtype), np.zeros(queries + 1, dk.dtype)
    lean = real(share)
    for row in range(begin, end):
        batch, kv_head = row // kv_heads, row % kv_heads
        for head in range(kv_head * group, (kv_head + 1) * group):
            if ends:
                _end_slopes(
                    k, v, out, lse, grad, scores, grad_queries, numbers, scale, share, batch, head, weights,
                    slopes, dq,
                )  # fmt: skip
            q_at, fresh = batch * numbers[10] + head * numbers[11], head == kv_head * group
            grad_at = batch * numbers[28] + head * numbers[29]
            keys_at, key_step = batch * numbers[31] + head * numbers[32], numbers[33]
            values_at = batch * numbers[34] + head * numbers[35]
            from_last = zero  # how far the key before leans to this one
            to_last, to_next, _ = _lean(gaps, batch * knots, 0, knots, share)
            for j in range(knots):
                next_to_this, next_to_next, _ = _lean(
                    gaps, batch * knots, min(j + 1, knots - 1), knots, share
                )
                here, there = j < rows, j + 1 < rows
                kept = 1 - to_last - to_next if here else zero
                at = keys_at + min(j, rows - 1) * key_step
                three = (at, at - key_step * (j > 0 and here), at + key_step * there)
                if not here:
                    three = (at, at, at)  # the key of the last row is that before this knot
                # Query i ends at this knot, and the next one at a knot that leans to it.
                i = j - 1 + skip
                ending = i if 0 <= i < queries else queries
                i = min(max(i, 0), queries - 1)
                own, its = slopes[ending], slopes[min(j + skip, queries)]
                _write_sum(
                    dk, (row * knots + j) * head_dim, fresh, grad_keys, three,
                    (kept, from_last, next_to_this if there else zero), q, q_at + i * numbers[12],
                    q_at + min(j + skip, queries - 1) * numbers[12], own * (1 - lean), its * lean, head_dim,
                )  # fmt: skip
                _write_scaled(
                    dv, (row * knots + j) * value_dim, fresh, grad_values,
                    values_at + min(j, rows - 1) * numbers[36], real(here), grad,
                    grad_at + i * numbers[30], weights[ending], value_dim,
                )  # fmt: skip
                from_last = to_next if here else zero
                to_last, to_next = next_to_this, next_to_next
