"""Anchors as models: nothing to train, a forecast in closed form and a spread from the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from ctsattn._options import OneOf, Positive
from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.scalers import SCALERS, law_share
from ctsattn.models import anchors
from ctsattn.models.candidates import Anchor
from ctsattn.models.path import interpolate
from ctsattn.nn import SquaredErrorHead

_MIN_SPREAD = 1e-3  # in scaled units
_PROBES = 32  # moments of the past at which the error of an anchor is measured


class AnchorNetwork(nn.Module):
    """A closed-form forecast with a normal spread, the root mean square error it would have had in the past.

    A past of few observations shows no error: one alone is a straight line. There the spread is at least the
    share of the window's scale that `scalers.safe_scale` takes from the law of scales.

    Args:
        anchor: The forecast.
        spec: Task.
        lag: How far back the forecast for an elapsed time looks; None: over the whole window.
    """

    trainable = False

    def __init__(self, anchor: Anchor, spec: TaskSpec, lag: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.anchor, self.spec, self.lag = anchor, spec, lag
        self.head = SquaredErrorHead()

    def forward(self, batch: Batch) -> Tensor:
        """Raw parameters of the head, `[batch, targets, queries, 2]`, in scaled units."""
        targets = self.spec.num_targets
        path = (batch.past_times[:, :targets], batch.past_values[:, :targets], batch.past_mask[:, :targets])
        at = batch.future_times.unsqueeze(1).expand(-1, targets, -1)
        least = law_share(path[2].sum(-1, keepdim=True).to(at)).clamp(min=_MIN_SPREAD)
        spread = torch.maximum(self._spread(*path, at), least)
        # the head's scale is the softplus of its parameter
        raw = spread + torch.log(-torch.expm1(-spread))
        return torch.stack([self.anchor(*path, at), raw], dim=-1)

    def _spread(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Root mean square difference between the path and what the anchor looks at."""
        span = self.spec.lookback / 2
        probes = torch.linspace(-span, 0, _PROBES, dtype=at.dtype, device=at.device).expand(
            *at.shape[:-1], -1
        )
        truth = interpolate(times, values, mask, probes)
        if self.lag is None:
            mean = anchors.window_mean(times, values, mask, probes)
            return (truth - mean).square().mean(-1, keepdim=True).sqrt().expand_as(at)
        back = self.lag(at.clamp(min=0)).clamp(max=span)
        moments = (probes.unsqueeze(-2) - back.unsqueeze(-1)).flatten(-2)
        seen = interpolate(times, values, mask, moments).unflatten(-1, (at.shape[-1], _PROBES))
        return (truth.unsqueeze(-2) - seen).square().mean(dim=-1).sqrt()


def main_period(spec: TaskSpec) -> float | None:
    """The first of the task's periods that the look-back shows at least once, or None.

    Natural ones come first, the shortest of them before the others, then detected ones, the strongest first.
    """
    return next((period for period in spec.periods if period <= spec.lookback), None)


# Functions by name, so that a fitted network can be pickled.


def _since_the_last(ahead: Tensor) -> Tensor:
    """Elapsed time between an asked time and the value that answers it."""
    return ahead


def _whole_cycles(ahead: Tensor, period: float) -> Tensor:
    """The same where the value is that of an earlier cycle."""
    return period * anchors.cycles_back(ahead, period)


@dataclass(frozen=True)
class LastValue:
    """Repeat the last value; asked in the past, the path between observations."""

    scaler: Annotated[str, OneOf(SCALERS)] = "standard"

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task."""
        return AnchorNetwork(anchors.last_value, spec, lag=_since_the_last)


@dataclass(frozen=True)
class SeasonalNaive:
    """Repeat the last cycle of a period; the last value where no period fits in the look-back.

    Attributes:
        period: Period in model units of time; None: the first of the task's that the look-back shows, the
            day of hourly data say.
        drift: Whether to add the change of the cycle's mean from one cycle to the next.
        scaler: Name in `ctsattn.data.scalers.SCALERS`.
    """

    period: Positive | None = None
    drift: bool = False
    scaler: Annotated[str, OneOf(SCALERS)] = "standard"

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task."""
        period = self.period or main_period(spec)
        if period is None:
            return LastValue(self.scaler).build(spec)
        anchor = anchors.seasonal_drift if self.drift else anchors.seasonal_naive
        return AnchorNetwork(partial(anchor, period=period), spec, partial(_whole_cycles, period=period))


@dataclass(frozen=True)
class WindowMean:
    """The mean over real time of the look-back window."""

    scaler: Annotated[str, OneOf(SCALERS)] = "standard"

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task."""
        return AnchorNetwork(anchors.window_mean, spec)
