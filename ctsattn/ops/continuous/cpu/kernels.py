"""Numba: entry points of the forward and the backward pass, told by the address of a call, see `tiles`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray  # pyright: ignore[reportPrivateImportUsage]

from ctsattn.ops.continuous.cpu import backward as exact_back
from ctsattn.ops.continuous.cpu import forward as exact
from ctsattn.ops.continuous.cpu import knots as first_order
from ctsattn.ops.continuous.cpu.backward import Found, Slopes
from ctsattn.ops.continuous.cpu.caching import SOURCES, compiled_for_threads
from ctsattn.ops.continuous.cpu.forward import Answer
from ctsattn.ops.continuous.cpu.places import BATCH, FAILED, PARTS, done, part_of
from ctsattn.ops.continuous.cpu.tiles import (
    DGAPS,
    DK,
    DLSE,
    DOUT,
    DQ,
    DV,
    FACTORS,
    INVERSE,
    LIMITS,
    LSE,
    MOST,
    OUT,
    PEAK,
    SPLITS,
    WITH_GAPS,
    flat_at,
    gaps_of,
    inputs_of,
    sizes_of,
    strided_at,
    up,
)

EXACT, FIRST_ORDER = range(2)  # how an interval is integrated


@cache
def kernels_of(dtype: torch.dtype, rule: int = EXACT) -> tuple[Any, Any]:
    """The kernels `forward` and `backward` for a dtype and a rule, compiled when first asked for."""
    return _entries(SOURCES, {torch.float32: np.float32, torch.float64: np.float64}[dtype], rule)


def _entries(sources: str, real: type, rule: int) -> tuple[Any, Any]:
    """The compiled entry points for a dtype and a rule, see `caching`; numba drops the other branch."""

    @compiled_for_threads
    def forward(place):
        """Answer tiles, counted over batch, heads and tiles of a head."""
        call = carray(place, (MOST,), np.int64)
        sizes, limits = sizes_of(call), call[LIMITS] != 0
        gaps, factors = gaps_of(call, sizes.knots, real), flat_at(call, FACTORS, 2, np.float64)
        tables = np.empty(3 * len(gaps) if rule == FIRST_ORDER else 0, real)
        if rule == FIRST_ORDER:
            first_order.write_tables(gaps, sizes.knots, factors[1], tables)
        inputs = inputs_of(call, sizes, gaps, tables, real)
        queries = call[BATCH] * sizes.heads * sizes.queries
        answer = Answer(
            flat_at(call, OUT, queries * sizes.value_dim, real),
            flat_at(call, LSE, queries if call[LSE] else 0, real),
            flat_at(call, PEAK, queries, real),
            flat_at(call, INVERSE, queries, real),
        )
        for turn in range(call[PARTS] if sources and call[FAILED] == 0 else 0):
            part = part_of(call, turn)
            if rule == EXACT:
                fine = exact.answer_tiles(inputs, sizes, factors, part, answer, limits)
            else:
                fine = first_order.answer_tiles(inputs, sizes, factors, part, answer, limits)
            if not fine:
                call[FAILED] = 1
            done(call, part)

    @compiled_for_threads
    def backward(place):
        """Do tasks, counted over batch, key heads and splits of the tiles of a key head."""
        call = carray(place, (MOST,), np.int64)
        sizes = sizes_of(call)
        gaps, factors = gaps_of(call, sizes.knots, real), flat_at(call, FACTORS, 2, np.float64)
        tables = np.empty(3 * len(gaps) if rule == FIRST_ORDER else 0, real)
        if rule == FIRST_ORDER:
            first_order.write_tables(gaps, sizes.knots, factors[1], tables)
        inputs = inputs_of(call, sizes, gaps, tables, real)
        queries, knots = call[BATCH] * sizes.heads * sizes.queries, call[BATCH] * sizes.kv_heads * sizes.knots
        knots *= call[SPLITS]
        slopes = Slopes(
            strided_at(call, OUT, sizes.heads, sizes.queries, sizes.value_dim, real),
            strided_at(call, DOUT, sizes.heads, sizes.queries, sizes.value_dim, real),
            flat_at(call, DLSE, queries if call[DLSE] else 0, real),
            flat_at(call, PEAK, queries, real),
            flat_at(call, INVERSE, queries, real),
        )
        with_gaps, splits = call[WITH_GAPS] != 0, call[SPLITS]
        wanted = with_gaps, call[LIMITS] != 0
        found = Found(
            flat_at(call, DQ, queries * sizes.head_dim, real),
            flat_at(call, DK, knots * up(sizes.head_dim, sizes.strip), real),
            flat_at(call, DV, knots * up(sizes.value_dim, sizes.strip), real),
            flat_at(call, DGAPS, knots if with_gaps else 0, real),
        )
        for turn in range(call[PARTS] if sources else 0):
            part = part_of(call, turn)
            if rule == EXACT:
                exact_back.differentiate_tiles(inputs, slopes, sizes, factors, splits, part, found, *wanted)
            else:
                first_order.differentiate_tiles(inputs, slopes, sizes, factors, splits, part, found, *wanted)
            done(call, part)

    return forward, backward
