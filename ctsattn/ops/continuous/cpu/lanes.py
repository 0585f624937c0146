"""Numba: arithmetic on vectors of lanes, written as LLVM instructions.

LLVM finds few vectors by itself in loops over several rows of arrays; here nothing is left to find.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array
from numba.np.numpy_support import as_dtype

VECTOR_BYTES = 64 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 32
INDEX = ir.IntType(64)
_EXP2_TERMS = {4: 8, 8: 14}


class Lanes:
    """A vector in a function that is being generated; plain numbers join in as constants."""

    def __init__(self, shape: Shape, value: ir.Value):
        self.shape, self.value = shape, value

    def _apply(self, instruction: str, other: Lanes | float, swap: bool = False) -> Lanes:
        pair = (self.value, self.shape.lanes(other).value)
        emit = getattr(self.shape.builder, instruction)
        return Lanes(self.shape, emit(*(pair[::-1] if swap else pair), flags=("contract",)))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._apply("fadd", other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._apply("fsub", other)

    def __rsub__(self, other: float) -> Lanes:
        return self._apply("fsub", other, swap=True)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._apply("fmul", other)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._apply("fdiv", other)

    def __rtruediv__(self, other: float) -> Lanes:
        return self._apply("fdiv", other, swap=True)

    def __lt__(self, other: Lanes | float) -> ir.Value:
        return self.shape.builder.fcmp_ordered("<", self.value, self.shape.lanes(other).value)

    def __ge__(self, other: Lanes | float) -> ir.Value:
        return self.shape.builder.fcmp_ordered(">=", self.value, self.shape.lanes(other).value)

    def max(self, other: Lanes) -> Lanes:
        """The larger of two; this one where the other is NaN."""
        return self.shape.where(self < other, other, self)

    def min(self, other: Lanes | float) -> Lanes:
        """The smaller of two; this one where the other is NaN."""
        other = self.shape.lanes(other)
        return self.shape.where(other < self, other, self)

    def polynomial(self, coefficients: list[float]) -> Lanes:
        """The polynomial with these coefficients, from the constant upwards."""
        total = self.shape.lanes(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = total * self + coefficient
        return total

    def exp2(self) -> Lanes:
        """2^x for x up to the largest exponent of a float; 0 below the smallest. NaN stays NaN."""
        shape, builder = self.shape, self.shape.builder
        mantissa, lowest = (23, -126.0) if shape.size == 4 else (52, -1022.0)
        coefficients = [math.log(2.0) ** n / math.factorial(n) for n in range(_EXP2_TERMS[shape.size])]
        # Added to a number it rounds it to an integer, which then stands in the lowest bits.
        rounder = 1.5 * 2.0**mantissa
        small = self < lowest
        held = shape.where(small, shape.lanes(lowest), self)
        rounded = held + rounder
        value = (held - (rounded - rounder)).polynomial(coefficients)
        bits = ir.VectorType(ir.IntType(8 * shape.size), shape.width)
        power = builder.shl(builder.bitcast(rounded.value, bits), ir.Constant(bits, [mantissa] * shape.width))
        total = builder.bitcast(builder.add(builder.bitcast(value.value, bits), power), shape.vector)
        return shape.where(small, shape.lanes(0.0), Lanes(shape, total))


class Shape:
    """Where lanes are generated: the builder, the type of a lane, and how many there are."""

    def __init__(self, context, builder: ir.IRBuilder, real: types.Float):
        self.builder, self.size = builder, real.bitwidth // 8
        self.width = VECTOR_BYTES // self.size
        self.real = context.get_value_type(real)
        self.vector = ir.VectorType(self.real, self.width)

    def lanes(self, number: Lanes | float) -> Lanes:
        """A constant in all lanes."""
        if isinstance(number, Lanes):
            return number
        return Lanes(self, ir.Constant(self.vector, [ir.Constant(self.real, number)] * self.width))

    def spread(self, scalar: ir.Value) -> ir.Value:
        """A scalar in all lanes."""
        vector = ir.VectorType(scalar.type, self.width)
        undefined, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(index, 0))
        to_all = ir.Constant(ir.VectorType(index, self.width), [0] * self.width)
        return self.builder.shuffle_vector(first, undefined, to_all)

    def total(self, start: ir.Value, lanes: ir.Value) -> ir.Value:
        """A scalar plus the sum of lanes."""
        name = f"llvm.vector.reduce.fadd.v{self.width}f{8 * self.size}"
        kind = ir.FunctionType(self.real, [self.real, self.vector])
        reduce = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(reduce, [start, lanes], fastmath=("reassoc",))

    def where(self, condition: ir.Value, yes: Lanes, no: Lanes) -> Lanes:
        """One or the other, by lane."""
        return Lanes(self, self.builder.select(condition, yes.value, no.value))

    def variable(self, start: Lanes | float) -> Variable:
        """A variable of lanes."""
        place = cgutils.alloca_once(self.builder, self.vector)
        variable = Variable(self, place)
        variable.set(self.lanes(start))
        return variable


class Variable(NamedTuple):
    """Lanes that change in a loop; LLVM keeps them in registers."""

    shape: Shape
    place: ir.Value

    def get(self) -> Lanes:
        """Their value now."""
        return Lanes(self.shape, self.shape.builder.load(self.place))

    def set(self, value: Lanes) -> None:
        """Change them."""
        self.shape.builder.store(value.value, self.place)


class Array:
    """A flat numba array in a function that is being generated."""

    def __init__(
        self, shape: Shape, context, array_type: types.Array, array: ir.Value, offset: ir.Value | None = None
    ):
        self.shape, builder = shape, shape.builder
        self.base = make_array(array_type)(context, builder, array).data
        self.element = context.get_value_type(array_type.dtype)
        if offset is not None:
            self.base = builder.gep(self.base, [offset])
        self.size = as_dtype(array_type.dtype).itemsize

    def scalar(self, index: ir.Value) -> ir.Value:
        """One element."""
        return self.shape.builder.load(self.shape.builder.gep(self.base, [index]))

    def add(self, index: ir.Value, lanes: Lanes) -> None:
        """Add the sum of lanes to one element."""
        shape, builder = self.shape, self.shape.builder
        total = shape.total(self.scalar(index), lanes.value)
        builder.store(total, builder.gep(self.base, [index]))

    def vector(self, index: ir.Value) -> ir.Value:
        """As many elements as there are lanes, from one on."""
        pointer = self._pointer(index)
        return self.shape.builder.load(pointer, align=self.size)

    def load(self, index: ir.Value) -> Lanes:
        """Lanes of the type of the shape."""
        return Lanes(self.shape, self.vector(index))

    def store(self, index: ir.Value, value: Lanes) -> None:
        """Write lanes, from one element on."""
        self.shape.builder.store(value.value, self._pointer(index), align=self.size)

    def _pointer(self, index: ir.Value) -> ir.Value:
        pointer = self.shape.builder.gep(self.base, [index])
        return self.shape.builder.bitcast(pointer, ir.VectorType(self.element, self.shape.width).as_pointer())
