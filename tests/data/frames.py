"""Frames for the tests of the data layer: generated, disguised, and compared as stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import settings
from hypothesis import strategies as st

from ctsattn.data.building import build_store, learn_schema
from ctsattn.data.frame import read_panel
from ctsattn.data.schema import Columns, Schema
from ctsattn.data.series import SeriesStore

COMMON = settings(max_examples=15, deadline=None, derandomize=True)
MICRO = 10**6


@st.composite
def long_frames(draw: st.DrawFn, min_rows: int = 1) -> pd.DataFrame:
    """Sorted long frames with text ids, strictly rising times of any spacing, and some missing targets."""
    parts = []
    for name in draw(st.lists(st.sampled_from("pqrstuv"), min_size=1, max_size=4, unique=True)):
        count = draw(st.integers(min_rows, 8))
        start = draw(st.integers(-(10**15), 4 * 10**15))  # 1938 to 2096
        gaps = draw(st.lists(st.integers(1, 10**14), min_size=count, max_size=count))
        times = start + np.cumsum(np.array(gaps, np.int64))
        values = st.floats(-1e9, 1e9).map(lambda v: v + 0.0) | st.just(float("nan"))
        y = draw(st.lists(values, min_size=count, max_size=count))
        parts.append(pd.DataFrame({"unique_id": name, "ds": times.view("M8[us]"), "y": y}))
    return pd.concat(parts, ignore_index=True)


def read(df: Any, columns: Columns | None = None, **options: Any) -> tuple[Schema, SeriesStore]:
    """Learn a schema and a store from frames."""
    frames = {name: options.pop(name) for name in ("static_df", "past_df", "future_df") if name in options}
    return learn_schema(read_panel(df, columns or Columns(), **frames), **options)


def reread(schema: Schema, df: Any, **options: Any) -> SeriesStore:
    """Read new history by a learned schema."""
    frames = {n: options.pop(n) for n in ("static_df", "past_df", "future_df", "cold_start") if n in options}
    return build_store(read_panel(df, schema.columns, **frames), schema, **options)


def observations(store: SeriesStore) -> dict[tuple[str, int], tuple[list[Any], list[float]]]:
    """Times and values of each channel by the text of its id: equal for stores that hold the same."""
    out = {}
    for series, name in enumerate(store.source.ids):
        for channel in range(store.num_channels):
            segment = series * store.num_channels + channel
            at = slice(store.past.indptr[segment], store.past.indptr[segment + 1])
            out[str(name), channel] = (store.past.times[at].tolist(), store.past.values[at].tolist())
    return out


def assert_same_observations(actual: SeriesStore, expected: SeriesStore) -> None:
    """Compare two stores by id, whatever the order of their series."""
    assert observations(actual) == observations(expected)


def series(seed: int = 0, lengths: tuple[int, ...] = (40, 7, 90), step: float = 1.0) -> pd.DataFrame:
    """Irregular float-clock series that differ in length, level and scale."""
    rng = np.random.default_rng(seed)
    parts = []
    for number, length in enumerate(lengths):
        times = step * np.cumsum(rng.exponential(size=length) + 0.01)
        y = 10.0**number * (np.sin(times) + 0.1 * rng.normal(size=length) + number)
        parts.append(pd.DataFrame({"unique_id": f"s{number}", "ds": times, "y": y}))
    return pd.concat(parts, ignore_index=True)
