"""Dropout that costs the CPU a third of PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 2**16  # a rate is rounded to a whole number of them


def keep_mask(like: Tensor, rate: float) -> Tensor:
    """Which elements of a tensor on the CPU are kept: bool, of its shape.

    PyTorch draws a number of 64 bits, brought to a float, for each element on one thread; here four elements
    share the 64 bits. `rate` is rounded to 1/65536.
    """
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    draws = draws.view(torch.int16)[: like.numel()].view(like.shape)
    return draws >= round(rate * _LEVELS) - _LEVELS // 2


class Dropout(nn.Module):
    """Set a share of features to 0 in training, and let the others grow so that the mean stays.

    As `nn.Dropout`, but for how the random numbers of the CPU are drawn.

    Args:
        rate: Share of features dropped, from 0 to below 1.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"The share of features dropped must lie in [0, 1), but it is {rate!r}.")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop features of `x`, of any shape."""
        if not self.training or self.rate == 0.0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        return x * keep_mask(x, self.rate).to(x.dtype).mul_(1 / (1 - self.rate))

    def extra_repr(self) -> str:
        """The rate."""
        return f"rate={self.rate}"
