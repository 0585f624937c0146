"""Trapezoid rule for the integral over real time, as Continuum Attention discretises it."""

from __future__ import annotations

from torch import Tensor

from ctsattn.nn.mixers.base import AttentionMixer, Heads
from ctsattn.nn.mixers.continuous import integrate
from ctsattn.ops import trapezoid_attention


class Trapezoid(AttentionMixer):
    """Softmax attention in which each token counts by its share of real time.

    It is the limit of continuous attention for equal scores.

    References:
        Calvello, Kovachki, Levine and Stuart, "Continuum attention for neural operators", arXiv 2406.06486.
    """

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Sum over tokens, each weighted by its half gaps; see `AttentionMixer.attend`."""
        return integrate(trapezoid_attention, heads, is_causal, self.dropout, interval=self.config.interval)
