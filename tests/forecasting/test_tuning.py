"""`tune`: a seeded search that can be broken off, by weighted quantile loss in a cross-validation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ctsattn import metrics, models
from ctsattn.forecasting import tune

from .conftest import tiny

PERIODS = [6.0, 13.0, 17.0, 24.0, 35.0]
SPACE = {"model": [models.SeasonalNaive(period=p) for p in PERIODS], "lookback": (48, 96)}


@pytest.fixture(scope="module")
def daily() -> pd.DataFrame:
    hours = np.arange(300)
    y = 10 + np.sin(2 * np.pi * hours / 24) + 0.05 * np.random.default_rng(0).standard_normal(300)
    return pd.DataFrame({"ds": pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, "h"), "y": y})


def forecaster(**options):
    return tiny(**{"horizon": "12h", **options})


def test_the_search_finds_the_period_that_the_data_have(daily):
    start = forecaster()
    tuned = tune(start, daily, SPACE, n_trials=12)
    assert tuned.params["model"].period == 24.0
    assert tuned.score == tuned.trials["score"].min()
    assert tuned.trials["score"].nunique() > 2
    assert 48 <= tuned.params["lookback"] <= 96
    assert tuned.forecaster.model == tuned.params["model"]
    assert start.get_params() == forecaster().get_params()
    assert np.isfinite(tuned.forecaster.fit(daily).predict(h=2)["ctsattn"]).all()


def test_the_score_is_the_weighted_quantile_loss_of_the_cross_validation(daily):
    tuned = tune(forecaster(), daily, {"model": [models.LastValue()]}, n_trials=1, n_windows=3)
    deciles = [q / 10 for q in range(1, 10)]
    cv = forecaster(model=models.LastValue()).cross_validation(daily, n_windows=3, quantiles=deciles)
    expected = metrics.evaluate(cv, ["wql"], models=["ctsattn"], by=(), quantiles=deciles)["ctsattn"].item()
    assert tuned.score == pytest.approx(expected)


def test_a_search_that_was_broken_off_goes_on_as_if_it_had_not_been(daily, tmp_path):
    whole = tune(forecaster(), daily, SPACE, n_trials=8, random_state=5).trials
    calls = []

    class Power(Exception):
        pass

    def cut(number, score, params):
        calls.append(number)
        if number == 4:
            raise Power

    with pytest.raises(Power):
        tune(forecaster(), daily, SPACE, n_trials=8, random_state=5, path=tmp_path / "log", callback=cut)
    tuned = tune(
        forecaster(),
        daily,
        SPACE,
        n_trials=8,
        random_state=5,
        path=tmp_path / "log",
        callback=lambda number, score, params: calls.append(number),
    )
    assert calls == list(range(8))
    pd.testing.assert_frame_equal(tuned.trials, whole)
    again = tune(forecaster(), daily, SPACE, n_trials=8, path=tmp_path / "log")
    pd.testing.assert_frame_equal(again.trials, whole)


def test_the_seed_decides_the_search(daily):
    space = {"lookback": (20, 200)}
    model = forecaster(model=models.WindowMean())
    first, second, other = (
        tune(model, daily, space, n_trials=4, random_state=seed).trials["lookback"].tolist()
        for seed in (1, 1, 2)
    )
    assert first == second != other


def test_fields_of_configs_are_searched_and_wide_ranges_on_a_logarithmic_scale(daily):
    space = {"training__learning_rate": (1e-5, 1e-1), "training__max_steps": (1, 2)}
    trials = tune(forecaster(), daily, space, n_trials=6).trials
    rates = np.log10(trials["training__learning_rate"])
    assert rates.between(-5, -1).all()
    assert (rates < -2).sum() >= 2  # evenly spread rates would lie there one time in ten
    assert set(trials["training__max_steps"]) <= {1, 2}


def test_polars_frames_of_another_dialect_are_searched_too(daily):
    native = pl.from_pandas(daily.rename(columns={"ds": "timestamp", "y": "target"}))
    assert np.isfinite(tune(forecaster(), native, {"model": [models.LastValue()]}, n_trials=1).score)


def test_several_targets_are_scored_together(daily):
    frame = daily.assign(z=daily["y"] * 2)
    model = forecaster(target_col=["y", "z"])
    assert np.isfinite(tune(model, frame, {"model": [models.LastValue()]}, n_trials=1).score)


def test_the_search_says_nothing_and_leaves_optunas_verbosity(daily, capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    tune(forecaster(), daily, {"model": [models.LastValue()]}, n_trials=2)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"space": {}}, "`space` names no parameter"),
        ({"space": {"training__steps": [1]}}, "Training has no option 'steps'; it has max_steps"),
        ({"space": {"lookback": (5, 5)}}, r"The range of 'lookback' must be \(low, high\) with low < high"),
        ({"space": {"lookback": (1, 2, 3)}}, "The range of 'lookback'"),
        ({"space": {"lookback": []}}, "The choices of 'lookback' must be a list"),
        ({"space": {"lookback": "36h"}}, "The choices of 'lookback' must be a list"),
        ({"space": {"lookback": [24]}, "n_trials": 0}, "`n_trials` must be an integer of at least 1"),
        ({"space": {"lookback": [24]}, "path": "no/folder/log"}, "The folder 'no/folder' does not exist"),
    ],
)
def test_searches_that_cannot_be_made_are_refused_by_name(daily, options, text):
    with pytest.raises(ValueError, match=text):
        tune(forecaster(), daily, **options)
