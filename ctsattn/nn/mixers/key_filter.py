"""Softmax attention on keys that pass a learned filter of three taps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ctsattn.nn.mixers.base import AttentionMixer, Heads, MixerConfig
from ctsattn.nn.mixers.softmax import per_query_head, softmax_of_scores, visible_keys


def neighbour_keys(k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The key before and the key after each key; an outermost key is its own neighbour.

    Args:
        k: `[batch, heads, length, head_dim]`.
        mask: `[batch, length]`, false in the padding on the right; None: all exist.
    """
    before = torch.cat([k[:, :, :1], k[:, :, :-1]], dim=2)
    after = torch.cat([k[:, :, 1:], k[:, :, -1:]], dim=2)
    if mask is not None:
        is_last = mask & ~torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
        after = torch.where(is_last[:, None, :, None], k, after)
    return before, after


class KeyFilter(AttentionMixer):
    """Softmax attention with a depth-wise filter over neighbouring keys that starts as [0, 1, 0].

    To first order in the differences of scores, continuous attention on unit gaps is this with the fixed taps
    [1/6, 4/6, 1/6]. The last key that a query sees has no later neighbour: the tap reads the key itself.

    Args:
        config: Sizes and units.
    """

    reads_neighbours = True

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        taps = torch.tensor([0.0, 1.0, 0.0]).repeat(
            self.projections.num_kv_heads, self.projections.head_dim, 1
        )
        self.taps = nn.Parameter(taps)

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Sum over tokens with filtered keys; see `AttentionMixer.attend`."""
        q, k, v, _, mask, sink = heads
        before, after = neighbour_keys(k, mask)
        left, centre, right = self.taps.unsqueeze(1).unbind(dim=-1)
        scale = q.shape[-1] ** -0.5
        scores = q @ per_query_head(left * before + centre * k + right * after, q).mT * scale
        if is_causal:
            own = per_query_head(left * before + (centre + right) * k, q)
            scores = scores.diagonal_scatter((q * own).sum(dim=-1) * scale, dim1=-2, dim2=-1)
        visible = visible_keys(q, k, mask, is_causal)
        return softmax_of_scores(scores, q, v, visible, sink, self.dropout)
