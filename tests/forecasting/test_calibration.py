"""Conformal corrections, apart from any model."""

import numpy as np
import pytest
from scipy.stats import norm

from ctsattn.forecasting.calibration import conformal_shift, fit_calibration


def test_the_corrections_are_those_of_mapie():
    # MAPIE 1.6.0, ConformalizedQuantileRegressor(confidence_level=0.8, prefit=True) on these arrays, bounds
    # of predict_interval(..., symmetric_correction=False) minus the quantiles that went in. MAPIE gives each
    # side half of the error, as we do.
    rng = np.random.default_rng(5)
    count = 101
    quantiles = np.sort(rng.normal(0, 1, (count + 3, 3)).round(3), axis=1)[:count]
    truth = rng.normal(0, 2, count).round(3)
    low = conformal_shift(truth - quantiles[:, 0], 0.1)
    high = conformal_shift(truth - quantiles[:, 2], 0.9)
    assert (low, high) == (pytest.approx(-1.996), pytest.approx(1.976))


@pytest.mark.parametrize(("count", "level"), [(9, 0.9), (20, 0.9), (50, 0.975), (20, 0.25), (39, 0.025)])
def test_the_mean_coverage_is_the_closed_form_of_an_order_statistic(count, level):
    rng = np.random.default_rng(6)
    draws = rng.standard_normal((4000, count))
    covered = norm.cdf([conformal_shift(row, level) for row in draws]).mean()
    rank = np.ceil((count + 1) * level) if level > 0.5 else np.floor((count + 1) * level)
    assert covered == pytest.approx(rank / (count + 1), abs=4 * 0.5 / np.sqrt(4000))


def miscalibrated(points: int, rng: np.random.Generator):
    """Truth of a spread that grows with elapsed time; a forecast that claims a constant one."""
    levels = np.array([0.1, 0.5, 0.9])
    elapsed = rng.uniform(0.0, 10.0, points)
    scale = rng.uniform(1.0, 100.0, points)
    truth = scale * (1 + elapsed) * rng.standard_normal(points)
    quantiles = scale[:, None] * 5.0 * norm.ppf(levels)
    return quantiles, truth, levels, elapsed, scale


def test_near_and_far_horizons_reach_their_coverage_separately():
    rng = np.random.default_rng(7)
    calibration = fit_calibration(*miscalibrated(20_000, rng))
    quantiles, truth, levels, elapsed, scale = miscalibrated(20_000, rng)
    fixed = calibration.apply(quantiles, levels, elapsed, scale)
    inside = (fixed[:, 0] <= truth) & (truth <= fixed[:, 2])
    raw = (quantiles[:, 0] <= truth) & (truth <= quantiles[:, 2])
    for part in (elapsed < 2, elapsed > 8):
        assert inside[part].mean() == pytest.approx(0.8, abs=0.03)
        assert abs(raw[part].mean() - 0.8) > 0.06


def test_calibrated_quantiles_never_cross_and_uncalibrated_levels_lie_between():
    rng = np.random.default_rng(8)
    calibration = fit_calibration(*miscalibrated(1000, rng))
    levels = np.array([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    elapsed, scale = rng.uniform(0, 12, 500), np.ones(500)
    fixed = calibration.apply(norm.ppf(levels) * np.ones((500, 1)), levels, elapsed, scale)
    assert (np.diff(fixed, axis=-1) >= 0).all()


def test_values_at_or_before_the_cutoff_keep_their_quantiles():
    rng = np.random.default_rng(9)
    calibration = fit_calibration(*miscalibrated(1000, rng))
    levels = np.array([0.1, 0.9])
    raw = np.array([[-1.0, 1.0], [-1.0, 1.0]])
    fixed = calibration.apply(raw, levels, np.array([-1.0, 1.0]), np.ones(2))
    np.testing.assert_array_equal(fixed[0], raw[0])
    assert not np.array_equal(fixed[1], raw[1])


def test_few_points_make_one_bucket_and_none_is_refused():
    quantiles, truth, levels, elapsed, scale = miscalibrated(30, np.random.default_rng(10))
    assert len(fit_calibration(quantiles, truth, levels, elapsed, scale).edges) == 0
    with pytest.raises(ValueError, match="no held-out observation"):
        fit_calibration(quantiles[:0], truth[:0], levels, elapsed[:0], scale[:0])


def test_elapsed_times_that_are_all_equal_make_one_bucket():
    quantiles, truth, levels, _, scale = miscalibrated(500, np.random.default_rng(11))
    calibration = fit_calibration(quantiles, truth, levels, np.ones(500), scale)
    assert calibration.shifts.shape == (1, 3)
    assert calibration.counts.tolist() == [500]
