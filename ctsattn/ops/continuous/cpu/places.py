"""Where tensors lie, told to compiled code as numbers: to make an array of each costs as much as a pass."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit
from torch import Tensor

_SIZES = 11  # fields of `Layout`


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
def layout_of(numbers):
    """The sizes among the numbers."""
    n = numbers
    return Layout(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10])


@njit(nogil=True)
def is_placed(numbers, tensor):
    """Whether there is such a tensor."""
    return numbers[_SIZES + 4 * tensor] != 0


@njit(nogil=True)
def rows_of(numbers, tensor, batch, head):
    """Address of the first row of a head of a tensor, and bytes from each row to the next."""
    n, size = _SIZES + 4 * tensor, numbers[_SIZES - 1]
    return numbers[n] + size * (batch * numbers[n + 1] + head * numbers[n + 2]), size * numbers[n + 3]
