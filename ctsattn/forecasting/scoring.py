"""Losses of a network on batches: their mean, and by target to choose which ones it is heard on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ctsattn.data.batch import Batch
from ctsattn.losses import masked_mean
from ctsattn.models.joining import only_observed


class HasBatch(Protocol):
    """What Lightning moves in place of a batch."""

    @property
    def batch(self) -> Batch:
        """The batch."""
        ...


def mean_loss(network: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean of the head's losses over the observed queries of a batch, and their number."""
    head: Any = network.head
    with only_observed(network):
        losses = head.loss(network(batch), batch.future_values)
    observed = batch.future_observed & batch.future_mask[:, None, :]
    return masked_mean(losses, observed), observed.sum()


def choose_targets(
    network: nn.Module, held: Iterable[HasBatch], together: Callable[[Tensor], Tensor] = lambda sums: sums
) -> None:
    """Leave to the linear path the targets that it forecasts better, by their losses on held-out windows.

    A network learns by heart what it saw a few hundred times; its linear path, with a handful of weights for
    each target, cannot. Networks that are always heard (without `heard_targets`) stay as they are.

    Args:
        network: A trained network.
        held: Windows with truths that it did not learn from; gone through twice.
        together: Adds up what several processes found.
    """
    heard: Any = getattr(network, "heard_targets", None)
    if heard is None:
        return
    losses = []
    for share in (1.0, 0.0):
        heard.fill_(share)
        losses.append(together(_losses_by_target(network, held)))
    heard.copy_(losses[0] <= losses[1])


def _losses_by_target(network: nn.Module, held: Iterable[HasBatch]) -> Tensor:
    """Sums of the head's losses over the observed queries of each target, `[targets]`."""
    training, device = network.training, next(network.parameters()).device
    network.eval()
    with torch.no_grad(), only_observed(network):
        sums = [_of_batch(network, one.batch.to(device)) for one in held]
    network.train(training)
    return torch.stack(sums).sum(dim=0)


def _of_batch(network: Any, batch: Batch) -> Tensor:
    """Sums of the head's losses in a batch, `[targets]`."""
    losses = network.head.loss(network(batch), batch.future_values)
    observed = batch.future_observed & batch.future_mask[:, None]
    return torch.where(observed, losses, 0.0).sum(dim=(0, 2))
