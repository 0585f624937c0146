import copy
import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctsattn.data.clock import Clock
from ctsattn.data.schema import Columns, Schema
from ctsattn.data.series import Ragged, spans
from ctsattn.data.tables import Library
from tests.data.frames import (
    COMMON,
    assert_same_observations,
    long_frames,
    observations,
    read,
    reread,
    series,
)

SEGMENTS = st.lists(st.lists(st.integers(-50, 50), max_size=9), min_size=1, max_size=6)


def ragged(segments, dtype=np.int64):
    rows = [(number, time) for number, times in enumerate(segments) for time in times]
    segment, times = (
        np.array(x, t)
        for x, t in zip(zip(*rows, strict=True) if rows else ((), ()), (np.int64, dtype), strict=True)
    )
    return Ragged.from_rows(segment, times, np.arange(len(rows), dtype=float), len(segments))


@given(SEGMENTS, st.data())
@COMMON
def test_rows_are_sorted_by_segment_and_time_and_ties_keep_their_order(segments, data):
    part = ragged(segments)
    assert part.counts.tolist() == [len(s) for s in segments]
    assert part.times.tolist() == [t for s in segments for t in sorted(s)]
    ties = np.flatnonzero((np.diff(part.times) == 0) & (np.diff(part.segment) == 0))
    assert (part.values[ties + 1] > part.values[ties]).all()


@given(
    SEGMENTS,
    st.lists(st.integers(-60, 60), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([np.int64, np.float64]),
)
@COMMON
def test_search_finds_what_bisection_finds_in_every_segment(segments, needles, after, dtype):
    part = ragged(segments, dtype)
    which = np.arange(len(segments))[:, None]
    found = part.search(which, np.array(needles, dtype), after=after)
    side = "right" if after else "left"
    expected = [np.searchsorted(np.sort(s), needles, side) + part.indptr[i] for i, s in enumerate(segments)]
    assert found.tolist() == np.array(expected).tolist()


@given(SEGMENTS, st.data())
@COMMON
def test_picking_segments_and_dropping_observations_keeps_the_rest(segments, data):
    part = ragged(segments)
    which = data.draw(st.lists(st.integers(0, len(segments) - 1), max_size=5))
    assert part.take(np.array(which, int)).times.tolist() == [t for w in which for t in sorted(segments[w])]
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(part), max_size=len(part))), bool)
    kept = part.keep(mask)
    assert kept.times.tolist() == part.times[mask].tolist()
    assert kept.segment.tolist() == part.segment[mask].tolist()


@given(SEGMENTS)
@COMMON
def test_the_latest_of_several_observations_at_one_time_is_kept(segments):
    part = ragged(segments).latest()
    number = iter(range(10**6))
    last = {(i, t): next(number) for i, s in enumerate(segments) for t in s}
    assert dict(zip(zip(part.segment, part.times, strict=True), part.values, strict=True)) == last


def test_spans_lists_ranges_one_after_the_other():
    at, counts = spans(np.array([3, 9, 5]), np.array([6, 9, 4]))
    assert at.tolist() == [3, 4, 5] and counts.tolist() == [3, 0, 0]


@given(long_frames(), st.integers(0, 2**31))
@COMMON
def test_history_that_arrives_in_parts_is_the_same_as_at_once(frame, seed):
    part = np.random.default_rng(seed).random(len(frame)) < 0.5
    if part.all() or not part.any():
        return
    schema, whole = read(frame)
    first, second = reread(schema, frame[part]), reread(schema, frame[~part])
    assert_same_observations(first.append(second), whole)


def test_appended_values_win_where_both_have_one_and_new_ids_come_last():
    frame = pd.DataFrame(
        {"unique_id": ["b", "b", "a"], "ds": [1, 2, 1], "y": [1.0, 2.0, 3.0], "size": [1.0, 1.0, 2.0]}
    )
    schema, store = read(frame)
    more = pd.DataFrame({"unique_id": ["c", "b"], "ds": [5, 2], "y": [9.0, 20.0], "size": [3.0, 1.0]})
    both = store.append(reread(schema, more))
    assert both.source.ids.tolist() == ["b", "a", "c"]
    assert {name: v for (name, _), (_, v) in observations(both).items()} == {
        "b": [1.0, 20.0],
        "a": [3.0],
        "c": [9.0],
    }
    assert len(both.static) == 3 and both.static[2] == reread(schema, more).static[0]


def test_a_store_is_cut_at_any_moment_of_each_series():
    _, store = read(series())
    cutoff = np.array([10.0, 0.0, 30.0])
    cut = store.until(cutoff)
    for (name, channel), (times, values) in observations(store).items():
        keep = [t <= cutoff[int(name[1])] for t in times]
        expected = (
            [t for t, k in zip(times, keep, strict=True) if k],
            [v for v, k in zip(values, keep, strict=True) if k],
        )
        assert observations(cut)[name, channel] == expected


def test_series_are_selected_with_all_that_belongs_to_them():
    frame = series().assign(x=lambda d: d["ds"], c=lambda d: d["unique_id"])
    _, store = read(frame, Columns.of(future_cols=["x"], static_cols=["c"]))
    chosen = store.select(np.array([2, 0]))
    assert chosen.source.ids.tolist() == ["s2", "s0"]
    assert observations(chosen) == {k: v for k, v in observations(store).items() if k[0] != "s1"}
    assert chosen.known.counts.tolist() == [90, 40]
    assert chosen.static_codes.tolist() == store.static_codes[[2, 0]].tolist()


def test_bounds_and_moments_are_those_of_the_observed_channels():
    frame = pd.DataFrame(
        {
            "ds": [1, 2, 3, 4, 9],
            "y": [np.nan, 5, np.nan, 6, np.nan],
            "z": [np.nan, 5, 7, np.nan, np.nan],
            "x": [1, np.nan, np.nan, np.nan, 2],
        }
    )
    _, store = read(frame, Columns.of(target_col=["y", "z"], past_cols=["x"]))
    assert store.moments.times.tolist() == [2, 3, 4]
    assert (store.first[0], store.last_target[0], store.end[0]) == (1, 4, 9)


def test_a_schema_survives_json():
    frame = series().assign(x=1.0 * np.arange(137), c=["u", "v"] * 68 + ["w"])
    schema, _ = read(frame, Columns.of(future_cols=["x"]))
    assert schema.channels[1].vocabulary == ("u", "v", "w")
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_clock_and_a_library_survive_json():
    clock = Clock("datetime", 10**6, "us", "Europe/Berlin", "datetime64[us, Europe/Berlin]")
    assert Clock(**json.loads(json.dumps(clock.to_json()))) == clock
    _, store = read(pl.from_pandas(series()).with_columns(pl.col("unique_id").cast(pl.Categorical)))
    library = Library.from_json(json.loads(json.dumps(store.source.library.to_json())))
    assert library.name == "polars"
    assert library.dtypes["unique_id"] == store.source.library.dtypes["unique_id"]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"]
)
def test_stores_can_be_copied_and_pickled(copied):
    _, store = read(series())
    assert_same_observations(copied(store), store)
