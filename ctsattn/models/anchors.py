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
    return mean.expand(*mean.shape[:-1], at.shape[-1])


def cycles_back(at: Tensor, period: float) -> Tensor:
    """Least whole number of periods that brings each time of `at` to 0 or before."""
    return (at / period - 1e-4).ceil().clamp(min=0)


def seasonal_naive(times: Tensor, values: Tensor, mask: Tensor, at: Tensor, period: float) -> Tensor:
    """The path one or as many whole periods before as it takes to be in the past."""
    return interpolate(times, values, mask, at - period * cycles_back(at, period))


def cycle_moments(at: Tensor, period: float, span: float) -> Tensor:
    """The same phase in the cycles that a window of `span` may hold, latest first `[..., points, cycles]`."""
    phase = at - period * cycles_back(at, period)
    count = min(_MAX_CYCLES, int(span / period) + 1)
    cycles = period * torch.arange(count, device=at.device, dtype=at.dtype)
    return phase.unsqueeze(-1) - cycles


def mean_of_cycles(path: Tensor, moments: Tensor, times: Tensor, mask: Tensor) -> Tensor:
    """Mean `[..., points]` of what the path is at `moments`, over the cycles that the window holds."""
    start = torch.where(mask, times, torch.inf).amin(dim=-1, keepdim=True)
    held = moments >= start.unsqueeze(-1)
    held[..., 0] = True
    return (held * path).sum(dim=-1) / held.sum(dim=-1)


def seasonal_mean(
    times: Tensor, values: Tensor, mask: Tensor, at: Tensor, period: float, span: float
) -> Tensor:
    """Mean of the path at the same phase of all cycles that the observed past of a window of `span` holds."""
    moments = cycle_moments(
        at, period, span
    )  # in one piece: on a GPU what counts is how many steps there are
    path = interpolate(times, values, mask, moments.flatten(-2)).unflatten(-1, moments.shape[-2:])
    return mean_of_cycles(path, moments, times, mask)


def whole_cycles(times: Tensor, mask: Tensor, period: float) -> Tensor:
    """From the first whole cycle of the observed past to its last `[..., 1]`, in cycles; 1 at least."""
    start = torch.where(mask, times, torch.inf).amin(dim=-1, keepdim=True)
    return (-start / period).floor().sub(1).nan_to_num(neginf=0.0).clamp(min=1)


def drift_moments(at: Tensor, steps: Tensor, period: float) -> Tensor:
    """Moments of the last cycle, then of the first one, `[..., 2 * moments of a cycle]`."""
    phases = -period * (torch.arange(_PHASES, device=at.device, dtype=at.dtype) + 0.5) / _PHASES
    phases = phases.expand(*at.shape[:-1], -1)
    return torch.cat([phases, phases - period * steps], dim=-1)


def drift(path: Tensor, steps: Tensor) -> Tensor:
    """Mean change of the path from cycle to cycle `[..., 1]`, from what it is at `drift_moments`."""
    recent, oldest = (part.mean(-1, keepdim=True) for part in path.chunk(2, dim=-1))
    return (recent - oldest) / steps


def seasonal_drift(times: Tensor, values: Tensor, mask: Tensor, at: Tensor, period: float) -> Tensor:
    """Seasonal naive plus, for each cycle, the mean change from cycle to cycle over the observed past."""
    steps = whole_cycles(times, mask, period)
    change = drift(interpolate(times, values, mask, drift_moments(at, steps, period)), steps)
    return seasonal_naive(times, values, mask, at, period) + cycles_back(at, period) * change


def harmonic_features(at: Tensor, periods: Sequence[tuple[float, int]], span: float, trend: bool) -> Tensor:
    """Constant, trend and harmonics `[..., features]` of `at`; `periods` are pairs (period, harmonics)."""
    columns = [torch.ones_like(at), 2 * at / span + 1] if trend else [torch.ones_like(at)]
    features = [torch.stack(columns, dim=-1)]
    for period, harmonics in periods:
        orders = torch.arange(1, harmonics + 1, device=at.device, dtype=at.dtype)
        angle = at.unsqueeze(-1) * (2 * math.pi / period * orders)
        features.append(torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(-2))
    return torch.cat(features, dim=-1)


def nested_regressions(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    at: Tensor,
    periods: Sequence[tuple[float, int]],
    span: float,
    kept: Tensor,
) -> Tensor:
    """Ridge regressions of the window on several choices of the same features, evaluated at `at`.

    Args:
        times: `[..., length]`, padded on the right.
        values: `[..., length]`.
        mask: `[..., length]`.
        at: `[..., points]`.
        periods: Pairs (period, number of harmonics).
        span: Length of the window, which sets the unit of the trend.
        kept: Which of `harmonic_features`, trend included, each regression has, `[regressions, features]`.

    Returns:
        `[..., points, regressions]`.
    """
    centre = window_mean(times, values, mask, times[..., :1])
    features = harmonic_features(times, periods, span, trend=True) * mask.unsqueeze(-1)
    count = mask.sum(-1).clamp(min=1).to(features)[..., None, None]
    one = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    gram = features.mT @ features / count + _RIDGE * one
    moment = (values - centre).unsqueeze(-2) @ features / count
    both = kept.unsqueeze(-1) & kept.unsqueeze(-2)
    gram = torch.where(both, gram.unsqueeze(-3), one)  # what is left out stands alone, with weight 0
    # the ridge keeps it solvable; no wait for a check
    weights, _ = torch.linalg.solve_ex(gram, (moment * kept).unsqueeze(-1))
    return harmonic_features(at, periods, span, trend=True) @ weights.squeeze(-1).mT + centre.unsqueeze(-1)


def choice_of_features(
    periods: Sequence[tuple[float, int]], *, trend: bool = True, harmonics: bool = True
) -> list[bool]:
    """Which of `harmonic_features`, trend included, a regression has; always the constant."""
    return [True, trend, *[harmonics] * (2 * sum(number for _, number in periods))]


def harmonic_regression(
    times: Tensor,
    values: Tensor,
    mask: Tensor,
    at: Tensor,
    periods: Sequence[tuple[float, int]],
    span: float,
    trend: bool = True,
) -> Tensor:
    """Ridge regression on a constant, harmonics and perhaps a trend; arguments as `nested_regressions`."""
    kept = torch.tensor([choice_of_features(periods, trend=trend)], device=times.device)
    return nested_regressions(times, values, mask, at, periods, span, kept).squeeze(-1)


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
    fitted, ahead = harmonic_regression(times, values, mask, points, periods, span).split(
        [times.shape[-1], at.shape[-1]], dim=-1
    )
    return ahead + present_residual(times, values - fitted, mask, memory)


def present_residual(times: Tensor, residual: Tensor, mask: Tensor, memory: float) -> Tensor:
    """Mean of the residuals of a window `[..., 1]`, weighted by `exp(age / -memory)`."""
    latest = torch.where(mask, times, -torch.inf).amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    weight = torch.exp((times - latest) / memory) * mask
    return (weight * residual).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-12)
