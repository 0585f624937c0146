"""Questions that are stretches of time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ctsattn.data.batch import TaskSpec
from ctsattn.models import ContinuousTransformer
from ctsattn.models.stretches import Stretches, length_for
from tests.models.batches import SPEC, make_batch

HOURLY = TaskSpec(lookback=24.0, horizon=12.0, median_gap=1.0)
NO_FUTURE = replace(SPEC, num_known=0, known_codes=())
ALL = torch.ones(2, 5, dtype=torch.bool)


def nodes_of(stretches: Stretches, first: int) -> torch.Tensor:
    """Times of the nodes of the stretches from number `first` on, laid out as a network says them."""
    starts = torch.arange(first, len(stretches.middles) - stretches.behind) * stretches.length
    return (starts[:, None] + torch.arange(1, stretches.length + 1)) * stretches.gap


@pytest.mark.parametrize("length", [1, 4, 5, 16])
def test_what_is_linear_in_time_at_the_nodes_is_read_as_it_is_between_them(length):
    stretches = Stretches(HOURLY, length)
    at = torch.tensor([[1.0, 2.25, 4.5, 5.0, 12.0], [1.0, 7.75, 8.0, 11.5, 3.0]])
    said = (2 * nodes_of(stretches, 0) + 3).expand(2, 1, -1, -1)
    torch.testing.assert_close(stretches.read(said, at)[:, 0, :, 0], 2 * at + 3)


def test_features_of_a_node_stay_together():
    stretches = Stretches(HOURLY, 4)
    at = torch.tensor([[1.0, 2.25, 4.5, 5.0, 12.0]])
    nodes = nodes_of(stretches, 0)
    said = torch.stack([nodes, -nodes, nodes * 0], dim=-1).flatten(1).expand(1, 2, -1, -1)
    torch.testing.assert_close(stretches.read(said, at)[0, 1], torch.stack([at, -at, at * 0], dim=-1)[0])


def test_the_past_is_asked_only_where_a_query_lies_in_it():
    stretches = Stretches(HOURLY, 4)
    ahead = torch.tensor([[0.5, 1.0, 2.0, 3.0, 12.0], [1.0, 2.0, 3.0, 4.0, -1.0]])
    padded = ALL.clone()
    padded[1, 4] = False
    assert stretches.asked(ahead, padded).tolist() == [[2.5, 6.5, 10.5]] * 2
    both = stretches.asked(ahead, ALL)
    assert both.shape == (2, 9) and both[0, 0] == -21.5 and both[0, 5] == -1.5


def test_no_line_leads_across_the_cutoff():
    stretches = Stretches(HOURLY, 4)
    said = (nodes_of(stretches, -6) > 0).double().expand(1, 1, -1, -1)
    at = torch.tensor([[-30.0, -0.25, 0.0, 0.25, 1.0]])
    assert stretches.read(said, at).flatten().tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_beyond_the_horizon_the_last_node_holds():
    stretches = Stretches(HOURLY, 5)
    said = nodes_of(stretches, 0).expand(1, 1, -1, -1)
    assert stretches.read(said, torch.tensor([[15.0, 16.0, 900.0]])).flatten().tolist() == [15.0] * 3


def test_the_number_of_a_stretch_is_that_of_the_middle_it_is_asked_at():
    stretches = Stretches(HOURLY, 4)
    at = torch.tensor([0.1, 4.0, 4.1, 12.0, 50.0])
    assert stretches.number(at).tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("horizon", "gap", "patch", "length"),
    [(96.0, 1.0, 14, 14), (12.0, 1.0, 14, 14), (720.0, 1.0, 14, 30), (1e6, 1.0, 4, 64), (24.0, 0.5, 4, 4)],
)
def test_a_horizon_is_at_most_some_24_stretches(horizon, gap, patch, length):
    spec = replace(HOURLY, horizon=horizon, median_gap=gap)
    assert length_for(spec, patch) == length
    assert len(Stretches(replace(spec, lookback=gap), length).middles) <= 1 + 24


def test_the_gradient_of_a_forecast_in_its_time_is_the_slope_between_nodes():
    network = ContinuousTransformer(d_model=16, num_layers=1, num_heads=2, query_patch=3).build(NO_FUTURE)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = make_batch(NO_FUTURE)
    at = (batch.future_times.abs().floor() + 0.4).clamp(max=11.4).double()
    network = network.double().eval()
    doubles = {n: getattr(batch, n).double() for n in ("past_times", "past_values", "static")}
    batch = replace(batch, **doubles, past_known=batch.past_known.double())

    def location(at: torch.Tensor) -> torch.Tensor:
        return network(replace(batch, future_times=at))[..., 0]

    at.requires_grad_()
    (slope,) = torch.autograd.grad(location(at).sum(), at)
    step = 1e-6
    found = (location(at + step) - location(at - step)).sum(dim=1) / (2 * step)
    torch.testing.assert_close(slope, found.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "spec", "length"),
    [
        ({"query_patch": "auto"}, replace(HOURLY, lookback=336.0, horizon=96.0), 14),
        ({"query_patch": "auto"}, HOURLY, None),
        ({"query_patch": "auto", "patch": 4}, HOURLY, 4),
        ({"patch": 4}, HOURLY, None),
        ({"query_patch": "auto", "patch": 4}, replace(HOURLY, num_known=1), None),
        ({"query_patch": "auto", "patch": 4, "join_channels": True}, HOURLY, None),
        ({"query_patch": 6}, HOURLY, 6),
    ],
)
def test_questions_are_stretches_where_tokens_are_patches_and_only_time_tells_moments_apart(
    options, spec, length
):
    stretches = ContinuousTransformer(d_model=16, num_heads=2, **options).build(spec).stretches
    assert (None if stretches is None else stretches.length) == length


def test_a_known_future_refuses_stretches():
    with pytest.raises(ValueError, match=r"`query_patch` 4.*known ahead.*query_patch=None"):
        ContinuousTransformer(d_model=16, num_heads=2, query_patch=4).build(SPEC)


def test_a_network_of_stretches_learns_what_differs_within_one():
    network = ContinuousTransformer(d_model=16, num_layers=1, num_heads=2, query_patch=12, dropout=0.0)
    network = network.build(NO_FUTURE).train()
    batch = make_batch(NO_FUTURE, rows=4, queries=12)
    batch = replace(batch, future_times=torch.arange(1.0, 13.0).expand(4, -1))
    truth = torch.tensor([1.0, -1.0]).repeat(6).expand(4, 2, -1)
    for parameter in network.linear.parameters():
        parameter.requires_grad_(False)
    optimiser = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=0.02)
    for _ in range(60):
        loss = nn.functional.mse_loss(network(batch)[..., 0], truth)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.2
