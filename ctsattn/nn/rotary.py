"""Rotary positions of a real clock: angle = frequency × time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
        return self.turn(x, self.angles(times))

    def angles(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[batch, 1, length, frequencies]` at `times` `[batch, length]`."""
        frequencies = self.frequencies.to(torch.promote_types(times.dtype, torch.float32))
        angles = times[:, None, :, None] * frequencies
        return angles.cos(), angles.sin()

    def turn(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Turn `x` `[batch, heads, length, head_dim]` by what `angles` said."""
        if self.frequencies.numel() == 0:
            return x
        cos, sin = (part.to(x.dtype) for part in angles)
        if cos.requires_grad or torch.compiler.is_compiling():
            return _turned(x, cos, sin)
        return _Turn.apply(x, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = cos.shape[-1]
    first, second, rest = x.split([turned, turned, x.shape[-1] - 2 * turned], dim=-1)
    ahead = torch.addcmul(first * cos, second, sin, value=-1)
    return torch.cat([ahead, torch.addcmul(second * cos, first, sin), rest], dim=-1)


class _Turn(torch.autograd.Function):
    """A turn whose gradient is the turn back, in half of the steps that autograd would take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return _turned(x, cos, sin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, cos, sin = inputs
        ctx.save_for_backward(cos, sin)
        ctx.save_for_forward(cos, sin)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return _Turn.apply(grad_outputs[0], cos, -sin), None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        return _turned(grad_inputs[0], *ctx.saved_tensors)
