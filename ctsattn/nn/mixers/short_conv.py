"""Softmax attention on scores that pass a short convolution over queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ctsattn.nn.mixers.base import AttentionMixer, Heads, MixerConfig
from ctsattn.nn.mixers.softmax import per_query_head, softmax_of_scores, visible_keys

_QUERY_TAPS = 3  # a query and the two before it
_KEY_TAPS = 5  # a key and two on each side


class ShortConv(AttentionMixer):
    """Softmax attention with a learned kernel on the scores of each head, which starts as the identity.

    Scores of keys that a query does not see count as 0 in the convolution, so nothing later leaks. Queries
    that read at times of their own do not see each other: only the taps over keys apply to them.

    Args:
        config: Sizes and units.

    References:
        Golovneva et al., "Multi-token attention", arXiv 2504.00927.
    """

    reads_neighbours = True

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        kernel = torch.zeros(config.num_heads, 1, _QUERY_TAPS, _KEY_TAPS)
        kernel[:, :, -1, _KEY_TAPS // 2] = 1.0
        self.kernel = nn.Parameter(kernel)

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Sum over tokens with filtered scores; see `AttentionMixer.attend`."""
        return self._attend(heads, is_causal, self.kernel)

    def attend_apart(self, heads: Heads) -> Tensor:
        """Sum over tokens with scores filtered over keys only; see `AttentionMixer.attend_apart`."""
        return self._attend(heads, False, self.kernel[:, :, -1:])

    def _attend(self, heads: Heads, is_causal: bool, kernel: Tensor) -> Tensor:
        q, k, v, _, mask, sink = heads
        scores = q @ per_query_head(k, q).mT * q.shape[-1] ** -0.5
        visible = visible_keys(q, k, mask, is_causal)
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)
        side = _KEY_TAPS // 2
        padded = F.pad(scores, (side, side, kernel.shape[2] - 1, 0))
        scores = F.conv2d(padded, kernel, groups=kernel.shape[0])
        return softmax_of_scores(scores, q, v, visible, sink, self.dropout)
