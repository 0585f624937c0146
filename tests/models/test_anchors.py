"""Paths, anchors and the learned kernel against what they are on grids and on known functions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models import LastValue, SeasonalNaive, WindowMean, anchors
from ctsattn.models.candidates import Candidates, task_anchors
from ctsattn.models.kernel import LearnedKernel
from ctsattn.models.path import interpolate, resample, widths
from ctsattn.models.tokens import PatchTokens
from tests.models.batches import make_batch

F64 = torch.float64


def irregular(count: int = 40, span: float = 30.0, padding: int = 0) -> tuple[Tensor, Tensor]:
    """Times `[1, 1, count + padding]` from -span to 0 at random gaps, and their mask."""
    times = -torch.rand(1, 1, count, dtype=F64).mul(span).sort(dim=-1, descending=True).values
    times = torch.cat([times, times[..., -1:].expand(1, 1, padding)], dim=-1)
    return times, (torch.arange(count + padding) < count)[None, None]


def test_interpolation_is_numpys():
    times, mask = irregular(12, padding=3)
    values, at = torch.randn(1, 1, 15, dtype=F64) * mask, torch.linspace(-40, 10, 77, dtype=F64)[None, None]
    expected = np.interp(at[0, 0], times[0, 0, :12], values[0, 0, :12])
    np.testing.assert_allclose(interpolate(times, values, mask, at)[0, 0], expected, rtol=1e-12)


def test_interpolation_at_repeated_times_is_finite():
    times = torch.tensor([[[-2.0, -1.0, -1.0, -1.0, 0.0]]])
    values = torch.arange(5.0)[None, None]
    path = interpolate(
        times, values, torch.ones(1, 1, 5, dtype=torch.bool), torch.tensor([[[-1.5, -1.0, -0.5]]])
    )
    torch.testing.assert_close(path, torch.tensor([[[0.5, 3.0, 3.5]]]))


def test_widths_sum_to_the_observed_span():
    times, mask = irregular(12, padding=3)
    total = widths(times, mask).sum()
    torch.testing.assert_close(total, (times[0, 0, 11] - times[0, 0, 0]))


def test_resampling_copies_a_regular_series_that_stands_on_the_nodes():
    nodes = torch.arange(-9.0, 1.0, dtype=F64) * 0.5
    values = torch.randn(1, 1, 10, dtype=F64)
    path, weight = resample(nodes[None, None], values, torch.ones(1, 1, 10, dtype=torch.bool), nodes)
    torch.testing.assert_close(path, values)
    torch.testing.assert_close(weight, torch.ones_like(values))


def test_resampling_interpolates_a_regular_series_beside_the_nodes():
    nodes = torch.arange(-9.0, 1.0, dtype=F64)
    times, values = nodes[None, None] - 0.3, torch.randn(1, 1, 10, dtype=F64)
    mask = torch.ones(1, 1, 10, dtype=torch.bool)
    path, _ = resample(times, values, mask, nodes)
    expected = interpolate(times, values, mask, nodes[None, None])
    torch.testing.assert_close(path[..., 1:-1], expected[..., 1:-1])


def test_windows_on_one_grid_are_resampled_as_they_are_beside_others():
    times, mask = torch.rand(1, 2, 30).cumsum(dim=-1) - 15, torch.arange(30) < 25
    times, mask, values = times.expand(3, -1, -1), mask.expand(3, 2, -1), torch.randn(3, 2, 30)
    nodes = torch.arange(-15.0, 1)
    others = torch.cat([times, times[:1] * 1.1])
    apart = resample(others, torch.cat([values, values[:1]]), torch.cat([mask, mask[:1]]), nodes)
    for found, expected in zip(resample(times, values, mask, nodes), apart, strict=True):
        assert found.shape == (3, 2, 16)
        torch.testing.assert_close(found, expected[:3])


def test_resampling_weighs_what_is_observed_and_averages_bursts():
    nodes = torch.arange(-4.0, 1.0, dtype=F64)
    times = torch.tensor([[[-3.0, -1.0, -1.0, -1.0]]], dtype=F64)
    values = torch.tensor([[[1.0, 2.0, 3.0, 7.0]]], dtype=F64)
    path, weight = resample(times, values, torch.ones(1, 1, 4, dtype=torch.bool), nodes)
    assert weight.flatten().tolist() == [0.0, 1.0, 0.0, 3.0, 0.0]
    assert path[0, 0, [0, 1, 3, 4]].tolist() == [1.0, 1.0, 4.0, 7.0]


def test_the_window_mean_is_the_mean_over_real_time():
    times, mask = irregular(200)
    mean = anchors.window_mean(times, times.square(), mask, times[..., :1])
    first, last = times[0, 0, 0], times[0, 0, -1]
    expected = (last**3 - first**3) / 3 / (last - first)
    torch.testing.assert_close(mean[0, 0, 0], expected, rtol=2e-3, atol=0)


def test_a_short_memory_follows_the_last_values():
    times, mask = irregular(200)
    mean = anchors.window_mean(times, times, mask, times[..., :1], memory=1.0)
    assert mean.item() == pytest.approx(times[0, 0, -1].item() - 1.0, abs=0.2)


def wave(times: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * times / 6) + 0.4 * torch.cos(4 * math.pi * times / 6)


ASKED = torch.tensor([[[0.4, 3.3, 5.0, 11.2]]], dtype=F64)


@pytest.mark.parametrize(
    "anchor",
    [partial(anchors.seasonal_naive, period=6.0), partial(anchors.seasonal_mean, period=6.0, span=30.0)],
)
def test_seasonal_anchors_continue_a_periodic_series(anchor):
    times, mask = irregular(400)
    forecast = anchor(times, wave(times), mask, ASKED)
    torch.testing.assert_close(forecast, wave(ASKED), rtol=0, atol=0.05)


def test_seasonal_drift_adds_the_mean_change_of_a_cycle():
    times, mask = irregular(400)
    forecast = anchors.seasonal_drift(times, wave(times) + 0.5 * times, mask, ASKED, period=6.0)
    torch.testing.assert_close(forecast, wave(ASKED) + 0.5 * ASKED, rtol=0, atol=0.1)


def test_harmonic_regression_recovers_trend_and_harmonics():
    times, mask = irregular(60, padding=7)
    values = (wave(times) - 0.2 * times + 3.0) * mask
    forecast = anchors.harmonic_regression(times, values, mask, ASKED, [(6.0, 2)], 30.0)
    torch.testing.assert_close(forecast, wave(ASKED) - 0.2 * ASKED + 3.0, rtol=0, atol=0.2)


def test_harmonic_level_starts_at_the_present_level():
    times, mask = irregular(400)
    values = wave(times) + 2.0 * (times > -1.0)
    level = anchors.harmonic_level(times, values, mask, ASKED, [(6.0, 2)], 30.0, memory=0.1)
    plain = anchors.harmonic_regression(times, values, mask, ASKED, [(6.0, 2)], 30.0)
    assert (level - wave(ASKED) - 2.0).abs()[..., 0] < 0.5 < (plain - wave(ASKED) - 2.0).abs()[..., 0]


@pytest.mark.parametrize(
    "name", ["last", "mean", "trend", "seasonal_0", "seasonal_drift_0", "harmonic_trend"]
)
def test_anchors_are_linear_in_the_values_and_exact_on_constants(name):
    anchor = task_anchors(TaskSpec(lookback=30.0, horizon=10.0, periods=(6.0,)))[name]
    times, mask = irregular(50)
    first, second = torch.randn(2, 1, 1, 50, dtype=F64)
    together = anchor(times, 2 * first - second + 5.0, mask, ASKED)
    apart = 2 * anchor(times, first, mask, ASKED) - anchor(times, second, mask, ASKED) + 5.0
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("periods", [(), (6.0,), (6.0, 14.0), (6.0, 40.0)])
@pytest.mark.parametrize("names", [None, ("last",), ("seasonal_mean_0", "harmonic"), ("mean", "trend")])
def test_all_anchors_at_once_say_what_each_says_by_itself(periods, names):
    spec = TaskSpec(lookback=30.0, horizon=10.0, median_gap=0.5, periods=periods)
    each = task_anchors(spec)
    names = [name for name in names or each if name in each] or ["last"]
    rows = [irregular(50), irregular(44, padding=6), irregular(1, padding=49), irregular(1, padding=49)]
    times, mask = (torch.cat(part) for part in zip(*rows, strict=True))
    mask[3] = False
    values = torch.randn(4, 1, 50, dtype=F64) * mask
    at = torch.cat([ASKED[0], torch.rand(3, ASKED.shape[-1], dtype=F64) * 40 - 30])[:, None]
    found = Candidates(spec, names)(times, values, mask, at)
    for name, said in zip(names, found.unbind(-1), strict=True):
        torch.testing.assert_close(said, each[name](times, values, mask, at), rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("periods", [(), (7.0,), (5.0, 35.0)])
@pytest.mark.parametrize("observed", [40, 9, 1, 0])
def test_windows_on_one_grid_are_answered_as_they_are_beside_others(periods, observed):
    spec = TaskSpec(num_targets=2, num_channels=2, lookback=40.0, horizon=6.0, periods=periods)
    candidates = Candidates(spec, tuple(task_anchors(spec)))
    times = torch.arange(-39.0, 1).expand(3, 2, -1)
    mask = (torch.arange(40) < observed).expand(3, 2, -1)
    values, at = torch.randn(3, 2, 40) * mask, torch.linspace(-3.5, 6, 8).expand(3, 2, -1)
    alike = candidates(times, values, mask, at)
    other = torch.cat([times, times[:1] * 1.5])
    apart = candidates(other, *(torch.cat([x, x[:1]]) for x in (values, mask, at)))[:3]
    torch.testing.assert_close(alike, apart, rtol=1e-5, atol=1e-5)


def test_the_kernel_is_a_linear_layer_on_a_regular_grid():
    spec = TaskSpec(lookback=8.0, horizon=3.0)
    kernel = LearnedKernel(spec)
    torch.nn.init.normal_(kernel.weight)
    times, values = torch.arange(-7.0, 1.0).expand(2, 1, 8), torch.randn(2, 1, 8)
    answer = kernel(
        times, values, torch.ones(2, 1, 8, dtype=torch.bool), torch.tensor([1.0, 2.0, 3.0]).expand(2, 3)
    )
    expected = (values - values.mean(dim=-1, keepdim=True)) @ kernel.weight.mT
    torch.testing.assert_close(answer, expected)


def test_the_kernel_leaves_the_past_alone_and_holds_beyond_the_horizon():
    kernel = LearnedKernel(TaskSpec(lookback=8.0, horizon=3.0))
    torch.nn.init.normal_(kernel.weight)
    times, values = torch.arange(-7.0, 1.0).expand(1, 1, 8), torch.randn(1, 1, 8)
    answer = kernel(
        times, values, torch.ones(1, 1, 8, dtype=torch.bool), torch.tensor([[-2.0, 0.0, 3.0, 9.0]])
    )
    assert answer[0, 0, :2].tolist() == [0.0, 0.0]
    assert answer[0, 0, 2] == answer[0, 0, 3]


def regular_batch(spec: TaskSpec, length: int) -> Batch:
    batch = make_batch(spec, length=length)
    shape = batch.past_values.shape
    return replace(
        batch,
        past_times=torch.arange(1.0 - length, 1.0).expand(shape).contiguous(),
        past_values=torch.randn(shape),
        past_mask=torch.ones(shape, dtype=torch.bool),
    )


def test_patches_of_a_regular_series_are_those_of_patchtst():
    spec = TaskSpec(lookback=16.0, horizon=3.0)
    tokens, batch = PatchTokens(spec, 8, length=4, stride=2), regular_batch(spec, 16)
    made, times, mask = tokens(batch, torch.zeros(1, 1, 1, 8))
    weight, bias = tokens.embed.weight, tokens.embed.bias
    patches = batch.past_values.unfold(-1, 4, 2)
    torch.testing.assert_close(made, patches @ weight[:, :4].mT + weight[:, 4:].sum(dim=1) + bias)
    assert times[0, 0].tolist() == [-12.0, -10.0, -8.0, -6.0, -4.0, -2.0, 0.0]
    assert mask.all()


def test_a_stretch_without_observations_gives_no_token():
    spec = TaskSpec(lookback=16.0, horizon=3.0)
    tokens, batch = PatchTokens(spec, 8, length=4, stride=4), regular_batch(spec, 16)
    mask = batch.past_mask.clone()
    mask[..., 4:] = False  # padding on the right: what is left is observed in the oldest stretch
    _, _, exists = tokens(
        replace(batch, past_mask=mask, past_values=batch.past_values * mask), torch.zeros(1, 1, 1, 8)
    )
    assert exists[0, 0].tolist() == [True, False, False, False]


@pytest.mark.parametrize("model", [LastValue(), SeasonalNaive(), SeasonalNaive(drift=True), WindowMean()])
def test_naive_spreads_are_about_the_errors_that_the_past_shows(model):
    spec = TaskSpec(lookback=64.0, horizon=8.0, periods=(8.0,))
    batch = regular_batch(spec, 64)
    network = model.build(spec)
    quantiles = network.head.quantiles(network(batch), torch.tensor([0.1, 0.5, 0.9]))
    width = (quantiles[..., 2] - quantiles[..., 0]) / (2 * 1.2816)
    # of white noise: its own deviation for the mean, that of a difference for a repeated value
    expected = 1.0 if isinstance(model, WindowMean) else math.sqrt(2)
    future = batch.future_times > 0
    assert width.transpose(1, 2)[future].mean().item() == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("model", [LastValue(), SeasonalNaive(), WindowMean()])
def test_a_naive_spread_of_few_observations_is_that_of_the_law_and_fades_with_their_number(model):
    spec = TaskSpec(lookback=64.0, horizon=8.0, periods=(8.0,))
    network, batch, widths = model.build(spec), regular_batch(spec, 16), []
    for count in (1, 3, 6, 15, 16):
        mask = torch.arange(16) < count
        flat = replace(
            batch,
            past_mask=mask.expand(batch.past_mask.shape).contiguous(),
            past_values=torch.zeros_like(batch.past_values),
        )
        quantiles = network.head.quantiles(network(flat), torch.tensor([0.1, 0.9]))
        widths.append((quantiles[..., 1] - quantiles[..., 0]).max().item() / (2 * 1.2816))
    assert widths == pytest.approx([1.0, 1.0, 0.25, 0.04, 0.001], rel=0.05, abs=1e-4)


def test_a_seasonal_mean_is_the_mean_of_the_cycles_that_the_window_holds():
    rng = torch.Generator().manual_seed(0)
    times = -30.0 * torch.rand(3, 2, 40, generator=rng).sort(dim=-1, descending=True).values
    values, mask = torch.randn(3, 2, 40, generator=rng), torch.ones(3, 2, 40, dtype=torch.bool)
    at = 12.0 * torch.rand(3, 2, 5, generator=rng)
    found = anchors.seasonal_mean(times, values, mask, at, period=6.0, span=30.0)
    total, count = torch.zeros_like(at), torch.zeros_like(at)
    for cycle in range(6):
        moment = at - 6.0 * (anchors.cycles_back(at, 6.0) + cycle)
        held = (moment >= times[..., :1]) | torch.tensor(cycle == 0)
        total += held * interpolate(times, values, mask, moment)
        count += held
    torch.testing.assert_close(found, total / count)
