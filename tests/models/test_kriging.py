"""Kriging: the conditional mean of a Gaussian process, with a covariance that is learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models import Linear
from ctsattn.models.kriging import Kriging
from ctsattn.models.path import interpolate
from tests.models.batches import SPEC, make_batch

TASK = TaskSpec(num_targets=2, num_channels=2, channel_codes=(0, 0), lookback=64.0, horizon=16.0)
NODES = torch.arange(-63.0, 1.0)


def left(values: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Times, values and mask with what is seen `[rows, channels, nodes]` on the left."""
    order = (~seen).to(torch.int8).argsort(dim=-1, stable=True)
    return NODES[order], (values * seen).gather(-1, order), seen.gather(-1, order)


def thinned(whole: torch.Tensor, seen: torch.Tensor) -> Batch:
    """Windows `[rows, channels, 80]` of which the past shows what is seen, the future all."""
    rows, channels, _ = whole.shape
    times, shown, mask = left(whole[..., :64], seen)
    return replace(
        make_batch(rows=rows),
        past_times=times,
        past_values=shown,
        past_mask=mask,
        future_times=torch.arange(1.0, 17.0).expand(rows, 16),
        future_values=whole[..., 64:],
        future_mask=torch.ones(rows, 16, dtype=torch.bool),
        future_observed=torch.ones(rows, channels, 16, dtype=torch.bool),
    )


def noisy_cycles(rows: int, channels: int = 2) -> torch.Tensor:
    """Sines of period 16 at random phases `[rows, channels, 80]`, with noise."""
    at = torch.arange(80.0)
    phase = 6.283 * torch.rand(rows, channels, 1)
    return 3 * torch.sin(6.283 / 16 * at + phase) + 0.1 * torch.randn(rows, channels, 80) + 5


@pytest.mark.parametrize("shared", [True, False])
def test_it_is_the_conditional_mean_of_a_gaussian_process(shared):
    kriging = Kriging(TASK, NODES).double()
    seen = torch.rand(3, 1 if shared else 2, 64) < 0.4
    seen = seen.expand(3, 2, 64)
    values = torch.randn(3, 2, 64, dtype=torch.float64)
    times, shown, mask = left(values, seen)
    _, path, whole = kriging(times.double(), shown, mask)
    assert whole.all()
    covariance = kriging.covariance.numpy()
    for row in range(3):
        for channel in range(2):
            there = seen[row, channel].numpy()
            known = values[row, channel].numpy()[there]
            inner = covariance[np.ix_(there, there)] + 0.02 * np.eye(there.sum())
            expected = known.mean() + covariance[:, there] @ np.linalg.solve(inner, known - known.mean())
            np.testing.assert_allclose(path[row, channel], expected, rtol=1e-9, atol=1e-9)


def test_large_batches_are_solved_in_pieces(monkeypatch):
    kriging = Kriging(TASK, NODES)
    past = left(torch.randn(7, 2, 64), torch.rand(7, 2, 64) < 0.5)
    _, whole, _ = kriging(*past)
    monkeypatch.setattr("ctsattn.models.kriging._VALUES", 1)
    torch.testing.assert_close(kriging(*past)[1], whole)


def test_a_learned_covariance_bridges_gaps_that_lines_cannot():
    torch.manual_seed(0)
    kriging, whole = Kriging(TASK, NODES), noisy_cycles(200)
    seen = torch.rand(200, 2, 64) < 0.15
    seen[..., -2:] = True
    batch = thinned(whole, seen)
    times, shown, mask = batch.past_times, batch.past_values, batch.past_mask
    kriging.learn([batch, batch])
    lines = interpolate(times, shown, mask, NODES.expand(200, 2, 64))
    errors = [
        (path - whole[..., :64]).square()[~seen].mean() for path in (kriging(times, shown, mask)[1], lines)
    ]
    assert errors[0] < 0.2 * errors[1]
    assert torch.linalg.eigvalsh(kriging.covariance.double()).min() > -1e-4


def test_the_learned_covariance_is_that_of_the_process():
    torch.manual_seed(1)
    noise, whole = torch.randn(4000, 1, 80), torch.zeros(4000, 1, 80)
    whole[..., 0] = noise[..., 0]
    for step in range(1, 80):
        whole[..., step] = 0.6 * whole[..., step - 1] + 0.8 * noise[..., step]
    kriging = Kriging(replace(TASK, num_targets=1), NODES)
    kriging.learn([thinned(whole, torch.rand(4000, 1, 64) < 0.5)])
    found = kriging.covariance[:8, :8]
    lags = torch.arange(8.0)
    torch.testing.assert_close(found, 0.6 ** (lags[:, None] - lags).abs(), atol=0.05, rtol=0)


def test_windows_with_one_observation_or_none_are_finite():
    seen = torch.zeros(2, 1, 64, dtype=torch.bool)
    seen[0, 0, 10] = True
    _, path, _ = Kriging(TASK, NODES)(*left(torch.full((2, 1, 64), 7.0), seen))
    torch.testing.assert_close(path[0], torch.full((1, 64), 7.0))
    assert (path[1] == 0).all()


def test_a_network_learns_its_fill_and_keeps_it():
    network, batch = Linear(fill="kriging").build(SPEC), make_batch()
    begin = network.linear.fill.covariance.clone()
    network.warm_up([batch])
    assert not torch.equal(network.linear.fill.covariance, begin)
    again = Linear(fill="kriging").build(SPEC)
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again.eval()(batch), network.eval()(batch))


def test_an_unknown_fill_is_refused():
    with pytest.raises(ValueError, match="`fill` must be one of"):
        Linear(fill="spline").build(SPEC)
