"""Behaviours 35 to 37 and 43 of the forecaster: cross-validation, scores, pictures."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from utilsforecast.evaluation import evaluate
from utilsforecast.losses import coverage, mae
from utilsforecast.plotting import plot_series

from ctsattn import metrics, models
from ctsattn.forecasting import fitting

from .conftest import assert_same_forecast, irregular, tiny


def instant(**options):
    return tiny(model=models.LastValue(), **options)


# 35


def test_35_cross_validation_gives_forecast_and_truth_at_the_true_times(df):
    cv = tiny().cross_validation(df, n_windows=2, level=[80])
    assert cv.columns.tolist() == [
        "unique_id",
        "ds",
        "cutoff",
        "ctsattn",
        "ctsattn-lo-80",
        "ctsattn-hi-80",
        "y",
    ]
    assert (cv["ds"] > cv["cutoff"]).all()
    assert (cv["ds"] <= cv["cutoff"] + pd.Timedelta("2D")).all()
    merged = cv.merge(df, on=["unique_id", "ds"], suffixes=("", "_true"))
    assert len(merged) == len(cv)
    assert (merged["y"] == merged["y_true"]).all()
    ends = df.groupby("unique_id")["ds"].max()
    for name, rows in cv.groupby("unique_id"):
        expected = ends[name] - pd.Timedelta("2D") * np.array([2, 1])
        assert sorted(rows["cutoff"].unique()) == list(expected)
        for cutoff in expected:  # every later row within the horizon is there
            own = df[df["unique_id"] == name]["ds"]
            inside = own[(own > cutoff) & (own <= cutoff + pd.Timedelta("2D"))]
            assert rows[rows["cutoff"] == cutoff]["ds"].tolist() == inside.tolist()


def test_35_windows_may_be_chosen_by_cutoffs_by_a_span_and_by_numbers_of_rows(df):
    moments = [pd.Timestamp("2024-01-04"), pd.Timestamp("2024-01-05 12:00")]
    cv = instant().cross_validation(df, cutoffs=moments)
    assert sorted(cv["cutoff"].unique()) == moments
    cv = instant().cross_validation(df, span="5D", step="1D")
    assert cv.groupby("unique_id")["cutoff"].nunique().tolist() == [4, 4]
    regular = pd.DataFrame({"ds": pd.date_range("2024-01-31", periods=30, freq="ME"), "y": np.arange(30.0)})
    cv = instant(horizon=3).cross_validation(regular, n_windows=3, step=2)
    assert cv.groupby("cutoff").size().tolist() == [3, 3, 3]
    assert sorted(cv["cutoff"].unique()) == list(regular["ds"].iloc[[22, 24, 26]])
    for bad in ({"n_windows": 0}, {"n_windows": 1.5}):
        with pytest.raises(ValueError, match="`n_windows` must be an integer of at least 1"):
            instant().cross_validation(df, **bad)
    with pytest.raises(ValueError, match="'n_windows' and 'cutoffs' were given"):
        instant().cross_validation(df, n_windows=1, cutoffs=moments)
    with pytest.raises(ValueError, match="No observation precedes the first cutoff"):
        instant().cross_validation(df, cutoffs=["1999-01-01"])


@pytest.mark.parametrize("refit", [False, True])
def test_35_no_training_row_is_later_than_its_cutoff(df, monkeypatch, refit):
    trained = []
    fit = fitting.fit_network
    monkeypatch.setattr(
        "ctsattn.forecasting.learning.fit_network",
        lambda network, start, store, *a, **k: trained.append(store) or fit(network, start, store, *a, **k),
    )
    cv = instant().cross_validation(df, n_windows=3, refit=refit)
    assert len(trained) == (3 if refit else 1)
    ids = trained[0].source.ids
    for number, store in enumerate(trained):
        for position, name in enumerate(ids):
            cutoff = sorted(cv[cv["unique_id"] == name]["cutoff"].unique())[number]
            assert store.source.clock.restore(store.end)[position] <= cutoff


def test_35_a_training_row_after_its_cutoff_is_an_error_of_ours(df, monkeypatch):
    monkeypatch.setattr("ctsattn.forecasting.backtest.panel_until", lambda panel, cutoff: panel)
    with pytest.raises(RuntimeError, match="later than its cutoff"):
        instant().cross_validation(df, n_windows=1)


def test_35_cross_validation_does_not_change_the_estimator(df, fitted):
    before = fitted.predict(h=2)
    fitted.cross_validation(df, n_windows=1)
    assert_same_forecast(fitted.predict(h=2), before, atol=0)
    unfitted = tiny()
    unfitted.cross_validation(df, n_windows=1)
    assert not hasattr(unfitted, "fitted_")


# 36


def test_36_utilsforecast_takes_the_frame_as_it_is_and_agrees_with_our_scores(df):
    cv = tiny().cross_validation(df, n_windows=2, level=[80])
    theirs = evaluate(cv, [mae, coverage], level=[80]).set_index(["unique_id", "cutoff", "metric"])
    ours = metrics.evaluate(cv, ["mae", "coverage"], level=[80]).replace(
        {"metric": {"coverage-80": "coverage"}}
    )
    ours = ours.set_index(["unique_id", "cutoff", "metric"])
    np.testing.assert_allclose(ours["ctsattn"].sort_index(), theirs["ctsattn"].sort_index())
    assert ours["rows"].xs("mae", level="metric").sum() == len(cv)


def test_36_utilsforecast_plots_forecasts_and_cross_validations_as_they_are(df, fitted):
    for forecast in (
        fitted.predict(h=4, level=[80]),
        fitted.cross_validation(df, n_windows=1, level=[80]).drop(columns=["y", "cutoff"]),
    ):
        figure = plot_series(df, forecast, level=[80])
        drawn = [ax for ax in figure.axes if ax.lines]
        assert len(drawn) == 2
        assert all(len(ax.lines) == 2 and len(ax.collections) == 1 for ax in drawn)


def test_36_the_score_is_minus_the_weighted_quantile_loss_on_the_last_horizon(df, fitted):
    deciles = [q / 10 for q in range(1, 10)]
    numerator, rows = 0.0, 0.0
    for _, own in df.groupby("unique_id", sort=False):
        cutoff = own["ds"].max() - pd.Timedelta("2D")
        future = own[own["ds"] > cutoff]
        answer = fitted.predict(df=own[own["ds"] <= cutoff], times=future["ds"].tolist(), quantiles=deciles)
        for q in deciles:
            error = future["y"].to_numpy() - answer[f"ctsattn-q{q:g}"].to_numpy()
            numerator += 2 * np.maximum(q * error, (q - 1) * error).sum() / len(deciles)
        rows += future["y"].abs().sum()
    assert fitted.score(df) == pytest.approx(-numerator / rows, rel=1e-5)


def test_36_the_score_of_a_constant_series_is_defined():
    constant = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=60, freq="h"), "y": 0.0})
    assert np.isfinite(instant(horizon="6h").fit(constant).score(constant))


# 37


def test_37_a_cross_validation_forecasts_as_predict_does_from_the_rows_before_the_cutoff(df):
    cutoff = pd.Timestamp("2024-01-05")
    cv = tiny().cross_validation(df, cutoffs=[cutoff], level=[80])
    model = tiny().fit(df[df["ds"] <= cutoff])
    assert_same_forecast(model.predict(times=cv[["unique_id", "ds"]], level=[80]), cv)


def test_37_changing_what_comes_after_the_cutoff_changes_no_forecast(df, fitted):
    cutoff = pd.Timestamp("2024-01-05")
    changed = df.assign(y=df["y"].where(df["ds"] <= cutoff, df["y"] * -7 + 100))
    first = tiny().cross_validation(df, cutoffs=[cutoff], level=[80])
    second = tiny().cross_validation(changed, cutoffs=[cutoff], level=[80])
    assert_same_forecast(first, second, atol=0)
    assert (first["y"] != second["y"]).all()
    both = [fitted.predict(df=f[f["ds"] <= cutoff], h=3) for f in (df, changed)]
    assert_same_forecast(*both, atol=0)


# 43


def test_43_plots_draw_bands_and_cutoffs_and_open_no_window(df, fitted, monkeypatch):
    assert matplotlib.get_backend().lower() == "agg"
    monkeypatch.setattr("matplotlib.pyplot.show", lambda *a, **k: pytest.fail("a window was opened"))
    figure = fitted.plot(h=5, level=[80])
    assert len(figure.axes) == 2
    assert all(ax.collections for ax in figure.axes)  # the bands
    assert all(len(ax.lines) >= 2 for ax in figure.axes)
    cv = fitted.cross_validation(df, n_windows=2, level=[80])
    assert fitted.plot(cv, ids=["a"]).axes
    targets = tiny(target_col=["y", "z"]).fit(irregular().assign(z=1.0))
    assert targets.plot(h=2).axes
