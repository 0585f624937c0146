"""Pictures of calibration, error and losses show the numbers that can be worked out by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from ctsattn.plotting import plot_calibration, plot_error_by_elapsed, plot_losses
from ctsattn.plotting.style import CYCLE


def make_cv(rows=400):
    """Truth spread evenly over (0, 1) at each step, so that its quantiles are known exactly."""
    cutoff = pd.Timestamp("2024-01-01")
    step = np.repeat([1, 2], rows // 2)
    y = np.tile((np.arange(rows // 2) + 0.5) / (rows // 2), 2)
    frame = pd.DataFrame({"ds": cutoff + pd.to_timedelta(step, "D"), "cutoff": cutoff, "y": y})
    return frame.assign(**{"ctsattn": 0.5, "ctsattn-lo-80": 0.1, "ctsattn-hi-80": 0.9, "zero": 0.0})


def drawn(ax):
    return {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in ax.get_lines()}


def test_true_quantiles_lie_on_the_diagonal():
    (ax,) = plot_calibration(make_cv(), parts=1).axes
    levels, below = drawn(ax)["all"]
    np.testing.assert_allclose(levels, [0.1, 0.5, 0.9])
    np.testing.assert_allclose(below, levels, atol=1e-12)


def test_quantiles_that_are_too_low_lie_below_the_diagonal():
    cv = make_cv().assign(**{"ctsattn-hi-80": 0.6})
    (ax,) = plot_calibration(cv, parts=1).axes
    assert drawn(ax)["all"][1][-1] == pytest.approx(0.6)


def test_calibration_splits_near_from_far():
    cv = make_cv()
    far = cv["ds"] == cv["ds"].max()
    cv.loc[far, ["ctsattn-lo-80", "ctsattn", "ctsattn-hi-80"]] = 1.0
    (ax,) = plot_calibration(cv, parts=2).axes
    near, distant = (y for label, (_, y) in drawn(ax).items() if "ahead" in label)
    np.testing.assert_allclose(near, [0.1, 0.5, 0.9])
    np.testing.assert_allclose(distant, 1.0)


def test_calibration_without_quantiles_says_how_to_get_them():
    cv = make_cv()[["ds", "cutoff", "y", "ctsattn"]]
    with pytest.raises(ValueError, match=r"level=\[50, 80\]"):
        plot_calibration(cv)


def test_error_by_elapsed_time_is_the_mean_absolute_error_of_each_stretch():
    cv = make_cv()
    cv.loc[cv["ds"] == cv["ds"].max(), "y"] += 1
    (ax,) = plot_error_by_elapsed(cv, models=["ctsattn", "zero"], bins=2).axes
    hours, error = drawn(ax)["zero"]
    np.testing.assert_allclose(hours, [24, 48])
    np.testing.assert_allclose(error, cv["y"].groupby(cv["ds"]).mean())
    assert ax.get_xlabel() == "time since the cutoff (hours)"


def test_losses_skip_steps_without_a_measurement_and_ring_the_best():
    losses = pd.DataFrame(
        {"step": range(6), "train": [6.0, 5, 4, 3, 2, 1], "val": [5.0, None, 3.0, None, 4.0, None]}
    )
    (ax,) = plot_losses(losses).axes
    steps, val = drawn(ax)["val"]
    np.testing.assert_array_equal(steps, [0, 2, 4])
    np.testing.assert_array_equal(val, [5, 3, 4])
    assert [text.get_text() for text in ax.texts] == ["3"]


def test_losses_without_a_loss_are_refused():
    with pytest.raises(ValueError, match="no loss beside 'step'"):
        plot_losses(pd.DataFrame({"step": [1, 2], "val": [None, None]}))


# Machado, Oliveira and Fernandes (2009), full severity: what an eye that lacks a cone sees (linear RGB).
CONES = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "normal": np.eye(3).tolist(),
}


@pytest.mark.parametrize("eye", CONES)
def test_colours_of_lines_differ_for_every_eye(eye):
    seen = [np.array(CONES[eye]) @ (np.array(to_rgb(colour)) ** 2.2) for colour in CYCLE]
    nearest = min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2))
    assert nearest > 0.1
