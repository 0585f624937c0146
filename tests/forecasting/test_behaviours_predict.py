"""Behaviours 24 to 34 of the forecaster: answers, at any times, with bands and joint paths."""

from __future__ import annotations

import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from ctsattn import Forecaster, models
from ctsattn.data.schema import DataWarning
from ctsattn.forecasting import TrainingWarning

from .conftest import assert_same_forecast, irregular, tiny

AHEAD = pd.to_datetime(["2024-01-12 03:00", "2024-01-13 17:30"])
SHARED = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ends(df: pd.DataFrame) -> pd.Series:
    return df.groupby("unique_id", sort=False)["ds"].max()


# 24


def test_24_steps_spans_times_and_frames_are_all_answered_by_one_model(df, fitted):
    steps = fitted.predict(h=3)
    assert steps.groupby("unique_id").size().tolist() == [3, 3]
    gaps = steps.groupby("unique_id", sort=False)["ds"].diff().dropna()
    assert (gaps > pd.Timedelta(0)).all()
    span = fitted.predict(horizon="36h")
    assert (span.groupby("unique_id", sort=False)["ds"].max() <= ends(df) + pd.Timedelta("36h")).all()
    assert (span.groupby("unique_id", sort=False)["ds"].min() > ends(df)).all()
    listed = fitted.predict(times=AHEAD)
    assert listed["ds"].tolist() == [*AHEAD, *AHEAD]
    rows = pd.DataFrame({"unique_id": ["a", "b", "a"], "ds": [AHEAD[1], AHEAD[0], AHEAD[0]]})
    framed = fitted.predict(times=rows)
    assert list(zip(framed["unique_id"], framed["ds"], strict=True)) == [
        ("b", AHEAD[0]),
        ("a", AHEAD[0]),
        ("a", AHEAD[1]),
    ]
    assert_same_forecast(fitted.predict(future_df=rows), framed, atol=0)
    both = fitted.predict()
    assert both["ds"].max() <= ends(df).max() + pd.Timedelta("2D")


@pytest.mark.parametrize("hours", [0.25, 7.3, 48, 24 * 9])
def test_24_horizons_shorter_longer_and_off_the_training_grid_are_answered(df, fitted, hours):
    answer = fitted.predict(times=ends(df).max() + pd.to_timedelta([hours], "h"), level=[80])
    assert np.isfinite(answer.filter(like="ctsattn").to_numpy()).all()


def test_24_two_ways_of_asking_at_once_are_refused(fitted):
    with pytest.raises(ValueError, match="'h' and 'times' were given"):
        fitted.predict(h=2, times=AHEAD)
    with pytest.raises(TypeError, match=r"must be an integer, got 2\.5"):
        fitted.predict(h=2.5)
    with pytest.raises(ValueError, match="`h` must lie between 1 and"):
        fitted.predict(h=0)
    with pytest.raises(ValueError, match="`times` is empty"):
        fitted.predict(times=[])
    with pytest.raises(TypeError, match="Times of kind integer"):
        fitted.predict(times=[1, 2])


# 25


@SHARED
@given(hours=st.lists(st.floats(-150, 150), min_size=1, max_size=12, unique=True), data=st.data())
def test_25_the_value_at_a_time_does_not_depend_on_the_other_asked_times(df, fitted, hours, data):
    end = ends(df)["a"]
    times = (end + pd.to_timedelta(hours, "h")).round("s").unique()
    pick = data.draw(st.sampled_from(list(times)))
    together = fitted.predict(times=list(times), level=[90]).query("unique_id == 'a'")
    alone = fitted.predict(times=[pick], level=[90]).query("unique_id == 'a'")
    assert_same_forecast(together[together["ds"] == pick], alone)


# 26


def test_26_the_value_of_a_series_depends_on_no_batch_size_other_series_or_padding(fitted):
    many = pd.concat([irregular((f"s{i}",), length=5 + 9 * i, seed=i) for i in range(6)])
    plain = fitted.predict(df=many, times=AHEAD, level=[80])
    for size in (1, 2, 64):
        assert_same_forecast(fitted.predict(df=many, times=AHEAD, level=[80], batch_size=size), plain)
    for name, rows in many.groupby("unique_id"):
        alone = fitted.predict(df=rows, times=AHEAD, level=[80])
        assert_same_forecast(alone, plain[plain["unique_id"] == name])


# 27


def test_27_times_before_and_between_observations_are_answered_and_flagged(df, fitted):
    own = df[df["unique_id"] == "a"]["ds"]
    inside, after = own.iloc[4] + (own.iloc[5] - own.iloc[4]) / 2, own.iloc[-1] + pd.Timedelta("1h")
    asked = pd.DataFrame({"unique_id": "a", "ds": [own.iloc[0] - pd.Timedelta("5h"), inside, after]})
    answer = fitted.predict(times=asked)
    assert answer["in_sample"].tolist() == [True, True, False]
    assert np.isfinite(answer["ctsattn"]).all()
    assert "in_sample" not in fitted.predict(h=1)


def test_27_imputed_values_look_at_both_sides(df):
    model = tiny(model=models.LastValue()).fit(df)
    one = pd.DataFrame({"ds": pd.date_range("2024-02-01", periods=20, freq="h"), "y": np.arange(20.0)})
    one.loc[[6, 13], "y"] = np.nan
    rows = one.assign(unique_id="n")[["unique_id", "ds", "y"]]
    answer = model.impute(df=rows, level=[50])
    np.testing.assert_allclose(answer["ctsattn"], [6.0, 13.0], atol=1e-4)
    assert answer["ds"].tolist() == one["ds"].iloc[[6, 13]].tolist()
    assert answer["in_sample"].all()
    with pytest.raises(ValueError, match=r"1 of 1 times lie after the last observation.*use `predict`"):
        model.impute(times=["2024-03-01"], df=rows)
    with pytest.raises(ValueError, match="No value of 'y' is missing"):
        model.impute(df=rows.dropna())
    with pytest.raises(ValueError, match="Say what to impute"):
        model.impute()


# 28


def test_28_new_ids_are_forecast_from_their_history(df, fitted):
    new = df[df["unique_id"] == "a"].assign(unique_id="new")
    assert_same_forecast(
        fitted.predict(df=new, times=AHEAD), fitted.predict(times=AHEAD).query("unique_id == 'a'"), atol=1e-5
    )


def test_28_ids_without_history_get_the_training_distribution_or_an_error(df, fitted):
    empty = pd.DataFrame({"unique_id": "new", "ds": [pd.Timestamp("2024-01-05")], "y": [np.nan]})
    answer = fitted.predict(df=pd.concat([df, empty]), h=2, level=[80])
    cold = answer[answer["unique_id"] == "new"]
    assert cold["cold_start"].all()
    assert answer["cold_start"].sum() == 2
    low, high = np.quantile(df["y"], [0.1, 0.9])
    np.testing.assert_allclose(cold["ctsattn-lo-80"], low, atol=1.0)
    np.testing.assert_allclose(cold["ctsattn-hi-80"], high, atol=1.0)
    assert (cold["ds"] > df["ds"].max()).all()
    with pytest.raises(ValueError, match="1 series have no observation of 'y' to forecast from: 'new'"):
        fitted.predict(df=pd.concat([df, empty]), h=2, cold_start=False)
    alone = fitted.predict(df=empty, times=AHEAD)
    assert alone["cold_start"].all()
    with pytest.raises(ValueError, match="steps ahead have no start"):
        fitted.predict(df=empty, h=1)


# 29


@pytest.fixture(scope="module")
def priced(df):
    rng = np.random.default_rng(8)
    return tiny(future_cols=["price"]).fit(df.assign(price=rng.random(len(df))))


@pytest.mark.parametrize("rows", [1, 2])
def test_29_a_future_frame_of_few_rows_works(df, priced, rows):
    future = pd.DataFrame({"unique_id": ["a", "b"], "ds": AHEAD, "price": [0.5, 0.6]}).head(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(priced.predict(future_df=future)) == rows


def test_29_missing_and_extra_rows_of_a_future_frame_are_a_table(df, priced):
    late = pd.Timestamp("2024-01-20")
    future = pd.DataFrame({"unique_id": ["a", "a", "b"], "ds": [AHEAD[0], late, AHEAD[1]], "price": 0.5})
    table = priced.missing_future(future, times=AHEAD)
    found = set(table[["unique_id", "ds", "status", "columns"]].itertuples(index=False, name=None))
    # Between the known values of a series a value is interpolated, so only what lies beyond is missing.
    assert found == {("a", late, "extra", "")}
    table = priced.missing_future(future[future["unique_id"] == "a"], times=AHEAD)
    missing = table[table["status"] == "missing"]
    assert missing["unique_id"].tolist() == ["b", "b"]
    assert missing["columns"].tolist() == ["price", "price"]
    with pytest.warns(DataWarning, match="2 of 4 asked rows lie beyond the last known value of 'price'"):
        priced.predict(times=AHEAD, future_df=future[future["unique_id"] == "a"])
    with pytest.raises(ValueError, match="none of the known-future covariates 'price'"):
        priced.predict(future_df=future.drop(columns="price"))


def test_29_a_covariates_effect_sits_at_its_own_time(df):
    # A pulse of the covariate moves the target at the same moment; its own clock is finer than the target's.
    rng = np.random.default_rng(9)
    hours = np.sort(rng.uniform(0, 600, 300))
    pulses = np.cumsum(rng.uniform(20, 55, 20)).round()  # at no period, so only the covariate tells when
    near = np.abs(hours[:, None] - pulses).min(1)
    start = pd.Timestamp("2024-01-01")
    frame = pd.DataFrame({"ds": start + pd.to_timedelta(hours, "h"), "y": 5.0 * np.exp(-((near / 3) ** 2))})
    fine = np.arange(0, 760, 1.0)
    height = np.exp(-((np.abs(fine[:, None] - pulses).min(1) / 3) ** 2))
    drive = pd.DataFrame({"ds": start + pd.to_timedelta(fine, "h"), "drive": height})
    model = tiny(horizon="4D").set_params(training__max_steps=80, training__learning_rate=3e-2)
    model.fit(frame, future_df=drive)
    peak = int(pulses[pulses > 612][0])
    asked = start + pd.to_timedelta(np.arange(peak - 15, peak + 16, 1.0), "h")
    answer = model.predict(times=asked)["ctsattn"].to_numpy()
    assert abs(int(answer.argmax()) - 15) <= 2
    assert answer.max() - np.median(answer) > 1.5


# 30


@SHARED
@given(
    values=st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e-12, 1e30, -1e60]), min_size=1, max_size=6),
    gap=st.sampled_from([1, 3600, 10**9]),
)
def test_30_no_forecast_is_ever_nan_without_a_word(fitted, values, gap):
    stamps = pd.Timestamp("1990-01-01") + pd.to_timedelta(np.arange(len(values)) * min(gap, 10**8), "s")
    frame = pd.DataFrame({"unique_id": "odd", "ds": stamps, "y": values})
    try:
        answer = fitted.predict(df=frame, h=3, level=[99])
    except ValueError as error:
        assert "odd" in str(error)
    else:
        assert np.isfinite(answer.filter(like="ctsattn").to_numpy()).all()


def test_30_a_network_that_gives_nan_is_an_error_that_names_the_series(df, fitted):
    broken = pickle.loads(pickle.dumps(fitted))
    for parameter in broken.fitted_.network.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(
        ValueError, match="not finite for 2 series, in 4 rows: unique_id 'b' at ds 2024-01-12"
    ):
        broken.predict(times=AHEAD)


# 31


def test_31_memory_grows_with_the_observations_and_not_with_the_union_of_times(fitted):
    # A14: series at random times of their own against the same number on a shared grid.
    rng = np.random.default_rng(10)
    start = pd.Timestamp("2024-01-01")

    def peak(own_times: bool) -> int:
        hours = np.arange(50) * 6.0
        parts = []
        for number in range(200):
            moments = np.sort(rng.uniform(0, 300, 50)) if own_times else hours
            stamps = start + pd.to_timedelta(moments, "h")
            parts.append(pd.DataFrame({"unique_id": f"s{number}", "ds": stamps, "y": rng.random(50)}))
        frame = pd.concat(parts, ignore_index=True)
        tracemalloc.start()
        fitted.predict(df=frame, h=2)
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return top

    for own_times in (False, True):
        peak(own_times)  # what is loaded or compiled once does not count
    assert peak(True) < 2 * peak(False)


# 32


def test_32_levels_and_quantiles_are_the_same_numbers_and_the_median_is_always_there(fitted):
    by_level = fitted.predict(times=AHEAD, level=[80, 95.5])
    by_quantile = fitted.predict(times=AHEAD, quantiles=[0.0225, 0.1, 0.9, 0.9775])
    pairs = {"lo-80": "q0.1", "hi-80": "q0.9", "lo-95.5": "q0.0225", "hi-95.5": "q0.9775"}
    for level, quantile in pairs.items():
        np.testing.assert_allclose(
            by_level[f"ctsattn-{level}"], by_quantile[f"ctsattn-{quantile}"], atol=1e-6
        )
    assert "ctsattn-q0.5" not in by_quantile
    np.testing.assert_allclose(
        by_quantile["ctsattn"], fitted.predict(times=AHEAD, quantiles=[0.5])["ctsattn-q0.5"], atol=1e-6
    )
    with pytest.raises(ValueError, match="`level` or `quantiles`, not both"):
        fitted.predict(times=AHEAD, level=[80], quantiles=[0.1])
    for bad in ([0], [100], [-5]):
        with pytest.raises(ValueError, match="`level` must lie between 0 and 100"):
            fitted.predict(times=AHEAD, level=bad)


@SHARED
@given(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=19, unique=True))
def test_32_quantiles_never_cross(fitted, levels):
    # A12: a ramp and a short sine, 19 quantiles.
    ramp = pd.DataFrame({"unique_id": "r", "ds": pd.date_range("2024-01-01", periods=12, freq="h")})
    ramp["y"] = np.arange(12.0)
    sine = ramp.assign(unique_id="s", y=np.sin(np.arange(12.0)))
    answer = fitted.predict(df=pd.concat([ramp, sine]), h=30, quantiles=levels)
    order = sorted(answer.filter(like="-q"), key=lambda name: float(name.removeprefix("ctsattn-q")))
    assert len(order) == len({round(q, 12) for q in levels})
    assert (np.diff(answer[order].to_numpy(), axis=1) >= 0).all()


# 33


def test_33_paths_are_joint_reproducible_and_have_the_quantiles_of_the_forecast(fitted):
    asked = pd.date_range("2024-01-12", periods=6, freq="3h")
    paths = fitted.sample(2000, times=asked, seed=1)
    assert paths.columns.tolist() == ["unique_id", "ds", "sample", "ctsattn"]
    assert len(paths) == 2 * 6 * 2000
    assert_same_forecast(paths, fitted.sample(2000, times=asked, seed=1), atol=0)
    assert np.abs(paths["ctsattn"] - fitted.sample(2000, times=asked, seed=2)["ctsattn"]).max() > 0.01
    levels = [0.1, 0.25, 0.5, 0.75, 0.9]
    forecast = fitted.predict(times=asked, quantiles=levels).set_index(["unique_id", "ds"])
    for (name, when), values in paths.groupby(["unique_id", "ds"])["ctsattn"]:
        for q in levels:
            below = (values < forecast.loc[(name, when), f"ctsattn-q{q:g}"]).mean()
            assert below == pytest.approx(q, abs=4.5 * np.sqrt(q * (1 - q) / 2000))


def test_33_neighbouring_times_of_a_path_hang_together_as_the_law_says(df, fitted):
    law = fitted.fitted_.correlation
    unit = fitted.fitted_.spec.time_unit
    step = pd.Timedelta(max(law.decay, 1e-3) * unit / 2, "s")
    asked = [pd.Timestamp("2024-01-12"), pd.Timestamp("2024-01-12") + step.round("s")]
    paths = fitted.sample(4000, times=asked, seed=3).query("unique_id == 'a'")
    wide = paths.pivot(index="sample", columns="ds", values="ctsattn").rank()
    z = norm.ppf(wide / (len(wide) + 1))
    elapsed = np.diff(wide.columns.to_numpy()).astype("m8[ns]").astype(float)[0] * 1e-9 / unit
    assert np.corrcoef(z.T)[0, 1] == pytest.approx(float(law(np.array(elapsed))), abs=0.05)


# 34


def test_34_calibrated_bands_cover_what_they_claim_near_and_far():
    # Random walks: the spread grows with elapsed time, which a model trained for three steps does not know.
    rng = np.random.default_rng(11)

    def walks(count: int, name: str) -> pd.DataFrame:
        hours = np.arange(40.0)
        parts = [
            pd.DataFrame(
                {
                    "unique_id": f"{name}{i}",
                    "ds": pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, "h"),
                    "y": rng.standard_normal(40).cumsum(),
                }
            )
            for i in range(count)
        ]
        return pd.concat(parts, ignore_index=True)

    def coverage(model: Forecaster, test: pd.DataFrame) -> tuple[float, float]:
        start = pd.Timestamp("2024-01-01 23:00")
        history, later = test[test["ds"] <= start], test[test["ds"] > start]
        later = later[later["ds"] <= start + pd.Timedelta("16h")]
        answer = model.predict(df=history, times=later[["unique_id", "ds"]], level=[80]).merge(later)
        inside = answer["y"].between(answer["ctsattn-lo-80"], answer["ctsattn-hi-80"])
        near = answer["ds"] <= start + pd.Timedelta("4h")
        return inside[near].mean(), inside[~near].mean()

    model = tiny(horizon="16h", model=models.LastValue()).fit(walks(20, "t"))
    test = walks(500, "v")
    raw = coverage(model, test)
    assert model.calibrate(walks(400, "c"), level=[80]) is model
    near, far = coverage(model, test)
    assert near == pytest.approx(0.8, abs=0.03)
    assert far == pytest.approx(0.8, abs=0.03)
    assert max(abs(raw[0] - 0.8), abs(raw[1] - 0.8)) > 0.03


def test_34_a_cross_validation_says_that_it_is_not_calibrated(df):
    model = tiny(model=models.LastValue()).fit(df).calibrate(df.assign(unique_id=df["unique_id"] + "+"))
    bare = tiny(model=models.LastValue()).cross_validation(df, n_windows=2)
    with pytest.warns(TrainingWarning, match="these bands are not calibrated"):
        pd.testing.assert_frame_equal(model.cross_validation(df, n_windows=2), bare)


def test_34_calibrating_on_the_training_data_themselves_is_refused(df, fitted):
    with pytest.raises(ValueError, match="only cutoffs after the end of their training data count"):
        pickle.loads(pickle.dumps(fitted)).calibrate(df)
