"""The moving average of the weights of a run (`Training(average=...)`)."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

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
        self._own: dict[str, Tensor] | None = None

    def restore(self, average: dict[str, Tensor], device: torch.device) -> None:
        """Go on from an average that a checkpoint kept, on the device of the weights."""
        self.average = {name: value.to(device) for name, value in average.items()} or None

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
        average = [self.average[name] for name in weights]
        get_ema_multi_avg_fn(share)(average, list(weights.values()), step)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let the average be validated."""
        if self.average is not None:
            self._own = {k: v.detach().clone() for k, v in _floating(pl_module.network).items()}
            _put(pl_module.network, self.average)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Go on from where the steps are."""
        if self._own is not None:
            _put(pl_module.network, self._own)
            self._own = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Without validation the average is what remains."""
        if self.average is not None and not pl_module.bad_series and pl_module.best_weights is None:
            _put(pl_module.network, self.average)


def _floating(network: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers that have an average."""
    return {name: value for name, value in network.state_dict().items() if value.is_floating_point()}


def _put(network: nn.Module, values: dict[str, Tensor]) -> None:
    weights = _floating(network)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(values[name])


def weight_average(trainer: Any) -> WeightAverage | None:
    """The average that a trainer keeps, None where it keeps none."""
    return next((kept for kept in trainer.callbacks if isinstance(kept, WeightAverage)), None)
