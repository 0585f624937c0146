"""Numba: sums and products of rows in memory that are told by their addresses, as vector instructions.

A short series has thousands of rows of a few vectors each. LLVM asks before each row whether its arrays
overlap, and numba before each call of what kind each array is; with addresses there is nothing to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from ctsattn.ops.continuous.cpu.lanes import INDEX, Shape

_FAST = ("contract",)


def _generated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiled code calls without `typing`."""
    return intrinsic(function)


@_generated
def pointer_to(typing, address):
    """A pointer for `numba.carray`."""

    def generate(context, builder, sig, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@_generated
def take_one(typing, place):
    """Add 1 to the integer at a pointer, and give what it was: no two threads are given the same."""

    def generate(context, builder, sig, args):
        counter = builder.bitcast(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.voidptr), generate


@_generated
def call_at(typing, address):
    """What the C function without arguments at an address gives, an `int`."""

    def generate(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), ir.IntType(64))

    return types.int64(types.int64), generate


@_generated
def load_at(typing, kind, address):
    """The number at an address; `kind` is any array of its dtype."""

    def generate(context, builder, sig, args):
        return builder.load(_pointer(context, builder, kind.dtype, args[1]))

    return kind.dtype(kind, types.int64), generate


@_generated
def store_at(typing, kind, address, number):
    """Write a number, narrowed to the dtype of `kind`."""

    def generate(context, builder, sig, args):
        value = context.cast(builder, args[2], number, kind.dtype)
        builder.store(value, _pointer(context, builder, kind.dtype, args[1]))
        return context.get_dummy_value()

    return types.void(kind, types.int64, number), generate


@_generated
def sum_rows(typing, kind, to, rows, factors, size):
    """Write the sum of rows times their factors, which may be in the place of one of them.

    Args:
        typing: What numba gives.
        kind: Any array of the dtype.
        to: Address to write to.
        rows: Tuple of addresses.
        factors: As many numbers.
        size: Numbers in a row.
    """

    def generate(context, builder, sig, args):
        shape = Shape(context, builder, kind.dtype)
        numbers = _numbers(context, builder, kind.dtype, factors, args[3])
        places = [builder.extract_value(args[2], i) for i in range(rows.count)]
        for loop in _loops(shape, args[4]):
            with loop as step:
                total = None
                for place, number in zip(places, numbers, strict=True):
                    term = builder.fmul(step.load(place), step.fill(number), flags=_FAST)
                    total = term if total is None else builder.fadd(total, term, flags=_FAST)
                step.store(args[1], total)
        return context.get_dummy_value()

    return types.void(kind, types.int64, rows, factors, types.int64), generate


@_generated
def product_of_rows(typing, kind, row, pair, factors, size):
    """The sum of the products of a row with the sum of two others times their factors."""

    def generate(context, builder, sig, args):
        shape = Shape(context, builder, kind.dtype)
        numbers = _numbers(context, builder, kind.dtype, factors, args[3])
        places = [builder.extract_value(args[2], i) for i in range(2)]
        zero = ir.Constant(shape.real, 0.0)
        sums = [cgutils.alloca_once_value(builder, start) for start in (shape.spread(zero), zero)]
        for loop, place in zip(_loops(shape, args[4]), sums, strict=True):
            with loop as step:
                terms = [
                    builder.fmul(step.load(at), step.fill(number), flags=_FAST)
                    for at, number in zip(places, numbers, strict=True)
                ]
                both = builder.fadd(*terms, flags=_FAST)
                term = builder.fmul(step.load(args[1]), both, flags=_FAST)
                builder.store(builder.fadd(builder.load(place), term, flags=_FAST), place)
        lanes, rest = (builder.load(place) for place in sums)
        return shape.total(rest, lanes)

    return kind.dtype(kind, types.int64, pair, factors, types.int64), generate


class _Step:
    """Where in a row a loop stands: at a vector, or at one number of what is left."""

    def __init__(self, shape: Shape, start: ir.Value, stop: ir.Value, width: int):
        self.shape, self.builder, self.wide = shape, shape.builder, width > 1
        self.loop = cgutils.for_range_slice(self.builder, start, stop, ir.Constant(INDEX, width), INDEX)

    def __enter__(self) -> _Step:
        index, _ = self.loop.__enter__()
        self.offset = self.builder.mul(index, ir.Constant(INDEX, self.shape.size))
        return self

    def __exit__(self, *error: Any) -> None:
        self.loop.__exit__(*error)

    def load(self, place: ir.Value) -> ir.Value:
        """What stands here in a row."""
        return self.builder.load(self._pointer(place), align=self.shape.size)

    def store(self, place: ir.Value, value: ir.Value) -> None:
        """Write here in a row."""
        self.builder.store(value, self._pointer(place), align=self.shape.size)

    def fill(self, number: ir.Value) -> ir.Value:
        """A number as wide as what stands here."""
        return self.shape.spread(number) if self.wide else number

    def _pointer(self, place: ir.Value) -> ir.Value:
        kind = self.shape.vector if self.wide else self.shape.real
        return self.builder.inttoptr(self.builder.add(place, self.offset), kind.as_pointer())


def _loops(shape: Shape, size: ir.Value) -> tuple[_Step, _Step]:
    """A loop over the whole vectors of a row, and one over the numbers that are left."""
    builder = shape.builder
    left = builder.srem(size, ir.Constant(INDEX, shape.width))
    whole = builder.sub(size, left)
    return _Step(shape, ir.Constant(INDEX, 0), whole, shape.width), _Step(shape, whole, size, 1)


def _numbers(
    context, builder: ir.IRBuilder, real: types.Float, given: Any, value: ir.Value
) -> list[ir.Value]:
    """The numbers of a tuple, in one dtype."""
    parts = [builder.extract_value(value, i) for i in range(len(given.types))]
    return [context.cast(builder, x, kind, real) for x, kind in zip(parts, given.types, strict=True)]


def _pointer(context, builder: ir.IRBuilder, real: types.Float, address: ir.Value) -> ir.Value:
    """The pointer to a number at an address."""
    return builder.inttoptr(address, context.get_value_type(real).as_pointer())
