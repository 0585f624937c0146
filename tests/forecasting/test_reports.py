"""Public bug reports of other libraries, A1 to A14, each as a small case of its kind.

A11 is in `test_behaviours_keep`, A13 in `test_behaviours_fit`, A12 and A14 in `test_behaviours_predict`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ctsattn import models
from ctsattn.forecasting import Training

from .conftest import assert_same_forecast, irregular, tiny

AHEAD = pd.to_datetime(["2024-01-12 03:00", "2024-01-13 17:30"])


def test_a1_an_hourly_frame_over_the_autumn_clock_change_is_forecast_hour_by_hour():
    stamps = pd.date_range("2024-10-25", periods=80, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame({"ds": stamps, "y": np.sin(np.arange(80) * 2 * np.pi / 24)})
    answer = tiny(horizon="4h").fit(frame).predict(h=4)
    assert str(answer["ds"].dt.tz) == "Europe/Berlin"
    elapsed = answer["ds"].dt.tz_convert("UTC") - stamps[-1].tz_convert("UTC")
    assert elapsed.tolist() == [pd.Timedelta(k, "h") for k in (1, 2, 3, 4)]


def test_a2_rows_that_were_dropped_shift_nothing_in_sample():
    stamps = pd.date_range("2024-01-01", periods=240, freq="h")
    full = pd.DataFrame({"ds": stamps, "y": np.sin(np.arange(240) * 2 * np.pi / 24)})
    kept = full[np.random.default_rng(0).random(240) > 0.3]
    model = tiny(model=models.SeasonalNaive(period=24.0), horizon="12h")
    errors = {}
    for name, frame in {"full": full, "kept": kept}.items():
        cv = model.cross_validation(frame, n_windows=3)
        assert set(cv["ds"]) <= set(frame["ds"])
        errors[name] = (cv["ctsattn"] - cv["y"]).abs().mean()
    assert errors["kept"] < 2 * max(errors["full"], 0.05)


def test_a3_a_missing_covariate_gives_no_missing_forecast(df):
    frame = df.assign(x=np.arange(len(df), dtype=float))
    frame.loc[[7, 29, 59], "x"] = np.nan
    answer = tiny(past_cols=["x"]).fit(frame).predict(h=3)
    assert np.isfinite(answer["ctsattn"]).all()


def test_a4_real_integer_times_reach_the_model(monkeypatch):
    times = np.array([10, 20, 35, 50, 80, 120])
    frame = pd.DataFrame({"ds": times, "y": [1.0, 2, 3, 2, 1, 2]})
    seen = []
    forward = models.LastValue().build(tiny(horizon=40).fit(frame).fitted_.spec).__class__.forward

    def spy(self, batch):
        seen.append(batch.past_times.numpy().copy() * self.spec.time_unit)
        return forward(self, batch)

    monkeypatch.setattr("ctsattn.models.naive.AnchorNetwork.forward", spy)
    tiny(horizon=40, model=models.LastValue()).fit(frame).predict(times=[130])
    np.testing.assert_allclose(seen[-1][0, 0], times - 120, atol=1e-4)


def test_a5_an_integer_target_is_forecast_like_a_float(df):
    whole = df.assign(y=df["y"].round())
    first = tiny().fit(whole).predict(times=AHEAD)
    second = tiny().fit(whole.astype({"y": "int64"})).predict(times=AHEAD)
    assert_same_forecast(first, second, atol=0)


def test_a6_duplicates_in_late_series_are_seen():
    frame = pd.DataFrame(
        {
            "unique_id": np.arange(150).repeat(5),
            "ds": np.tile(pd.date_range("2024-01-01", periods=5, freq="h"), 150),
            "y": 1.0,
        }
    )
    late = frame[(frame["unique_id"] >= 100) & (frame["ds"] == "2024-01-01 02:00")].assign(y=2.0)
    with pytest.raises(
        ValueError, match=r"in 50 series, 100 rows.* 2 rows at unique_id 100 at ds 2024-01-01 02"
    ):
        tiny().fit(pd.concat([frame, late]))


def test_a7_new_data_are_scaled_by_themselves(df, fitted):
    once = fitted.predict(df=df, times=AHEAD, level=[80]).filter(like="ctsattn")
    hundred = fitted.predict(df=df.assign(y=df["y"] * 100), times=AHEAD, level=[80]).filter(like="ctsattn")
    np.testing.assert_allclose(hundred / once, 100, rtol=0.01)


def test_a8_pyarrow_backed_columns_give_the_same_forecast(df, fitted):
    arrow = df.astype(
        {"unique_id": "string[pyarrow]", "ds": "timestamp[us][pyarrow]", "y": "double[pyarrow]"}
    )
    answer = tiny().fit(arrow).predict(times=AHEAD)
    assert_same_forecast(answer, fitted.predict(times=AHEAD), atol=1e-6)
    assert answer["ds"].dtype == arrow["ds"].dtype
    assert answer["unique_id"].dtype == arrow["unique_id"].dtype


@pytest.mark.parametrize("rows", [1, 2])
def test_a9_a_future_frame_of_one_or_two_rows_is_enough(df, rows):
    model = tiny(future_cols=["x"]).fit(df.assign(x=np.arange(len(df)) % 3.0))
    future = pd.DataFrame({"unique_id": ["a"] * rows, "ds": AHEAD[:rows], "x": [1.0] * rows})
    assert len(model.predict(future_df=future)) == rows


def test_a_known_irregular_sine_is_forecast_better_than_by_its_last_value_or_mean():
    rng = np.random.default_rng(12)
    hours = np.sort(rng.uniform(0, 900, 400))
    y = np.sin(2 * np.pi * hours / 24) + 0.05 * rng.standard_normal(400)
    start = pd.Timestamp("2024-01-01")
    frame = pd.DataFrame({"ds": start + pd.to_timedelta(hours, "h"), "y": y})
    model = tiny(
        horizon="2D", lookback="8D", training=Training(max_steps=60, learning_rate=1e-2, accelerator="cpu")
    )
    model.fit(frame)
    asked = 900 + rng.uniform(0, 48, 40)
    answer = model.predict(times=start + pd.to_timedelta(np.sort(asked), "h"), level=[80])
    truth = np.sin(2 * np.pi * np.sort(asked) / 24)
    error = np.abs(answer["ctsattn"] - truth).mean()
    assert error < 0.15 < np.abs(truth).mean() / 3
    inside = (answer["ctsattn-lo-80"] <= truth) & (truth <= answer["ctsattn-hi-80"])
    assert inside.mean() > 0.5


def test_shared_frames_have_irregular_steps():
    gaps = irregular().groupby("unique_id")["ds"].diff().dropna()
    assert gaps.nunique() > 20
