"""Continuous softmax attention: the exact integral over real time, or over the index as clock."""

from __future__ import annotations

from torch import Tensor

from ctsattn.nn.mixers.base import AttentionMixer, SinkToken
from ctsattn.ops import continuous_attention


class Continuous(AttentionMixer):
    """Integral of the softmax over real time, keys and values joined by straight lines."""

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
        """Integrate over the gaps of `times`; see `AttentionMixer.attend`."""
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
        )


class ContinuousUnit(AttentionMixer):
    """The same integral with all gaps 1, as for text; real time enters through the rotary angles only."""

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
        """Integrate over unit gaps between tokens that exist; see `AttentionMixer.attend`."""
        if sink is not None:
            sink = sink._replace(gap=1.0)
        return continuous_attention(
            q,
            k,
            v,
            None,
            key_mask=mask,
            is_causal=is_causal,
            sink=sink,
            dropout_p=self.dropout,
            enable_gqa=True,
        )
