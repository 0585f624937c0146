"""Several linear paths, each for windows of one kind: say those that repeat by the day, or by the week."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models.linear_path import LinearPath, Spread, fit_spread, linear_path
from ctsattn.models.path import interpolate
from ctsattn.nn import Head

_PROBES = 256  # moments of the past at which a window is compared with itself
_LEAST = 1e-3  # change from cycle to cycle, in scaled units, that counts as none
_BLUR = 0.05  # of the contrast, about an edge between groups; forecasts do not jump there
_MOST = 0.75  # of the look-back that a period may last, so that a quarter is left to compare


def compared_periods(spec: TaskSpec) -> tuple[float, float]:
    """Two spans of time over which the change of a window is compared.

    The first two periods that the look-back shows; or the only one and its half; or, without any, an eighth
    and a half of the look-back, which tell what wanders from what returns.
    """
    seen = [period for period in spec.periods if period <= _MOST * spec.lookback][:2]
    if not seen:
        return spec.lookback / 8, spec.lookback / 2
    return (min(seen), max(seen)) if len(seen) == 2 else (seen[0] / 2, seen[0])


def make_path(config: Any, spec: TaskSpec, *, fixed: bool = False) -> LinearPath | GroupedPath:
    """The linear path that the config of a model asks for, or one for each of its groups."""
    if not isinstance(config.groups, int) or config.groups < 1:
        raise ValueError(f"`groups` must be an integer of at least 1, but it is {config.groups!r}.")
    paths = [linear_path(config, spec, fixed=fixed) for _ in range(config.groups)]
    return paths[0] if len(paths) == 1 else GroupedPath(paths, spec)


class GroupedPath(nn.Module):
    r"""Linear paths of which each window takes one, by how much better the longer period repeats it.

    A linear map shared by many series is a compromise between those that repeat by the day and those that
    repeat by the week. Windows are ranked by $\log\,\overline{|x(t) - x(t - p_2)|} - \log\,\overline{|x(t) -
    x(t - p_1)|}$ over their own past and split into groups of equal size in training; each group has a path
    of its own.

    Args:
        paths: One for each group.
        spec: Task.

    References:
        Bandara, Bergmeir and Smyl, "Forecasting across time series databases using recurrent neural
        networks on groups of similar series" (2020).
    """

    def __init__(self, paths: Sequence[LinearPath], spec: TaskSpec) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)
        self.periods, self.lookback = compared_periods(spec), spec.lookback
        self.num_anchors, self.targets = paths[0].num_anchors, spec.num_targets
        self.edges: Tensor
        self.register_buffer("edges", torch.zeros(len(paths) - 1))

    def forward(
        self,
        times: Tensor,
        values: Tensor,
        mask: Tensor,
        at: Tensor,
        gate: Tensor | None = None,
        cutoff: Tensor | None = None,
    ) -> Tensor:
        """Forecast `[batch, targets, queries]`; arguments as for `LinearPath`."""
        said = torch.stack([path(times, values, mask, at, gate, cutoff) for path in self.paths], dim=-1)
        return (self._shares(times, values, mask).unsqueeze(2) * said).sum(dim=-1)

    def _shares(self, times: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """What each path counts `[batch, targets, groups]`: all or nothing, but for a window on an edge."""
        above = torch.sigmoid((self.contrast(times, values, mask).unsqueeze(-1) - self.edges) / _BLUR)
        one = torch.ones_like(above[..., :1])
        return torch.cat([one, above], dim=-1) - torch.cat([above, 0 * one], dim=-1)

    def group(self, times: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Group of each target of each window, `[batch, targets]`."""
        return torch.bucketize(self.contrast(times, values, mask), self.edges)

    def contrast(self, times: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Logarithm `[batch, targets]` of the change over the longer period by that over the shorter one.

        It is 0 where the past is too short to tell.
        """
        short, long = self.periods
        at = torch.linspace(long - self.lookback, 0, _PROBES, dtype=times.dtype, device=times.device)
        at = at.expand(*times.shape[:-1], -1)
        now = interpolate(times, values, mask, at)
        there = (at - long >= times[..., :1]) & mask[..., :1]

        def change(period: float) -> Tensor:
            moved = (now - interpolate(times, values, mask, at - period)).abs()
            return (moved * there).sum(dim=-1) / there.sum(dim=-1).clamp(min=1) + _LEAST

        return torch.log(change(long) / change(short))

    def start(self, batches: Iterable[Batch], head: Head, spread: Spread) -> None:
        """Split the windows into groups and start each path on its own; see `LinearPath.start`."""
        held = list(batches)
        contrasts = torch.cat([self.contrast(*self._past(batch)).flatten() for batch in held])
        shares = torch.arange(1, len(self.paths), device=contrasts.device) / len(self.paths)
        self.edges.copy_(torch.quantile(contrasts[: 2**24], shares))
        for number, path in enumerate(self.paths):
            assert isinstance(path, LinearPath)
            path.start([self._only(batch, number) for batch in held], head, spread)
        with torch.no_grad():
            first = held[0]
            line = self(*self._past(first), first.future_times, cutoff=first.cutoff)
        fit_spread(spread, head, line, first)

    def _past(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Times, values and mask of the targets."""
        past = (batch.past_times, batch.past_values, batch.past_mask)
        times, values, mask = (x[:, : self.targets] for x in past)
        return times, values, mask

    def _only(self, batch: Batch, number: int) -> Batch:
        """A batch with the truths of one group alone."""
        own = self.group(*self._past(batch)) == number
        return replace(batch, future_observed=batch.future_observed & own.unsqueeze(-1))
