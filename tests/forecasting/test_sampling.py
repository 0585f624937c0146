"""The copula behind `sample`, apart from any model."""

import numpy as np
import pytest
from scipy.stats import kstest, norm

from ctsattn.forecasting.sampling import PathCorrelation, fit_correlation, score_grid, to_scores, to_values

TIMES = np.array([0.1, 0.2, 0.7, 1.5, 4.0, 4.1])


@pytest.mark.parametrize(
    "law", [PathCorrelation(0.0, 1.0, 0.8), PathCorrelation(0.3, 0.5, 2.0), PathCorrelation(0.0, 0.0, 1.0)]
)
def test_paths_have_unit_variance_and_the_correlation_of_their_law(law):
    z = law.draw(TIMES, 40_000, np.random.default_rng(0))
    expected = law(TIMES[:, None] - TIMES[None, :])
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(np.cov(z.T), expected, atol=0.025)


def test_the_law_of_a_path_does_not_depend_on_which_other_times_are_asked():
    law = PathCorrelation(0.2, 0.6, 1.0)
    few = law.draw(TIMES[[0, 4]], 40_000, np.random.default_rng(1))
    many = law.draw(TIMES, 40_000, np.random.default_rng(2))[:, [0, 4]]
    np.testing.assert_allclose(np.cov(few.T), np.cov(many.T), atol=0.03)


@pytest.mark.parametrize("law", [PathCorrelation(0.0, 0.9, 1.5), PathCorrelation(0.4, 0.4, 0.7)])
def test_the_law_is_found_again_from_irregular_windows(law):
    rng = np.random.default_rng(3)
    windows = [np.sort(rng.uniform(0, 6, 40)) for _ in range(400)]
    scores = [law.draw(times, 1, rng)[0] for times in windows]
    number = np.repeat(np.arange(400), 40)
    found = fit_correlation(np.concatenate(scores), np.concatenate(windows), number, 1.0)
    distance = np.linspace(0.05, 5, 30)
    np.testing.assert_allclose(found(distance), law(distance), atol=0.06)


def test_without_pairs_the_law_falls_back_on_the_given_decay():
    found = fit_correlation(np.array([0.3]), np.array([1.0]), np.array([0]), 2.5)
    assert (found.decay, found.shift, found.drift) == (2.5, 0.0, 1.0)


def test_scores_and_values_are_inverse_and_uniform_scores_give_the_marginal():
    grid, levels = score_grid()
    quantiles = np.stack([norm(2, 3).ppf(levels), norm(-1, 0.5).ppf(levels)])
    z = np.random.default_rng(4).standard_normal((5000, 2))
    values = to_values(z, quantiles)
    assert kstest(values[:, 0], norm(2, 3).cdf).pvalue > 0.01
    assert kstest(values[:, 1], norm(-1, 0.5).cdf).pvalue > 0.01
    back = to_scores(values[:, 1], np.broadcast_to(quantiles[1], (5000, len(grid))))
    np.testing.assert_allclose(back, z[:, 1], atol=1e-9)


def test_values_beyond_the_tabulated_quantiles_get_the_outermost_score():
    grid, levels = score_grid()
    quantiles = np.stack([norm.ppf(levels)] * 2)
    np.testing.assert_array_equal(to_scores(np.array([-99.0, 99.0]), quantiles), [grid[0], grid[-1]])
