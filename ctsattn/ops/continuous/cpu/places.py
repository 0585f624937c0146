"""Where tensors lie, told to compiled code as numbers: to make an array of each costs as much as a pass."""

from __future__ import annotations

from array import array

from numba import njit
from torch import Tensor

from ctsattn.ops.continuous.cpu.addresses import call_at, pointer_to, take_one

# What stands first in every call. Of its tasks: their number, the parts that they are taken in, the address
# of a count for each part and one of those done, the address of a function that numbers threads, if there is
# one, whether one has failed. Then the rows of the batch; address of the clock, bytes from a row of it to the
# next, and its kind.
TASKS, PARTS, COUNTS, WHO, FAILED, BATCH, CLOCK, CLOCK_STEP, CLOCK_KIND, HEADER = range(10)


def put(call: array, place: int, x: Tensor) -> None:
    """Tell a call where a tensor lies, and its first three strides; its columns are neighbours in memory."""
    call[place : place + 4] = array("q", (x.data_ptr(), *x.stride()[:3]))


@njit(nogil=True)
def part_of(call, turn):
    """Tasks that a thread is given in a turn, from begin to before end; none where others were sooner.

    Each thread comes first to the part with its own number.
    """
    part = (turn + (call_at(call[WHO]) if call[WHO] else 0)) % call[PARTS]
    if take_one(pointer_to(call[COUNTS] + 8 * part)) != 0:
        return range(0)
    size = (call[TASKS] + call[PARTS] - 1) // call[PARTS]
    return range(part * size, min((part + 1) * size, call[TASKS]))


@njit(nogil=True)
def done(call, part):
    """Count a part as done: an exception ends a thread of compiled code, and no caller hears of it."""
    if len(part) > 0:
        take_one(pointer_to(call[COUNTS] + 8 * call[PARTS]))
