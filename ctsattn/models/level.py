"""What forecasts return to: a regression on how high the past of a target stood, and where it ended."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ctsattn.models.ridge import KernelRows, Stretches


def levels_of(path: Tensor) -> Tensor:
    """Mean of a path, and its end less the mean, `[..., 2]` from `[..., nodes]`."""
    mean = path.mean(dim=-1)
    return torch.stack([mean, path[..., -1] - mean], dim=-1)


class Level(nn.Module):
    r"""Correction $a + b\,\bar x + c\,(x(0) - \bar x)$ with weights for each target and future node.

    A kernel whose forecasts move with the past cannot say that rain stops: it knows no level but that of the
    window. Where windows are not scaled by themselves there is a usual one, and this is how fast forecasts
    return to it. One level for all targets, where they are in units that are alike, is learned from as many
    windows as there are targets more: a target by itself shows one or two of its slow swings.

    Args:
        targets: Targets.
        nodes: Nodes of the future.
        shared: Whether all targets return alike.
    """

    def __init__(self, targets: int, nodes: int, *, shared: bool = False) -> None:
        super().__init__()
        self.shared, targets = shared, 1 if shared else targets
        self.weight: Tensor
        self.centre: Tensor
        self.unit: Tensor
        self.register_buffer("weight", torch.zeros(targets, nodes, 3))
        self.register_buffer("centre", torch.zeros(targets, 2))
        self.register_buffer("unit", torch.ones(targets, 2))

    def forward(self, levels: Tensor) -> Tensor:
        """Correction at the future nodes `[batch, targets, nodes]` from `levels_of` `[batch, targets, 2]`."""
        scaled = (levels - self.centre) / self.unit
        features = torch.cat([torch.ones_like(scaled[..., :1]), scaled], dim=-1)
        return torch.einsum("btk,tnk->btn", features, self.weight.expand(features.shape[1], -1, -1))

    def solve(self, target: int, rows: KernelRows, edges: Tensor, horizon: float) -> None:
        """Set the weights of a target by ridge regression, or to 0 where that forecasts no better.

        Args:
            target: Which one; 0 for all where they return alike.
            rows: Its windows.
            edges: Where the stretches of time begin that are left out in turn.
            horizon: How far the windows look ahead.
        """
        if not len(rows.levels):  # a target that no window asks for
            return
        self.centre[target] = rows.levels.mean(dim=0)
        spread = (rows.levels - self.centre[target]).square().mean(dim=0).sqrt()
        self.unit[target] = torch.where(spread > 0, spread, 1.0)
        scaled = (rows.levels - self.centre[target]) / self.unit[target]
        features = torch.cat([torch.ones_like(scaled[:, :1]), scaled], dim=-1)
        found = Stretches.gather(replace(rows, path=features), edges, horizon).best()
        self.weight[target] = 0.0 if found is None else found.to(self.weight)
