"""Phi functions of exponential integrators, stable for every real argument."""

from __future__ import annotations

from math import factorial

import torch
from torch import Tensor

# Where the closed forms begin: from |x| = 1 on they lose less than one decimal digit, in value and slope.
SERIES_RADIUS = 1.0
# Inside the radius the first neglected term is below 1e-17 of the sum, so float64 keeps every digit.
SERIES_TERMS = 18


def phi1(x: Tensor) -> Tensor:
    r"""First phi function, $\varphi_1(x) = (e^x - 1) / x$, with $\varphi_1(0) = 1$.

    It is the mean of $e^{sx}$ over $s \in [0, 1]$, hence positive and increasing.

    Args:
        x: Real argument, any shape. Overflows to `inf` where `exp(x)` does.

    Returns:
        $\varphi_1(x)$, elementwise, in the dtype of `x`.

    References:
        Hochbruck and Ostermann, "Exponential integrators", Acta Numerica 19 (2010).
    """
    near, inside, outside = _split(x)
    return torch.where(near, _series(inside, order=1), torch.expm1(outside) / outside)


def phi2(x: Tensor) -> Tensor:
    r"""Second phi function, $\varphi_2(x) = (e^x - 1 - x) / x^2$, with $\varphi_2(0) = 1/2$.

    It is the integral of $(1 - s) e^{sx}$ over $s \in [0, 1]$: the weight that a straight piece of score,
    rising by $x$, gives to its left knot. Positive and increasing, and
    $\varphi_1(x) - \varphi_2(x) = e^x \varphi_2(-x)$ is the weight of the right knot.

    Args:
        x: Real argument, any shape. Overflows to `inf` where `exp(x)` does.

    Returns:
        $\varphi_2(x)$, elementwise, in the dtype of `x`.

    References:
        Hochbruck and Ostermann, "Exponential integrators", Acta Numerica 19 (2010).
    """
    near, inside, outside = _split(x)
    # Divide twice: the square of a large argument would overflow.
    closed_form = (torch.expm1(outside) - outside) / outside / outside
    return torch.where(near, _series(inside, order=2), closed_form)


def _split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether `x` is near zero, and `x` with the other side of the branch point replaced by a harmless value.

    `torch.where` multiplies the gradient of the branch not taken by zero, so that gradient must be finite.
    """
    near = x.abs() < SERIES_RADIUS
    return near, torch.where(near, x, 0.0), torch.where(near, 1.0, x)


def _series(x: Tensor, order: int) -> Tensor:
    r"""Taylor series $\sum_n x^n / (n + \text{order})!$ by Horner's rule."""
    total = torch.full_like(x, 1 / factorial(SERIES_TERMS - 1 + order))
    for n in reversed(range(SERIES_TERMS - 1)):
        total = total * x + 1 / factorial(n + order)
    return total
