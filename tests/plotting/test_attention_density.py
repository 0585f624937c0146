"""The density of attention is the operator's own weight, spread over real time."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.dates import date2num

from ctsattn import Forecaster
from ctsattn.forecasting import Training
from ctsattn.models import ContinuousTransformer, SeasonalNaive
from ctsattn.nn import MIXERS, MixerConfig
from ctsattn.ops import Sink, continuous_attention
from ctsattn.plotting import (
    attention_density,
    attention_shares,
    plot_attention,
    plot_attention_density,
    watch_attention,
)

# Points in a piece at which the trapezoid rule of these tests is as good as exact.
FINE = 2001


def make_problem(generator, keys=9, kv_heads=1):
    q, k, v = (
        torch.randn(1, h, n, 4, generator=generator, dtype=torch.float64)
        for h, n in ((2, 3), (kv_heads, keys), (kv_heads, keys))
    )
    times = torch.rand(keys, generator=generator, dtype=torch.float64).cumsum(0)
    return 3 * q, k, v, times


@pytest.mark.parametrize("sink", [None, Sink(0.0, 0.0, 0.7), Sink("first", "first", "median")])
def test_density_and_sink_share_add_up_to_one(generator, sink):
    q, k, _, times = make_problem(generator)
    density = attention_density(q[0], k[0], times, sink=sink, points=FINE)
    total = np.trapezoid(density.values, density.times) + density.on_sink
    np.testing.assert_allclose(total, 1.0, atol=1e-5)
    assert np.all(density.on_sink > 0) if sink else np.all(density.on_sink == 0)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_integral_of_the_values_under_the_density_is_the_output_of_the_operator(generator, kv_heads):
    q, k, v, times = make_problem(generator, kv_heads=kv_heads)
    density = attention_density(q[0], k[0], times, points=FINE)
    out = continuous_attention(q, k, v, times, enable_gqa=True)[0]
    values = v[0].repeat_interleave(2 // kv_heads, dim=0)
    for head in range(2):
        signal = np.stack([np.interp(density.times, times, values[head, :, d]) for d in range(4)])
        expected = np.trapezoid(density.values[head][:, None] * signal, density.times)
        np.testing.assert_allclose(out[head], expected, atol=1e-5)


def test_share_of_the_sink_is_the_output_when_only_the_sink_has_a_value(generator):
    q, k, v, times = make_problem(generator)
    density = attention_density(q[0], k[0], times, sink=Sink(0.0, 0.0, 0.5), points=FINE)
    # A value of 1 on the sink and on the first key is 1 throughout the piece of the sink.
    v = torch.zeros_like(v)
    v[:, :, 0] = 1.0

    out = continuous_attention(q, k, v, times, sink=Sink(0.0, 1.0, 0.5), enable_gqa=True)[0, ..., 0]
    hat = np.interp(density.times, times, v[0, 0, :, 0])
    expected = density.on_sink + np.trapezoid(density.values * hat, density.times)
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_equal_scores_give_the_same_density_everywhere(generator):
    _, k, _, times = make_problem(generator)
    density = attention_density(torch.zeros(2, 1, 4), k[0], times)
    np.testing.assert_allclose(density.values, 1 / (times[-1] - times[0]).item())


def test_steep_scores_do_not_overflow(generator):
    q, k, _, times = make_problem(generator)
    density = attention_density(1e4 * q[0], k[0], times)
    assert np.isfinite(density.values).all() and (density.values >= 0).all()


def test_keys_at_one_time_are_refused():
    with pytest.raises(ValueError, match="All keys are at one time"):
        attention_density(torch.zeros(1, 1, 2), torch.zeros(1, 3, 2), torch.zeros(3))


@pytest.mark.parametrize("sink", ["none", "zeros", "learned"])
def test_a_watched_layer_gives_the_same_output_and_leaves_no_trace(generator, sink):
    mixer = MIXERS["continuous"](MixerConfig(d_model=8, num_heads=2, sink=sink)).eval()
    decoder = torch.nn.ModuleDict({"decoder": mixer})
    x, times = torch.randn(2, 6, 8, generator=generator), torch.rand(2, 6, generator=generator).cumsum(1)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False
    plain = mixer(x, times, mask)
    with watch_attention(decoder) as readings:
        watched = mixer(x, times, mask)
    mixer(x, times, mask)
    torch.testing.assert_close(watched, plain, rtol=0, atol=0)
    assert len(readings) == 1 and "attend" not in vars(mixer)
    density = readings[0].density(row=1)
    assert density.times[-1] == pytest.approx(times[1, 3].item())


def test_picture_shows_one_curve_for_each_query_and_names_the_share_of_the_sink(generator):
    q, k, _, times = make_problem(generator)
    density = attention_density(q[0], k[0], times, sink=Sink(0.0, 0.0, 5.0))
    figure = plot_attention_density(density, names=["a", "b", "c"], signal=(times.tolist(), times.tolist()))
    labels = [line.get_label() for line in figure.axes[1].get_lines()]
    assert [label[0] for label in labels] == ["a", "b", "c"] and "on the sink" in labels[0]


@pytest.mark.parametrize("sink", [None, Sink(0.0, 0.0, 0.7)])
def test_shares_are_the_weights_of_softmax_attention(generator, sink):
    q, k, v, times = make_problem(generator)
    shares = attention_shares(q[0], k[0], times, sink=sink)
    np.testing.assert_allclose(shares.values.sum(-1) + shares.on_sink, 1.0)
    if sink is None:
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1)
        )
        np.testing.assert_allclose(shares.values @ v[0, 0].numpy(), out[0])


@pytest.fixture(scope="module", params=["softmax", "continuous"])
def fitted(request):
    times = np.cumsum(np.random.default_rng(0).exponential(size=80))
    df = pd.DataFrame({"ds": times, "y": np.sin(times)})
    model = ContinuousTransformer.small(mixer=request.param)
    return Forecaster(horizon=5.0, model=model, training=Training(max_steps=2), verbose=False).fit(df), df


def test_a_forecast_shows_where_it_looked_on_the_clock_of_the_data(fitted):
    forecaster, df = fitted
    end = df["ds"].iloc[-1]
    top, bottom = plot_attention(forecaster, df, [end + 1, end + 3]).axes
    curves = [line for line in bottom.get_lines() if line.get_label().startswith("for ")]
    assert len(curves) == 2
    for curve in curves:
        assert curve.get_xdata()[-1] == pytest.approx(end, rel=1e-5)
        assert curve.get_xdata()[0] >= df["ds"].iloc[0] - 1e-4
    forecasts = [line.get_xdata()[0] for line in top.get_lines() if len(line.get_xdata()) == 1]
    np.testing.assert_allclose(forecasts, [end + 1, end + 3])


def test_times_of_one_stretch_share_the_curve_of_its_question():
    df = pd.DataFrame({"ds": np.arange(80.0), "y": np.sin(np.arange(80.0))})
    model = ContinuousTransformer.small(query_patch=4)
    forecaster = Forecaster(horizon=8.0, model=model, training=Training(max_steps=2), verbose=False).fit(df)
    end = df["ds"].iloc[-1]
    _, bottom = plot_attention(forecaster, df, [end + 1, end + 4, end + 5.5]).axes
    first, same, other = [
        line.get_ydata() for line in bottom.get_lines() if line.get_label().startswith("for ")
    ]
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-6


def test_dates_are_placed_in_days():
    times = np.cumsum(np.random.default_rng(0).exponential(size=80))
    df = pd.DataFrame({"ds": times, "y": np.sin(times)})
    days = df.assign(ds=pd.Timestamp("2024-01-01") + pd.to_timedelta(df["ds"], "h"))
    model = ContinuousTransformer.small(mixer="continuous")
    forecaster = Forecaster(horizon="5h", model=model, training=Training(max_steps=2), verbose=False).fit(
        days
    )
    end = days["ds"].iloc[-1]
    _, bottom = plot_attention(forecaster, days, [end + pd.Timedelta("2h")]).axes
    x, y = bottom.get_lines()[0].get_data()
    assert x[-1] == pytest.approx(date2num(end), abs=1e-4)
    # the axis counts days, and the height is attention per hour or per day, whichever suits the span
    per_axis = {"attention per hour": 24, "attention per day": 1}[bottom.get_ylabel()]
    assert 0.5 < np.trapezoid(y, x) * per_axis <= 1.01


def test_what_has_no_density_is_refused(fitted):
    forecaster, df = fitted
    with pytest.raises(ValueError, match="after the end of the history"):
        plot_attention(forecaster, df, [df["ds"].iloc[5]])
    with pytest.raises(ValueError, match="No series 'x'"):
        plot_attention(forecaster, df, [1e3], series="x")
    other = Forecaster(model=SeasonalNaive(), verbose=False).fit(df)
    with pytest.raises(ValueError, match="mixer='continuous'"):
        plot_attention(other, df, [1e3])
