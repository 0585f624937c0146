"""Odd frames and arguments of new users: answered rightly, or refused with the way out."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ctsattn import Forecaster, models
from ctsattn.data.schema import DataWarning

from .conftest import QUICK, irregular, tiny

AHEAD = pd.to_datetime(["2024-01-12 03:00"])


def instant(**options) -> Forecaster:
    return tiny(**{"model": models.SeasonalNaive(period=24.0), "horizon": None, **options})


def hourly(rows: int = 40, **columns) -> pd.DataFrame:
    stamps = pd.date_range("2024-01-01", periods=rows, freq="h")
    return pd.DataFrame({"ds": stamps, "y": np.arange(float(rows)) % 7, **columns})


# What the answer would hide or lose


@pytest.mark.parametrize("name", ["ctsattn", "variable", "sample", "cutoff", "in_sample", "ctsattn-lo-80"])
@pytest.mark.parametrize("column", ["unique_id", "ds", "y"])
def test_a_column_that_the_answer_would_hide_is_refused_before_training(df, name, column):
    argument = {"unique_id": "id_col", "ds": "time_col", "y": "target_col"}[column]
    with pytest.raises(ValueError, match=rf"Answers have a column '{name}' of their own.*df\.rename"):
        instant(**{argument: name}).fit(df.rename(columns={column: name}))


def test_an_extra_column_named_like_the_answer_is_a_covariate_like_others(df):
    answer = instant().fit(df.assign(ctsattn=np.arange(60) % 5.0)).predict(h=1)
    assert answer.columns.is_unique


def test_levels_that_differ_in_a_late_digit_keep_columns_of_their_own(df):
    answer = instant().fit(df).predict(h=1, quantiles=[0.1, 0.1000001, 0.00001])
    names = ["ctsattn-q0.1", "ctsattn-q0.1000001", "ctsattn-q0.00001"]
    assert [c for c in answer if c.startswith("ctsattn-")] == names


def test_a_share_given_as_a_level_is_refused(df):
    with pytest.raises(ValueError, match=r"`level` is in percent, so 0\.8 is a band of 0\.8 %.*level=\[80\]"):
        instant().fit(df).predict(h=1, level=[0.8])


def test_asked_times_finer_than_the_clock_of_the_history_are_not_moved(df):
    model = instant().fit(df)
    with pytest.raises(ValueError, match=r"1 time\(s\) in 'times' have nanoseconds.*round\('us'\)"):
        model.predict(times=[pd.Timestamp("2024-02-01 00:00:00.000000001")])


# Targets that were never seen


def test_a_target_without_any_observation_is_refused_by_name(df):
    with pytest.raises(ValueError, match="Target column 'z' has no observed value in 2 series"):
        instant(target_col=["y", "z"]).fit(df.assign(z=np.nan))
    with pytest.raises(ValueError, match="Target column 'y' has no observed value"):
        instant().fit(df.assign(y=np.nan))


def test_a_target_that_one_series_never_shows_is_flagged_there_and_there_alone(df):
    frame = df.assign(z=np.where(df["unique_id"] == "a", np.nan, np.arange(60.0)))
    model = tiny(target_col=["y", "z"]).fit(frame)
    answer = model.predict(h=1).set_index(["unique_id", "variable"])["cold_start"]
    assert answer.to_dict() == {("b", "y"): False, ("b", "z"): False, ("a", "y"): False, ("a", "z"): True}
    with pytest.raises(ValueError, match="1 series have no observation of 'z' to forecast from: 'a'"):
        model.predict(h=1, cold_start=False)


def test_a_declared_covariate_without_values_is_told(df):
    with pytest.warns(DataWarning, match="Declared covariate 'x' has no value in 60 rows"):
        instant(past_cols=["x"]).fit(df.assign(x=np.nan))


# Times


def test_integers_that_spell_dates_are_refused_and_plain_ones_are_not():
    days = pd.date_range("2024-01-20", periods=30)
    spelled = pd.DataFrame({"ds": days.strftime("%Y%m%d").astype(int), "y": np.arange(30.0)})
    with pytest.raises(ValueError, match=r"all spell dates, for example 20240120.*format='%Y%m%d'"):
        instant().fit(spelled)
    for start in (20240120, 1990, -40, 2**60):
        plain = spelled.assign(ds=start + 3 * np.arange(30))
        assert instant().fit(plain).predict(h=1)["ds"].item() == start + 90


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (pd.period_range("2020-01", periods=30, freq="M"), "2022-07"),
        (pd.date_range("2020-01-31", periods=30, freq="ME"), "2022-07-31"),
        (pd.date_range("2020-01-01", periods=30, freq="QS"), "2027-07-01"),
        (pd.date_range("1990-01-01", periods=30, freq="YS"), "2020-01-01"),
        (pd.bdate_range("2024-01-01", periods=30), "2024-02-12"),
        (pd.date_range("2024-03-25", periods=30, freq="D", tz="Europe/Berlin"), "2024-04-24"),
    ],
    ids=["periods", "month ends", "quarters", "years", "business days", "days in a zone"],
)
def test_the_next_step_of_a_calendar_is_the_one_of_the_calendar(index, expected):
    answer = instant().fit(pd.DataFrame({"y": np.arange(30.0)}, index=index)).predict(h=1)
    assert str(answer["ds"].item()).startswith(expected)


@pytest.mark.parametrize(
    "times",
    [
        "2024-02-03",
        [dt.date(2024, 2, 3)],
        np.array(["2024-02-03"], "M8[D]"),
        pd.Series(pd.to_datetime(["2024-02-03"])),
        pl.Series([dt.datetime(2024, 2, 3)]),
        (text for text in ["2024-02-03", "2024-02-03"]),
        pd.DatetimeIndex(["2024-02-03"]),
    ],
    ids=["text", "date", "numpy", "pandas", "polars", "generator twice", "index"],
)
def test_one_time_may_be_asked_in_any_form_and_is_answered_once(df, times):
    answer = instant().fit(df).predict(times=times)
    assert answer["ds"].tolist() == [pd.Timestamp("2024-02-03")] * 2


def test_times_of_the_past_and_of_the_far_future_are_answered(df):
    answer = instant().fit(df).predict(times=["2400-01-01", "1990-01-01"])
    assert answer["ds"].dt.year.tolist() == [1990, 2400, 1990, 2400]
    assert answer["in_sample"].tolist() == [True, False, True, False]
    assert np.isfinite(answer["ctsattn"]).all()


def test_naive_times_that_a_clock_change_skips_or_repeats_are_refused(df):
    zoned = instant().fit(df.assign(ds=df["ds"].dt.tz_localize("Europe/Berlin")))
    for moment in ("2024-10-27 02:30", "2024-03-31 02:30"):
        with pytest.raises(ValueError, match="skipped or repeated by a change of clocks in Europe/Berlin"):
            zoned.predict(times=[moment])


@pytest.mark.parametrize("h", [2.0, "3", True, None.__class__])
def test_steps_must_be_an_integer(df, h):
    with pytest.raises(TypeError, match="`h` counts steps, so it must be an integer"):
        instant().fit(df).predict(h=h)


@pytest.mark.parametrize("horizon", [24, "-3h", "abc", "1M", pd.NaT, 2.5])
def test_spans_without_a_unit_or_a_fixed_length_are_refused(df, horizon):
    with pytest.raises(ValueError, match=r"is not a span of time|must be positive"):
        instant().fit(df).predict(horizon=horizon)


@pytest.mark.parametrize("horizon", [0, -1, 2.5, "abc", "1M"])
def test_a_horizon_of_training_that_is_none_is_refused(df, horizon):
    with pytest.raises(ValueError, match=r"at least 1, got|is not a span of time"):
        instant(horizon=horizon).fit(df)


# Values


@pytest.mark.parametrize(
    "y",
    [
        pd.arrays.SparseArray(np.arange(40.0) % 3),
        (np.arange(40) % 3).astype("float16"),
        (np.arange(40) % 3).astype("longdouble"),
        pd.array(np.arange(40) % 3, dtype="UInt8"),
        pd.Series([*map(int, np.arange(40) % 3)], dtype=object),
        pd.Categorical(np.arange(40) % 3),
    ],
    ids=["sparse", "float16", "longdouble", "UInt8", "object", "categories of numbers"],
)
def test_numbers_of_any_kind_give_the_same_forecast(y):
    expected = instant().fit(hourly(y=np.arange(40.0) % 3)).predict(h=3)
    pd.testing.assert_frame_equal(instant().fit(hourly(y=y)).predict(h=3), expected)


@pytest.mark.parametrize(
    "y",
    [
        pd.to_timedelta(np.arange(40), "h"),
        pd.date_range("2024", periods=40),
        [[1]] * 40,
        np.arange(40) + 1j,
        ["a", "b"] * 20,
        pd.Categorical(["a", "b"] * 20),
    ],
    ids=["timedeltas", "datetimes", "lists", "complex", "text", "categories"],
)
def test_what_is_no_number_is_refused_as_a_target(y):
    with pytest.raises((TypeError, ValueError), match="Target column 'y' must hold numbers"):
        instant().fit(hourly(y=y))


def test_integers_that_float64_cannot_tell_apart_are_told():
    with pytest.warns(DataWarning, match=r"'y' holds integers beyond 2\*\*53.*nearest 256.*Subtract"):
        instant().fit(hourly(y=2**60 + np.arange(40)))


# Ids


@pytest.mark.parametrize(
    "ids",
    [
        (2**62 + 1, 2**62 + 2),
        ("", "  "),
        (b"b", b"a"),
        (("b", 1), ("a", 1)),
        (dt.date(2020, 1, 2), dt.date(2020, 1, 1)),
        (pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-01")),
        (1.5, -0.0),
    ],
    ids=["long integers", "blanks", "bytes", "tuples", "dates", "timestamps", "floats"],
)
def test_ids_of_odd_kinds_are_kept_apart_and_come_back(ids):
    frame = irregular(("b", "a"))
    frame["unique_id"] = pd.Series([*ids]).take(np.repeat([0, 1], 30)).to_numpy()
    answer = instant().fit(frame).predict(times=AHEAD)
    assert answer["unique_id"].tolist() == [*ids]
    assert answer["ctsattn"].nunique() == 2


@pytest.mark.parametrize(
    "ids",
    [
        pd.Categorical([3, 1]),
        pd.Categorical(["b", "a"], categories=["none", "a", "b"], ordered=True),
        pd.Series([dt.date(2020, 1, 2), dt.date(2020, 1, 1)], dtype=object),
        pd.Series(pd.to_datetime(["2020-01-02", "2020-01-01"])),
        pd.Series(["b", "a"], dtype="string[pyarrow]"),
        pd.Series([2**62 + 1, 2**62 + 2]),
    ],
    ids=["categories of integers", "ordered", "dates", "timestamps", "arrow text", "long integers"],
)
def test_ids_of_odd_kinds_are_found_again_after_loading(ids, tmp_path):
    frame = irregular(("b", "a"))
    frame["unique_id"] = pd.Series(ids).take(np.repeat([0, 1], 30)).reset_index(drop=True)
    model = instant().fit(frame)
    model.save(tmp_path / "m")
    loaded = Forecaster.load(tmp_path / "m")
    pd.testing.assert_frame_equal(loaded.predict(h=1), model.predict(h=1))
    asked = frame[["unique_id", "ds"]].tail(1)
    assert loaded.predict(times=asked)["unique_id"].tolist() == [ids[1]]


@pytest.mark.parametrize("ids", [(b"b", b"a"), (("b", 1), ("a", 1))], ids=["bytes", "tuples"])
def test_ids_that_a_file_cannot_hold_are_refused_when_saving(ids, tmp_path):
    frame = irregular(("b", "a"))
    frame["unique_id"] = pd.Series([*ids]).take(np.repeat([0, 1], 30)).to_numpy()
    model = instant().fit(frame)
    with pytest.raises(ValueError, match=r"ids of type .*cannot be saved.*astype\(str\)"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "bare", data=False)
    assert [p.name for p in tmp_path.iterdir()] == ["bare"]


def test_ids_of_another_dtype_at_predict_are_refused_with_both_dtypes():
    frame = irregular((1, 2))
    with pytest.raises(ValueError, match=r"'2' \(.*\); known are 1, 2 \(int64\)"):
        instant().fit(frame).predict(times=frame[["unique_id", "ds"]].tail(1).astype({"unique_id": str}))


def test_integer_column_names_survive_a_file(df, tmp_path):
    frame = df.set_axis([0, 1, 2], axis=1)
    model = instant(id_col=0, time_col=1, target_col=2).fit(frame)
    model.save(tmp_path / "m")
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path / "m").predict(h=1), model.predict(h=1))


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_frames_of_other_libraries_survive_a_file(df, tmp_path, library):
    zoned = df.assign(ds=df["ds"].dt.tz_localize("UTC"))
    native = (
        pl.from_pandas(zoned) if library == "polars" else pa.Table.from_pandas(zoned, preserve_index=False)
    )
    model = instant().fit(native)
    model.save(tmp_path / "m")
    answer, expected = Forecaster.load(tmp_path / "m").predict(h=1), model.predict(h=1)
    assert type(answer) is type(native)
    assert answer.equals(expected)


# Things that are no frames, and frames of nothing


@pytest.mark.parametrize(
    "thing", [None, {"ds": [1], "y": [1]}, [1], np.zeros((3, 3)), pl.DataFrame({"ds": [1], "y": [1]}).lazy()]
)
def test_what_is_no_frame_is_refused(thing):
    with pytest.raises(TypeError, match="Expected a pandas, polars or pyarrow frame"):
        instant().fit(thing)


def test_frames_without_rows_or_columns_say_so(df):
    model = tiny(model=models.SeasonalNaive(period=24.0), future_cols=["x"]).fit(df.assign(x=np.arange(60.0)))
    for frame in (df.iloc[:0], pd.DataFrame(columns=["unique_id", "ds", "y"])):
        with pytest.raises(ValueError, match="The frame has no rows, only the columns"):
            model.predict(df=frame, h=1)
    with pytest.raises(ValueError, match="which has no columns"):
        instant().fit(pd.DataFrame())
    empty = pd.DataFrame(columns=["unique_id", "ds", "x"])
    with pytest.raises(ValueError, match="`future_df` has no rows"):
        model.predict(future_df=empty)
    with pytest.warns(DataWarning, match="beyond the last known value of 'x'"):
        assert len(model.predict(future_df=empty, h=1)) == 2


@pytest.mark.parametrize("rows", [1, 2])
def test_a_frame_of_one_or_two_rows_is_answered(rows):
    answer = instant().fit(hourly(rows)).predict(h=2)
    assert np.isfinite(answer["ctsattn"]).all()


def test_a_series_of_pandas_is_one_series(df):
    one = df[df["unique_id"] == "a"].set_index("ds")["y"]
    expected = instant().fit(one.reset_index()).predict(h=2)
    pd.testing.assert_frame_equal(instant().fit(one).predict(h=2), expected)
    pd.testing.assert_frame_equal(instant().fit(one.rename(None)).predict(h=2), expected)


# Options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "linear"}, r"`model` must be a config.*got 'linear'"),
        ({"model": models.ContinuousTransformer}, "`model` must be a config"),
        ({"training": {"max_steps": 3}}, "`training` must be a Training or None"),
        ({"random_state": "x"}, "`random_state` must be an integer.*got 'x'"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_by_name(df, options, text):
    with pytest.raises(TypeError, match=text):
        tiny(**options).fit(df)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_batch_size_that_counts_nothing_is_refused(df, size):
    with pytest.raises(ValueError, match="`batch_size` counts series, so it must be at least 1"):
        instant().fit(df).predict(h=1, batch_size=size)


def test_a_covariate_frame_that_lacks_what_training_had_is_told(df):
    model = instant(past_cols=["x"]).fit(df.assign(x=np.arange(60) % 7.0))
    with pytest.warns(DataWarning, match="'x' that the model was trained with are in no frame"):
        model.predict(df=df, h=1)


def test_more_windows_than_the_history_has_are_refused(df):
    with pytest.raises(ValueError, match="No observation precedes the first cutoff: column 'ds' begins at"):
        instant(horizon="2D").cross_validation(df, n_windows=50)
    with pytest.raises(ValueError, match="both before and after a cutoff"):
        instant(horizon="2D").cross_validation(df, cutoffs=["2030-01-01"])


def test_a_hole_of_two_centuries_is_a_gap_like_any_other(df):
    frame = df.copy()
    frame.loc[59, "ds"] = pd.Timestamp("2200-01-01")
    answer = tiny(training=replace(QUICK, max_steps=2)).fit(frame).predict(h=1)
    assert answer["ds"].dt.year.tolist() == [2024, 2200]
    assert np.isfinite(answer["ctsattn"]).all()
