"""First-order form of continuous attention: a fixed short filter on keys, then the stock kernel."""

from __future__ import annotations

from torch import Tensor

from ctsattn.nn.mixers.base import AttentionMixer, SinkToken
from ctsattn.ops import continuous_attention


class FirstOrder(AttentionMixer):
    """The integral over real time to first order in the differences of neighbouring scores."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        times: Tensor,
        mask: Tensor | None,
        sink: SinkToken | None,
        is_causal: bool,
    ) -> Tensor:
        """Integrate approximately over the gaps of `times`; see `AttentionMixer.attend`."""
        return continuous_attention(
            q,
            k,
            v,
            times,
            key_mask=mask,
            is_causal=is_causal,
            sink=sink,
            dropout_p=self.dropout,
            enable_gqa=True,
            backend="first_order",
        )
