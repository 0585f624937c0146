import dataclasses
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctsattn.data.collate import Collator
from ctsattn.data.schema import Columns
from ctsattn.data.series import Ragged
from ctsattn.data.task import infer_task
from ctsattn.data.windows import MIN_TOKENS, TrainingWindows, Windows, answer_windows, cut_past
from tests.data.frames import COMMON, long_frames, read, series

TWO = Columns(targets=("y", "z"))


def ask(store, cutoff, times, which=None):
    """Windows that ask each series, seen from a cutoff of its own, for the same distances."""
    which = np.arange(store.num_series) if which is None else np.asarray(which)
    cutoff = np.broadcast_to(cutoff, which.shape)
    asked = (cutoff[:, None] + np.asarray(times)).reshape(-1)
    indptr = np.arange(len(which) + 1) * len(times)
    return Windows.of(which, cutoff, Ragged(asked, np.zeros(len(asked)), indptr))


def equal(one, other, *, but=()):
    """Whether two batches are the same in every field but some."""
    names = [f.name for f in dataclasses.fields(one) if f.name not in but]
    return all(torch.equal(getattr(one, n), getattr(other, n)) for n in names)


@given(long_frames(), st.integers(0, 10**6), st.integers(1, 40))
@COMMON
def test_no_window_shows_anything_after_its_cutoff(frame, seed, max_tokens):
    frame = frame.assign(z=frame["y"].shift(1))
    schema, store = read(frame, TWO)
    spec = dataclasses.replace(infer_task(store, schema, detect=False), lookback=1e9)
    rng = np.random.default_rng(seed)
    which = rng.integers(0, store.num_series, 10)
    cutoff = rng.choice(frame["ds"].astype("int64"), 10) + rng.integers(-1, 2, 10)
    windows = ask(store, cutoff, [0, 5], which)
    past = cut_past(store, spec, windows, max_tokens)
    owner = np.repeat(np.arange(10), past.counts.sum(1))
    assert (store.past.times[past.at] <= cutoff[owner]).all()
    assert (store.past.segment[past.at] // 2 == which[owner]).all()
    per_channel = [
        [
            ((store.past.times[a:b] <= c).sum())
            for a, b in zip(
                store.past.indptr[2 * s : 2 * s + 2], store.past.indptr[2 * s + 1 : 2 * s + 3], strict=True
            )
        ]
        for s, c in zip(which, cutoff, strict=True)
    ]
    assert past.counts.tolist() == np.minimum(per_channel, max_tokens).tolist()


@pytest.mark.parametrize("scaler", ["standard", "last", "robust", "mean_abs", "none"])
def test_what_comes_after_the_cutoff_changes_nothing_that_the_model_sees(scaler):
    frame = series()
    schema, store = read(frame)
    spec = infer_task(store, schema)
    cutoff = 20.0
    later = frame.assign(y=np.where(frame["ds"] > cutoff, 1e15 * frame["y"] - 7, frame["y"]))
    _, changed = read(later)
    windows = ask(store, cutoff, [0.5, 1.0, 7.0])
    collate = Collator(schema, spec, scaler)
    assert equal(collate(store, windows), collate(changed, windows))
    cut = store.until(np.full(3, cutoff))
    assert equal(collate(store, windows), collate(cut, windows))


def test_truth_is_filled_only_when_asked_and_only_with_the_future():
    frame = series()
    schema, store = read(frame)
    collate = Collator(schema, infer_task(store, schema))
    windows = TrainingWindows(store, collate.spec).every()
    blind, seen = collate(store, windows), collate(store, windows, truth=True)
    assert not blind.future_observed.any() and not blind.future_values.any()
    assert equal(blind, seen, but=("future_values", "future_observed"))
    assert torch.equal(seen.future_observed[:, 0], seen.future_mask)
    raw = seen.unscale(seen.future_values.numpy())[:, 0][seen.future_mask.numpy()]
    expected = {
        (s, t): v for s, t, v in zip(store.past.segment, store.past.times, store.past.values, strict=True)
    }
    owner = windows.series[windows.queries.segment]
    wanted = np.array([expected[s, t] for s, t in zip(owner, windows.times, strict=True)])
    assert (np.abs(raw - wanted) <= 1e-6 * (np.abs(wanted) + seen.scale.numpy()[owner_of(windows), 0])).all()


def owner_of(windows):
    return windows.queries.segment


def test_a_series_is_collated_alike_alone_and_among_others():
    frame = series()
    schema, store = read(frame)
    collate = Collator(schema, infer_task(store, schema))
    windows = ask(store, store.end, [0.5, 3.0])
    together = collate(store, windows)
    for number, name in enumerate(["s0", "s1", "s2"]):
        _, lone = read(frame[frame["unique_id"] == name])
        alone = collate(lone, ask(lone, lone.end, [0.5, 3.0]))
        length = alone.past_values.shape[-1]
        for field in ("past_times", "past_values", "past_mask"):
            assert torch.equal(getattr(alone, field)[0], getattr(together, field)[number][..., :length])
        assert torch.equal(alone.loc[0], together.loc[number]) and torch.equal(
            alone.scale[0], together.scale[number]
        )
        assert not together.past_mask[number][..., length:].any()


@pytest.mark.parametrize("shift", [pd.Timedelta("13h"), pd.Timedelta(days=-50000), pd.Timedelta("1us")])
def test_shifting_all_times_changes_nothing(shift):
    frame = series().assign(
        ds=lambda d: pd.Timestamp("2024-01-01") + pd.to_timedelta(d["ds"], unit="h").dt.floor("us")
    )
    moved = frame.assign(ds=frame["ds"].dt.as_unit("us") + shift)
    batches = []
    for each in (frame, moved):
        schema, store = read(each)
        spec = infer_task(store, schema)
        windows = TrainingWindows(store, spec, impute=0.5).draw(20, np.random.default_rng(0))
        batches.append((spec, Collator(schema, spec)(store, windows, truth=True)))
    assert batches[0][0] == batches[1][0]
    assert equal(batches[0][1], batches[1][1])


@pytest.mark.parametrize("factor", [1.5, 2.0, 60.0])
def test_stretching_all_times_is_seen_by_the_model(factor):
    frame = series()
    schema, store = read(frame)
    spec = dataclasses.replace(infer_task(store, schema), lookback=1e9)
    _, stretched = read(frame.assign(ds=frame["ds"] * factor))
    one, other = (Collator(schema, spec)(s, ask(s, s.end, [1.0])) for s in (store, stretched))
    assert torch.equal(one.past_values, other.past_values)
    torch.testing.assert_close(other.past_times, factor * one.past_times)


def test_a_stretch_by_no_natural_unit_is_seen_even_by_a_task_inferred_anew():
    frame = series().assign(
        ds=lambda d: pd.Timestamp("2024-01-01") + pd.to_timedelta(d["ds"], unit="h").dt.floor("us")
    )
    origin = frame["ds"].min()
    stretched = frame.assign(ds=origin + 3 * (frame["ds"] - origin))
    specs = [infer_task(store, schema) for schema, store in (read(frame), read(stretched))]
    assert specs[0].time_unit == specs[1].time_unit == 3600.0
    assert specs[1].median_gap == pytest.approx(3 * specs[0].median_gap)


def test_deleted_rows_leave_the_others_at_their_own_times():
    frame = series()
    thinned = frame.iloc[::3]
    schema, store = read(frame)
    spec = dataclasses.replace(infer_task(store, schema), lookback=1e9)
    _, thin = read(thinned)
    windows = ask(thin, thin.end, [1.0])
    batch = Collator(schema, spec)(thin, windows)
    for number, (_, part) in enumerate(thinned.groupby("unique_id")):
        times = batch.past_times[number, 0][batch.past_mask[number, 0]]
        expected = (part["ds"] - part["ds"].iloc[-1]) / spec.time_unit
        np.testing.assert_array_equal(times.numpy(), expected.to_numpy(np.float32))


def test_a_window_shows_the_lookback_or_at_least_sixteen_and_at_most_max_tokens():
    frame = pd.DataFrame({"ds": np.arange(200), "y": 1.0})
    schema, store = read(frame)
    spec = infer_task(store, schema)

    def shown(lookback, max_tokens):
        windows = ask(store, store.end, [1])
        return int(
            cut_past(store, dataclasses.replace(spec, lookback=lookback), windows, max_tokens).counts[0, 0]
        )

    assert shown(50.0, 512) == 50
    assert shown(3.0, 512) == MIN_TOKENS
    assert shown(50.0, 20) == 20
    assert shown(3.0, 5) == 5


def test_padding_repeats_the_last_time_and_holds_nothing():
    schema, store = read(series())
    spec = dataclasses.replace(infer_task(store, schema), lookback=1e9)
    windows = TrainingWindows(store, spec).every(np.array([3, 20, 60]))
    late = dataclasses.replace(windows, cutoff=windows.cutoff + 1e-3)
    batch = Collator(schema, spec)(store, late, truth=True)
    for times, there in (
        (batch.past_times[:, 0], batch.past_mask[:, 0]),
        (batch.future_times, batch.future_mask),
    ):
        assert not there.all()
        last = times.masked_fill(~there, -torch.inf).amax(-1, keepdim=True).expand_as(times)
        assert torch.equal(times[~there], last[~there]) and (last != 0).all()
        assert (times.diff(dim=-1) >= 0).all()
    assert not batch.past_values[~batch.past_mask].any()
    assert not batch.future_values[~batch.future_observed].any()


def test_nothing_is_narrowed_before_the_cutoff_is_subtracted():
    start = 1_700_000_000_000_000_000  # nanoseconds: float64 steps by 256 here, float32 by 10^11
    frame = pd.DataFrame({"ds": start + np.array([0, 1, 3, 7, 12]), "y": np.arange(5.0)})
    schema, store = read(frame)
    spec = dataclasses.replace(infer_task(store, schema), time_unit=1.0, lookback=100.0)
    batch = Collator(schema, spec)(store, ask(store, store.end, [1]))
    assert batch.past_times[0, 0].tolist() == [-12, -11, -9, -5, 0]


def test_a_series_without_observations_is_an_empty_window_at_the_others_end():
    frame = pd.concat([series(), pd.DataFrame({"unique_id": ["cold"], "ds": [3.0], "y": [np.nan]})])
    schema, store = read(frame)
    assert store.has_history.tolist() == [True, True, True, False]
    assert store.end[3] == store.last_target[3] == store.first[3] == frame["ds"].max()
    batch = Collator(schema, infer_task(store, schema))(store, ask(store, store.end, [1.0]))
    assert not batch.past_mask[3].any()
    assert all(torch.isfinite(getattr(batch, n)).all() for n in ("past_times", "past_values", "loc", "scale"))


# Training


def test_every_cutoff_has_an_observation_within_the_horizon():
    schema, store = read(series())
    spec = dataclasses.replace(infer_task(store, schema), horizon=2.0, time_unit=1.0)
    windows = TrainingWindows(store, spec).every()
    assert (np.diff(windows.indptr) >= 1).all()
    elapsed = windows.times - windows.cutoff[windows.queries.segment]
    assert (elapsed > 0).all() and (elapsed <= 2.0).all()
    times = store.past.times
    same = store.past.segment[1:] == store.past.segment[:-1]
    assert len(windows) == (same & (np.diff(times) <= 2.0)).sum()


def test_draws_favour_neither_long_nor_short_series():
    frame = pd.concat([pd.DataFrame({"unique_id": n, "ds": np.arange(n), "y": 1.0}) for n in (101, 10_001)])
    schema, store = read(frame)
    drawn = TrainingWindows(store, dataclasses.replace(infer_task(store, schema), horizon=3.0)).draw(
        4000, np.random.default_rng(0)
    )
    share = (drawn.series == 1).mean()
    assert abs(share - 10 / 11) < 0.02  # square root of 100 : 10000 windows


def test_draws_depend_on_the_given_generator_alone(global_rng_untouched):
    schema, store = read(series())
    windows = TrainingWindows(store, infer_task(store, schema), impute=0.5)
    one, same, other = (windows.draw(10, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one.times, same.times) and np.array_equal(one.cutoff, same.cutoff)
    assert not np.array_equal(one.cutoff, other.cutoff)


def test_queries_are_thinned_to_the_most_that_are_wanted():
    frame = pd.DataFrame({"ds": np.arange(300), "y": 1.0})
    schema, store = read(frame)
    spec = dataclasses.replace(infer_task(store, schema), horizon=100.0)
    drawn = TrainingWindows(store, spec, max_queries=7).draw(50, np.random.default_rng(0))
    counts = np.diff(drawn.indptr)
    assert counts.max() == 7
    inner = np.diff(drawn.queries.segment) == 0
    assert (np.diff(drawn.times)[inner] > 0).all()


def test_data_without_two_neighbours_cannot_be_drawn_from():
    schema, store = read(pd.DataFrame({"unique_id": ["a", "b"], "ds": [1, 2], "y": [1.0, 2.0]}))
    with pytest.raises(ValueError, match="There is nothing to train on"):
        TrainingWindows(store, infer_task(store, schema)).draw(3, np.random.default_rng(0))


def test_imputation_hides_what_it_asks_and_knows_the_truth():
    frame = series().assign(z=lambda d: d["y"] * 2)
    schema, store = read(frame, TWO)
    spec = infer_task(store, schema)
    drawn = TrainingWindows(store, spec, impute=1.0).draw(60, np.random.default_rng(0))
    batch = Collator(schema, spec)(store, drawn, truth=True)
    back = batch.future_mask & (batch.future_times <= 0)
    assert back.any(1).float().mean() > 0.8
    assert batch.future_observed[back.unsqueeze(1).expand_as(batch.future_observed)].all()
    for row in range(60):
        for channel in range(2):
            shown = batch.past_times[row, channel][batch.past_mask[row, channel]].tolist()
            assert not set(shown) & set(batch.future_times[row][back[row]].tolist())
    plain = Collator(schema, spec)(store, dataclasses.replace(drawn, hide=np.zeros(60, bool)))
    assert (plain.past_mask.sum((1, 2)) > batch.past_mask.sum((1, 2))).float().mean() > 0.8


def test_only_the_windows_that_hide_lose_what_they_ask():
    schema, store = read(series(lengths=(20,)))
    windows = ask(store, store.end[0], [0.0, 1.0], [0, 0])
    hidden = dataclasses.replace(windows, hide=np.array([True, False]))
    batch = Collator(schema, infer_task(store, schema))(store, hidden)
    assert batch.past_mask.sum((1, 2)).tolist() == [19, 20]


def test_a_share_of_windows_is_for_imputation():
    schema, store = read(series())
    drawn = TrainingWindows(store, infer_task(store, schema), impute=0.25).draw(
        2000, np.random.default_rng(0)
    )
    assert abs(drawn.hide.mean() - 0.25) < 0.04


# Answers


def windows_of(store, spec, asked):
    number = np.repeat(np.arange(store.num_series), len(asked))
    return answer_windows(store, spec, number, np.tile(asked, store.num_series))


def test_answers_keep_the_order_of_what_was_asked():
    schema, store = read(series())
    asked = np.array([-3.0, 0.5, 4.0, 30.0, 200.0])
    windows = windows_of(store, infer_task(store, schema), asked)
    assert windows.times.tolist() == asked.tolist() * 3
    assert np.repeat(windows.series, np.diff(windows.indptr)).tolist() == [0] * 5 + [1] * 5 + [2] * 5


def test_the_window_of_a_time_does_not_depend_on_what_else_is_asked():
    frame = pd.DataFrame({"ds": np.cumsum(np.random.default_rng(0).exponential(size=2000)), "y": 1.0})
    schema, store = read(frame)
    spec = dataclasses.replace(infer_task(store, schema), lookback=100.0, time_unit=1.0)
    asked = np.linspace(-10, 2100, 300)
    together = answer_windows(store, spec, np.zeros(300, int), asked)
    cutoffs = np.repeat(together.cutoff, np.diff(together.indptr))
    for time, cutoff in zip(asked, cutoffs, strict=True):
        assert answer_windows(store, spec, np.zeros(1, int), np.array([time])).cutoff.tolist() == [cutoff]


def test_times_between_observations_are_seen_from_both_sides():
    rng = np.random.default_rng(0)
    dense = np.concatenate(
        [np.cumsum(rng.exponential(size=1000)), 1500 + np.cumsum(rng.exponential(size=3000)) / 50]
    )
    schema, store = read(pd.DataFrame({"ds": dense, "y": 1.0}))
    spec = dataclasses.replace(infer_task(store, schema), lookback=200.0, time_unit=1.0)
    asked = rng.uniform(store.first[0], store.end[0], 300)
    windows = answer_windows(store, spec, np.zeros(300, int), np.sort(asked))
    past = cut_past(store, spec, windows, 512)
    parts = np.split(store.past.times[past.at], np.cumsum(past.counts[:, 0])[:-1])
    for number, times in enumerate(parts):
        for asked_time in windows.times[windows.indptr[number] : windows.indptr[number + 1]]:
            before = store.past.search(np.zeros(1, int), np.array([asked_time]))[0]
            nearest = store.past.times[max(before - 4, 0) : before + 4]
            assert set(nearest) <= set(times)


def test_times_after_the_end_are_seen_from_the_end():
    schema, store = read(series())
    windows = windows_of(store, infer_task(store, schema), np.array([500.0, 900.0]))
    assert windows.cutoff.tolist() == store.end.tolist()


# Memory


def test_memory_grows_with_the_observations_and_not_with_the_union_of_times():
    def peak(times):
        frame = pd.DataFrame({"unique_id": np.repeat(np.arange(200), 50), "ds": times, "y": 1.0})
        tracemalloc.start()
        schema, store = read(frame)
        spec = infer_task(store, schema, detect=False)
        Collator(schema, spec)(store, ask(store, store.end, [1.0, 2.0]))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    rng = np.random.default_rng(0)
    shared = np.tile(np.arange(50.0), 200)
    apart = rng.uniform(0, 50, 200 * 50)
    peak(shared)  # first use fills caches of pandas
    assert peak(apart) < 1.5 * peak(shared)
