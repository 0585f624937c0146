"""Numba: what compiled code does with addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic


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
