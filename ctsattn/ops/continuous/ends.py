"""What is not a whole piece: ends of the interval inside a piece, a held last knot, and empty intervals.

Each touches at most two knots of a query, so it is computed with plain tensor operations and merged with what
a backend returns through the logarithm of the sum of weights. No backend needs to know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ctsattn.ops.continuous.knots import take_rows
from ctsattn.ops.continuous.reference import MAX_EXPONENT


class PartialPiece(NamedTuple):
    """A part of the straight line between two knots, one for each query; all fields are `[batch, queries]`.

    Attributes:
        left: Knot at which the line starts.
        right: Knot at which the line ends; the same as `left` where that knot is held constant.
        begin: Share of the line at which the part begins.
        end: Share of the line at which the part ends.
        gap: Length of the part; 0 where there is none.
    """

    left: Tensor
    right: Tensor
    begin: Tensor
    end: Tensor
    gap: Tensor


def merge_partial(
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    piece: PartialPiece,
    piece_weights: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Add a partial piece to an integral.

    Args:
        out: Mean value so far `[batch, heads, queries, value_dim]`.
        lse: Logarithm of the sum of weights so far `[batch, heads, queries]`.
        q: Queries `[batch, heads, queries, head_dim]`.
        k: Keys `[batch, kv_heads, knots, head_dim]`.
        v: Values `[batch, kv_heads, knots, value_dim]`.
        scale: Factor on the scores.
        piece: The part to add.
        piece_weights: Shares of a piece that fall to its two ends, as `reference.piece_weights`.

    Returns:
        The new mean value and logarithm, in the dtype of `lse`.
    """
    k0, v0 = (take_knots(x, piece.left, q.shape[1], lse.dtype) for x in (k, v))
    k1, v1 = (take_knots(x, piece.right, q.shape[1], lse.dtype) for x in (k, v))
    begin, end, gap = (x[:, None].to(lse.dtype) for x in (piece.begin, piece.end, piece.gap))
    query = q.to(lse.dtype) * scale
    score, rise = (query * k0).sum(dim=-1), (query * (k1 - k0)).sum(dim=-1)
    a0, a1 = score + begin * rise, score + end * rise
    # As in the reference: a score without weight must not push the true weights to zero.
    highest = torch.where(gap > 0, torch.maximum(a0, a1), -torch.inf)
    peak = torch.maximum(lse, highest).detach()
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    a0, a1 = ((a - peak).clamp(max=MAX_EXPONENT) for a in (a0, a1))
    at_begin, at_end = piece_weights(a0, a1, gap)
    to_left, to_right = at_begin * (1 - begin) + at_end * (1 - end), at_begin * begin + at_end * end
    return combine(out, lse, peak, [(to_left, v0), (to_right, v1)])


def combine(
    out: Tensor, lse: Tensor, peak: Tensor, added: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Add weighted values to a weighted mean.

    Args:
        out: Mean value so far `[batch, heads, queries, value_dim]`.
        lse: Logarithm of the sum of weights so far `[batch, heads, queries]`.
        peak: Finite number, subtracted from the logarithm of every added weight.
        added: Weights `[batch, heads, queries]` and their values.

    Returns:
        The new mean value and logarithm; 0 and -inf where nothing has weight.
    """
    so_far = (lse - peak).exp()
    total, mixed = so_far, so_far[..., None] * out.to(lse.dtype)
    for weight, value in added:
        total, mixed = total + weight, mixed + weight[..., None] * value
    some = total > 0
    divisor = torch.where(some, total, 1.0)
    return mixed / divisor[..., None], torch.where(some, divisor.log() + peak, -torch.inf)


def take_knots(x: Tensor, index: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """Rows of `x` `[batch, kv_heads, knots, width]` at `index` `[batch, queries]`, for every query head."""
    taken = take_rows(x, index.long().clamp(0, x.shape[2] - 1))
    return repeat_heads(taken.to(dtype), heads)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Give every query head its key head: `[batch, kv_heads, …]` to `[batch, heads, …]`."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
