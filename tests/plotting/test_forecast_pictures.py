"""Pictures of forecasts show every point where it belongs, on any clock, and open no window."""

import itertools
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib import dates as mdates
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from ctsattn.plotting import plot_cross_validation, plot_forecast


def make_history(times, ids=(None,), target="y"):
    frames = [
        pd.DataFrame({"ds": times, target: np.arange(len(times), dtype=float) + 10 * i})
        for i, _ in enumerate(ids)
    ]
    for frame, name in zip(frames, ids, strict=True):
        if name is not None:
            frame.insert(0, "unique_id", name)
    return pd.concat(frames, ignore_index=True)


def make_forecast(times, ids=(None,)):
    frame = make_history(times, ids, target="ctsattn")
    return frame.assign(**{"ctsattn-lo-80": frame["ctsattn"] - 1, "ctsattn-hi-80": frame["ctsattn"] + 2})


HOURS = pd.date_range("2024-10-26 12:00", periods=40, freq="h")
CLOCKS = {
    "naive": (HOURS[:30], HOURS[30:]),
    "zone with a clock change": (
        HOURS.tz_localize("UTC").tz_convert("Europe/Berlin")[:30],
        HOURS.tz_localize("UTC").tz_convert("Europe/Berlin")[30:],
    ),
    "elapsed": (pd.to_timedelta(np.arange(30), "h"), pd.to_timedelta(np.arange(30, 40), "h")),
    "integers": (np.arange(30), np.arange(30, 40)),
    "numbers": (np.linspace(0, 1, 30), np.linspace(1.1, 2, 10)),
    "text": (HOURS[:30].astype(str), HOURS[30:].astype(str)),
}


def line(ax, label):
    return next(found for found in ax.get_lines() if found.get_label() == label)


@pytest.mark.parametrize("clock", CLOCKS)
def test_every_kind_of_clock_is_drawn_in_order(clock):
    before, after = CLOCKS[clock]
    figure = plot_forecast(make_history(before), make_forecast(after))
    (ax,) = figure.axes
    observed, forecast = line(ax, "observed").get_xdata(), line(ax, "forecast").get_xdata()
    assert np.all(np.diff(observed) > 0) and np.all(np.diff(forecast) > 0)
    assert forecast[0] > observed[-1]
    figure.canvas.draw()


def test_points_of_a_zoned_clock_sit_at_their_instants_through_the_clock_change():
    before, after = CLOCKS["zone with a clock change"]
    (ax,) = plot_forecast(make_history(before), make_forecast(after), last=30).axes
    expected = mdates.date2num(before.tz_convert("UTC").tz_localize(None).to_numpy())
    np.testing.assert_allclose(line(ax, "observed").get_xdata(), expected, rtol=0, atol=1e-9)
    assert ax.get_xlabel() == "Europe/Berlin"


def test_a_hole_in_the_record_is_shaded_and_no_line_crosses_it():
    times = HOURS.delete(slice(10, 24))
    (ax,) = plot_forecast(make_history(times), make_forecast(HOURS + pd.Timedelta(days=2)), last=99).axes
    y = line(ax, "observed").get_ydata()
    assert np.isnan(y).sum() == 1 and np.isnan(y[10])
    assert sum(patch.get_label() == "no observations" for patch in ax.patches) == 1


def test_random_sampling_alone_is_not_a_row_of_holes(rng):
    times = np.cumsum(rng.exponential(size=300))
    (ax,) = plot_forecast(make_history(times), make_forecast(times[-1] + np.arange(1, 20)), last=300).axes
    assert len(ax.patches) <= 3


def test_bands_have_the_same_shape_in_both_spellings():
    after = CLOCKS["numbers"][1]
    by_level = make_forecast(after)
    by_quantile = by_level.rename(columns={"ctsattn-lo-80": "ctsattn-q0.1", "ctsattn-hi-80": "ctsattn-q0.9"})
    shapes = []
    for forecast in (by_level, by_quantile):
        (ax,) = plot_forecast(make_history(CLOCKS["numbers"][0]), forecast).axes
        (band,) = [part for part in ax.collections if isinstance(part, PolyCollection)]
        assert band.get_label() == "80 % band"
        shapes.append(band.get_paths()[0].vertices)
    np.testing.assert_array_equal(*shapes)


def test_a_wider_band_is_drawn_first_so_that_it_hides_no_narrow_one():
    forecast = make_forecast(CLOCKS["numbers"][1])
    forecast = forecast.assign(
        **{"ctsattn-lo-50": forecast["ctsattn"], "ctsattn-hi-50": forecast["ctsattn"] + 1}
    )
    (ax,) = plot_forecast(make_history(CLOCKS["numbers"][0]), forecast).axes
    assert [band.get_label() for band in ax.collections] == ["80 % band", "50 % band"]


def test_many_series_get_a_panel_each_up_to_a_limit_that_the_title_states():
    names = [f"s{i}" for i in range(9)]
    before, after = CLOCKS["naive"]
    figure = plot_forecast(make_history(before, names), make_forecast(after, names), max_series=4)
    assert [ax.get_title(loc="left") for ax in figure.axes] == names[:4]
    assert "5 more series not drawn" in figure.get_suptitle()


def test_several_targets_get_a_panel_each():
    before, after = CLOCKS["naive"]
    history = make_history(before).assign(z=1.0)
    forecast = pd.concat([make_forecast(after).assign(variable=name) for name in ("y", "z")])
    figure = plot_forecast(history, forecast, target_col=["y", "z"])
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["y", "z"]
    assert np.all(line(figure.axes[1], "observed").get_ydata() == 1.0)


def test_names_of_the_caller_and_frames_of_polars_work():
    polars = pytest.importorskip("polars")
    before, after = CLOCKS["naive"]
    names = {"ds": "when", "y": "level", "unique_id": "well"}
    history = polars.from_pandas(make_history(before, ["a"]).rename(columns=names))
    forecast = polars.from_pandas(make_forecast(after, ["a"]).rename(columns=names))
    figure = plot_forecast(history, forecast, id_col="well", time_col="when", target_col="level")
    assert figure.axes[0].get_title(loc="left") == "a"


def test_a_series_without_a_known_history_is_still_drawn():
    before, after = CLOCKS["naive"]
    figure = plot_forecast(make_history(before, ["a"]), make_forecast(after, ["new"]))
    assert line(figure.axes[0], "forecast").get_xdata().size == 10


def test_unknown_values_of_the_history_are_left_out():
    before, after = CLOCKS["naive"]
    history = make_history(before)
    history.loc[29, "y"] = np.nan
    (ax,) = plot_forecast(history, make_forecast(after), last=30).axes
    assert line(ax, "observed").get_xdata().size == 29


def test_the_frames_of_the_caller_stay_as_they_are():
    before, after = CLOCKS["naive"]
    history, forecast = make_history(before), make_forecast(after)
    copies = history.copy(), forecast.copy()
    plot_forecast(history, forecast, forecast.rename(columns={"ctsattn": "y"}))
    pd.testing.assert_frame_equal(history, copies[0])
    pd.testing.assert_frame_equal(forecast, copies[1])


@pytest.mark.parametrize("figsize", [(4.0, 3.0), (12.0, 5.0)])
def test_tick_labels_do_not_touch_at_two_sizes(figsize):
    before, after = CLOCKS["zone with a clock change"]
    figure = plot_forecast(make_history(before), make_forecast(after), figsize=figsize)
    figure.canvas.draw()
    (ax,) = figure.axes
    boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    assert all(label.get_fontsize() >= 8 for label in ax.get_xticklabels())


def test_a_picture_shows_itself_in_a_notebook_and_belongs_to_no_window():
    before, after = CLOCKS["naive"]
    figure = plot_forecast(make_history(before), make_forecast(after))
    assert isinstance(figure, Figure) and figure._repr_png_().startswith(b"\x89PNG")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_a_history_can_be_drawn_alone():
    before, _ = CLOCKS["naive"]
    (ax,) = plot_forecast(make_history(before)).axes
    assert line(ax, "observed").get_xdata().size == 30


def make_cv():
    frames = []
    for cutoff in (HOURS[9], HOURS[19], HOURS[29]):
        times = pd.date_range(cutoff, periods=6, freq="h")[1:]
        frames.append(make_forecast(times).assign(cutoff=cutoff, y=2.0))
    return pd.concat(frames, ignore_index=True)


def test_cross_validation_marks_each_cutoff_and_starts_each_window_after_it():
    (ax,) = plot_cross_validation(make_cv(), make_history(HOURS), last=99).axes
    marks = [found.get_xdata()[0] for found in ax.get_lines() if found.get_label() == "cutoff"]
    np.testing.assert_allclose(marks, mdates.date2num(HOURS[[9, 19, 29]].to_numpy()))
    windows = [found.get_xdata() for found in ax.get_lines() if len(found.get_xdata()) == 5]
    assert len(windows) == 3 and all(x[0] > mark for x, mark in zip(windows, marks, strict=True))


def test_cross_validation_without_a_history_draws_the_truth_it_holds():
    (ax,) = plot_cross_validation(make_cv()).axes
    assert line(ax, "observed").get_xdata().size == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"history": pd.DataFrame({"t": [1], "y": [1.0]})},
            r"`history` has no column 'ds'; it has \['t', 'y'\]",
        ),
        ({"ids": ["nobody"]}, "No series 'nobody' to draw; there are 1"),
        ({"forecast": make_forecast(HOURS[:0])}, "no series to draw"),
    ],
)
def test_a_bad_call_is_told_what_is_wrong_and_what_is_there(change, message):
    before, after = CLOCKS["naive"]
    arguments = {"history": make_history(before, ["a"]), "forecast": make_forecast(after, ["a"])} | change
    with pytest.raises(ValueError, match=message):
        plot_forecast(**arguments)


def test_what_is_no_frame_is_refused_by_name():
    with pytest.raises(TypeError, match="`forecast` must be a data frame; got list"):
        plot_forecast(make_history(HOURS), [1, 2])
