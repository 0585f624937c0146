"""The moving average of the weights of a run (`Training(average=...)`)."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn

_BEGIN = 10  # steps over which the first averages look back less far


class WeightAverage(lightning.Callback):
    r"""Keeps $\bar w \leftarrow \beta\,\bar w + (1-\beta)\,w$, and validates and ends with it.

    Steps scatter about where they lead; their average is nearer to it. The share of the past is
    $\min(\beta, (1 + t) / (10 + t))$ at step t, so that the start is soon forgotten.

    Args:
        share: $\beta$, in [0, 1).

    References:
        Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992).
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.average: dict[str, Tensor] | None = None
        self._own: list[Tensor] | None = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take in the weights of a step."""
        if pl_module.bad_series:
            return
        weights = _floating(pl_module.network)
        if self.average is None:
            self.average = {k: v.detach().clone() for k, v in weights.items()}
            return
        step = pl_module.step
        share = min(self.share, (1 + step) / (_BEGIN + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(weights.values()), 1 - share)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let the average be validated."""
        if self.average is not None:
            self._own = [v.detach().clone() for v in _floating(pl_module.network).values()]
            _put(pl_module.network, list(self.average.values()))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Go on from where the steps are."""
        if self._own is not None:
            _put(pl_module.network, self._own)
            self._own = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Without validation the average is what remains."""
        if self.average is not None and not pl_module.bad_series and pl_module.best_weights is None:
            _put(pl_module.network, list(self.average.values()))


def _floating(network: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers that have an average."""
    return {name: value for name, value in network.state_dict().items() if value.is_floating_point()}


def _put(network: nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(_floating(network).values()), values)
