"""The statistics of the study against closed forms and simulations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.hypotheses.statistics import (
    FAILURE_RATIO,
    bootstrap,
    dataset_means,
    difference,
    holm,
    paired_log_ratios,
    slope,
    wilcoxon,
)


def rows_of(effect: float, rng, datasets: int = 12, seeds: int = 5, noise: float = 0.01) -> pd.DataFrame:
    """Result rows in which arm "new" is better than "old" by `effect` in the logarithm, with noise."""
    records = []
    for d in range(datasets):
        for h in (24, 48):
            for s in range(seeds):
                base = np.exp(rng.normal())
                ratio = np.exp(effect + noise * rng.normal())
                for arm, value in (("old", base), ("new", base * ratio)):
                    records.append((arm, f"d{d}", "all", h, s, "mse", value))
    return pd.DataFrame(records, columns=["arm", "data", "condition", "horizon", "seed", "metric", "value"])


def test_a_known_effect_is_recovered_and_the_interval_holds_it(rng):
    ratios = paired_log_ratios(rows_of(-0.03, rng), "new", "old")
    interval = bootstrap(ratios, draws=2000)
    assert interval.low < -0.03 < interval.high
    assert interval.high - interval.low < 0.01
    assert wilcoxon(ratios) < 0.001


def test_the_interval_covers_the_truth_about_as_often_as_it_says(rng):
    hits = 0
    for trial in range(120):
        frame = rows_of(0.0, rng, datasets=12, seeds=3, noise=0.05)
        interval = bootstrap(paired_log_ratios(frame, "new", "old"), draws=400, seed=trial)
        hits += interval.low <= 0 <= interval.high
    assert 0.86 <= hits / 120 <= 1.0


def test_a_data_set_counts_once_however_many_conditions_and_horizons_it_has():
    ratios = pd.DataFrame(
        {
            "data": ["a"] * 4 + ["b"],
            "condition": ["x", "x", "y", "y", "x"],
            "horizon": [1, 2, 1, 2, 1],
            "seed": 0,
            "r": [0.1, 0.3, 0.5, 0.7, -0.4],
        }
    )
    assert dataset_means(ratios).to_dict() == pytest.approx({"a": 0.4, "b": -0.4})
    assert bootstrap(ratios, draws=50).mean == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_diverged_is_a_loss_and_two_are_a_draw(rng):
    frame = rows_of(0.0, rng, datasets=1, seeds=3, noise=0.0)
    frame.loc[(frame["seed"] == 0) & (frame["arm"] == "new"), "value"] = np.nan
    frame.loc[frame["seed"] == 1, "value"] = np.inf
    ratios = paired_log_ratios(frame, "new", "old").set_index("seed")["r"]
    assert ratios[0].tolist() == pytest.approx([np.log(FAILURE_RATIO)] * 2)
    assert ratios[1].tolist() == [0.0, 0.0]


def test_unfinished_and_repeated_runs_are_refused(rng):
    frame = rows_of(0.0, rng, datasets=2)
    with pytest.raises(ValueError, match="only one of"):
        paired_log_ratios(frame.drop(frame.index[0]), "new", "old")
    with pytest.raises(ValueError, match="stand twice"):
        paired_log_ratios(pd.concat([frame, frame.head(1)]), "new", "old")


def test_holm_agrees_with_the_rule_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


def test_equivalence_needs_the_whole_interval_within_the_margin(rng):
    close = bootstrap(paired_log_ratios(rows_of(0.0, rng, noise=0.005), "new", "old"), draws=500)
    wide = bootstrap(paired_log_ratios(rows_of(0.0, rng, noise=0.2), "new", "old"), draws=500)
    assert close.within(1.0)
    assert not wide.within(1.0)


def test_slope_within_data_sets_ignores_their_levels(rng):
    data = np.repeat([f"d{i}" for i in range(10)], 6)
    x = np.tile(np.linspace(0, 2, 6), 10)
    level = np.repeat(rng.normal(size=10), 6)
    ratios = pd.DataFrame({"data": data, "cv": x, "r": level - 0.05 * x + 0.005 * rng.normal(size=60)})
    interval, p = slope(ratios, "cv", draws=2000)
    assert interval.low < -0.05 < interval.high
    assert p < 0.01
    assert interval.mean == pytest.approx(-0.05, abs=0.005)


def test_difference_of_effects_finds_the_difference(rng):
    real = paired_log_ratios(rows_of(-0.04, rng), "new", "old")
    text = paired_log_ratios(rows_of(0.0, rng, datasets=3), "new", "old")
    interval = difference(real, text, draws=1000)
    assert interval.low < -0.04 < interval.high < 0


def test_wilcoxon_is_scipys_on_the_means_of_data_sets(rng):
    ratios = paired_log_ratios(rows_of(-0.01, rng, noise=0.03), "new", "old")
    assert wilcoxon(ratios) == stats.wilcoxon(dataset_means(ratios).to_numpy()).pvalue
