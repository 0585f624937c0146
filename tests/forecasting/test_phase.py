"""A model that tells the time of the day knows it whatever history it is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from ctsattn import Forecaster
from ctsattn.data.clock import Clock
from ctsattn.data.schema import Origin
from ctsattn.forecasting import Training
from ctsattn.models import Linear

from .conftest import assert_same_forecast

BEGIN = pd.Timestamp("2024-03-01 05:00")
QUICK = Training(max_steps=1, learning_rate=1e-9, batch_size=8, accelerator="cpu", patience=None)


def turning(begin: Any = BEGIN, hours: int = 24 * 60) -> pd.DataFrame:
    """Hourly noise whose sign comes back a day later, or turns, as the time of the day says."""
    at = np.arange(hours)
    rng = np.random.default_rng(0)
    y = rng.standard_normal(hours)
    for t in range(24, hours):
        y[t] = 0.9 * np.cos(2 * np.pi * t / 24) * y[t - 12] + 0.3 * y[t]
    ds = begin + pd.to_timedelta(at, "h") if isinstance(begin, pd.Timestamp) else begin + at
    return pd.DataFrame({"unique_id": "a", "ds": ds, "y": y})


def learner() -> Forecaster:
    model = Linear(by_phase=True, head="squared_error", anchors=("mean",))
    return Forecaster(horizon="12h", lookback="48h", model=model, training=QUICK, verbose=False)


@pytest.fixture(scope="module")
def df() -> pd.DataFrame:
    return turning()


@pytest.fixture(scope="module")
def fitted(df: pd.DataFrame) -> Forecaster:
    return learner().fit(df)


@pytest.mark.parametrize("cut", [1, 5, 11, 12, 24, 37, 500])
def test_a_history_cut_anywhere_gives_the_same_forecast(df, fitted, cut):
    kernel = fitted.fitted_.network.linear.kernel
    assert kernel.by_phase.abs().max() > 0.05  # the phase matters here
    assert_same_forecast(fitted.predict(df=df.iloc[cut:]), fitted.predict(), atol=0)


def test_another_time_of_the_day_gives_another_forecast(df, fitted):
    later = df.assign(ds=df["ds"] + pd.Timedelta("6h"))
    moved, usual = fitted.predict(df=later)["ctsattn"], fitted.predict(df=df)["ctsattn"]
    assert np.abs(moved.to_numpy() - usual.to_numpy()).max() > 0.05


def test_a_saved_model_still_knows_the_time(df, fitted, tmp_path):
    fitted.save(tmp_path / "model.ctsattn")
    loaded = Forecaster.load(tmp_path / "model.ctsattn")
    assert_same_forecast(loaded.predict(df=df.iloc[7:]), fitted.predict(), atol=0)


def test_history_in_nanoseconds_means_the_same_moments(df, fitted):
    finer = df.assign(ds=df["ds"].astype("datetime64[ns]") + pd.Timedelta(1, "ns"))
    assert_same_forecast(fitted.predict(df=finer.iloc[7:]), fitted.predict(), atol=1e-5)


def test_the_same_shift_at_fit_and_predict_changes_nothing(df, fitted):
    shift = pd.Timedelta("1234 days 5h 7min 11s")
    moved = df.assign(ds=df["ds"] + shift)
    assert_same_forecast(learner().fit(moved).predict(df=moved.iloc[3:]), fitted.predict(), atol=0)


@pytest.mark.parametrize(
    ("origin", "clock", "expected"),
    [
        (Origin(7, 10**6), Clock("datetime", 10**9), 7000),
        (Origin(7999, 10**9), Clock("datetime", 10**6), 7),
        (Origin(7, 10**6), Clock("datetime", 10**6), 7),
        (Origin(2.5), Clock("float"), 2.5),
    ],
)
def test_an_origin_is_the_same_moment_on_a_finer_or_coarser_clock(origin, clock, expected):
    assert origin.on(clock) == expected
