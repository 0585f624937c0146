"""Linear: the linear path alone, DLinear and its kin for any timestamps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ctsattn._checks import named
from ctsattn._options import Count, LostShare, OneOf
from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.data.scalers import SCALERS
from ctsattn.models.groups import make_path
from ctsattn.models.linear_path import FILLS, Spread
from ctsattn.nn import HEADS


@dataclass(frozen=True)
class Linear:
    """Forecasts that are linear in the past values, with a spread that depends on elapsed time and target.

    A convex mixture of closed-form anchors plus a learned kernel over past and future time. On a regular grid
    it has the reach of DLinear and RLinear; on other grids it integrates over real time.

    Attributes:
        anchors: Names of the anchors to mix, as in `candidates.task_anchors`; empty: all, and where windows
            are not scaled a constant too. For long regular series `("mean",)` alone, with one look-back
            (`average_lookbacks=False`), is best; for what wanders, as exchange rates do, `("last",)` is.
        by_phase: Whether the kernel changes with the phase of the shortest period, the time of the day say.
            Worth it for regular data with many cycles. Phases are counted from the first observation that
            `fit` saw, whatever history `predict` is given, so all series should keep one calendar.
        by_target: Whether each target has a kernel of its own besides the one that all share.
        by_level: Whether forecasts return to what is usual for their target, as fast as is learned from how
            high the past stood and where it ended. For `scaler` "channel" or "none" alone; worth it where
            targets have a level to which they return: weather, rates, rare events. "shared" learns one
            return for all targets: for few cycles of targets whose units are alike, as with `scaler`
            "channel". Neither is for levels that drift away for good.
        fill: What bridges the gaps of the past: "lines", straight between observations, or "kriging", the
            mean of what is unseen given what was seen, under a covariance learned from the training windows.
            Worth it for regular series with holes at random or in bursts that are longer than what changes
            in them; not where gaps say something of the values, as when a sensor reports on change.
        groups: Kinds of windows that have a linear path each, told apart by how well a longer period, the
            week, repeats them compared with a shorter one, the day. For many series that are not alike.
        average_lookbacks: Whether the kernel that all share starts as the mean of those over the look-back, a
            quarter of it and so on, or as the one over the look-back.
        dropout: Share of past nodes of the kernel dropped in training.
        head: Name in `ctsattn.nn.HEADS`.
        scaler: Name in `ctsattn.data.scalers.SCALERS`.

    References:
        Zeng et al., "Are transformers effective for time series forecasting?" (2023).
        Xu, Zeng and Xu, "FITS: modeling time series with 10k parameters" (2024).
    """

    anchors: tuple[str, ...] = ()
    by_phase: bool = False
    by_target: bool = False
    by_level: bool | Literal["shared"] = False
    fill: Annotated[str, OneOf(FILLS)] = "lines"
    average_lookbacks: bool = True
    groups: Count = 1
    dropout: LostShare = 0.0
    head: Annotated[str, OneOf(HEADS)] = "quantile"
    scaler: Annotated[str, OneOf(SCALERS)] = "standard"

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task."""
        return LinearNetwork(self, spec)


class LinearNetwork(nn.Module):
    """Network of `Linear`.

    Args:
        config: Options.
        spec: Task.
    """

    trainable = True

    def __init__(self, config: Linear, spec: TaskSpec) -> None:
        super().__init__()
        self.targets = spec.num_targets
        self.linear = make_path(config, spec)
        self.head = named("head", config.head, HEADS)()
        self.spread = Spread(spec, self.head.num_params - 1)

    def warm_up(self, batches: Iterable[Batch]) -> None:
        """Fit the linear path and the spread to windows with truths; called once, before training."""
        self.linear.start(batches, self.head, self.spread)

    def forward(self, batch: Batch) -> Tensor:
        """Raw parameters of the head, `[batch, targets, queries, params]`, in scaled units."""
        times, values = batch.past_times[:, : self.targets], batch.past_values[:, : self.targets]
        mask = batch.past_mask[:, : self.targets]
        line = self.linear(times, values, mask, batch.future_times, cutoff=batch.cutoff)
        return torch.cat([line.unsqueeze(-1), self.spread(batch.future_times)], dim=-1)
