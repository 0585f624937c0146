"""Anchors: forecasts in closed form, each linear in the past values and exact on constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ctsattn.models.path import interpolate, widths

_RIDGE = 1e-2  # of the mean squared feature; keeps a short or gappy window from fitting its noise
_PHASES = 16  # moments of a cycle whose mean stands for it
_MAX_CYCLES = 8  # past cycles that a seasonal mean looks back on


def last_value(times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
    """Last value for the future, the interpolated path for the past; shapes as in `path.interpolate`."""
    return interpolate(times, values, mask, at)


def window_mean(times: Tensor, values: Tensor, mask: Tensor, at: Tensor, memory: float = math.inf) -> Tensor:
    """Mean over real time of the path, the past weighted by `exp(age / -memory)`."""
    weight = widths(times, mask)
    # one observation, or all at one time: the plain mean
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, mask.to(weight))
    latest = torch.where(mask, times, -torch.inf).amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    weight = weight * torch.exp((times - latest) / memory) * mask
    mean = (weight * values).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-12)
    return mean.expand_as(at)


def cycles_back(at: Tensor, period: float) -> Tensor:
    """Least whole number of periods that brings each time of `at` to 0 or before."""
    return (at / period - 1e-4).ceil().clamp(min=0)


def seasonal_naive(times: Tensor, values: Tensor, mask: Tensor, at: Tensor, period: float) -> Tensor:
    """The path one or as many whole periods before as it takes to be in the past."""
    return interpolate(times, values, mask, at - period * cycles_back(at, period))


def seasonal_mean(
    times: Tensor, values: Tensor, mask: Tensor, at: Tensor, period: float, span: float
) -> Tensor:
    """Mean of the path at the same phase of all cycles that the observed past of a window of `span` holds."""
    start = torch.where(mask, times, torch.inf).amin(dim=-1, keepdim=True)
    phase = at - period * cycles_back(at, period)
    count = min(_MAX_CYCLES, int(span / period) + 1)
    cycles = period * torch.arange(count, device=at.device, dtype=at.dtype)
    moments = phase.unsqueeze(-1) - cycles  # in one piece: on a GPU what counts is how many steps there are
    held = moments >= start.unsqueeze(-1)
    held[..., 0] = True
    path = interpolate(times, values, mask, moments.flatten(-2)).unflatten(-1, moments.shape[-2:])
    return (held * path).sum(dim=-1) / held.sum(dim=-1)


def seasonal_drift(times: Tensor, values: Tensor, mask: Tensor, at: Tensor, period: float) -> Tensor:
    """Seasonal naive plus, for each cycle, the mean change from cycle to cycle over the observed past."""
    start = torch.where(mask, times, torch.inf).amin(dim=-1, keepdim=True)
    steps = (-start / period).floor().sub(1).nan_to_num(neginf=0.0).clamp(min=1)
    phases = -period * (torch.arange(_PHASES, device=at.device, dtype=at.dtype) + 0.5) / _PHASES
    phases = phases.expand(*at.shape[:-1], -1)
    recent = interpolate(times, values, mask, phases).mean(-1, keepdim=True)
    oldest = interpolate(times, values, mask, phases - period * steps).mean(-1, keepdim=True)
    cycles = cycles_back(at, period)
    return interpolate(times, values, mask, at - period * cycles) + cycles * (recent - oldest) / steps


def harmonic_features(at: Tensor, periods: Sequence[tuple[float, int]], span: float, trend: bool) -> Tensor:
    """Constant, trend and harmonics `[..., features]` of `at`; `periods` are pairs (period, harmonics)."""
    columns = [torch.ones_like(at), 2 * at / span + 1] if trend else [torch.ones_like(at)]
    features = [torch.stack(columns, dim=-1)]
    for period, harmonics in periods:
        orders = torch.arange(1, harmonics + 1, device=at.device, dtype=at.dtype)
        angle = at.unsqueeze(-1) * (2 * math.pi / period * orders)
        features.append(torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(-2))
    return torch.cat(features, dim=-1)


def harmonic_regression(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    at: Tensor,
    periods: Sequence[tuple[float, int]],
    span: float,
    trend: bool = True,
) -> Tensor:
    """Ridge regression of the window on a constant, a trend and harmonics, evaluated at `at`.

    Args:
        times: `[..., length]`, padded on the right.
        values: `[..., length]`.
        mask: `[..., length]`.
        at: `[..., points]`.
        periods: Pairs (period, number of harmonics).
        span: Length of the window, which sets the unit of the trend.
        trend: Whether a straight line is among the features.

    Returns:
        `[..., points]`.
    """
    centre = window_mean(times, values, mask, times[..., :1])
    features = harmonic_features(times, periods, span, trend) * mask.unsqueeze(-1)
    gram = features.mT @ features
    count = mask.sum(-1).clamp(min=1).to(gram)
    ridge = torch.full(gram.shape[-1:], _RIDGE, dtype=gram.dtype, device=gram.device)
    gram = gram / count[..., None, None] + torch.diag(ridge)
    moment = features.mT @ (values - centre).unsqueeze(-1) / count[..., None, None]
    weights, _ = torch.linalg.solve_ex(gram, moment)  # the ridge keeps it solvable; no wait for a check
    return (harmonic_features(at, periods, span, trend) @ weights).squeeze(-1) + centre


def harmonic_level(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    at: Tensor,
    periods: Sequence[tuple[float, int]],
    span: float,
    memory: float,
) -> Tensor:
    """`harmonic_regression` with a trend, raised or lowered to where the path is now.

    The shift is the mean of the residuals, weighted by `exp(age / -memory)`: a regression over a long window
    knows season and slope well, the last observations know the level better.
    """
    points = torch.cat([times, at], dim=-1)
    fitted = harmonic_regression(times, values, mask, points, periods, span)
    latest = torch.where(mask, times, -torch.inf).amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    weight = torch.exp((times - latest) / memory) * mask
    residual = values - fitted[..., : times.shape[-1]]
    shift = (weight * residual).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-12)
    return fitted[..., times.shape[-1] :] + shift
