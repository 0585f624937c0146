"""Numba: matrix products of small tiles, with a block of sums in registers."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.extending import intrinsic

from ctsattn.ops.continuous.cpu.lanes import INDEX, VECTOR_BYTES, Array, Lanes, Shape

# With AVX-512, 8 × 2 vectors of sums, 2 factors and a scalar fill 19 of 32 registers; else 4 × 2, 11 of 16.
ROWS, VECTORS = (8, 2) if VECTOR_BYTES == 64 else (4, 2)


def strip_lanes(itemsize: int) -> int:
    """Lanes of a strip; a tile has a multiple of it."""
    return VECTORS * VECTOR_BYTES // itemsize


def _block(rows: int, fresh: bool) -> Callable[..., None]:
    """Generate `out[r, i] += Σ_t b[r, t] x[t, i]` for some rows and one strip of lanes; `=` if fresh.

    The sum is taken before it is added, so that errors grow with the number of blocks and not of terms.
    """

    @intrinsic
    def block(typing, out, out_at, out_row, b, b_at, b_row, b_term, x, x_at, x_row, terms):
        n = types.intp

        def generate(context, builder, sig, args):
            _, out_at, out_row, _, b_at, b_row, b_term, _, x_at, x_row, terms = args
            shape = Shape(context, builder, out.dtype)
            outs, bs, xs = (
                Array(shape, context, sig.args[i], args[i], offset)
                for i, offset in ((0, out_at), (3, b_at), (7, x_at))
            )
            steps = [ir.Constant(INDEX, i * shape.width) for i in range(VECTORS)]
            places = [
                builder.add(builder.mul(out_row, ir.Constant(INDEX, row)), step)
                for row in range(rows)
                for step in steps
            ]
            sums = [shape.variable(0.0) for _ in places]
            with cgutils.for_range(builder, terms) as loop:
                x_start, b_start = builder.mul(loop.index, x_row), builder.mul(loop.index, b_term)
                factors = [xs.load(builder.add(x_start, step)) for step in steps]
                for row in range(rows):
                    place = builder.add(b_start, builder.mul(b_row, ir.Constant(INDEX, row)))
                    scalar = Lanes(shape, shape.spread(bs.scalar(place)))
                    for i, factor in enumerate(factors):
                        total = sums[row * VECTORS + i]
                        total.set(total.get() + scalar * factor)
            for place, total in zip(places, sums, strict=True):
                outs.store(place, total.get() if fresh else outs.load(place) + total.get())
            return context.get_dummy_value()

        return types.void(out, n, n, b, n, n, n, x, n, n, n), generate

    return block


def _product(fresh: bool) -> Callable[..., None]:
    """The product over all rows and lanes."""
    full, thin = _block(ROWS, fresh), _block(1, fresh)

    @njit(nogil=True)
    def product(out, out_at, out_row, b, b_at, b_row, b_term, x, x_at, x_row, rows, terms, lanes):
        whole = rows - rows % ROWS
        for i in range(0, lanes, VECTORS * VECTOR_BYTES // out.itemsize):
            o, s = out_at + i, x_at + i
            for r in range(0, whole, ROWS):
                full(out, o + r * out_row, out_row, b, b_at + r * b_row, b_row, b_term, x, s, x_row, terms)
            for r in range(whole, rows):
                thin(out, o + r * out_row, out_row, b, b_at + r * b_row, b_row, b_term, x, s, x_row, terms)

    return product


multiply = _product(fresh=True)
multiply_add = _product(fresh=False)
