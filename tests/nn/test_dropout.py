"""Dropout: how much is dropped, what is left, and when nothing is."""

from __future__ import annotations

import pytest
import torch

from ctsattn.nn.dropout import Dropout, keep_mask


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5, 0.9])
def test_it_drops_its_share_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    out = Dropout(rate)(torch.ones(1000, 997))
    kept = out[out != 0]
    assert abs((out == 0).double().mean() - rate) < 5 * (rate * (1 - rate) / out.numel()) ** 0.5
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    kept = keep_mask(torch.empty(1_000_000), 0.5).double() - 0.5
    for lag in (1, 2, 3, 4, 8):
        assert abs((kept[lag:] * kept[:-lag]).mean()) < 5 * 0.25 / 1000


def test_the_gradient_is_what_was_kept():
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    out = Dropout(0.4)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / x.detach())


def test_the_same_seed_drops_the_same():
    drawn = []
    for _ in range(2):
        torch.manual_seed(1)
        drawn.append(Dropout(0.3)(torch.ones(3, 5)))
    torch.testing.assert_close(*drawn)
    assert not torch.equal(drawn[0], Dropout(0.3)(torch.ones(3, 5)))


def test_nothing_is_dropped_outside_training_or_at_rate_0():
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match="must lie in"):
        Dropout(rate)
