"""What the anchors of a task say of a batch, all of them in a few large operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ctsattn.data.batch import TaskSpec
from ctsattn.models import anchors
from ctsattn.models.path import interpolate, shared

Anchor = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_MAX_PERIODS = 3
_LEVEL_GAPS = 4.0  # median gaps in which the memory of the present level fades
_REGRESSIONS = {"trend": (True, False), "harmonic": (False, True), "harmonic_trend": (True, True)}
_LEVELS = ("harmonic_level", "trend_level")


def harmonics_of(period: float, gap: float) -> int:
    """Harmonics of a period that its sampling can show, three at most."""
    return max(1, min(3, int(period / (2.5 * gap))))


def seen_periods(spec: TaskSpec) -> list[float]:
    """Periods that the look-back shows, three at most."""
    return [period for period in spec.periods if period <= spec.lookback][:_MAX_PERIODS]


def fitted_periods(spec: TaskSpec) -> list[tuple[float, int]]:
    """Pairs (period, harmonics) of those that are seen for long enough to fit."""
    return [(p, harmonics_of(p, spec.median_gap)) for p in seen_periods(spec) if 1.25 * p <= spec.lookback]


def recent_memory(spec: TaskSpec) -> float:
    """Time in which the recent mean forgets."""
    return max(spec.lookback / 8, spec.median_gap)


def task_anchors(spec: TaskSpec) -> dict[str, Anchor]:
    """The anchors that a task's look-back and periods allow, by name."""
    span, fitted = spec.lookback, fitted_periods(spec)
    chosen: dict[str, Anchor] = {
        "last": anchors.last_value,
        "mean": anchors.window_mean,
        "recent_mean": partial(anchors.window_mean, memory=recent_memory(spec)),
        "trend": partial(anchors.harmonic_regression, periods=(), span=span),
    }
    for i, period in enumerate(seen_periods(spec)):
        chosen[f"seasonal_{i}"] = partial(anchors.seasonal_naive, period=period)
        if 2 * period <= span:
            chosen[f"seasonal_mean_{i}"] = partial(anchors.seasonal_mean, period=period, span=span)
            chosen[f"seasonal_drift_{i}"] = partial(anchors.seasonal_drift, period=period)
    if fitted:
        both = partial(anchors.harmonic_regression, periods=fitted, span=span)
        chosen |= {"harmonic": partial(both, trend=False), "harmonic_trend": both}
    memory = _LEVEL_GAPS * spec.median_gap
    level = partial(anchors.harmonic_level, periods=fitted, span=span, memory=memory)
    return chosen | {"harmonic_level" if fitted else "trend_level": level}


class Candidates(nn.Module):
    """Some of `task_anchors` at once: what they have in common is worked out once.

    All that is read off the path is read off it in one interpolation, and all regressions are solved in one
    call; by themselves the anchors of hourly series are some nine hundred small operations. Where all windows
    of a batch lie on one grid, what hangs on times alone is worked out for one of them.

    Args:
        spec: Task.
        names: Names in `task_anchors`.
    """

    def __init__(self, spec: TaskSpec, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.span, self.fitted = tuple(names), spec.lookback, fitted_periods(spec)
        self.seasons = [
            _Season(str(i), period, spec.lookback, self.names)
            for i, period in enumerate(seen_periods(spec))
            if any(name.startswith("seasonal") and name.endswith(f"_{i}") for name in names)
        ]
        self.regressions = [name for name in (*_REGRESSIONS, *_LEVELS) if name in names]
        self.recent, self.memory = recent_memory(spec), _LEVEL_GAPS * spec.median_gap
        choices = [_REGRESSIONS.get(name, (True, True)) for name in self.regressions]
        kept = [anchors.choice_of_features(self.fitted, trend=t, harmonics=h) for t, h in choices]
        self.kept: Tensor
        self.register_buffer("kept", torch.tensor(kept, dtype=torch.bool), persistent=False)

    def forward(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """What each anchor says, `[batch, channels, queries, anchors]`.

        Args:
            times: `[batch, channels, length]`, ascending, padded on the right.
            values: `[batch, channels, length]`.
            mask: `[batch, channels, length]`.
            at: `[batch, channels, queries]`.
        """
        times, mask, at = shared(times, mask, at)
        past = (times, values, mask)
        said = self._read_off(*past, at)
        for name, memory in (("mean", torch.inf), ("recent_mean", self.recent)):
            if name in self.names:
                said[name] = anchors.window_mean(*past, at, memory)
        if self.regressions:
            said |= self._fitted(*past, at)
        return torch.stack([said[name] for name in self.names], dim=-1)

    def _read_off(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> dict[str, Tensor]:
        """What anchors that are values of the path say."""
        read = [season.moments(times, mask, at) for season in self.seasons]
        flat = [at, *(part.flatten(len(at.shape) - 1) for parts in read for part in parts)]
        path = interpolate(times, values, mask, torch.cat(flat, dim=-1))
        last, *rest = path.split([part.shape[-1] for part in flat], dim=-1)
        said, pieces = {"last": last}, iter(rest)
        for season, parts in zip(self.seasons, read, strict=True):
            there = [next(pieces).unflatten(-1, part.shape[at.ndim - 1 :]) for part in parts]
            said |= season.answers(times, mask, at, parts, there)
        return said

    def _fitted(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> dict[str, Tensor]:
        """What anchors that are regressions say."""
        leveled = self.regressions[-1] in _LEVELS
        points = torch.cat([times, at], dim=-1) if leveled else at
        fits = anchors.nested_regressions(times, values, mask, points, self.fitted, self.span, self.kept)
        ahead = fits[..., points.shape[-1] - at.shape[-1] :, :]
        said = dict(zip(self.regressions, ahead.unbind(-1), strict=True))
        if leveled:
            residual = values - fits[..., : times.shape[-1], -1]
            shift = anchors.present_residual(times, residual, mask, self.memory)
            said[self.regressions[-1]] = said[self.regressions[-1]] + shift
        return said


class _Season:
    """The anchors of one period."""

    def __init__(self, number: str, period: float, span: float, names: Sequence[str]) -> None:
        self.number, self.period, self.span = number, period, span
        self.has_mean = f"seasonal_mean_{number}" in names
        self.has_drift = f"seasonal_drift_{number}" in names

    def moments(self, times: Tensor, mask: Tensor, at: Tensor) -> list[Tensor]:
        """Where the path is read: at the same phase `[..., points, cycles]`, then where the drift shows."""
        cycles = anchors.cycle_moments(at, self.period, self.span)
        parts = [cycles if self.has_mean else cycles[..., :1]]
        if self.has_drift:
            steps = anchors.whole_cycles(times, mask, self.period)
            parts.append(anchors.drift_moments(at, steps, self.period))
        return parts

    def answers(
        self, times: Tensor, mask: Tensor, at: Tensor, parts: list[Tensor], path: list[Tensor]
    ) -> dict[str, Tensor]:
        """What the anchors say, by name, from the path at those moments."""
        naive = path[0][..., 0]
        said = {f"seasonal_{self.number}": naive}
        if self.has_mean:
            said[f"seasonal_mean_{self.number}"] = anchors.mean_of_cycles(path[0], parts[0], times, mask)
        if self.has_drift:
            change = anchors.drift(path[1], anchors.whole_cycles(times, mask, self.period))
            said[f"seasonal_drift_{self.number}"] = naive + anchors.cycles_back(at, self.period) * change
        return said
