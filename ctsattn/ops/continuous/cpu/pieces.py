"""Numba: weights of straight pieces of the score, and their derivative. Maths in `api.py` and `phi.py`.

A lane is a query and a row is a knot, so that the neighbour of a score is the row before it and stays in a
register. Scores are in units of ln 2; weights are four times those of the definition, which their sum divides
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from ctsattn.ops.continuous.cpu.lanes import INDEX, Array, Lanes, Shape
from ctsattn.ops.continuous.reference import MAX_EXPONENT

LN2 = math.log(2.0)
# Below the radius (of δ / ln 2) a series takes over, by the size of a float in bytes.
RADIUS = {4: 1.6, 8: 1.2}
TERMS = {4: 7, 8: 14}


class Shares(NamedTuple):
    """Four times the shares of a piece of length 1, and four times `(right - left) / δ`."""

    left: Lanes
    right: Lanes
    curve: Lanes


def curvature_series(terms: int) -> list[float]:
    r"""Coefficients in $x^2$ of $4 (1 - \tanh(h)/h) / \delta^2$, where $\delta = 2h = x \ln 2$."""
    tanh = [Fraction(1)]
    for n in range(1, terms + 1):
        tanh.append(-sum((tanh[i] * tanh[n - 1 - i] for i in range(n)), Fraction(0)) / (2 * n + 1))
    return [float(-4 * tanh[n] / 4**n) * LN2 ** (2 * n - 2) for n in range(1, terms + 1)]


def shares(e0: Lanes, e1: Lanes, x: Lanes) -> Shares:
    r"""Shares of a piece between knots with exponentials e0 and e1, whose score rises by $\delta = x \ln 2$.

    Away from 0 they are divided differences. Near 0 these cancel; there $\text{right} \pm \text{left}$ follow
    from $e_0 + e_1$ and the series of $(1 - \tanh(h)/h) / \delta^2$, $h = \delta/2$, where nothing cancels.
    x must be the difference of the very numbers whose exponentials are given: their rounding then moves the
    scores a little, while a difference of other numbers would make divided differences of rounding errors.
    """
    shape = e0.shape
    total, square = e0 + e1, x * x
    near = square < RADIUS[shape.size] ** 2
    curve = total * square.polynomial(curvature_series(TERMS[shape.size]))
    tilt = curve * x * (LN2 / 2)
    mass = total - curve * square * (LN2**2 / 4)
    slope = (2 / LN2) / shape.where(near, shape.lanes(1.0), x)
    mass_away = (e1 - e0) * slope
    left_away, right_away = (mass_away - e0 * 2.0) * slope, (e1 * 2.0 - mass_away) * slope
    return Shares(
        shape.where(near, mass - tilt, left_away),
        shape.where(near, mass + tilt, right_away),
        shape.where(near, curve, (total - mass_away) * slope * slope),
    )


class Pieces:
    """The pieces between some rows of scores, for one vector of lanes, in a function that is being generated.

    Args:
        shape: Kind of the lanes.
        gaps: Gap before each row's knot.
        start: Knot of row 0.
        rows: Number of rows.
        first: First knot that each lane sees.
        last: Last knot that each lane sees.
    """

    def __init__(
        self, shape: Shape, gaps: Array, start: ir.Value, rows: ir.Value, first: ir.Value, last: ir.Value
    ):
        self.shape, self.gaps, self.start, self.rows = shape, gaps, start, rows
        self.first, self.last = first, last

    def knot(self, row: ir.Value) -> ir.Value:
        """The knot of a row."""
        return self.shape.builder.add(self.start, row)

    def length(self, row: ir.Value) -> Lanes:
        """Length of the piece that ends at a row; 0 in lanes that do not see it."""
        return self.only_seen(row, Lanes(self.shape, self.shape.spread(self.gaps.scalar(row))))

    def length_after(self, row: ir.Value) -> Lanes:
        """The same of a row that need not be there, if then no lane sees its piece."""
        builder = self.shape.builder
        there = builder.select(builder.icmp_signed("<", row, self.rows), row, ir.Constant(INDEX, 0))
        return self.only_seen(row, Lanes(self.shape, self.shape.spread(self.gaps.scalar(there))))

    def only_seen(self, row: ir.Value, lanes: Lanes) -> Lanes:
        """The same with 0 in lanes that do not see the piece that ends at a row."""
        builder = self.shape.builder
        knot = self.shape.spread(builder.trunc(self.knot(row), ir.IntType(32)))
        after_first = builder.icmp_signed("<", self.first, knot)
        up_to_last = builder.icmp_signed("<=", knot, self.last)
        return self.shape.where(builder.and_(after_first, up_to_last), lanes, self.shape.lanes(0.0))


def over_lanes(body: Callable[..., None]) -> Callable[..., None]:
    """An intrinsic that calls `body(shape, arrays, pieces, lane, at, rows)` for each vector of lanes.

    The numba function has the arguments (rows, lanes, gaps, gap_at, start, firsts, lasts, *arrays): the
    number of rows; of lanes; the gaps, and which of them belongs to row 0; the knot of row 0; the first and
    last knot that each lane sees; and flat arrays.
    """

    @intrinsic
    def over_lanes(typing, rows, lanes, gaps, gap_at, start, firsts, lasts, *arrays):
        def generate(context, builder, sig, args):
            rows, lanes, _, _, start = args[:5]
            shape = Shape(context, builder, gaps.dtype)
            lengths = Array(shape, context, sig.args[2], args[2], args[3])
            limits = [Array(shape, context, sig.args[i], args[i]) for i in (5, 6)]
            values = cgutils.unpack_tuple(builder, args[7])
            flat = [Array(shape, context, kind, x) for kind, x in zip(sig.args[7], values, strict=True)]
            zero, width = ir.Constant(INDEX, 0), ir.Constant(INDEX, shape.width)
            with cgutils.for_range_slice(builder, zero, lanes, width) as (lane, _):

                def at(row):
                    return builder.add(builder.mul(row, lanes), lane)

                pieces = Pieces(shape, lengths, start, rows, *(limit.vector(lane) for limit in limits))
                body(shape, flat, pieces, lane, at, rows)
            return context.get_dummy_value()

        n, rest = types.intp, arrays[0] if isinstance(arrays[0], types.BaseTuple) else types.Tuple(arrays)
        return types.void(n, n, gaps, n, n, firsts, lasts, rest), generate

    return over_lanes


def _raise_peak(shape, arrays, pieces, lane, at, rows):
    """Raise each lane's peak to the scores at both ends of each piece that counts and has length."""
    scores, peaks = arrays
    peak, above = shape.variable(peaks.load(lane)), shape.variable(scores.load(lane))
    with cgutils.for_range(shape.builder, rows, start=ir.Constant(INDEX, 1)) as loop:
        below = scores.load(at(loop.index))
        matters = shape.lanes(0.0) < pieces.length(loop.index)
        peak.set(shape.where(matters, peak.get().max(above.get().max(below)), peak.get()))
        above.set(below)
    peaks.store(lane, peak.get())


def relative(scores: Lanes, peak: Lanes) -> Lanes:
    """Scores less the peak. What stands above the peak has no weight; it is held where it stays finite."""
    return (scores - peak).min(MAX_EXPONENT / LN2)


def _rescale(shape, arrays, pieces, lane, at, rows):
    """Scale sums `[rows, lanes]` and totals from an old peak to a new one."""
    sums, totals, olds, peaks = arrays
    factor = (olds.load(lane) - peaks.load(lane)).exp2()
    totals.store(lane, totals.load(lane) * factor)
    with cgutils.for_range(shape.builder, rows) as loop:
        sums.store(at(loop.index), sums.load(at(loop.index)) * factor)


def _weigh(shape, arrays, pieces, lane, at, rows):
    """Turn scores into weights, less the peak, and add their sum to a total."""
    scores, peaks, totals = arrays
    peak, total = peaks.load(lane), shape.variable(0.0)
    first = relative(scores.load(lane), peak)
    above, e_above, share = shape.variable(first), shape.variable(first.exp2()), shape.variable(0.0)
    with cgutils.for_range(shape.builder, rows, start=ir.Constant(INDEX, 1)) as loop:
        below = relative(scores.load(at(loop.index)), peak)
        e_below = below.exp2()
        piece, length = shares(e_above.get(), e_below, below - above.get()), pieces.length(loop.index)
        weight = share.get() + length * piece.left
        scores.store(at(shape.builder.sub(loop.index, ir.Constant(INDEX, 1))), weight)
        total.set(total.get() + weight)
        share.set(length * piece.right)
        above.set(below)
        e_above.set(e_below)
    scores.store(at(shape.builder.sub(rows, ir.Constant(INDEX, 1))), share.get())
    totals.store(lane, totals.load(lane) + (total.get() + share.get()))


def _differentiate(shape, arrays, pieces, lane, at, rows, with_gaps):
    """Turn scores into weights that sum to 1, and derivatives of the weights into those of the scores.

    `inverses` are 1 over the sums of weights; `means` are what is subtracted from the derivatives of weights.
    """
    scores, slopes, peaks, inverses, means, *gap_slopes = arrays
    one, peak, inverse = ir.Constant(INDEX, 1), peaks.load(lane), inverses.load(lane)
    mean, first = means.load(lane), relative(scores.load(lane), peak)
    above, e_above = shape.variable(first), shape.variable(first.exp2())
    g_above, share, slope = shape.variable(slopes.load(lane) - mean), shape.variable(0.0), shape.variable(0.0)
    with cgutils.for_range(shape.builder, rows, start=one) as loop:
        below = relative(scores.load(at(loop.index)), peak)
        g_below, e_below = slopes.load(at(loop.index)) - mean, below.exp2()
        piece, length = shares(e_above.get(), e_below, below - above.get()), pieces.length(loop.index)
        length = length * inverse
        weight, bend = share.get() + length * piece.left, length * piece.curve * (g_below - g_above.get())
        before = at(shape.builder.sub(loop.index, one))
        scores.store(before, weight)
        slopes.store(before, weight * g_above.get() + slope.get() + bend)
        if with_gaps:
            seen = pieces.only_seen(loop.index, inverse)
            by_length = seen * (piece.left * g_above.get() + piece.right * g_below)
            gap_slopes[0].add(pieces.knot(loop.index), by_length)
        share.set(length * piece.right)
        slope.set(shape.lanes(0.0) - bend)
        above.set(below)
        e_above.set(e_below)
        g_above.set(g_below)
    end = at(shape.builder.sub(rows, one))
    scores.store(end, share.get())
    slopes.store(end, share.get() * g_above.get() + slope.get())


raise_peak, rescale, weigh = over_lanes(_raise_peak), over_lanes(_rescale), over_lanes(_weigh)
differentiate = over_lanes(partial(_differentiate, with_gaps=False))
differentiate_with_gaps = over_lanes(partial(_differentiate, with_gaps=True))
