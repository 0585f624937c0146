"""How much the loss of each target counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ctsattn.data.batch import Batch


def target_weights(batches: Sequence[Batch], balance: float, in_own_units: bool) -> Tensor:
    """Weights `[targets]` of the targets' losses, one on the average over observations.

    Args:
        batches: Windows with truths.
        balance: Power of a target's observations by which its weight falls.
        in_own_units: Whether to undo the scale, the same in all windows, for a squared error in the
            caller's units.
    """
    observed = [batch.future_observed & batch.future_mask[:, None] for batch in batches]
    counts = torch.stack([seen.sum(dim=(0, 2)) for seen in observed]).sum(dim=0).double().cpu()
    weights = counts.clamp(min=1) ** -balance
    if in_own_units:
        weights = weights * batches[0].scale[0].square()
    return weights * counts.sum().clamp(min=1) / (weights * counts).sum().clamp(min=1e-300)
