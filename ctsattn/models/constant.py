"""ConstantInTime: the anchor that knows the past but not the time it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch, TaskSpec
from ctsattn.models.continuous_transformer import ContinuousTransformer, ContinuousTransformerNetwork


@dataclass(frozen=True)
class ConstantInTime(ContinuousTransformer):
    """`ContinuousTransformer` that gives one answer for all query times.

    A data set on which it is not beaten says nothing about how a model deals with time.

    References:
        Klötergens et al., "Physiome-ODE: a benchmark for irregularly sampled multivariate time series
        forecasting based on biological ODEs" (2025).
    """

    def build(self, spec: TaskSpec) -> nn.Module:
        """The network for a task."""
        return ConstantInTimeNetwork(self, spec)


class ConstantInTimeNetwork(nn.Module):
    """Network of `ConstantInTime`: asks the inner network for the middle of the horizon, whatever is asked.

    Args:
        config: Options of the inner network.
        spec: Task.
    """

    trainable = True

    def __init__(self, config: ContinuousTransformer, spec: TaskSpec) -> None:
        super().__init__()
        self.network = ContinuousTransformerNetwork(config, spec)
        self.head, self.middle = self.network.head, spec.horizon / 2

    def forward(self, batch: Batch) -> Tensor:
        """Raw parameters of the head, `[batch, targets, queries, params]`, in scaled units."""
        timeless = replace(
            batch,
            future_times=torch.full_like(batch.future_times, self.middle),
            future_known=torch.zeros_like(batch.future_known),
            future_known_codes=torch.zeros_like(batch.future_known_codes),
        )
        return self.network(timeless)
