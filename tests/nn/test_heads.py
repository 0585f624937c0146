"""Heads: quantiles never cross, means and losses are those of the distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ctsattn.losses import masked_mean, pinball
from ctsattn.nn import HEADS, Head, NormalHead, QuantileHead, SquaredErrorHead
from ctsattn.nn.heads import normal_quantile

F64 = torch.float64


def fitted(head: Head, values: Tensor) -> Tensor:
    """Parameters of least loss over a sample."""
    params = torch.zeros(head.num_params, dtype=F64, requires_grad=True)
    optimiser = torch.optim.LBFGS([params], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = head.loss(params.expand(len(values), -1), values).mean()
        loss.backward()
        return loss.item()

    optimiser.step(closure)
    return params.detach()


LEVELS = torch.tensor(
    [1e-6, 0.001, 0.01, 0.05, 0.0501, 0.3, 0.5, 0.7, 0.95, 0.99, 0.999, 1 - 1e-6], dtype=F64
)


@pytest.fixture(params=HEADS)
def head(request):
    return HEADS[request.param]()


def test_quantiles_never_cross_and_stay_finite(head):
    params = torch.randn(200, head.num_params, dtype=F64) * torch.logspace(-2, 2, 200, dtype=F64)[:, None]
    quantiles = head.quantiles(params, LEVELS)
    assert quantiles.isfinite().all()
    assert (quantiles.diff(dim=-1) > 0).all()


def test_quantiles_in_single_precision_never_cross(head):
    params = torch.randn(1000, head.num_params) * 5
    quantiles = head.quantiles(params, torch.arange(1, 100) / 100)
    assert (quantiles.diff(dim=-1) >= 0).all()


def test_the_median_is_the_location(head):
    params = torch.randn(7, head.num_params, dtype=F64)
    torch.testing.assert_close(head.quantiles(params, torch.tensor([0.5]))[:, 0], params[:, 0])


def test_levels_asked_together_or_apart_are_equal(head):
    params = torch.randn(7, head.num_params, dtype=F64)
    apart = torch.cat([head.quantiles(params, level[None]) for level in LEVELS], dim=-1)
    torch.testing.assert_close(apart, head.quantiles(params, LEVELS), rtol=1e-12, atol=1e-12)


def test_the_mean_is_the_integral_of_the_quantile_function(head):
    params = torch.randn(20, head.num_params, dtype=F64)
    levels = (torch.arange(200_000, dtype=F64) + 0.5) / 200_000
    integral = head.quantiles(params, levels).mean(dim=-1)
    torch.testing.assert_close(head.mean(params), integral, rtol=0, atol=2e-4)


def test_loss_has_finite_gradients_far_from_the_truth(head):
    params = torch.randn(5, head.num_params, requires_grad=True)
    head.loss(params, torch.tensor([0.0, 1e4, -1e4, 1e-8, 3.0])).sum().backward()
    assert params.grad.isfinite().all()


def test_loss_is_least_at_the_truth(head):
    values = torch.randn(4000, generator=torch.Generator().manual_seed(1), dtype=F64) * 0.5 + 2.0
    quantiles = head.quantiles(fitted(head, values), torch.tensor([0.1, 0.5, 0.9]))
    expected = torch.tensor([2.0 - 0.641, 2.0, 2.0 + 0.641], dtype=F64)
    torch.testing.assert_close(quantiles, expected, rtol=0, atol=0.03)


def test_equal_slopes_give_the_normal_law():
    params = torch.tensor([1.5, *[0.3] * 6], dtype=F64)
    scale = math.log1p(math.exp(0.3)) + 1e-4
    expected = 1.5 + scale * normal_quantile(LEVELS)
    torch.testing.assert_close(QuantileHead().quantiles(params, LEVELS), expected, rtol=1e-9, atol=1e-9)


def test_quantile_loss_is_close_to_the_crps_of_the_normal_law():
    raw = math.log(math.expm1(1.0 - 1e-4))
    params = torch.tensor([0.0, *[raw] * 6], dtype=F64)
    for value in (0.0, 0.7, -2.0):
        z = torch.tensor(value, dtype=F64)
        density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        crps = z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi)
        assert QuantileHead().loss(params, z).item() == pytest.approx(crps.item(), rel=0.05)


def test_quantile_head_learns_a_skewed_law():
    values = torch.rand(4000, generator=torch.Generator().manual_seed(1), dtype=F64).log().neg()
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=F64)
    learned = QuantileHead().quantiles(fitted(QuantileHead(), values), levels)
    torch.testing.assert_close(learned, torch.quantile(values, levels), rtol=0.03, atol=0.02)


def test_the_loss_of_a_spread_is_twice_the_mean_pinball_loss_of_its_quantiles():
    head, levels = SquaredErrorHead(), torch.tensor([0.025, *(i / 20 for i in range(1, 20)), 0.975])
    params = torch.stack([torch.randn(400), 3 * torch.randn(400)], dim=-1).requires_grad_()
    values = 3 * torch.randn(400)
    found = head.spread_loss(params, values)
    expected = 2 * pinball(values, head.quantiles(params, levels), levels).mean(dim=-1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    slopes = [torch.autograd.grad(loss.sum(), params, retain_graph=True)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)
    assert not slopes[0][:, 0].any() and slopes[0][:, 1].any()


def test_squared_error_location_feels_least_squares_alone():
    params = torch.randn(9, 2, dtype=F64, requires_grad=True)
    values = torch.randn(9, dtype=F64)
    SquaredErrorHead().loss(params, values).sum().backward()
    torch.testing.assert_close(params.grad[:, 0], 2 * (params[:, 0] - values).detach())


def test_normal_head_is_the_likelihood():
    params, values = torch.randn(9, 2, dtype=F64), torch.randn(9, dtype=F64)
    scale = torch.nn.functional.softplus(params[:, 1]) + 1e-4
    expected = -torch.distributions.Normal(params[:, 0], scale).log_prob(values)
    torch.testing.assert_close(NormalHead().loss(params, values), expected)


def test_pinball_weighs_errors_by_the_level():
    loss = pinball(torch.tensor([1.0]), torch.tensor([[0.0, 3.0]]), torch.tensor([0.9, 0.1]))
    torch.testing.assert_close(loss, torch.tensor([[0.9, 1.8]]))


def test_masked_mean_ignores_what_is_hidden_even_if_not_finite():
    losses = torch.tensor([1.0, 3.0, torch.nan], requires_grad=True)
    mean = masked_mean(losses, torch.tensor([True, True, False]))
    mean.backward()
    assert mean.item() == 2.0
    assert losses.grad.tolist() == [0.5, 0.5, 0.0]
    assert masked_mean(losses, torch.zeros(3, dtype=torch.bool)).item() == 0.0
