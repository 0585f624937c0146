"""Numba: what `first_order` does around a stock kernel, in one pass over memory before it and two after it.

A pass is told one address, of a `Call`, and may be called by several threads at once, which deal its tasks
among themselves. That is what a thread of OpenMP can be given, and torch's own are awake right after a stock
kernel: see `workers`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, njit  # pyright: ignore[reportPrivateImportUsage]

from ctsattn.ops.continuous.cpu.caching import SOURCES, compiled_for_threads
from ctsattn.ops.continuous.cpu.clock import write_row
from ctsattn.ops.continuous.cpu.ending import add_keys, add_values, merge_head, slope_ends
from ctsattn.ops.continuous.cpu.places import (
    BATCH,
    CLOCK,
    CLOCK_KIND,
    CLOCK_STEP,
    FACTORS,
    FAILED,
    MOST,
    PARTS,
    SIZES,
    TABLE,
    WEIGHTS,
    is_placed,
    layout_of,
    part_of,
)
from ctsattn.ops.continuous.cpu.rows import pointer_to
from ctsattn.ops.continuous.cpu.smoothing import lean_back, prepare_row, sum_values

# What a clock may hold: gaps in the dtype of the keys, or times.
GAPS, FLOAT64, FLOAT32, INT64 = range(4)
KIND_OF_TIMES = {torch.float64: FLOAT64, torch.float32: FLOAT32, torch.int64: INT64}


@njit(nogil=True)
def opened(place, real):
    """The call at a place; the table, and the factors `scale` and `share`."""
    call = carray(place, (MOST,), np.int64)
    table = carray(pointer_to(call[TABLE]), (call[BATCH], 3, layout_of(call[SIZES:]).knots), real)
    factors = carray(pointer_to(call[FACTORS]), (2,), np.float64)
    return call, table, factors[0], factors[1]


@njit(nogil=True)
def write_gaps(call, batch, gaps):
    """Write the gaps of a row; whether its clock is one."""
    kind, row, sizes = call[CLOCK_KIND], pointer_to(call[CLOCK] + batch * call[CLOCK_STEP]), gaps.shape
    if kind == FLOAT64:
        return write_row(carray(row, sizes, np.float64), gaps)
    if kind == FLOAT32:
        return write_row(carray(row, sizes, np.float32), gaps)
    if kind == INT64:
        return write_row(carray(row, sizes, np.int64), gaps)
    gaps[:] = carray(row, sizes, gaps.dtype)
    return True


@cache
def passes_of(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """The passes `prepare`, `merge` and `finish` for tensors of a dtype, compiled when first asked for."""
    return _entries(SOURCES, {torch.float32: np.float32, torch.float64: np.float64}[dtype])


def _entries(sources: str, real: type) -> tuple[Any, Any, Any]:
    """The compiled entry points for a dtype, see `caching`."""

    @compiled_for_threads
    def prepare(place):
        """Weigh the knots of rows of the batch, and write keys and values for the stock kernel.

        It fails where a clock is none, or where several knots are seen and no time between them. The places
        are those of k, v, and of the keys, values and bias of the stock kernel.
        """
        call, table, _, share = opened(place, real)
        layout, gaps = layout_of(call[SIZES:]), np.empty(table.shape[2], real)
        for turn in range(call[PARTS] if sources else 0):
            for batch in part_of(call, turn):
                if not (
                    write_gaps(call, batch, gaps)
                    and prepare_row(call[SIZES:], layout, table, gaps, share, batch)
                ):
                    call[FAILED] = 1

    @compiled_for_threads
    def merge(place):
        """Add the ends to what the stock kernel answered for heads, and write their shares.

        The places are those of k, v, q, and of the outputs and logarithms to be changed.
        """
        call, table, scale, share = opened(place, real)
        layout = layout_of(call[SIZES:])
        weights = carray(pointer_to(call[WEIGHTS]), (call[BATCH] * layout.heads * layout.queries,), real)
        for turn in range(call[PARTS] if sources else 0):
            for row in part_of(call, turn):
                batch, head = row // layout.heads, row % layout.heads
                merge_head(table, call[SIZES:], layout, weights, scale, share, batch, head)

    @compiled_for_threads
    def finish(place):
        """Turn gradients of what the stock kernel was given into those of k and v; add what the ends give.

        The places are those of k, v, q, out, its gradient, those of the stock kernel's keys, values and
        queries, dk and dv. The gradient of queries is changed in place. A task is a key head.
        """
        call, table, scale, share = opened(place, real)
        numbers = call[SIZES:]
        layout = layout_of(numbers)
        weights = carray(pointer_to(call[WEIGHTS]), (call[BATCH] * layout.heads * layout.queries,), real)
        leans = (real(scale * (1 - share)), real(scale * share))
        group = layout.heads // layout.kv_heads
        slopes = np.zeros(layout.queries + 1, real)  # of a query that is not there, it is 0
        saved = np.empty((2, layout.head_dim), real)
        for turn in range(call[PARTS] if sources else 0):
            for row in part_of(call, turn):
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
