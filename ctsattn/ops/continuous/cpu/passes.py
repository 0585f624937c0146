"""Numba: what `first_order` does around a stock kernel, in one pass over memory before it and two after it.

What a function is told to do is a range of tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctsattn.ops.continuous.cpu.caching import SOURCES, compiled
from ctsattn.ops.continuous.cpu.ending import add_keys, add_values, merge_head, slope_ends
from ctsattn.ops.continuous.cpu.places import is_placed, layout_of
from ctsattn.ops.continuous.cpu.smoothing import lean_back, prepare_row, sum_values


def _entries(sources: str) -> tuple[Callable[..., None], ...]:
    """The compiled entry points, see `caching`."""

    @compiled
    def prepare(clock, are_times, numbers, table, share, begin, end):
        """Weigh the knots of rows of the batch, and write keys and values for the stock kernel.

        Whether the clock is one, with time to integrate over where several knots are seen. `clock` holds
        times, or gaps in the dtype of `table`. After the `Layout` stand the places of k, v, and of the keys,
        values and bias of the stock kernel.
        """
        ordinary = sources != ""
        layout, gaps = layout_of(numbers), np.empty(table.shape[2], table.dtype)
        for batch in range(begin, end):
            ordinary &= prepare_row(clock, are_times, numbers, layout, table, gaps, share, batch)
        return ordinary

    @compiled
    def merge(numbers, table, weights, scale, share, begin, end):
        """Add the ends to what the stock kernel answered for heads, and write their shares.

        After the `Layout` stand the places of k, v, q, and of the outputs and logarithms to be changed.
        """
        layout = layout_of(numbers)
        for row in range(begin, end if sources != "" else 0):
            batch, head = row // layout.heads, row % layout.heads
            merge_head(table, numbers, layout, weights, scale, share, batch, head)

    @compiled
    def finish(numbers, table, weights, scale, share, begin, end):
        """Turn gradients of what the stock kernel was given into those of k and v; add what the ends give.

        After the `Layout` stand the places of k, v, q, out, its gradient, those of the stock kernel's keys,
        values and queries, dk and dv. The gradient of queries is changed in place. Rows are those of key
        heads.
        """
        layout, real = layout_of(numbers), table.dtype.type
        leans = (real(scale * (1 - share)), real(scale * share))
        group = layout.heads // layout.kv_heads
        slopes = np.zeros(layout.queries + 1, table.dtype)  # of a query that is not there, it is 0
        saved = np.empty((2, layout.head_dim), table.dtype)
        for row in range(begin, end if sources != "" else 0):
            batch, kv_head = row // layout.kv_heads, row % layout.kv_heads
            for head in range(kv_head * group, (kv_head + 1) * group):
                if layout.ends:
                    slope_ends(table, numbers, layout, weights, slopes, leans, batch, head)
                    add_keys(table, numbers, layout, slopes, leans, batch, head)
                    add_values(table, numbers, layout, weights, batch, head)
                else:
                    lean_back(table, numbers, layout, saved, batch, head)
                    if is_placed(numbers, 9):
                        sum_values(table, numbers, layout, batch, head)

    return prepare, merge, finish


prepare, merge, finish = _entries(SOURCES)
