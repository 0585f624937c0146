"""Synthetic families: seeds, known truth, and the laws they claim."""

from __future__ import annotations

import numpy as np
import pytest

from ctsattn.datasets import load
from ctsattn.datasets.synthetic import FAMILIES, OU_DEVIATION, OU_RATE, ou_law, path


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_seed_makes_one_frame_and_a_series_does_not_depend_on_how_many_are_made(name):
    few = load(name, series=2, observations=12, seed=4)
    many = load(name, series=3, observations=12, seed=4)
    same = many[many["unique_id"].isin(["0", "1"])]
    np.testing.assert_array_equal(few["y"], same["y"])
    assert not np.array_equal(few["ds"], load(name, series=2, observations=12, seed=5)["ds"])


@pytest.mark.parametrize("name", list(FAMILIES))
def test_truth_is_the_path_and_noise_is_what_is_added(name):
    frame = load(name, series=2, observations=15, seed=1, noise=0.1, keep=1.0)
    second = frame[frame["unique_id"] == "1"]
    times = np.unique(second["ds"])
    truth = path(name, 1, seed=1)(times)
    np.testing.assert_allclose(
        second["truth"].to_numpy().reshape(-1, len(times)).T, truth, rtol=1e-9, atol=1e-9
    )
    assert 0.01 < (second["y"] - second["truth"]).std() / truth.std(0).mean() < 1
    quiet = load(name, series=2, observations=15, seed=1, noise=0.0)
    np.testing.assert_array_equal(quiet["y"], quiet["truth"])


def test_only_the_asked_share_of_cells_is_seen():
    frame = load("damped_oscillators", series=20, observations=100, keep=0.2)
    assert len(frame) / (20 * 100 * 2) == pytest.approx(0.2, abs=0.02)


def test_damped_oscillators_obey_their_equation():
    at = path("damped_oscillators", 3)
    times, step = np.linspace(1.0, 90.0, 50), 1e-4
    place, speed = at(times).T
    np.testing.assert_allclose(
        (at(times + step)[:, 0] - at(times - step)[:, 0]) / (2 * step), speed, atol=1e-6
    )
    # x'' + 2 g x' + (g^2 + w^2) x = 0 for some friction g and frequency w: two unknowns fit all times
    bend = (at(times + step)[:, 1] - at(times - step)[:, 1]) / (2 * step)
    coefficients, *_ = np.linalg.lstsq(np.stack([speed, place], 1), -bend, rcond=None)
    np.testing.assert_allclose(bend + coefficients[0] * speed + coefficients[1] * place, 0.0, atol=1e-6)


def test_lorenz_obeys_its_equations():
    at = path("lorenz63", 2)
    times, step = np.linspace(0.1, 9.9, 40), 1e-5
    x, y, z = at(times).T
    rate = ((at(times + step) - at(times - step)) / (2 * step)).T
    np.testing.assert_allclose(
        rate, [10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], rtol=1e-3, atol=1e-2
    )


def test_an_epidemic_keeps_its_population():
    states = path("physiome_epidemic", 1)(np.linspace(0, 200, 60))
    np.testing.assert_allclose(states.sum(1), 1.0, atol=1e-6)
    assert (states > -1e-6).all()


def test_ornstein_uhlenbeck_paths_have_the_law_that_ou_law_tells():
    times = np.linspace(0.0, 100.0, 21)
    paths = np.concatenate([path("ornstein_uhlenbeck", number)(times) for number in range(80)], axis=1)
    mean, deviation = ou_law(paths[:-1], np.full(1, 5.0), OU_RATE, OU_DEVIATION)
    score = (paths[1:] - mean) / deviation
    assert score.mean() == pytest.approx(0.0, abs=0.08)
    assert score.std() == pytest.approx(1.0, abs=0.06)


def test_ou_law_forgets_in_time():
    mean, deviation = ou_law(np.array([3.0]), np.array([0.0, 1e9]), 0.5, 2.0)
    np.testing.assert_allclose(mean, [3.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(deviation, [0.0, 2.0], atol=1e-12)
