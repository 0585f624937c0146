"""Sampling conditions: shares, nesting, seeds, and what each of them keeps."""

from __future__ import annotations

import numpy as np
import pytest

from ctsattn.datasets.sampling import SHARED, Condition, irregularity, misrecorded

_RANDOM = ("random", "random_cells", "moving")
_BY_VALUE = ("moving", "on_change")


@pytest.fixture(scope="module")
def walk() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4000, 3)).cumsum(0)


@pytest.mark.parametrize("share", [25, 50, 75])
@pytest.mark.parametrize("kind", list(SHARED))
def test_a_condition_keeps_its_share(kind, share, walk):
    kept = Condition(f"{kind}-{share}").keep(walk, 0).mean(0)
    if kind == "on_change":  # at most the share, and as near as a hundred bands allow
        assert (kept <= share / 100).all() and (kept > share / 100 - 0.06).all()
    else:
        np.testing.assert_allclose(kept, share / 100, atol=0.05 if kind == "bursty" else 0.03)


@pytest.mark.parametrize("kind", _RANDOM)
def test_random_conditions_are_nested(kind, walk):
    few, many = (Condition(f"{kind}-{share}").keep(walk, 5) for share in (25, 50))
    assert (many | ~few).all()


@pytest.mark.parametrize("name", [*(f"{kind}-50" for kind in SHARED), "every-4", "one_in-4", "all"])
def test_the_same_seed_keeps_the_same_and_values_are_not_touched(name, walk):
    before = walk.copy()
    np.testing.assert_array_equal(Condition(name).keep(walk, 3), Condition(name).keep(walk, 3))
    np.testing.assert_array_equal(walk, before)


@pytest.mark.parametrize("name", [*(f"{kind}-50" for kind in SHARED), "every-4", "one_in-4", "all"])
def test_a_batch_of_windows_is_thinned_as_a_series_is(name):
    windows = np.random.default_rng(2).standard_normal((5, 48, 2)).cumsum(1)
    keep = Condition(name).keep(windows, 0)
    assert keep.shape == windows.shape
    assert (keep.sum(1) >= 2).all()


def test_whole_rows_go_together_except_where_cells_or_values_decide(walk):
    for kind in SHARED:
        keep = Condition(f"{kind}-50").keep(walk, 0)
        together = (keep == keep[:, :1]).all()
        assert together == (kind not in ("random_cells", *_BY_VALUE))


def test_bursts_have_the_asked_length(walk):
    on = Condition("bursty-25").keep(np.zeros((200_000, 1)), 0)[:, 0]
    edges = np.diff(on.astype(int))
    bursts = on.sum() / (edges == 1).sum()
    gaps = (~on).sum() / (edges == -1).sum()
    assert bursts == pytest.approx(8, rel=0.05)
    assert gaps == pytest.approx(24, rel=0.05)


def test_points_are_kept_where_the_value_moves():
    values = np.zeros((1000, 1))
    values[400:600] = np.random.default_rng(0).standard_normal((200, 1))
    for kind in _BY_VALUE:
        keep = Condition(f"{kind}-25").keep(values, 0)[:, 0]
        assert keep[400:600].mean() > 3 * keep[:400].mean()


def test_report_on_change_stays_within_its_band_of_the_truth():
    values = np.sin(np.linspace(0, 20, 500))[:, None]
    keep = Condition("on_change-25").keep(values, 0)[:, 0]
    last = np.maximum.accumulate(np.where(keep, np.arange(500), 0))
    held = np.abs(values[:, 0] - values[last, 0])
    jumps = np.abs(np.diff(values[keep, 0]))
    assert held.max() < jumps.min() + 1e-12


def test_strides_count_back_from_the_newest_row():
    keep = Condition("every-4").keep(np.zeros((10, 1)), 0)[:, 0]
    assert np.flatnonzero(keep).tolist() == [1, 5, 9]


def test_one_in_each_block_is_kept_at_a_random_place():
    keep = Condition("one_in-4").keep(np.zeros((4000, 1)), 0)[:, 0]
    blocks = keep.reshape(1000, 4)
    assert (blocks.sum(1) == 1).all()
    np.testing.assert_allclose(blocks.mean(0), 0.25, atol=0.05)


def test_holes_and_clusters_stand_where_they_should():
    zeros = np.zeros((100, 1))
    assert np.flatnonzero(Condition("ends-20").keep(zeros, 0)).tolist() == [*range(10), *range(90, 100)]
    assert np.flatnonzero(Condition("recent-20").keep(zeros, 0)).tolist() == list(range(80, 100))
    kept = np.flatnonzero(Condition("clusters-20").keep(zeros, 0))
    assert len(kept) == 20 and (np.diff(kept) > 1).sum() <= 4


def test_old_points_only_keep_the_two_newest_nowhere_unless_nothing_is_left():
    assert np.flatnonzero(Condition("old-20").keep(np.zeros((100, 1)), 0)).tolist() == list(range(20))
    assert Condition("random-1").keep(np.zeros((10, 1)), 0)[-2:].all()


@pytest.mark.parametrize(
    "name", ["random", "random-0", "random-100", "sometimes-50", "every-0", "random-0.5", ""]
)
def test_a_name_of_another_form_is_refused_with_the_forms(name):
    with pytest.raises(ValueError, match="random-50"):
        Condition(name)


def test_misrecorded_times_stay_in_order_and_near():
    times = np.arange(1000.0)
    noisy = misrecorded(times, 0.1, 0)
    assert (np.diff(noisy) >= 0).all()
    assert 0.05 < np.abs(noisy - times).std() < 0.2
    np.testing.assert_array_equal(noisy, misrecorded(times, 0.1, 0))


def test_irregularity_is_the_variation_of_the_gaps():
    times = np.arange(8.0)
    keep = np.array(
        [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0]], bool
    )
    gaps = np.array([2.0, 3.0, 2.0])
    expected = [0.0, gaps.std() / gaps.mean(), np.nan]
    np.testing.assert_allclose(irregularity(times, keep), expected)
