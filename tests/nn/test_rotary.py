"""Rotary positions of a real clock."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from ctsattn.nn import TimeRotary, frequency_ladder

F64 = torch.float64


def test_scores_depend_on_elapsed_time_only():
    rotary = TimeRotary(8, (1.3, 0.4, 0.01))
    q, k = torch.randn(2, 1, 3, 5, 8, dtype=F64)
    times = torch.rand(1, 5, dtype=F64) * 10
    scores = [rotary(q, times + shift) @ rotary(k, times + shift).mT for shift in (0.0, -123.4)]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-10, atol=1e-10)


def test_a_pair_turns_by_frequency_times_time():
    x = torch.tensor([[[[1.0, 0.0, 0.0, 1.0]]]], dtype=F64)
    turned = TimeRotary(4, (0.5, 2.0))(x, torch.tensor([[0.3]], dtype=F64))
    expected = [math.cos(0.15), -math.sin(0.6), math.sin(0.15), math.cos(0.6)]
    torch.testing.assert_close(turned.flatten(), torch.tensor(expected, dtype=F64), rtol=1e-6, atol=1e-6)


def test_features_beyond_the_frequencies_stay():
    x = torch.randn(1, 1, 4, 8)
    turned = TimeRotary(8, (1.0,))(x, torch.arange(4.0)[None])
    assert torch.equal(turned[..., 2:], x[..., 2:])
    assert not torch.equal(turned[..., :2], x[..., :2])


def test_without_frequencies_nothing_turns():
    x = torch.randn(1, 1, 4, 8)
    assert TimeRotary(8)(x, torch.arange(4.0)[None]) is x


def test_too_many_frequencies_are_refused():
    with pytest.raises(ValueError, match="3 frequencies turn 6 features, but a head has 4"):
        TimeRotary(4, (1.0, 2.0, 3.0))


def test_ladder_runs_from_the_span_to_the_gap_in_equal_ratios():
    ladder = frequency_ladder(6, span=400.0, gap=2.0)
    assert ladder[0] == pytest.approx(0.25)
    assert ladder[-1] == pytest.approx(math.pi / 800)
    ratios = [b / a for a, b in itertools.pairwise(ladder)]
    assert ratios == pytest.approx([ratios[0]] * 5)


def test_ladder_holds_the_periods_that_a_gap_resolves():
    ladder = frequency_ladder(6, span=400.0, gap=1.0, periods=(24.0, 3.0))
    assert ladder[0] == pytest.approx(2 * math.pi / 24)
    assert len(ladder) == 6
    assert max(ladder) <= 0.5


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_gradients_of_a_turn_are_those_of_finite_differences_to_second_order():
    rotary, times = TimeRotary(6, (0.7, 0.2)), torch.rand(1, 3, dtype=F64)
    x = torch.randn(1, 2, 3, 6, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: rotary(y, times), (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda y: rotary(y, times), (x,))
    asked = times.clone().requires_grad_()
    assert torch.autograd.gradcheck(rotary, (x, asked))


def test_turns_can_be_mapped_over_batches():
    rotary, times = TimeRotary(6, (0.7, 0.2)), torch.rand(1, 3)
    x = torch.randn(5, 1, 2, 3, 6)
    together = torch.func.vmap(torch.func.grad(lambda y: rotary(y, times).square().sum()))(x)
    torch.testing.assert_close(together, 2 * x)
