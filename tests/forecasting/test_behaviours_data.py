"""Behaviours 1 to 15 of the forecaster: what it makes of the data that it is given."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctsattn import Forecaster, models
from ctsattn.data.schema import DataWarning

from .conftest import assert_same_forecast, irregular, tiny

AHEAD = pd.to_datetime(["2024-01-12 03:00", "2024-01-13 17:30"])


def instant(**options) -> Forecaster:
    """A forecaster without parameters: what is tested is the way of the data."""
    return tiny(model=models.SeasonalNaive(period=24.0), **options)


# 1


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("unique_id", "ds", "y"), {}),
        (("item_id", "timestamp", "target"), {}),
        (("shop", "moment", "sales"), {"id_col": "shop", "time_col": "moment", "target_col": "sales"}),
    ],
)
def test_01_any_names_fit_and_the_answer_uses_them(df, fitted, names, options):
    renamed = df.set_axis(list(names), axis=1)
    answer = tiny(**options).fit(renamed).predict(times=AHEAD)
    assert answer.columns.tolist() == [*names[:2], "ctsattn", "ctsattn-q0.1", "ctsattn-q0.5", "ctsattn-q0.9"]
    assert_same_forecast(answer, fitted.predict(times=AHEAD), atol=1e-6)


def test_01_a_wide_frame_gives_the_forecasts_of_the_long_one(df, fitted):
    wide = df.pivot(index="ds", columns="unique_id", values="y")[["b", "a"]]
    for frame in (wide, wide.reset_index(), pl.from_pandas(wide.reset_index())):
        answer = tiny().fit(frame).predict(times=AHEAD)
        answer = answer.to_pandas() if isinstance(answer, pl.DataFrame) else answer
        assert answer["unique_id"].tolist() == ["b", "b", "a", "a"]
        assert_same_forecast(answer, fitted.predict(times=AHEAD), atol=1e-6)


# 2


def test_02_a_frame_without_ids_is_one_series_and_its_answer_has_no_id_column(df):
    one = df[df["unique_id"] == "a"].drop(columns="unique_id")
    answer = instant().fit(one).predict(h=3)
    assert answer.columns.tolist()[:2] == ["ds", "ctsattn"]
    assert len(answer) == 3


# 3


def test_03_stretched_times_change_the_forecast_of_the_same_values(df, fitted):
    start = df["ds"].min()
    stretched = df.assign(ds=start + (df["ds"] - start) * 3)
    other = tiny().fit(stretched)
    steps = [fitted.predict(h=4)["ctsattn"], other.predict(h=4)["ctsattn"]]
    assert np.abs(steps[0] - steps[1]).max() > 1e-2


def test_03_jittered_times_change_the_forecast_of_the_same_values():
    rng = np.random.default_rng(1)
    regular = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=60, freq="6h")})
    regular["y"] = np.sin(np.arange(60) / 3)
    jitter = regular.assign(ds=regular["ds"] + pd.to_timedelta(rng.integers(-9000, 9000, 60), "s"))
    asked = [pd.Timestamp("2024-01-17")]
    first, second = (tiny().fit(x).predict(times=asked)["ctsattn"].item() for x in (regular, jitter))
    assert abs(first - second) > 1e-3


def test_03_one_model_answers_by_when_a_history_was_observed_and_not_by_its_order(df, fitted):
    one = df[df["unique_id"] == "a"]
    rank = np.linspace(0, 1, len(one))
    first, last = one["ds"].iloc[[0, -1]]
    even, late = (
        one.assign(ds=pd.DatetimeIndex(first + (last - first) * share).round("s"))
        for share in (rank, np.sqrt(rank))
    )
    asked = [last + pd.Timedelta("7h")]
    answers = [fitted.predict(df=frame, times=asked)["ctsattn"].item() for frame in (even, late)]
    assert abs(answers[0] - answers[1]) > 1e-2


# 4


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shift=st.integers(-40_000, 40_000))
def test_04_shifting_all_times_by_a_constant_changes_nothing(df, fitted, shift):
    offset = pd.Timedelta(shift, "h")
    moved = tiny().fit(df.assign(ds=df["ds"] + offset)).predict(times=AHEAD + offset, level=[80])
    plain = fitted.predict(times=AHEAD, level=[80])
    assert_same_forecast(moved, plain)
    assert (moved["ds"] - offset == plain["ds"]).all()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_04_the_unit_of_the_time_column_changes_nothing_and_comes_back(df, fitted, unit):
    same = df.assign(ds=df["ds"].astype(f"datetime64[{unit}]"))
    answer = tiny().fit(same).predict(times=AHEAD)
    assert_same_forecast(answer, fitted.predict(times=AHEAD), atol=0)
    assert answer["ds"].dtype == f"datetime64[{unit}]"


# 5


def test_05_deleted_rows_are_a_gap_and_the_other_rows_keep_their_times(df):
    rng = np.random.default_rng(2)
    kept = df[rng.random(len(df)) > 0.4]
    cv = instant().cross_validation(kept, n_windows=2)
    pairs = set(zip(kept["unique_id"], kept["ds"], strict=True))
    assert set(zip(cv["unique_id"], cv["ds"], strict=True)) <= pairs
    merged = cv.merge(kept, on=["unique_id", "ds"], suffixes=("", "_given"))
    assert (merged["y"] == merged["y_given"]).all()
    assert len(merged) == len(cv) > 5


# 6


def test_06_a_missing_target_and_an_absent_row_give_the_same_model(df, fitted):
    extra = df.assign(ds=df["ds"] + pd.Timedelta("7min"), y=np.nan).iloc[:-1:3]
    gappy = pd.concat([df, extra]).sort_values(["unique_id", "ds"], ascending=[False, True])
    answer = tiny().fit(gappy).predict(times=AHEAD, level=[80])
    assert_same_forecast(answer, fitted.predict(times=AHEAD, level=[80]), atol=1e-6)


# 7


def test_07_order_of_rows_and_columns_and_the_kind_of_index_change_nothing(df, fitted):
    plain = fitted.predict(times=AHEAD)
    ids = list(dict.fromkeys(df["unique_id"]))
    shuffled = df.sample(frac=1, random_state=4)[["y", "ds", "unique_id"]]
    variants = {
        "shuffled": shuffled,
        "odd index": df.set_axis(np.arange(len(df))[::-1] * 7, axis=0),
        "MultiIndex": df.set_index(["unique_id", "ds"]),
        "time index": df.set_index("ds"),
    }
    for name, variant in variants.items():
        answer = tiny().fit(variant).predict(times=AHEAD)
        answer = answer.set_index("unique_id").loc[ids].reset_index()
        assert_same_forecast(answer, plain, atol=1e-4 if name == "shuffled" else 1e-6)


# 8


def test_08_no_call_changes_the_callers_frame_also_when_its_buffers_are_read_only(df, tmp_path):
    frame = df.assign(x=np.arange(len(df), dtype=float))
    for column in frame.columns:
        array = frame[column].to_numpy()
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    copy = frame.copy(deep=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tiny(past_cols=["x"]).fit(frame)
        model.predict(df=frame, h=2)
        model.impute(times=[frame["ds"].iloc[3]], df=frame)
        model.score(frame)
        model.cross_validation(frame, n_windows=1)
        model.partial_fit(frame)
        model.save(tmp_path / "m")
    pd.testing.assert_frame_equal(frame, copy)


# 9


def test_09_duplicates_are_one_error_with_id_time_and_count_and_can_be_resolved(df):
    again = df.iloc[[5, 5, 40]].assign(y=[100.0, 200.0, 0.0])
    double = pd.concat([df, again], ignore_index=True)
    first = df.iloc[5]
    with pytest.raises(ValueError, match=rf"3 rows at unique_id '{first['unique_id']}' at ds {first['ds']}"):
        instant().fit(double)
    last = instant(duplicates="last").fit(double)
    mean = instant(duplicates="mean").fit(double)
    expected = {"last": 200.0, "mean": (first["y"] + 300.0) / 3}
    for name, model in {"last": last, "mean": mean}.items():
        store = model.fitted_.store
        assert store.past.values[store.past.values > 50] == pytest.approx([expected[name]])


# 10


@pytest.mark.parametrize("start", ["2024-03-29", "2024-10-25"])
def test_10_zones_work_over_both_clock_changes_and_come_back(start):
    utc = pd.date_range(start, periods=80, freq="h", tz="UTC")
    frame = pd.DataFrame({"ds": utc.tz_convert("Europe/Berlin").as_unit("ms"), "y": np.arange(80.0)})
    answer = instant().fit(frame).predict(h=6)
    assert answer["ds"].dtype == "datetime64[ms, Europe/Berlin]"
    assert answer["ds"].tolist() == [utc[-1] + pd.Timedelta(k, "h") for k in range(1, 7)]
    plain = instant().fit(frame.assign(ds=utc)).predict(h=6)
    assert_same_forecast(answer, plain, atol=0)


# 11


@pytest.mark.parametrize(
    "convert",
    [
        lambda s: ((s - s.min()) / pd.Timedelta("1s")).astype("int64"),
        lambda s: (s - s.min()) / pd.Timedelta("1D"),
        lambda s: s - s.min(),
        lambda s: s,
        lambda s: ((s - s.min()) / pd.Timedelta("1s")).astype("int32"),
    ],
    ids=["int64", "float64", "timedelta", "datetime", "int32"],
)
def test_11_the_answers_time_has_the_dtype_of_the_given_one(df, convert):
    frame = df.assign(ds=convert(df["ds"]))
    answer = instant(horizon=None).fit(frame).predict(h=2)
    assert answer["ds"].dtype == frame["ds"].dtype


def test_11_text_times_are_parsed_or_refused_with_an_example(df):
    text = df.assign(ds=df["ds"].dt.strftime("%Y-%m-%d %H:%M:%S"))
    answer = instant().fit(text).predict(h=1)
    assert answer["ds"].iloc[0] > df["ds"].min()
    with pytest.raises(ValueError, match="'03/04/2024'"):
        instant().fit(df.assign(ds="03/04/2024"))


# 12


@pytest.mark.parametrize(
    "dtype", ["int64", "Int64", "Float64", "float32", "object", "double[pyarrow]", "bool"]
)
def test_12_targets_of_any_number_dtype_give_the_same_forecast(df, dtype):
    whole = df.assign(y=(df["y"] > df["y"].mean()) * (1.0 if dtype == "bool" else 5.0))
    expected = instant().fit(whole).predict(times=AHEAD)
    assert_same_forecast(instant().fit(whole.astype({"y": dtype})).predict(times=AHEAD), expected)


def test_12_text_targets_and_infinite_ones_are_refused_by_name_and_count(df):
    with pytest.raises(ValueError, match="Target column 'y' must hold numbers"):
        instant().fit(df.assign(y="north"))
    infinite = df.copy()
    infinite.loc[[3, 9], "y"] = np.inf
    with pytest.raises(ValueError, match=r"'y' has 2 infinite value"):
        instant().fit(infinite)


# 13


@pytest.mark.parametrize("kind", ["text", "integer", "string", "category"])
def test_13_ids_of_any_kind_come_back_in_order_of_first_appearance(kind):
    ids = {
        "text": pd.Series(["z", "a", "m"]),
        "integer": pd.Series([30, 10, 20]),
        "string": pd.Series(["z", "a", "m"], dtype="string"),
        "category": pd.Series(pd.Categorical(["z", "a", "m"], categories=["unused", "a", "m", "z"])),
    }[kind]
    frame = irregular(("p", "q", "r"))
    frame["unique_id"] = ids.iloc[np.repeat([0, 1, 2], 30)].reset_index(drop=True)
    answer = instant().fit(frame).predict(h=2)
    assert answer["unique_id"].tolist() == ids.iloc[[0, 0, 1, 1, 2, 2]].tolist()
    assert answer["unique_id"].dtype == frame["unique_id"].dtype


# 14


def test_14_every_extra_column_is_assigned_a_role_with_a_reason(df):
    frame = df.assign(
        region=df["unique_id"].map({"a": "north", "b": "south"}),
        load=np.random.default_rng(0).random(len(df)),
        same=1.0,
        when=df["ds"],
    )
    model = instant().fit(frame)
    roles = model.features_.set_index("column")["role"]
    assert roles.to_dict() == {
        "y": "target",
        "region": "static",
        "load": "past",
        "same": "ignored",
        "when": "ignored",
    }
    assert model.features_["why"].str.len().gt(0).all()
    assert model.feature_names_in_.tolist() == ["region", "load"]
    declared = instant(future_cols=["load"]).fit(frame).features_.set_index("column")
    assert declared.loc["load", ["role", "why"]].tolist() == ["future", "named in future_cols"]


# 15


def covariates(df: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    frame = df.assign(
        size=df["unique_id"].map({"a": 1.0, "b": np.nan}),
        region=df["unique_id"].map({"a": "north", "b": None}),
        wind=rng.random(len(df)),
        mode=rng.choice(["on", "off"], len(df)),
        price=rng.random(len(df)),
        holiday=rng.choice(["yes", "no"], len(df)),
    )
    for column in ("wind", "mode", "price", "holiday"):
        frame.loc[rng.random(len(df)) < 0.3, column] = None
    return frame


def test_15_covariates_of_every_role_may_be_numbers_or_text_with_gaps_and_times_of_their_own(df):
    frame = covariates(df)
    own = pd.DataFrame(
        {
            "unique_id": ["a", "b"] * 10,
            "ds": pd.date_range("2024-01-02 00:17", periods=20, freq="7h"),
            "sun": np.arange(20.0),
        }
    )
    ahead = own.rename(columns={"sun": "tide"}).assign(
        tide=lambda x: np.where(x.index % 3 == 0, np.nan, x["tide"])
    )
    model = tiny(
        static_cols=["size", "region"], past_cols=["wind", "mode"], future_cols=["price", "holiday"]
    ).fit(frame, past_df=own, future_df=ahead)
    roles = model.features_.set_index("column")["role"]
    assert roles[["size", "wind", "price", "sun", "tide"]].tolist() == [
        "static",
        "past",
        "future",
        "past",
        "future",
    ]
    with pytest.warns(DataWarning, match="beyond the last known value"):
        answer = model.predict(h=3)
    assert np.isfinite(answer["ctsattn"]).all()


def test_15_a_text_that_training_did_not_see_counts_as_other_with_one_warning(df):
    frame = df.assign(mode=np.where(np.arange(len(df)) % 2, "on", "off"))
    model = tiny(past_cols=["mode"]).fit(frame)
    with pytest.warns(
        DataWarning, match="1 text.* that training did not see, for example 'standby'"
    ) as caught:
        answer = model.predict(df=frame.assign(mode="standby"), h=1)
    assert len(caught) == 1
    assert np.isfinite(answer["ctsattn"]).all()


# Libraries


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_frames_of_other_libraries_come_back_as_they_came_with_the_same_numbers(df, fitted, library):
    native = pl.from_pandas(df) if library == "polars" else pa.Table.from_pandas(df, preserve_index=False)
    answer = tiny().fit(native).predict(h=2, level=[80])
    assert type(answer) is type(native)
    table = answer.to_pandas()
    expected = fitted.predict(h=2, level=[80])
    assert_same_forecast(table, expected, atol=1e-6)
    assert table["unique_id"].tolist() == expected["unique_id"].tolist()
    assert (table["ds"] == expected["ds"]).all()


def test_a_wide_frame_is_one_series_for_each_column(df):
    wide = pd.DataFrame(
        {"north": np.arange(40.0), "south": np.arange(40.0)[::-1]},
        index=pd.date_range("2024-01-01", periods=40, freq="6h"),
    )
    answer = instant().fit(wide).predict(h=1)
    assert answer.iloc[:, 0].tolist() == ["north", "south"]


def test_several_targets_keep_times_of_their_own_and_are_named_in_a_column(df):
    rng = np.random.default_rng(6)
    frame = df.assign(z=rng.random(len(df)))
    frame.loc[::2, "y"] = np.nan
    frame.loc[1::3, "z"] = np.nan
    model = tiny(target_col=["y", "z"]).fit(frame)
    answer = model.predict(h=2, level=[80])
    assert answer["variable"].tolist() == ["y", "z"] * 4
    assert answer.columns.tolist() == [
        "unique_id",
        "ds",
        "variable",
        "ctsattn",
        "ctsattn-lo-80",
        "ctsattn-hi-80",
    ]
    store = model.fitted_.store
    assert store.past.counts.reshape(2, 2).sum(0).tolist() == [frame["y"].count(), frame["z"].count()]
    cv = model.cross_validation(frame, n_windows=1)
    truth = frame.melt(["unique_id", "ds"], ["y", "z"]).dropna()
    merged = cv.merge(truth, on=["unique_id", "ds", "variable"])
    assert len(merged) == len(cv) > 0
    np.testing.assert_array_equal(merged["y"], merged["value"])
