"""Rotary positions of a real clock: angle = frequency × time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_PERIOD_MAX_ANGLE = (
    1.0  # a period's turn within one gap; above it a chord between rotated keys loses its length
)


def frequency_ladder(
    count: int, span: float, gap: float, periods: Sequence[float] = (), max_angle: float = 0.5
) -> tuple[float, ...]:
    r"""Angular frequencies from a quarter turn over `span` up to `max_angle` over `gap`, in equal ratios.

    Keys are joined by straight lines between observations. A chord between two keys that differ by the
    angle $\theta\Delta$ has its middle at length $|\cos(\theta\Delta/2)|$, so the fastest rotation is
    bounded by the gap. Frequencies $2\pi/P$ of `periods` come first, as far as they turn by no more than 1
    within `gap`.

    Args:
        count: Number of frequencies.
        span: Longest elapsed time that must be told apart, in any unit.
        gap: Typical gap between neighbouring tokens, in the same unit.
        periods: Periods of the task, in the same unit.
        max_angle: Angle that the fastest rung turns by in one gap.

    Returns:
        The `count` frequencies, those of the periods first, the rest falling.
    """
    turns = [2 * math.pi / period for period in periods if 2 * math.pi * gap <= _PERIOD_MAX_ANGLE * period]
    turns = turns[: count // 2]
    rungs = count - len(turns)
    fastest, slowest = max_angle / gap, math.pi / (2 * max(span, gap))
    ratio = (slowest / fastest) ** (1 / max(rungs - 1, 1))
    return (*turns, *(fastest * ratio**i for i in range(rungs)))


class TimeRotary(nn.Module):
    r"""Turn pairs of features by the angles $\theta_j t$, so that scores depend on elapsed times only.

    The first `2 * len(frequencies)` features of each head turn, the others stay (partial rotary); with no
    frequency nothing turns.

    Args:
        head_dim: Features of a head.
        frequencies: Angular frequencies $\theta_j$, at most `head_dim // 2` of them.

    References:
        Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
    """

    def __init__(self, head_dim: int, frequencies: Sequence[float] = ()) -> None:
        super().__init__()
        if 2 * len(frequencies) > head_dim:
            raise ValueError(
                f"{len(frequencies)} frequencies turn {2 * len(frequencies)} features, but a head has "
                f"{head_dim}. Give at most {head_dim // 2} frequencies."
            )
        self.frequencies: Tensor
        # float64 keeps the angles of long clocks exact; it is narrowed after the product with time
        self.register_buffer(
            "frequencies", torch.tensor(tuple(frequencies), dtype=torch.float64), persistent=False
        )

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """Turn `x` `[batch, heads, length, head_dim]` by its `times` `[batch, length]`."""
        turned = 2 * self.frequencies.numel()
        if turned == 0:
            return x
        frequencies = self.frequencies.to(torch.promote_types(times.dtype, torch.float32))
        angles = times[:, None, :, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second, rest = x.split([turned // 2, turned // 2, x.shape[-1] - turned], dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
