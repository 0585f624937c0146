"""The linear path of a forecast: anchors in closed form, weighed by elapsed time, plus a learned kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.scalers import FIXED
from ctsattn.losses import masked_mean
from ctsattn.models.candidates import Candidates, task_anchors
from ctsattn.models.kernel import LearnedKernel
from ctsattn.models.kriging import Kriging
from ctsattn.models.ridge import KernelRows
from ctsattn.nn import Head

_LOGIT_GAIN = 10.0  # lets a few hundred steps of Adam choose between anchors
FILLS = ("lines", "kriging")
_LEARNED = 20  # batches that a covariance is learned from
_START_STEPS = 60  # of L-BFGS, for the mixture alone
_START_RIDGE = 1e-3  # keeps anchors that hardly matter near where they start, and spreads near each other


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


class Spread(nn.Module):
    """Raw parameters of a head's spread, by target and elapsed time: what is near is surer than what is far.

    Args:
        spec: Task.
        num_params: Raw parameters of a forecast besides its location.
    """

    def __init__(self, spec: TaskSpec, num_params: int) -> None:
        super().__init__()
        self.features = TimeFeatures(spec)
        self.weight = nn.Parameter(torch.zeros(spec.num_targets, num_params, TimeFeatures.num_features))
        self.register_load_state_dict_pre_hook(_read_earlier)

    def forward(self, at: Tensor) -> Tensor:
        """Raw parameters `[batch, targets, queries, num_params]` at the times `at` `[batch, queries]`."""
        return torch.einsum("bqf,tpf->btqp", self.features(at), self.weight)


def _read_earlier(spread: Spread, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let files of models that had no spread of their own be read as if it were 0."""
    state.setdefault(f"{prefix}weight", torch.zeros_like(spread.weight))


class LinearPath(nn.Module):
    """Convex mixture of anchors, by elapsed time and channel, plus the learned kernel.

    Args:
        spec: Task.
        dropout: Share of past nodes of the kernel dropped in training.
        with_level: Whether a learned constant of each target is one more anchor. It makes sense where windows
            are not scaled by themselves: there a series that says little is forecast by what is usual.
        anchors: Names of the anchors to mix, as in `task_anchors`, and no level; empty: all.
        by_phase: Whether the kernel changes with the phase of the shortest period at the cutoff.
        by_target: Whether each target has a kernel of its own.
        by_level: Whether forecasts return to the usual level of their target; "shared": to one for all.
        average: Whether the kernel starts as the mean over several look-backs.
        fill: What bridges gaps, "lines" or "kriging".
        fixed: Whether what `start` finds is not trained further.

    Raises:
        ValueError: The task has no anchor of a name.
    """

    def __init__(
        self,
        spec: TaskSpec,
        dropout: float = 0.0,
        with_level: bool = False,
        *,
        anchors: Sequence[str] = (),
        by_phase: bool = False,
        by_target: bool = False,
        by_level: bool | str = False,
        average: bool = True,
        fill: str = "lines",
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.candidates, self.time_unit = Candidates(spec, _some(task_anchors(spec), anchors)), spec.time_unit
        with_level = with_level and not anchors
        self.num_anchors = len(self.candidates.names) + with_level
        self.features = TimeFeatures(spec)
        self.level = nn.Parameter(torch.zeros(spec.num_targets)) if with_level else None
        self.mixture = nn.Parameter(
            torch.zeros(spec.num_targets, self.num_anchors, TimeFeatures.num_features)
        )
        # for the past only the first anchor, the interpolated path, counts until training says otherwise
        with torch.no_grad():
            self.mixture[:, 0, 3] = 1.0
        self.kernel = LearnedKernel(
            spec, dropout, by_phase=by_phase, by_target=by_target, by_level=by_level, average=average
        )
        if fill not in FILLS:
            raise ValueError(f"`fill` must be one of {', '.join(FILLS)}, but it is {fill!r}.")
        self.fill = Kriging(spec, self.kernel.nodes) if fill == "kriging" else None
        self.fixed = fixed

    def forward(
        self,
        times: Tensor,
        values: Tensor,
        mask: Tensor,
        at: Tensor,
        gate: Tensor | None = None,
        cutoff: Tensor | None = None,
    ) -> Tensor:
        """Forecast `[batch, targets, queries]`.

        Args:
            times: `[batch, targets, length]`.
            values: `[batch, targets, length]`.
            mask: `[batch, targets, length]`.
            at: `[batch, queries]`.
            gate: Logits of the anchors to add, `[batch, targets, queries, anchors]`, or None.
            cutoff: `[batch]` float64, in seconds; needed by a kernel that changes with the phase.
        """
        # regressions and time features need all their digits, whatever precision the network runs in
        with torch.autocast(values.device.type, enabled=False):
            times, values, mask = self._filled(times, values, mask)
            weights = self._weights(self.features(at), gate)
            line = (weights * self._candidates(times, values, mask, at)).sum(dim=-1)
            # in float64, which some devices lack: the cutoffs stay on the CPU, and are not touched in vain
            if cutoff is not None:
                cutoff = None if self.kernel.by_phase is None else cutoff / self.time_unit
            return line + self.kernel(times, values, mask, at, cutoff)

    def _filled(self, times: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The past as anchors and kernel see it: as it is, straight lines between, or without gaps."""
        return (times, values, mask) if self.fill is None else self.fill(times, values, mask)

    def _candidates(self, times: Tensor, values: Tensor, mask: Tensor, at: Tensor) -> Tensor:
        """What each anchor says, `[batch, targets, queries, anchors]`."""
        asked = at.unsqueeze(1).expand(-1, values.shape[1], -1)
        said = self.candidates(times, values, mask, asked)
        if self.level is None:
            return said
        return torch.cat([said, self.level[:, None].expand_as(asked).unsqueeze(-1)], dim=-1)

    def _weights(self, features: Tensor, gate: Tensor | None = None) -> Tensor:
        """Weight of each anchor, `[batch, targets, queries, anchors]`."""
        logits = _LOGIT_GAIN * torch.einsum("bqf,taf->btqa", features, self.mixture)
        return (logits if gate is None else logits + gate).softmax(dim=-1)

    def start(self, batches: Iterable[Batch], head: Head, spread: Spread) -> None:
        """Fit the path and the spread to windows with known truths, before anything else is trained.

        What the anchors say does not change in training, so their mixture and one spread around it are a
        small smooth problem, solved here on the first batch; then the kernel is a ridge regression of what
        they leave, on all batches, and the spread by elapsed time is fitted to what remains. Stochastic steps
        would take hundreds to get there, and meanwhile the rest of a network would learn to mend what the
        path lacks.

        Args:
            batches: Windows with truths; gone through once.
            head: The head that turns location and spread into a loss.
            spread: The spread to fit.
        """
        rest = iter(batches)
        few = list(islice(rest, 1 if self.fill is None else _LEARNED))
        first = few[0]
        if self.fill is not None:
            self.fill.learn(few)
        if not self._start_mixture(first, head, spread):
            return
        with torch.no_grad():
            self.kernel.solve([self._rows(batch) for batch in chain(few, rest)])
            line = self(*self._past(first), first.future_times, cutoff=first.cutoff)
        fit_spread(spread, head, line, first)
        self.requires_grad_(not self.fixed)

    def _start_mixture(self, batch: Batch, head: Head, spread: Spread) -> bool:
        """Fit the mixture of the anchors and one spread for all; False where that led nowhere finite."""
        with torch.no_grad():
            moments, row = batch.future_times.unique(dim=0, return_inverse=True)  # most windows ask alike
            features = self.features(moments)
            said = self._candidates(*self._filled(*self._past(batch)), batch.future_times)
        constant = said.new_zeros(head.num_params - 1, requires_grad=True)
        begin = self.mixture.detach().clone()

        def objective() -> Tensor:
            weights = self._weights(features)
            weights = weights if len(weights) == 1 else weights.index_select(0, row)
            line = (weights * said).sum(dim=-1)
            far = (self.mixture - begin).square().sum()
            return _loss(head, line, constant, batch) + _START_RIDGE * far

        found = _minimise([self.mixture, constant], objective)
        with torch.no_grad():
            spread.weight[..., 0] = constant if found else 0.0  # the first feature is constant
        return found

    def _past(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Times, values and mask of the targets."""
        past = (batch.past_times, batch.past_values, batch.past_mask)
        times, values, mask = (x[:, : len(self.mixture)] for x in past)
        return times, values, mask

    def _rows(self, batch: Batch) -> KernelRows:
        """What a batch says about the kernel once the anchors have spoken."""
        past = self._filled(*self._past(batch))
        said = self._candidates(*past, batch.future_times)
        line = (self._weights(self.features(batch.future_times)) * said).sum(dim=-1)
        observed = batch.future_observed & batch.future_mask[:, None]
        clock = batch.cutoff / self.time_unit
        path = self.kernel.path(*past)
        return self.kernel.rows(path, batch.future_values - line, observed, batch.future_times, clock)


def linear_path(config: Any, spec: TaskSpec, *, fixed: bool = False) -> LinearPath:
    """The linear path that the config of a model asks for; see `LinearPath` and the fields of `Linear`."""
    if config.by_level and config.scaler not in FIXED:
        raise ValueError(
            f"`by_level` needs units that are the same for all windows: give `scaler` {' or '.join(FIXED)}, "
            f"not {config.scaler!r}."
        )
    return LinearPath(
        spec,
        config.dropout,
        with_level=config.scaler in FIXED,
        anchors=config.anchors,
        by_phase=config.by_phase,
        by_target=config.by_target,
        by_level=config.by_level,
        average=config.average_lookbacks,
        fill=config.fill,
        fixed=fixed,
    )


def _some(found: Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """Some of the names that there are, or all."""
    if unknown := set(names) - set(found):
        raise ValueError(f"No anchor is called {sorted(unknown)}. This task has {', '.join(found)}.")
    return tuple(names) if names else tuple(found)


def _loss(head: Head, line: Tensor, spread: Tensor, batch: Batch) -> Tensor:
    """Mean loss of a location with a spread, one for all or one for each query."""
    params = torch.cat([line.unsqueeze(-1), spread.expand(*line.shape, -1)], dim=-1)
    observed = batch.future_observed & batch.future_mask[:, None]
    return masked_mean(head.loss(params, batch.future_values), observed)


def fit_spread(spread: Spread, head: Head, line: Tensor, batch: Batch) -> None:
    """Fit the spread around a location, held back from whatever is not the same for all queries."""
    at = batch.future_times
    at = at[:1] if torch.equal(at, at[:1].expand_as(at)) else at  # most windows ask alike

    def objective() -> Tensor:
        varying = spread.weight[..., 1:].square().sum()
        return _loss(head, line, spread(at), batch) + _START_RIDGE * varying

    _minimise([spread.weight], objective)


def _minimise(parameters: list[Tensor], objective: Callable[[], Tensor]) -> bool:
    """Minimise a smooth function by L-BFGS; False, with all as it was, when it leads nowhere finite."""
    begin = [parameter.detach().clone() for parameter in parameters]
    optimiser = torch.optim.LBFGS(parameters, max_iter=_START_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    optimiser.step(closure)
    optimiser.zero_grad()
    finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
    if not finite:
        with torch.no_grad():
            for parameter, before in zip(parameters, begin, strict=True):
                parameter.copy_(before)
    return finite
