import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctsattn.data.batch import Batch
from ctsattn.data.collate import Collator
from ctsattn.data.schema import Columns, DataWarning
from ctsattn.data.series import Ragged
from ctsattn.data.task import infer_task
from ctsattn.data.windows import Windows
from tests.data.frames import COMMON, observations, read, reread

DAYS = pd.date_range("2024-01-01", periods=6)
PLAIN = pd.DataFrame({"unique_id": np.repeat(["a", "b"], 6), "ds": [*DAYS, *DAYS], "y": np.arange(12.0)})


def forecast_batch(schema, store, times, cutoff=None) -> Batch:
    """What the model sees of each series from its end, asked for some ticks after it."""
    spec = infer_task(store, schema, detect=False)
    cutoff = store.end if cutoff is None else np.full(store.num_series, cutoff)
    asked = (cutoff[:, None] + np.asarray(times)).reshape(-1)
    queries = Ragged(asked, np.zeros(len(asked)), np.arange(store.num_series + 1) * len(times))
    return Collator(schema, spec)(store, Windows.of(np.arange(store.num_series), cutoff, queries))


def roles(schema):
    return {feature.name: feature.role for feature in schema.features}


def reasons(schema):
    return {feature.name: feature.why for feature in schema.features}


def test_each_extra_column_gets_a_role_by_rule_and_the_rule_is_shown():
    frame = PLAIN.assign(
        region=np.repeat(["north", "south"], 6),
        size=np.repeat([10, 20], 6),
        price=np.arange(12.0) % 5,
        weather=["sun", "rain"] * 6,
        one=1,
        empty=None,
        note=[f"text {i}" for i in range(12)],
        entered=PLAIN["ds"],
        row=np.arange(12),
    )
    ahead = frame.assign(ds=frame["ds"] + pd.Timedelta(days=6), y=np.nan, price=2.0, weather=None)
    schema, _ = read(pd.concat([frame, ahead.assign(row=np.arange(12, 24))]))
    assert roles(schema) == {
        "y": "target",
        "region": "static",
        "size": "static",
        "price": "future",
        "weather": "past",
        "one": "ignored",
        "empty": "ignored",
        "note": "future",
        "entered": "ignored",
        "row": "ignored",
    }
    assert reasons(schema)["price"] == "rule: known ahead of the last target"
    assert reasons(schema)["region"] == "rule: constant within every series"


def test_a_few_trailing_rows_without_target_do_not_make_a_column_known_ahead():
    frame = PLAIN.assign(price=np.arange(12.0) % 5)
    frame.loc[[4, 5], "y"] = np.nan
    assert roles(read(frame)[0])["price"] == "past"
    frame.loc[[3, 4, 5], "y"] = np.nan
    assert roles(read(frame)[0])["price"] == "future"  # three rows, in one of two series
    frame.loc[frame["unique_id"] == "a", "y"] = np.nan  # a series without targets says nothing
    assert roles(read(frame)[0])["price"] == "past"


def test_text_that_hardly_repeats_is_ignored():
    long = pd.DataFrame({"ds": np.arange(150), "y": 1.0, "note": [f"text {i}" for i in range(150)]})
    assert roles(read(long)[0])["note"] == "ignored"


def test_declared_roles_win_over_rules():
    frame = PLAIN.assign(region=np.repeat([1, 2], 6), price=np.arange(12.0))
    schema, _ = read(frame, Columns.of(past_cols=["region"], future_cols="price"))
    assert roles(schema) == {"y": "target", "region": "past", "price": "future"}
    assert reasons(schema) == {
        "y": "target_col",
        "region": "named in past_cols",
        "price": "named in future_cols",
    }


@pytest.mark.parametrize("role", ["static", "past", "future"])
def test_a_declared_column_that_is_nowhere_is_an_error(role):
    with pytest.raises(ValueError, match="'prise'"):
        read(PLAIN, Columns.of(**{f"{role}_cols": ["prise"]}))


def test_a_declared_static_column_that_varies_is_refused_with_its_place():
    frame = PLAIN.assign(size=[1, 1, 1, 2, 1, 1] + [5] * 6)
    with pytest.raises(
        ValueError, match=r"'size' is static .* varies within 1 series, .*'a' at ds 2024-01-04"
    ):
        read(frame, Columns.of(static_cols=["size"]))


def test_a_column_that_a_rule_took_for_static_and_later_varies_warns_and_counts_last():
    schema, _ = read(PLAIN.assign(size=np.repeat([10.0, 20.0], 6)))
    later = PLAIN.assign(size=[10.0] * 5 + [20.0] + [20.0] * 6)
    with pytest.warns(DataWarning, match="varies within 1 series"):
        store = reread(schema, later)
    assert store.static[0] == store.static[1]


def test_static_numbers_are_standardised_and_missing_ones_are_the_mean():
    static = pd.DataFrame({"unique_id": ["b", "a", "zz"], "size": [30.0, 10.0, 20.0]})
    schema, store = read(PLAIN, static_df=static)
    assert store.static[:, 0].tolist() == [-1.0, 1.0]
    with pytest.warns(DataWarning, match=r"`static_df` has no row for 1 of 2 series, for example 'a'"):
        assert reread(schema, PLAIN, static_df=static.iloc[:1]).static[0, 0] == 0.0


def test_measurements_that_differ_between_two_frames_are_told_of_and_the_later_frame_holds():
    frame, other = PLAIN.assign(x=np.arange(12.0)), PLAIN[["unique_id", "ds"]].assign(x=np.arange(12.0))
    columns = Columns.of(past_cols=["x"])
    read(frame, columns, past_df=other)  # they agree, and no warning
    other.loc[3, "x"] = -5.0
    with pytest.warns(
        DataWarning, match=r"'x' is in several frames, which differ at 1 time\(s\): unique_id 'a'"
    ):
        _, store = read(frame, columns, past_df=other)
    assert (store.past.values == -5.0).sum() == 1


@pytest.mark.parametrize("ids", [[1, 2], ["A", "B"], [1.5, np.nan]])
def test_static_rows_that_are_of_no_series_are_refused_with_both_kinds_of_ids(ids):
    static = pd.DataFrame({"unique_id": ids, "size": [30.0, 10.0]})
    with pytest.raises(ValueError, match=r"a row for no series: its ids are .*history are 'a', 'b'"):
        read(PLAIN, static_df=static)


def test_static_rows_are_matched_by_id_and_must_be_one_each():
    static = pd.DataFrame({"unique_id": ["b", "a"], "kind": ["x", "w"]})
    schema, store = read(PLAIN, static_df=static)
    assert store.static_codes[:, 0].tolist() == [2, 3]
    indexed = reread(schema, PLAIN, static_df=static.set_index("unique_id"))
    assert np.array_equal(indexed.static_codes, store.static_codes)
    assert np.array_equal(
        reread(schema, PLAIN, static_df=pl.from_pandas(static)).static_codes, store.static_codes
    )
    with pytest.raises(ValueError, match=r"more than one row for 1 id.*'b'"):
        read(PLAIN, static_df=pd.concat([static, static.iloc[:1]]))
    with pytest.raises(ValueError, match="no id column 'unique_id'"):
        read(PLAIN, static_df=static.rename(columns={"unique_id": "shop"}))


def test_unseen_text_is_other_with_one_warning():
    frame = PLAIN.assign(weather=["sun", "rain"] * 6)
    schema, store = read(frame, Columns.of(past_cols=["weather"]))
    assert set(observations(store)["a", 1][1]) == {2, 3}
    with pytest.warns(
        DataWarning, match=r"'weather' has 2 text\(s\) that training did not see.*'fog', 'snow'"
    ) as caught:
        store = reread(schema, frame.assign(weather=["sun", "fog", "snow"] * 4))
    assert len(caught) == 1
    assert observations(store)["a", 1][1] == [3, 1, 1, 3, 1, 1]


def test_a_missing_category_is_no_observation():
    frame = PLAIN.assign(weather=["sun", None, "rain"] * 4)
    _, store = read(frame, Columns.of(past_cols=["weather"]))
    assert observations(store)["a", 1][1] == [3, 2, 3, 2]


def test_categories_stand_in_the_codes_and_numbers_in_the_values():
    schema, store = read(PLAIN.assign(weather=["sun", "rain"] * 6), Columns.of(past_cols=["weather"]))
    batch = forecast_batch(schema, store, [1])
    assert batch.past_codes[0].tolist() == [[0] * 6, [3, 2] * 3]
    assert batch.past_values[0, 0].abs().min() > 0 and not batch.past_values[0, 1].any()


@given(st.lists(st.sampled_from([1.0, 2.0, float("nan")]), min_size=12, max_size=12))
@COMMON
def test_a_missing_covariate_removes_that_observation_of_that_column_only(values):
    frame = PLAIN.assign(x=values)
    _, store = read(frame, Columns.of(past_cols=["x"]))
    assert observations(store)["a", 0][1] == list(range(6))
    assert observations(store)["a", 1][1] == [v for v in values[:6] if v == v]


@pytest.mark.parametrize("column", ["x", "c"])
@pytest.mark.parametrize("role", ["past", "future", "static"])
def test_missing_covariates_never_reach_the_batch(role, column):
    value = {"x": [np.nan, 1.0], "c": [None, "u"]}[column]
    values = np.repeat(value, 6) if role == "static" else value * 6
    frame = PLAIN.assign(**{column: pd.Series(values, dtype=object if column == "c" else float)})
    schema, store = read(frame, Columns.of(**{f"{role}_cols": [column]}))
    batch = forecast_batch(schema, store, [1, 2])
    for name, tensor in vars(batch).items():
        assert torch.isfinite(tensor.float()).all(), name


def test_the_effect_of_a_known_pulse_sits_at_its_own_time():
    hours = pd.date_range("2024-01-01", periods=49, freq="h")
    pulse = pd.DataFrame({"ds": hours, "promotion": (np.arange(49) == 40).astype(float)})
    history = pd.DataFrame({"ds": hours[:25:6], "y": 1.0})  # every six hours, until the 24th
    schema, store = read(history, future_df=pulse)
    (feature,) = schema.having("future")
    asked = np.arange(1, 97) * 15  # minutes after the end
    batch = forecast_batch(schema, store, asked * 60 * 10**6)
    raw = batch.future_known[0, :, 0].numpy() * feature.std + feature.mean
    np.testing.assert_allclose(raw, np.clip(1 - np.abs(asked / 60 - 16), 0, 1), atol=1e-5)
    assert asked[raw.argmax()] == 16 * 60


def test_a_known_pulse_in_the_past_is_sampled_at_the_observations():
    pulse = pd.DataFrame({"ds": [0.0, 9.0, 10.0, 11.0, 20.0], "x": [0.0, 0.0, 1.0, 0.0, 0.0]})
    history = pd.DataFrame({"ds": [2.0, 9.5, 10.0, 10.75, 15.0], "y": 1.0})
    schema, store = read(history, future_df=pulse)
    (feature,) = schema.having("future")
    batch = forecast_batch(schema, store, [1.0])
    raw = batch.past_known[0, 0, :, 0].numpy() * feature.std + feature.mean
    np.testing.assert_allclose(raw, [0.0, 0.5, 1.0, 0.25, 0.0], atol=1e-6)


def test_known_categories_hold_their_last_value_and_are_missing_before_the_first():
    events = pd.DataFrame({"ds": [3.0, 7.0], "event": ["fair", "strike"]})
    history = pd.DataFrame({"ds": [1.0, 3.0, 5.0], "y": 1.0})
    schema, store = read(history, future_df=events)
    batch = forecast_batch(schema, store, [1.0, 2.0, 9.0])
    assert batch.past_known_codes[0, 0, :, 0].tolist() == [0, 2, 2]
    assert batch.future_known_codes[0, :, 0].tolist() == [2, 3, 3]


def test_known_numbers_stay_level_beyond_their_ends():
    known = pd.DataFrame({"ds": [2.0, 4.0], "x": [10.0, 30.0]})
    schema, store = read(pd.DataFrame({"ds": [1.0, 3.0], "y": 1.0}), future_df=known)
    batch = forecast_batch(schema, store, [0.5, 1.0, 99.0])
    np.testing.assert_allclose(batch.past_known[0, 0, :, 0], [-1.0, 0.0])
    np.testing.assert_allclose(batch.future_known[0, :, 0], [0.5, 1.0, 1.0])


def test_past_covariates_have_timestamps_of_their_own():
    rain = pd.DataFrame(
        {"unique_id": ["a", "a", "b"], "ds": DAYS[[0, 1, 3]] + pd.Timedelta("5h"), "rain": [1.0, 2.0, 3.0]}
    )
    schema, store = read(PLAIN, past_df=rain)
    assert roles(schema) == {"y": "target", "rain": "past"}
    times, values = observations(store)["a", 1]
    assert values == [1.0, 2.0]
    assert pd.to_datetime(times, unit="us").tolist() == rain["ds"].tolist()[:2]


def test_a_shared_frame_of_covariates_goes_to_every_series():
    shared = pd.DataFrame({"ds": DAYS, "holiday": [0, 1, 0, 0, 1, 0]})
    _, store = read(PLAIN, future_df=shared)
    assert np.array_equal(*np.split(store.known.values, 2))


def test_a_later_future_frame_wins_over_the_history_where_they_meet():
    frame = PLAIN.assign(price=1.0 * np.arange(12))
    schema, _ = read(frame, Columns.of(future_cols=["price"]))
    store = reread(schema, frame, future_df=frame.iloc[[5]].assign(price=99.0)[["unique_id", "ds", "price"]])
    (feature,) = schema.having("future")
    raw = store.known.values * feature.std + feature.mean
    np.testing.assert_allclose(raw, [0, 1, 2, 3, 4, 99, 6, 7, 8, 9, 10, 11], atol=1e-9)


def test_rows_that_repeat_a_covariate_with_the_same_value_are_no_duplicates():
    frame = PLAIN.assign(z=np.nan, price=np.arange(12.0))
    apart = pd.concat([frame, frame.assign(z=frame["y"], y=np.nan)])
    columns = Columns.of(target_col=["y", "z"], future_cols=["price"])
    _, store = read(apart, columns)
    assert store.known.counts.tolist() == [6, 6]
    apart.iloc[-1, apart.columns.get_loc("price")] = -1.0
    with pytest.raises(ValueError, match="Column 'price' has several values at one time"):
        read(apart, columns)


def test_a_covariate_of_training_that_is_absent_later_is_warned_of_and_missing():
    frame = PLAIN.assign(price=np.arange(12.0), size=np.repeat([1.0, 2.0], 6))
    schema, _ = read(frame, Columns.of(past_cols=["price"]))
    with pytest.warns(DataWarning, match=r"Covariate\(s\) 'price', 'size' that the model was trained with"):
        store = reread(schema, PLAIN)
    assert observations(store)["a", 1] == ([], [])
    assert store.static[:, 0].tolist() == [0.0, 0.0]


def test_a_number_that_becomes_text_is_refused_by_name():
    schema, _ = read(PLAIN.assign(price=np.arange(12.0)), Columns.of(past_cols=["price"]))
    with pytest.raises(ValueError, match="Covariate column 'price' must hold numbers"):
        reread(schema, PLAIN.assign(price="cheap"))


def test_a_declared_covariate_of_dates_is_refused_by_name():
    with pytest.raises(TypeError, match="Covariate 'entered' has dtype datetime64"):
        read(PLAIN.assign(entered=PLAIN["ds"]), Columns.of(past_cols=["entered"]))


def test_an_infinite_covariate_is_refused_by_name():
    with pytest.raises(ValueError, match="Covariate column 'x' has 1 infinite value"):
        read(PLAIN.assign(x=[np.inf] + [1.0, 2.0] * 5 + [1.0]), Columns.of(past_cols=["x"]))


def test_ids_without_history_become_series_when_allowed():
    static = pd.DataFrame({"unique_id": ["a", "b", "new"], "size": [1.0, 2.0, 3.0]})
    schema, store = read(PLAIN, static_df=static)
    assert store.source.ids.tolist() == ["a", "b"]
    store = reread(schema, PLAIN, static_df=static, cold_start=True)
    assert store.source.ids.tolist() == ["a", "b", "new"]
    assert store.has_history.tolist() == [True, True, False]


def test_known_data_give_no_warning():
    frame = PLAIN.assign(weather=["sun", "rain"] * 6, price=np.arange(12.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema, _ = read(frame)
        reread(schema, frame)
