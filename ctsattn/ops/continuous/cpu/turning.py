"""Numba: tiles turned from rows to columns and back, by squares of vectors in registers."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core.extending import intrinsic

from ctsattn.ops.continuous.cpu.lanes import INDEX, VECTOR_BYTES, Array, Lanes, Shape


@intrinsic
def _turn_square(typing, out, out_at, out_row, x, x_at, x_row, factors, factors_at):
    """Write a square of one vector's width turned, its columns times factors."""

    def generate(context, builder, sig, args):
        shape = Shape(context, builder, out.dtype)
        outs, xs, columns = (Array(shape, context, sig.args[i], args[i], args[i + 1]) for i in (0, 3, 6))
        factor = columns.load(ir.Constant(INDEX, 0))
        counted = [ir.Constant(INDEX, row) for row in range(shape.width)]
        rows = [xs.load(builder.mul(args[5], row)) * factor for row in counted]
        for row, turned in zip(counted, _turned(shape, [x.value for x in rows]), strict=True):
            outs.store(builder.mul(args[2], row), Lanes(shape, turned))
        return context.get_dummy_value()

    n = types.intp
    return types.void(out, n, n, x, n, n, factors, n), generate


def _turned(shape: Shape, rows: list[ir.Value]) -> list[ir.Value]:
    """A square of rows turned: for each bit, what has it in the row and not in the lane changes places."""
    width, step = shape.width, 1
    lanes, kind = range(width), ir.VectorType(ir.IntType(32), width)
    while step < width:
        upper = [width + lane - step if lane & step else lane for lane in lanes]
        lower = [width + lane if lane & step else lane + step for lane in lanes]
        for row in range(width):
            if not row & step:
                pair = rows[row], rows[row | step]
                rows[row] = shape.builder.shuffle_vector(*pair, ir.Constant(kind, upper))
                rows[row | step] = shape.builder.shuffle_vector(*pair, ir.Constant(kind, lower))
        step *= 2
    return rows


@njit(nogil=True)
def turn(out, out_at, out_row, x, x_at, x_row, rows, columns, factors):
    """Write `[rows, columns]` as `[columns, rows]`, each column times its factor."""
    width = VECTOR_BYTES // out.itemsize
    whole_rows, whole_columns = rows - rows % width, columns - columns % width
    for r in range(0, whole_rows, width):
        for c in range(0, whole_columns, width):
            to, at = out_at + c * out_row + r, x_at + r * x_row + c
            # An intrinsic gets numba's context by itself.
            _turn_square(out, to, out_row, x, at, x_row, factors, c)  # pyright: ignore[reportCallIssue]
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            out[out_at + c * out_row + r] = x[x_at + r * x_row + c] * factors[c]
