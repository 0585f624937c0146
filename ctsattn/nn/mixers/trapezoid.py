"""Trapezoid rule for the integral over real time, as Continuum Attention discretises it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ctsattn.nn.mixers.base import AttentionMixer
from ctsattn.nn.mixers.softmax import softmax_attention, visible_keys
from ctsattn.ops import Sink


def half_gap_bias(times: Tensor, mask: Tensor | None, is_causal: bool, sink_gap: float | None) -> Tensor:
    r"""Bias of the scores, $\log\big((\Delta_j + \Delta_{j+1}) / 2\big)$, for each query and key.

    The last key that a query sees has no later piece, nor has the first an earlier one; with a sink the
    first has the sink's gap before it. Where all visible keys are at one time, gaps count as 1.

    Args:
        times: `[batch, length]`.
        mask: `[batch, length]`, false in the padding on the right; None: all exist.
        is_causal: Whether query i sees keys up to i only.
        sink_gap: Gap of the sink, or None where there is none.

    Returns:
        `[batch, 1, length or 1, length]`, $-\infty$ for keys without weight.
    """
    exists = torch.ones_like(times) if mask is None else mask.to(times)
    bias = _bias(F.pad(times.diff(dim=1), (1, 0)), exists, is_causal, sink_gap)
    if sink_gap:
        return bias
    unit = _bias(F.pad(torch.ones_like(times[:, 1:]), (1, 0)), exists, is_causal, sink_gap)
    end = times if is_causal else times.where(exists > 0, times[:, :1]).amax(dim=1, keepdim=True)
    return torch.where((end <= times[:, :1])[:, None, :, None], unit, bias)


def _bias(before: Tensor, exists: Tensor, is_causal: bool, sink_gap: float | None) -> Tensor:
    """Bias from the gaps before the keys; a key that is alone has weight 1."""
    if sink_gap is not None:
        before = torch.cat([torch.full_like(before[:, :1], sink_gap), before[:, 1:]], dim=1)
    after = F.pad((before * exists)[:, 1:], (0, 1))
    bias = _log((before + after) / 2)[:, None, None, :]
    if is_causal:
        own = _log(before / 2)
        if sink_gap is None:
            own = torch.cat([torch.zeros_like(own[:, :1]), own[:, 1:]], dim=1)
        square = bias.expand(-1, -1, before.shape[1], -1)
        return square.diagonal_scatter(own[:, None], dim1=-2, dim2=-1)
    if sink_gap is None:
        alone = (exists.sum(dim=1) == 1)[:, None, None, None]
        bias = torch.where(alone, 0.0, bias)
    return bias


def _log(width: Tensor) -> Tensor:
    """Logarithm; minus infinity without gradient at 0."""
    positive = width > 0
    return torch.where(positive, torch.where(positive, width, 1.0).log(), -torch.inf)


class Trapezoid(AttentionMixer):
    """Softmax attention with the logarithm of each token's share of real time as bias.

    It is the trapezoid rule for both integrals of continuous attention, and its limit for equal scores.

    References:
        Calvello, Kovachki, Levine and Stuart, "Continuum attention for neural operators", arXiv 2406.06486.
    """

    reads_neighbours = True

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        times: Tensor,
        mask: Tensor | None,
        sink: Sink | None,
        is_causal: bool,
    ) -> Tensor:
        """Sum over tokens, each weighted by its half gaps; see `AttentionMixer.attend`."""
        gap = None if sink is None else self.config.gap
        bias = half_gap_bias(times, mask, is_causal, gap).to(q.dtype)
        sink_bias = None if gap is None else torch.tensor(gap / 2, dtype=q.dtype, device=q.device).log()
        visible = visible_keys(q, k, mask, is_causal)
        return softmax_attention(q, k, v, visible, sink, bias, sink_bias, self.dropout)
