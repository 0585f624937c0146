"""First-order form of continuous attention: a fixed short filter on keys, then the stock kernel."""

from __future__ import annotations

from torch import Tensor

from ctsattn.nn.mixers.base import AttentionMixer, Heads
from ctsattn.nn.mixers.continuous import integrate
from ctsattn.ops import continuous_attention


class FirstOrder(AttentionMixer):
    """The integral over real time to first order in the differences of neighbouring scores."""

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Integrate approximately over the gaps of the clock; see `AttentionMixer.attend`."""
        return integrate(
            continuous_attention,
            heads,
            is_causal,
            self.dropout,
            backend="first_order",
            interval=self.config.interval,
        )
