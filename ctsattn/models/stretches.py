"""Stretches of time as questions: one decoder token answers every time that is asked within its stretch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ctsattn.data.batch import TaskSpec
from ctsattn.models.tokens import ObservationTokens, PatchTokens

_MAX_NODES = 1536  # of the horizon, as in the learned kernel
_STRETCHES = 24  # of a horizon, where their length follows from the task


class Stretches(nn.Module):
    """Evenly spaced nodes around the cutoff, some to a stretch; answers are read between them.

    A decoder that is asked for each time pays for each time. Here it is asked for each stretch and answers at
    the stretch's nodes, one median gap apart; straight lines lead from there to the times that were asked,
    however irregular. On a regular series the nodes are those times. No line leads across the cutoff, so a
    forecast is the same whether or not times of the past are asked beside it.

    Args:
        spec: Task.
        length: Nodes of a stretch; longer where the horizon would take more than some 24 stretches.

    References:
        Nie et al., "A time series is worth 64 words" (2023), where patches are read and not asked for.
    """

    def __init__(self, spec: TaskSpec, length: int) -> None:
        super().__init__()
        self.gap = max(spec.median_gap, spec.horizon / _MAX_NODES)
        self.length = length
        self.behind = self._count(spec.lookback)
        numbers = torch.arange(-self.behind, self._count(spec.horizon))
        self.middles: Tensor
        middles = self.gap * (self.length * numbers + (self.length + 1) / 2)
        self.register_buffer("middles", middles, persistent=False)

    def _count(self, span: float) -> int:
        """Stretches that a span takes."""
        return max(1, math.ceil(span / (self.gap * self.length) - 1e-6))

    def asked(self, at: Tensor, mask: Tensor) -> Tensor:
        """Middles `[batch, stretches]` of the stretches to answer; those of the past only where it is asked.

        Args:
            at: `[batch, queries]`.
            mask: `[batch, queries]`, true where there is a query.
        """
        middles = self.middles if bool(((at <= 0) & mask).any()) else self.middles[self.behind :]
        return middles.to(at).expand(len(at), -1)

    def number(self, at: Tensor) -> Tensor:
        """Which stretch of the future, counted from 0, answers the times `at` after the cutoff."""
        last = len(self.middles) - self.behind - 1
        return (at / (self.gap * self.length)).ceil().sub(1).clamp(0, last).long()

    def read(self, said: Tensor, at: Tensor) -> Tensor:
        """What was said of all nodes of a stretch, brought to the times that were asked.

        Args:
            said: `[batch, channels, stretches, length * features]` of the stretches that `asked` named.
            at: `[batch, queries]`.

        Returns:
            `[batch, channels, queries, features]`.
        """
        nodes = said.unflatten(-1, (self.length, -1)).flatten(2, 3)
        lower, share = self._place(at, nodes.shape[2])
        upper = (lower + (share > 0)).long()
        share = share[:, None, :, None].to(nodes)
        return torch.lerp(_take(nodes, lower.long()), _take(nodes, upper), share)

    def _place(self, at: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Node at or before each time and the share of the next one, on the time's side of the cutoff."""
        past = self.behind * self.length if count > len(self.middles[self.behind :]) * self.length else 0
        place = at / self.gap - 1 + past
        ahead = place.clamp(past, count - 1)
        place = ahead if past == 0 else torch.where(at > 0, ahead, place.clamp(0, past - 1))
        lower = place.floor()
        return lower, place - lower


def _take(nodes: Tensor, index: Tensor) -> Tensor:
    """`[batch, channels, nodes, features]` at `index` `[batch, queries]`."""
    index = index[:, None, :, None].expand(-1, nodes.shape[1], -1, nodes.shape[3])
    return nodes.gather(2, index)


def length_for(spec: TaskSpec, patch: int) -> int:
    """Nodes of a stretch that suit a task whose tokens are patches of so many nodes."""
    nodes = min(spec.horizon / spec.median_gap, _MAX_NODES)
    return max(patch, math.ceil(nodes / _STRETCHES))


def make_stretches(config: Any, spec: TaskSpec, tokens: ObservationTokens | PatchTokens) -> Stretches | None:
    """The stretches that the config of a model asks for, or that suit the task; None: each time by itself.

    Raises:
        ValueError: Questions are to be stretches where what is known ahead tells moments apart.
    """
    patch, known = config.query_patch, bool(spec.num_known or spec.known_codes)
    if patch == "auto":
        patch = None
        if isinstance(tokens, PatchTokens) and not (known or config.join_channels):
            patch = length_for(spec, tokens.length)
    if patch is not None and known:
        raise ValueError(
            f"With `query_patch` {patch!r} a stretch of time is answered at once, but covariates that are "
            "known ahead differ from moment to moment. Give `query_patch=None`."
        )
    return None if patch is None else Stretches(spec, patch)
