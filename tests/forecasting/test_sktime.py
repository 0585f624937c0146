"""The adapter of sktime; it runs where sktime is installed, in an environment of its own.

sktime 1.2 forbids the pandas that the other tests run with, and its conformance suite takes minutes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime", reason="needs the extra `sktime` in an environment of its own")

from sktime.utils.estimator_checks import check_estimator

from ctsattn import Forecaster, models
from ctsattn.forecasting.sktime import SktimeForecaster

pytestmark = [
    # sktime announces a change of its own defaults whenever a forecaster is made.
    pytest.mark.filterwarnings("ignore::FutureWarning:sktime"),
    pytest.mark.filterwarnings("ignore:The default of config ``remember_data``"),
    # Its own normal distribution stands in for those of skpro where that is not installed, and says so.
    pytest.mark.filterwarnings("ignore:Forecasters' predict_proba requires skpro"),
    # sktime joins the forecasts of `update_predict` by a call that pandas is to change.
    pytest.mark.filterwarnings("ignore:Sorting by default when concatenating all DatetimeIndex"),
]


def daily(rows: int = 60) -> pd.Series:
    index = pd.date_range("2024-01-01", periods=rows, freq="D")
    return pd.Series(np.sin(np.arange(rows) / 3), index=index, name="load")


def naive(**options) -> SktimeForecaster:
    return SktimeForecaster(**{"horizon": 7, "model": models.SeasonalNaive(), **options})


def test_forecasts_are_those_of_the_forecaster_under_the_index_of_sktime():
    y = daily()
    found = naive().fit(y).predict(fh=[1, 2, 5])
    frame = pd.DataFrame({"ds": y.index, "y": y.to_numpy()})
    model = Forecaster(horizon=7, model=models.SeasonalNaive(), verbose=False).fit(frame)
    expected = model.predict(times=found.index)
    np.testing.assert_allclose(found.to_numpy().ravel(), expected["ctsattn"])
    assert found.index.tolist() == (y.index[-1] + pd.to_timedelta([1, 2, 5], "D")).tolist()


def test_irregular_series_are_asked_by_absolute_times():
    days = np.random.default_rng(0).exponential(2.0, 50).cumsum()
    index = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(days * 86400), "s")
    asked = index[-1] + pd.to_timedelta([5, 30], "h")
    found = naive(horizon="5D").fit(pd.Series(np.sin(days), index=index)).predict(fh=asked)
    assert found.index.tolist() == list(asked)
    assert np.isfinite(found.to_numpy()).all()


def test_an_update_without_training_forecasts_from_the_new_rows():
    y = daily()
    model = naive(model=models.LastValue()).fit(y.iloc[:50])
    model.update(y.iloc[50:], update_params=False)
    found = model.predict(fh=[1])
    assert found.index[0] == y.index[-1] + pd.Timedelta("1D")
    assert found.to_numpy().item() == pytest.approx(y.iloc[-1], abs=1e-5)


@pytest.mark.timeout(3600)
def test_the_adapter_passes_the_conformance_suite_of_sktime():
    results = check_estimator(SktimeForecaster, raise_exceptions=False, verbose=False)
    assert len(results) > 300
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}
