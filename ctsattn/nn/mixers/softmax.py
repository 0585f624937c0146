"""Softmax attention with the same sink, positions and temperature as the continuous operator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ctsattn.nn.mixers.base import AttentionMixer, Heads, SinkToken


def visible_keys(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Which keys each query sees, broadcastable to `[batch, heads, queries, keys]`; None: all of them."""
    visible = None if mask is None else mask[:, None, None, :]
    if is_causal:
        past = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        visible = past[None, None] if visible is None else visible & past
    return visible


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    sink: SinkToken | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Softmax attention on the stock kernel; a sink is one more key that every query sees.

    Args:
        q: `[batch, heads, queries, head_dim]`.
        k: `[batch, kv_heads, keys, head_dim]`.
        v: `[batch, kv_heads, keys, value_dim]`.
        visible: Bool, broadcastable to `[batch, heads, queries, keys]`; None: all keys.
        sink: Key and value `[batch, kv_heads, head_dim]`; its gap plays no part.
        dropout_p: Share of weights dropped.

    Returns:
        `[batch, heads, queries, value_dim]`; 0 for a query that sees nothing.
    """
    if sink is not None:
        k, v = (torch.cat([x.unsqueeze(2), y], dim=2) for x, y in ((sink.key, k), (sink.value, v)))
        visible = None if visible is None else F.pad(visible, (1, 0), value=True)
    sees_any = None if visible is None else visible.any(dim=-1, keepdim=True)
    if visible is not None and sees_any is not None:
        # a query that sees nothing is let see all, and its output dropped: no NaN in either direction
        visible = visible | ~sees_any
    shared = k.shape[1] != q.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, visible, dropout_p=dropout_p, enable_gqa=shared)
    return out if sees_any is None else out * sees_any


def softmax_of_scores(
    scores: Tensor,
    q: Tensor,
    v: Tensor,
    visible: Tensor | None,
    sink: SinkToken | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Softmax attention from scores that no stock kernel computes; the rest as in `softmax_attention`.

    Args:
        scores: `[batch, heads, queries, keys]`, scaled.
        q: `[batch, heads, queries, head_dim]`, for the score of the sink.
        v: `[batch, kv_heads, keys, value_dim]`.
        visible: Bool, broadcastable to `scores`; None: all keys.
        sink: Key and value `[batch, kv_heads, head_dim]`.
        dropout_p: Share of weights dropped.

    Returns:
        `[batch, heads, queries, value_dim]`; 0 for a query that sees nothing.
    """
    v = per_query_head(v, q)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if sink is not None:
        key, value = (per_query_head(x, q).unsqueeze(2) for x in (sink.key, sink.value))
        scores = torch.cat([q @ key.mT * q.shape[-1] ** -0.5, scores], dim=-1)
        v = torch.cat([value, v], dim=2)
    sees_any = scores.amax(dim=-1, keepdim=True) > -torch.inf
    weights = torch.where(sees_any, scores, 0.0).softmax(dim=-1) * sees_any
    return F.dropout(weights, dropout_p) @ v


def per_query_head(x: Tensor, q: Tensor) -> Tensor:
    """Repeat what key heads hold, `[batch, kv_heads, ...]`, for the query heads that share them."""
    groups = q.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


class Softmax(AttentionMixer):
    """Ordinary softmax attention; time enters through the rotary angles only."""

    def attend(self, heads: Heads, is_causal: bool) -> Tensor:
        """Sum over tokens; see `AttentionMixer.attend`."""
        q, k, v, _, mask, sink = heads
        visible = visible_keys(q, k, mask, is_causal)
        return softmax_attention(q, k, v, visible, sink, self.dropout)
