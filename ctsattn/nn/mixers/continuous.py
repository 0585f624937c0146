"""Continuous softmax attention: the exact integral over real time, or over the index as clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ctsattn.nn.mixers.base import AttentionMixer, Heads
from ctsattn.ops import continuous_attention


def integrate(
    operator: Callable[..., Tensor], heads: Heads, is_causal: bool, dropout_p: float, **options: Any
) -> Tensor:
    """Apply an operator of `ctsattn.ops` to heads.

    Args:
        operator: `continuous_attention` or one with its arguments.
        heads: What it is applied to; times None: unit gaps.
        is_causal: Whether query i sees keys up to i only.
        dropout_p: Share of weights dropped.
        **options: Further arguments of the operator.

    Returns:
        `[batch, heads, queries, head_dim]`.
    """
    q, k, v, times, mask, sink = heads
    return operator(
        q,
        k,
        v,
        times,
        key_mask=mask,
        is_causal=is_causal,
        sink=sink,
        dropout_p=dropout_p,
        enable_gqa=True,
        **options,
    )


class Continuous(AttentionMixer):
    """Integral of the softmax over real time, keys and values joined by straight lines."""

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Integrate over the gaps of the clock; see `AttentionMixer.attend`."""
        return integrate(continuous_attention, heads, is_causal, self.dropout, interval=self.config.interval)


class ContinuousUnit(AttentionMixer):
    """The same integral with all gaps 1, as for text; real time enters through the rotary angles only."""

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Integrate over unit gaps between tokens that exist; see `AttentionMixer.attend`."""
        sink = None if heads.sink is None else heads.sink._replace(gap=1.0)
        counted = heads._replace(times=None, sink=sink)
        return integrate(
            continuous_attention, counted, is_causal, self.dropout, interval=self.config.interval
        )
