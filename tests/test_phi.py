"""The phi functions against arbitrary-precision values, their identities and their slopes."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from ctsattn.phi import SERIES_RADIUS, phi1, phi2

mpmath.mp.dps = 60

Function = Callable[[Tensor], Tensor]


def exact_phi1(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.mpf(1) if x == 0 else mpmath.expm1(x) / x


def exact_phi2(x: mpmath.mpf) -> mpmath.mpf:
    if x == 0:
        return mpmath.mpf(1) / 2
    with mpmath.workdps(700 if abs(x) < 1e-20 else 80):
        return (mpmath.expm1(x) - x) / x**2


def exact_slope1(x: mpmath.mpf) -> mpmath.mpf:
    return exact_phi1(x) - exact_phi2(x)


def exact_slope2(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.mpf(1) / 6 if x == 0 else (exact_phi1(x) - 2 * exact_phi2(x)) / x


EXACT = {phi1: exact_phi1, phi2: exact_phi2}
EXACT_SLOPE = {phi1: exact_slope1, phi2: exact_slope2}


def arguments(smallest: float, largest: float, count: int) -> np.ndarray:
    """Both signs, log-spaced, with zero and both sides of the branch point."""
    size = np.geomspace(smallest, largest, count)
    edge = SERIES_RADIUS * np.array([1 - 1e-15, 1.0, 1 + 1e-15, 0.5, 2.0])
    return np.concatenate([-size, [0.0], size, -edge, edge])


def relative_error(function: Function, x: np.ndarray, dtype: torch.dtype) -> float:
    given = torch.tensor(x, dtype=dtype)
    exact = [EXACT[function](mpmath.mpf(value)) for value in given.double().tolist()]
    actual = function(given).double().tolist()
    return max(abs(float((mpmath.mpf(a) - e) / e)) for a, e in zip(actual, exact, strict=True))


@pytest.mark.parametrize("function", EXACT)
def test_phi_has_every_digit_of_float64_from_1e_minus_300_to_700(function: Function) -> None:
    assert relative_error(function, arguments(1e-300, 700.0, 400), torch.float64) < 2e-15


@pytest.mark.parametrize("function", EXACT)
def test_phi_has_every_digit_of_float32_over_its_range(function: Function) -> None:
    assert relative_error(function, arguments(1e-37, 85.0, 300), torch.float32) < 8e-7


def test_phi1_less_phi2_is_the_exponential_times_phi2_of_the_negative() -> None:
    x = torch.tensor(arguments(1e-300, 700.0, 400))
    left, right = phi1(x) - phi2(x), x.exp() * phi2(-x)
    torch.testing.assert_close(left[x > -1], right[x > -1], rtol=2e-14, atol=0.0)
    # For large negative x the left side is a difference of nearly equal numbers.
    torch.testing.assert_close(left, right, rtol=2e-14, atol=1e-16)


def test_phi2_is_positive_and_increasing_across_the_branch_point() -> None:
    x = torch.linspace(-1.2 * SERIES_RADIUS, 1.2 * SERIES_RADIUS, 10_001, dtype=torch.float64)
    values = phi2(x)
    assert (values > 0).all()
    assert (values.diff() > 0).all()


def test_phi2_stays_finite_where_its_square_would_overflow() -> None:
    x = torch.tensor([-1e30, -1e20, -1e4])
    torch.testing.assert_close(phi2(x), -1 / x - 1 / x.double().square().float(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("function", EXACT)
def test_slope_of_phi_is_exact_at_zero_and_on_both_sides_of_the_branch_point(function: Function) -> None:
    x = torch.tensor(arguments(1e-12, 50.0, 60), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    exact = [float(EXACT_SLOPE[function](mpmath.mpf(value))) for value in x.tolist()]
    torch.testing.assert_close(slope, torch.tensor(exact, dtype=torch.float64), rtol=2e-13, atol=0.0)


@pytest.mark.parametrize("function", EXACT)
def test_gradcheck_of_phi(function: Function) -> None:
    x = torch.tensor([-3.0, -1.0, -1e-3, 0.0, 0.4, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))
