"""Two histories become one: new rows of known series, and new series."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ctsattn.data.clock import Ticks
from ctsattn.data.series import Ragged, SeriesStore


def merge_stores(old: SeriesStore, new: SeriesStore) -> SeriesStore:
    """Add the observations of `new` to those of `old`; where both have one the new one holds.

    Args:
        old: Series known so far.
        new: Series read by the same schema.

    Returns:
        Series of both: those of `old` first, then the new ones, in order of first appearance.
    """
    place = np.zeros(new.num_series, np.int64)
    ids = old.source.ids
    if old.source.columns.id is not None:
        place = old.source.positions(new.source.ids)
        fresh = place < 0
        place[fresh] = len(ids) + np.arange(fresh.sum())
        ids = ids if not fresh.any() else pd.Index([*ids, *new.source.ids[fresh]])
    count = len(ids)
    source = replace(old.source, ids=ids)
    static = np.zeros((count, old.static.shape[1]), old.static.dtype)
    codes = np.zeros((count, old.static_codes.shape[1]), old.static_codes.dtype)
    for table, before, after in (
        (static, old.static, new.static),
        (codes, old.static_codes, new.static_codes),
    ):
        table[: old.num_series] = before
        table[place] = np.where(after != 0, after, table[place])
    return replace(
        old,
        source=source,
        past=_merge(
            old.past, new.past, place, old.num_channels, count, _in_old_ticks(old, new, new.past.times)
        ),
        known=_merge(
            old.known, new.known, place, old.num_known, count, _in_old_ticks(old, new, new.known.times)
        ),
        static=static,
        static_codes=codes,
    )


def _in_old_ticks(old: SeriesStore, new: SeriesStore, ticks: Ticks) -> Ticks:
    """Ticks of the finer of the two clocks would be lossless; the merged store keeps the old clock."""
    return old.source.clock.convert(ticks, new.source.clock)


def _merge(
    old: Ragged, new: Ragged, place: NDArray[np.int64], width: int, series: int, times: Ticks
) -> Ragged:
    if width == 0:
        return old
    segment = place[new.segment // width] * width + new.segment % width
    merged = Ragged.from_rows(
        np.concatenate([old.segment, segment]),
        np.concatenate([old.times, times]),
        np.concatenate([old.values, new.values]),
        series * width,
    )
    return last_of_equal_times(merged)


def last_of_equal_times(rows: Ragged) -> Ragged:
    """Keep the last of several observations of a segment at one time."""
    again = np.zeros(len(rows), bool)
    again[:-1] = (rows.times[1:] == rows.times[:-1]) & (rows.segment[1:] == rows.segment[:-1])
    return rows.keep(~again) if again.any() else rows
