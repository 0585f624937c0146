"""Where tensors lie, told to compiled code as numbers: to make an array of each costs as much as a pass."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from numba import njit
from torch import Tensor

from ctsattn.ops.continuous.cpu.rows import call_at, pointer_to, take_one

# What stands in a call before the `Layout`. Of its tasks: their number, the parts that they are taken in, the
# address of a count for each part, the address of a function that numbers threads, if there is one, whether
# one has failed. Then the rows of the batch; addresses of the table, of the shares of ends, of scale and
# share as float64, and of the clock; bytes from a row of the clock to the next, and its kind.
TASKS, PARTS, COUNTS, WHO, FAILED, BATCH, TABLE, WEIGHTS, FACTORS, CLOCK, CLOCK_STEP, CLOCK_KIND, SIZES = (
    range(13)
)
_SIZES = 11  # fields of `Layout`
MOST = SIZES + _SIZES + 4 * 10  # numbers of the longest call


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


def call_of(layout: Layout, told: tuple[int, ...], *tensors: Tensor | None) -> array:
    """What a pass is told: no tasks yet, `BATCH` to `CLOCK_KIND`, and the places of tensors.

    A place is the address and the first three strides, or zeros where there is no tensor. Columns of a tensor
    are neighbours in memory.
    """
    numbers = [0, 0, 0, 0, 0, *told, *layout]
    for x in tensors:
        if x is None:
            numbers += (0, 0, 0, 0)
        else:
            numbers.append(x.data_ptr())
            numbers += x.stride()[:3]
    return array("q", numbers)


@njit(nogil=True)
def part_of(call, turn):
    """Tasks that a thread is given in a turn, from begin to before end; none where others were sooner.

    Each thread comes first to the part with its own number. Torch deals the heads of a stock kernel in the
    same way, so what one wrote is still in the cache of the one that reads it.
    """
    part = (turn + (call_at(call[WHO]) if call[WHO] else 0)) % call[PARTS]
    if take_one(pointer_to(call[COUNTS] + 8 * part)) != 0:
        return range(0)
    size = (call[TASKS] + call[PARTS] - 1) // call[PARTS]
    return range(part * size, min((part + 1) * size, call[TASKS]))


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
