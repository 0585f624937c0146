"""The linear path of a forecast: anchors in closed form, weighed by elapsed time, plus a learned kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.losses import masked_mean
from ctsattn.models import anchors
from ctsattn.models.path import resample
from ctsattn.nn import Head

Anchor = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_LOGIT_GAIN = 10.0  # lets a few hundred steps of Adam choose between anchors
_MAX_NODES = 512  # of the past and of the future in the learned kernel
_MAX_PERIODS = 3
_START_STEPS = 60  # of L-BFGS, for the mixture alone
_START_RIDGE = 1e-3  # keeps anchors that hardly matter near where they start
_LEVEL_GAPS = 4.0  # median gaps in which the memory of the present level fades


def harmonics_of(period: float, gap: float) -> int:
    """Harmonics of a period that its sampling can show, three at most."""
    return max(1, min(3, int(period / (2.5 * gap))))


def task_anchors(spec: TaskSpec) -> dict[str, Anchor]:
    """The anchors that a task's look-back and periods allow, by name."""
    chosen: dict[str, Anchor] = {
        "last": anchors.last_value,
        "mean": anchors.window_mean,
        "recent_mean": partial(anchors.window_mean, memory=max(spec.lookback / 8, spec.median_gap)),
        "trend": partial(anchors.harmonic_regression, periods=(), span=spec.lookback),
    }
    seen = [period for period in spec.periods if period <= spec.lookback][:_MAX_PERIODS]
    for i, period in enumerate(seen):
        chosen[f"seasonal_{i}"] = partial(anchors.seasonal_naive, period=period)
        if 2 * period <= spec.lookback:
            chosen[f"seasonal_mean_{i}"] = partial(anchors.seasonal_mean, period=period, span=spec.lookback)
            chosen[f"seasonal_drift_{i}"] = partial(anchors.seasonal_drift, period=period)
    fitted = [(p, harmonics_of(p, spec.median_gap)) for p in seen if 1.25 * p <= spec.lookback]
    if fitted:
        chosen["harmonic"] = partial(
            anchors.harmonic_regression, periods=fitted, span=spec.lookback, trend=False
        )
        chosen["harmonic_trend"] = partial(anchors.harmonic_regression, periods=fitted, span=spec.lookback)
    chosen["harmonic_level" if fitted else "trend_level"] = partial(
        anchors.harmonic_level, periods=fitted, span=spec.lookback, memory=_LEVEL_GAPS * spec.median_gap
    )
    return chosen


class TimeFeatures(nn.Module):
    """Smooth features of the elapsed time from the cutoff to a query.

    Args:
        spec: Task, for its units.
    """

    num_features = 12

    def __init__(self, spec: TaskSpec) -> None:
        super().__init__()
        self.gap, self.horizon, self.lookback = spec.median_gap, spec.horizon, spec.lookback

    def forward(self, at: Tensor) -> Tensor:
        """Features `[..., num_features]` of the times `at`; the first is constant."""
        share = (at / self.horizon).clamp(-self.lookback / self.horizon, 2.0)
        steps = torch.log1p(at.clamp(min=0) / self.gap) / torch.log1p(at.new_tensor(self.horizon / self.gap))
        waves = torch.pi * share.unsqueeze(-1) * torch.arange(1, 5, device=at.device, dtype=at.dtype)
        plain = torch.stack([torch.ones_like(at), share, steps, (at <= 0).to(at)], dim=-1)
        return torch.cat([plain, waves.cos(), waves.sin()], dim=-1)


class LearnedKernel(nn.Module):
    r"""Learned weights of every past moment for every future moment, $\int W(T, s)\,(x(s) - \bar x)\,ds$.

    $W$ is held at evenly spaced nodes of past and future and starts at 0; the past is brought to its nodes by
    `resample`, the answer to the query by straight lines. On a regular grid it is an ordinary linear layer.

    Args:
        spec: Task, for look-back, horizon and gap.
        dropout: Share of past nodes dropped in training.
    """

    def __init__(self, spec: TaskSpec, dropout: float = 0.0) -> None:
        super().__init__()
        past = int(min(max(round(spec.lookback / spec.median_gap), 2), _MAX_NODES))
        future = int(min(max(round(spec.horizon / spec.median_gap), 1), _MAX_NODES))
        past_gap = spec.median_gap if past < _MAX_NODES else spec.lookback / past
        self.future_gap = spec.horizon / future
        self.nodes: Tensor
        self.register_buffer("nodes", past_gap * torch.arange(1.0 - past, 1.0), persistent=False)
        self.weight = nn.Parameter(torch.zeros(future, past))
        self.dropout = nn.Dropout(dropout)

    def forward(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """Correction `[batch, channels, queries]` at the times `at` `[batch, queries]`; 0 in the past."""
        path, _ = resample(times, values, mask, self.nodes.to(times))
        path = self.dropout(path - path.mean(dim=-1, keepdim=True))
        answer = nn.functional.pad(path @ self.weight.mT, (1, 0))
        place = (at / self.future_gap).clamp(0, len(self.weight))
        lower = place.floor().clamp(max=len(self.weight) - 1)
        index = lower.long().unsqueeze(1).expand(-1, values.shape[1], -1)
        return torch.lerp(
            answer.gather(-1, index), answer.gather(-1, index + 1), (place - lower).unsqueeze(1)
        )


class LinearPath(nn.Module):
    """Convex mixture of anchors, by elapsed time and channel, plus the learned kernel.

    Args:
        spec: Task.
        dropout: Share of past nodes of the kernel dropped in training.
        with_level: Whether a learned constant of each target is one more anchor. It makes sense where windows
            are not scaled by themselves: there a series that says little is forecast by what is usual.
    """

    def __init__(self, spec: TaskSpec, dropout: float = 0.0, with_level: bool = False) -> None:
        super().__init__()
        self.anchors = task_anchors(spec)
        self.num_anchors = len(self.anchors) + with_level
        self.features = TimeFeatures(spec)
        self.level = nn.Parameter(torch.zeros(spec.num_targets)) if with_level else None
        self.mixture = nn.Parameter(
            torch.zeros(spec.num_targets, self.num_anchors, TimeFeatures.num_features)
        )
        # for the past only the first anchor, the interpolated path, counts until training says otherwise
        with torch.no_grad():
            self.mixture[:, 0, 3] = 1.0
        self.kernel = LearnedKernel(spec, dropout)

    def forward(
        self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor, gate: Tensor | None = None
    ) -> Tensor:
        """Forecast `[batch, targets, queries]`.

        Args:
            times: `[batch, targets, length]`.
            values: `[batch, targets, length]`.
            mask: `[batch, targets, length]`.
            at: `[batch, queries]`.
            gate: Logits of the anchors to add, `[batch, targets, queries, anchors]`, or None.
        """
        # regressions and time features need all their digits, whatever precision the network runs in
        with torch.autocast(values.device.type, enabled=False):
            weights = self._weights(self.features(at), gate)
            line = (weights * self._candidates(times, values, mask, at)).sum(dim=-1)
            return line + self.kernel(times, values, mask, at)

    def _candidates(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """What each anchor says, `[batch, targets, queries, anchors]`."""
        asked = at.unsqueeze(1).expand(-1, values.shape[1], -1)
        candidates = [anchor(times, values, mask, asked) for anchor in self.anchors.values()]
        if self.level is not None:
            candidates.append(self.level[:, None].expand_as(asked))
        return torch.stack(candidates, dim=-1)

    def _weights(self, features: Tensor, gate: Tensor | None = None) -> Tensor:
        """Weight of each anchor, `[batch, targets, queries, anchors]`."""
        logits = _LOGIT_GAIN * torch.einsum("bqf,taf->btqa", features, self.mixture)
        return (logits if gate is None else logits + gate).softmax(dim=-1)

    def start(self, batch: Batch, head: Head) -> Tensor:
        """Fit the mixture to windows with known truths, before anything else is trained.

        What the anchors say does not change in training, so their mixture and one spread around it are a
        small smooth problem, solved here to the end. Stochastic steps would take hundreds to get there, and
        meanwhile the rest of a network would learn to mend what the mixture lacks.

        Args:
            batch: Windows with truths.
            head: The head that turns location and spread into a loss.

        Returns:
            Raw parameters of the spread, `[params - 1]`.
        """
        past = (batch.past_times, batch.past_values, batch.past_mask)
        times, values, mask = (x[:, : len(self.mixture)] for x in past)
        with torch.no_grad():
            features = self.features(batch.future_times)
            candidates = self._candidates(times, values, mask, batch.future_times)
        spread = candidates.new_zeros(head.num_params - 1, requires_grad=True)
        begin = self.mixture.detach().clone()
        optimiser = torch.optim.LBFGS(
            [self.mixture, spread], max_iter=_START_STEPS, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            line = (self._weights(features) * candidates).sum(dim=-1, keepdim=True)
            params = torch.cat([line, spread.expand(*line.shape[:-1], -1)], dim=-1)
            loss = masked_mean(head.loss(params, batch.future_values), batch.future_observed)
            loss = loss + _START_RIDGE * (self.mixture - begin).square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        optimiser.zero_grad()
        with torch.no_grad():
            if not (self.mixture.isfinite().all() and spread.isfinite().all()):
                self.mixture.copy_(begin)
                spread.zero_()
        return spread.detach()
