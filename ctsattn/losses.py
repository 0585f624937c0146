"""Losses of forecasts in torch: pinball, likelihoods, masked means."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def pinball(values: Tensor, quantiles: Tensor, levels: Tensor) -> Tensor:
    r"""Pinball loss of each quantile, $\max(\tau (y - q), (\tau - 1)(y - q))$.

    Its mean over levels spread evenly over (0, 1) is half the continuous ranked probability score.

    Args:
        values: Truth `[...]`.
        quantiles: Predicted quantiles `[..., levels]`.
        levels: Their levels `[levels]`, in (0, 1).

    Returns:
        The loss of each quantile, `[..., levels]`.
    """
    error = values.unsqueeze(-1) - quantiles
    return torch.maximum(levels * error, (levels - 1) * error)


def normal_nll(values: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Negative log-likelihood of a normal law, $\log\sigma + z^2/2 + \log(2\pi)/2$, error $z\sigma$."""
    return scale.log() + ((values - loc) / scale).square() / 2 + 0.5 * math.log(2 * math.pi)


def masked_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """Mean of `losses` over the entries where `mask` is true; 0, with zero gradient, where there are none."""
    kept = torch.where(mask, losses, torch.zeros_like(losses))
    return kept.sum() / mask.sum().clamp(min=1)
