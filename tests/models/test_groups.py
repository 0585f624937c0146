"""Linear paths by groups of windows: told apart by what repeats them, started and asked each on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models import Linear
from ctsattn.models.groups import compared_periods
from tests.models.batches import make_batch

SPEC = TaskSpec(lookback=56.0, horizon=7.0, periods=(4.0, 14.0))
LENGTH = 57


def regular(paths: Tensor) -> Batch:
    """Windows `[rows, time]` at whole times, cut 7 before their end."""
    past, future = paths[:, None, :LENGTH], paths[:, None, LENGTH:]
    rows, _, asked = future.shape
    batch = make_batch(SPEC, rows=rows, length=LENGTH, queries=asked)
    return replace(
        batch,
        past_times=torch.arange(1.0 - LENGTH, 1.0).expand_as(past).contiguous(),
        past_values=past.contiguous(),
        past_mask=torch.ones_like(past, dtype=torch.bool),
        future_times=torch.arange(1.0, asked + 1).expand(rows, -1).contiguous(),
        future_values=future.contiguous(),
        future_observed=torch.ones_like(future, dtype=torch.bool),
        cutoff=torch.rand(rows, dtype=torch.float64) * 1e4,
    )


def repeating(period: int, rows: int) -> Tensor:
    """Noise that repeats after a period."""
    once = torch.randn(rows, period)
    return once.repeat(1, 70 // period + 1)[:, : LENGTH + 7]


def mixed(rows: int) -> Batch:
    """Half of the windows repeat after 4, half after 14; the two kinds take turns."""
    return regular(torch.stack([repeating(4, rows), repeating(14, rows)], dim=1).flatten(0, 1))


@pytest.mark.parametrize("kind", [torch.zeros_like, torch.ones_like])
def test_windows_that_are_all_alike_leave_groups_empty_and_are_answered(kind):
    network = Linear(groups=3, by_phase=True, by_target=True).build(SPEC)
    batch = regular(kind(repeating(4, 8)))
    network.warm_up([batch, batch])
    said = network.head.quantiles(network(batch), torch.tensor([0.5]))[..., 0]
    torch.testing.assert_close(said, batch.future_values, rtol=0.0, atol=1e-3)


def started(groups: int) -> torch.nn.Module:
    torch.manual_seed(0)
    network = Linear(groups=groups, head="squared_error").build(SPEC)
    network.warm_up([mixed(64) for _ in range(6)])
    return network.eval()


def test_windows_are_told_apart_by_the_period_that_repeats_them():
    network, batch = started(2), mixed(40)
    group = network.linear.group(batch.past_times, batch.past_values, batch.past_mask)[:, 0]
    assert group[0::2].eq(1).all()  # of 4 and not of 14: the longer period changes more
    assert group[1::2].eq(0).all()


def test_each_group_answers_by_a_path_of_its_own():
    network, batch = started(2), mixed(4)
    before = network(batch)[..., 0]
    with torch.no_grad():
        network.linear.paths[1].mixture.add_(torch.randn_like(network.linear.paths[1].mixture))
    after = network(batch)[..., 0]
    assert torch.equal(after[1::2], before[1::2])
    assert not torch.allclose(after[0::2], before[0::2], atol=1e-2)


def test_two_kinds_of_windows_are_forecast_better_by_two_paths_than_by_one():
    batch = mixed(100)

    def error(groups: int) -> float:
        return (started(groups)(batch)[..., 0] - batch.future_values).square().mean().item()

    assert error(2) < 0.5 * error(1)


def test_a_past_too_short_to_tell_has_no_contrast():
    network, batch = started(2), mixed(2)
    mask = batch.past_mask.clone()
    mask[..., 5:] = False
    short = batch.past_times[..., -5:]
    times = torch.cat([short, short[..., -1:].expand(-1, -1, LENGTH - 5)], dim=-1)
    assert network.linear.contrast(times, batch.past_values, mask).eq(0).all()


def test_a_single_period_is_compared_with_its_half():
    assert compared_periods(replace(SPEC, periods=(14.0,))) == (7.0, 14.0)
    assert compared_periods(replace(SPEC, periods=(14.0, 4.0, 9.0))) == (4.0, 14.0)


def test_without_a_period_shares_of_the_look_back_are_compared():
    assert compared_periods(replace(SPEC, periods=(50.0,))) == (7.0, 28.0)
