"""Linear: the linear path alone, DLinear and its kin for any timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models.linear_path import LinearPath, Spread
from ctsattn.nn import HEADS


@dataclass(frozen=True)
class Linear:
    """Forecasts that are linear in the past values, with a spread that depends on elapsed time and target.

    A convex mixture of closed-form anchors plus a learned kernel over past and future time. On a regular grid
    it has the reach of DLinear and RLinear; on other grids it integrates over real time.

    Attributes:
        dropout: Share of past nodes of the kernel dropped in training.
        head: Name in `ctsattn.nn.HEADS`.
        scaler: Name in `ctsattn.data.scalers.SCALERS`.

    References:
        Zeng et al., "Are transformers effective for time series forecasting?" (2023).
        Xu, Zeng and Xu, "FITS: modeling time series with 10k parameters" (2024).
    """

    dropout: float = 0.0
    head: str = "quantile"
    scaler: str = "standard"

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
        self.linear = LinearPath(spec, config.dropout, with_level=config.scaler == "none")
        self.head = HEADS[config.head]()
        self.spread = Spread(spec, self.head.num_params - 1)

    def warm_up(self, batches: Sequence[Batch]) -> None:
        """Fit the linear path and the spread to windows with truths; called once, before training."""
        self.linear.start(batches, self.head, self.spread)

    def forward(self, batch: Batch) -> Tensor:
        """Raw parameters of the head, `[batch, targets, queries, params]`, in scaled units."""
        times, values = batch.past_times[:, : self.targets], batch.past_values[:, : self.targets]
        line = self.linear(times, values, batch.past_mask[:, : self.targets], batch.future_times)
        return torch.cat([line.unsqueeze(-1), self.spread(batch.future_times)], dim=-1)
